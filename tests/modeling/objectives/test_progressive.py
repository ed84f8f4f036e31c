"""Progressive unmasking: whose masks a training sees, and that they read nothing that they hide."""

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_objectives import BACKBONE, CONTEXT, N, V, batch, build, part_of

from atat_zoo import UserError
from atat_zoo.data.sample_order import Repetition, golden_stride
from atat_zoo.diffusion.ngram_prior import NGramPrior
from atat_zoo.experiment import from_table
from atat_zoo.modeling.uncertainty import ConfidenceUncertainty
from tests.examples import at_most

TIMES = 4
TEXT = np.random.default_rng(3).zipf(1.6, (50, CONTEXT.length)) % V
WHOLE = attrs.evolve(CONTEXT, batch_size=N, ngram_prior=lambda: NGramPrior.count([TEXT], V))
COUNTED = BACKBONE | {"ngram_prior": 2}


@at_most(60)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 4), st.integers(0, 5))
def test_each_row_serves_steps_at_the_same_distance_and_index(size, times, spacing, first):
    repetition = Repetition(size, times, spacing)
    every = torch.arange(size) + torch.arange(2 * times * spacing)[:, None] * size
    assert len(repetition.place(every).row.unique()) >= spacing * size * 2  # no two sequences are one
    numbers = [torch.arange(size) + (first + spacing * step) * size for step in range(2 * times)]
    steps = [repetition.place(number) for number in numbers]
    assert all(torch.equal(repetition.slot(number), repetition.slot(numbers[0])) for number in numbers)
    rows, stages = (torch.stack([each[part] for each in steps]) for part in (0, 1))
    assert torch.equal(rows % size, torch.arange(size).expand_as(rows))
    # A row that begins is used in all stages, and the next one begins after it.
    assert torch.equal((stages[1:] == 0), rows[1:] != rows[:-1])
    assert torch.equal(stages[1:], (stages[:-1] + 1) % times)
    assert torch.equal(rows[1:], torch.where(stages[1:] == 0, rows[:-1] + repetition.slots, rows[:-1]))
    # Each step has all stages about equally often, and each stage all of its times.
    for place in steps:
        assert max(place.stage.bincount(minlength=times)) - min(place.stage.bincount(minlength=times)) <= 1
        assert len({*zip(place.stage.tolist(), place.stratum.tolist(), strict=True)}) == size
    assert {*repetition.slot(torch.arange(repetition.slots)).tolist()} == {*range(repetition.slots)}
    assert repetition.place(17) == tuple(int(each) for each in repetition.place(torch.tensor(17)))


@given(st.integers(1, 99), st.integers(0, 10**9))
def test_rows_that_serve_once_keep_their_order(size, n):
    place = Repetition(size).place(n)
    assert place == (n, 0, n % size * golden_stride(size) % size)


def training(policy="uncertainty", counts=False, spacing=1, **parts):
    backbone = {"backbone": COUNTED} if counts else {}
    masking = {"use": "progressive", "steps_per_sequence": TIMES, "spacing": spacing, "policy": policy}
    return build({"use": "mdlm", "weight": "simple"}, context=WHOLE, masking=masking, **backbone, **parts)


def step_of(module, number, micro_batches=1):
    """Carry out a step on the texts that the stream would yield; return the masks, and the difficulties."""
    whole = batch(number)
    row = module.repetition.place(whole.index).row
    # The text of a row, whatever the step.
    tokens = torch.stack(
        [torch.randint(0, V, (CONTEXT.length,), generator=torch.Generator().manual_seed(n)) for n in row.tolist()]
    )
    whole = attrs.evolve(whole, tokens=tokens)
    module.begin_step()
    found = []
    for rows in torch.arange(N).chunk(micro_batches):
        found.append(module.loss(part_of(whole, slice(int(rows[0]), int(rows[-1]) + 1))))
    module.end_step(lambda total: None, 0.1)
    return whole, {name: torch.cat([each[name] for each in found]) for name in ("masked", "token_loss", "rates")}


@pytest.mark.parametrize("spacing", [1, 3])
@pytest.mark.parametrize("policy", ["uncertainty", "random"])
def test_a_text_is_unmasked_from_step_to_step_at_the_rates_of_its_intervals(policy, spacing):
    module, last = training(policy, spacing=spacing), {}
    for number in range((2 * TIMES + 1) * spacing):
        whole, found = step_of(module, number)
        place = module.repetition.place(whole.index)
        rate = found["rates"] * TIMES
        assert ((rate > TIMES - 1 - place.stage) & (rate <= TIMES - place.stage + 1e-6)).all()
        assert ((found["masked"].sum(1) - found["rates"] * whole.maskable.sum(1)).abs() < 1).all()
        if (before := last.get(number % spacing)) is not None:
            same = (before[0] == place.row)[:, None]
            assert not (same & found["masked"] & ~before[1]).any()
            # What the row had before says nothing of a sequence that begins.
            fresh = training(policy, spacing=spacing).masking.draw_mask(found["rates"], whole.maskable, whole.index)
            assert torch.equal(found["masked"][~same[:, 0]], fresh[~same[:, 0]])
        last[number % spacing] = place.row, found["masked"]


@pytest.mark.parametrize(("policy", "counts"), [("uncertainty", False), ("uncertainty", True), ("importance", False)])
def test_the_hardest_tokens_stay_masked_as_the_model_finds_them_without_knowing_them(policy, counts):
    estimator = {"estimator": {"use": "transformer", "layers": 1, "width": 8, "heads": 2, "reads": "z"}}
    module = training(policy, counts, **(estimator if policy == "importance" else {})).train()
    whole, found = step_of(module, TIMES)
    z = torch.where(found["masked"], V, whole.tokens)
    with torch.no_grad():
        module.eval()
        if policy == "importance":
            expected = module.importance(z, whole.maskable, None)
        else:  # counts of the token itself are left out of the loss only
            log_probs = module.denoiser()(z, None, found["masked"])
            own = ConfidenceUncertainty()(log_probs)
            expected = torch.zeros(z.shape).masked_scatter(found["masked"], own)
    carried = module.masking.carried[:, 1:].float()
    torch.testing.assert_close(carried, torch.where(found["masked"], 1 + expected, 0.0))
    assert expected[found["masked"]].std() > 1e-3
    other, later = step_of(module.train(), TIMES + 1)
    going_on = module.repetition.place(other.index).stage > 0
    for row in going_on.nonzero()[:, 0]:
        revealed = found["masked"][row] & ~later["masked"][row]
        if revealed.any() and later["masked"][row].any():
            assert expected[row][revealed].max() <= expected[row][later["masked"][row]].min() + 1e-6


def test_the_loss_leaves_the_token_itself_out_of_the_counts():
    """As under any other masks; the policy alone reads all counts."""
    module = training(counts=True).train()
    whole, found = step_of(module, 0)
    plain = build({"use": "mdlm", "weight": "simple"}, context=WHOLE, backbone=COUNTED).train()
    noised = plain.noised(whole, found["masked"], found["rates"], found["masked"].float(), found["rates"])
    _, expected = plain.weighted_loss(plain.masked_hidden_states(noised), noised, noised.p, whole)
    expected = expected["cross_entropy"]
    torch.testing.assert_close(found["token_loss"], expected)
    plain.eval()
    with torch.no_grad():
        _, held_out = plain.weighted_loss(plain.masked_hidden_states(noised), noised, noised.p, whole)
    assert not torch.allclose(held_out["cross_entropy"], expected)


@pytest.mark.parametrize("policy", ["uncertainty", "random"])
def test_micro_batches_and_a_resume_change_nothing(policy):
    whole, parts = training(policy, spacing=2), training(policy, spacing=2)
    for number in range(2 * TIMES + 2):
        of_whole, of_parts = step_of(whole, number)[1], step_of(parts, number, 3)[1]
        assert torch.equal(of_whole["masked"], of_parts["masked"])
        resumed = training(policy, spacing=2)
        resumed.load_state_dict(parts.state_dict())
        parts = resumed


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"masking": {"use": "progressive", "policy": "importance"}}, r"needs the importance of masked tokens"),
        (
            {"masking": {"use": "progressive", "spacing": 9}, "train": {"steps": 9}},
            r"masking\.spacing: 9 is not less than train\.steps = 9, so no sequence is used twice",
        ),
        ({"mask_drawing": "systematic"}, r"mask_drawing: masking 'progressive' draws its masks itself"),
        ({"objective": {"use": "mdlm", "correction": "horvitz_thompson"}}, r"has no masking probabilities"),
        (
            {"masking": {"use": "progressive", "policy": "random", "uncertainty": "entropy"}},
            r"masking\.uncertainty: 'entropy' has no effect",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tables, said):
    table = {"name": "a", "objective": "mdlm", "masking": "progressive", "estimator": "frequency"} | tables
    with pytest.raises(UserError, match=said):
        from_table(table, where="here")
