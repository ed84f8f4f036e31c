"""The n-gram model compared with a model: the same tokens and masks, and only what the model may see."""

import itertools
import math
import re
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.cli.compare_command import notes
from atat_zoo.cli.evaluate_command import lines
from atat_zoo.data.build import build
from atat_zoo.data.sequences import held_out_sequences
from atat_zoo.diffusion import ngram_prior
from atat_zoo.diffusion.likelihood_bounds import (
    all_masks,
    average,
    block_masks,
    enumerate_masks,
    exact_k,
    from_denoiser,
)
from atat_zoo.diffusion.ngram_prior import NGramPrior, load_ngram_prior
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.diffusion.statistics import ratio
from atat_zoo.evaluation.likelihood import evaluate_run, measure
from atat_zoo.evaluation.ngram_likelihood import (
    AFTER,
    BETWEEN,
    NGramPriorNats,
    figure,
    measure_ngram_prior,
    scores_after,
    scores_between,
)
from atat_zoo.evaluation.run_comparison import compare, measure_runs
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.generation.model import Model
from atat_zoo.modeling.noise import LinearNoise
from atat_zoo.system.errors import OmissionNote
from tests.evaluation.making import make_run

V, L = 3, 4
TABLE = NGramPrior.count([np.array([[0, 1, 0, 1, 2], [2, 1, 1, 0, 0]])], V)
TEXTS = torch.tensor(list(itertools.product(range(V), repeat=L)))


def denoise(z, t, where):
    """The table as a denoiser: log-probabilities [N, V] from the neighbours of each position."""
    found = []
    for row, i in where.nonzero().tolist():
        one = int(z[row, i - 1]) if i else V
        other = int(z[row, i + 1]) if i < z.shape[1] - 1 else V
        found.append([TABLE.prob_between(*(np.array([each]) for each in (x, one, other)))[0] for x in range(V)])
    return torch.tensor(found, dtype=torch.float64).view(-1, V).log()


@pytest.mark.slow
def test_the_bound_is_that_of_the_table_as_a_denoiser():
    found = average(scores_between(TABLE, V), TEXTS, all_masks(TEXTS), V)["nats"].nelbo
    expected = enumerate_masks(from_denoiser(denoise), TEXTS, mask_id=V)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_the_first_tokens_are_predicted_from_what_there_is():
    p = TABLE.unigram_prob(np.array([2]))[0] * TABLE.prob_given_neighbour(np.array([1]), np.array([2]))[0]
    p *= TABLE.prob_after(*np.array([[1], [2], [1]]))[0] * TABLE.prob_after(*np.array([[0], [1], [1]]))[0]
    x = torch.tensor([[2, 1, 1, 0]])
    assert float(scores_after(TABLE, V)(x, None, x >= 0, x)["nats"].sum()) == pytest.approx(-math.log(p))


@given(st.integers(0, 2**L - 1), st.integers(0, len(TEXTS) - 1), st.sampled_from([2, 4]))
def test_a_model_of_blocks_sees_the_block_before_and_not_the_one_after(bits, number, size):
    x, masked = TEXTS[number : number + 1], torch.tensor([[bool(bits >> i & 1) for i in range(L)]])
    z = torch.where(masked, V, x)
    found = scores_between(TABLE, V, size)(z, None, masked, x)["nats"].tolist()
    expected = []
    for i in masked[0].nonzero()[:, 0].tolist():
        begin = i // size * size  # what the model sees: the clean text before, then its own block
        seen = [V, *x[0, :begin].tolist(), *z[0, begin : begin + size].tolist(), V]
        p = TABLE.prob_between(*(np.array([each]) for each in (int(x[0, i]), seen[i], seen[i + 2])))[0]
        expected.append(-math.log(p))
    assert found == pytest.approx(expected)
    if size == L:
        assert found == scores_between(TABLE, V)(z, None, masked, x)["nats"].tolist()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("tables")
    block, pad = {"use": "block", "block_size": 4}, {"remainder": "pad"}
    made = {name: make_run(root, name, name, data=pad) for name in ("mdlm", "autoregressive")}
    return made | {"block": make_run(root, "block", block, sampler="left_to_right", data=pad)}


def evaluated(run):
    model = Model.from_run(run)
    spec = model.experiment.evaluation
    return model, spec, evaluate_run(model, run, spec, seed=3)


@pytest.mark.parametrize("name", ["mdlm", "block", "autoregressive"])
def test_it_is_measured_on_the_tokens_and_masks_of_the_bound(runs, name):
    model, spec, found = evaluated(runs[name])
    data = build(model.experiment)
    x, there, _ = held_out_sequences(data, "validation", spec.sequences)
    table, mask_id = load_ngram_prior(data), model.context.mask_id
    keys, hidden = sequence_keys(3, "evaluation", torch.arange(len(x))), torch.where(there, x, mask_id)
    if name == "autoregressive":
        each = scores_after(table, mask_id)(hidden, None, there, hidden)["nats"]
        nats = torch.zeros(x.shape, dtype=torch.float64).masked_scatter(there, each).sum(1)
    else:
        masks = exact_k(there, keys, spec.mask_samples, time_at=LinearNoise().time_at)
        masks = masks if name == "mdlm" else block_masks(there, keys, spec.mask_samples, 4)
        scores = scores_between(table, mask_id, None if name == "mdlm" else 4)
        nats = average(scores, hidden, masks, mask_id)["nats"].nelbo
    mine = measure(model.module, x, there, spec, seed=3).contribution["nelbo"].sum(1)
    reads = AFTER if name == "autoregressive" else BETWEEN
    expected = figure(NGramPriorNats(reads=reads, counted=table.sequences, nats=nats), mine, there.sum(1))
    assert found.ngram_prior == expected
    assert found.nelbo.nats_per_token - expected.nats_per_token == pytest.approx(expected.difference)
    # Numbers of its own: far below those of a model with random weights, in every JSON and on every screen.
    assert expected.percent[0] > 100
    kept = found.to_table()["ngram_prior"]
    assert (kept["value"], kept["percent"]) == (expected.value, expected.percent[0])
    said = "\n".join(lines(found))
    factorisation = next(iter(found.bounds.values())).factorisation
    assert f"n-gram model, perplexity ({factorisation})  {expected.value:.1f} ± {expected.stderr:.1f}; " in re.sub(
        "  +", "  ", said
    )
    assert f"the model's is {expected.verdict}" in said


def test_padding_is_not_read_and_a_sequence_has_the_masks_of_its_number(runs):
    module = SimpleNamespace(
        denoiser=lambda: SimpleNamespace(mask_id=258, block_size=None),
        masks=lambda maskable, keys, draws, bound: bound.masks(maskable, keys, draws, LinearNoise()),
    )
    data, spec = build(Model.from_run(runs["mdlm"]).experiment), EvaluationSpec(mask_samples=3, batch_size=2)
    x = torch.randint(97, 122, (5, 6), generator=torch.Generator().manual_seed(0))
    there, some = torch.arange(6) < torch.tensor([[6], [2], [4], [6], [3]]), torch.tensor([1, 2, 4])
    for exact in (False, True):
        settings = {"exact": exact, "seed": 0}
        every = measure_ngram_prior(module, data, x, there, spec, **settings).nats
        assert torch.equal(
            measure_ngram_prior(module, data, torch.where(there, x, 7), there, spec, **settings).nats, every
        )
        found = measure_ngram_prior(module, data, x[some], there[some], spec, **settings, rows=some).nats
        assert torch.equal(found, every[some])


@given(st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.1, 9), st.integers(1, 9)), min_size=2, max_size=9))
def test_the_difference_is_a_paired_ratio_of_sums(rows):
    model, table, count = (torch.tensor(each, dtype=torch.float64) for each in zip(*rows, strict=True))
    found = figure(NGramPriorNats(reads=BETWEEN, counted=1, nats=table), model, count)
    assert (found.difference, found.difference_stderr) == ratio(model - table, count)
    assert found.percent[0] == pytest.approx(100 * (math.exp(found.difference) - 1))
    assert found.verdict.endswith("lower" if found.difference < 0 else "higher")


def test_a_comparison_has_it_for_every_run(runs):
    paths = [runs["mdlm"], runs["autoregressive"], runs["block"]]
    _, spec, found = evaluated(runs["mdlm"])
    comparison = compare(measure_runs(paths, spec, seed=3), spec, seed=3)
    assert comparison.runs[0].beside() == found.ngram_prior
    tables = [row["ngram_prior"] for row in comparison.to_table()["runs"]]
    assert [table["reads"] for table in tables] == [BETWEEN, AFTER, BETWEEN]
    said = [line for line in notes(comparison) if line.startswith("n-gram model, perplexity")]
    assert len(said) == 3
    assert f"{tables[0]['value']:.2f} ± {tables[0]['stderr']:.2f}; mdlm is {found.ngram_prior.verdict}." in said[0]


def test_without_a_table_the_rest_is_as_it_was(runs, monkeypatch):
    _, _, found = evaluated(runs["mdlm"])
    monkeypatch.setattr(ngram_prior, "_MOST", 10)
    with pytest.warns(OmissionNote, match=r"^the n-gram model was not evaluated: .* counts n-grams in at most 10"):
        _, _, without = evaluated(runs["mdlm"])
    assert without == attrs.evolve(found, ngram_prior=None)
    assert not any("n-gram model" in line for line in lines(without))
