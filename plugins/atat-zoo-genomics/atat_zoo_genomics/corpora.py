"""DNA corpora: FASTA, FASTQ and CSV files, plain or gzipped, with one document per record."""

from __future__ import annotations

import csv
import gzip
import itertools
import zlib
from abc import abstractmethod
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from typing_extensions import override

from atat_zoo.data.corpora import Corpus, Divided
from atat_zoo.data.corpora.text_files import FilesCorpus
from atat_zoo.registry import component, component_base, param
from atat_zoo.system.errors import UserError, nearest
from atat_zoo_genomics.alphabet import read_bases

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from atat_zoo.data import Split


@component_base
class _FromFiles(Divided, Corpus):
    """Base class for corpora of sequence files, which finds files and holds out documents like the corpus `files`."""

    ends_documents = False  # a sequence is cut from a genome, and has no end of its own

    train: tuple[str, ...] = param(
        help='paths or glob patterns such as ["genome/*.fa.gz"], relative to the working directory'
    )
    validation: tuple[str, ...] = param(
        (), help="validation files; default: documents held out from the training files"
    )
    test: tuple[str, ...] = param((), help="test files; default: documents held out from the training files")
    validation_share: float = param(
        0.05, help="fraction of documents held out for validation if `validation` is not set", ge=0, lt=1
    )
    test_share: float = param(0.05, help="fraction of documents held out for testing if `test` is not set", ge=0, lt=1)
    seed: int = param(0, help="random seed for the held-out split", ge=0)
    piece: int = param(0, help="maximum number of bases per document, to which records are split; 0: unlimited", ge=0)

    def __attrs_post_init__(self) -> None:
        if not self.train:
            raise ValueError("train is empty; pass the paths of training files")
        self.check_shares()

    @override
    def read(self, split: Split) -> Iterator[str]:
        for stamp in self._files.stamp()[split]:
            for record in self.records(Path(stamp.path)):
                step = self.piece or max(1, len(record))
                yield from (record[first : first + step] for first in range(0, len(record), step))

    @abstractmethod
    def records(self, path: Path) -> Iterator[str]:
        """Yield the sequences in a file in order, or raise a `UserError` that names a line with the wrong format."""

    @override
    def fingerprint(self) -> dict[str, Any]:
        return self._files.fingerprint()

    @override
    def stamp(self) -> Any:
        return self._files.stamp()

    @property
    def _files(self) -> FilesCorpus:
        return FilesCorpus(train=self.train, validation=self.validation, test=self.test)


@component
class FASTACorpus(_FromFiles):
    """FASTA files, in which a line that starts with `>` begins a record with any number of sequence lines."""

    name = "fasta"
    summary = "FASTA files, plain or gzipped"
    refs = ("doi:10.1073/pnas.85.8.2444",)

    @override
    def records(self, path: Path) -> Iterator[str]:
        record: list[str] | None = None
        with opened(path) as file:
            for number, line in enumerate(file, 1):
                line = line.strip()
                if line.startswith(">"):
                    yield "".join(record or ())
                    record = []
                elif record is not None:
                    record.append(bases(line, path, number))
                elif line and not line.startswith(";"):
                    raise UserError(f"corpus: {path}, line {number} is before the first > line; pass a FASTA file")
        yield "".join(record or ())


@component
class FASTQCorpus(_FromFiles):
    """FASTQ files, with four lines per read and the sequence in the second; only the number of qualities is checked."""

    name = "fastq"
    summary = "FASTQ files, plain or gzipped"
    refs = ("doi:10.1093/nar/gkp1137",)

    @override
    def records(self, path: Path) -> Iterator[str]:
        with opened(path) as file:
            lines = ((number, line.strip()) for number, line in enumerate(file, 1))
            for number, first in lines:
                if not first:  # between two reads; within one it is a read without bases, as trimming leaves them
                    continue
                rest = [line for _, line in itertools.islice(lines, 3)]
                if not first.startswith("@") or len(rest) < 3 or not rest[1].startswith("+"):
                    raise UserError(
                        f"corpus: {path}, line {number}: a read must have four lines; the first must start with "
                        "@, and the third with +; correct the read, or copy the file again"
                    )
                if len(rest[2]) != len(rest[0]):
                    raise UserError(
                        f"corpus: {path}, line {number}: the read has {len(rest[0])} bases and {len(rest[2])} "
                        "qualities; correct the read, or copy the file again"
                    )
                yield bases(rest[0], path, number + 1)


@component
class DNACSVCorpus(_FromFiles):
    """CSV files with a header line, as in GUE, in which each row is a record."""

    name = "dna_csv"
    summary = "sequences in one column of CSV files, plain or gzipped"
    refs = ("arXiv:2306.15006",)

    column: str = param("sequence", help="name of the column that contains the sequences")

    @override
    def records(self, path: Path) -> Iterator[str]:
        for number, (text,) in rows(path, [self.column]):
            yield bases(text, path, number)


def bases(text: str, path: Path, number: int) -> str:
    """Return a line's sequence converted by `read_bases`, or raise a `UserError` that names the file and the line."""
    try:
        return read_bases(text)
    except ValueError as error:
        raise UserError(
            f"corpus: {path}, line {number}: {error.args[0]!r} is not a base or an IUPAC code; remove it"
        ) from None


def rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's line number and values in `columns` of a CSV file; raise a `UserError` that names a bad line."""
    csv.field_size_limit(2**31 - 1)
    with opened(path) as file:
        reader = csv.reader(file)
        try:
            names = next(reader, [])
            for column in columns:
                if column not in names:
                    raise UserError(
                        f"{path}, line 1 has no column {column!r}{nearest(column, names)}; separate columns with "
                        "commas or, if the file is a corpus, set corpus.column to the column with the sequences"
                    )
            places = [names.index(column) for column in columns]
            for row in reader:
                if row and len(row) <= max(places):
                    raise UserError(
                        f"{path}, line {reader.line_num} has {len(row)} columns, not {len(names)}; correct the line"
                    )
                if row:
                    yield reader.line_num, [row[place].strip() for place in places]
        except csv.Error as error:
            raise UserError(f"{path}, line {reader.line_num} is not valid CSV ({error}); correct the line") from None


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    """Open a file, decompressed if its name ends in .gz, with U+FFFD for invalid UTF-8; errors become a `UserError`."""
    try:
        opens: Any = gzip.open if path.suffix == ".gz" else open
        with opens(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as file:
            yield file
    except gzip.BadGzipFile as error:
        raise UserError(f"corpus: {path} is not a gzip file ({error}); rename it without .gz") from None
    except (EOFError, zlib.error) as error:
        raise UserError(f"corpus: {path} cannot be decompressed ({error}); copy the file again") from None
    except OSError as error:
        raise UserError(f"corpus: {path} cannot be read: {error.strerror or error}; choose a different file") from None
