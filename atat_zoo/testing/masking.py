"""Checks of MATH 3 (a)–(f), for any masking strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch
from hypothesis import strategies as st

from atat_zoo.testing.batches import close, for_examples, holds, rows, temperatures
from atat_zoo.testing.steps import check_adaptive, variants

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from atat_zoo.testing.batches import Rows

_ROUNDING = 1e-6  # of p in float32, where a promise is exact in real numbers
_HOT, _COLD = 1e6, 1e-5


def check_masking(strategy: Any, examples: int = 50) -> None:
    """Check the properties (a) to (f) of `atat_zoo.masking` at many temperatures.

    Also: no random numbers, unchanged inputs, and rows that do not depend on the others of their batch.
    """
    for check in PROMISES.values():
        check(strategy, examples)


def check_rate(strategy: Any, examples: int = 50) -> None:
    """(a) the mean of p is the rate, exactly at 0 and 1; (e) what is not maskable has p = 0."""

    @for_examples(examples, drawn=rows(), temperature=temperatures())
    def holds_rate(drawn: Rows, temperature: float) -> None:
        for ready in _variants(strategy, temperature, drawn):
            p = _probabilities(ready, drawn)
            assert p.dtype == torch.float32, f"p is float32, not {p.dtype}"
            close(_probabilities(ready, drawn), p, 0, "the same input gives the same p")
            assert p.shape == drawn.importance.shape, "p has the shape of importance"
            holds((p >= 0) & (p <= 1), "p is in [0, 1]")
            holds(p[~drawn.maskable] == 0, "(e) tokens that are not maskable have p = 0")
            count = drawn.maskable.sum(-1)
            mean = p.double().sum(-1) / count.clamp(min=1)
            close(mean, drawn.rate * (count > 0), 1e-5, "(a) the mean of p over maskable tokens is the rate")
            holds(p[drawn.rate == 0] == 0, "(a) at rate 0 no token is masked, exactly")
            sure = (drawn.rate == 1).unsqueeze(-1) & drawn.maskable
            holds(p[sure] == 1, "(a) at rate 1 every token is masked, exactly")


def check_importance(strategy: Any, examples: int = 50) -> None:
    """(b) p_i does not fall when I_i rises; the other way round for direction −1, unchanged for 0."""
    direction = getattr(strategy, "direction", 1)

    @for_examples(examples, drawn=rows(), temperature=temperatures(), share=st.floats(0, 1))
    def holds_importance(drawn: Rows, temperature: float, share: float) -> None:
        length = drawn.importance.shape[-1]
        place = (drawn.uniform(drawn.rate.shape[0]) * length).long().unsqueeze(-1)
        old = drawn.importance.gather(-1, place)
        raised = drawn.importance.scatter(-1, place, (old + share * (1 - old)).to(old.dtype))
        for ready in _variants(strategy, temperature, drawn):
            before, after = (
                ready.probabilities(importance, drawn.rate, drawn.maskable).gather(-1, place).double()
                for importance in (drawn.importance, raised)
            )
            if direction == 0:
                close(after, before, _ROUNDING, "(b) with direction 0, p does not depend on importance")
            rise = (after - before) * direction
            holds(rise >= -_ROUNDING, f"(b) p_i follows I_i in the direction {direction}", rise.min)


def check_nesting(strategy: Any, examples: int = 50) -> None:
    """(c) p_i does not fall when r rises, so masks of one uniform per token are nested."""

    @for_examples(examples, drawn=rows(), temperature=temperatures(), share=st.one_of(st.floats(0, 1), st.just(1e-5)))
    def holds_nesting(drawn: Rows, temperature: float, share: float) -> None:
        higher = drawn.rate + share * (1 - drawn.rate)
        for ready in _variants(strategy, temperature, drawn):
            low = ready.probabilities(drawn.importance, drawn.rate, drawn.maskable).double()
            high = ready.probabilities(drawn.importance, higher, drawn.maskable).double()
            holds(high - low >= -_ROUNDING, "(c) p does not fall when the rate rises", (high - low).min)


def check_limits(strategy: Any, examples: int = 50) -> None:
    """(d) a high temperature is uniform, a low one a threshold whose ties share the rest; skipped without one."""
    bounds = {f.name: f.metadata.get("bounds", {}) for f in attrs.fields(type(strategy))}
    if "temperature" not in bounds:
        return
    hot = min(_HOT, bounds["temperature"].get("le", _HOT))
    cold = max(_COLD, bounds["temperature"].get("ge", _COLD))
    direction = getattr(strategy, "direction", 1)

    @for_examples(examples, drawn=rows(grid=True))
    def holds_limits(drawn: Rows) -> None:
        uniform = (drawn.rate.unsqueeze(-1) * drawn.maskable).double()
        for ready in _variants(strategy, hot, drawn):
            p = _probabilities(ready, drawn)
            close(p, uniform, 1e-4, f"(d) at temperature {hot:g} p is the rate")
        # The threshold is in importance, which is not all that a positional strategy reads.
        if direction == 0 or getattr(strategy, "positional", False) or cold > 1e-3:
            return
        wanted = _threshold(drawn.importance.double() * direction, drawn.rate, drawn.maskable)
        for ready in _variants(strategy, cold, drawn):
            p = _probabilities(ready, drawn)
            close(p, wanted, 1e-4, f"(d) at temperature {cold:g} p is a threshold, and ties share the rest equally")


def _threshold(score: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
    """Return the limit of temperature → 0: the highest scores up to n·r tokens, a tie class in equal parts."""
    score = score.masked_fill(~maskable, -torch.inf)
    ranked = score.sort(dim=-1).values
    up_to = torch.searchsorted(ranked, score, right=True)
    above, tied = score.shape[-1] - up_to, up_to - torch.searchsorted(ranked, score)
    wanted = rate.double().unsqueeze(-1) * maskable.sum(-1, keepdim=True)
    return ((wanted - above) / tied).clamp(0, 1) * maskable


def check_symmetry(strategy: Any, examples: int = 50) -> None:
    """(f) equal importance gives p = r; permuting tokens permutes p; a row does not depend on its batch."""
    positional = getattr(strategy, "positional", False)

    @for_examples(examples, drawn=rows(), temperature=temperatures(), level=st.sampled_from([0.0, 0.3, 1.0]))
    def holds_symmetry(drawn: Rows, temperature: float, level: float) -> None:
        state = torch.get_rng_state()
        for ready in _variants(strategy, temperature, drawn):
            p = _probabilities(ready, drawn)
            alone = ready.probabilities(drawn.importance[3:4], drawn.rate[3:4], drawn.maskable[3:4])
            close(p[3:4], alone, _ROUNDING, "a row does not depend on the others of its batch")
            if positional:
                continue
            order = torch.randperm(p.shape[-1], generator=drawn.generator)
            moved = ready.probabilities(drawn.importance[:, order], drawn.rate, drawn.maskable[:, order])
            close(moved, p[:, order], _ROUNDING, "(f) permuting tokens permutes p")
            equal = torch.full_like(drawn.importance, level)
            uniform = drawn.rate.unsqueeze(-1) * drawn.maskable
            p = ready.probabilities(equal, drawn.rate, drawn.maskable)
            close(p, uniform, _ROUNDING, "(f) equal importance gives p = r")
        assert torch.equal(torch.get_rng_state(), state), "no random number is drawn"


def check_memory(strategy: Any, examples: int = 50) -> None:
    """A strategy with state has it in buffers and adds up over micro-batches; others pass."""
    check_adaptive(strategy, _probabilities, examples)


PROMISES = {
    "rate": check_rate,
    "importance": check_importance,
    "nesting": check_nesting,
    "limits": check_limits,
    "symmetry": check_symmetry,
    "memory": check_memory,
}


def _variants(strategy: Any, temperature: float, drawn: Rows) -> Iterator[Any]:
    """Return the strategy at a temperature within its bounds; see `variants`."""
    if field := attrs.fields_dict(type(strategy)).get("temperature"):
        bounds = field.metadata.get("bounds", {})
        temperature = min(max(temperature, bounds.get("ge", temperature)), bounds.get("le", temperature))
        strategy = attrs.evolve(strategy, temperature=temperature)
    return variants(strategy, drawn)


def _probabilities(ready: Any, drawn: Rows) -> Tensor:
    inputs = {name: getattr(drawn, name) for name in ("importance", "rate", "maskable")}
    before = {name: value.clone() for name, value in inputs.items()}
    p: Tensor = ready.probabilities(**inputs)
    for name, value in inputs.items():
        holds(value == before[name], f"{name} is left as it was")
    return p
