"""Checks of masking strategies: (a)–(f) in `modeling.masking`, or those of strategies that draw masks themselves."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs
import torch
from hypothesis import strategies as st
from torch import Tensor

from atat_zoo.diffusion.contracts import NoisedBatch
from atat_zoo.diffusion.randomness import fold, mix, sequence_keys, to_unit
from atat_zoo.registry import Context
from atat_zoo.testing.batches import VOCABULARY, Rows, called, close, for_examples, holds, is_tensor, rows, temperatures
from atat_zoo.testing.training_step_checks import check_adaptive, variants

_ROUNDING = 1e-6  # error of p in float32 where a promise holds exactly for real numbers
_HOT, _COLD = 1e6, 1e-5
_DRAWN = 20_000
# The attribute with which a strategy states an exception
_DIRECTION = "; set direction = -1 if p falls with importance, or 0 if it ignores importance"
_POSITIONAL = "; set positional = True if p also depends on the position"
_ERRORS = 6.0  # largest error of a mean, in standard errors


def check_masking(strategy: Any, examples: int = 50) -> None:
    """Check (a)–(f) in `modeling.masking` at many temperatures, and that no input or random state changes."""
    for check in PROMISES.values():
        check(strategy, examples=examples)


def check_rate(strategy: Any, examples: int = 50) -> None:
    """Check (a), that the mean of p is the rate, exactly at 0 and 1, and (e), that p = 0 unless a token is maskable."""

    @for_examples(examples, drawn=rows(), temperature=temperatures())
    def holds_rate(drawn: Rows, temperature: float) -> None:
        for ready in _variants(strategy, temperature, drawn):
            p = _probabilities(ready, drawn)
            is_tensor(p, "p", torch.float32, drawn.importance.shape)
            close(_probabilities(ready, drawn), p, 0, "the same input must give the same p")
            holds((p >= 0) & (p <= 1), "p must be in [0, 1]")
            holds(p[~drawn.maskable] == 0, "(e) tokens that are not maskable must have p = 0")
            count = drawn.maskable.sum(-1)
            mean = p.double().sum(-1) / count.clamp(min=1)
            close(mean, drawn.rate * (count > 0), 1e-5, "(a) the mean of p over maskable tokens must be the rate")
            holds(p[drawn.rate == 0] == 0, "(a) at rate 0, p must be exactly 0")
            sure = (drawn.rate == 1).unsqueeze(-1) & drawn.maskable
            holds(p[sure] == 1, "(a) at rate 1, p must be exactly 1")


def check_importance(strategy: Any, examples: int = 50) -> None:
    """Check (b), that a token's p does not fall as its importance rises (direction −1: not rise; 0: not change)."""
    direction = getattr(strategy, "direction", 1)

    @for_examples(examples, drawn=rows(), temperature=temperatures(), share=st.floats(0, 1))
    def holds_importance(drawn: Rows, temperature: float, share: float) -> None:
        length = drawn.importance.shape[-1]
        place = (drawn.uniform(drawn.rate.shape[0]) * length).long().unsqueeze(-1)
        old = drawn.importance.gather(-1, place)
        raised = drawn.importance.scatter(-1, place, (old + share * (1 - old)).to(old.dtype))
        for ready in _variants(strategy, temperature, drawn):
            before = ready.probabilities(drawn.importance, drawn.rate, drawn.maskable).gather(-1, place).double()
            after = ready.probabilities(raised, drawn.rate, drawn.maskable).gather(-1, place).double()
            if direction == 0:
                close(after, before, _ROUNDING, f"(b) with direction 0, p must not depend on importance{_DIRECTION}")
            rise = (after - before) * direction
            holds(rise >= -_ROUNDING, f"(b) p must follow importance in direction {direction}{_DIRECTION}", rise.min())


def check_nesting(strategy: Any, examples: int = 50) -> None:
    """Check (c), that p does not fall as the rate rises, so that masks from the same uniform numbers are nested."""

    @for_examples(examples, drawn=rows(), temperature=temperatures(), share=st.one_of(st.floats(0, 1), st.just(1e-5)))
    def holds_nesting(drawn: Rows, temperature: float, share: float) -> None:
        higher = drawn.rate + share * (1 - drawn.rate)
        for ready in _variants(strategy, temperature, drawn):
            low = ready.probabilities(drawn.importance, drawn.rate, drawn.maskable).double()
            high = ready.probabilities(drawn.importance, higher, drawn.maskable).double()
            holds(high - low >= -_ROUNDING, "(c) p must not fall when the rate rises", (high - low).min())


def check_limits(strategy: Any, examples: int = 50) -> None:
    """Check (d), that p is the rate at a high temperature, and 1 above and 0 below a threshold at a low one.

    Strategies without a temperature pass.
    """
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
            close(p, uniform, 1e-4, f"(d) at temperature {hot:g}, p must be the rate")
        # The threshold is in importance, but a positional strategy also reads the position.
        if direction == 0 or getattr(strategy, "positional", False) or cold > 1e-3:
            return
        wanted = _threshold(drawn.importance.double() * direction, drawn.rate, drawn.maskable)
        for ready in _variants(strategy, cold, drawn):
            p = _probabilities(ready, drawn)
            close(
                p,
                wanted,
                1e-4,
                f"(d) at temperature {cold:g}, p must be 1 above a threshold, 0 below and equal for ties{_POSITIONAL}",
            )


def _threshold(score: Tensor, rate: Tensor, maskable: Tensor) -> Tensor:
    """Return p in the limit temperature → 0, which is 1 for the n·r highest scores; tied tokens share equally."""
    score = score.masked_fill(~maskable, -torch.inf)
    ranked = score.sort(dim=-1).values
    up_to = torch.searchsorted(ranked, score, right=True)
    above, tied = score.shape[-1] - up_to, up_to - torch.searchsorted(ranked, score)
    wanted = rate.double().unsqueeze(-1) * maskable.sum(-1, keepdim=True)
    return ((wanted - above) / tied).clamp(0, 1) * maskable


def check_symmetry(strategy: Any, examples: int = 50) -> None:
    """Check (f), that equal importance gives p = rate and permuted tokens permuted p, and that rows are independent."""
    positional = getattr(strategy, "positional", False)

    @for_examples(examples, drawn=rows(), temperature=temperatures(), level=st.sampled_from([0.0, 0.3, 1.0]))
    def holds_symmetry(drawn: Rows, temperature: float, level: float) -> None:
        for ready in _variants(strategy, temperature, drawn):
            p = _probabilities(ready, drawn)
            alone = ready.probabilities(drawn.importance[3:4], drawn.rate[3:4], drawn.maskable[3:4])
            close(p[3:4], alone, _ROUNDING, "a row must not depend on the rest of its batch")
            if positional:
                continue
            order = torch.randperm(p.shape[-1], generator=drawn.generator)
            moved = ready.probabilities(drawn.importance[:, order], drawn.rate, drawn.maskable[:, order])
            close(moved, p[:, order], _ROUNDING, f"(f) permuting tokens must permute p{_POSITIONAL}")
            p = ready.probabilities(torch.full_like(drawn.importance, level), drawn.rate, drawn.maskable)
            close(
                p,
                drawn.rate.unsqueeze(-1) * drawn.maskable,
                _ROUNDING,
                f"(f) equal importance must give p = r{_POSITIONAL}",
            )


def _variants(strategy: Any, temperature: float, drawn: Rows) -> Iterator[Any]:
    """Yield the built strategy at the temperature, clamped to the strategy's bounds; see `variants`."""
    if field := attrs.fields_dict(type(strategy)).get("temperature"):
        bounds = field.metadata.get("bounds", {})
        temperature = min(max(temperature, bounds.get("ge", temperature)), bounds.get("le", temperature))
        strategy = attrs.evolve(strategy, temperature=temperature)
    return variants(strategy, drawn)


def _probabilities(ready: Any, drawn: Rows) -> Tensor:
    return called(ready.probabilities, {name: getattr(drawn, name) for name in ("importance", "rate", "maskable")})


PROMISES: dict[str, Callable[..., None]] = {
    "rate": check_rate,
    "importance": check_importance,
    "nesting": check_nesting,
    "limits": check_limits,
    "symmetry": check_symmetry,
    "memory": partial(check_adaptive, outcome=_probabilities),
}


def check_visible_text_masking(strategy: Any, examples: int = 50) -> None:
    """Check the contract of a `VisibleTextMasking` strategy."""
    for check in PROMISES_OF_VISIBLE_TEXT.values():
        check(strategy, examples)


def check_count(strategy: Any, examples: int = 50) -> None:
    """Check that a strategy masks ⌊rn⌋ or ⌈rn⌉ of n maskable tokens at rate r, rn on average, for any scores."""

    @for_examples(examples, drawn=rows(), seed=st.integers(0, 2**31))
    def holds_count(drawn: Rows, seed: int) -> None:
        mask = _mask(strategy, _tokens(drawn), drawn.rate, drawn.maskable, _keys(drawn, seed))
        is_tensor(mask, "a mask", torch.bool, drawn.maskable.shape)
        holds(drawn.maskable | ~mask, "tokens that are not maskable must not be masked")
        expected, count = drawn.rate.double() * drawn.maskable.sum(-1), mask.sum(-1)
        holds(
            (count - expected).abs() < 1,
            "the number of masked tokens must be rate × number of maskable tokens, rounded down or up",
        )
        holds(~mask[drawn.rate == 0], "at rate 0, no token may be masked")
        holds(
            mask[drawn.rate == 1] == drawn.maskable[drawn.rate == 1], "at rate 1, every maskable token must be masked"
        )

    for rate in (0.05, 0.3, 0.5, 0.77):
        expected, keys = rate * 6, sequence_keys(3, "mask", torch.arange(_DRAWN))
        tokens = torch.arange(6).expand(_DRAWN, 6)
        mask = _mask(strategy, tokens, torch.full((_DRAWN,), rate), torch.ones_like(tokens, dtype=torch.bool), keys)
        share = expected % 1
        error = (mask.sum(-1).double().mean() - expected).abs() / (share * (1 - share) / _DRAWN + 1e-12) ** 0.5
        holds(
            error <= _ERRORS, "the mean number of masked tokens must be rate × number of maskable tokens", error.item()
        )


def check_visible(strategy: Any, examples: int = 50) -> None:
    """Check that changing the masked tokens does not change the mask."""

    @for_examples(examples, drawn=rows(), seed=st.integers(0, 2**31))
    def holds_mask(drawn: Rows, seed: int) -> None:
        tokens, keys = _tokens(drawn), _keys(drawn, seed)
        mask = _mask(strategy, tokens, drawn.rate, drawn.maskable, keys)
        for _ in range(3):
            other = torch.where(mask, _tokens(drawn), tokens)
            again = _mask(strategy, other, drawn.rate, drawn.maskable, keys)
            holds(again == mask, "the mask must not depend on the tokens that it hides")


def check_equal_scores(strategy: Any, examples: int = 50) -> None:
    """Check that rows are independent and that equal scores mask every token equally often."""

    @for_examples(examples, drawn=rows(), seed=st.integers(0, 2**31))
    def holds_rows(drawn: Rows, seed: int) -> None:
        tokens, keys = _tokens(drawn), _keys(drawn, seed)
        mask = _mask(strategy, tokens, drawn.rate, drawn.maskable, keys)
        alone = _mask(strategy, tokens[3:4], drawn.rate[3:4], drawn.maskable[3:4], keys[3:4])
        holds(mask[3:4] == alone, "a row must not depend on the rest of its batch")
        again = _mask(strategy, tokens, drawn.rate, drawn.maskable, keys)
        holds(mask == again, "the same keys must draw the same mask")

    keys = sequence_keys(5, "mask", torch.arange(_DRAWN))
    maskable = torch.tensor([True, True, False, True, True, True]).expand(_DRAWN, 6)
    mask = strategy.draw_mask(lambda hidden: torch.full(hidden.shape, 0.5), torch.full((_DRAWN,), 0.5), maskable, keys)
    share = mask.double().mean(0)[maskable[0]]
    error = (share - share.mean()).abs() / (0.25 / _DRAWN) ** 0.5
    holds(error <= _ERRORS, "with equal scores, every token must be masked equally often", error.max())


PROMISES_OF_VISIBLE_TEXT: dict[str, Callable[..., None]] = {
    "rate": check_count,
    "visible": check_visible,
    "symmetry": check_equal_scores,
}


def check_stepwise_masking(strategy: Any, examples: int = 50) -> None:
    """Check the contract of a `StepwiseMasking` strategy over the steps of a short simulated training run."""
    size, length = 5, 7

    def fresh() -> Any:
        return strategy.build(Context(vocabulary_size=VOCABULARY, length=length, batch_size=size))

    @for_examples(examples, drawn=st.integers(0, 2**32 - 1).map(torch.Generator().manual_seed), resumed=st.booleans())
    def holds_steps(drawn: torch.Generator, resumed: bool) -> None:
        module = fresh()
        times, repetition, before = module.repetition.times, module.repetition, dict[int, Any]()
        holds(
            torch.tensor(times == strategy.steps_per_sequence),
            "repetition.times must be the component's steps_per_sequence",
        )
        for number in range((2 * times + 1) * repetition.spacing):
            index = number * size + torch.arange(size)
            place = repetition.place(index)
            maskable = to_unit(fold(place.row[:, None], torch.arange(length))) < 0.8
            rate = (1 - (place.stage + torch.rand(size, generator=drawn)) / times).float()
            mask = called(module.draw_mask, {"rate": rate, "maskable": maskable, "index": index})
            is_tensor(mask, "a mask", torch.bool, maskable.shape)
            holds(maskable | ~mask, "tokens that are not maskable must not be masked")
            off = (mask.sum(-1) - rate.double() * maskable.sum(-1)).abs()
            holds(off < 1, "the number of masked tokens must be rate × number of maskable tokens, rounded down or up")
            lane = number % repetition.spacing
            if lane in before:
                masked, difficulty, known = before[lane]
                same = (known == place.row)[:, None]
                holds(~same | masked | ~mask, "a step must not mask a token that an earlier step unmasked")
                if difficulty is not None:
                    hardest = torch.where(masked & ~mask, difficulty, -torch.inf).amax(1, keepdim=True)
                    holds(~same | ~mask | (difficulty >= hardest), "the easiest tokens must be unmasked first")
            logits = torch.randn(int(mask.sum()), VOCABULARY, generator=drawn)
            found = torch.rand(mask.shape, generator=drawn) if module.reads_importance else None
            if (own := module.difficulty(logits)) is not None:
                found = torch.zeros(mask.shape).masked_scatter(mask, own)
            tokens = torch.zeros_like(mask, dtype=torch.int64)
            step = {"x": tokens, "z": tokens, "masked": mask, "maskable": maskable, "t": rate, "rate": rate}
            step |= {"p": rate[:, None] * maskable, "index": index} | ({} if found is None else {"difficulty": found})
            parts = [{name: value[some] for name, value in step.items()} for some in (slice(0, 2), slice(2, None))]
            whole, *pieces = (
                module.statistics(NoisedBatch(**each), tokens[: len(each["x"])]) for each in (step, *parts)
            )
            close(sum(pieces), whole, 0, "the statistics of micro-batches must add up to those of the batch")
            module.update(whole, 0.5)
            if resumed:
                other = fresh()
                other.load_state_dict(module.state_dict())
                module = other
            before[lane] = mask, found, place.row

    index = torch.arange(_DRAWN)
    module = strategy.build(Context(vocabulary_size=VOCABULARY, length=6, batch_size=_DRAWN))
    mask = module.draw_mask(torch.full((_DRAWN,), 0.6), torch.ones(_DRAWN, 6, dtype=torch.bool), index)
    error = (mask.double().mean(0) - 0.6).abs() / (0.24 / _DRAWN) ** 0.5
    holds(error <= _ERRORS, "the first step must mask every token equally often, at the rate on average", error.max())


def promises_of(cls: type) -> dict[str, Callable[..., None]]:
    """Return the checks, by name, of a component class of the kind `masking`, which depend on its contract."""
    if hasattr(cls, "steps_per_sequence"):
        return {"contract": check_stepwise_masking}
    return PROMISES_OF_VISIBLE_TEXT if hasattr(cls, "draw_mask") else PROMISES


def _mask(strategy: Any, tokens: Tensor, rate: Tensor, maskable: Tensor, keys: Tensor) -> Tensor:
    """Return the strategy's mask for scores that hash z and the position, and so change with any token."""
    position = torch.arange(tokens.shape[1])

    def scores(hidden: Tensor) -> Tensor:
        z = torch.where(hidden, VOCABULARY, tokens)
        return to_unit(fold(mix(fold(z, position)).sum(1, keepdim=True), position))

    return called(strategy.draw_mask, {"scores": scores, "rate": rate, "maskable": maskable, "keys": keys})


def _tokens(drawn: Rows) -> Tensor:
    return (drawn.uniform(*drawn.maskable.shape) * VOCABULARY).long()


def _keys(drawn: Rows, seed: int) -> Tensor:
    return sequence_keys(seed, "mask", torch.arange(len(drawn.rate)))
