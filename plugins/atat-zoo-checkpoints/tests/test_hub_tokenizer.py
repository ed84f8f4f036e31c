"""A tokenizer outside: the same ids, the mask or the start as V, and texts between the ends of the training."""

import json

import pytest
from atat_zoo_checkpoints.hub.hub_tokenizer import save
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from atat_zoo import UserError
from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.data.tokenizers.tokenizer_models import LibraryModel, of_characters
from atat_zoo.registry import Zoo
from tests.fixtures import sentences, write_all

LETTERS = st.text("abc xyz", max_size=40)
KINDS = {
    "bytes": ({"use": "bytes"}, st.text(max_size=40)),
    "bpe": ({"use": "bpe", "vocabulary_size": 300}, st.text(max_size=40)),
    "characters": ({"use": "characters", "special_tokens": True}, LETTERS),
    "text8": ({"use": "characters", "unknown": "space"}, st.text(max_size=40)),
    "gpt2": ({"use": "pretrained", "path": "corpora/gpt2", "bos": "<|endoftext|>", "eos": "<|endoftext|>"}, LETTERS),
    "bert": ({"use": "pretrained", "path": "corpora/bert-base-uncased", "bos": "[CLS]", "eos": "[SEP]"}, LETTERS),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tokenizers")
    write_all(made)
    return made


def saved(folder, name, *, framed=False, causal=False):
    """Return a tokenizer of ours and the one of transformers."""
    table = dict(KINDS[name][0])
    if "path" in table:
        table["path"] = str(folder / table["path"])
    ours = Zoo.load().spec("tokenizer", table).train(lambda: iter(sentences(50)))
    there = folder / f"{name}-{framed}-{causal}"
    there.mkdir(exist_ok=True)
    padding = save(ours, there, framed=framed, causal=causal, length=32)
    theirs = AutoTokenizer.from_pretrained(there)
    assert theirs.pad_token_id == padding
    return ours, theirs, there


@pytest.mark.parametrize("name", KINDS)
def test_a_text_has_the_same_ids_there(name, folder):
    ours, theirs, there = saved(folder, name)
    special = [token for token in theirs.get_vocab() if token in theirs.all_special_tokens]

    @given(KINDS[name][1])
    def check(text):
        if not any(token in text for token in special):  # which are text here, and special there
            assert theirs(text)["input_ids"] == ours.encode(text)

    check()
    V = ours.vocabulary_size
    assert (theirs.mask_token_id, theirs.bos_token_id, theirs.eos_token_id) == (V, ours.bos, ours.eos)
    own = name != "bert"  # whose vocabulary has a padding, which no text has
    assert theirs.pad_token_id == (V + 1 if own else ours.library.token_to_id("[PAD]"))
    assert len(theirs) == V + 1 + own
    assert theirs.model_max_length == 32
    said = json.loads((there / "special_tokens_map.json").read_text(encoding="utf-8"))
    assert said["mask_token"] == theirs.mask_token
    assert ("bos_token" in said) == (ours.bos is not None)


@pytest.mark.parametrize("name", KINDS)
def test_a_mask_in_a_text_is_the_mask_and_the_space_before_a_word_is_its_own(name, folder):
    ours, theirs, _ = saved(folder, name)
    ids = theirs(f"ab {theirs.mask_token} cd")["input_ids"]
    assert ids.count(ours.vocabulary_size) == 1
    before, after = ids[: (at := ids.index(ours.vocabulary_size))], ids[at + 1 :]
    spaced = name in ("bpe", "gpt2")  # words begin with their space there
    assert before == ours.encode("ab" if spaced else "ab ")
    assert after == ours.encode(" cd")


@pytest.mark.parametrize("name", ["bytes", "bpe", "gpt2", "bert", "characters"])
def test_a_text_stands_between_the_ends_of_the_training(name, folder):
    ours, theirs, _ = saved(folder, name, framed=True)
    assert theirs("the land")["input_ids"] == [ours.bos, *ours.encode("the land"), ours.eos]
    assert theirs.decode(theirs("the land")["input_ids"], skip_special_tokens=True) == "the land"
    _, causal, _ = saved(folder, name, framed=True, causal=True)
    assert causal("the land")["input_ids"] == [ours.vocabulary_size, ours.bos, *ours.encode("the land")]
    assert (causal.bos_token_id, causal.mask_token) == (ours.vocabulary_size, None)
    for model, right in ((theirs, True), (causal, False)):
        ids, longer = model("a")["input_ids"], model("a land")["input_ids"]
        padding = [model.pad_token_id] * (len(longer) - len(ids))
        assert model(["a", "a land"], padding=True)["input_ids"] == [ids + padding if right else padding + ids, longer]


def test_text_that_is_called_as_the_padding_is_no_padding(tmp_path):
    """Neither a token of the text, nor an end of it, pads, whatever it is called."""
    library = of_characters("ab", None, ["[PAD]", "<pad>"])
    library.add_tokens(["[[PAD]]"])
    ours = LibraryModel(library, bos="[PAD]", eos="<pad>")
    assert save(ours, tmp_path, framed=True, causal=False, length=8) == ours.vocabulary_size + 1
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.pad_token == "[[[PAD]]]"
    assert theirs(["a", "aab"], padding=True)["input_ids"] == [[2, 0, 3, 6, 6], [2, 0, 0, 1, 3]]
    library.add_special_tokens(["<|pad|>"])
    assert save(LibraryModel(library, bos="[PAD]", eos="<pad>"), tmp_path, framed=False, causal=True, length=8) == 5


def test_what_the_library_cannot_express_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"the library `tokenizers` cannot express .*train with"):
        save(TokenizerModel.__new__(type("Own", (TokenizerModel,), {})), tmp_path, framed=False, causal=False, length=8)


def test_a_vocabulary_with_gaps_is_refused(tmp_path):
    made = json.loads(Zoo.load().spec("tokenizer", "bytes").train(lambda: iter(())).library.to_str())
    made["model"]["vocab"]["zz"] = 300
    (tmp_path / "tokenizer.json").write_text(json.dumps(made), encoding="utf-8")
    ours = Zoo.load().spec("tokenizer", {"use": "pretrained", "path": str(tmp_path)}).train(lambda: iter(()))
    with pytest.raises(UserError, match="ids below the tokenizer's largest id, 300, have no token"):
        save(ours, tmp_path, framed=False, causal=False, length=8)
