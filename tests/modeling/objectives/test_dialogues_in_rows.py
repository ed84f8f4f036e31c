"""What is asked never enters the loss, and packed dialogues do not see each other, whatever the objective."""

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_objectives import BACKBONE, CONTEXT, L, N, V, batch, build
from test_every_objective import EVERY

from atat_zoo import Zoo
from atat_zoo.modeling.bounds import ExactKBound
from tests.examples import at_most

# Of the last one the estimator, which learns, reads a row as a whole.
APART = [name for name in EVERY if not name.startswith(("adaptive", "block", "sets", "strided", "mdlm on z"))]
PLAIN = [name for name in EVERY if "dropout" not in name]
TALK = attrs.evolve(CONTEXT, given_between=True)
EXACT = ExactKBound(), 4
zoo = Zoo.load()
strategies = st.sampled_from([name for name in zoo.names("masking") if name != "reveal"])
masks = st.lists(st.integers(1, 2**L - 1), min_size=N, max_size=N)


def asked(rows, step=0):
    """A batch in which some tokens are answers, by the bits of a number for each row."""
    answers = torch.tensor([[bool(row >> i & 1) for i in range(L)] for row in rows])
    return attrs.evolve(batch(step, padded=False), maskable=answers, mean_maskable=answers.sum(1).float().mean())


TURNS = asked([0b110100] * 4 + [0b111000] * 4, 2)  # the second answer of the first rows stands behind another question


@pytest.mark.parametrize("name", EVERY)
def test_what_is_predicted_of_a_question_changes_nothing(name):
    """The loss does not read what the head would make of it, and its gradient there is exactly zero."""
    objective, parts = EVERY[name]
    # Ranks that share weights read in one pass; else rows that need other carriers are a pass of their own.
    module, found, noise = build(objective, context=attrs.evolve(TALK, sharded=True), **parts), [], 0.0

    def hook(backbone, inputs, hidden):
        there = TURNS.maskable.repeat(len(hidden) // N, 1)
        given = torch.nn.functional.pad(~there, (0, hidden.shape[1] - L))[..., None]
        found.append(torch.where(given, hidden + noise, hidden).requires_grad_())
        found[-1].retain_grad()
        return found[-1]

    module.backbone.register_forward_hook(hook)
    loss = module.loss(TURNS)["loss"]
    loss.backward()
    there = TURNS.maskable.repeat(len(found[0]) // N, 1)
    found = [each for each in found if each.grad is not None]  # others are of the importance, which passes none on
    assert all((each.grad[:, :L][~there] == 0).all() for each in found)
    assert any(each.grad[:, :L][there].any() for each in found)
    noise = 100.0
    assert torch.equal(module.loss(TURNS)["loss"], loss)


@at_most(3)
@pytest.mark.parametrize("name", PLAIN)
@given(masks, st.integers(0, 99))
def test_a_mask_never_falls_on_a_question(name, rows, step):
    objective, parts = EVERY[name]
    module, talk = build(objective, context=TALK, **parts), asked(rows, step)
    figures = module.loss(talk)
    answers = talk.maskable.repeat(len(figures["masked"]) // N, 1)
    assert not (figures["masked"] & ~answers).any()
    assert not figures["token_loss"][~answers].any()
    assert float(figures["loss"].detach()) >= 0
    for weighted in module.masks(talk.maskable, torch.arange(N), 2, ExactKBound()):
        assert not (weighted.masked & ~talk.maskable).any()


@at_most(25)
@given(strategies, st.sampled_from(zoo.names("mask_rates")), masks, st.integers(0, 99))
def test_the_expected_share_of_masked_answer_tokens_is_the_rate(masking, rates, rows, step):
    module, talk = build({"use": "mdlm", "weight": "simple"}, masking=masking, mask_rates=rates), asked(rows, step)
    levels = module.levels(module.times(talk.index), talk)
    noised, _ = module.mask_batch(talk, levels)
    assert (noised.p[~talk.maskable] == 0).all()
    torch.testing.assert_close(noised.p.sum(1) / talk.maskable.sum(1), levels.rate, rtol=1e-4, atol=1e-5)
    # It is drawn so: a uniform number below the probability masks.
    assert not noised.masked[noised.p == 0].any()
    assert noised.masked[noised.p == 1].all()


@pytest.mark.parametrize("name", ["sets", "strided", "sets with dropout"])
def test_every_token_of_a_question_is_read(name):
    """That before an answer, too, whose place in the network is that of the answer's first prediction."""
    objective, parts = EVERY[name]
    if objective["use"] == "set_causal":
        objective = objective | {"prompt_share": 0.0, "gap_share": 0.0}
    module = build(objective, context=TALK, **parts | {"backbone": BACKBONE})
    before = module.loss(TURNS)["token_loss"]
    for place in range(L - 1):
        row = 4 if place < 3 else 0
        if TURNS.maskable[row, place]:
            continue
        tokens = TURNS.tokens.clone()
        tokens[row, place] = (tokens[row, place] + 1) % V
        after = module.loss(attrs.evolve(TURNS, tokens=tokens))["token_loss"]
        last = TURNS.maskable[row].nonzero()[-1]
        assert after[row, last] != before[row, last], place


# Packed dialogues. Rows of two and three, and padding at the end.

DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1]] * 4 + [[0, 0, 1, 1, -1, -1]] * 2 + [[0, 0, 1, 1, 2, 2]] * 2)
ANSWERS = torch.tensor([[0, 1, 1, 0, 0, 1]] * 4 + [[0, 1, 0, 1, 0, 0]] * 2 + [[0, 1, 0, 1, 0, 1]] * 2).bool()


def packed(step=1):
    talk = attrs.evolve(batch(step, padded=False), maskable=ANSWERS, documents=DOCUMENTS)
    return attrs.evolve(talk, mean_maskable=ANSWERS.sum(1).float().mean())


def made(name):
    objective, parts = EVERY[name]
    return build(objective, **parts | ({"estimator": "uniform"} if objective["use"] == "mdlm" else {}))


def bound(module, talk):
    nats = module.eval().bound(
        talk.tokens, talk.maskable, torch.arange(N), EXACT[1], EXACT[0], documents=talk.documents
    )
    return torch.stack([each.contribution for each in nats.values()], -1)


@pytest.mark.parametrize("name", APART)
def test_a_dialogue_does_not_depend_on_its_neighbours(name):
    module, talk = made(name), packed()
    losses, nats = module.loss(talk)["token_loss"], bound(module, talk)
    for document in range(-1, 3):
        own = document == DOCUMENTS
        others = torch.where(own, talk.tokens, (talk.tokens + 3) % V)
        changed = attrs.evolve(talk, tokens=others)
        module.train()
        assert torch.equal(module.loss(changed)["token_loss"][own], losses[own])
        assert torch.equal(bound(module, changed)[own], nats[own])
    # And within one it does.
    changed = attrs.evolve(talk, tokens=torch.where(ANSWERS, talk.tokens, (talk.tokens + 3) % V))
    assert not torch.equal(bound(module, changed)[ANSWERS], nats[ANSWERS])


@pytest.mark.parametrize("name", [name for name in APART if name in PLAIN])
def test_a_packed_dialogue_is_read_as_if_it_were_alone(name):
    """With positions that begin again, and nothing else in its row."""
    module, talk = made(name).eval(), packed()
    masked, t = ANSWERS, torch.full((N,), 0.5)
    z = torch.where(masked, V, talk.tokens)
    together = module.head_inputs_of(z, t, masked, talk.tokens, DOCUMENTS).hidden
    for row in range(N):
        for document in range(int(DOCUMENTS[row].max()) + 1):
            own = DOCUMENTS[row] == document
            alone = module.head_inputs_of(z[row, own][None], t[:1], masked[row, own][None], talk.tokens[row, own][None])
            torch.testing.assert_close(together[row, own], alone.hidden[0], rtol=1e-4, atol=1e-5)


def test_an_objective_says_whether_it_keeps_dialogues_apart():
    said = {name: zoo.component("objective", name).separates_documents for name in zoo.names("objective")}
    assert {name for name, apart in said.items() if apart} == {EVERY[name][0]["use"] for name in APART}
