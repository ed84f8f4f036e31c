"""Prompts, seeds and decoding around a sampler."""

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data.dialogues import Part
from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.generation.layout import TextForm, refuse_length
from atat_zoo.generation.samplers.published_samplers import AncestralSampler, UncertaintyGuidedSampler
from atat_zoo.generation.samplers.semi_autoregressive import SemiAutoregressiveSampler
from atat_zoo.generation.text_generator import TextGenerator
from atat_zoo.system.errors import UserError
from atat_zoo.testing.toys import FunctionDenoiser, Hashed, hashed_importance
from tests.generation.alphabet import Alphabet

LETTERS = Alphabet("abcdefgh", bos=8, eos=9)


def text_generator(**fields):
    return TextGenerator(**{"denoiser": Hashed(10, window=12), "tokenizer": LETTERS, "length": 12} | fields)


GENERATOR, FIVE_STEPS = text_generator(), AncestralSampler(steps=5)


def texts(number=3, sampler=FIVE_STEPS, text_generator=GENERATOR, **options):
    return text_generator.write(sampler, number=number, **options)


@given(
    prompt=st.text("abc", max_size=3),
    suffix=st.text("abc", max_size=3),
    special=st.sampled_from(["none", "document", "sequence", "both"]),
    windows=st.booleans(),
    chat=st.sampled_from(["", "ab"]),
    seed=st.integers(0, 99),
)
def test_what_is_written_ends_before_its_first_eos(prompt, suffix, special, windows, chat, seed):
    made = text_generator(tokenizer=Talking("abcdefgh", bos=8, eos=9), special=special)
    found = made.write(FIVE_STEPS, number=4, seed=seed, prompt=prompt, suffix=suffix, windows=windows, chat=chat)
    framed = special in ("sequence", "both")
    before = [8] * framed + LETTERS.encode(chat + prompt)
    for text, ids in zip(found.texts, found.sample.tokens.tolist(), strict=True):
        assert ids[: len(before)] == before
        written = ids[len(before) : len(ids) - len(suffix) - framed]
        assert len(written) + len(before) + len(suffix) + framed == 12
        if 9 in written and not windows and (special != "none" or chat):
            written = written[: written.index(9)]
        assert text == f"{prompt}{LETTERS.decode(written)}{suffix}"


def test_a_tokenizer_without_eos_ends_nothing():
    form = TextForm(tokenizer=Talking("abcdefgh", bos=8, eos=9), length=12, special="document")
    assert (form.end(), form.end(chat=True), form.end(windows=True)) == (9, 9, None)
    for special in ("document", "sequence"):
        made = texts(
            number=5, prompt="a", text_generator=text_generator(tokenizer=Alphabet("abcdefghij"), special=special)
        )
        assert [len(text) for text in made.texts] == [12] * 5
        assert (made.sample.tokens[:, 0] == 0).all()


@attrs.frozen
class Talking(Alphabet, TokenizerModel):
    """Letters, with a template that writes `opening` before each message."""

    opening: tuple[int, ...] = attrs.field(default=(), kw_only=True)

    def chat(self, messages, *, answering=False):
        return [Part([*self.opening, *self.encode(message.content)], False) for message in messages]


@pytest.mark.parametrize("special", ["none", "sequence"])
@pytest.mark.parametrize("opening", [(), (8,)])
def test_an_answer_begins_behind_the_question(special, opening):
    tokenizer = Talking("abcdefgh", bos=8, eos=9, opening=opening)
    made = texts(number=8, chat="abc", prompt="d", text_generator=text_generator(tokenizer=tokenizer, special=special))
    # BOS stands there once, whether the template or the framing puts it there.
    start = [8, 0, 1, 2, 3] if opening or special == "sequence" else [0, 1, 2, 3]
    rows = made.sample.tokens.tolist()
    assert all(row[: len(start)] == start for row in rows)
    assert special == "none" or all(row[-1] == 9 for row in rows)
    for text, row in zip(made.texts, rows, strict=True):
        ids = row[len(start) - 1 :]
        assert text == tokenizer.decode(ids[: ids.index(9)] if 9 in ids else ids)
    # A row that the model sees in parts has no framing.
    sampler = SemiAutoregressiveSampler(block_size=5, block_sampler=AncestralSampler(steps=2))
    longer = texts(
        sampler=sampler,
        chat="abc",
        prompt="d",
        length=20,
        text_generator=text_generator(tokenizer=tokenizer, special=special),
    )
    assert all(text[0] == "d" for text in longer.texts)


class Forgeable(Talking):
    """Its template tells by text who speaks."""

    def check_turns(self, messages):
        raise UserError(f"{len(messages)} may be forged")


def test_a_template_that_can_be_forged_is_for_trusted_messages():
    made = text_generator(tokenizer=Forgeable("abcdefgh", bos=8, eos=9))
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with pytest.raises(UserError, match="2 may be forged"):
        texts(chat=chat, text_generator=made)
    assert texts(chat=chat, trusted=True, text_generator=made).sample.tokens[:, :2].tolist() == [[0, 1]] * 3


def test_longer_than_the_denoiser_sees_at_once():
    sampler = SemiAutoregressiveSampler(block_size=5, block_sampler=AncestralSampler(steps=2))
    shown = []

    def look(tokens, t, where):
        shown.append(tokens.shape[1])
        return Hashed(10)(tokens, t, where)

    looking = text_generator(denoiser=FunctionDenoiser(look, 10, window=12))
    made = looking.write(sampler, number=3, length=31, seed=2, prompt="abc", batch_size=2)
    assert made.sample.tokens.shape == (3, 31)
    assert max(shown) == 12
    assert all(text.startswith("abc") and "[MASK]" not in text for text in made.texts)
    for tokens in (torch.full((1, 13), 10), torch.full((1, 13), 3)):
        with pytest.raises(UserError, match=r'13 exceeds the model.s maximum length, 12.*"semi_autoregressive"'):
            text_generator().fill(AncestralSampler(), tokens)
    with pytest.raises(UserError, match=r"31 exceeds the model.s maximum length, 12"):
        text_generator().write(AncestralSampler(), length=31)


def test_a_text_longer_than_the_framed_sequences_of_the_training_is_plain_text():
    """A model that is sure of EOS at the last position it sees, and sees BOS and EOS at the ends of each window."""

    def look(tokens, t, where):
        assert (tokens[:, [0, -1]] == torch.tensor([8, 9])).all()
        assert tokens.shape[1] == 12
        sure = torch.where((where[1] == 11)[:, None], torch.arange(10) == 9, torch.arange(10) == where[1][:, None] % 8)
        return torch.where(sure, 0.0, -torch.inf)

    looking = text_generator(denoiser=FunctionDenoiser(look, 10, window=12), special="sequence")
    sampler = SemiAutoregressiveSampler(block_size=5, block_sampler=AncestralSampler(steps=2))
    made = looking.write(sampler, number=2, length=31, prompt="abc", suffix="h")
    assert made.sample.tokens.shape == (2, 31)
    assert (made.sample.tokens < 8).all()
    assert all(len(text) == 31 and text.startswith("abc") and text.endswith("h") for text in made.texts)


def test_a_text_depends_on_its_seed_and_number_alone():
    sampler = UncertaintyGuidedSampler(min_steps=2, max_steps=5, threshold=0.1)
    options = {"sampler": sampler, "text_generator": text_generator(denoiser=Hashed(10, importance=hashed_importance))}
    seven = texts(number=7, **options)
    assert texts(number=3, **options).texts == seven.texts[:3]
    assert 0 < seven.seconds < 60
    assert texts(number=7, batch_size=2, **options).texts == seven.texts
    assert texts(number=7, seed=1, **options).texts != seven.texts


def test_some_of_the_texts_are_those_of_their_numbers():
    every = texts(number=6)
    some = texts(number=6, rows=torch.tensor([4, 1]))
    assert some.texts == [every.texts[4], every.texts[1]]
    assert some.sample.nfe.tolist() == every.sample.nfe[[4, 1]].tolist()
    # Each by a seed of its own, if each has one.
    z, others = torch.full((2, 12), 10), texts(number=6, seed=7)
    made = text_generator().fill(FIVE_STEPS, z, rows=torch.tensor([4, 1]), seed=[0, 7])
    assert [LETTERS.decode(ids) for ids in made.tokens.tolist()] == [every.texts[4], others.texts[1]]


def test_texts_that_memory_does_not_hold_are_refused(monkeypatch):
    monkeypatch.setattr("atat_zoo.system.machine.free_memory", lambda: 31.9e9)
    said = r"^generating 1000000 sequences of 1000 tokens needs about 32\.0 GB .*; generate fewer or shorter sequences$"
    with pytest.raises(UserError, match=said):
        refuse_length(FIVE_STEPS, 10**6, 1000, 1000)
    refuse_length(FIVE_STEPS, 10**6, 990, 990)


def test_an_observer_is_told_of_rows_over_all_batches():
    z, trace = torch.full((5, 6), 10), []
    made = text_generator().fill(AncestralSampler(steps=4), z, seed=2, observe=trace.append, batch_size=2)
    for record in trace:
        z[record["rows"], record["positions"]] = torch.tensor(record["tokens"])
    assert torch.equal(z, made.tokens)
    assert made.max_nfe == 4


def test_nothing_to_write():
    assert texts(number=0).texts == []
    made = texts(prompt="abcdef", suffix="abcdef")
    assert made.texts == ["abcdefabcdef"] * 3
    assert made.sample.nfe.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("name", "least"), [("number", 0), ("length", 1), ("batch_size", 1)])
def test_a_number_that_is_too_small(name, least):
    texts(**{"number": 2, name: least})
    with pytest.raises(UserError, match=f"^{name} = {least - 1} is too small; pass at least {least}$"):
        texts(**{"number": 2, name: least - 1})


def test_a_prompt_that_does_not_fit():
    with pytest.raises(UserError, match=r"prompt and suffix take 13 tokens, .* but the length is 12"):
        texts(prompt="abcdefg", suffix="abcdef")
    with pytest.raises(UserError, match="take 13 tokens, "):
        texts(prompt="abcdef", suffix="abcde", text_generator=text_generator(special="sequence"))
