"""Documents held out of a training text, by the order of their hashes."""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import numpy as np

from atat_zoo.data import SPLITS
from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from atat_zoo.data import Split


class Divided(Protocol):
    """A corpus whose `validation` and `test` each name a text, or nothing: then a share of the training text."""

    @property
    def validation(self) -> object:
        """What to validate on."""

    @property
    def test(self) -> object:
        """What to test on."""

    @property
    def validation_share(self) -> float:
        """The share of the training documents that is held out where nothing is named."""

    @property
    def test_share(self) -> float:
        """As `validation_share`."""

    @property
    def seed(self) -> int:
        """A different seed holds out different documents."""

    def read(self, split: Split) -> Iterator[str]:
        """Yield the documents of the text that a split names."""

    def __hash__(self) -> int:
        """Equal parameters, equal hashes: what was chosen for a corpus is remembered by it."""


@attrs.frozen
class HeldOut:
    """A split of documents by the order of their hashes.

    The documents with the lowest hashes are the test split, the next the validation split, the rest is for training.
    Documents are never divided, and equal documents have equal hashes, so a repeated text is never in two splits. The
    shares refer to the number of documents; a share above zero holds out at least one.
    """

    seed: int  # a different seed holds out different documents
    test_below: int  # hashes below this are in the test split
    validation_below: int  # hashes from `test_below` to below this are in the validation split
    documents: int  # their number

    @classmethod
    def choose(cls, documents: Iterable[str], *, validation: float, test: float, seed: int) -> HeldOut:
        """Read the documents once and fix the thresholds; needs 8 bytes per document."""
        hashes = np.fromiter((_hash(text, seed) for text in documents), np.uint64)
        hashes.sort()

        def threshold(rank: int) -> int:
            # One past the last hash that is held out: equal hashes fall on the same side.
            return int(hashes[rank - 1]) + 1 if rank else 0

        total = len(hashes)
        tests = min(_count(test, total), total)
        validations = min(_count(validation, total), total - tests)
        return cls(seed, threshold(tests), threshold(tests + validations), total)

    def select(self, documents: Iterable[str], split: Split) -> Iterator[str]:
        """Return the documents of a split; raise a `ValueError` for an unknown split."""
        if split not in SPLITS:
            raise ValueError(f"there is no split {split!r}; there are {', '.join(SPLITS)}")
        ends = {"test": (0, self.test_below), "validation": (self.test_below, self.validation_below)}
        first, end = ends.get(split, (self.validation_below, 1 << 64))
        return (text for text in documents if first <= _hash(text, self.seed) < end)


def _count(share: float, total: int) -> int:
    return max(1, round(share * total)) if share > 0 and total else 0


def _hash(text: str, seed: int) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=seed.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")


def check_shares(corpus: Divided) -> None:
    """Raise a `ValueError` if nothing is left to train on."""
    if corpus.validation_share + corpus.test_share >= 1:
        raise ValueError("validation_share and test_share together must be less than 1")


def is_undivided(corpus: Divided) -> bool:
    """Return whether nothing is held out, so that all of it is evaluated."""
    return not (corpus.validation or corpus.test or corpus.validation_share or corpus.test_share)


def split_named(corpus: Any, split: Split) -> Split:
    """Return the other held-out split where a corpus names a text for that one only, as benchmarks do; else `split`."""
    other: Split = "validation" if split == "test" else "test"
    named = getattr(corpus, split, True) or not getattr(corpus, other, False)
    return split if named else other


def divide(corpus: Divided, split: Split, stamp: Callable[[], Hashable]) -> Iterator[str]:
    """Yield the documents of a split: those of the text that it names, or its share of the training text.

    `stamp` returns what changes with the training text, which is read twice where something is held out of it.

    Raises:
        UserError: when there are fewer documents than splits.
    """
    if {"train": None, "validation": corpus.validation, "test": corpus.test}[split]:
        yield from corpus.read(split)
        return
    shares = (0.0 if corpus.validation else corpus.validation_share, 0.0 if corpus.test else corpus.test_share)
    if any(shares):
        yield from _chosen(corpus, *shares, stamp()).select(corpus.read("train"), split)
    elif split == "train":
        yield from corpus.read("train")


@functools.lru_cache(maxsize=8)
def _chosen(corpus: Divided, validation: float, test: float, stamp: Hashable) -> HeldOut:
    del stamp
    found = HeldOut.choose(corpus.read("train"), validation=validation, test=test, seed=corpus.seed)
    if found.documents < 1 + (validation > 0) + (test > 0):
        raise UserError(
            f"corpus.train: {found.documents} document is not enough to hold some out; name corpus.validation and "
            "corpus.test, or divide the text into more documents"
        )
    return found
