"""What `attention_mask` hides changes nothing of an export, on whichever side it is and whatever its id."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import FORMS, PAD, network_of

from tests.generation.forms import CAUSAL, V


@st.composite
def batches(draw, sides=("left", "right", "both"), holes=True):
    """Draw texts of several lengths, and a batch of them with padding of any ids: ids and attention mask."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    texts = [torch.randint(0, V, (length,), generator=generator) for length in lengths]
    if holes:
        for text in texts:  # but not of the first token: masks that see nothing are equally sure, but for rounding
            text[1:][torch.rand(len(text) - 1, generator=generator) < 0.4] = V
    side, more = draw(st.sampled_from(sides)), draw(st.integers(0, 4))
    width = max(lengths) + more
    padding = draw(st.sampled_from([0, 256, 257, V, PAD, None]))  # any id: BOS, EOS and the mask, too
    ids = torch.randint(0, PAD, (len(texts), width), generator=generator)
    ids = ids if padding is None else ids.fill_(padding)
    seen = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        first = {"left": width - len(text), "right": 0, "both": (width - len(text)) // 2}[side]
        ids[row, first : first + len(text)], seen[row, first : first + len(text)] = text, 1
    return texts, ids, seen, generator


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=8)
@given(batches(), st.booleans())
@torch.no_grad()
def test_logits_of_visible_tokens_are_those_of_the_text_alone(form, batch, told):
    texts, ids, seen, generator = batch
    network, more = network_of(form), [{} for _ in texts]
    together = {}
    if told and network.config.form == "turns":
        together["turns"] = torch.randint(-1, 4, ids.shape, generator=generator)
        more = [{"turns": row[there == 1][None]} for row, there in zip(together["turns"], seen, strict=True)]
    found = network(ids, attention_mask=seen, output_hidden_states=True, **together)
    for row, text in enumerate(texts):
        alone = network(text[None], output_hidden_states=True, **more[row])
        close = {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(found.logits[row, seen[row] == 1, :V], alone.logits[0, :, :V], **close)
        torch.testing.assert_close(found.hidden_states[0][row, seen[row] == 1], alone.hidden_states[0][0], **close)


@pytest.mark.parametrize("form", [form for form in FORMS if form != CAUSAL])
@settings(max_examples=6)
@given(
    batches(sides=("left", "right")),
    st.sampled_from(["strided", "confidence"]),
    st.sampled_from([{}, {"max_new_tokens": 3}, {"max_length": 7}]),
)
def test_a_padded_batch_is_unmasked_as_one_text_at_a_time(form, batch, sampler, how):
    texts, ids, seen, _ = batch
    network, how = network_of(form), {"sampler": sampler, "steps": 4, "temperature": 0, **how}
    written = network.generate(ids, attention_mask=seen, **how)
    alone = [network.generate(text[None], **how)[0] for text in texts]
    left = bool((seen[:, 0] < seen[:, -1]).any())
    for row, text in zip(written, alone, strict=True):
        assert torch.equal(row[len(row) - len(text) :] if left else row[: len(text)], text)
    assert written.shape[1] == max(ids.shape[1] + how.get("max_new_tokens", 0), *map(len, alone))


@settings(max_examples=6)
@given(batches(sides=("left",), holes=False))
def test_a_left_padded_batch_is_continued_as_one_text_at_a_time(batch):
    texts, ids, seen, _ = batch
    network, how = network_of(CAUSAL), {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None}
    ids[seen == 0] = PAD
    written = network.generate(ids, attention_mask=seen, **how)
    for row, text in zip(written, texts, strict=True):
        assert torch.equal(row[-len(text) - 3 :], network.generate(text[None], **how)[0])


@torch.no_grad()
def test_without_an_attention_mask_the_padding_is_told_by_its_id():
    network = network_of("counted")
    ids = torch.tensor([[5, V, 7, PAD, PAD], [PAD, 5, V, 7, 8]])
    assert torch.equal(network(ids).logits, network(ids, attention_mask=(ids != PAD).long()).logits)
    how = {"temperature": 0, "sampler": "confidence", "max_new_tokens": 2}
    assert torch.equal(network.generate(ids, **how), network.generate(ids, attention_mask=ids != PAD, **how))
    assert network(ids).logits[..., V:].exp().sum() == 0
    network.config.pad_token_id = network.config.eos_token_id  # which texts have, too
    try:
        ended = torch.tensor([[5, V, network.config.eos_token_id]])
        assert torch.equal(network(ended).logits, network(ended, attention_mask=torch.ones_like(ended)).logits)
    finally:
        network.config.pad_token_id = PAD


@pytest.mark.parametrize(("form", "start"), [("mdlm", 0), (CAUSAL, 1)])
def test_padding_and_the_start_do_not_count_in_the_length_of_a_text(form, start, monkeypatch):
    network = network_of(form)
    monkeypatch.setattr(network.config, "max_position_embeddings", 5)
    most = 5 + start
    ids = torch.nn.functional.pad(torch.full((1, most), 5), (0, 3), value=PAD)
    assert network(ids).logits.shape[1] == most + 3
    with pytest.raises(ValueError, match=f"has {most + 1} tokens, but this model reads at most {most}"):
        network(torch.full((1, most + 1), 5))
