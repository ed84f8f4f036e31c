"""The sampler that goes along with an export, on networks whose answers are known."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from atat_zoo_checkpoints.hub.generation_atat_zoo import SAMPLERS, generate
from hypothesis import given
from hypothesis import strategies as st

MASK, BOS, EOS = 5, 3, 4


class Network:
    """p(token | place) = softmax of a table; keeps what it was asked."""

    device = torch.device("cpu")

    def __init__(self, table=None, **config):
        self.table, self.asked = torch.zeros(64, MASK) if table is None else table, []
        ids = {"mask_token_id": MASK, "bos_token_id": BOS, "eos_token_id": EOS}
        self.config = SimpleNamespace(**ids | {"has_eos": False} | config)

    def __call__(self, input_ids, **options):
        self.asked.append((input_ids.clone(), {key: value.clone() for key, value in options.items()}))
        scores = self.table[: input_ids.shape[1]].expand(len(input_ids), -1, -1)
        # The mask itself would be the likeliest of all.
        return SimpleNamespace(logits=torch.nn.functional.pad(scores, (0, 1), value=9.0))


@given(st.sampled_from(SAMPLERS), st.integers(1, 30), st.lists(st.integers(0, MASK), min_size=1, max_size=20))
def test_every_mask_is_filled_nothing_else_changes_and_the_evaluations_are_counted(sampler, steps, row):
    ids, network = torch.tensor([row, row[::-1]]), Network()
    written = generate(ids, model=network, sampler=sampler, steps=steps, num_return_sequences=2)
    given_ids = ids.repeat_interleave(2, 0)
    assert torch.equal(written[given_ids != MASK], given_ids[given_ids != MASK])
    assert torch.all(written < MASK)
    assert len(network.asked) <= min(steps, 4 * len(row))
    assert len(network.asked) >= (1 if MASK in row else 0)
    for (before, _), (after, _) in pairwise(network.asked):
        assert torch.all((before == MASK) | (before == after)), "what is drawn stays"


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_draws_are_from_what_the_network_says_at_a_temperature(sampler):
    table = torch.randn(3, MASK, generator=torch.Generator().manual_seed(2))
    ids = torch.full((1, 3), MASK)
    for temperature in (1.0, 0.5):
        how = {"temperature": temperature, "num_return_sequences": 20_000, "steps": 3}
        written = generate(
            ids, model=Network(table), sampler=sampler, generator=torch.Generator().manual_seed(1), **how
        )
        wanted = (table / temperature).softmax(-1)
        found = torch.nn.functional.one_hot(written, MASK).double().mean(0)
        assert (found - wanted).abs().max() < 0.015
    written = generate(ids, model=Network(table), sampler=sampler, temperature=0, steps=3)
    assert torch.equal(written[0], table.argmax(-1))


def test_ancestral_sampling_unmasks_a_share_of_the_places_in_each_step():
    network = Network()
    generate(torch.full((4000, 6), MASK), model=network, sampler="ancestral", steps=4)
    left = [float((ids == MASK).float().mean()) for ids, _ in network.asked]
    assert left == pytest.approx([1, 0.75, 0.5, 0.25], abs=0.02)


def test_confident_places_come_first_as_many_in_each_step():
    sure = torch.zeros(6, MASK)
    sure[:, 0] = torch.tensor([0.0, 5.0, 1.0, 4.0, 3.0, 2.0])
    network = Network(sure)
    generate(torch.full((1, 6), MASK), model=network, sampler="confidence", steps=3)
    assert [(ids[0] == MASK).nonzero()[:, 0].tolist() for ids, _ in network.asked] == [
        [*range(6)],
        [0, 2, 4, 5],
        [0, 2],
    ]


def test_strided_places_come_by_their_number_and_turns_are_told():
    network = Network(form="turns")
    ids = torch.tensor([[0, MASK, MASK, 1, MASK, MASK, MASK]])
    generate(ids, model=network, sampler="strided", steps=2)
    assert [options["turns"][0].tolist() for _, options in network.asked] == [
        [-1, 0, 0, -1, 0, 0, 0],
        [-1, 0, 1, -1, 0, 1, 0],
    ]
    few = Network()
    generate(torch.tensor([[0, MASK, MASK]]), model=few, sampler="strided", steps=16)
    assert len(few.asked) == 2, "no more steps than places"


def likeliest(*tokens, **config):
    """Return a network to which these tokens are the likeliest."""
    return Network(torch.nn.functional.one_hot(torch.tensor(tokens), MASK).float(), **config)


def test_what_is_written_ends_with_its_first_eos_and_padding_stands_behind_it():
    how = {"temperature": 0, "steps": 1}
    network = likeliest(1, EOS, 2, EOS, 2, has_eos=True, pad_token_id=9)
    ids = torch.tensor([[MASK] * 5, [EOS, MASK, MASK, 0, MASK], [0, 1, MASK, MASK, EOS], [0, EOS, MASK, 0, 0]])
    wanted = [[1, EOS, 9, 9, 9], [EOS, EOS, 9, 0, 9], [0, 1, 2, EOS, EOS], [0, EOS, 2, 0, 0]]
    assert generate(ids, model=network, **how).tolist() == wanted, "an EOS that was given ends nothing"
    for row, text in zip(ids, wanted, strict=True):
        assert generate(row[None], model=network, **how).tolist() == [text]
    whole = [1, EOS, 2, EOS, 2]
    assert generate(ids[:1], model=network, windows=True, **how).tolist() == [whole]
    running = likeliest(*whole, pad_token_id=9)
    assert generate(ids[:1], model=running, **how).tolist() == [whole], "the training has no EOS"
    assert generate(ids[:1], model=running, windows=False, **how).tolist() == wanted[:1]
    other = likeliest(*whole, eos_token_id=[3, EOS])  # of another model, without padding
    del other.config.has_eos
    assert generate(ids[:1], model=other, **how).tolist() == [[1, EOS, 3, 3, 3]]
    other.config.eos_token_id = None
    assert generate(ids[:1], model=other, **how).tolist() == [whole]


def test_lengths_and_ends():
    network = Network(framed=True, length=7)
    assert generate(model=network).shape == (1, 7)
    assert generate(model=network)[0, [0, -1]].tolist() == [BOS, EOS]
    assert generate(model=network, max_length=3)[0, [0, -1]].tolist() == [BOS, EOS]
    written = generate(torch.tensor([[BOS, 1, EOS]]), model=network, max_new_tokens=2)
    assert (written.shape[1], written[0, [0, 1, -1]].tolist()) == (5, [BOS, 1, EOS])
    assert generate(input_ids=torch.tensor([[1, MASK]]), model=Network(), max_length=4).shape == (1, 4)
    assert generate(torch.tensor([[1, 2]]), model=Network(), max_length=1).tolist() == [[1, 2]]
    own = Network(length=5, unmasking={"sampler": "strided", "steps": 2})
    generate(model=own)
    assert len(own.asked) == 2, "the sampler of the run"


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_stays_on_its_side_with_its_id_and_masks_come_before_an_end(side):
    table = torch.nn.functional.one_hot(torch.full((8,), 2), MASK).float()
    texts, written = ([0, MASK], [1, MASK, 0, EOS]), ([0, 2, 2], [1, 2, 0, 2, EOS])

    def padded(rows):
        more = [[7] * (max(map(len, rows)) - len(row)) for row in rows]
        return torch.tensor([pad + row if side == "left" else row + pad for pad, row in zip(more, rows, strict=True)])

    ids, network = padded(texts), Network(table)
    found = generate(ids, model=network, attention_mask=(ids != 7).long(), temperature=0, max_new_tokens=1, steps=1)
    assert torch.equal(found, padded(written))
    ((read, options),) = network.asked
    assert torch.equal(options["attention_mask"], (read != 7).long())
    assert "turns" not in options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sampler": "klass"}, "unknown sampler 'klass'; use ancestral, confidence, strided"),
        ({"num_beams": 4, "do_sample": True}, "does not support do_sample, num_beams"),
    ],
)
def test_what_has_no_meaning_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        generate(torch.tensor([[1, MASK]]), model=Network(), **options)
