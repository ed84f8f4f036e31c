"""Samplers, the decoding algorithms that fill masks with tokens.

A sampler combines a decoding order, a number of tokens per step, remasking, a stopping rule and token sampling. Each of
these five is a kind of component; `loop` runs any compatible combination. B rows, L positions.
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
    """The result of a sampler: `tokens`, int64 [B, L], and `nfe`, the NFE of each sequence, int64 [B].

    `max_nfe` is the largest NFE of a sequence that the sampler's settings allow.
    """

    tokens: Tensor
    nfe: Tensor
    max_nfe: int

    def __repr__(self) -> str:
        texts, length = self.tokens.shape
        mean = float(self.nfe.double().mean()) if texts else 0.0
        size = f"{texts:,} text{'s' * (texts != 1)} of {length:,} tokens"
        return f"<Sample of {size}, {mean:.1f} network evaluations on average, {self.max_nfe:,} at most>"


class Sampler(Protocol):
    """A component of the kind `sampler`.

    An objective whose model reads from left to right accepts only samplers that are `causal` or `blockwise`; both
    default to false.
    """

    name: str

    @property
    def causal(self) -> bool:
        """Whether the sampler fills one mask at a time, always the leftmost, and needs a prediction only there."""
        return False

    @property
    def blockwise(self) -> bool:
        """Whether the sampler fills blocks of `block_size` tokens, or of the model's block size, from left to right.

        Such a sampler accepts sequences that are longer than the model's maximum length.
        """
        return False

    @property
    def no_policy_bound_because(self) -> str | None:
        """A clause that states why the policy bound does not cover the sampler, or None if the bound covers it.

        The bound covers samplers that choose positions from z and independent random numbers only, not from the tokens
        sampled for these positions; see docs/explanation/mathematics.md, "The likelihood of a sampler".
        """
        return "it may use more than the visible tokens to choose positions"

    @property
    def deterministic(self) -> bool:
        """Whether the sampler chooses positions from z only, without random numbers."""
        return False

    @property
    def uses_importance(self) -> bool:
        """Whether the sampler uses the importance of tokens."""
        return False

    @property
    def accepts_padding(self) -> bool:
        """Whether padding after a text changes neither the text nor its NFE; see `Denoiser.with_padding`."""
        return False

    @property
    def for_hub(self) -> dict[str, Any] | None:
        """The options with which an exported model's `generate` uses this sampler; None (the default) if it cannot."""
        return None

    def check(self, experiment: Experiment) -> Iterable[Problem | str]:
        """Yield the problems for which an experiment with this component is refused; by default yield nothing."""
        return ()

    def sample(self, denoiser: Denoiser, tokens: Tensor, seeds: Tensor, *, observe: Observer | None = None) -> Sample:
        """Return a `Sample` of `tokens`, int64 [B, L], with every mask filled and all other tokens unchanged.

        A time-conditioned denoiser gets t from the `tokens_per_step` component if that defines times, and otherwise
        from the fraction of masked tokens. Each row has its own seed, int64 [B], so its tokens do not depend on the
        other rows. A step in which a row does not change needs no forward pass for that row.

        `observe` is called with a record, a dict, whenever a step fills or remasks tokens: the number `step` and lists
        of the filled `rows`, `positions` and `tokens`; or `step` and `hidden`, a dict of the remasked `rows` and
        `positions`. To record a trace, pass the `append` method of a list. Rows that `observe` returns are abandoned:
        they are no longer evaluated, and their remaining masks are filled arbitrarily.
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
        """Return the `Sample` of a run like `sample` that fills in the tokens of a known sequence (teacher forcing).

        `tokens`, int64 [B, L], is `forced.tokens` with some tokens masked. The policy NLL of each token is stored in
        `forced`. Raises a `UserError` if the policy bound does not cover the sampler.
        """
        raise UserError(
            f"the policy bound does not cover this sampler: {self.no_policy_bound_because}; choose a different sampler"
        )


class SamplerComponent(Protocol):
    """The common interface of the five components of a sampler."""

    name: str

    @property
    def needs(self) -> frozenset[str]:
        """The names of what the loop must provide, such as "log_probs" (see `Step`); an empty set by default."""
        return frozenset()

    @property
    def deterministic(self) -> bool:
        """Whether the component decides without random numbers; false by default."""
        return False

    @property
    def accepts_padding(self) -> bool:
        """Whether given tokens after the end of a text do not change its decisions; false by default."""
        return False

    def check(self, experiment: Experiment) -> Iterable[Problem | str]:
        """Yield the problems for which an experiment with this component is refused; by default yield nothing."""
        return ()


def changes(record: Mapping[str, Any], mask_id: int) -> Iterator[tuple[int, int, int]]:
    """Yield row, position and new token of each change in a record of `observe`; a remasked token gives the mask id."""
    found = record.get("hidden", record)
    yield from zip(found["rows"], found["positions"], found.get("tokens", itertools.repeat(mask_id)), strict=False)


def shifted(observe: Observer | None, *, rows: int = 0, positions: int = 0, steps: int = 0) -> Observer | None:
    """Return an observer that adds offsets to a record's numbers and passes it to `observe`; without that, None."""
    if observe is None:
        return None

    def tell(record: dict[str, Any]) -> Sequence[int] | None:
        found = record.get("hidden", record)
        moved = {"rows": [row + rows for row in found["rows"]]}
        moved["positions"] = [i + positions for i in found["positions"]]
        told = record | ({"hidden": moved} if "hidden" in record else moved) | {"step": record["step"] + steps}
        return [row - rows for row in observe(told) or ()]

    return tell
