"""Checks of corpora, boundaries, detokenizers, tokenizers, transforms of the training stream, and judges."""

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

# The first can be written by every tokenizer: letters and spaces alone.
PLAIN = "the people of this nation keep a just peace with all the states of the world"
_SPACES, _NAMES = "  two  spaces ", "[MASK] <bos> <eos> <|endoftext|>"
TEXTS = (PLAIN, "", "a", _SPACES, "A Capital, 3 digits.\n", "naïve café — 日本語 🙂", _NAMES)
_FIRST = 100


def check_corpus(corpus: Any) -> None:
    """Check the contract of a corpus whose text is there: texts, the same each time, none of them in two splits."""
    assert Corpus in corpus.__class__.__mro__, "a corpus inherits from atat_zoo.data.corpora.Corpus"
    fingerprint = corpus.fingerprint()
    assert isinstance(fingerprint, dict), "a fingerprint is a table"
    assert json.loads(json.dumps(fingerprint)) == fingerprint, "a fingerprint can be written as JSON and read back"
    assert corpus.fingerprint() == fingerprint, "the same text has the same fingerprint"
    if (folder := corpus.built()) is not None:
        assert folder.is_dir(), "built() is the folder of the shards"
        _refuses(corpus, "train", "a corpus that is built already has no documents to give")
        return
    texts = {split: list(corpus.documents(split)) for split in SPLITS}
    assert texts["train"], "there are documents to train on"
    for split, documents in texts.items():
        for document in documents:
            assert isinstance(document, str), f"a document is a str, not {type(document).__name__}"
        again = list(itertools.islice(corpus.documents(split), _FIRST))
        assert again == documents[:_FIRST], f"{split} has the same documents in the same order each time"
    for split, other in itertools.combinations(SPLITS, 2):
        both = set(texts[split]) & set(texts[other]) - {""}
        assert not both, f"no document is in {split} and in {other} too: {min(both)!r:.60}"
    _refuses(corpus, "no such split", "a split that there is not is refused")


def check_boundary(boundary: Any, examples: int = 50) -> None:
    """Check the contract of a boundary: no word of a file is lost or doubled, and no document is too long."""

    @for_examples(examples, lines=st.lists(st.sampled_from(_LINES), max_size=12), ends=st.booleans())
    def holds_words(lines: list[str], ends: bool) -> None:
        text = "\n".join(lines) + "\n" * ends
        documents, again = (list(boundary.documents(io.StringIO(text), len(text) + 1)) for _ in range(2))
        assert all(isinstance(document, str) for document in documents), "a document is a str"
        assert " ".join(documents).split() == text.split(), "no word is lost, doubled or divided"
        assert again == documents, "a file has the same documents each time"
        longest = max(map(len, documents), default=0)
        if longest > 1:
            promise = "a document of more characters than are allowed raises MemoryError"
            raises((MemoryError,), lambda: list(boundary.documents(io.StringIO(text), (longest - 1) // 2)), promise)


_LINES = ("", " ", "one word", "two  words ", " = Title = ", " = = Part = = ", "\ta", "= a = b =", "é 日本")


def check_detokenizer(detokenizer: Any) -> None:
    """Check the contract of a detokenizer: any text to a text, the same each time, and nothing from nothing."""
    for text in (*TEXTS, *_LINES, " @-@ ".join("abc"), "He said , \" it 's ' here ' \" ."):
        made = detokenizer(text)
        assert isinstance(made, str), f"a text is a str, not {type(made).__name__}"
        assert detokenizer(text) == made, f"a text is the same each time: {text!r}"
        assert bool(made.strip()) == bool(text.strip()), f"a text stays one, and nothing stays nothing: {text!r}"


def _refuses(corpus: Any, split: str, promise: str) -> None:
    raises((UserError, ValueError, KeyError), lambda: next(iter(corpus.documents(split)), None), promise)


def check_tokenizer(tokenizer: Any, texts: Sequence[str] = ()) -> None:
    """Check the contract of a tokenizer whose files are there: decoding restores every byte; no text has a special id.

    It must be able to write the first of the texts; others may raise `UserError`. Its own `texts` are tried when none
    are given, if it has any, and else English.
    """
    assert Tokenizer in tokenizer.__class__.__mro__, "a tokenizer inherits from atat_zoo.data.tokenizers.Tokenizer"
    texts = texts or tokenizer.texts or TEXTS
    documents = [texts[0]] * 20
    model = tokenizer.train(lambda: iter(documents))
    V = model.vocabulary_size
    special = {"bos": model.bos, "eos": model.eos}
    sizes = model.byte_counts()
    is_tensor(torch.from_numpy(sizes), "byte counts", torch.int64, (V,))
    for name, i in special.items():
        assert i is None or 0 <= i < V, f"{name} is an id from 0 to V - 1, not {i} (V = {V}); the mask alone is V"
        assert i is None or sizes[i] == 0, f"{name} stands for no text, so its byte count is 0"

    encoded: dict[str, list[int]] = {}
    for text in texts:
        try:
            encoded[text] = list(model.encode(text))
        except UserError:  # as it says of a text that it cannot write
            assert text != texts[0], f"this text can be written: {text!r}"
    for text, ids in encoded.items():
        assert all(0 <= i < V for i in ids), f"the ids of a text are from 0 to V - 1, and the mask is no text: {text!r}"
        assert not set(ids) & set(special.values()), f"BOS and EOS are no text: {text!r}"
        decoded = model.decode(ids)
        assert decoded == text, f"a text is decoded from its ids: {text!r} became {decoded!r}"
        size = len(text.encode())
        assert sizes[ids].sum() == size, f"byte counts add up to the bytes of the text: {text!r} has {size}"
    assert model.encode_batch(list(encoded)) == list(encoded.values()), "several texts have the ids of each alone"
    ids = encoded[texts[0]]
    framed = [i for i in (model.bos, *ids, model.eos) if i is not None]
    assert model.decode(framed) == texts[0], "BOS and EOS are left out of the text"
    assert model.decode([*ids, V]) == f"{texts[0]}[MASK]", "the mask is written as [MASK]"

    again = tokenizer.train(lambda: iter(documents))
    _same(again, model, encoded, "trained on the same text it is the same")
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder))
        _same(tokenizer.load(Path(folder)), model, encoded, "what is saved is loaded as it was")


def _same(model: Any, wanted: Any, encoded: dict[str, list[int]], promise: str) -> None:
    for fact in ("vocabulary_size", "bos", "eos"):
        assert getattr(model, fact) == getattr(wanted, fact), f"{promise}: {fact} differs"
    assert np.array_equal(model.byte_counts(), wanted.byte_counts()), f"{promise}: the byte counts differ"
    for text, ids in encoded.items():
        assert model.encode(text) == ids, f"{promise}: the ids of {text!r} differ"


_LENGTH = 24


def check_transform(transform: Any, examples: int = 50) -> None:
    """Check the contract of a transform: a sequence or a refusal, which only tokens, key and context decide."""
    assert Transform in transform.__class__.__mro__, "a transform inherits from atat_zoo.data.transforms.Transform"
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
            return np.array([] if found is None else found)  # an empty one would be no sequence

        first = made(seed)
        transform.apply(np.array([7, 7]), key + 1, context)  # another sample between
        again = made(seed + 1)
        assert np.array_equal(first, again), "a sequence becomes the same, or is refused, with the same key"
        stored = np.full(_LENGTH, np.iinfo(np.uint16).max, np.uint16)
        stored[: len(tokens)] = tokens
        try:
            (sample,) = Apply(transform, 0, seed, contents, context)([{"stored": stored, "index": key, "attempt": 0}])
        except UserError as error:  # what it has made is no sequence
            raise AssertionError(str(error)) from None
        passed += "refused" not in sample

    tokens = st.lists(st.integers(0, V - 1), min_size=1, max_size=_LENGTH)
    for_examples(examples, tokens=tokens, key=st.integers(0, 2**64 - 1), seed=st.integers(0, 99))(holds)
    for key in range(100):
        holds(list(range(_LENGTH)), key, 0)  # all examples may be too short to pass
    assert passed, "some sequence passes"


# In letters and spaces alone, which every tokenizer can write.
JUDGED = (
    "it was a bright cold day in april and the clocks were striking",
    "the",
    "a text that is rather longer than the others " * 6,
    "zz zz zz zz",
)


def check_judge(judge: Any, texts: tuple[str, ...] = JUDGED) -> None:
    """Check the contract of a judge whose model is there: nonnegative nats of each text alone, more for longer ones."""
    made = judge.build("cpu")
    assert str(made.title).strip(), "a judge has a title"
    nats, tokens = made.nats(texts)
    is_tensor(nats, "nats", torch.float64, (len(texts),))
    is_tensor(tokens, "counts of tokens", torch.int64, (len(texts),))
    holds(nats.isfinite() & (nats >= 0), "nats are finite and not negative", nats)
    holds(tokens >= 0, "there are no fewer than 0 tokens")
    again, _ = judge.build("cpu").nats(texts)
    close(again, nats, 0, "the same judge says the same of the same texts")

    features = made.features(texts)
    is_tensor(features, "features, a vector for each text", torch.float32, (len(texts), features.shape[-1]))
    holds(features.isfinite(), "features are finite")
    for i, text in enumerate(texts):
        alone, counted = made.nats([text])
        close(alone, nats[i : i + 1], 1e-3 * float(nats[i]) + 1e-6, "a text does not depend on those beside it")
        close(counted, tokens[i : i + 1], 0, "nor does the count of its tokens")
        close(made.features([text]), features[i : i + 1], 1e-3, "nor does its feature")
        longer, more = made.nats([f"{text} {text} {text}"])
        holds(longer > nats[i], "a longer text costs more", text)
        holds(more > tokens[i], "a longer text has more tokens", text)
    nothing, none = made.nats(["", texts[0]])
    holds((nothing[:1] == 0) & (none[:1] == 0), "an empty text has no tokens and costs nothing")
    close(nothing[1:], nats[:1], 1e-3 * float(nats[0]) + 1e-6, "an empty text changes nothing for the others")
