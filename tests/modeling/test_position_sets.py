"""Position sets: steps by hand, and how often what is drawn comes. What holds for all is in objectives/test_sets.py."""

import itertools

import pytest
import torch

from atat_zoo import UserError, Zoo
from atat_zoo.diffusion.randomness import fold, sequence_keys, uniform

ZOO = Zoo.load()
ROWS = 6000


def steps(spec, free, score=None, rows=None):
    """The steps of a row that is free where there are ones, by as many keys as rows, or its only ones."""
    spec = ZOO.spec("position_sets", spec) if isinstance(spec, str | dict) else spec
    free = torch.tensor(free).bool().expand(rows or 1, -1)
    found = spec.step_indices(free, sequence_keys(3, "test", torch.arange(len(free))), score or torch.zeros_like)
    return found if rows else found[0].tolist()


def shares(found):
    rows, counts = found.unique(dim=0, return_counts=True)
    return {tuple(row.tolist()): count / len(found) for row, count in zip(rows, counts.tolist(), strict=True)}


def test_turns_that_are_not_drawn():
    free = [0, 1, 1, 0, 1, 1, 1]
    assert steps({"use": "strided", "stride": 2}, free) == [-1, 0, 1, -1, 0, 1, 0]
    assert steps({"use": "strided", "stride": 9}, free) == [-1, 0, 1, -1, 2, 3, 4]
    alone = {"use": "strided", "stride": 4, "random_offset": True}
    assert shares(steps(alone, [1, 0], rows=100)) == {(0, -1): 1}
    assert steps("left_to_right", free) == [-1, 0, 1, -1, 2, 3, 4]
    assert steps({"use": "blocks", "block_size": 2}, free) == [-1, 0, 0, -1, 1, 1, 2]
    of_streams = {"use": "blocks", "block_size": 2, "order": {"use": "strided", "stride": 4}}
    assert steps(of_streams, free) == [-1, 0, 0, -1, 1, 1, 0]
    assert ZOO.spec("position_sets", of_streams).deterministic
    assert not ZOO.spec("position_sets", {"use": "blocks", "order": "random"}).deterministic
    assert ZOO.spec("position_sets", {"use": "blocks", "order": "by_importance"}).reads_importance
    assert steps("at_once", free) == [-1, 0, 0, -1, 0, 0, 0]
    assert steps({"use": "staggered", "sets": 3, "window": 0}, free) == [-1, 0, 0, -1, 1, 1, 2]


def test_an_offset_is_drawn_of_whole_texts_alone():
    spec = {"use": "strided", "stride": 3, "random_offset": True}
    assert shares(steps(spec, [1] * 4, rows=ROWS)) == {
        tuple((i + offset) % 3 for i in range(4)): pytest.approx(1 / 3, abs=0.03) for offset in range(3)
    }
    assert shares(steps(spec, [0, 1, 1, 1, 1], rows=100)) == {(-1, 0, 1, 2, 0): 1}
    # What is behind the free positions may be padding, and of two positions there are two sets.
    half = pytest.approx(1 / 2, abs=0.03)
    assert shares(steps(spec, [1, 1, 0], rows=ROWS)) == {(0, 1, -1): half, (1, 0, -1): half}


def test_a_window_of_the_whole_text_is_a_random_order_and_half_of_it_is_not():
    orders = {order: pytest.approx(1 / 6, abs=0.025) for order in itertools.permutations(range(3))}
    assert shares(steps({"use": "staggered", "sets": 3, "window": 1}, [1] * 3, rows=ROWS)) == orders
    assert shares(steps({"use": "random", "sets": None}, [1] * 3, rows=ROWS)) == orders
    # u / 2 and 1/4 + u' / 2: the second one comes first where u' < u - 1/2.
    half = shares(steps({"use": "staggered", "sets": 2, "window": 0.5}, [1, 1], rows=ROWS))
    assert half == {(0, 1): pytest.approx(7 / 8, abs=0.02), (1, 0): pytest.approx(1 / 8, abs=0.02)}
    # With roots in place of u, where u' < (√√u - 1/2)⁴: 4 ∫ x⁴ (x + 1/2)³ dx over x from 0 to 1/2.
    late = shares(steps({"use": "staggered", "sets": 2, "window": 0.5, "power": 4.0}, [1, 1], rows=ROWS))
    assert late[1, 0] == pytest.approx(0.0196, abs=0.008)


def test_a_random_order_has_no_ties_in_a_long_row():
    found = steps({"use": "random", "sets": None}, [1] * 20_000)
    assert (
        found
        == uniform(sequence_keys(3, "test", torch.arange(1)), 20_000, torch.float64)[0].argsort().argsort().tolist()
    )


def test_random_sets_are_of_about_equal_size():
    found = steps({"use": "random", "sets": 3}, [1, 1, 0, 1, 1, 1], rows=50)
    assert (found.sort(1).values == torch.tensor([-1, 0, 0, 1, 1, 2])).all()


@pytest.mark.parametrize("first", ["easy", "hard"])
@pytest.mark.parametrize("n", [1, 2, 8, 9, 10])
def test_whole_sets_come_by_chance_and_the_others_by_importance(n, first):
    """A share of 0.3 of 4 sets is two of them; and chance comes first, however hard or easy the others are."""
    asked = []
    importance = torch.linspace(0, 1, n)
    spec = {"use": "by_importance", "sets": 4, "random_share": 0.3, "first": first}
    found = steps(spec, [1] * n, score=lambda masked: asked.append(masked) or importance.expand(masked.shape), rows=20)
    (masked,) = asked
    sets = min(n, 4)
    chance = {1: 1, 2: 1}.get(sets, 2)
    assert torch.equal(masked, found >= chance)
    for row, others in zip(found, masked, strict=True):
        order = importance[others] if first == "easy" else -importance[others]
        assert (row[others][order.argsort()].diff() >= 0).all()
    # As many rows as there are have some token by chance at each position, in the end.
    assert n > 4 or (~masked).any(0).all()


def test_a_mixture_of_one_kind_or_with_other_shares_is_refused():
    two = ["at_once", "left_to_right"]
    for given, said in (
        ({"components": two[:1]}, "components needs at least two position sets"),
        ({"components": two, "weights": [1.0]}, "1 numbers for 2 components"),
    ):
        with pytest.raises(UserError, match=said):
            ZOO.spec("position_sets", {"use": "mixture"} | given)


def test_a_mixture_has_its_kinds_by_their_shares_each_with_a_key_of_its_own():
    order = {"use": "random", "sets": None}
    mixed = ZOO.spec("position_sets", {"use": "mixture", "components": [order, "at_once"], "weights": [1.0, 3.0]})
    expected = {(0, 0): 3 / 4, (0, 1): 1 / 8, (1, 0): 1 / 8}
    assert shares(steps(mixed, [1, 1], rows=ROWS)) == {key: pytest.approx(p, abs=0.02) for key, p in expected.items()}
    even = ZOO.spec("position_sets", {"use": "mixture", "components": [order, order]})
    free, keys = torch.ones(ROWS, 9, dtype=torch.bool), sequence_keys(3, "test", torch.arange(ROWS))
    found = even.step_indices(free, keys, torch.zeros_like)
    each = [
        (found == kind.step_indices(free, fold(keys, n), torch.zeros_like)).all(1)
        for n, kind in enumerate(even.components)
    ]
    assert torch.equal(each[0], ~each[1])
    assert float(each[0].float().mean()) == pytest.approx(1 / 2, abs=0.03)


@pytest.mark.parametrize(("window", "power"), [(0.4, 1.0), (0.7, 0.5), (0.7, 2.0), (1.0, 1.0)])
def test_two_positions_come_in_an_order_of_their_windows(window, power):
    """It does if y < x − c: x and y are their times u^(1/k) in a window, which begin c = (1 − w)/(2w) apart."""
    sets = Zoo.load().spec("position_sets", {"use": "staggered", "sets": 2, "window": window, "power": power})
    steps = sets.step_indices(
        torch.ones(20_000, 2, dtype=torch.bool), sequence_keys(1, "windows", torch.arange(20_000)), None
    )
    c, x = (1 - window) / (2 * window), torch.linspace(0, 1, 200_001, dtype=torch.float64)
    # ∫ F(x − c) dF(x), by the distribution function F(x) = x^k
    expected = torch.trapezoid((x - c).clamp(min=0) ** power, x**power).item()
    assert abs((steps[:, 1] == 0).double().mean().item() - expected) < 4.5 * (0.25 / 20_000) ** 0.5
