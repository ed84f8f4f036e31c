"""Samplers: from masks to text.

A sampler combines a decoding order, a number of tokens per step, remasking, a stopping rule and token sampling. Each is
a kind; `loop` runs any combination.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from atat_zoo.diffusion.contracts import Denoiser
from atat_zoo.system.errors import Problem, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.samplers.teacher_forcing import TeacherForcing

Observer = Callable[[dict[str, Any]], Sequence[int] | None]


@attrs.frozen(kw_only=True, eq=False)
class Sample:
    """Tokens, int64 [B, L], without masks, and the network evaluations of each row, int64 [B].

    `max_nfe` is the largest number of evaluations that the sampler's settings allow.
    """

    tokens: Tensor
    nfe: Tensor
    max_nfe: int

    def __repr__(self) -> str:
        texts, length = self.tokens.shape
        mean = float(self.nfe.double().mean()) if texts else 0.0
        size = f"{texts:,} text{'s' * (texts != 1)} of {length:,} tokens"
        return f"<Sample of {size}, {mean:.1f} network evaluations each, {self.max_nfe:,} at most>"


class Sampler(Protocol):
    """A component of the kind sampler.

    Objectives whose model reads a text from left to right take only samplers that are `causal` or `blockwise`; a class
    that inherits from this one is none.
    """

    name: str

    @property
    def causal(self) -> bool:
        """Whether it always fills the leftmost mask, one at a time, and asks the denoiser for nothing else."""
        return False

    @property
    def blockwise(self) -> bool:
        """Whether it goes block by block from left to right, `size` tokens each, or None for those of the model.

        It then shows no more than the denoiser sees at once.
        """
        return False

    @property
    def no_policy_bound_because(self) -> str | None:
        """Why the policy bound does not cover it, as a clause; None, if it does, and then it has `score_text`.

        Covered are choices of positions that read z and random numbers of their own, and no token that is drawn for
        them: docs/explanation/mathematics.md, "The likelihood of a sampler".
        """
        return "it does not say that it chooses positions by visible tokens alone"

    @property
    def deterministic(self) -> bool:
        """Whether its choices of positions follow from z alone, without random numbers."""
        return False

    @property
    def uses_importance(self) -> bool:
        """Whether it asks the denoiser for the importance of tokens."""
        return False

    @property
    def for_hub(self) -> dict[str, Any] | None:
        """The options by which `generate` of an exported model does the same; None, the default, if none do."""
        return None

    def check(self, experiment: Experiment) -> Iterable[Problem | str]:
        """Yield what does not fit an experiment with it, which is then refused; nothing by default."""
        return ()

    def sample(self, denoiser: Denoiser, tokens: Tensor, seeds: Tensor, *, observe: Observer | None = None) -> Sample:
        """Fill every mask in int64 [B, L]; tokens other than the mask are given and never change.

        A denoiser that reads the time gets t from the tokens per step where that has its own times, and otherwise from
        the share
        of masked tokens, so a step that changes nothing is never evaluated. There is one seed per row, int64 [B]: a row
        does not depend on its batch. `observe` is called with a record of each step as it happens: `step`, and N
        entries each of `rows`, `positions` and `tokens` that were filled; or `step` and `hidden`, with the `rows` and
        `positions` masked again. A list's `append` makes a trace of it. Rows that it returns are given up: they are
        evaluated no more, and what their masks become has no meaning.
        """
        ...

    def score_text(
        self,
        denoiser: Denoiser,
        tokens: Tensor,
        seeds: Tensor,
        forced: TeacherForcing,
        *,
        observe: Observer | None = None,
    ) -> Sample:
        """Take the steps of `sample`, and fill with the tokens of a known text instead of drawn ones.

        z, int64 [B, L], is `forced.tokens` with some of them masked. The policy NLL of each is written into `forced`. A
        sampler with a `no_policy_bound_because` raises `UserError`.
        """
        raise UserError(f"the policy bound does not cover this sampler: {self.no_policy_bound_because}; choose another")


class SamplerComponent(Protocol):
    """What the five parts of a sampler have in common."""

    name: str

    @property
    def needs(self) -> frozenset[str]:
        """Names of the fields of a `Step` that the loop must fill in; none by default."""
        return frozenset()

    @property
    def deterministic(self) -> bool:
        """Whether an order, tokens per step or a stop decides without random numbers; false by default."""
        return False

    def check(self, experiment: Experiment) -> Iterable[Problem | str]:
        """Yield what does not fit an experiment with it, which is then refused; nothing by default."""
        return ()


def changes(record: Mapping[str, Any], mask_id: int) -> Iterator[tuple[int, int, int]]:
    """Yield row, position and new token of each position that a step changes; the mask where it is masked again."""
    found = record.get("hidden", record)
    yield from zip(found["rows"], found["positions"], found.get("tokens", itertools.repeat(mask_id)), strict=False)


def shifted(observe: Observer | None, *, rows: int = 0, positions: int = 0, steps: int = 0) -> Observer | None:
    """Return an observer that reports to `observe`, if any, with these offsets."""
    if observe is None:
        return None

    def tell(record: dict[str, Any]) -> Sequence[int] | None:
        found = record.get("hidden", record)
        moved = {"rows": [row + rows for row in found["rows"]]}
        moved["positions"] = [i + positions for i in found["positions"]]
        told = record | ({"hidden": moved} if "hidden" in record else moved) | {"step": record["step"] + steps}
        return [row - rows for row in observe(told) or ()]

    return tell
