"""Position sets: the order in which a set-causal model reads and predicts a sequence (docs/explanation/mathematics.md).

Each position i has a step c_i: −1 if it is given (as in a prompt or around a gap), otherwise 0, 1, …, S − 1. The
positions of a step form a set and are predicted at once, from the tokens of all earlier steps,

    p(x_free | x_given) = Π_j Π_{i: c_i = j} p_θ(x_i | x_k, c_k < j)

so −log p in this order is exact for any steps, and generation takes S forward passes (position sets: Arriola and
Kuleshov, arXiv:2607.01775; one position per set: arXiv:2205.13554). Shapes: B rows, L positions, n free positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import attrs
from typing_extensions import override

from atat_zoo.registry import component, component_param, components_param, param

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class PositionSets(Protocol):
    """A component of kind `position_sets`."""

    name: str

    @property
    def ascending(self) -> bool:
        """Whether the first of contiguous free positions has step 0, and each next one 0 or the previous step plus 1.

        One forward pass then trains every position; otherwise, some tokens are read twice (see `SetCausalObjective`).
        """
        return False

    @property
    def deterministic(self) -> bool:
        """Whether the steps depend only on the free positions, without random numbers."""
        return False

    @property
    def reads_importance(self) -> bool:
        """Whether `step_indices` calls `score`, which needs an estimator that reads the masked sequence."""
        return False

    def step_indices(self, free: Tensor, keys: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the step of every position, int64 [B, L]: −1 where not free, otherwise 0 … S − 1, without empty steps.

        Args:
            free: the positions to predict, bool [B, L].
            keys: one random-number key per row, int64 [B].
            score: maps masked positions, bool [B, L], to the difficulty of their tokens given all others, float [B, L].
                Use only the values at masked positions, so that no step depends on a token that is not visible yet.
        """
        ...


@component
class StridedPositionSets(PositionSets):
    """Free position number j is in set (j + o) mod s, so neighbours in a set are s positions apart.

    Generation takes s decoding steps for any length, and sampling distant positions together loses little. With fewer
    than s free positions, their number replaces s. The offset o is 0 by default; with `random_offset`, it is random in
    every sequence in which no free position follows a given token.
    """

    name = "strided"
    summary = "every s-th free position in one set, so that the positions of a set are far apart"
    refs = ("arXiv:2601.16971", "arXiv:2607.01775")

    stride: int = param(16, help="s, the number of sets", ge=1)
    random_offset: bool = param(False, help="draw the offset o at random for each sequence")

    @property
    @override
    def ascending(self) -> bool:
        return not self.random_offset

    @property
    @override
    def deterministic(self) -> bool:
        return not self.random_offset

    @override
    def step_indices(self, free: Tensor, keys: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        import torch

        number, sets = free.cumsum(1) - 1, free.sum(1, keepdim=True).clamp(1, self.stride)
        if self.random_offset:
            drawn = (_unit(keys, 1) * sets).long()
            begin = (free.cumsum(1) == torch.arange(1, free.shape[1] + 1, device=free.device)) == free
            number = number + torch.where(begin.all(1, keepdim=True), drawn, 0)
        return torch.where(free, number % sets, -1)


@component
class LeftToRightPositionSets(PositionSets):
    """One position per set, from left to right, as in an autoregressive model."""

    name = "left_to_right"
    summary = "one free position per set, left to right"
    refs = ("arXiv:1706.03762",)

    ascending = deterministic = True

    @override
    def step_indices(self, free: Tensor, keys: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        return (free.cumsum(1) - 1).masked_fill(~free, -1)


@component
class BlocksPositionSets(PositionSets):
    """Blocks of consecutive sets of another order, each predicted at once.

    From left to right, this is block diffusion with one step per block. A model that learns an order together with its
    blocks also predicts positions some steps ahead, from which the sampler `speculative` drafts tokens.
    """

    name = "blocks"
    summary = "blocks of consecutive sets in one set; by default, blocks of free positions from left to right"
    refs = ("arXiv:2503.09573", "arXiv:1811.03115")

    block_size: int = param(4, help="sets of `order` per block; for left to right, positions per block", ge=1)
    order: PositionSets = component_param("position_sets", "left_to_right", help="order that is divided into blocks")

    @property
    @override
    def deterministic(self) -> bool:
        return self.order.deterministic

    @property
    @override
    def reads_importance(self) -> bool:
        return self.order.reads_importance

    @override
    def step_indices(self, free: Tensor, keys: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        return self.order.step_indices(free, keys, score) // self.block_size  # −1 remains −1


@component
class AtOncePositionSets(PositionSets):
    """All free positions in one set; with a random subset given, this is masked diffusion."""

    name = "at_once"
    summary = "all free positions in one set, as in masked diffusion"
    refs = ("arXiv:2406.07524",)

    ascending = deterministic = True

    @override
    def step_indices(self, free: Tensor, keys: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        return free.long() - 1


@component
class StaggeredPositionSets(PositionSets):
    """Random positions in a window that slides from left to right, divided into S sets of about equal size.

    Free position number j has the time (1 − w)·j/n + w·u_j^(1/k), with u_j uniform on [0, 1), and the sets are groups
    of consecutive times. w = 1 gives a uniformly random order, and w = 0 goes from left to right. The noise schedule of
    arXiv:2607.01775 is such a window, with k below 1; its width is called b there.
    """

    name = "staggered"
    summary = "random positions in a window that slides from left to right"
    refs = ("arXiv:2607.01775",)

    sets: int = param(16, help="S, the number of sets", ge=1)
    window: float = param(0.3, help="w, width of the window as a fraction of the sequence", ge=0, le=1)
    power: float = param(1.0, help="k; values below 1 move most positions to the start of the window", gt=0)

    @override
    def step_indices(self, free: Tensor, keys: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        n = free.sum(1, keepdim=True).clamp(min=1)
        number = (free.cumsum(1) - 1).double()
        time = (1 - self.window) * number / n + self.window * _unit(keys, free.shape[1]) ** (1 / self.power)
        return _divided(time, free, self.sets)


@component
class RandomPositionSets(PositionSets):
    """Uniformly random sets; with one set per position, a uniformly random order."""

    name = "random"
    summary = "uniformly random sets of free positions"
    refs = ("arXiv:2205.13554", "arXiv:2406.07524")

    sets: int | None = param(16, help="S, the number of sets; in Python, None gives one per position", ge=1)

    @override
    def step_indices(self, free: Tensor, keys: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        return _divided(_unit(keys, free.shape[1]), free, self.sets or free.shape[1])


@component
class ImportancePositionSets(PositionSets):
    """Random sets first, then sets of the remaining positions in the order of the estimator's importance.

    The estimator reads the sequence with all remaining positions masked, so it uses only visible tokens.
    """

    name = "by_importance"
    summary = "random sets first, then the remaining positions by importance, easiest or hardest first"
    refs = ("ATAT", "arXiv:2607.01775")
    reads_importance = True

    sets: int = param(16, help="S, the number of sets", ge=2)
    random_share: float = param(0.25, help="fraction of positions in random sets, rounded up to whole sets", gt=0, lt=1)
    first: Literal["easy", "hard"] = param("easy", help="whether easy or hard tokens come first after the random sets")

    @override
    def step_indices(self, free: Tensor, keys: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        import torch

        n = free.sum(1, keepdim=True)
        # Whole sets, so that no set mixes random positions with positions chosen by importance.
        sets = n.clamp(max=self.sets)
        shown = -(-(self.random_share * sets).ceil().long() * n // sets.clamp(min=1))
        time = _unit(keys, free.shape[1])
        masked = free & (_rank(time, free) >= shown)
        hardness = score(masked).double() * (1 if self.first == "easy" else -1)
        # Random positions get times below 1, the others times above 1.
        return _divided(torch.where(masked, 2 + hardness, time), free, self.sets)


@component
class MixturePositionSets(PositionSets):
    """A mixture that samples one of several kinds of position sets for each sequence."""

    name = "mixture"
    summary = "a mixture that samples one of several kinds of position sets for each sequence"

    components: tuple[PositionSets, ...] = components_param(
        "position_sets", attrs.NOTHING, help="list of position sets, each a table {use = …}"
    )
    weights: tuple[float, ...] = param((), help="relative share of the sequences per component; default: equal", gt=0)

    def __attrs_post_init__(self) -> None:
        if len(self.components) < 2:
            raise ValueError('components needs at least two position sets, as in [{use = "strided"}, {use = "random"}]')
        if self.weights and len(self.weights) != len(self.components):
            raise ValueError(
                f"weights has {len(self.weights)} numbers for {len(self.components)} components; pass one per component"
            )

    @property
    @override
    def ascending(self) -> bool:
        return all(sets.ascending for sets in self.components)

    @property
    @override
    def reads_importance(self) -> bool:
        return any(sets.reads_importance for sets in self.components)

    @override
    def step_indices(self, free: Tensor, keys: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        import torch

        from atat_zoo.diffusion.randomness import fold, interval_index

        shares = torch.tensor(self.weights or (1.0,) * len(self.components), dtype=torch.float64)
        which = interval_index(_unit(fold(keys, -1), 1), (shares.cumsum(0) / shares.sum())[:-1].tolist())
        every = torch.stack(
            [sets.step_indices(free, fold(keys, number), score) for number, sets in enumerate(self.components)]
        )
        return every.gather(0, which.expand(free.shape)[None])[0]


def _unit(keys: Tensor, count: int) -> Tensor:
    """Return uniform random numbers in [0, 1), float64 [B, count]."""
    import torch

    from atat_zoo.diffusion.randomness import uniform

    return uniform(keys, count, torch.float64)


def _rank(time: Tensor, free: Tensor) -> Tensor:
    """Return the rank of each free position by its time, starting at 0, int64 [B, L]; other positions come last."""
    import torch

    return torch.where(free, time, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)


def _divided(time: Tensor, free: Tensor, sets: int) -> Tensor:
    """Return the steps [B, L] of the free positions: sets of about equal size, each a range of times."""
    import torch

    n = free.sum(1, keepdim=True)
    return torch.where(free, _rank(time, free) * n.clamp(max=sets) // n.clamp(min=1), -1)
