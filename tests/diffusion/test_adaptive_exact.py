"""The bound of MATH 5 by enumeration: its figures, and that it is a bound, whatever the weights and the model."""

import math

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from atat_zoo.testing.toys import Joint, toy
from tests.adaptive_exact import (
    calibrated,
    log_last,
    log_shares,
    look_everywhere,
    optimum,
    order_form,
    order_likelihood,
    own_time,
    subsets,
    timed_form,
)

UNIFORM = torch.zeros(8, 3, dtype=torch.float64)


def by_token(joint):
    """The forward weights of MATH 5's toy: 1 for token 0, 2 for token 1."""
    return torch.where(joint.states == 1, 2.0, 1.0).double().log()


def best_order(joint, log_w):
    return optimum(joint.p, joint.states, log_last(log_w), log_shares(log_w.unsqueeze(-2)))


def best_timed(joint, path):
    return optimum(joint.p, joint.states, path.log_probability, path.log_rate.unsqueeze(-2))


def mean(joint, nelbo):
    return float((joint.p * nelbo).sum())


# The figures of MATH 5


def test_the_entropy_and_the_uniform_bound():
    joint = toy()
    assert joint.entropy == pytest.approx(1.910914, abs=1e-6)
    assert mean(joint, order_form(UNIFORM, *best_order(joint, UNIFORM))) == pytest.approx(1.910914, abs=1e-6)
    path = own_time(UNIFORM)
    assert mean(joint, timed_form(path, *best_timed(joint, path))) == pytest.approx(1.910914, abs=1e-6)


def test_the_timed_bound_is_tight_for_weights_of_the_token_itself():
    joint = toy()
    path = own_time(by_token(joint))
    assert mean(joint, timed_form(path, *best_timed(joint, path))) == pytest.approx(1.910914, abs=1e-6)
    # For each sequence, not only on average.
    torch.testing.assert_close(timed_form(path, *best_timed(joint, path)), -joint.p.log(), atol=1e-7, rtol=0)


def test_without_its_bracket_it_is_below_the_entropy():
    joint = toy()
    path = own_time(by_token(joint))
    found = mean(joint, timed_form(path, *best_timed(joint, path), bracket=False))
    assert found == pytest.approx(1.761266, abs=1e-6)
    assert found < joint.entropy


def test_the_order_form():
    joint = toy()
    log_w = by_token(joint)
    assert mean(joint, order_form(log_w, *best_order(joint, log_w))) == pytest.approx(1.911039, abs=1e-6)


def test_the_power_path_calibrated_per_sequence():
    joint = toy()
    path = calibrated(by_token(joint))
    found = mean(joint, timed_form(path, *best_timed(joint, path)))
    assert found == pytest.approx(1.9146, abs=5e-5)
    assert found == pytest.approx(1.914606, abs=1e-6)


def test_the_choice_probabilities_are_the_best_reverse_weights():
    """Any other ŵ and any other p_θ cost more: the figures above are minima."""
    joint = toy()
    log_w = by_token(joint)
    best = order_form(log_w, *best_order(joint, log_w))
    for seed in range(20):
        noise = Noise(joint, seed, 0.3)
        assert mean(joint, order_form(log_w, *noise.changed(*best_order(joint, log_w)))) > mean(joint, best)


# The quadrature


@pytest.mark.parametrize("log_weight", [-3.0, -1.0, 0.0, 1.0, 3.0])
def test_every_token_is_unmasked_once(log_weight):
    """∫ A P(masked) dt = 1, for small and large weights: the quadrature reaches both ends."""
    log_w = torch.tensor([[log_weight, 0.0, -log_weight]])
    # Calibrated, the paths of very different weights bend sharply in the rate: such weights need more nodes.
    for path in (own_time(log_w), calibrated(log_w, 120 if abs(log_weight) < 2 else 2000)):
        once = (path.weight[:, None, None] * (path.log_rate + path.log_masked).exp()).sum(0)
        torch.testing.assert_close(once, torch.ones_like(once), atol=1e-7, rtol=0)
        torch.testing.assert_close(path.log_probability.exp().sum(-1), torch.ones(len(path.weight), 1).double())


def test_more_nodes_change_nothing():
    joint = toy()
    for log_w in (by_token(joint), 2 * by_token(joint) - 1):
        for make in (own_time, calibrated):
            found = [
                mean(joint, timed_form(path, *best_timed(joint, path))) for path in (make(log_w), make(log_w, 300))
            ]
            assert found[0] == pytest.approx(found[1], abs=1e-9)


# The order


def test_what_is_left_by_summing_over_orders():
    """P(M is left) against every order by itself."""
    import itertools

    log_w = torch.tensor([[0.3, -1.0, 0.8, 0.0]], dtype=torch.float64)
    w = log_w[0].exp().tolist()
    expected = [0.0] * 16
    for order in itertools.permutations(range(4)):
        left, p, sets = set(range(4)), 1.0, [15]
        for i in order:
            p *= w[i] / sum(w[j] for j in left)
            left.discard(i)
            sets.append(sum(1 << j for j in left))
        for m in sets:
            expected[m] += p
    found = log_last(log_w)[0].exp()
    torch.testing.assert_close(found, torch.tensor(expected).double())
    sizes = subsets(4).sum(1)
    for size in range(5):
        assert float(found[sizes == size].sum()) == pytest.approx(1)


def test_gradients_of_the_enumeration_are_those_of_its_values():
    torch.manual_seed(0)
    ce, log_reverse = torch.rand(2, 2, 8, 3, dtype=torch.float64)
    inputs = [a.requires_grad_() for a in (torch.randn(2, 3, dtype=torch.float64), ce, log_reverse)]
    assert torch.autograd.gradcheck(order_form, inputs)
    assert torch.autograd.gradcheck(lambda w, *rest: timed_form(own_time(w, 60), *rest), inputs)


# It is a bound


class Noise:
    """Changes a model by a function of z, so that what was a distribution given z is another one. V = 2."""

    def __init__(self, joint, seed, size):
        generator = torch.Generator().manual_seed(seed)
        L = joint.length
        table = size * torch.randn(2, 3**L, L, generator=generator, dtype=torch.float64)
        z = torch.where(subsets(L), joint.mask_id, joint.states[:, None])  # [B, S, L]
        number = (z * 3 ** torch.arange(L)).sum(-1)
        self.logit, self.log_weight = table[:, number]
        self.sign = torch.where(joint.states == 1, 1.0, -1.0)[:, None].double()
        self.here = subsets(L)

    def changed(self, ce, log_reverse):
        # In logits: log p − log(1 − p), and back.
        p = (-ce).exp().clamp(1e-12, 1 - 1e-12)
        logit = self.sign * (p / (1 - p)).log() + self.logit
        ce = torch.nn.functional.softplus(-self.sign * logit)
        return torch.where(self.here, ce, 0.0), torch.where(self.here, log_reverse + self.log_weight, 0.0)


EXAMPLES = 1000


def hold(*, bracket, examples=EXAMPLES, forms=("order", "timed", "timed, seeing t")):
    """Random joints, forward weights that read all of x, and models from the best one to none at all."""

    # Where a violation is wanted the first will do: to find the smallest takes seconds.
    phases = list(Phase) if bracket else [Phase.generate]

    @settings(max_examples=examples, phases=phases, deadline=None, derandomize=True, database=None)
    @given(
        seed=st.integers(0, 2**32 - 1),
        sharpness=st.sampled_from([0.3, 1.0, 3.0]),
        forward=st.sampled_from([0.0, 0.3, 1.0, 3.0]),
        model=st.sampled_from(["best", "near", "far", "any"]),
    )
    def holds(seed, sharpness, forward, model):
        generator = torch.Generator().manual_seed(seed)
        joint = Joint((sharpness * torch.randn(8, generator=generator)).exp(), 3, 2)
        log_w = (forward * torch.randn(8, 3, generator=generator, dtype=torch.float64)).clamp(-3, 3)
        size = {"best": 0.0, "near": 0.2, "far": 1.0, "any": 2.0}[model]
        change = Noise(joint, seed, size).changed
        path = own_time(log_w, 80)

        def changed(ce, log_reverse):
            if model == "any":
                ce, log_reverse = torch.full_like(ce, math.log(2)), 0 * log_reverse
            return change(ce, log_reverse)

        free = changed(*best_order(joint, log_w))
        order = order_form(log_w, *free, bracket=bracket)
        timed = timed_form(path, *free, bracket=bracket)
        seeing = timed_form(path, *changed(*best_timed(joint, path)), bracket=bracket)
        for name, found in (("order", order), ("timed", timed), ("timed, seeing t", seeing)):
            if name in forms:
                assert mean(joint, found) >= joint.entropy - 1e-7, f"the {name} form is below the entropy"
        if not bracket:
            return
        # The timed form pays for the times as well, which the order form does not look at.
        assert bool((timed >= order - 1e-7).all()), "the timed form is below the order form"
        # More than asked: for each sequence it bounds the likelihood of the reverse process, which is normalised.
        likelihood = order_likelihood(*free)
        assert float(likelihood.exp().sum()) == pytest.approx(1, abs=1e-9)
        assert bool((order >= -likelihood - 1e-9).all()), "the order form is below −log p(x)"

    holds()


@pytest.mark.slow
def test_it_is_never_below_the_entropy():
    hold(bracket=True)


def test_it_is_not_below_the_entropy_in_a_few_examples():
    hold(bracket=True, examples=60)


@pytest.mark.parametrize("form", ["order", "timed", "timed, seeing t"])
def test_without_the_bracket_the_same_test_finds_a_violation(form):
    with pytest.raises(AssertionError, match=f"the {form} form is below the entropy"):
        hold(bracket=False, forms=(form,))


def test_the_order_form_is_tight_for_weights_of_the_position():
    """The model knows them, so ŵ = w, and any order reaches the entropy with the exact conditionals."""
    joint = toy()
    log_w = torch.tensor([1.5, -0.5, 0.2], dtype=torch.float64).expand(8, 3)
    ce, log_reverse = best_order(joint, log_w)
    torch.testing.assert_close(order_form(log_w, ce, log_reverse), -joint.p.log())
    torch.testing.assert_close(order_likelihood(ce, log_reverse), joint.p.log())


def test_a_model_is_asked_under_every_mask():
    joint = toy()

    def look(z, t, masked, x):
        assert t is None
        assert torch.equal(masked, z == joint.mask_id)
        log_p = joint.denoiser(z, t, masked)
        return -log_p.gather(1, x[masked][:, None])[:, 0], masked.nonzero()[:, 1].double()

    ce, log_reverse = look_everywhere(look, joint.states, joint.mask_id)
    torch.testing.assert_close(ce, best_order(joint, UNIFORM)[0])
    expected = torch.where(subsets(3), torch.arange(3.0).double(), 0.0)
    torch.testing.assert_close(log_reverse, expected.expand(8, 8, 3))
