"""The contract of every part."""

import gzip

import pytest

from atat_zoo.registry import Zoo
from atat_zoo.testing import cases, check_backbone, check_estimator

SEQUENCES = [f"{'ACGT' * 3}{'ACGT'[i % 4]}{'ACGT'[i // 4 % 4]}{'ACGT'[i // 16]}" for i in range(64)]


def _fasta(folder):
    (folder / "genome.fa").write_text("".join(f">{i}\n{each}\n" for i, each in enumerate(SEQUENCES)))
    return {"train": [str(folder / "genome.fa")]}


def _fastq(folder):
    with gzip.open(folder / "reads.fastq.gz", "wt") as file:
        file.writelines(f"@{i}\n{each}\n+\n{'I' * len(each)}\n" for i, each in enumerate(SEQUENCES))
    return {"train": [str(folder / "reads.fastq.gz")]}


def _csv(folder):
    (folder / "train.csv").write_text("sequence,label\n" + "".join(f"{each},1\n" for each in SEQUENCES))
    return {"train": [str(folder / "train.csv")]}


EXAMPLES = {
    ("corpus", "fasta"): _fasta,
    ("corpus", "fastq"): _fastq,
    ("corpus", "dna_csv"): _csv,
    ("backbone", "gated_convolution"): lambda _: {"width": 16},
    ("estimator", "kmer"): lambda _: {"reach": 2},
}


@pytest.mark.parametrize("case", cases(distribution="atat-zoo-genomics", examples=EXAMPLES), ids=str)
def test_conformance(case):
    case.run()


def test_both_strands_keep_the_contract_of_a_backbone():
    table = {"use": "gated_convolution", "width": 16, "layers": 3, "reverse_complement": True}
    check_backbone(Zoo.load().spec("backbone", table))


def test_one_place_on_either_side_keeps_the_contract_of_an_estimator():
    check_estimator(Zoo.load().spec("estimator", {"use": "kmer", "reach": 1}))
