"""What holds for every baseline: autoregressive, strided, sedd, d3pm, mlm and block."""

import math

import pytest
import torch
from small_objectives import BACKBONE, BASELINES, CONTEXT, L, N, V, assembled, batch, build, full_batch

from atat_zoo import UserError, Zoo
from atat_zoo.experiment import from_table
from atat_zoo.generation.text_generator import TextGenerator
from atat_zoo.registry import Context
from tests.generation.alphabet import Alphabet

ALL = sorted(BASELINES)
EXACT_K = Zoo.load().spec("bound", "exact_k")
LEFT = Zoo.load().spec("sampler", "left_to_right")
# Where the loss is the bound itself and not the likelihood of one rate.
BOUNDED = ["autoregressive", "block", "d3pm", "sedd", "strided"]
EXACT = ["autoregressive", "strided"]
# What writes a model that has an order of its own.
STRIDED = Zoo.load().spec("sampler", {"use": "strided", "stride": 3})
WRITES = {"autoregressive": LEFT, "block": LEFT, "sets": STRIDED, "strided": STRIDED}


@pytest.mark.parametrize("name", ALL)
def test_what_is_not_maskable_costs_nothing(name):
    module = build(BASELINES[name]).eval()
    given = batch(1)
    found = module.loss(given)
    assert not (found["masked"] & ~given.maskable).any()
    assert not found["token_loss"][~given.maskable].any()
    with torch.no_grad():
        for each in module.bound(given.tokens, given.maskable, torch.arange(N), 3, EXACT_K).values():
            assert not each.contribution[~given.maskable].any()
            assert not each.weight[~given.maskable].any()


@pytest.mark.parametrize("name", [*ALL, "mdlm"])
def test_the_figures_are_what_they_say(name):
    module = build(BASELINES.get(name, name))
    given = batch(1)
    found = module.loss(given)
    rate = int(found["masked"].sum()) / int(given.maskable.sum())
    assert float(found["mask_rate"]) == pytest.approx(rate)
    expected = (found["rates"].view(N, -1).mean(1) * given.maskable.sum(1)).sum() / given.maskable.sum()
    assert 0 < float(found["mask_rate_target"]) <= 1
    assert name == "block" or float(found["mask_rate_target"]) == pytest.approx(float(expected), rel=1e-6)
    assert float(found["cross_entropy"]) == pytest.approx(float(found["token_loss"][found["masked"]].mean()), rel=1e-6)
    assert not any(value.requires_grad for key, value in found.items() if key != "loss")
    # The cross-entropy is that of the denoiser whose bound is reported.
    if name not in WRITES:
        with torch.no_grad():
            z = torch.where(found["masked"], V, given.tokens)
            log_p = module.denoiser()(z, None, found["masked"])
        ce = -log_p.gather(1, given.tokens[found["masked"]][:, None])[:, 0]
        torch.testing.assert_close(found["token_loss"][found["masked"]], ce, rtol=1e-4, atol=1e-5)
    assert module.stage(0.5) == ("medium" if name in ("mdlm", "sets") else "train")


@pytest.mark.parametrize(("name", "bias"), [*((name, "unigram") for name in ALL), ("sedd", "zero"), ("d3pm", "none")])
def test_before_training_the_prediction_is_the_bias_and_nothing_is_wasted(name, bias):
    counts = torch.arange(1, V + 1).numpy() ** 3
    context = Context(vocabulary_size=V, length=L, width=16, counts=counts, seed=5)
    module = assembled(BASELINES[name], context, backbone=BACKBONE | {"output_bias": bias})
    tokens = batch(1, padded=False).tokens.repeat(40, 1)
    p = torch.ones(V) if bias != "unigram" else torch.from_numpy(counts).float() + 1
    surprise = -(p / p.sum()).log()[tokens]
    with torch.no_grad():
        found = module.bound(tokens, tokens >= 0, torch.arange(len(tokens)), L, EXACT_K)
    for key, each in found.items():
        expected = float(surprise.sum(1).mean())
        if name in EXACT or key == "sedd":
            torch.testing.assert_close(each.loss_sum / each.loss_count, surprise.double(), rtol=1e-4, atol=1e-4)
        # The mask takes 1/(V + 1) of the prediction of `d3pm`, and adds at most log(1 + 1/V) a token.
        room = L * math.log1p(1 / V) if key == "d3pm" else 0.0
        assert expected - 0.5 < float(each.nelbo.mean()) < expected + room + 0.5


def test_the_offset_of_sedd_is_saved_because_the_counts_are_not():
    context = Context(vocabulary_size=V, length=L, width=16, counts=torch.arange(V).numpy(), seed=5)
    backbone = BACKBONE | {"output_bias": "unigram"}
    trained = assembled("sedd", context, backbone=backbone)
    again = assembled("sedd", CONTEXT, backbone=backbone)
    assert float(trained.offset) == pytest.approx(0, abs=1e-6)
    assert float(again.offset) == pytest.approx(math.log(V))
    again.load_state_dict(trained.state_dict())
    assert float(again.offset) == float(trained.offset)


@pytest.mark.parametrize("rate", [0.01, 0.15, 0.5, 1.0])
def test_mlm_masks_its_share_of_every_row_and_weighs_rows_by_their_length(rate):
    module = build({"use": "mlm", "rate": rate})
    given = batch(1)
    found = module.loss(given)
    n = given.maskable.sum(1)
    k = torch.tensor([min(int(m), max(1, round(rate * int(m)))) for m in n])
    assert torch.equal(found["masked"].sum(1), k)
    per_row = found["token_loss"].sum(1) / k.clamp(min=1)
    assert float(found["loss"].detach()) == pytest.approx(float((per_row * n).sum() / n.sum()), rel=1e-5)
    # Full rows: the mean over the masked tokens. And other masks in another step.
    full = module.loss(batch(1, padded=False))
    assert float(full["loss"].detach()) == pytest.approx(float(full["cross_entropy"]), rel=1e-5)
    assert rate == 1 or not torch.equal(found["masked"], module.loss(batch(2))["masked"])


# Learning and writing


def learned(name, steps=120, rows=64, length=12, v=5):
    """Train on texts that count upwards from any token: after one token all others are known."""
    context = Context(vocabulary_size=v, length=length, width=32, seed=3)
    backbone = BACKBONE | {"width": 32, "heads": 4}
    torch.manual_seed(0)
    module = assembled(BASELINES[name], context, rows, backbone=backbone)
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    index = torch.arange(rows)
    tokens = (index[:, None] + torch.arange(length)) % v
    for step in range(steps):
        found = module.loss(full_batch(tokens, step, progress=step / steps))
        optimizer.zero_grad()
        found["loss"].backward()
        optimizer.step()
    with torch.no_grad():
        bounds = module.eval().bound(tokens, torch.ones_like(tokens) > 0, index, 8, EXACT_K)
    return module, found, {key: float(each.nelbo.mean()) / length for key, each in bounds.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_it_learns_and_writes(name):
    module, found, bounds = learned(name)
    unigram = math.log(5)
    assert float(found["cross_entropy"]) < 0.6 * unigram
    if name in BOUNDED:
        assert all(value < 0.4 * unigram for value in bounds.values()), bounds
    elif name == "sets":  # of texts in another order it has seen prompts and gaps alone
        assert bounds["sets"] < 0.4 * unigram
    else:  # mlm: it has not seen a text that is nearly all masks
        assert float(found["cross_entropy"]) < 0.2 * bounds["nelbo"]
    if name == "autoregressive":
        # The first token is any of five, the others are known.
        assert bounds["nelbo"] == pytest.approx(unigram / 12, abs=0.05)
    # Of `sets` and `strided` every other token follows the token before it; a prompt stays.
    text_generator = TextGenerator(denoiser=module.denoiser(), tokenizer=Alphabet("01234"), length=12)
    made = text_generator.write(WRITES.get(name, LEFT), number=8, seed=1, prompt="23", batch_size=4)
    assert all(text.startswith("23") and len(text) == 12 for text in made.texts)
    assert name != "autoregressive" or sum(text == "234012340123" for text in made.texts) >= 6


# What is refused


CAUSAL, TIMED = {"sampler": "left_to_right"}, {"backbone": {"time_conditioning": True}}
TEMPERED = {"sampler": {"use": "left_to_right", "token_sampling": "confidence_tempered"}}
STEPS, METHODS = {"evaluation": {"bound": {"use": "discrete_t"}}}, ("discrete_t", "exact_k")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective": "block"}, ["sampler", "left_to_right"]),
        ({"objective": {"use": "block", "block_size": 5}, "sampler": "left_to_right"}, ["objective.block_size", "32"]),
        ({"objective": "sedd", "masking": "importance"}, ["masking", "sedd"]),
        ({"objective": "mlm"} | TIMED, ["backbone.time_conditioning", "mlm"]),
        ({"objective": "block"} | CAUSAL | TIMED, ["backbone.time_conditioning", "block"]),
        ({"objective": "autoregressive"} | TEMPERED, ["sampler", "one token at a time"]),
        ({"objective": {"use": "block", "block_size": 2}, "sampler": "ancestral"}, ["sampler", "a block at a time"]),
        ({"objective": "block"} | CAUSAL | STEPS, ["evaluation.bound", "block", *METHODS]),
    ],
)
def test_what_does_not_fit_is_refused(changes, said):
    with pytest.raises(UserError) as caught:
        from_table({"name": "x", "data": {"length": 32}} | changes)
    (line,) = str(caught.value).splitlines()
    assert all(word in line for word in said), line


@pytest.mark.parametrize("method", ["continuous_t", "discrete_t"])
def test_other_estimators_of_the_bound_are_refused_where_they_mean_nothing(method):
    given, bound = batch(), Zoo.load().spec("bound", method)

    def found(name):
        with torch.no_grad():
            return build(BASELINES[name]).eval().bound(given.tokens, given.maskable, torch.arange(N), 2, bound)

    for name in ("autoregressive", "block"):
        with pytest.raises(UserError, match=f"{method}.*{name}.*exact_k"):
            found(name)
    for name in ("sedd", "d3pm", "mlm"):
        if method == "continuous_t":
            assert next(iter(found(name))) == "nelbo"
        else:
            assert not {"nelbo", "sedd"} & found(name).keys()
    with torch.no_grad():  # of the T steps of a schedule with other ends
        module = build(BASELINES["d3pm"], noise="log_linear").eval()
        assert set(module.bound(given.tokens, given.maskable, torch.arange(N), 2, EXACT_K)) == {"nelbo"}


@pytest.mark.parametrize("name", ["sedd", "d3pm"])
def test_a_time_conditioned_network_is_told_the_time(name):
    module = build(BASELINES[name], backbone=BACKBONE | {"time_conditioning": True})
    told = []
    module.backbone.register_forward_hook(lambda _, args, out: told.append(args[1]))
    given = batch(1, padded=False)
    module.loss(given)["loss"].backward()
    times = module.times(given.index)
    if name == "d3pm":
        times = (times * 10).ceil() / 10
    torch.testing.assert_close(told.pop(), times)
    with torch.no_grad():
        module.eval().bound(given.tokens, given.maskable, torch.arange(N), 2, EXACT_K)
    # Of the uniform bound the share of masks, so that p is a function of z; of the T steps their own.
    grids = [L, L, 10, 10] if name == "d3pm" else [L, L]
    assert len(told) == len(grids)
    for t, grid in zip(told, grids, strict=True):
        torch.testing.assert_close((t * grid).round() / grid, t)
