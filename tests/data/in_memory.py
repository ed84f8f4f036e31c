"""A corpus in memory, and an experiment around it."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from atat_zoo.corpora import Corpus
from atat_zoo.experiment.schema import DataSpec
from atat_zoo.registry import component, param
from atat_zoo.tokenizers import BytesTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from atat_zoo.data import Split


@component
class Memory(Corpus):
    """Documents given as they are."""

    name = "memory"
    summary = "for tests"
    refs = ()
    train: tuple[str, ...] = param(help="documents")
    validation: tuple[str, ...] = param(("held out",) * 40, help="documents")
    test: tuple[str, ...] = param(("for the test",) * 40, help="documents")

    def documents(self, split: Split) -> Iterator[str]:
        yield from getattr(self, split)

    def fingerprint(self) -> dict[str, Any]:
        return {"sha256": hashlib.sha256("\0".join(self.train).encode()).hexdigest()}


def texts(count: int, size: int = 60) -> tuple[str, ...]:
    return tuple(f"document {i}: " + " ".join(f"w{i}.{j}" for j in range(size // 5)) for i in range(count))


DATA = {"length": 16, "lanes": 4, "sequences_per_member": 4, "sequences_per_shard": 8}


def experiment_of(root: Path, *, corpus: Any = None, tokenizer: Any = None, **data: Any) -> Any:
    """Return what `build` uses of an experiment."""
    spec = DataSpec(root=str(root), **DATA | data)
    parts = {"corpus": corpus or Memory(train=texts(40)), "tokenizer": tokenizer or BytesTokenizer()}
    return SimpleNamespace(parts=parts, data=spec)
