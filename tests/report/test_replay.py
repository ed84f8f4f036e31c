"""A replay is what the sampler did: every named sampler on a toy, whose predictions are known."""

import math

import pytest
import torch

from atat_zoo.generation import Writer
from atat_zoo.registry import Zoo
from atat_zoo.report.replay import entropies, replay_table
from atat_zoo.report.text import shown
from atat_zoo.testing.toys import Hashed, hashed_importance
from atat_zoo.tokenizers.tables import CharactersModel

L, SEED = 12, 3
TOKENIZER = CharactersModel(special=True, unknown="error")
V = TOKENIZER.vocabulary_size


def writer(special="none", cost=1):
    denoiser = Hashed(V, sharpness=6.0, importance=hashed_importance)
    return Writer(denoiser=denoiser, tokenizer=TOKENIZER, length=L, special=special, cost=cost)


def played(text, until=None):
    """Return the tokens after some frames, None for a mask."""
    z = list(text["start"])
    for frame in text["frames"][:until]:
        for position, token in frame["filled"]:
            assert z[position] is None, "a visible token is not drawn again"
            z[position] = token
        for position in frame["hidden"]:
            assert z[position] is not None, "a mask is not hidden again"
            z[position] = None
    return z


@pytest.mark.parametrize("special", ["none", "sequence"])
@pytest.mark.parametrize("name", Zoo.load().names("sampler"))
def test_the_frames_end_at_what_the_sampler_writes(name, special):
    sampler = Zoo.load().spec("sampler", name)
    written = writer(special).write(sampler, number=3, seed=SEED).sample
    found = replay_table(writer(special, cost=2), sampler, number=3, length=L, seed=SEED)
    assert (found["name"], found["settings"]["use"]) == (name, name)
    assert found["evaluations"] == (2 * written.nfe).tolist()
    for text, row, nfe in zip(found["texts"], written.tokens.tolist(), written.nfe.tolist(), strict=True):
        assert played(text) == shown(TOKENIZER, row)
        ends = ["<bos>", "<eos>"] if special == "sequence" else []
        assert [token for token in text["start"] if token is not None] == ends
        assert [frame["evaluation"] for frame in text["frames"]] == [2 * (i + 1) for i in range(nfe)]
        for number, frame in enumerate(text["frames"]):
            before = played(text, number)
            assert [position for position, _ in frame["open"]] == [i for i in range(L) if before[i] is None]
            assert all(0 <= nats <= math.log(V) for _, nats in frame["open"])
            assert {position for position, _ in frame["filled"]} <= {position for position, _ in frame["open"]}


def test_tokens_that_are_masked_again_are_told():
    samplers = [name for name in Zoo.load().names("sampler") if name.startswith("remdm") or name == "p2"]
    assert len(samplers) > 2
    for name in samplers:
        found = replay_table(writer(), Zoo.load().spec("sampler", name), number=3, length=L, seed=SEED)
        assert any(frame["hidden"] for text in found["texts"] for frame in text["frames"]), name


def test_the_entropy_is_that_of_the_prediction_at_this_state():
    found = replay_table(writer(), Zoo.load().spec("sampler", "margin"), number=1, length=L, seed=SEED)
    (text,) = found["texts"]
    ids = {token: i for i, token in enumerate(shown(TOKENIZER, range(V)))} | {None: V}
    for number, frame in enumerate(text["frames"]):
        z = torch.tensor([[ids[token] for token in played(text, number)]])
        p = Hashed(V, sharpness=6.0)(z, None, z == V).exp()
        expected = torch.special.entr(p).sum(1).tolist()
        assert [nats for _, nats in frame["open"]] == pytest.approx(expected, abs=6e-4)


def test_many_states_are_asked_in_parts(monkeypatch):
    z = torch.where(torch.rand(9, L, generator=torch.Generator().manual_seed(0)) < 0.5, V, 1)
    whole = entropies(Hashed(V), z)
    monkeypatch.setattr("atat_zoo.report.replay._CHUNK", 2 * L * V)
    assert entropies(Hashed(V), z) == whole


def test_no_text_and_no_masks_have_no_frames():
    sampler = Zoo.load().spec("sampler", "ancestral")
    assert replay_table(writer(), sampler, number=0, length=L, seed=0)["texts"] == []
    (text,) = replay_table(writer("sequence"), sampler, number=1, length=2, seed=0)["texts"]
    assert text == {"start": ["<bos>", "<eos>"], "frames": []}
