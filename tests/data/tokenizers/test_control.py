"""Control tokens: BOS, EOS and added tokens are read from no text, whatever kind of vocabulary has them."""

import functools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from atat_zoo.data.dialogues import ROLES, Message
from atat_zoo.data.tokenizers.components import PretrainedTokenizer
from atat_zoo.data.tokenizers.tokenizer_models import LibraryModel, adapted
from atat_zoo.generation.layout import TextForm, parse
from atat_zoo.generation.samplers.published_samplers import AncestralSampler
from atat_zoo.system.errors import UserError

# As somebody writes them who wants to be taken for somebody else; the last ones are fullwidth.
NAMES = ("</s>", "<s>", "<|user|>", "### user:", "[MASK]", "<unk>", "＜/s＞", "＜|user|＞")
texts = st.lists(st.sampled_from([*NAMES, *"abé /s<>#:|", "user", "  ", "\n"])).map("".join)
without_gaps = texts.map(lambda text: text.replace("[MASK]", ""))  # a prompt with one is refused
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_pairs():
    """A byte-level vocabulary, in which merges make `</s>`; runs of spaces are added tokens, as GPT-NeoX has them."""
    pairs = [("<", "/"), ("s", ">"), ("</", "s>"), ("</s>", "a"), ("a", "b")]
    tokens = [*BYTES, *("".join(pair) for pair in pairs), "<s>"]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(False, use_regex=False), decoders.ByteLevel()
    made.add_tokens(["  "])
    return made


def unigram():
    """A vocabulary of scores, as SentencePiece's, in which `</s>` is a piece."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("<s>", 0.0), ("▁", -1.0), *((each, -2.0) for each in "abé/s<>#:|uer")]
    made = Tokenizer(models.Unigram(pieces, unk_id=0))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return made


def words():
    """A vocabulary of whole words."""
    known = ["[UNK]", "</s>", "<s>", "a", "user", "<|user|>"]
    made = Tokenizer(models.WordLevel({token: i for i, token in enumerate(known)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["[UNK]"])
    return made


@functools.cache
def model(make):
    library = make()
    library.add_tokens([AddedToken("<|user|>", normalized=True), "### user:"])
    return LibraryModel(library, bos="<s>", eos="</s>")


MAKES = (byte_pairs, unigram, words)


@pytest.mark.parametrize("make", MAKES)
@given(text=texts)
def test_no_text_is_control(make, text):
    tokenizer = model(make)
    vocabulary = tokenizer.library.get_vocab()
    assert tokenizer.control == {vocabulary[name] for name in ("<s>", "</s>", "<|user|>", "### user:")}
    ids = tokenizer.encode(text)
    assert not tokenizer.control & set(ids)
    # What the library knows besides them, it encodes as before.
    if not any(name in text for name in [*NAMES, "s>a"]):
        assert ids == make().encode(text, add_special_tokens=False).ids
    if make is byte_pairs:
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("make", MAKES)
def test_a_name_in_text_has_the_tokens_of_its_letters(make):
    tokenizer = model(make)
    vocabulary = tokenizer.library.get_vocab()
    spelled = {
        byte_pairs: ["</", "s>", "a", "  ", "ab"],
        unigram: ["▁", "<", "/", "s", ">", "a", "▁", "▁", "a", "b"],
        words: ["[UNK]", "[UNK]"],
    }[make]
    assert tokenizer.encode("</s>a  ab") == [vocabulary[token] for token in spelled]


@pytest.mark.parametrize("make", MAKES)
@given(st.lists(st.builds(Message, st.sampled_from(ROLES), texts), min_size=1, max_size=4))
def test_no_message_ends_itself_or_begins_another(make, said):
    tokenizer = model(make)
    ids = [i for part in tokenizer.chat(said) for i in part.ids]
    ends = [i for i in ids if i in tokenizer.control]
    assert ends == [tokenizer.bos, tokenizer.eos] * len(said)


@pytest.mark.parametrize("make", MAKES)
@given(before=without_gaps, after=without_gaps)
def test_a_prompt_and_a_text_with_gaps_have_no_control(make, before, after):
    tokenizer = model(make)
    form, mask = TextForm(tokenizer=tokenizer, length=400), tokenizer.vocabulary_size
    request = form.request(AncestralSampler(), prompt=before, suffix=after)
    assert not tokenizer.control & {i for i in request.row if i != mask}
    (layout,) = form.layouts([f"{before} [MASK:2] {after.replace('[MASK]', '')}"])
    assert not tokenizer.control & {i for piece in layout.pieces for i in piece}
    assert len(layout.pieces) == 2 + len(parse(before + "[MASK]").gaps) - 1


@pytest.mark.parametrize(
    ("make", "ends"),
    [(byte_pairs, {"eos": "a"}), (unigram, {"bos": "<unk>"}), (words, {"eos": "[UNK]"}), (unigram, {"eos": "é"})],
)
def test_an_end_that_text_has_is_refused(make, ends, tmp_path):
    make().save(str(tmp_path / "tokenizer.json"))
    ((key, name),) = ends.items()
    with pytest.raises(UserError, match=rf"tokenizer.{key}: text can be encoded to '.*{name[1:]}'; name a token that"):
        PretrainedTokenizer(path=str(tmp_path), **ends).train(lambda: iter(()))


def test_what_is_saved_is_the_file(tmp_path):
    tokenizer = model(byte_pairs)
    before = tokenizer.library.to_str()
    tokenizer.save(tmp_path)
    assert (tmp_path / "tokenizer.json").read_text(encoding="utf-8") == before
    assert "</s>" in json.loads(before)["model"]["vocab"]


@pytest.mark.parametrize(
    "front",
    [
        {"normalizer": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])},
        {"normalizer": normalizers.Prepend("▁"), "pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="never")},
        {"pre_tokenizer": pre_tokenizers.Metaspace()},
        {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="first")])},
    ],
)
def test_a_text_that_goes_on_has_no_space_before_it(front):
    made = Tokenizer(models.BPE({"▁": 0, "a": 1, "▁a": 2}, [("▁", "a")]))
    for key, value in front.items():
        setattr(made, key, value)
    on = adapted(made, prefix=False)
    for text, tokens in (("a", ["a"]), (" a", ["▁a"]), ("a a", ["a", "▁a"])):
        assert on.encode(text).tokens == tokens
    assert made.encode("a").tokens == ["▁a"]
    bytes_ = byte_pairs()
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(True, use_regex=False)
    assert adapted(bytes_, prefix=False).encode("a").ids == byte_pairs().encode("a").ids
