"""What objectives ask of an experiment and of a sampler when their model is causal. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from atat_zoo.bounds import Bound
    from atat_zoo.experiment import Experiment


def sampler_is_causal(experiment: Experiment, block: int) -> Iterator[str]:
    """Yield a sentence if the sampler asks for more than the leftmost mask, or the leftmost block of the model's."""
    sampler, objective = experiment.parts["sampler"], experiment.parts["objective"]
    if sampler.blockwise:
        size = sampler.size
        if size is not None and block % size:
            yield (
                f"sampler.size = {size} does not divide the blocks of {block} of {objective.name!r}; leave it "
                "out, and the blocks are the model's"
            )
    elif not sampler.causal:
        each = "a block" if block > 1 else "one token"
        yield (
            f"sampler: objective {objective.name!r} writes from left to right, {each} at a time, and {sampler.name!r}, "
            'as it is set, asks for more; use = "semi_autoregressive" or "left_to_right"'
        )


def has_no_time(experiment: Experiment) -> Iterator[str]:
    """Yield a sentence if the backbone reads a diffusion time that the objective cannot give."""
    backbone, objective = experiment.parts["backbone"], experiment.parts["objective"]
    if getattr(backbone, "time_conditioning", False):
        yield (
            f"backbone.time_conditioning: objective {objective.name!r} has no single diffusion time for a sequence; "
            "set it to false"
        )


def bound_is_default(experiment: Experiment) -> Iterator[str]:
    """Yield a sentence if the training's evaluation names an estimator that `refuse_method` would refuse at its end."""
    bound, objective = experiment.evaluation.bound, experiment.parts["objective"]
    if bound.follows_noise:
        yield (
            f"evaluation.bound: objective {objective.name!r} has a bound of its own, and {bound.name!r} has no meaning "
            "there; leave it at exact_k"
        )


def refuse_method(method: Bound, objective: str, why: str) -> None:
    """Refuse an estimator of the bound that the objective has no use for.

    Raises:
        UserError: when it follows the noise schedule, which the objective does not.
    """
    if method.follows_noise:
        raise UserError(
            f"evaluation.bound: under objective {objective!r} {why}, so {method.name!r} has no meaning there; "
            "leave it at exact_k, or leave --bound out"
        )


def refuse_gaps(tokens: Tensor, where: Tensor, mask_id: int, size: int, objective: str) -> None:
    """Refuse to predict a position that has an earlier block with a mask before it.

    Args:
        tokens: z, int64 [B, L].
        where: the positions asked for, bool [B, L].
        mask_id: m.
        size: tokens in a block: only masks in earlier blocks count; 1 for autoregressive models.
        objective: its name, for the message.

    Raises:
        UserError: when a block before an asked position has a mask.
    """
    import torch

    block = torch.arange(tokens.shape[1], device=tokens.device) // size
    first = torch.where(tokens == mask_id, block, tokens.shape[1]).amin(1)
    if bool((where & (block > first[:, None])).any()):
        raise UserError(
            f"objective {objective!r} predicts a token from the text before it, and the sampler asked for one behind "
            "a gap; use a causal sampler, such as left_to_right, or semi_autoregressive"
        )
