"""Corpora: text, as documents per split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from atat_zoo.data import SPLITS, Split

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SPLITS", "Corpus", "Split"]


class Corpus(Protocol):
    """A component of the kind corpus.

    A corpus that is built already also has `built() -> Path`, the folder of its
    shards; then no text is asked for.
    """

    name: str

    def documents(self, split: Split) -> Iterator[str]:
        """Yield the documents of a split, always in the same order.

        Raises:
            UserError: when the text is not there; says what to install or which file is missing.
        """
        ...

    def fingerprint(self) -> dict[str, Any]:
        """Return what identifies the text (sizes, versions, hashes), for the manifest of the shards.

        Shards are shared between experiments whose fingerprints and settings are
        equal, so a changed text must change it.
        """
        ...
