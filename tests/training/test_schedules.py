"""Schedules warm up, follow their formula, and end where they say."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo import Zoo


def rates(steps, use, **parameters):
    """Return the share of the peak at every step, and after the last."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = Zoo.load().spec("schedule", {"use": use, **parameters}).build(optimizer, steps)
    found = []
    for _ in range(steps + 1):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return found


# The share of the peak after the share `done` of the steps that follow the warm-up.
FORMULAS = {
    "constant": lambda done, final: 1.0,
    "cosine": lambda done, final: final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done, final: final + (1 - final) * (1 - done),
    "wsd": lambda done, final: 1.0 if done <= 0.8 else final + (1 - final) * (1 - done) / 0.2,
}


@pytest.mark.parametrize("name", FORMULAS)
@given(steps=st.integers(1, 60), warmup=st.integers(0, 60), final=st.floats(0, 1))
def test_it_warms_up_and_follows_its_formula(name, steps, warmup, final):
    given = {} if name == "constant" else {"min_lr_ratio": final}
    found = rates(steps, name, warmup_steps=warmup, **given)
    for step, rate in enumerate(found):
        if step < warmup:
            assert rate == (step + 1) / warmup
        else:
            done = min(1.0, (step - warmup) / max(1, steps - warmup))
            assert rate == pytest.approx(FORMULAS[name](done, final), abs=1e-12)


def test_restarts_begin_each_cycle_at_the_peak():
    found = rates(44, "restarts", warmup_steps=4, cycles=4, min_lr_ratio=0.1)
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    assert found[4:44:10] == [1.0] * 4
    for start in range(4, 44, 10):
        assert found[start : start + 10] == pytest.approx(found[4:14])
        assert found[start : start + 10] == sorted(found[start : start + 10], reverse=True)
    assert found[44] == pytest.approx(0.1)


@pytest.mark.parametrize("name", [*FORMULAS, "restarts"])
@given(
    steps=st.integers(1, 40),
    more=st.integers(1, 60),
    warmup=st.integers(0, 40),
    done=st.integers(0, 40),
    low=st.sampled_from([0.0, 0.5]),
)
def test_a_run_goes_on_where_its_rates_do_not_depend_on_the_end(name, steps, more, warmup, done, low):
    final = {} if name == "constant" else {"min_lr_ratio": low}
    done = min(done, steps, more)
    made = Zoo.load().spec("schedule", {"use": name, "warmup_steps": warmup, **final})
    one, other = (rates(n, name, warmup_steps=warmup, **final)[: done + 1] for n in (steps, more))
    assert made.extends(done, steps, more) == (one == other)
    if name == "constant" or done <= warmup:
        assert made.extends(done, steps, more)
