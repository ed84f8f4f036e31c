"""Documents held out of a training text, by the order of their hashes."""

from __future__ import annotations

import functools
import hashlib
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import attrs
import numpy as np
from typing_extensions import override

from atat_zoo.data import Split
from atat_zoo.data.corpora import Corpus
from atat_zoo.errors import UserError


class Divided(Corpus):
    """A corpus whose `validation` and `test` each name a text, or nothing: then a share of `train`.

    A component inherits from this class, and declares these attributes as its parameters.
    """

    validation: Any
    test: Any
    validation_share: float  # of the training documents, held out where nothing is named
    test_share: float
    seed: int  # a different one holds out different documents

    @abstractmethod
    def read(self, split: Split) -> Iterator[str]:
        """Yield the documents of the text that a split names."""

    def read_dialogues(self, split: Split) -> Iterator[str]:
        """Yield the dialogues of what a split names; by default it has none, as `Corpus.dialogues` says."""
        return super().dialogues(split)

    @abstractmethod
    def training_stamp(self) -> Hashable:
        """Return what changes with the training text, which is read twice where something is held out of it."""

    def check_shares(self) -> None:
        """Raise a `ValueError` if nothing is left to train on."""
        if self.validation_share + self.test_share >= 1:
            raise ValueError("validation_share and test_share together must be less than 1")

    @property
    @override
    def undivided(self) -> bool:
        return not (self.validation or self.test or self.validation_share or self.test_share)

    @override
    def held_out_split(self, split: Split) -> Split:
        other: Split = "validation" if split == "test" else "test"
        return other if getattr(self, other) and not getattr(self, split) else split

    @override
    def documents(self, split: Split) -> Iterator[str]:
        yield from self._divided(split, "read")

    @override
    def dialogues(self, split: Split) -> Iterator[str]:
        yield from self._divided(split, "read_dialogues")

    def _divided(self, split: Split, method: str) -> Iterator[str]:
        """Yield what one of the methods reads, without what is held out of it, or that alone."""
        read = getattr(self, method)
        if {"train": None, "validation": self.validation, "test": self.test}[split]:
            yield from read(split)
            return
        shares = (0.0 if self.validation else self.validation_share, 0.0 if self.test else self.test_share)
        if any(shares):
            yield from _chosen(self, method, *shares, self.training_stamp()).select(read("train"), split)
        elif split == "train":
            yield from read("train")


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
        hashes = np.sort(np.fromiter((_hash(text, seed) for text in documents), np.uint64))
        total = len(hashes)
        tests = min(_count(test, total), total)
        held_out = tests + min(_count(validation, total), total - tests)
        # One past the last hash that is held out: equal hashes fall on the same side.
        test_below, validation_below = (int(hashes[rank - 1]) + 1 if rank else 0 for rank in (tests, held_out))
        return cls(seed, test_below, validation_below, total)

    def select(self, documents: Iterable[str], split: Split) -> Iterator[str]:
        """Return the documents of a split."""
        thresholds = {"test": (0, self.test_below), "validation": (self.test_below, self.validation_below)}
        first, end = (thresholds | {"train": (self.validation_below, 1 << 64)})[split]
        return (text for text in documents if first <= _hash(text, self.seed) < end)


def _count(share: float, total: int) -> int:
    return max(1, round(share * total)) if share > 0 and total else 0


def _hash(text: str, seed: int) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=seed.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")


@functools.lru_cache(maxsize=8)
def _chosen(corpus: Divided, method: str, validation: float, test: float, stamp: Hashable) -> HeldOut:
    del stamp
    texts = getattr(corpus, method)("train")
    held_out = HeldOut.choose(texts, validation=validation, test=test, seed=corpus.seed)
    if held_out.documents < 1 + (validation > 0) + (test > 0):
        raise UserError(
            f"corpus.train: too few documents to hold some out ({held_out.documents}); name corpus.validation and "
            "corpus.test, or divide the text into more documents"
        )
    return held_out
