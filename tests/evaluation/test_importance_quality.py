"""What an importance is worth, on tokens whose loss is known."""

import json
import math
from itertools import pairwise

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atat_zoo.data.build import build
from atat_zoo.diffusion.statistics import largest_spearman, rank_within
from atat_zoo.evaluation.held_out_text import held_out_text
from atat_zoo.evaluation.importance_quality import calibration, frequency_bands, importance_of_run, quality
from atat_zoo.evaluation.likelihood import Measurement, measure
from atat_zoo.evaluation.results.intervals import spearman_interval
from atat_zoo.evaluation.results.store import finite
from atat_zoo.evaluation.run_comparison import numbers_of
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.generation.model import Model
from tests.cli.terminal import printed, refused
from tests.evaluation.making import make_run
from tests.pages import SMALL

V, ROWS, L = 40, 30, 20


def measured(importance=None):
    """Tokens of 40 kinds, each with a loss of its own and noise; a few were never masked, a few may not be."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(V, (ROWS, L), generator=generator)
    maskable = torch.rand(ROWS, L, generator=generator) > 0.1
    loss = (tokens / 10 + torch.rand(ROWS, L, generator=generator)).double()
    loss[torch.rand(ROWS, L, generator=generator) < 0.1] = math.nan
    values = tokens / V if importance is None else torch.full(tokens.shape, importance)
    of_text = {"rows": torch.arange(ROWS), "tokens": tokens, "maskable": maskable, "counted": maskable}
    hidden = torch.rand(ROWS, 3, L, generator=generator) < 0.6
    pairs = {"loss": loss[:, None] + torch.rand(ROWS, 3, L, generator=generator), "importance": values[:, None]}
    pairs |= {"entropy": (tokens[:, None] % 7) + torch.arange(3)[:, None]}
    pairs = {name: each.expand(hidden.shape).float().masked_fill(~hidden, math.nan) for name, each in pairs.items()}
    return Measurement(**of_text, contribution={"nelbo": loss}, token_loss=loss, under_masks=pairs)


def test_the_correlations_are_those_of_the_tokens_that_were_masked():
    found = measured()
    counts = torch.arange(V).flip(0) * 3
    made = quality(found, counts)
    each = found.under_masks
    there = found.maskable[:, None] & each["loss"].isfinite()
    assert made.tokens == int(there.sum())
    importance, loss, entropy = (each[name][there].double().numpy() for name in ("importance", "loss", "entropy"))
    tokens, sequence = found.tokens[:, None].expand(there.shape)[there], there.nonzero()[:, 0]
    assert made.importance_spearman == pytest.approx(stats.spearmanr(importance, loss).statistic)
    assert (made.mean, made.deviation) == (pytest.approx(importance.mean()), pytest.approx(importance.std()))
    surprisal = -torch.log(counts + 1.0)[tokens].numpy()
    assert made.frequency_spearman == pytest.approx(stats.spearmanr(surprisal, loss).statistic)
    assert made.entropy_spearman == pytest.approx(stats.spearmanr(entropy, loss).statistic)
    of_mask = [each[name][there].double() for name in ("importance", "entropy")]
    ranks = torch.cat(
        [
            rank_within(loss[None].nan_to_num(), inside[None])[0][0][inside]
            for loss, inside in zip(each["loss"].flatten(0, 1), there.flatten(0, 1), strict=True)
        ]
    )
    rhos = [made.importance_spearman_in_mask, made.entropy_spearman_in_mask]
    assert rhos == pytest.approx([stats.spearmanr(values, ranks).statistic for values in of_mask])
    assert made.importance_interval[0] < made.importance_spearman < made.importance_interval[1]
    assert sum(b.tokens for b in made.bands) == sum(b.tokens for b in made.bins) == made.tokens
    assert sum(b.types for b in made.bands) == V
    for band in made.bands:
        inside = torch.isin(tokens, torch.nonzero((counts >= band.least) & (counts <= band.most)))
        assert band.tokens == int(inside.sum())
        of_band = [torch.from_numpy(values)[inside] for values in (importance, loss, entropy, surprisal)]
        rhos = [stats.spearmanr(of_band[i], of_band[1]).statistic for i in (0, 2, 3)]
        assert [band.importance_spearman, band.entropy_spearman, band.frequency_spearman] == pytest.approx(rhos)
        assert band.importance_interval == spearman_interval(*of_band[:2], sequence[inside])
        assert band.loss == pytest.approx(float(of_band[1].mean()))
    # The rank is among the tokens of a sequence that one mask hides, as in the estimator's target.
    i = int(sequence.max())
    ranks, counted = rank_within(each["loss"][i].nan_to_num(), there[i])
    torch.testing.assert_close(found.masked_tokens().rank[sequence == i], ranks[counted | there[i]].double())
    # From rare to frequent, without overlap.
    assert all(a.most <= b.least for a, b in pairwise(made.bands))


def test_the_middle_of_an_entry_decides_its_band():
    assert frequency_bands(torch.tensor([0, 0, 7]), 2).tolist() == [0, 0, 1]  # middles at 5, 15 and 60 %
    assert frequency_bands(torch.tensor([2, 5, 0]), 5).tolist() == [1, 3, 0]  # at 25, 70 and 5 %


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_a_constant_is_as_far_off_as_it_is_from_the_middle(value):
    made = quality(measured(value), torch.arange(V))
    assert (len(made.bins), made.calibration_error) == (1, pytest.approx(abs(value - 0.5), abs=1e-6))
    assert math.isnan(made.importance_spearman)
    assert made.importance_interval is None


def test_calibration_by_hand():
    importance = torch.tensor([0.05, 0.15, 0.12, 1.0, 0.95])
    ranks = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])
    loss = torch.tensor([1.0, 2.0, 4.0, 5.0, 7.0])
    rows = [(b.low, b.high, b.tokens, b.importance, b.rank, b.loss) for b in calibration(importance, ranks, loss)]
    by_hand = [(0.0, 0.1, 1, 0.05, 0.1, 1.0), (0.1, 0.2, 2, 0.135, 0.4, 3.0), (0.9, 1.0, 2, 0.975, 0.8, 6.0)]
    assert torch.allclose(torch.tensor(rows), torch.tensor(by_hand))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200), st.integers(1, 8))
def test_bands_have_about_the_same_share_of_the_training_text(counts, bands):
    counts = torch.tensor(counts)
    band = frequency_bands(counts, bands)
    assert 0 <= int(band.min()) <= int(band.max()) < bands
    # Never a rarer token in a band of more frequent ones.
    for low, high in pairwise(counts.argsort()):
        assert counts[low] == counts[high] or band[low] <= band[high]
    mass = (counts + 1).double()
    share = torch.zeros(bands).double().index_add(0, band, mass)
    # The entries at both ends of a band stick out by half at most.
    assert bool(((share - mass.sum() / bands).abs() <= mass.max() + 1e-6).all())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    parts = {"estimator": {"use": "transformer", "layers": 1, "width": 8, "heads": 2}, "target": "difficulty"}
    objective = {"use": "mdlm", "importance_loss_weight": 0.1}
    return make_run(tmp_path_factory.mktemp("importance"), "weighs", objective, **parts)


@pytest.mark.slow
def test_the_importance_of_the_quickstart_is_not_flat(tmp_path, atat):
    """In its true form but for the size and the steps: a tenth of them are enough."""
    shape = [*SMALL[:3], "train.steps=20", "train.batch_size=32", "train.evaluate_every=0", "evaluation.samples=0"]
    printed(atat, "train", "quickstart", *shape, "evaluation.sequences=64", "--out", str(tmp_path / "quickstart"))
    found = json.loads(printed(atat, "importance", str(tmp_path / "quickstart"), "--sequences", "64", "--json"))
    assert found["importance_spearman"] > 0.4
    assert found["deviation"] > 0.05
    assert sum(band["importance_interval"][0] > band["frequency_spearman"] for band in found["bands"]) >= 3


@pytest.mark.slow
def test_a_run_says_it_and_records_it(run, atat):
    said = json.loads(printed(atat, "importance", str(run), "--sequences", "0", "--bands", "3", "--json"))
    alone = json.loads(printed(atat, "eval", str(run), "--sequences", "0", "--json"))
    for name in ("importance_spearman", "frequency_spearman", "entropy_spearman"):
        assert said[name] == pytest.approx(alone[name])
    assert len(said["bands"]) <= 3
    path = run / f"evaluations/importance-validation-{said['sequences']}x{said['draws']}-seed4-step00000003.json"
    assert json.loads(path.read_text()) == {k: v for k, v in said.items() if k != "run"}
    assert "importance of the estimator transformer with target difficulty" in printed(atat, "importance", str(run))
    plain = make_run(run.parent, "plain", "mlm")
    assert "the objective 'mlm', which uses no importance estimator" in refused(atat, "importance", str(plain))


def test_the_importance_of_a_run_is_that_of_its_held_out_text(run):
    model, spec, told = Model.from_run(run), EvaluationSpec(sequences=6, mask_samples=3, split="test"), []
    found = importance_of_run(model, run, spec, seed=2, bands=3, progress=lambda *done: told.append(done))
    text = held_out_text(model, run, "test", 6)
    expected, again = (
        measure(model.module, text.tokens, text.maskable, spec, seed=seed, counted=text.counted) for seed in (2, 3)
    )
    assert finite(attrs.asdict(found.quality)) == finite(attrs.asdict(quality(expected, text.counts, 3, again)))
    losses = [each.under_masks["loss"].where(text.counted[:, None], math.nan) for each in (expected, again)]
    assert found.quality.largest_spearman == pytest.approx(largest_spearman(*losses))
    assert told[-1] == (6, 6)
    about = (found.split, found.step, found.ema, found.estimator, found.target, found.method)
    assert about == ("test", 3, False, "transformer", "difficulty", "exact_k")
    assert (found.sequences, found.draws, found.seed) == (6, 3, 2)


def test_comparisons_and_studies_have_the_correlations_as_metrics(run):
    model, spec = Model.from_run(run), EvaluationSpec(sequences=6, mask_samples=3, split="test")
    text = held_out_text(model, run, "test", 6)
    found = numbers_of(model, build(model.experiment), text.tokens, text.maskable, spec, seed=2)["metrics"]
    expected = importance_of_run(model, run, spec, seed=2).quality
    names = ("importance", "frequency", "entropy")
    assert {f"{name}_correlation" for name in names} == set(found)
    for name in names:
        assert found[f"{name}_correlation"].value == pytest.approx(getattr(expected, f"{name}_spearman"))
    plain = make_run(run.parent, "no importance", "mlm")
    model = Model.from_run(plain)
    assert not numbers_of(model, build(model.experiment), text.tokens, text.maskable, spec, seed=2)["metrics"]
