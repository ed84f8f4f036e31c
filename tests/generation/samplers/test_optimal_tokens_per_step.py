"""The tokens per step `optimal`: the schedule of the model's loss by mask rate, from its measurement to its price."""

import itertools
import json
from pathlib import Path

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.diffusion.loss_by_mask_rate import LossByMaskRate, optimal_schedule
from atat_zoo.diffusion.randomness import fold
from atat_zoo.evaluation.held_out_text import text_of
from atat_zoo.evaluation.likelihood import evaluate_run
from atat_zoo.evaluation.policy import policy_nats
from atat_zoo.experiment import conflicts_with
from atat_zoo.experiment.runs.model_files import DESCRIPTION
from atat_zoo.generation.guided_denoiser import GuidedDenoiser
from atat_zoo.generation.model import Model
from atat_zoo.generation.samplers.semi_autoregressive import SemiAutoregressiveSampler
from atat_zoo.generation.samplers.tokens_per_step import OptimalTokensPerStep
from atat_zoo.registry import Zoo
from atat_zoo.system.errors import UnsavedNote, UserError
from atat_zoo.testing.sampler_checks import example_step, noisy, traced
from atat_zoo.testing.toys import FunctionDenoiser, Hashed, toy
from tests.evaluation.making import make_run

V = 5
# Few nats can be lost where f is flat, below one half.
BENT = LossByMaskRate(mask_rates=(0.5, 0.6, 0.9, 1.0), nats=(1.0, 2.0, 2.5, 9.0))


def combination(steps, **parts):
    table = {"use": "combination", "order": "random", "tokens_per_step": {"use": "optimal", "steps": steps}}
    return Zoo.load().spec("sampler", table | parts)


def bent(curve=BENT):
    return Hashed(V, loss_by_mask_rate=curve)


def masked_after(trace, n, row=0):
    """Return the numbers of masked tokens of a row before the first and after each step."""
    taken = [record["rows"].count(row) for record in trace]
    return [n, *(n - done for done in itertools.accumulate(count for count in taken if count))]


def planned(n, length, steps, closed=0, curve=BENT):
    """Return the numbers of masked tokens of the optimal schedule, by its table."""
    table, masked = optimal_schedule(curve.losses(n, length, closed), steps), [n]
    for left in range(steps, 0, -1):
        if masked[-1]:
            masked.append(int(table[min(left, masked[-1]), masked[-1]]))
    return masked


@given(st.integers(1, 24), st.integers(1, 30), st.integers(0, 99))
def test_every_row_follows_its_own_schedule_whatever_is_given(length, steps, seed):
    z = noisy(5, length, V, seed)
    made, trace = traced(combination(steps), bent(), z, fold(torch.arange(5), seed))
    for row, n in enumerate((z == V).sum(1).tolist()):
        after = masked_after(trace, n, row)
        assert after == planned(n, length, steps)
        assert made.nfe[row] == min(steps, n) == len(after) - 1
    assert made.max_nfe == min(steps, length)


def test_it_differs_from_other_schedules_and_from_that_of_a_straight_line():
    z, seeds = torch.full((1, 40), V), torch.arange(1)
    _, trace = traced(combination(4), bent(), z, seeds)
    assert masked_after(trace, 40) == [40, 38, 36, 20, 0]
    straight = LossByMaskRate(mask_rates=(0.001, 1.0), nats=(0.001, 1.0))
    _, trace = traced(combination(4), bent(straight), z, seeds)
    assert masked_after(trace, 40) == [40, 30, 20, 10, 0]


def test_masks_that_stay_count_as_masked():
    # While the second block of the first window is filled, the third is masked: f is read at 8 more masked tokens.
    sampler = SemiAutoregressiveSampler(block_size=8, block_sampler=combination(3))
    denoiser = Hashed(V, loss_by_mask_rate=BENT, window=24)
    _, trace = traced(sampler, denoiser, torch.full((1, 24), V), torch.arange(1))
    for block in range(3):
        steps = [record for record in trace if record["positions"][0] // 8 == block]
        assert masked_after(steps, 8) == planned(8, 24, 3, closed=8 * (2 - block)), block
    assert planned(8, 24, 3) != planned(8, 24, 3, closed=8) != planned(8, 24, 3, closed=16)


def test_the_rest_is_planned_for_the_steps_that_are_left():
    step = example_step(frozenset(), rows=3, length=20)
    step.number, step.denoiser = 3, bent()
    # A stopping rule or remasking may leave any number of tokens.
    step.total, step.remaining, step.closed = (
        torch.tensor([20, 14, 2]),
        torch.tensor([17, 14, 2]),
        torch.tensor([0, 6, 0]),
    )
    taken = OptimalTokensPerStep(steps=6).num_to_unmask(step).tolist()
    plans = [planned(17, 20, 3), planned(14, 20, 3, closed=6), planned(2, 20, 3)]
    assert taken == [before - after for before, after, *_ in plans]
    assert taken[2] == 1
    with pytest.raises(UserError, match="needs a grid of mask rates"):
        combination(6, remasking="planner").sample(bent(), torch.full((1, 9), V), torch.arange(1))


def test_the_expected_policy_nll_is_the_cost_of_the_schedule():
    joint = toy()
    # f of the exact denoiser, by the chain rule over all orders: entropies of the toy.
    z = joint.states
    f = [0.0]
    for k in range(1, 4):
        each = []
        for hidden in itertools.combinations(range(3), k):
            masked = torch.zeros(3, dtype=torch.bool)
            masked[list(hidden)] = True
            p = joint.marginals(z.masked_fill(masked, joint.mask_id)).gather(2, z[..., None])[..., 0]
            each.append(float((joint.p[:, None] * -p.log())[:, masked].sum()) / k)
        f.append(sum(each) / len(each))
    curve = LossByMaskRate(mask_rates=(1 / 3, 2 / 3, 1), nats=f[1:])
    denoiser = FunctionDenoiser(joint.log_probs, joint.mask_id, loss_by_mask_rate=curve)
    seeds, maskable = torch.arange(8), torch.ones_like(z, dtype=torch.bool)
    for steps in (1, 2, 3):
        nats = [policy_nats(denoiser, combination(steps), z, maskable, fold(seeds, i)).nats for i in range(600)]
        path = planned(3, 3, steps, curve=curve)
        expected = sum((k - after) * f[k] for k, after in itertools.pairwise(path))
        found = (torch.stack(nats) * joint.p).sum(1)
        error = float(found.std()) / len(found) ** 0.5
        assert float(found.mean()) == pytest.approx(expected, abs=max(5 * error, 1e-9)), steps


def test_guidance_keeps_the_loss_and_a_model_without_it_is_refused():
    assert GuidedDenoiser(bent()).loss_by_mask_rate == BENT
    unmeasured = bent(None)
    with pytest.raises(UserError, match="was not measured; run `atat eval RUN` once, or use tokens_per_step 'fixed'"):
        combination(4).sample(unmeasured, torch.full((1, 3), V), torch.arange(1))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder, "masked", "mdlm", evaluation={"sequences": 8, "mask_samples": 3, "metrics": []})
    make_run(folder, "causal")
    make_run(folder, "sets", "set_causal", sampler="strided")
    make_run(folder, "block", {"use": "block", "block_size": 4}, sampler="semi_autoregressive")
    return folder


@pytest.mark.parametrize("name", ["causal", "sets", "block"])
def test_models_without_uniform_masks_are_refused_and_not_measured(root, name):
    model = Model.from_run(root / name)
    blocks = SemiAutoregressiveSampler(block_sampler=combination(4))
    problems = [
        str(each) for one in (combination(4), blocks) for each in conflicts_with(model.experiment, {"sampler": one})
    ]
    said = f"needs the loss of uniformly masked tokens, which objective '{model.experiment.parts['objective'].name}'"
    assert sum(said in problem for problem in problems) == 2
    evaluate_run(model, root / name, model.experiment.evaluation, seed=1)
    assert model.module.loss_by_mask_rate is None
    assert "loss_by_mask_rate" not in json.loads((root / name / "model" / DESCRIPTION).read_text())


def test_an_evaluation_measures_it_once_and_it_stays_with_the_model(root, tmp_path):
    run = root / "masked"
    model = Model.from_run(run)
    assert not conflicts_with(model.experiment, {"sampler": combination(4)})
    with pytest.raises(UserError, match="was not measured"):
        model.sample(1, sampler=combination(4), length=16)
    first = evaluate_run(model, run, model.experiment.evaluation, seed=1)
    curve = model.module.loss_by_mask_rate
    assert curve.measured_on == {"sequences": 8, "masks": 3, "split": "validation", "seed": 1}
    assert curve.step == model.step == 3
    # The weights are random, so the loss is about that of the bound at every rate.
    assert curve.nats == pytest.approx([first.nelbo.nats_per_token] * len(curve.nats), rel=0.3)
    evaluate_run(model, run, model.experiment.evaluation, seed=2)
    again = Model.from_run(run)
    assert (again.module.loss_by_mask_rate, again.module.loss_by_mask_rate.measured_on["seed"]) == (curve, 1)
    assert again.sample(1, sampler=combination(4), length=16).sample.nfe.tolist() == [4]
    filled = again.infill("the [MASK:6] sea", 2, sampler=combination(4))
    assert filled.max_nfe == 4
    assert all(text.startswith("the ") and text.endswith(" sea") for text in filled.texts)
    again.save(tmp_path / "copy")
    assert Model.load(tmp_path / "copy").module.loss_by_mask_rate == curve
    attrs.evolve(again, step=4).save(tmp_path / "later")  # weights that were trained further
    assert Model.load(tmp_path / "later").module.loss_by_mask_rate is None


def test_other_text_is_not_recorded_and_a_failure_is_said(root, tmp_path, monkeypatch):
    make_run(tmp_path, "own", "mdlm")
    run = tmp_path / "own"
    model = Model.from_run(run)
    spec = model.experiment.evaluation
    evaluate_run(model, run, spec, seed=1, text=attrs.evolve(text_of(model, run, spec), corpus="a book"))
    assert model.module.loss_by_mask_rate is None
    with monkeypatch.context() as patch:
        patch.setattr("atat_zoo.generation.model.write_json", lambda *_: (_ for _ in ()).throw(UserError("full; free")))
        with pytest.warns(UnsavedNote, match="the loss by mask rate is not saved with the model: full$"):
            model.keep_loss_by_mask_rate(BENT)
    assert model.module.loss_by_mask_rate is BENT
    assert Model.from_run(run).module.loss_by_mask_rate is None


def test_one_command_measures_and_prices_it(atat, tmp_path, monkeypatch):
    make_run(tmp_path, "new", "mdlm")
    monkeypatch.chdir(tmp_path)
    sampler = "{use='combination', order='random', tokens_per_step={use='optimal', steps=5}}"
    code, out, err = atat("eval", "new", "--bound", "policy", "--sampler", sampler, "--sequences", "6", "--json")
    assert (code, err) == (0, "")
    policy = json.loads(out)["policy"]
    assert (policy["nfe"], policy["max_nfe"], policy["quantity"]) == (5, 5, "policy bound")
    assert json.loads(Path("new/model", DESCRIPTION).read_text())["loss_by_mask_rate"]["measured_on"]["sequences"] == 6


@pytest.mark.parametrize("damage", [{"mask_rates": [1, 0.5], "nats": [1, 2]}, {"nats": [1]}, 3])
def test_a_damaged_loss_is_said(root, tmp_path, damage):
    model = Model.from_run(root / "masked")
    model.save(tmp_path / "model")
    path = tmp_path / "model" / DESCRIPTION
    path.write_text(json.dumps(json.loads(path.read_text()) | {"loss_by_mask_rate": damage}))
    with pytest.raises(UserError, match=r"model\.json cannot be read"):
        Model.load(tmp_path / "model")
