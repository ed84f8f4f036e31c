"""The numbers that are reported, from a module whose bound is known."""

import json
import math
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from atat_zoo import Zoo
from atat_zoo.diffusion import chunks
from atat_zoo.diffusion.likelihood_bounds import Estimate, average, exact_k, from_denoiser
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.diffusion.statistics import rank_within
from atat_zoo.evaluation.held_out_text import text_of
from atat_zoo.evaluation.likelihood import Measurement, _importance_when_hidden, evaluate_run, measure, summarise
from atat_zoo.evaluation.tasks.zero_shot import ZeroShotTask
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.generation.model import Model
from atat_zoo.modeling.noise import LinearNoise
from atat_zoo.system.errors import UnsavedNote, UserError
from atat_zoo.testing.toys import Hashed
from tests.evaluation.making import make_run
from tests.modeling.objectives.small_objectives import BACKBONE, BASELINES, CONTEXT, Largest, batch, build

V, L = 4, 5


class Tokenizer:
    """Tokens of 1, 2, 3 bytes, and an end of sequence that stands for none."""

    vocabulary_size, bos, eos = V, None, 3

    def byte_counts(self):
        return np.array([1, 2, 3, 0], dtype=np.int64)

    def decode(self, ids):
        return "".join(["a", " b", "  c", ""][i] for i in ids)


class Known(nn.Module):
    """An objective whose tokens cost what a table says; it remembers what it was asked."""

    def __init__(self, nats=(0.5, 1.0, 2.0, 0.25), importance=None):
        super().__init__()
        self.nats = nn.Parameter(torch.tensor(nats, dtype=torch.float64))
        self.asked = []
        if importance is not None:
            self.importance = lambda tokens, maskable, t: torch.tensor(importance)[tokens]

    def denoiser(self):
        importance = hasattr(self, "importance")
        return SimpleNamespace(estimates_importance=importance, importance_reads="x")

    def bound(self, tokens, maskable, keys, draws, method, difficulty=False):
        self.asked.append((len(tokens), self.training, torch.is_grad_enabled()))
        each = self.nats[tokens] * maskable
        of_masks = {"weight": maskable.double(), "loss_sum": each * draws, "loss_count": maskable.long() * draws}
        if not difficulty:
            return {"nelbo": Estimate(contribution=each, **of_masks)}
        found = {"nelbo": each, "entropy": tokens % 3}
        under = {name: torch.where(maskable, value, torch.nan)[:, None].float() for name, value in found.items()}
        return {name: Estimate(contribution=each, each=under[name].repeat(1, draws, 1), **of_masks) for name in found}


class Real(nn.Module):
    """An objective with the bound of a denoiser without sense, by exact-k; importance of z is the share hidden."""

    def __init__(self, reads="x"):
        super().__init__()
        self.weight, self.reads = nn.Parameter(torch.zeros(1)), reads

    def denoiser(self):
        about = {"importance_reads": self.reads, "mask_id": V}
        return SimpleNamespace(estimates_importance=True, **about)

    def masks(self, maskable, keys, draws, method):
        return exact_k(maskable, keys, draws, time_at=LinearNoise().time_at)

    def bound(self, tokens, maskable, keys, draws, method, difficulty=False):
        losses, masks = from_denoiser(Hashed(V)), self.masks(maskable, keys, draws, method)
        assert difficulty
        scores = {"nelbo": losses, "entropy": lambda *at: losses(*at).square()}
        return average(lambda *at: {name: of(*at) for name, of in scores.items()}, tokens, masks, V, keep=True)

    def importance(self, tokens, maskable, t):
        if self.reads == "z":
            return (tokens == V).float().mean(1, keepdim=True).expand(tokens.shape)
        return tokens / V + t[:, None]


def text(n=6, seed=0):
    tokens = torch.randint(0, V, (n, L), generator=torch.Generator().manual_seed(seed))
    maskable = torch.ones(n, L, dtype=torch.bool)
    maskable[1, 3:] = False
    maskable[4, 1:] = False
    return tokens, maskable


def measured(module, tokens, maskable, rows=None, seed=7, draws=2, batch_size=4):
    return measure(
        module, tokens, maskable, EvaluationSpec(mask_samples=draws, batch_size=batch_size), seed=seed, rows=rows
    )


def summed(found, counts=None, **kwargs):
    settings = {"split": "validation", "step": 3, "ema": False, "draws": 2, "seed": 7} | kwargs
    return summarise(found, tokenizer=Tokenizer(), counts=counts, **settings)


def same(one, two):
    one, two = (attrs.asdict(each, recurse=False) for each in (one, two))
    torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)


def test_perplexity_is_the_exponential_of_nats_per_token():
    tokens = torch.tensor([[0, 1, 2, 3, 0], [1, 1, 2, 0, 0]])
    maskable = torch.tensor([[True] * 5, [True, True, True, False, False]])
    found = summed(measured(Known(), tokens, maskable))
    # Row 1: .5 + 1 + 2 + .25 + .5 nats, 1 + 2 + 3 + 0 + 1 bytes; row 2: 1 + 1 + 2 nats, 2 + 2 + 3 bytes.
    assert (found.sequences, found.tokens, found.bytes) == (2, 8, 14)
    assert found.nelbo.nats_per_token == pytest.approx((4.25 + 4) / 8)
    assert found.nelbo.value == pytest.approx(math.exp(8.25 / 8))
    assert found.nelbo.bits_per_byte == pytest.approx(8.25 / math.log(2) / 14)
    assert found.perplexity_without_special == pytest.approx(math.exp((8.25 - 0.25) / 7))
    # The texts are "a b  ca" and " b b  c": a word begins behind white space.
    assert (found.characters, found.words) == (14, 5)
    assert found.bits_per_character == pytest.approx(8.25 / math.log(2) / 14)
    assert found.perplexity_per_word == pytest.approx(math.exp(8.25 / 5))
    # Errors by linearisation: residuals ±(4.25 − 5·8.25/8).
    residual = 4.25 - 5 * 8.25 / 8
    assert found.nelbo.stderr == pytest.approx(found.nelbo.value * math.sqrt(2 * residual**2 * 2) / 8)
    residual = (4.25 - 7 * 8.25 / 14) / math.log(2)
    assert found.nelbo.bits_per_byte_stderr == pytest.approx(math.sqrt(4 * residual**2) / 14)
    assert (found.split, found.step, found.ema, found.draws, found.seed) == ("validation", 3, False, 2, 7)
    assert (found.unigram_perplexity, found.importance_spearman, found.frequency_spearman) == (None, None, None)
    without = summed(measured(Known(), torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool)))
    assert (without.words, without.perplexity_per_word) == (0, None)


def test_the_unigram_perplexity_is_of_the_same_tokens():
    counts = np.array([5, 0, 2, 1], dtype=np.int64)
    tokens, maskable = text()
    prior = (counts + 1) / (counts + 1).sum()
    kept = tokens[maskable].numpy()
    same = [0.5] * V
    found = summed(measured(Known(importance=same), tokens, maskable), counts=counts)
    assert found.unigram_perplexity == pytest.approx(math.exp(-np.log(prior[kept]).mean()))
    # A model that costs exactly that has exactly that perplexity.
    again = summed(measured(Known((-np.log(prior)).tolist(), same), tokens, maskable), counts=counts)
    assert again.nelbo.value == pytest.approx(again.unigram_perplexity)
    assert again.frequency_spearman == pytest.approx(1)


def test_the_correlations_are_over_maskable_tokens():
    tokens, maskable = text(20)
    module = Known(importance=[0.9, 0.1, 0.5, 0.3])
    found = summed(measured(module, tokens, maskable), counts=np.array([9, 4, 2, 7]))
    kept = tokens[maskable].numpy()
    loss, surprisal = module.nats.detach().numpy()[kept], -np.log(np.array([10, 5, 3, 8]))[kept]
    expected = stats.spearmanr(np.array([0.9, 0.1, 0.5, 0.3])[kept], loss).statistic
    assert found.importance_spearman == pytest.approx(expected)
    assert found.frequency_spearman == pytest.approx(stats.spearmanr(surprisal, loss).statistic)
    assert found.entropy_spearman == pytest.approx(stats.spearmanr(kept % 3, loss).statistic)
    assert summed(measured(Known(), tokens, maskable)).entropy_spearman is None  # without an estimator, nobody asks
    # A constant importance has no order.
    assert summed(measured(Known(importance=[0.5] * V), tokens, maskable)).importance_spearman is None


def test_the_importance_of_tokens_that_some_draw_masked_is_correlated():
    """One that reads a time is of the middle; one that reads masks is averaged over those that hide the token."""
    tokens, maskable = text(40)
    found = measured(Real(), tokens, maskable, draws=1)
    seen = maskable & ~found.token_loss.isnan()
    torch.testing.assert_close(found.importance, (tokens / V + 0.5).where(seen, math.nan), equal_nan=True)
    assert seen.sum() < maskable.sum()
    # A token that two masks hide counts twice, each time with the loss under that mask.
    found = measured(Real(), tokens, maskable)
    each = found.under_masks
    twice = each["loss"].isfinite()
    torch.testing.assert_close(each["loss"].nanmean(1).double(), found.token_loss, equal_nan=True, rtol=0, atol=1e-6)
    torch.testing.assert_close(each["entropy"], each["loss"].square(), equal_nan=True)
    expected = stats.spearmanr(each["importance"][twice].numpy(), each["loss"][twice].numpy()).statistic
    assert summed(found).importance_spearman == pytest.approx(expected)
    masks = Real().masks(maskable, sequence_keys(7, "evaluation", torch.arange(len(tokens))), 2, None)
    masks = [mask.masked.float() for mask in masks]
    expected = sum(masked * masked.mean(1, keepdim=True) for masked in masks) / sum(masks)  # NaN where none hides it
    torch.testing.assert_close(measured(Real("z"), tokens, maskable).importance, expected, equal_nan=True)


def test_an_evaluation_ranks_the_masked_tokens_once(monkeypatch):
    ranked = []
    monkeypatch.setattr("atat_zoo.evaluation.likelihood.rank_within", lambda *of: ranked.append(of) or rank_within(*of))
    found = summed(measured(Real(), *text(40)), learned=True)
    assert None not in (found.importance_spearman, found.importance_chance)
    assert len(ranked) == 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 6, 9])
def test_what_ranks_measured_joins_to_what_one_would_have(ranks):
    tokens, maskable = text()
    every = [torch.arange(len(tokens))[rank::ranks] for rank in range(ranks)]  # of 9 ranks three have nothing
    pieces = [measured(Real(), tokens[rows], maskable[rows], rows, batch_size=2) for rows in every]
    joined, whole = Measurement.join(pieces), measured(Real(), tokens, maskable)
    same(joined, whole)
    same(Measurement.join(pieces[::-1]), joined)
    assert summed(joined) == summed(whole)
    other = measured(Real(), tokens, maskable, seed=8)  # the masks are a function of the seed too
    assert not torch.equal(other.contribution["nelbo"], whole.contribution["nelbo"])


@pytest.mark.parametrize("training", [True, False])
def test_the_module_is_asked_in_evaluation_mode_and_left_as_it_was(training):
    module = Known().train(training)
    measured(module, *text(), batch_size=4)
    assert module.training is training
    assert module.asked == [(4, False, False), (2, False, False)]
    module.bound = None
    with pytest.raises(TypeError):
        measured(module, *text())
    assert module.training is training


def test_a_diverged_model_is_reported_as_json_can_say_it():
    for nats in (1e4, math.nan):
        table = summed(measured(Known([nats] * V), *text())).to_table()
        assert (table["perplexity"], table["nats_per_token"]) == (None, None if math.isnan(nats) else 1e4)
        json.dumps(table, allow_nan=False)


def test_an_evaluation_is_recorded_under_what_it_was(tmp_path):
    found = summed(measured(Known(), *text()))
    found.record(tmp_path)
    # Other numbers of steps are other bounds.
    for steps in (8, 100):
        attrs.evolve(found, method="discrete_t", bounds={f"discrete T={steps}": found.nelbo}).record(tmp_path)
    first, *others = sorted((tmp_path / "evaluations").iterdir(), key=lambda path: "discrete" in path.name)
    assert first.name == "validation-exact_k-6x2-seed7-step00000003.json"
    assert json.loads(first.read_text()) == found.to_table()
    assert {path.name.partition("-6x2")[0] for path in others} == {f"validation-discrete-T={n}" for n in (8, 100)}
    assert found.sentence().startswith(f"validation perplexity {found.nelbo.value:.1f} ± {found.nelbo.stderr:.1f} (")


def test_what_cannot_be_recorded_is_a_warning_and_in_a_training_an_error(tmp_path):
    found = summed(measured(Known(), *text()))
    (tmp_path / "evaluations").touch()
    with pytest.warns(
        UnsavedNote, match=r"^this result is not saved in the run: [^;]*\.json cannot be written: File ex"
    ):
        found.record(tmp_path)
    with pytest.raises(UserError, match=r"\.json cannot be written: File exists; free some space"):
        found.record(tmp_path, required=True)


def test_documents_of_their_own_are_evaluated_without_their_padding(tmp_path):
    form = {"special_tokens": "both", "packing": "document"}
    run = make_run(tmp_path, "apart", "mdlm", blank=True, length=64, data=form)
    model, spec = Model.from_run(run), EvaluationSpec(sequences=8)
    own = text_of(model, run, spec)
    other = text_of(model, run, spec, corpus=model.experiment.parts["corpus"], corpus_name="other")
    assert all(torch.equal(a, b) for a, b in ((own.tokens, other.tokens), (own.maskable, other.maskable)))
    found = evaluate_run(model, run, spec, seed=1, text=own)
    assert found.padding == (~own.maskable).sum() > 0
    assert found.tokens == own.maskable.sum()
    assert found.nelbo.value == pytest.approx(model.context.vocabulary_size)
    chat = attrs.evolve(model.experiment, data=attrs.evolve(model.experiment.data, format="chat"))
    answers = evaluate_run(attrs.evolve(model, experiment=chat), run, spec, seed=1, text=other)
    assert (answers.form, answers.bounds["answers"].value) == ("chat", pytest.approx(model.context.vocabulary_size))
    (note,) = [note for note in ZeroShotTask().notes(model) if "data.packing" in note]
    assert note.endswith('data.packing = "document", not "packed"')


@pytest.mark.parametrize("name", ["mdlm", "sets"])
def test_the_importance_of_hidden_states_takes_no_forward_pass_of_its_own(name):
    on_z = {"mdlm": {"use": "mdlm", "weight": "simple"}, "sets": BASELINES["sets"]}[name]
    module, given = build(on_z, estimator="loss_prediction", masking="uniform"), batch(3)
    passes, spec = [], EvaluationSpec(mask_samples=2)
    module.backbone.register_forward_hook(lambda *_: passes.append(1))
    found = measure(module, given.tokens, given.maskable, spec, seed=3)
    assert len(passes) == 2 + (name == "sets")  # of the masks, and of its own position sets
    assert set(found.contribution) == {"nelbo"} | ({"sets"} if name == "sets" else set())
    keys = sequence_keys(3, "evaluation", torch.arange(len(given.tokens)))
    with torch.no_grad():
        alone = _importance_when_hidden(module.eval(), given.tokens, given.maskable, keys, 2, spec.bound)
        masks = module.masks(given.maskable, keys, 2, spec.bound)
        shown = [(torch.where(mask.masked, module.context.mask_id, given.tokens), mask) for mask in masks]
        log_p = torch.cat([module.denoiser()(z, mask.t, mask.masked) for z, mask in shown])
    torch.testing.assert_close(found.under_masks["importance"], alone, equal_nan=True)
    entropy = torch.distributions.Categorical(logits=log_p).entropy()
    of_each = found.under_masks["entropy"].transpose(0, 1)
    torch.testing.assert_close(of_each[of_each.isfinite()], entropy)
    assert found.importance[given.maskable].nanmean() > 0


ESTIMATOR = {"use": "transformer", "layers": 1, "width": 8, "heads": 2}
READS_X = {"use": "mdlm", "importance_loss_weight": 0.1}


@pytest.mark.parametrize("name", [*BASELINES, "mdlm", "mdlm that reads z", "adaptive"])
def test_no_tensor_of_an_evaluation_has_the_logits_of_all_places(name, monkeypatch):
    vocabulary, rows, width = 400, 4, 8
    monkeypatch.setattr(chunks, "LOGITS", rows * vocabulary)
    context = attrs.evolve(CONTEXT, vocabulary_size=vocabulary, width=width)
    parts = {"estimator": ESTIMATOR | {"reads": "z"}, "masking": "uniform"} if "z" in name else {}
    objective = BASELINES.get(name, {"use": "adaptive"} if name == "adaptive" else READS_X)
    module = build(objective, backbone=BACKBONE | {"width": width}, context=context, **parts)
    given = batch(3, context=context)
    classes = [Zoo.load().component("metric", name) for name in Zoo.load().names("metric")]
    metrics = tuple(each() for each in classes if each.reads == "predictions")
    spec = EvaluationSpec(mask_samples=2, batch_size=len(given.tokens), metrics=metrics)
    with Largest() as largest:
        measured = measure(module, given.tokens, given.maskable, spec, seed=1)
    assert list(measured.metrics) == [metric.title for metric in metrics]
    assert measured.token_loss.shape == given.tokens.shape
    # The embedding is 8 · 401; about twenty positions are masked, and 20 · 400 would be more.
    assert largest.elements <= width * (vocabulary + 1)
