"""The reverse process that a model learns, as a sampler."""

import itertools
import math

import pytest
import torch
from exactness import fit, masks
from scipy import stats

from atat_zoo.diffusion.contracts import Denoiser
from atat_zoo.errors import UserError
from atat_zoo.experiment import from_table
from atat_zoo.samplers.loop import run
from atat_zoo.samplers.order import LearnedOrder
from atat_zoo.samplers.pace import FixedPace
from atat_zoo.samplers.published import LearnedOrderSampler
from atat_zoo.testing.sampling import assemble, example_step, traced
from atat_zoo.testing.toys import Hashed, toy
from tests.adaptive_exact import look_everywhere, order_likelihood

ROWS = 20_000


class Ordered(Denoiser):
    """The exact denoiser of a joint with reverse weights of the position."""

    gives_order_weights = True

    def __init__(self, joint, log_w):
        self.mask_id = joint.mask_id
        self.joint, self.log_w = joint, torch.tensor(log_w, dtype=torch.float64)

    def __call__(self, tokens, t, where):
        return self.joint.denoiser(tokens, t, where)

    def ordered(self, tokens, t, where):
        return self(tokens, t, where), self.log_w.expand(len(tokens), -1)[where]


def plackett_luce(log_w):
    """Every order of the positions and its probability."""
    w = [math.exp(v) for v in log_w]
    for order in itertools.permutations(range(len(w))):
        left, p = list(range(len(w))), 1.0
        for i in order:
            p *= w[i] / sum(w[j] for j in left)
            left.remove(i)
        yield order, p


def orders_of(trace, rows):
    """The order in which each row was filled, from its trace."""
    order = [[] for _ in range(rows)]
    for record in trace:
        for row, position in zip(record["rows"], record["positions"], strict=True):
            order[row].append(position)
    return [tuple(o) for o in order]


LOG_W = (1.2, -0.4, 0.3)


def test_with_the_exact_conditionals_it_reproduces_the_joint_in_the_order_of_its_weights():
    joint = toy()
    sample, trace = traced(LearnedOrderSampler(), Ordered(joint, LOG_W), *masks(joint, ROWS))
    assert fit(sample, joint) > 0.001
    assert (sample.nfe == 3).all()
    assert sample.max_nfe == 3
    found = orders_of(trace, ROWS)
    expected = dict(plackett_luce(LOG_W))
    counts = [found.count(order) for order in expected]
    assert sum(counts) == ROWS
    assert stats.chisquare(counts, [p * ROWS for p in expected.values()]).pvalue > 0.001


def test_order_and_tokens_of_a_model_that_reads_z_in_both():
    """p(x) of the process that the adaptive bound is of, by summing over all orders, against what is drawn."""
    hashed, joint = Hashed(2), toy()

    def look(z, t, masked, x):
        log_p, log_reverse = hashed.ordered(z, t, masked)
        return -log_p.gather(1, x[masked][:, None])[:, 0], log_reverse

    joint.p = order_likelihood(*look_everywhere(look, joint.states, 2)).exp()
    assert float(joint.p.sum()) == pytest.approx(1)
    assert fit(LearnedOrderSampler().sample(hashed, *masks(joint, ROWS)), joint) > 0.001
    # In random order this model is another distribution, so the test above can fail.
    assert fit(assemble(pace=FixedPace(steps=3)).sample(hashed, *masks(joint, ROWS)), joint) < 1e-6


def test_several_at_once_come_without_replacement():
    joint = toy()
    sample, trace = traced(LearnedOrderSampler(steps=2), Ordered(joint, LOG_W), *masks(joint, ROWS))
    assert (sample.nfe == 2).all()
    assert sample.max_nfe == 2
    # Fixed pace: one of three in the first step, two in the last.
    first = torch.tensor(trace[0]["positions"])
    w = torch.tensor(LOG_W, dtype=torch.float64).exp()
    assert stats.chisquare(torch.bincount(first, minlength=3), ROWS * w / w.sum()).pvalue > 0.001
    # Two of four in the first step: as sets, by Plackett–Luce.
    log_w = (*LOG_W, -1.0)
    hashed = Hashed(2)
    hashed.ordered = lambda z, t, where: (hashed(z, t, where), torch.tensor(log_w).expand(len(z), 4)[where])
    z = torch.full((ROWS, 4), 2)
    _, trace = traced(LearnedOrderSampler(steps=2), hashed, z, torch.arange(ROWS))
    pairs = torch.tensor(trace[0]["positions"]).view(ROWS, 2).sort(1).values
    expected = {}
    for order, p in plackett_luce(log_w):
        expected[frozenset(order[:2])] = expected.get(frozenset(order[:2]), 0.0) + p
    counts = [int(((pairs == torch.tensor(sorted(pair))).all(1)).sum()) for pair in expected]
    assert stats.chisquare(counts, [p * ROWS for p in expected.values()]).pvalue > 0.001


def test_in_a_part_of_the_text_the_weights_are_those_of_the_part():
    """With masks that stay masked the network sees them, and their weights are left out."""
    hashed = Hashed(3)
    z = torch.full((6, 5), 3)
    fill = torch.zeros(6, 5, dtype=torch.bool)
    fill[:, 1:4] = True
    trace = []
    sample = run(LearnedOrderSampler().parts(), hashed, z, torch.arange(6), fill=fill, observe=trace.append)
    assert torch.equal(sample.tokens == 3, ~fill)
    assert all(sorted(order) == [1, 2, 3] for order in orders_of(trace, 6))


def test_a_model_without_weights_is_refused():
    joint = toy()
    with pytest.raises(UserError, match="this model has none") as error:
        LearnedOrderSampler().sample(joint.denoiser, *masks(joint, 2))
    assert "adaptive" in str(error.value)
    step = example_step(frozenset())
    with pytest.raises(RuntimeError, match="order weights"):
        LearnedOrder()(step)


def test_an_experiment_whose_objective_learns_no_order_is_refused():
    order = {"use": "blockwise", "inner": "learned"}  # also of an order within another
    table = {"name": "wrong", "objective": {"use": "mdlm"}, "sampler": {"use": "combination", "order": order}}
    with pytest.raises(UserError, match=r"sampler: the order learned needs reverse weights, and objective 'mdlm'"):
        from_table(table, where="here")
