"""`sets` and `strided`: the likelihood is exact for every map of steps, and a written text costs what it says."""

import itertools
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from small_objectives import BACKBONE, COUNTED, DEEP, L, V, batch, build, full_batch, sets_of

from atat_zoo import UserError, Zoo
from atat_zoo.diffusion.likelihood_bounds import uniform_order
from atat_zoo.diffusion.randomness import fold, sequence_keys, uniform
from atat_zoo.diffusion.set_inputs import num_extra_content_tokens, token_roles
from atat_zoo.evaluation.policy import policy_nats
from atat_zoo.experiment import from_table
from atat_zoo.modeling.bounds import ExactKBound
from atat_zoo.modeling.objectives import set_causal_module
from atat_zoo.modeling.objectives.denoising import importance_loss
from atat_zoo.registry import Context
from tests.examples import at_most

ZOO = Zoo.load()
RANDOM = ZOO.spec("position_sets", {"use": "random", "sets": None})
MAPS = [
    "strided",
    {"use": "strided", "stride": 3, "random_offset": True},
    "left_to_right",
    "blocks",
    "at_once",
    "random",
]
MAPS += ["by_importance", {"use": "random", "sets": None}, {"use": "staggered", "sets": 3, "window": 0.5}]
MAPS += [
    {
        "use": "mixture",
        "components": [{"use": "strided", "stride": 2}, {"use": "random", "sets": 3}],
        "weights": [1.0, 3.0],
    }
]
FEW = torch.arange(3)
ASCENDING = [sets for sets in MAPS if ZOO.spec("position_sets", sets).ascending]


@pytest.mark.parametrize(
    ("objective", "form", "tokens"),
    [
        ({"use": "strided_causal", "stride": 4}, "text", 9),
        ({"use": "strided_causal", "stride": 4}, "chat", 17),
        ("set_causal", "text", 9),
        ("set_causal", "chat", 17),
        ({"use": "set_causal", "subset_share": 0.5}, "text", 17),
    ],
)
def test_a_training_step_reads_a_text_once_and_dialogues_or_subsets_twice(objective, form, tokens):
    experiment = SimpleNamespace(
        train=SimpleNamespace(batch_size=4),
        data=SimpleNamespace(length=8, format=form),
        parts={"position_sets": ZOO.spec("position_sets", "strided")},
    )
    assert ZOO.spec("objective", objective).network_input(experiment) == (4, tokens)


def text(length, v=V, rows=3, seed=0):
    return torch.randint(0, v, (rows, length), generator=torch.Generator().manual_seed(seed))


def nats(module, x, steps):
    with torch.no_grad():
        return module.cross_entropy_in_steps(x, steps.expand(x.shape))


@pytest.mark.parametrize("counts", [False, True])
def test_the_likelihoods_add_up_to_one_for_every_map_of_three_positions(counts):
    module = sets_of(3, 2, counts=counts)
    x = torch.cartesian_prod(*[torch.arange(2)] * 3)
    for steps in map(torch.tensor, itertools.product(range(-1, 3), repeat=3)):
        of_given = {}
        for row, p in zip(x, (-nats(module, x, steps).sum(1)).exp().tolist(), strict=True):
            of_given.setdefault(tuple(row[steps < 0].tolist()), []).append(p)
        for what, of_free in of_given.items():
            assert sum(of_free) == pytest.approx(1, abs=1e-12), (steps, what)
        if (steps >= 0).all():
            assert max(of_free) > 0.2, "an even distribution would add up by itself"


# Maps without empty sets.
turn_maps = st.lists(st.integers(-1, 4), min_size=1, max_size=9).map(
    lambda drawn: [sorted({-1, *drawn}).index(step) - 1 for step in drawn]
)


@at_most(15)
@given(steps=turn_maps, seed=st.integers(0, 99), counts=st.booleans(), data=st.data())
def test_a_token_is_seen_by_all_later_turns_and_by_no_other(steps, seed, counts, data):
    length, steps = len(steps), torch.tensor(steps)
    position = data.draw(st.integers(0, length - 1))
    module, x = sets_of(length, counts=counts), text(length, seed=seed)
    changed = x.clone()
    changed[:, position] = (x[:, position] + data.draw(st.integers(1, V - 1))) % V
    one, other = nats(module, x, steps), nats(module, changed, steps)
    blind = steps <= steps[position]
    blind[position] = steps[position] < 0  # itself is another token, if it is predicted
    torch.testing.assert_close(one[:, blind], other[:, blind], rtol=1e-12, atol=1e-12)
    assert (one[:, ~blind] != other[:, ~blind]).all()


@pytest.mark.parametrize("sets", ASCENDING, ids=str)
@pytest.mark.parametrize(
    "given_",
    [
        {"prompt_share": 1.0, "gap_share": 0.0},
        {"prompt_share": 0.0, "gap_share": 1.0},
        {"prompt_share": 0, "gap_share": 0},
    ],
)
def test_ascending_sets_need_no_carrier_but_those_of_the_text(sets, given_):
    """Then one pass over the text is the pass with all inputs."""
    module = sets_of(L, sets=sets, **given_)
    one = batch(3, padded=False)
    steps, x = module.step_indices(one), one.tokens
    with torch.no_grad():
        short = module.inputs_in_steps(x, steps, ascending=True).hidden[steps >= 0]
        torch.testing.assert_close(short, module.inputs_in_steps(x, steps).hidden[steps >= 0])


def test_around_a_random_subset_every_token_that_is_given_is_read():
    module, one = sets_of(L, prompt_share=0, gap_share=0, subset_share=1.0), batch(3, padded=False)
    expected = nats(module, one.tokens, module.step_indices(one))
    torch.testing.assert_close(module.loss(one)["token_loss"], expected)


def test_only_the_rows_that_need_it_are_read_twice(monkeypatch):
    module, x, read = sets_of(12), text(12, rows=4), []
    strided, order = torch.arange(12) % 4, torch.randperm(12, generator=torch.Generator().manual_seed(1))
    steps = torch.stack([order, strided, order.flip(0), strided])
    each = torch.cat([nats(module, x[row : row + 1], steps[row : row + 1]) for row in range(4)])
    forward = module.backbone.forward
    monkeypatch.setattr(module.backbone, "forward", lambda z, **rest: read.append(z.shape) or forward(z, **rest))
    torch.testing.assert_close(nats(module, x, steps), each, rtol=1e-12, atol=1e-12)
    # Positions 0 … L, and in an order of chance up to eleven tokens again, in multiples of eight.
    assert [tuple(shape) for shape in read] == [(2, 13), (2, 25)]


def test_carriers_come_in_eights_and_no_more_than_there_are_positions():
    of = token_roles(text(21), torch.zeros(3, 21, dtype=torch.int64), V)
    needed = {0: 0, 1: 1, 2: 8, 8: 8, 9: 16, 16: 16, 17: 21, 21: 21}
    assert {most: num_extra_content_tokens(torch.tensor([0, most]), of) for most in needed} == needed


def test_where_all_is_given_or_comes_at_once_no_carrier_is_counted(monkeypatch):
    """The host would wait for it, at every evaluation."""
    monkeypatch.setattr(set_causal_module, "to_host", None)
    module, z = sets_of(6), text(6)
    z[:, ::2] = V
    assert module.head_inputs(z, None).hidden.shape == (3, 6, 16)


@at_most(15)
@given(steps=turn_maps, counts=st.booleans(), cached=st.booleans(), seed=st.integers(0, 99), padding=st.integers(0, 3))
# The last step reads and predicts two, of two rows.
@example(steps=[0, 1, 1, 2, 2], counts=False, cached=True, seed=0, padding=0)
@example(steps=[0, 1, 1, 2, 2], counts=False, cached=False, seed=0, padding=0)
@example(steps=[-1, 0, 1, 1], counts=True, cached=True, seed=0, padding=2)
@example(steps=[-1, 0, 1, 1], counts=True, cached=False, seed=0, padding=2)
def test_a_text_that_is_written_costs_what_one_pass_says(steps, counts, cached, seed, padding):
    """With keys and values cached or not, whatever the order and the padding; not all rows have as many steps."""
    length = len(steps)
    module, x = sets_of(length, counts=counts), text(length, seed=seed)
    module.backbone.takes_cache = cached
    steps = torch.tensor(steps).expand(3, -1).clone()
    steps[1], steps[2] = steps[1].clamp(max=1), steps[2].flip(0)
    expected = F.pad(nats(module, x, steps), (0, padding))
    # The padding, with the id V + 1, is given, too.
    x, steps, length = F.pad(x, (0, padding), value=V + 1), F.pad(steps, (0, padding), value=-1), length + padding
    z = torch.where(steps < 0, x, V)
    with torch.no_grad():
        denoiser, found = module.denoiser().with_padding().begin_generation(z), torch.zeros_like(expected)
        for step in range(int(steps.max()) + 1):
            rows = (steps == step).any(1).nonzero()[:, 0]
            if not len(rows):
                continue
            where = steps[rows] == step
            # Whatever else is asked for changes nothing.
            asked = where | ((z[rows] == V) & (torch.arange(length) % 2 == seed % 2))
            of_rows = denoiser.select(rows).select(torch.arange(len(rows)))
            log_probs = of_rows(z[rows], None, asked)
            of_turn = torch.zeros(*asked.shape, V, dtype=torch.float64).masked_scatter(asked[..., None], log_probs)
            own = of_turn.gather(2, x[rows].clamp(max=V - 1)[..., None])[..., 0]
            found[rows] += torch.where(where, -own, 0)
            z = torch.where(steps == step, x, z)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sets", MAPS, ids=str)
@at_most(15)
@given(data=st.data(), length=st.integers(1, 12))
def test_turns_are_a_function_of_the_row_and_divide_the_free_positions(sets, data, length):
    part = ZOO.spec("position_sets", sets)
    free = torch.tensor(
        data.draw(st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=1, max_size=4))
    )
    keys = sequence_keys(data.draw(st.integers(0, 99)), "x", torch.arange(len(free)))
    steps = part.step_indices(free, keys, torch.zeros_like)
    assert steps.dtype == torch.int64
    assert torch.equal(steps >= 0, free)
    assert int(steps.min()) >= -1
    for row in range(len(free)):
        assert torch.equal(part.step_indices(free[row : row + 1], keys[row : row + 1], torch.zeros_like)[0], steps[row])
        there = steps[row][free[row]].unique()
        assert torch.equal(there, torch.arange(len(there)))  # no set is empty
    if part.deterministic:
        assert torch.equal(part.step_indices(free, keys + 1, torch.zeros_like), steps)


def test_the_sets_of_a_bound_are_not_drawn_by_what_its_masks_are_drawn_by():
    """In a random order both were the same order: the two bounds of a text were no two draws."""
    module, drawn = sets_of(8, sets={"use": "random", "sets": None}), []
    keys, maskable = sequence_keys(3, "evaluation", torch.arange(300)), torch.ones(300, 8, dtype=torch.bool)
    module.sets = SimpleNamespace(
        deterministic=False,
        step_indices=lambda free, keys, score: drawn.append(RANDOM.step_indices(free, keys, score)) or drawn[-1],
    )
    module.own_bounds(text(8, rows=300), maskable, keys, 2)
    for number, steps in enumerate(drawn):
        theirs = uniform_order(maskable, fold(keys, number)).double()
        apart = ((steps - 3.5) * (theirs - 3.5)).sum(1) / 42  # the correlation of two orders of eight
        assert abs(float(apart.mean())) < 4 / (7 * 300) ** 0.5
    assert not torch.equal(*drawn)


READS_Z = {"use": "transformer", "layers": 1, "width": 8, "heads": 2, "reads": "z"}


def weighed(length=8, curriculum="none", prompts=0.2, gaps=0.2, **sets):
    """Sets by the importance of an estimator that reads z."""
    context = Context(vocabulary_size=V, length=length, width=16, steps=100, seed=5)
    parts = {"estimator": READS_Z, "curriculum": curriculum, "position_sets": {"use": "by_importance", **sets}}
    objective = {"use": "set_causal", "prompt_share": prompts, "gap_share": gaps}
    return build(objective, context=context, backbone=BACKBONE, **parts)


@at_most(15)
@given(data=st.data(), sets=st.integers(2, 9), first=st.sampled_from(["easy", "hard"]), share=st.floats(0.05, 0.95))
def test_turns_by_importance_read_only_what_is_visible_when_they_come(data, sets, first, share):
    module = weighed(sets=sets, first=first, random_share=share)
    x, free, keys = text(8), torch.tensor([[True] * 8, [False] * 2 + [True] * 6, [True] * 7 + [False]]), torch.arange(3)
    steps, position = module.step_indices_of(x, free, free, keys), data.draw(st.integers(0, 7))
    changed = x.clone()
    changed[:, position] = (x[:, position] + data.draw(st.integers(1, V - 1))) % V
    later = module.step_indices_of(changed, free, free, keys)
    known = steps <= steps[:, position : position + 1]
    assert torch.equal(torch.where(known, later, -1), torch.where(known, steps, -1))


def test_the_curriculum_weighs_what_is_masked_before_a_turn_and_the_estimator_learns_of_it():
    module, one = weighed(6, curriculum={"use": "three_stage", "warmup_steps": 0}, sets=3), batch(1)
    before, coming = module.state_before_step(one, module.step_indices(one))
    assert not (coming & ~before.masked).any()
    target, told = module.target, []
    module.target = lambda noised, loss: told.append((noised, loss)) or target(noised, loss)
    found = module.loss(one)
    ((noised, loss),) = told  # of the tokens that come next alone
    assert coming.any()
    assert torch.equal(noised.masked, coming)
    assert torch.equal(noised.p, coming.float())
    torch.testing.assert_close(loss, torch.where(coming, found["token_loss"], 0))
    weight = module.curriculum.weights(before, found["importance"], one.progress)
    weight = torch.where(before.masked, weight, 1.0)
    loss = float((found["token_loss"] * weight).sum() / one.maskable.sum())
    assert float(found["diffusion_loss"]) == pytest.approx(loss, rel=1e-5)
    assert float(found["loss"].detach()) == pytest.approx(loss + 0.1 * float(found["importance_loss"]), rel=1e-5)
    assert (weight != 1).any()


def test_the_sampler_costs_the_likelihood_of_its_sets_with_a_gap():
    module, x = sets_of(12), text(12)
    free = torch.tensor([False] * 3 + [True] * 7 + [False] * 2).expand(3, -1)
    with torch.no_grad():
        found = policy_nats(module.denoiser(), ZOO.spec("sampler", {"use": "strided", "stride": 4}), x, free, FEW)
    assert int(found.nfe.max()) == 4
    steps = ZOO.spec("position_sets", {"use": "strided", "stride": 4}).step_indices(free, FEW, torch.zeros_like)
    torch.testing.assert_close(found.nats, nats(module, x, steps).sum(1).double())


def test_what_is_masked_again_is_predicted_from_what_is_visible():
    module = sets_of(8)
    z = torch.full((2, 8), V)
    z[:, 0] = 1
    sample = ZOO.spec("sampler", {"use": "remdm_cap", "steps": 6}).sample(module.denoiser(), z, torch.arange(2))
    assert (sample.tokens < V).all()
    assert (sample.tokens[:, 0] == 1).all()


# One order alone


@at_most(15)
@given(data=st.data(), length=st.integers(1, 11))
def test_strided_is_sets_of_one_kind_and_its_perplexity_their_likelihood(data, length):
    stride, x = data.draw(st.integers(1, length + 3)), text(length)
    sets = sets_of(length, sets={"use": "strided", "stride": stride}, counts=data.draw(st.booleans()))
    strided = build(
        {"use": "strided_causal", "stride": stride}, context=sets.context, backbone=COUNTED if sets.prior else DEEP
    )
    strided.double().eval().load_state_dict(sets.state_dict(), strict=False)
    free = torch.arange(length) >= data.draw(st.integers(0, length - 1))  # behind a prompt, too
    steps = torch.where(free, (free.cumsum(0) - 1) % stride, -1)
    with torch.no_grad():
        found = strided.bound(x, free.expand(x.shape), torch.arange(3), 5, ExactKBound())
    assert found.keys() == {"nelbo"}
    torch.testing.assert_close(found["nelbo"].contribution, nats(sets, x, steps))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective": {"use": "strided_causal", "stride": 33}}, "objective.stride: 33 is more than data.length = 32"),
        (
            {"sampler": "ancestral"},
            "sampler: objective 'strided_causal' learns one order, in 8 steps, but the sampler 'ancestral'",
        ),
        ({"sampler": {"use": "strided", "stride": 4}}, 'set it to {use = "strided", stride = 8}'),
        ({"sampler": {"use": "strided", "stride": 8, "offset": "random"}}, "learns one order, in 8 steps"),
        ({"backbone": {"time_conditioning": True}}, "backbone.time_conditioning: objective 'strided_causal'"),
        ({"evaluation": {"bound": {"use": "continuous_t"}}}, "evaluation.bound: 'continuous_t' draws masks by"),
    ],
)
def test_what_does_not_fit_strided_is_refused_in_a_sentence(changes, said):
    own = {"use": "strided_causal", "stride": 8}
    table = {"name": "x", "objective": own, "sampler": own | {"use": "strided"}, "data": {"length": 32}}
    assert from_table(table).parts["objective"].exact
    with pytest.raises(UserError) as caught:
        from_table(table | changes)
    assert any(said in line for line in str(caught.value).splitlines())


# What is drawn


def shares(found):
    """The share of each distinct row, by its numbers."""
    rows, counts = found.long().unique(dim=0, return_counts=True)
    return {tuple(row.tolist()): count / len(found) for row, count in zip(rows, counts.tolist(), strict=True)}


def drawn(what, rows=6000, length=3):
    module = sets_of(length, **{"prompt_share": 0, "gap_share": 0, what: 1.0})
    maskable = torch.ones(rows, length, dtype=torch.bool)
    return shares(~module.given(maskable, sequence_keys(0, "sets", torch.arange(rows))))


@pytest.mark.parametrize(
    "objective", [{"use": "strided_causal", "stride": 4}, {"use": "set_causal", "prompt_share": 0.5, "gap_share": 0.5}]
)
def test_every_free_token_has_weight_one(objective):
    module, one = build(objective), batch(1)
    found = module.loss(one)
    assert not (found["masked"] & ~one.maskable).any()
    assert objective["use"] == "set_causal" or torch.equal(found["masked"], one.maskable)
    assert not found["token_loss"][~found["masked"]].any()
    assert float(found["loss"].detach()) == pytest.approx(float(found["token_loss"].sum() / one.maskable.sum()))


def test_rows_are_given_tokens_by_their_shares():
    module, maskable = (
        sets_of(16, prompt_share=0.3, gap_share=0.3, subset_share=0.2),
        torch.ones(4000, 16, dtype=torch.bool),
    )
    maskable[:, -2:] = False
    free = maskable & ~module.given(maskable, sequence_keys(0, "sets", torch.arange(4000)))
    assert free.any(1).all()
    number, last = free.sum(1), 15 - free.flip(1).int().argmax(1)
    together = last - free.int().argmax(1) + 1 == number
    assert float((number == 14).float().mean()) == pytest.approx(0.2 + 0.8 / 14, abs=0.03)
    # A gap may reach to the end, and a subset be one piece, so there are some more of them.
    assert 0.27 < float(((number < 14) & together & (last == 13)).float().mean()) < 0.42
    assert 0.13 < float((~together).float().mean()) < 0.2


def test_gaps_have_every_length_and_place():
    """Lengths are alike, and so are the places of a length, the end of the text among them."""
    expected = {}
    for length, start in [(n, i) for n in (1, 2, 3) for i in range(4 - n)]:
        expected[tuple(int(start <= i < start + length) for i in range(3))] = 1 / 3 / (4 - length)
    assert drawn("gap_share") == {gap: pytest.approx(share, abs=0.03) for gap, share in expected.items()}


def test_subsets_have_every_size_and_place():
    """Sizes are alike, and so are the subsets of a size: which positions they are has a key of its own."""
    sizes = {1: 1 / 9, 2: 1 / 9, 3: 1 / 3}
    expected = {free: sizes[sum(free)] for free in itertools.product((0, 1), repeat=3) if any(free)}
    assert drawn("subset_share") == {free: pytest.approx(share, abs=0.03) for free, share in expected.items()}
    keys, maskable = sequence_keys(0, "sets", torch.arange(50)), torch.ones(50, 9, dtype=torch.bool)
    told = sets_of(9, prompt_share=0, gap_share=0, subset_share=1.0).given(maskable, keys)
    # Keys from 0 on are those of the steps of the free positions.
    ranks = uniform(fold(keys, -3), 9, torch.float64).argsort(1, descending=True).argsort(1)
    assert torch.equal(told, ranks >= (~told).sum(1, keepdim=True))


def test_every_row_has_an_order_of_its_own_and_every_turn_of_it_is_drawn():
    """Also the last one; and which it is says nothing of the order."""
    module = weighed(4, sets=4, prompts=0, gaps=0)
    module.sets = ZOO.spec("position_sets", {"use": "random", "sets": None})
    one = full_batch(torch.zeros(6000, 4, dtype=torch.int64))
    steps = module.step_indices(one)
    assert shares(steps) == {order: pytest.approx(1 / 24, abs=0.015) for order in itertools.permutations(range(4))}
    before, coming = module.state_before_step(one, steps)
    step = steps[coming]
    both = torch.stack([step, coming.int().argmax(1)], 1)  # the step that is drawn, and the position that comes then
    assert shares(both) == {pair: pytest.approx(1 / 16, abs=0.02) for pair in itertools.product(range(4), repeat=2)}
    assert torch.equal(before.masked, steps >= step[:, None])


@pytest.mark.parametrize("counts", [False, True])
def test_a_predicted_loss_is_that_of_the_text_before_the_step_of_its_token(counts):
    """In training each token has its own context; the hidden states of one layer do not depend on how it came about."""
    width = 16 + 2 * COUNTED["ngram_prior"] * counts
    context = Context(vocabulary_size=V, length=L, width=16, width_read=width, seed=5)
    backbone = (COUNTED if counts else DEEP) | {"layers": 1}
    parts = {"backbone": backbone, "position_sets": MAPS[0], "estimator": "loss_prediction"}
    module = build({"use": "set_causal", "gap_share": 0.5}, context=context, **parts)
    of = batch(3)
    steps, found = module.step_indices(of), module.loss(of)
    for step in range(int(steps.max()) + 1):
        z = torch.where(steps >= step, V, of.tokens)
        there = steps == step
        torch.testing.assert_close(module.importance(z, of.maskable, None)[there], found["importance"][there])
    assert found["importance"][steps >= 0].std() > 0.01
    # All of them are learned from, and the network does not learn from that.
    ranks, counted = module.target(module.noised(of, steps >= 0, steps[:, 0], steps[:, 0]), found["token_loss"])
    expected = importance_loss(found["importance"], ranks, counted)
    torch.testing.assert_close(found["importance_loss"], expected)
    found["loss"].backward()
    backbone = {name: p.grad.clone() for name, p in module.backbone.named_parameters() if p.grad is not None}
    module.zero_grad()
    module.importance_loss_weight = 0.0
    module.loss(of)["loss"].backward()
    assert all(torch.equal(module.backbone.get_parameter(name).grad, grad) for name, grad in backbone.items())
