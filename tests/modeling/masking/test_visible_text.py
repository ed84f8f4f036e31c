"""Masks by what they show, and masks that read what they hide: what is drawn, and what is learned under them."""

import itertools
import math
from math import ceil, floor

import pytest
import torch

from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.modeling.masking import ImportanceMasking, InverseMasking, RevealMasking, UniformMasking
from atat_zoo.testing import check_visible_text_masking
from atat_zoo.testing.toys import toy
from tests import learned

TOY = toy()
ORDERS = torch.tensor(list(itertools.permutations(range(3))))
KINDS = [RevealMasking(excess=c, first=first) for c in (1.0, 1.5, 2.0, 100.0) for first in ("easy", "hard")]


@pytest.mark.parametrize("strategy", [RevealMasking(excess=1.0), RevealMasking(excess=1.3, first="hard")], ids=str)
def test_other_parameters_keep_the_promises(strategy):
    check_visible_text_masking(strategy, 5)


def weights(strategy, rate):
    """Return q(M|x), float64 [M, S, L], over all orders and both counts of a rate."""
    found = torch.zeros(7, 8, 3, dtype=torch.float64)
    everything = torch.ones(8, 3, dtype=torch.bool)
    chances = (
        {floor(3 * rate): 1 - 3 * rate % 1, ceil(3 * rate): 3 * rate % 1} if 3 * rate % 1 else {round(3 * rate): 1}
    )
    for order, (k, chance) in itertools.product(ORDERS, chances.items()):
        count = torch.full((8,), k)

        def scores(hidden):
            return learned.scores_of(torch.where(hidden, TOY.mask_id, TOY.states))

        mask = strategy.of_order(scores, order.expand(8, 3), count, everything)
        for number, each in enumerate(learned.masks(3)):
            found[number] += chance / len(ORDERS) * (mask == each).all(1).double()[:, None]
    return found


@pytest.mark.parametrize("strategy", KINDS, ids=str)
def test_what_is_learned_under_them_is_the_posterior(strategy):
    """q(M|x) depends on x through what is visible, so unlimited capacity learns the true conditionals."""
    true, positions = learned.posteriors(TOY), 0
    for rate in (0.2, 1 / 3, 0.5, 0.8, 1.0):
        q = weights(strategy, rate)
        assert torch.allclose(q[:, :, 0].sum(0) + q.new_tensor((3 * rate < 1) * (1 - 3 * rate)), q.new_ones(8))
        p, known = learned.conditionals(TOY, q)
        torch.testing.assert_close(p[known], true[known], atol=1e-12, rtol=0)
        positions += int(known.sum())
    assert positions >= 5 * 8


@pytest.mark.parametrize("first", ["easy", "hard"])
def test_the_easiest_or_the_hardest_are_shown_again(first):
    rows, n = 64, 20
    maskable = torch.rand(rows, n, generator=torch.Generator().manual_seed(0)) < 0.8
    score = torch.rand(rows, n, generator=torch.Generator().manual_seed(1))
    rate, keys, asked = torch.full((rows,), 0.3), sequence_keys(0, "mask", torch.arange(rows)), []

    def scores(hidden):
        asked.append(hidden)
        return score

    mask = RevealMasking(excess=2.0, first=first).draw_mask(scores, rate, maskable, keys)
    (hidden,) = asked
    assert not (mask & ~hidden).any()
    assert torch.equal(hidden.sum(1), (2 * mask.sum(1)).clamp(max=maskable.sum(1)))
    for row in range(rows):
        kept, shown = score[row][mask[row]], score[row][hidden[row] & ~mask[row]]
        if len(kept) and len(shown):
            assert kept.min() >= shown.max() if first == "easy" else kept.max() <= shown.min()


RATES = (torch.arange(80, dtype=torch.float64) + 0.5) / 80  # midpoints of 80 intervals


def weights_at(strategy, floor=None):
    """Return q(M|x) h_i(x) of a strategy with `simple` weights; with a floor ε, h is r/p and p is at least εr."""
    # All rates at once: [80 · 8, 3].
    texts, rate = TOY.states.repeat(len(RATES), 1).double(), RATES.repeat_interleave(len(TOY.states))
    p = strategy.probabilities(texts, rate, torch.ones_like(texts, dtype=torch.bool)).double()
    if floor is not None:
        p = torch.lerp(p, rate[:, None], floor)
    h = torch.ones_like(p) if floor is None else rate[:, None] / p
    drawn = [torch.where(mask, p, 1 - p).prod(1, keepdim=True) * h for mask in learned.masks(TOY.length)]
    return torch.stack(drawn).view(len(drawn), len(RATES), *TOY.states.shape).mean(1)


@pytest.mark.parametrize(
    ("strategy", "floor", "excess"),
    [
        (UniformMasking(), None, 0.0),
        (ImportanceMasking(temperature=1.0), None, 0.0852),
        (ImportanceMasking(temperature=1.0), 0.1, 0.0163),
        (ImportanceMasking(temperature=0.3), 0.1, 0.0378),
        (InverseMasking(temperature=1.0), 0.1, 0.0243),
    ],
    ids=["uniform", "importance", "importance corrected", "importance at 0.3 corrected", "inverse corrected"],
)
def test_the_excess_perplexity_of_masks_that_read_what_they_hide(strategy, floor, excess):
    p, known = learned.conditionals(TOY, weights_at(strategy, floor))
    assert known.sum() == 8 * sum(range(1, 4)) * 2, "every place of every mask is learned"
    found = math.exp((learned.bound(TOY, p) - TOY.entropy) / 3) - 1
    assert found == pytest.approx(excess, abs=1e-4)
