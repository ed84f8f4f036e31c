"""Parameters of small components, and DNA files, for the conformance tests."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_SEQUENCES = [f"{'ACGT' * 3}{'ACGT'[i % 4]}{'ACGT'[i // 4 % 4]}{'ACGT'[i // 16]}" for i in range(64)]


def _fasta(folder: Path) -> dict[str, Any]:
    (folder / "genome.fa").write_text("".join(f">{i}\n{each}\n" for i, each in enumerate(_SEQUENCES)))
    return {"train": [str(folder / "genome.fa")]}


def _fastq(folder: Path) -> dict[str, Any]:
    with gzip.open(folder / "reads.fastq.gz", "wt") as file:
        file.writelines(f"@{i}\n{each}\n+\n{'I' * len(each)}\n" for i, each in enumerate(_SEQUENCES))
    return {"train": [str(folder / "reads.fastq.gz")]}


def _csv(folder: Path) -> dict[str, Any]:
    (folder / "train.csv").write_text("sequence,label\n" + "".join(f"{each},1\n" for each in _SEQUENCES))
    return {"train": [str(folder / "train.csv")]}


def _gue(folder: Path) -> dict[str, Any]:
    for split in ("train", "test"):
        path = folder / "tf" / "0" / f"{split}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [f"{each},{i % 2}\n" for i, each in enumerate(_SEQUENCES[:12])]
        path.write_text("sequence,label\n" + "".join(rows))
    return {"path": str(folder), "only": ["tf_0"], "epochs": 1}


def _benchmarks(folder: Path) -> dict[str, Any]:
    for i, each in enumerate(_SEQUENCES[:12]):
        for split in ("train", "test"):
            path = folder / "demo_human_or_worm" / split / ("human", "worm")[i % 2] / f"{i}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(each)
    return {"path": str(folder), "only": ["demo_human_or_worm"], "epochs": 1}


EXAMPLES = {
    ("task", "gue"): _gue,
    ("task", "genomic_benchmarks"): _benchmarks,
    ("corpus", "fasta"): _fasta,
    ("corpus", "fastq"): _fastq,
    ("corpus", "dna_csv"): _csv,
    ("backbone", "gated_convolution"): lambda _: {"width": 16},
    ("estimator", "kmer"): lambda _: {"reach": 2},
}
