"""Checks of corpora, boundaries, detokenizers, tokenizers, transforms and judge models."""

import io
import itertools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from atat_zoo.data import SPLITS
from atat_zoo.data.corpora import Corpus
from atat_zoo.data.stream import Apply
from atat_zoo.data.tokenizers import Tokenizer
from atat_zoo.data.tokenizers.components import BytesTokenizer
from atat_zoo.data.transforms import Transform
from atat_zoo.registry import Context
from atat_zoo.system.errors import UserError
from atat_zoo.testing.batches import close, for_examples, holds, is_tensor, raises

# The first text has only letters and spaces, so that every tokenizer can encode it.
PLAIN = "the people of this nation keep a just peace with all the states of the world"
_SPACES, _NAMES = "  two  spaces ", "[MASK] <bos> <eos> <|endoftext|>"
TEXTS = (PLAIN, "", "a", _SPACES, "A Capital, 3 digits.\n", "naïve café — 日本語 🙂", _NAMES)
_FIRST = 100


def check_corpus(corpus: Any) -> None:
    """Check the contract of a corpus whose files exist: the same documents each time, and none in two splits."""
    assert Corpus in corpus.__class__.__mro__, "a corpus must inherit from atat_zoo.data.corpora.Corpus"
    fingerprint = corpus.fingerprint()
    assert isinstance(fingerprint, dict), "a fingerprint must be a dict"
    assert json.loads(json.dumps(fingerprint)) == fingerprint, (
        "a fingerprint must be unchanged after writing and reading it as JSON"
    )
    assert corpus.fingerprint() == fingerprint, "the same text must have the same fingerprint"
    if (folder := corpus.built()) is not None:
        assert folder.is_dir(), "built() must return the folder of existing shards, or None"
        _refuses(corpus, "train", "a corpus of built shards must raise an error instead of yielding documents")
        return
    texts = {split: list(corpus.documents(split)) for split in SPLITS}
    assert texts["train"], "the corpus must have training documents"
    for split, documents in texts.items():
        for document in documents:
            assert isinstance(document, str), f"a document must be a str, not {type(document).__name__}"
        again = list(itertools.islice(corpus.documents(split), _FIRST))
        assert again == documents[:_FIRST], (
            f"the {split} split must have the same documents in the same order each time"
        )
    for split, other in itertools.combinations(SPLITS, 2):
        both = set(texts[split]) & set(texts[other]) - {""}
        assert not both, f"a document must not be both in {split} and in {other}: {min(both)!r:.60}"
    _refuses(corpus, "no such split", "an unknown split must raise a UserError, ValueError or KeyError")


def check_boundary(boundary: Any, examples: int = 50) -> None:
    """Check the contract of a document boundary: every word of a file is kept once, and the length is limited."""

    @for_examples(examples, lines=st.lists(st.sampled_from(_LINES), max_size=12), ends=st.booleans())
    def holds_words(lines: list[str], ends: bool) -> None:
        text = "\n".join(lines) + "\n" * ends
        documents, again = (list(boundary.documents(io.StringIO(text), len(text) + 1)) for _ in range(2))
        assert all(isinstance(document, str) for document in documents), "a document must be a str"
        assert " ".join(documents).split() == text.split(), "no word may be lost, repeated or divided"
        assert again == documents, "a file must yield the same documents each time"
        longest = max(map(len, documents), default=0)
        if longest > 1:
            promise = "a document with more characters than the limit must raise a MemoryError"
            raises((MemoryError,), lambda: list(boundary.documents(io.StringIO(text), (longest - 1) // 2)), promise)


_LINES = ("", " ", "one word", "two  words ", " = Title = ", " = = Part = = ", "\ta", "= a = b =", "é 日本")


def check_detokenizer(detokenizer: Any) -> None:
    """Check the contract of a detokenizer: a deterministic function from str to str that keeps blank texts blank."""
    for text in (*TEXTS, *_LINES, " @-@ ".join("abc"), "He said , \" it 's ' here ' \" ."):
        made = detokenizer(text)
        assert isinstance(made, str), f"a detokenizer must return a str, not {type(made).__name__}"
        assert detokenizer(text) == made, f"a detokenizer must return the same result for the same text: {text!r}"
        assert bool(made.strip()) == bool(text.strip()), f"a blank text, and no other, must become blank: {text!r}"


def _refuses(corpus: Any, split: str, promise: str) -> None:
    raises((UserError, ValueError, KeyError), lambda: next(iter(corpus.documents(split)), None), promise)


def check_tokenizer(tokenizer: Any, texts: Sequence[str] = ()) -> None:
    """Check the contract of a tokenizer whose files exist: decoding restores every byte, and no text yields BOS or EOS.

    The tokenizer must be able to encode the first text; the others may raise a `UserError`. The texts default to the
    tokenizer's own `texts`, if any, and otherwise to English ones.
    """
    assert Tokenizer in tokenizer.__class__.__mro__, "a tokenizer must inherit from atat_zoo.data.tokenizers.Tokenizer"
    texts = texts or tokenizer.texts or TEXTS
    documents = [texts[0]] * 20
    model = tokenizer.train(lambda: iter(documents))
    V = model.vocabulary_size
    special = {"bos": model.bos, "eos": model.eos}
    sizes = model.byte_counts()
    is_tensor(torch.from_numpy(sizes), "byte counts", torch.int64, (V,))
    for name, i in special.items():
        assert i is None or 0 <= i < V, f"{name} must be an id from 0 to V - 1, not {i}, because V = {V} is the mask"
        assert i is None or sizes[i] == 0, f"the byte count of {name} must be 0"

    encoded: dict[str, list[int]] = {}
    for text in texts:
        try:
            encoded[text] = list(model.encode(text))
        except UserError:  # for a text that it cannot encode
            assert text != texts[0], f"the tokenizer must be able to encode this text: {text!r}"
    for text, ids in encoded.items():
        assert all(0 <= i < V for i in ids), f"ids must be from 0 to vocabulary_size - 1: {text!r}"
        assert not set(ids) & set(special.values()), f"encode() must not return BOS or EOS: {text!r}"
        decoded = model.decode(ids)
        assert decoded == text, f"decode() must restore the text, but {text!r} became {decoded!r}"
        size = len(text.encode())
        assert sizes[ids].sum() == size, (
            f"byte counts must add up to the size of the text, which for {text!r} is {size} bytes"
        )
    assert model.encode_batch(list(encoded)) == list(encoded.values()), (
        "encode_batch() must return the same ids as encode()"
    )
    ids = encoded[texts[0]]
    framed = [i for i in (model.bos, *ids, model.eos) if i is not None]
    assert model.decode(framed) == texts[0], "decode() must omit BOS and EOS"
    assert model.decode([*ids, V]) == f"{texts[0]}[MASK]", "decode() must represent the mask as [MASK]"

    again = tokenizer.train(lambda: iter(documents))
    _same(again, model, encoded, "training on the same text must give the same tokenizer")
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder))
        _same(tokenizer.load(Path(folder)), model, encoded, "load() must restore what save() wrote")


def _same(model: Any, wanted: Any, encoded: dict[str, list[int]], promise: str) -> None:
    for fact in ("vocabulary_size", "bos", "eos"):
        assert getattr(model, fact) == getattr(wanted, fact), f"{promise}: {fact} differs"
    assert np.array_equal(model.byte_counts(), wanted.byte_counts()), f"{promise}: the byte counts differ"
    for text, ids in encoded.items():
        assert model.encode(text) == ids, f"{promise}: the ids of {text!r} differ"


_LENGTH = 24


def check_transform(transform: Any, examples: int = 50) -> None:
    """Check the contract of a transform: a sequence or None that depends only on tokens, key and context."""
    assert Transform in transform.__class__.__mro__, "a transform must inherit from atat_zoo.data.transforms.Transform"
    tokenizer = BytesTokenizer().train(lambda: iter(()))
    V = tokenizer.vocabulary_size
    context = Context(vocabulary_size=V, length=_LENGTH, counts=np.arange(V, dtype=np.int64), tokenizer=tokenizer)
    contents: Any = SimpleNamespace(length=_LENGTH, dtype="uint16")
    passed = 0

    def holds(tokens: list[int], key: int, seed: int) -> None:
        nonlocal passed

        def made(seed: int) -> NDArray[Any]:
            np.random.seed(seed)
            torch.manual_seed(seed)
            found = transform.apply(np.array(tokens), key, context)
            return np.array([] if found is None else found)  # a sequence cannot be empty

        first = made(seed)
        transform.apply(np.array([7, 7]), key + 1, context)  # a different sample in between
        again = made(seed + 1)
        assert np.array_equal(first, again), "the same tokens, key and context must give the same result"
        stored = np.full(_LENGTH, np.iinfo(np.uint16).max, np.uint16)
        stored[: len(tokens)] = tokens
        try:
            (sample,) = Apply(transform, 0, seed, contents, context)([{"stored": stored, "index": key, "attempt": 0}])
        except UserError as error:  # the result is not a valid sequence
            raise AssertionError(str(error)) from None
        passed += "refused" not in sample

    tokens = st.lists(st.integers(0, V - 1), min_size=1, max_size=_LENGTH)
    for_examples(examples, tokens=tokens, key=st.integers(0, 2**64 - 1), seed=st.integers(0, 99))(holds)
    for key in range(100):
        holds(list(range(_LENGTH)), key, 0)  # because all examples may be too short to pass
    assert passed, "the transform must let at least one sequence pass"


# Only letters and spaces, which every tokenizer can encode.
JUDGED = (
    "it was a bright cold day in april and the clocks were striking",
    "the",
    "a text that is rather longer than the others " * 6,
    "zz zz zz zz",
)


def check_judge(judge: Any, texts: tuple[str, ...] = JUDGED) -> None:
    """Check the contract of a judge model whose files exist: independent NLLs ≥ 0 that are larger for longer texts."""
    made = judge.build("cpu")
    assert str(made.title).strip(), "a judge model must have a title"
    nats, tokens = made.nats(texts)
    is_tensor(nats, "nats", torch.float64, (len(texts),))
    is_tensor(tokens, "token counts", torch.int64, (len(texts),))
    holds(nats.isfinite() & (nats >= 0), "NLLs must be finite and not negative", nats)
    holds(tokens >= 0, "token counts must not be negative")
    again, _ = judge.build("cpu").nats(texts)
    close(again, nats, 0, "the same texts must have the same NLLs")

    features = made.features(texts)
    is_tensor(features, "features, one vector per text", torch.float32, (len(texts), features.shape[-1]))
    holds(features.isfinite(), "features must be finite")
    for i, text in enumerate(texts):
        alone, counted = made.nats([text])
        close(
            alone,
            nats[i : i + 1],
            1e-3 * float(nats[i]) + 1e-6,
            "the NLL of a text must not depend on the other texts",
        )
        close(counted, tokens[i : i + 1], 0, "the token count of a text must not depend on the other texts")
        close(
            made.features([text]),
            features[i : i + 1],
            1e-3,
            "the features of a text must not depend on the other texts",
        )
        longer, more = made.nats([f"{text} {text} {text}"])
        holds(longer > nats[i], "a longer text must have a higher NLL", text)
        holds(more > tokens[i], "a longer text must have more tokens", text)
    nothing, none = made.nats(["", texts[0]])
    holds((nothing[:1] == 0) & (none[:1] == 0), "an empty string must have 0 tokens and an NLL of 0")
    close(
        nothing[1:], nats[:1], 1e-3 * float(nats[0]) + 1e-6, "an empty string must not change the NLLs of other texts"
    )
    raises((UserError,), lambda: made.nats([]), "`nats` without texts must raise a UserError")
    raises((UserError,), lambda: made.features([texts[0], ""]), "features of an empty string must raise a UserError")
