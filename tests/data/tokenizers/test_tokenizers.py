"""Tokenizers: what goes in comes out, the bytes add up, and files are refused in words."""

import functools
import hashlib
import itertools
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data.sequence_packing import pieces
from atat_zoo.data.tokenizers.components import (
    BPETokenizer,
    BytesTokenizer,
    CharactersTokenizer,
    PretrainedTokenizer,
    RunTokenizer,
)
from atat_zoo.data.tokenizers.tokenizer_models import ALPHABET
from atat_zoo.system.errors import UserError
from tests.limited import limited

TEXTS = (
    "It was the best of times, it was the worst of times; it was the age of wisdom.",
    "Grüße! 日本語 und 12 345 Zeichen…\n\n  <bos> is a text here, and so is <|endoftext|>.",
) * 20


@functools.cache
def model(name):
    spec = {"bytes": BytesTokenizer(), "bpe": BPETokenizer(vocabulary_size=320)}[name]
    return spec.train(lambda: iter(TEXTS))


def pretrained(path, **settings):
    return PretrainedTokenizer(path=str(path), **settings).train(lambda: iter(()))


@pytest.mark.parametrize("name", ["bytes", "bpe"])
@given(texts=st.lists(st.text(), max_size=5))
def test_any_text_comes_back(name, texts):
    tokenizer = model(name)
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert ids == tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert all(0 <= i < tokenizer.vocabulary_size for i in ids)
        assert not {tokenizer.bos, tokenizer.eos} & set(ids)
        assert tokenizer.byte_counts()[ids].sum() == len(text.encode())


@pytest.mark.parametrize("name", ["bytes", "bpe"])
@given(ids=st.lists(st.integers(0, 258)))
def test_any_ids_are_written(name, ids):
    # Early in training a model writes nonsense; it must be shown, not crash.
    tokenizer = model(name)
    ids = [i % (tokenizer.vocabulary_size + 1) for i in ids]
    text = tokenizer.decode(ids)
    assert text.count("[MASK]") >= ids.count(tokenizer.vocabulary_size)
    assert tokenizer.decode([i for i in ids if i not in (tokenizer.bos, tokenizer.eos)]) == text


@given(st.text(st.sampled_from("ab \n\t,.'sé日1"), max_size=120), st.integers(1, 30))
def test_pieces_cut_between_words_have_the_tokens_of_the_whole(text, size):
    tokenizer = model("bpe")
    found = [piece.text for piece in pieces(text, size)]
    if all(
        right[0] == " " and not right[1:2].isspace() and not left[-1].isspace()
        for left, right in itertools.pairwise(found)
    ):
        assert [i for ids in tokenizer.encode_batch(found) for i in ids] == tokenizer.encode(text)


def test_bpe_learns_pairs_and_stops_when_there_are_none():
    tokenizer = model("bpe")
    assert tokenizer.vocabulary_size == 320
    assert len(tokenizer.encode(TEXTS[0])) < len(TEXTS[0]) / 2
    small = BPETokenizer(vocabulary_size=5000).train(lambda: iter(["aaaa"]))
    assert small.vocabulary_size == 260  # bytes, "aa", "aaaa", BOS, EOS


@pytest.mark.slow
def test_bpe_is_the_same_in_another_process():
    script = "from tests.data.tokenizers.test_tokenizers import model; print(model('bpe').library.to_str())"
    environment = {**os.environ, "PYTHONHASHSEED": "2", "RAYON_NUM_THREADS": "2"}
    written = subprocess.check_output([sys.executable, "-c", script], env=environment, text=True)
    assert written == model("bpe").library.to_str() + "\n"


def test_characters():
    plain, special = (CharactersTokenizer(special_tokens=special).train(lambda: iter(())) for special in (False, True))
    assert (plain.vocabulary_size, plain.bos, plain.eos) == (27, None, None)
    assert plain.encode(ALPHABET) == list(range(27))
    assert (special.vocabulary_size, special.bos, special.eos) == (29, 27, 28)
    assert special.byte_counts().tolist() == [1] * 27 + [0, 0]
    with pytest.raises(UserError, match=r'not \'É\'; set tokenizer\.unknown = "space"'):
        CharactersTokenizer().train(lambda: iter(())).encode("caf\u00c9")
    assert CharactersTokenizer(unknown="space").train(lambda: iter(())).encode("aÉ7b") == [1, 0, 0, 2]


def test_the_file_is_that_of_every_version(tmp_path):
    """Shards and runs of an earlier one have it."""
    characters = {"type": "characters", "special": False, "unknown": "space", "alphabet": " abcdefghijklmnopqrstuvwxyz"}
    for spec, content in ((BytesTokenizer(), {"type": "bytes"}), (CharactersTokenizer(unknown="space"), characters)):
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        loaded = spec.load(tmp_path)
        loaded.save(tmp_path)
        assert json.loads((tmp_path / "tokenizer.json").read_text()) == content
        assert loaded.decode(loaded.encode("as it is")) == "as it is"


# -- of a run ---------------------------------------------------------------------------------------------------------


def test_the_tokenizer_of_a_run_is_its_own(tmp_path):
    like = CharactersTokenizer(special_tokens=True)
    folder = tmp_path / "run" / "model"
    folder.mkdir(parents=True)
    with pytest.raises(
        UserError, match=r"tokenizer\.path: file not found: .*run/model/tokenizer\.json; name a finished run"
    ):
        RunTokenizer(path=str(tmp_path / "run"), like=like).fingerprint()
    like.train(lambda: iter(())).save(folder)
    file = folder / "tokenizer.json"
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    found, named = (RunTokenizer(path=str(tmp_path / "run"), like=like, sha256=sha) for sha in (None, sha256))
    for each in (found, named):
        model = each.train(lambda: iter(()))
        assert (model.vocabulary_size, model.bos, model.eos) == (29, 27, 28)
        assert each.load(folder).encode("ab") == [1, 2]
        assert each.fingerprint() == sha256
        assert each.identity() == like.identity()
        assert each.template is None
    file.write_text(file.read_text() + "\n")
    assert found.train(lambda: iter(())).vocabulary_size == 29
    assert found.fingerprint() != sha256 == named.fingerprint()
    with pytest.raises(UserError, match=r"tokenizer\.path: .* has changed since this experiment was resolved"):
        named.train(lambda: iter(()))


# -- pretrained -------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path):
    """A folder with a vocabulary and merges as GPT-2's, the special token last."""
    folder = tmp_path / "gpt"
    folder.mkdir()
    trained = BPETokenizer(vocabulary_size=300).train(lambda: iter(TEXTS))
    content = json.loads(trained.library.to_str())
    vocabulary = {**content["model"]["vocab"], "<|endoftext|>": 298}
    merges = [" ".join(pair) for pair in content["model"]["merges"]]
    (folder / "encoder.json").write_text(json.dumps(vocabulary))
    (folder / "vocab.bpe").write_text("\n".join(["#version: 0.2", *merges, ""]))
    return folder


def test_a_pair_of_files(pair):
    ends = {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}
    tokenizer = pretrained(pair, **ends)
    assert (tokenizer.vocabulary_size, tokenizer.bos, tokenizer.eos) == (299, 298, 298)
    reference = BPETokenizer(vocabulary_size=300).train(lambda: iter(TEXTS))
    for text in TEXTS[:2]:
        assert tokenizer.encode(text) == reference.encode(text)  # the special token's name is text
        assert tokenizer.decode([298, *tokenizer.encode(text), 299, 298]) == f"{text}[MASK]"
        assert tokenizer.byte_counts()[tokenizer.encode(text)].sum() == len(text.encode())
    assert tokenizer.byte_counts()[298] == 0
    assert pretrained(pair / "encoder.json").eos is None
    tokenizer.save(pair)
    loaded = PretrainedTokenizer(path="gone", bos="|>.", eos="<|endoftext|>").load(pair)
    assert (loaded.bos, loaded.eos, loaded.encode(TEXTS[0])) == (296, 298, tokenizer.encode(TEXTS[0]))
    spec = PretrainedTokenizer(path="a", bos="<s>", source="the attic")
    assert spec.identity() == {"use": "pretrained", "path": "a", "bos": "<s>"}


def test_ways_to_name_a_tokenizer(pair):
    expected = pretrained(pair).encode(TEXTS[0])
    (pair / "my.json").write_bytes((pair / "encoder.json").read_bytes())
    (pair / "my.txt").write_bytes((pair / "vocab.bpe").read_bytes())
    named = pretrained(pair / "my.json", merges=str(pair / "my.txt"))
    assert named.encode(TEXTS[0]) == expected
    before = PretrainedTokenizer(path=str(pair)).fingerprint()
    assert PretrainedTokenizer(path=str(pair)).fingerprint() == before
    (pair / "vocab.bpe").write_text("#version: 0.2\n")
    assert PretrainedTokenizer(path=str(pair)).fingerprint() != before
    named.save(pair)  # writes tokenizer.json, which a folder is asked for first
    for path in (pair, pair / "tokenizer.json"):
        assert pretrained(path).encode(TEXTS[0]) == expected


def test_pretrained_mistakes(pair, tmp_path):
    cases = [
        ({"path": str(tmp_path / "no.json")}, r"tokenizer\.path: file not found: .*no\.json"),
        ({"path": str(tmp_path)}, r"contains no tokenizer\.json, vocab\.json or encoder\.json"),
        ({"path": str(pair / "encoder.json"), "merges": "no.txt"}, r"tokenizer\.merges: file not found: no\.txt"),
        ({"path": str(pair / "vocab.bpe")}, "cannot be read by the tokenizers library"),
        ({"path": str(pair / "encoder.json"), "merges": str(pair / "encoder.json")}, "are not a byte-pair encoding"),
        ({"path": str(pair), "eos": "<|endoftex|>"}, r"tokenizer\.eos: .* no token '<\|endoftex\|>'; did you mean"),
    ]
    for settings, message in cases:
        with pytest.raises(UserError, match=message):
            PretrainedTokenizer(**settings).train(lambda: iter(()))


def test_a_tokenizer_that_is_not_byte_level(tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = {"[UNK]": 0, "the": 1, "cat": 2, "##s": 3, "[SEP]": 4}
    library = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.decoder = decoders.WordPiece()
    library.add_special_tokens(["[SEP]"])
    library.enable_truncation(2)
    library.enable_padding(length=9)
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = pretrained(tmp_path, eos="[SEP]")
    ids = tokenizer.encode("the cats the cats")
    assert ids == [1, 2, 3, 1, 2, 3]  # neither truncated nor padded
    assert tokenizer.decode([*ids[:3], 5, *ids[3:], 4]) == "the cats[MASK]the cats"
    assert tokenizer.byte_counts().tolist() == [5, 3, 3, 1, 0]


def numbered(tmp_path, **ids):
    """Write a tokenizer.json with these tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"the": 0, "people": 1}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    content = json.loads(tokenizer.to_str())
    content["model"]["vocab"] = ids
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    return path


def test_files_that_are_missing_or_broken_or_of_another_tokenizer(tmp_path):
    for spec in (BytesTokenizer(), BPETokenizer()):
        (tmp_path / "tokenizer.json").unlink(missing_ok=True)
        with pytest.raises(UserError, match=r"tokenizer\.json is missing"):
            spec.load(tmp_path)
        (tmp_path / "tokenizer.json").write_text("{")
        with pytest.raises(UserError, match=r"not readable JSON|cannot be read by the tokenizers library"):
            spec.load(tmp_path)
    BytesTokenizer().train(lambda: iter(())).save(tmp_path)
    for spec in (CharactersTokenizer(), BPETokenizer()):
        with pytest.raises(UserError, match=r"does not match the|cannot be read by the tokenizers library"):
            spec.load(tmp_path)
    CharactersTokenizer().train(lambda: iter(())).save(tmp_path)
    with pytest.raises(UserError, match=r'does not match the experiment.s tokenizer.* "special": false'):
        CharactersTokenizer(special_tokens=True).load(tmp_path)


def test_texts_and_ids_that_a_vocabulary_does_not_have(tmp_path):
    tokenizer = pretrained(numbered(tmp_path, the=0))
    for encode, text in ((tokenizer.encode, "people"), (tokenizer.encode_batch, ["people"])):
        with pytest.raises(UserError, match=r"the text cannot be encoded: .*UNK.*; use a tokenizer that can encode"):
            encode(text)
    for largest in (4100, 2**32 - 1):
        path = numbered(tmp_path, the=0, people=largest)
        with (
            limited(),
            pytest.raises(UserError, match=f"has 2 tokens, but the largest id is {largest}; number the tokens without"),
        ):
            pretrained(path)
    path = numbered(tmp_path, the=0, people=4099)  # some ids may have no token
    assert pretrained(path).vocabulary_size == 4100
    with pytest.raises(UserError, match=r"tokenizer\.json has no tokens"):
        pretrained(numbered(tmp_path))
