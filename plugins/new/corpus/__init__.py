"""A corpus of multiplication tables that does not need files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atat_zoo.data.corpora import Corpus
from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atat_zoo.data import Split

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderCorpus(Corpus):
    """Multiplication tables, one document per number; a tenth is for validation and a tenth for testing."""

    name = "placeholder"
    summary = "multiplication tables, one per document"
    refs = ()

    tables: int = param(200, help="number of tables in all splits together", ge=10)
    columns: int = param(10, help="products per table", ge=1)

    def documents(self, split: Split) -> Iterator[str]:
        """Yield the tables of a split, smallest number first; raise a `ValueError` if there is no such split."""
        if split not in ("train", "validation", "test"):
            raise ValueError(f"unknown split {split!r}")
        for i in range(self.tables):
            if split == {0: "validation", 1: "test"}.get(i % 10, "train"):
                yield "\n".join(f"{i} times {j} is {i * j}" for j in range(1, self.columns + 1))

    def fingerprint(self) -> dict[str, Any]:
        """Return the values that identify the text; change `version` when you change how a table is written."""
        return {"tables": self.tables, "columns": self.columns, "version": 1}


@hookimpl
def atat_zoo_corpus() -> list[type]:
    """Return the corpora in this package."""
    return [PlaceholderCorpus]
