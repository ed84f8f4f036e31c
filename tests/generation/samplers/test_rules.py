"""Paces that decide by what the network says take what their rule allows."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.generation.samplers.pace import (
    ConfidenceThresholdPace,
    EntropyBoundedPace,
    KLStablePace,
    quota,
    topped_up,
)
from atat_zoo.testing.sampling import example_step


def step_of(probabilities, ranking=None, number=0):
    """Return a step of one row, all open, with these predictions [L, V]."""
    p = torch.tensor(probabilities, dtype=torch.float64)
    step = example_step(frozenset(), rows=1, length=len(p), vocabulary_size=p.shape[1])
    step.number = number
    step.open = step.free = torch.ones(1, len(p), dtype=torch.bool)
    step.total = step.remaining = torch.tensor([len(p)])
    step.log_probs = p.log()
    step.ranking = torch.tensor([ranking or list(range(len(p)))])
    return step


def binary(*confidences):
    return [[c, 1 - c] for c in confidences]


def taken(pace, step):
    return pace.take(step)[0].nonzero()[:, 0].tolist()


def test_all_above_the_threshold_or_the_first_of_the_order():
    step = step_of(binary(0.95, 0.6, 0.92, 0.9), ranking=[3, 2, 1, 0])
    assert taken(ConfidenceThresholdPace(threshold=0.9), step) == [0, 2]
    assert taken(ConfidenceThresholdPace(threshold=0.99), step) == [3]
    # Four positions in the two steps that are left: two each.
    assert taken(ConfidenceThresholdPace(threshold=0.99, steps=2), step) == [2, 3]
    # Those that the rule takes count.
    assert taken(ConfidenceThresholdPace(threshold=0.94, steps=2), step) == [0, 3]
    assert taken(ConfidenceThresholdPace(threshold=0.9, steps=1), step) == [0, 1, 2, 3]


def entropy(c):
    return -c * math.log(c) - (1 - c) * math.log(1 - c)


def test_the_entropies_but_the_largest_stay_within_the_bound():
    # The order decides: the two least certain first, of which the smaller counts.
    step = step_of(binary(0.99, 0.9, 0.7, 0.5), ranking=[3, 2, 1, 0])
    assert EntropyBoundedPace(gamma=entropy(0.7) + 1e-9).take(step).tolist() == [2]
    # What is certain costs nothing; tokens without any probability are no trouble.
    assert EntropyBoundedPace(gamma=0.0).take(step_of(binary(1.0, 1.0, 1.0))).tolist() == [3]
    assert EntropyBoundedPace(gamma=0.0, steps=2).take(step_of(binary(0.5, 0.5, 0.5))).tolist() == [2]


@given(st.lists(st.floats(0.5, 1.0), min_size=1, max_size=8), st.floats(0, 3))
def test_no_more_and_no_fewer_than_the_bound_allows(confidences, gamma):
    step = step_of(binary(*confidences))
    k = EntropyBoundedPace(gamma=gamma).take(step).item()
    h = [float(torch.special.entr(torch.tensor(p, dtype=torch.float64)).sum()) for p in binary(*confidences)]
    assert k == 1 or sum(h[:k]) - max(h[:k]) <= gamma + 1e-12
    assert k == len(h) or sum(h[: k + 1]) - max(h[: k + 1]) >= gamma - 1e-12


@pytest.mark.parametrize(
    ("history", "seen", "found"),
    [
        # Where nothing is stable, the first of the order goes. Position 0 is twice still and confident; 1 moved in the
        # step before; 2 is still, but not confident.
        (2, [(0, (0.95, 0.95, 0.55)), *((k, (0.951, 0.8, 0.551)) for k in (1, 2, 3))], [[2], [2], [0], [0, 1]]),
        # A row that sat out step 2, and a position that was hidden again, begin anew.
        (1, [(0, (0.9, 0.9)), (1, (0.9, 0.9)), (3, (0.9, 0.9)), (4, (0.9, 0.9))], [[1], [0, 1], [1], [0, 1]]),
        (1, [(0, (0.9, 0.9)), (1, (0.9,)), (2, (0.9, 0.9)), (3, (0.9, 0.9))], [[1], [0], [0], [0, 1]]),
    ],
)
def test_a_prediction_must_keep_still_for_the_whole_history(history, seen, found):
    pace, memory, length = KLStablePace(confidence=0.6, kl=0.01, history=history), {}, len(seen[0][1])
    for (number, confidences), expected in zip(seen, found, strict=True):
        step = step_of(binary(*confidences, *[0.5] * (length - len(confidences))), [*range(length)][::-1], number)
        step.open = torch.arange(length)[None] < len(confidences)
        step.remaining, step.log_probs = step.open.sum(1), step.log_probs[: len(confidences)]
        step.memory = memory
        assert taken(pace, step) == expected


@given(st.integers(1, 60), st.integers(1, 20), st.randoms(use_true_random=False))
def test_the_quota_is_enough_and_no_more_than_enough(n, steps, random):
    step, left = example_step(frozenset(), rows=1), n
    for number in range(steps):
        step.number, step.remaining = number, torch.tensor([left])
        least = int(quota(step, steps))
        assert (least == 0) == (left == 0)
        # One fewer a step from here on would not do.
        assert left == 0 or (least - 1) * (steps - number) < left <= least * (steps - number)
        left -= min(left, least + random.randint(0, 2))
    assert left == 0


@given(st.integers(0, 1000), st.integers(1, 9))
def test_topping_up_takes_the_first_others_of_the_order(seed, steps):
    step = example_step(frozenset(), length=9, seed=seed)
    step.number = 0
    score = torch.randn(step.open.shape, generator=torch.Generator().manual_seed(seed))
    step.ranking = score.masked_fill(~step.open, -torch.inf).sort(dim=1, descending=True, stable=True).indices
    rule = (score > 0.5) & step.open
    full = topped_up(step, rule, steps)
    assert not (full & ~step.open).any()
    assert not (rule & ~full).any()
    need = quota(step, steps)
    assert torch.equal(full.sum(1), rule.sum(1).maximum(need))
    for row in range(len(score)):
        added, left = score[row][full[row] & ~rule[row]], score[row][step.open[row] & ~full[row]]
        assert not len(added) or not len(left) or added.min() > left.max()
