"""Initialisation of a training run with the weights of another run (`init_from`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from atat_zoo.diffusion.contracts import StatefulComponent
from atat_zoo.experiment import Experiment
from atat_zoo.experiment.inheritance import Source, incompatibilities
from atat_zoo.experiment.runs import RunFolder, sha256_of
from atat_zoo.experiment.runs.model_files import WEIGHTS, described
from atat_zoo.experiment.runs.run_folder import Checkpoint
from atat_zoo.generation.model import plain_weights
from atat_zoo.modeling.backbones.lora import of_base, without_lora
from atat_zoo.modeling.backbones.ngram_prior_module import ngram_prior_counts
from atat_zoo.registry import Zoo
from atat_zoo.system.errors import UserError


@attrs.frozen(kw_only=True)
class InitialWeights:
    """The final weights of another run, and the hash of their file."""

    source: Source
    sha256: str
    weights: dict[str, Tensor] = attrs.field(eq=False, repr=False)

    @classmethod
    def from_experiment(cls, experiment: Experiment) -> InitialWeights | None:
        """Return the weights of the run in `init_from`, or None without one; raise `UserError` if it does not fit."""
        if experiment.init_from is None:
            return None
        source = Source.read(experiment.init_from, "init_from")
        if problems := incompatibilities(experiment, source, Zoo.load()):
            raise UserError("\n".join(map(str, problems)))
        folder = source.folder.model
        try:
            weights = plain_weights(folder)
        except UserError as error:
            raise UserError(f"init_from: {error}") from None
        return cls(source=source, sha256=sha256_of(folder / WEIGHTS), weights=weights)

    @classmethod
    def again(
        cls, experiment: Experiment, folder: RunFolder, last: Checkpoint | None, message: Callable[[str], object]
    ) -> InitialWeights:
        """Return the initial weights to resume a run without checkpoint or with LoRA; raise `UserError` if changed."""
        initial = cls.from_experiment(experiment)
        assert initial is not None
        recorded = folder.initial_weights()
        with suppress(UserError, KeyError, TypeError):
            recorded = described(folder.checkpoint_model(last.step))["base"]["sha256"] if last else recorded
        if recorded is None:
            message(f"{folder.environment} does not identify the initial weights; using those that init_from has now")
        elif recorded != initial.sha256:
            raise UserError(
                f"init_from: {experiment.init_from} no longer has the initial weights of {folder.path}, which "
                f"{'is trained with LoRA' if last else 'has no checkpoint yet'}; train this run again with --overwrite"
            )
        return initial

    def record(self) -> dict[str, Any]:
        """Return the other run, its step, and the SHA-256 of its weights, for environment.json."""
        return {"run": self.source.path, "step": self.source.step, "sha256": self.sha256}

    def base(self) -> dict[str, Any]:
        """Return `record` with the absolute path of the other run, which stores the base weights of LoRA."""
        return {**self.record(), "path": str(self.source.folder.path.resolve())}

    def kept_by(self, objective: nn.Module) -> dict[str, Tensor]:
        """Return the weights that LoRA leaves unchanged, by their names during training."""
        return {name: self.weights[plain] for name, plain in of_base(objective).items()}

    def load_into(self, objective: nn.Module) -> str:
        """Copy the weights of the backbone and of every component that both models have, and return a message about it.

        A component is copied completely or not at all; a backbone that does not fit raises UserError. Corpus statistics
        (a running loss, token frequencies) are buffers, not weights, and are not copied.
        """
        path, theirs = self.source.folder.model / WEIGHTS, self.weights
        ours = parts_of(objective)
        taken, fresh = [], []
        for part, weights in ours.items():
            problem = _misfit(part, weights, theirs)
            if not problem:
                with torch.no_grad():
                    for name, weight in weights.items():
                        weight.copy_(theirs[name])
                taken.append(part)
            elif part == "backbone":
                raise UserError(f"init_from: {path} does not fit [backbone]: {problem}; copy the run again")
            else:
                fresh.append(f"{part} ({problem})")
        remembering = [name for name, part in objective.named_children() if isinstance(part, StatefulComponent)]
        fresh += [f"the state of {part}" for part in remembering]
        if any(
            not torch.equal(counts.cpu(), theirs[name].cpu()) for name, counts in ngram_prior_counts(objective).items()
        ):
            fresh.append("the counts of backbone.ngram_prior (from the new text)")
        return (
            f"initialising {' and '.join(taken)} from {self.source.path} "
            f"(objective {self.source.objective}, step {self.source.step})"
            + (f"; newly initialised: {', '.join(fresh)}" if fresh else "")
        )


def parts_of(objective: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Return each component's tensors: the saved state of the backbone, and the trained weights of other components.

    The backbone's n-gram counts are excluded because each training run counts its own text, and LoRA's matrices are
    excluded because their product starts at zero in each run.
    """
    counts = ngram_prior_counts(objective)
    state = {
        plain: t for name, t in objective.state_dict().items() if name not in counts and (plain := without_lora(name))
    }
    parts: dict[str, dict[str, Tensor]] = {"backbone": {n: t for n, t in state.items() if n.startswith("backbone.")}}
    for name, parameter in objective.named_parameters():
        part = name.partition(".")[0]
        if part != "backbone" and parameter.requires_grad:
            parts.setdefault(part, {})[name] = parameter
    return parts


def _misfit(part: str, ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> str:
    """Return the reason why a component's weights cannot be copied, or an empty string."""
    if not any(name.partition(".")[0] == part for name in theirs):
        return "the run does not have this component"
    for name, tensor in ours.items():
        if name not in theirs:
            return f"the run has a different component, without {name}"
        if theirs[name].shape != tensor.shape:
            return f"{name} has shape {list(theirs[name].shape)} there and {list(tensor.shape)} here"
    return ""
