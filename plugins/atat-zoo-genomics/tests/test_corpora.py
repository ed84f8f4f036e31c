"""The formats: what is a record, and what is said of a damaged file."""

import gzip

import pytest
from atat_zoo_genomics.corpora import DNACSVCorpus, FASTACorpus, FASTQCorpus
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.system.errors import UserError

RECORDS = st.lists(st.text("ACGTN", min_size=1), min_size=1, max_size=5)


def records(corpus, path, content, **parameters):
    opens = gzip.open if path.suffix == ".gz" else open
    with opens(path, "wt", encoding="utf-8") as file:
        file.write(content)
    return list(corpus(train=(str(path),), validation_share=0, test_share=0, **parameters).documents("train"))


@pytest.mark.parametrize("ending", ["", ".gz"])
@given(sequences=RECORDS, width=st.integers(1, 90))
def test_a_record_of_fasta_has_lines_of_any_length(sequences, width, ending, tmp_path_factory):
    path = tmp_path_factory.mktemp("fasta") / f"genome.fa{ending}"
    lines = ["; an old remark"]
    for number, each in enumerate(sequences):
        lines += [f">chr{number} ü", *(each[i : i + width] for i in range(0, len(each), width)), ""]
    assert records(FASTACorpus, path, "\n".join(lines)) == sequences


@given(sequences=RECORDS)
def test_a_read_has_four_lines(sequences, tmp_path_factory):
    # A quality may be any character, @ and > too.
    content = "".join(f"@{i}\n{each}\n+\n{'@' * len(each)}\n" for i, each in enumerate(sequences))
    assert records(FASTQCorpus, tmp_path_factory.mktemp("fastq") / "reads.fq", content) == sequences


@given(sequences=RECORDS)
def test_a_row_of_a_table_is_a_record(sequences, tmp_path_factory):
    folder = tmp_path_factory.mktemp("csv")
    content = "id,dna\r\n" + "".join(f'"{i}, or so",{each.lower()}\r\n' for i, each in enumerate(sequences))
    assert records(DNACSVCorpus, folder / "a.csv", content, column="dna") == sequences
    long = "sequence\n" + "A" * 200_000
    assert records(DNACSVCorpus, folder / "b.csv", long) == ["A" * 200_000]


def test_splits_have_files_of_their_own_or_a_share(tmp_path):
    for name, base in zip(("train", "dev"), "AC", strict=True):
        (tmp_path / f"{name}.fa").write_text("".join(f">{i}\n{base * i}\n" for i in range(1, 41)))
    corpus = FASTACorpus(train=(str(tmp_path / "train.fa"),), validation=(str(tmp_path / "dev.fa"),), test_share=0.1)
    found = {split: list(corpus.documents(split)) for split in ("train", "validation", "test")}
    assert [len(each) for each in found.values()] == [36, 40, 4]
    assert set("".join(found["validation"])) == {"C"}


# What is in the file, and what is said of it.
DAMAGED = {
    "no header": (FASTACorpus, "ACGT\n", "line 1 is before the first > line"),
    "a protein": (FASTACorpus, ">p\nACGT\nMEEPQ\n", "line 3: 'E' is not a base or"),
    "no text": (FASTACorpus, ">p\nAC\ufffdGT\n", "line 2: '\ufffd' is not a base or"),
    "no read": (FASTQCorpus, "@a\nAC\n+\nII\n>b\nAC\n+\nII\n", "line 5: a read must have four lines"),
    "cut off": (FASTQCorpus, "@a\nAC\n+\nII\n@b\nAC\n", "line 5: a read must have four lines"),
    "a quality too few": (FASTQCorpus, "@a\nACG\n+\nII\n", "line 1: the read has 3 bases and 2 qualities"),
    "a letter too many": (FASTQCorpus, "@a\nAEG\n+\nIII\n", "line 2: 'E' is not a base or"),
    "no column": (DNACSVCorpus, "sequences,label\nACGT,1\n", "no column 'sequence'; did you mean 'sequences'?"),
    "a short row": (DNACSVCorpus, "label,sequence\n1,ACGT\n0\n", "line 3 has 1 columns, not 2"),
    "no base": (DNACSVCorpus, "sequence,label\nAC-T,1\n", "line 2: '-' is not a base or"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_refused_by_its_line(damage, tmp_path):
    corpus, content, said = DAMAGED[damage]
    with pytest.raises(UserError) as raised:
        records(corpus, tmp_path / "damaged", content)
    assert said in str(raised.value)
    assert str(tmp_path / "damaged") in str(raised.value)
    assert "\n" not in str(raised.value)


def test_long_records_are_divided_and_reads_may_have_no_bases(tmp_path):
    path = tmp_path / "a.fa"
    assert records(FASTACorpus, path, ">a\nACGTA\nCG\n>b\nTTT", piece=3) == ["ACG", "TAC", "G", "TTT"]
    assert records(FASTACorpus, path, ">a\n" + "acgu" * 300_000)[0] == "ACGT" * 300_000
    content = "@a\nAC\n+\nII\n\n@b\n\n+\n\n@c\nGT\n+\nII\n"
    assert records(FASTQCorpus, tmp_path / "reads.fq", content) == ["AC", "GT"]


def test_a_missing_or_damaged_archive_is_named(tmp_path):
    path = tmp_path / "a.fa.gz"
    for content, message in (
        (gzip.compress(b">a\n" + b"ACGT" * 1000)[:-9], "cannot be decompressed"),
        (b">a\nACGT\n", "is not a gzip file"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=message):
            list(FASTACorpus(train=(str(path),), validation_share=0, test_share=0).documents("train"))
    with pytest.raises(UserError, match=r"corpus.train: file not found: .*b.fa.gz; did you mean 'a.fa.gz'"):
        list(FASTACorpus(train=(str(tmp_path / "b.fa.gz"),)).documents("train"))
    with pytest.raises(ValueError, match="train is empty"):
        FASTACorpus(train=())
