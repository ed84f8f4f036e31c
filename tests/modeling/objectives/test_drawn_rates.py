"""Rates in the objectives that take them: mdlm, sedd and block."""

import attrs
import pytest
import torch
from small_objectives import BACKBONE, L, N, batch, build, part_of

from atat_zoo.experiment import from_table
from atat_zoo.system.errors import UserError

WITH = {"mdlm": {"use": "mdlm"}, "sedd": {"use": "sedd"}, "block": {"use": "block", "block_size": 2}}
PLAIN = {"masking": "uniform", "curriculum": "none", "estimator": "uniform"}
BELL = {"use": "logit_normal", "scale": 0.6, "uniform_share": 0.25}


def drawn(module, given):
    """The numbers by which a step draws its rates, and the levels."""
    blocks = L // module.size if hasattr(module, "size") else None
    u = module.block_times(given.index, blocks) if blocks else module.times(given.index)
    return u, module.levels(u, given)


@pytest.mark.parametrize("objective", WITH)
@pytest.mark.parametrize(("weight", "rates"), [("nelbo", BELL), ("simple", BELL), ("nelbo", "uniform")])
def test_a_row_is_masked_at_its_rate_and_weighs_one_by_rate_and_density(objective, weight, rates):
    module = build(WITH[objective] | {"weight": weight}, mask_rates=rates, noise="cosine", **PLAIN)
    given = batch(1)
    _, levels = drawn(module, given)
    found = module.loss(given)

    def each(value):
        by_row = value.view(N, -1)
        return by_row.repeat_interleave(L // by_row.shape[1], 1)

    rate = each(levels.rate)
    assert torch.equal(found["rates"], levels.rate)
    maskable = given.maskable.sum()
    assert float(found["mask_rate_target"]) == pytest.approx(float((rate * given.maskable).sum() / maskable))
    # The loss is proportional to the weights, token by token; sedd has a penalty besides.
    if objective != "sedd":
        omega = each(levels.weight) if weight == "nelbo" else torch.ones(N, L)
        expected = (omega * found["token_loss"]).sum() / (N * given.mean_maskable)
        torch.testing.assert_close(found["diffusion_loss"], expected)
    # At rate 1 all is masked, at a tiny one nothing.
    for level, share in ((1.0, 1.0), (1e-30, 0.0)):
        like = torch.full_like(levels.rate, level)
        module.rates = Fixed(attrs.evolve(levels, rate=like))
        assert float(module.loss(given)["mask_rate"]) == share


class Fixed(torch.nn.Module):
    """Rates that are always the same."""

    def __init__(self, levels):
        super().__init__()
        self.fixed = levels

    def levels(self, u, noise, progress):
        return self.fixed


@pytest.mark.parametrize("objective", WITH)
def test_rates_are_stratified_over_the_global_batch_whatever_the_micro_batches(objective):
    module = build(WITH[objective], mask_rates={"use": "logit_normal"}, **PLAIN)
    for first in (*range(20), 2**40):
        given = batch(first)
        u, levels = drawn(module, given)
        assert u.dtype == torch.float32
        assert 0 < u.min() < u.max() <= 1
        # In terms of the bell's own distribution there is one rate in each stratum.
        law = torch.distributions.Normal(0, 1).cdf(levels.rate.double().logit()).flatten()
        stratum = (law - u.min()).div(1 / law.numel()).round().sort().values
        assert torch.equal(stratum, torch.arange(law.numel()).double())
        for rows in (slice(0, 3), slice(3, 4), slice(4, None)):
            _, part = drawn(module, part_of(given, rows))
            assert torch.equal(part.rate, levels.rate[rows])
            assert torch.equal(part.weight, levels.weight[rows])


@pytest.mark.parametrize("objective", ["mdlm", "sedd"])
def test_a_network_that_reads_the_time_is_told_that_of_the_noise(objective):
    backbone = BACKBONE | {"time_conditioning": True}
    module = build(WITH[objective], mask_rates=BELL, noise="cosine", backbone=backbone, **PLAIN)
    told = []
    module.backbone.register_forward_hook(lambda _, args, out: told.append(args[1]))
    given = batch(1)
    _, levels = drawn(module, given)
    module.loss(given)
    torch.testing.assert_close(told.pop(), module.noise.time_at(levels.rate))


def test_blocks_are_counted_at_their_own_rates():
    module = build(WITH["block"], mask_rates={"use": "adaptive", "bins": 2}, **PLAIN)
    given = batch(3, padded=False)
    _, levels = drawn(module, given)
    found = module.loss(given)
    high = (levels.rate > 0.5).repeat_interleave(2, 1)
    masked = found["masked"]
    assert masked[high].any()
    assert masked[~high].any()
    module.end_step(lambda total: None, 0.5)
    assert module.rates.sums[1].tolist() == [int(masked[~high].sum()), int(masked[high].sum())]
    expected = torch.stack([found["token_loss"][~high].sum(), found["token_loss"][high].sum()]).double()
    torch.testing.assert_close(module.rates.sums[0], expected, rtol=1e-5, atol=0)


# What is refused


def experiment(objective, rates):
    needed = {"sampler": "left_to_right"} if objective["use"] == "block" else {}
    return from_table({"name": "x", "objective": objective, "mask_rates": rates, **needed})


@pytest.mark.parametrize("objective", WITH.values(), ids=WITH)
def test_weights_without_a_variance_are_refused(objective):
    with pytest.raises(
        UserError, match=r"mask_rates: .*infinite variance .* set mask_rates\.uniform_share above 0"
    ) as caught:
        experiment(objective, "logit_normal")
    assert len(str(caught.value).splitlines()) == 1
    experiment(objective | {"weight": "simple"}, "logit_normal")
    experiment(objective, {"use": "logit_normal", "uniform_share": 0.1})
    experiment(objective, "adaptive")
