"""Checks of MATH 7 for any masking strategy that draws a mask by what is visible under it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies as st

from atat_zoo.diffusion.randomness import fold, mix, row_keys, to_unit
from atat_zoo.testing.batches import VOCABULARY, for_examples, holds, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from atat_zoo.testing.batches import Rows

_DRAWN = 20_000
_ERRORS = 6.0  # largest error of a mean, in standard errors


def check_revealing(strategy: Any, examples: int = 50) -> None:
    """Check every promise of a `Revealing` strategy."""
    for check in PROMISES.values():
        check(strategy, examples)


def check_rate(strategy: Any, examples: int = 50) -> None:
    """The number of masked tokens is ⌊rn⌋ or ⌈rn⌉, with mean rn whatever the scores; only maskable ones."""

    @for_examples(examples, drawn=rows(), seed=st.integers(0, 2**31))
    def holds_count(drawn: Rows, seed: int) -> None:
        state = torch.get_rng_state()
        given = drawn.rate.clone(), drawn.maskable.clone()
        mask = _mask(strategy, _tokens(drawn), drawn.rate, drawn.maskable, _keys(drawn, seed))
        assert mask.dtype == torch.bool, f"a mask is bool, not {mask.dtype}"
        assert mask.shape == drawn.maskable.shape, "a mask has the shape of the tokens"
        holds(drawn.maskable | ~mask, "tokens that are not maskable are not masked")
        expected, count = drawn.rate.double() * drawn.maskable.sum(-1), mask.sum(-1)
        holds((count - expected).abs() < 1, "as many tokens are masked as the rate says, rounded down or up")
        holds(~mask[drawn.rate == 0], "at rate 0 no token is masked")
        holds(mask[drawn.rate == 1] == drawn.maskable[drawn.rate == 1], "at rate 1 every token is masked")
        assert torch.equal(torch.get_rng_state(), state), "no random number but those of the keys is drawn"
        same = torch.equal(drawn.rate, given[0]) and torch.equal(drawn.maskable, given[1])
        assert same, "rate and maskable are left as they were"

    for rate in (0.05, 0.3, 0.5, 0.77):
        expected, keys = rate * 6, row_keys(3, "mask", torch.arange(_DRAWN))
        tokens = torch.arange(6).expand(_DRAWN, 6)
        mask = _mask(strategy, tokens, torch.full((_DRAWN,), rate), torch.ones_like(tokens, dtype=torch.bool), keys)
        share = expected % 1
        error = (mask.sum(-1).double().mean() - expected).abs() / (share * (1 - share) / _DRAWN + 1e-12) ** 0.5
        holds(error <= _ERRORS, "the mean number of masked tokens is that of the rate", error.item)


def check_visible(strategy: Any, examples: int = 50) -> None:
    """Changing the tokens that are masked does not change the mask."""

    @for_examples(examples, drawn=rows(), seed=st.integers(0, 2**31))
    def holds_mask(drawn: Rows, seed: int) -> None:
        tokens, keys = _tokens(drawn), _keys(drawn, seed)
        mask = _mask(strategy, tokens, drawn.rate, drawn.maskable, keys)
        for _ in range(3):
            other = torch.where(mask, _tokens(drawn), tokens)
            again = _mask(strategy, other, drawn.rate, drawn.maskable, keys)
            holds(again == mask, "the mask does not depend on the tokens that it hides")


def check_symmetry(strategy: Any, examples: int = 50) -> None:
    """A row does not depend on the others; with equal scores every token is masked as often."""

    @for_examples(examples, drawn=rows(), seed=st.integers(0, 2**31))
    def holds_rows(drawn: Rows, seed: int) -> None:
        tokens, keys = _tokens(drawn), _keys(drawn, seed)
        mask = _mask(strategy, tokens, drawn.rate, drawn.maskable, keys)
        alone = _mask(strategy, tokens[3:4], drawn.rate[3:4], drawn.maskable[3:4], keys[3:4])
        holds(mask[3:4] == alone, "a row does not depend on the others of its batch")
        again = _mask(strategy, tokens, drawn.rate, drawn.maskable, keys)
        holds(mask == again, "the same keys draw the same mask")

    keys = row_keys(5, "mask", torch.arange(_DRAWN))
    maskable = torch.tensor([True, True, False, True, True, True]).expand(_DRAWN, 6)
    mask = strategy.reveal(lambda hidden: torch.full(hidden.shape, 0.5), torch.full((_DRAWN,), 0.5), maskable, keys)
    share = mask.double().mean(0)[maskable[0]]
    error = (share - share.mean()).abs() / (0.25 / _DRAWN) ** 0.5
    holds(error <= _ERRORS, "with equal scores every token is masked as often", error.max)


PROMISES: dict[str, Callable[..., None]] = {"rate": check_rate, "visible": check_visible, "symmetry": check_symmetry}


def _mask(strategy: Any, tokens: Tensor, rate: Tensor, maskable: Tensor, keys: Tensor) -> Tensor:
    """Return the mask of a strategy whose scores are a hash of all of z and the position: any change of z shows."""
    position = torch.arange(tokens.shape[1])

    def scores(hidden: Tensor) -> Tensor:
        z = torch.where(hidden, VOCABULARY, tokens)
        return to_unit(fold(mix(fold(z, position)).sum(1, keepdim=True), position))

    mask: Tensor = strategy.reveal(scores, rate, maskable, keys)
    return mask


def _tokens(drawn: Rows) -> Tensor:
    return (drawn.uniform(*drawn.maskable.shape) * VOCABULARY).long()


def _keys(drawn: Rows, seed: int) -> Tensor:
    return row_keys(seed, "mask", torch.arange(len(drawn.rate)))
