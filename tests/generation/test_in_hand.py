"""A model in the hand: what it says of texts agrees with what the commands measure, and shows itself."""

import math
import operator
import re
import subprocess
import sys
from itertools import pairwise

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import atat_zoo
from atat_zoo.evaluation.held_out_text import text_of
from atat_zoo.evaluation.likelihood import evaluate_run
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.generation.guidance import Guidance
from atat_zoo.modeling.uncertainty import MarginUncertainty
from atat_zoo.registry import Zoo
from atat_zoo.system.errors import UserError
from atat_zoo.system.parsing import refuse_halves
from tests.generation.forms import model_of, run_of
from tests.generation.making import ESTIMATOR, L, tiny_model

TEXTS = ["We the people", "of the states", "a", "häß and all"]
# One of each way of reading: at once, with the time, in turns, in their order, from left to right, block by block.
FORM_NAMES = ["mdlm", "timed", "sets", "strided", "autoregressive"]
WITHOUT = ("masking", "estimator")
HALF = "a\ud83d b"  # as JSON whose escapes were cut has it
SURROGATE = r"has an unpaired surrogate, '\\ud83d', at character 1, so it is not valid text; remove it, or"


@pytest.fixture(scope="module", params=[*FORM_NAMES, "block"])
def model(request):
    return model_of(request.param)


@pytest.fixture(scope="module")
def mdlm():
    return model_of("mdlm")


@pytest.mark.parametrize("name", FORM_NAMES)
def test_a_score_is_what_an_evaluation_measures_on_the_same_text_by_the_same_draws(name, tmp_path):
    data = {"length": L, "special_tokens": "sequence", "packing": "document"}
    model = model_of(name, data=data)
    run = run_of(model, tmp_path / "run")
    (tmp_path / "held-out.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    (tmp_path / "text.txt").write_text("another\n" * 9, encoding="utf-8")
    files = {split: [str(tmp_path / f"{name}.txt")] for split, name in (("train", "text"), ("validation", "held-out"))}
    spec = EvaluationSpec(sequences=0, mask_samples=3)
    corpus = Zoo.load().spec("corpus", {"use": "files", "document": "line", **files})
    how = {"corpus": corpus, "corpus_name": "mine"}
    measured = evaluate_run(model, run.path, spec, seed=5, text=text_of(model, run.path, spec, **how))
    found = model.score(TEXTS, draws=3, seed=5)
    assert found.bounds.keys() == measured.bounds.keys()
    for bound, value in measured.bounds.items():
        assert found.bounds[bound].per_token == pytest.approx(value.nats_per_token, rel=1e-6)
        assert math.exp(found.bounds[bound].per_token) * found.bounds[bound].stderr == pytest.approx(
            value.stderr, rel=1e-5
        )
    assert int(found.first.tokens.sum()) == measured.tokens
    assert found.draws == (0 if measured.method == "likelihood" else 3)


def test_the_shares_of_the_tokens_sum_to_the_bound_and_a_text_alone_has_the_same_where_it_is_first(model):
    found = model.score(TEXTS, draws=2)
    for text, shares, nats, n in zip(TEXTS, found.texts, found.first.nats, found.first.tokens, strict=True):
        assert sum(value for _, value in shares) == pytest.approx(float(nats), rel=1e-6)
        assert len(shares) == int(n) == len(model.tokenizer.encode(text)) + 2
        assert all(value >= 0 for _, value in shares)
    alone = model.score(TEXTS[0], draws=2)
    assert float(alone.first.nats[0]) == pytest.approx(float(found.first.nats[0]), rel=1e-5)
    assert math.isnan(alone.first.stderr)
    assert model.score(TEXTS, draws=2, batch_size=1).first.per_token == pytest.approx(found.first.per_token, rel=1e-6)


@pytest.mark.slow
def test_more_draws_are_nearer_to_the_mean_over_all_orders(mdlm):
    """A text of two tokens between its ends has 2⁴ masks: the bound by enumeration."""
    row = torch.tensor([[256, *b"We", 257]])
    total, n = 0.0, 4
    for k in range(1, n + 1):
        masks = [
            torch.tensor(m) for m in torch.cartesian_prod(*[torch.tensor([0, 1])] * n).bool().tolist() if sum(m) == k
        ]
        for mask in masks:
            with torch.no_grad():
                ce = mdlm.module.cross_entropy(torch.where(mask, 258, row), None, mask[None], row)
            total += float(ce.sum()) * n / k / len(masks) / n
    found = [float(mdlm.score("We", draws=64, seed=seed).first.nats[0]) for seed in range(12)]
    mean, error = sum(found) / 12, torch.tensor(found).std() / 12**0.5
    assert abs(mean - total) < 4 * float(error)


def test_another_bound_can_be_asked_for(mdlm):
    steps = {"use": "discrete_t", "steps": 4}
    assert [*mdlm.score("We", bound=steps).bounds] == [*mdlm.score("We", bound=Zoo.load().spec("bound", steps)).bounds]
    assert mdlm.score("We", bound="continuous_t").first.per_token > 0


@settings(max_examples=10)
@given(st.data())
def test_log_probs_are_distributions_and_those_of_the_denoiser(data):
    model = data.draw(st.sampled_from([model_of(name) for name in ("mdlm", "sets")]))
    text = data.draw(st.text("abc ", min_size=1, max_size=12))
    masked = data.draw(st.sets(st.integers(0, len(text) - 1), min_size=1))
    found = model.log_probs(text, sorted(masked))
    assert found.values.shape == (len(masked), 258)
    assert found.positions == [i + 1 for i in sorted(masked)]
    torch.testing.assert_close(found.values.exp().sum(1), torch.ones(len(masked)))
    z = torch.tensor([[256, *text.encode(), 257]])
    z[0, found.positions] = 258
    with torch.no_grad():
        expected = model.text_generator().denoiser(z, None, z == 258)
    torch.testing.assert_close(found.values, expected)


def test_masks_in_a_text_are_its_gaps(mdlm):
    by_gap, by_place = mdlm.log_probs("We [MASK:2] of[MASK]"), mdlm.log_probs("We xx ofx", [3, 4, 8])
    assert by_gap.positions == by_place.positions == [4, 5, 9]
    torch.testing.assert_close(by_gap.values, by_place.values)
    best = by_gap.best(3)
    assert [len(each) for each in best] == [3, 3, 3]
    assert all(a.value >= b.value for each in best for a, b in pairwise(each))
    likeliest = mdlm.tokenizer.decode([int(by_gap.values[0].argmax())])
    assert repr(by_gap).startswith(f"<LogProbs of 258 tokens at 3 positions: {likeliest!r} {best[0][0].value:.2f}, ")
    assert best[0][0].token == likeliest
    assert best[0][0].value == pytest.approx(float(by_gap.values[0].exp().max()))


def test_the_sum_of_log_probs_from_left_to_right_is_the_likelihood_of_an_autoregressive_model():
    model, text = model_of("autoregressive"), "We the"
    ids = [*text.encode()]
    total = -sum(float(model.log_probs(text, [i]).values[0, ids[i]]) for i in range(len(ids)))
    shares = model.score(text).texts[0]
    assert total == pytest.approx(sum(value for _, value in shares[1:-1]), rel=1e-5)


def test_an_embedding_is_of_the_text_alone_and_reads_all_of_it(model):
    found = model.embed(TEXTS)
    assert found.shape == (4, 16)
    assert found.dtype is torch.float32
    torch.testing.assert_close(model.embed(TEXTS[1])[0], found[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.embed(TEXTS[::-1], batch_size=1), found.flip(0), rtol=1e-4, atol=1e-5)
    for i in (0, 5, 12):  # whichever token changes
        other = TEXTS[0][:i] + "#" + TEXTS[0][i + 1 :]
        assert (model.embed(other) - found[:1]).abs().max() > 1e-4


def test_no_padding_is_read_for_an_embedding(mdlm):
    apart = model_of("mdlm", data={"length": L, "special_tokens": "sequence", "packing": "document"})
    torch.testing.assert_close(apart.embed(TEXTS), mdlm.embed(TEXTS), rtol=1e-4, atol=1e-5)


def test_the_time_of_an_embedding_is_that_of_clean_text():
    model = model_of("timed")
    row = torch.tensor([[256, *b"We", 257]])
    with torch.no_grad():
        expected = model.module.backbone(row, torch.zeros(1))[0, 1:-1].mean(0)
    torch.testing.assert_close(model.embed("We")[0], expected)


def test_a_text_is_filled_by_the_likeliest_tokens_the_same_each_time(model):
    text = "We [MASK:2] of"
    filled = model.fill(text)
    assert (filled[:3], filled[-3:]) == ("We ", " of")
    assert "[MASK" not in filled
    assert filled == model.fill(text)
    likeliest = model.log_probs("We the [MASK]").best(1)[0][0].token
    assert model.fill("We the [MASK]") == f"We the {likeliest}"


def test_few_evaluations_fill_many_masks(mdlm):
    for evaluations in (1, 3):
        filled = mdlm.infill("a[MASK:9]b", sampler=mdlm._greedy(evaluations)).filled[0][0]
        assert filled.nfe == evaluations
    own = {"use": "ancestral", "steps": 2}
    assert mdlm.fill("a[MASK:9]b", sampler=own) == mdlm.infill("a[MASK:9]b", sampler=own).texts[0]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda model: model.score([]), "texts is empty; pass at least one"),
        (lambda model: model.score(["a", ""]), "text 2 is empty; pass at least one word"),
        (lambda model: model.score("x" * 23), "the text takes 25 tokens, including special tokens.*shorten it"),
        (lambda model: model.embed(["a", "x" * 30]), "text 2 takes 32 tokens"),
        (lambda model: model.log_probs("abc", [3]), "masked: the text has 3 tokens; pass one or more indices from 0"),
        (lambda model: model.log_probs("abc", []), "masked: the text has 3 tokens; pass one or more indices"),
        (lambda model: model.log_probs("abc"), "the text has no gap"),
        (lambda model: model.log_probs("a[MASK:1-2]"), "a gap of variable length; fix its number of tokens"),
        (lambda model: model.fill("abc"), "the text has no gap"),
        (lambda model: model.score("abc", bound="exact"), "unknown bound 'exact'"),
        (lambda model: model.score(["b", HALF]), f"^text 2 {SURROGATE}"),
        (lambda model: model.embed(HALF), f"^the text {SURROGATE}"),
        (lambda model: model.importance(HALF), f"^the text {SURROGATE}"),
        (lambda model: model.infill(["[MASK]", HALF + "[MASK]"]), f"^text 2 {SURROGATE}"),
        (lambda model: model.sample(prompt=HALF), f"^the prompt {SURROGATE}"),
        (lambda model: model.sample(suffix=HALF), f"^the suffix {SURROGATE}"),
        (lambda model: model.tokenizer.encode(HALF), f"^the text {SURROGATE}"),
        (lambda model: model.tokenizer.encode_batch(["b", HALF]), f"^the text {SURROGATE}"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(ask, said, mdlm):
    with pytest.raises(UserError, match=said) as caught:
        ask(mdlm)
    assert "\n" not in str(caught.value)


@given(st.text(), st.integers(0xD800, 0xDFFF), st.text())
def test_half_a_surrogate_pair_is_found_where_it_is(before, half, after):
    """Whole characters beyond U+FFFF are no halves."""
    refuse_halves(before + after, "it")
    with pytest.raises(UserError, match=f"at character {len(before)}, "):
        refuse_halves(before + chr(half) + after, "it")


def test_a_model_that_reads_from_left_to_right_says_what_it_cannot():
    with pytest.raises(UserError, match="predicts a token from the tokens before it"):
        model_of("autoregressive").log_probs("a[MASK:2]")


def test_a_model_and_its_answers_show_themselves(mdlm):
    weights = sum(weight.numel() for weight in mdlm.module.parameters())
    assert repr(mdlm) == f"<Model 'tiny': mdlm, {weights:,} parameters, 24 tokens in a text, 0 steps>"
    assert f"<td>{weights:,}</td>" in mdlm._repr_html_()
    score = mdlm.score(TEXTS)
    per_token = f"nelbo {score.first.per_token:.4f} ± {score.first.stderr:.4f} nats per token"
    assert repr(score) == f"<TextScores of 4 texts: {per_token}, 4 draws each>"
    assert repr(score.first) == f"<NLLBound: {per_token.removeprefix('nelbo ')}>"
    shown = [score, score.texts[0], mdlm.importance("a<b>"), mdlm.uncertainty("a<b>"), mdlm.log_probs("a[MASK]")]
    for each in shown:
        page = each._repr_html_()
        assert page.startswith("<div")
        assert page.count("<div") == page.count("</div>")
        assert page.count("<span") == page.count("</span>") > 0
        assert "<b>" not in page
        heats = [float(heat) for heat in re.findall(r"46, ([0-9.]+)\)", page)]
        assert all(0 <= heat <= 1 for heat in heats)
    assert "&lt;" in mdlm.importance("a<b>")._repr_html_()


def test_an_unmasking_goes_from_masks_to_the_text(mdlm):
    for sampler in ("ancestral", {"use": "remdm_cap", "steps": 8}):
        shown = mdlm.unmask(prompt="We ", length=12, seed=3, sampler=sampler)
        assert shown.text == mdlm.sample(1, prompt="We ", length=12, seed=3, sampler=sampler).texts[0]
        first, last = shown.frames[0], shown.frames[-1]
        assert [token is None for token in first] == [False] * 4 + [True] * 7 + [False]
        assert all(token is not None for token in last)
        assert shown._repr_html_().count("<div") == len(shown.frames)
        assert "▁" in shown._repr_html_()
        written = f"12 tokens in {len(shown.frames) - 1} changes: {shown.text!r}"
        assert repr(shown) == f"<Unmasking of {written}>"


def test_guidance_is_taken_and_counted(mdlm):
    class Twice(Guidance):
        name = "twice"

        def guide(self, text_generator):
            return attrs.evolve(text_generator, cost=2 * text_generator.cost)

    assert mdlm.infill("We [MASK:3] of", guidance=Twice()).max_nfe == 6
    assert mdlm.sample(guidance=Twice()).sample.max_nfe == 12


def test_importance_is_the_estimators(mdlm):
    found = mdlm.importance("We the")
    assert [token for token, _ in found] == list("We the")
    row = torch.tensor([[256, *b"We the", 257]])
    with torch.no_grad():
        expected = mdlm.module.importance(row, torch.ones_like(row, dtype=torch.bool), None)[0, 1:-1]
    assert torch.tensor([value for _, value in found]).equal(expected)
    assert len({value for _, value in found}) > 1


def hidden(i):
    """A text with the token at a place masked."""
    z = torch.tensor([[256, *b"We the", 257]])
    z[0, i] = 258
    return z


def test_importance_of_an_estimator_that_reads_masks_is_that_of_each_token_hidden():
    model = tiny_model(estimator=ESTIMATOR | {"reads": "z"}, masking="uniform")
    found = model.importance("We the")
    for i, (_, value) in enumerate(found, start=1):
        with torch.no_grad():
            expected = model.module.importance(z := hidden(i), torch.ones_like(z, dtype=torch.bool), None)[0, i]
        assert value == pytest.approx(float(expected), abs=1e-6)
    # The token itself is not read.
    assert model.importance("We the")[2].value == pytest.approx(model.importance("WeXthe")[2].value, abs=1e-6)


def test_uncertainty_is_of_each_token_given_the_others(mdlm):
    found = mdlm.uncertainty("We the", "margin")
    assert [token for token, _ in found] == list("We the")
    for i, (_, value) in enumerate(found, start=1):
        with torch.no_grad():
            log_probs = mdlm.text_generator().denoiser(z := hidden(i), None, z == 258)
        assert value == pytest.approx(float(MarginUncertainty()(log_probs)), abs=1e-6)
    again = mdlm.uncertainty("We the", MarginUncertainty(), batch_size=4)
    assert [value for _, value in again] == pytest.approx([value for _, value in found], abs=1e-6)
    assert mdlm.uncertainty("We the") == mdlm.uncertainty("We the", "entropy")


def test_what_has_no_importance_or_uncertainty(mdlm):
    for method in (mdlm.importance, mdlm.uncertainty):
        with pytest.raises(UserError, match="the text is empty"):
            method("")
        with pytest.raises(
            UserError, match="takes 25 tokens, including special tokens, but the model's maximum length is 24"
        ):
            method("x" * 23)
        assert len(method("x" * 22)) == 22
    with pytest.raises(UserError, match="unknown uncertainty 'entropi'; did you mean 'entropy'"):
        mdlm.uncertainty("We", "entropi")
    with pytest.raises(UserError, match="objective 'autoregressive' does not estimate importance"):
        model_of("autoregressive").importance("We")
    assert len(model_of("autoregressive").uncertainty("We the")) == 6


def test_a_model_that_writes_in_turns_sees_all_that_is_given():
    data = {"length": L, "special_tokens": "none"}
    own = {"use": "strided", "stride": 8}
    model = tiny_model(objective=own | {"use": "strided_causal"}, sampler=own, data=data, without=WITHOUT)
    for length, evaluations in ((None, 8), (10, 8), (5, 5)):
        assert model.sample(2, length=length).sample.nfe.tolist() == [evaluations] * 2
    assert len(model.uncertainty("We the")) == 6
    (text,) = model.infill("We [MASK:1-3] of").texts
    assert (text[:3], text[-3:]) == ("We ", " of")
    (text,) = model.sample(1, prompt="We ", suffix=" of").texts
    assert (text[:3], text[-3:]) == ("We ", " of")
    with pytest.raises(UserError, match="exceeds the model's maximum length, 24"):
        model.sample(length=L + 1)


@pytest.mark.slow
def test_what_is_not_asked_for_is_not_imported():
    """A model imports nothing of what training needs, as of torch what recomputes activations, which imports sympy.

    An evaluation without metrics needs none of torchmetrics, whose import takes longer than torch's.
    """
    code = (
        "import sys, atat_zoo; assert not {'torch', 'composer', 'pandas'} & {*sys.modules}; "
        "import torch; with_torch = {*sys.modules}; "
        "from atat_zoo import Model; Model.load; import atat_zoo.generation.model, "
        "atat_zoo.modeling.backbones.dit_module, atat_zoo.modeling.objectives.set_causal_module; "
        "print(*sorted({each.partition('.')[0] for each in {*sys.modules} - with_torch if 'atat_zoo' not in each}), "
        "'torch.utils.checkpoint' in {*sys.modules} - with_torch); "
        "import atat_zoo.evaluation.likelihood; sys.exit('torchmetrics' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True)
    *packages, checkpoint = done.stdout.split()
    assert checkpoint == "False", packages
    assert not {"sympy", "composer", "torchmetrics", "pandas"} & {*packages}, packages
    with pytest.raises(AttributeError, match="has no attribute 'Modell'"):
        operator.attrgetter("Modell")(atat_zoo)
