"""Find settings without effect: uses of importance equal for all tokens, and targets that no estimator learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from atat_zoo.registry import TABLES, Zoo
from atat_zoo.system.errors import Problem, UserError

if TYPE_CHECKING:
    from atat_zoo.experiment.schema import Experiment


# Kinds whose components may have no effect if all tokens have the same importance, as `reads_importance` says.
_BY_IMPORTANCE = ("objective", "position_sets", "masking", "curriculum")


def is_trained(experiment: Experiment) -> bool:
    """Return whether the estimator has a loss in this experiment, or may have had one in the run of `init_from`."""
    return experiment.parts["objective"].importance_loss_weight > 0 or experiment.init_from is not None


def weighs_tokens(experiment: Experiment) -> bool:
    """Return whether an experiment uses an estimator whose importance can differ between tokens."""
    uses = "estimator" in experiment.parts["objective"].uses
    return uses and bool(experiment.parts["estimator"].tells_apart(is_trained(experiment)))


def learns_importance(experiment: Experiment) -> bool:
    """Return whether an experiment uses a trainable estimator whose importance can differ between tokens."""
    return weighs_tokens(experiment) and bool(experiment.parts["estimator"].learns)


def masks_uniformly(experiment: Experiment) -> bool:
    """Return whether a model predicts uniformly masked tokens from all visible ones, as its bound assumes."""
    objective = experiment.parts["objective"]
    return not (objective.exact or objective.masks_attention)


def without_effect(experiment: Experiment, zoo: Zoo) -> Iterator[Problem]:
    """Yield a problem for each use of importance that is equal for all tokens, and for a target that nothing learns."""
    objective, estimator = experiment.parts["objective"], experiment.parts["estimator"]
    if "estimator" not in objective.uses:
        return
    named, taught = f"estimator {estimator.name!r}", is_trained(experiment)
    if not weighs_tokens(experiment):
        for kind in experiment.kinds:
            part = experiment.parts[kind]
            if kind not in _BY_IMPORTANCE or not part.reads_importance:
                continue
            said = f"{part.name!r} uses the importance of tokens, but {named}"
            if estimator.tells_apart(True):
                problem = "learns nothing with objective.importance_loss_weight = 0; raise the weight"
            else:
                problem = f"gives every token the same importance; set estimator.use to {_others(zoo, objective)}"
            yield Problem(kind, f"{said} {problem}")
    if "target" in objective.uses and _is_set(target := experiment.parts["target"]):
        if not estimator.learns:
            learning = _others(zoo, objective, lambda other: other.learns)
            problem = f"{named} has nothing to learn; set estimator.use to {learning}, or remove [target]"
        elif not taught:
            problem = f"{named} learns nothing with objective.importance_loss_weight = 0; raise it, or remove [target]"
        elif objective.learn_importance:
            problem = (
                f"{named} learns from the gradient of the bound; set objective.learn_importance = false, or remove "
                "[target]"
            )
        else:
            return
        yield Problem("target", f"{target.name!r} trains an importance estimator, but {problem}")


def _is_set(target: Any) -> bool:
    return target.name != TABLES["target"] or target != type(target)()


def _others(zoo: Zoo, objective: Any, fits: Callable[[Any], bool] = lambda other: other.tells_apart(True)) -> str:
    """Return the names of the estimators that, with their default parameters, work with the objective."""
    found = []
    for name in zoo.names("estimator"):
        try:
            other = zoo.spec("estimator", name)
            found += [f'"{name}"'] if other.reads == objective.importance_reads and fits(other) else []
        except UserError:  # it has a parameter without a default
            continue
    return " or ".join(found)


def require_estimator(experiment: Experiment, run: object, *, constant: bool = False) -> None:
    """Raise a `UserError` if a run has no estimator or, unless `constant`, one with equal importance for all tokens."""
    objective = experiment.parts["objective"]
    if "estimator" not in objective.uses:
        problem = f"was trained with the objective {objective.name!r}, which uses no importance estimator"
    elif not constant and not weighs_tokens(experiment):
        name = experiment.parts["estimator"].name
        problem = f"has the estimator {name!r}, which gives every token the same importance"
    else:
        return
    raise UserError(f"{run} {problem}; choose a run with an [estimator] whose importance differs between tokens")
