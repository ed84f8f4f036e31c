"""Which documents are held out, when a corpus has no split of its own."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import attrs
import numpy as np

from atat_zoo.data import SPLITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from atat_zoo.data import Split


@attrs.frozen
class HeldOut:
    """A split of documents by the order of their hashes.

    The documents with the lowest hashes are the test split, the next the
    validation split, the rest is for training. Documents are held out entirely, and
    documents with the same text share a hash, so a repeated text is never in two
    splits. The shares are those of the number of documents; a share above zero
    holds out at least one.

    Attributes:
        seed: another seed holds out other documents.
        test_below: hashes below this are in the test split.
        validation_below: hashes from `test_below` to below this are in the validation split.
        documents: how many there are.
    """

    seed: int
    test_below: int
    validation_below: int
    documents: int

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
        """Yield those of the documents that belong to a split; a split that there is not is refused."""
        if split not in SPLITS:
            raise ValueError(f"there is no split {split!r}; there are {', '.join(SPLITS)}")
        return (text for text in documents if self.split_of(text) == split)

    def split_of(self, text: str) -> Split:
        """Return the split of a document."""
        value = _hash(text, self.seed)
        if value < self.test_below:
            return "test"
        return "validation" if value < self.validation_below else "train"


def _count(share: float, total: int) -> int:
    return max(1, round(share * total)) if share > 0 and total else 0


def _hash(text: str, seed: int) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=seed.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")
