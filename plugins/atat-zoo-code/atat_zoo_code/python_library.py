"""The corpus `python_library`, the standard library of the Python that runs."""

from __future__ import annotations

import hashlib
import platform
import sysconfig
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from atat_zoo.data.corpora import Corpus, HeldOut
from atat_zoo.registry import component
from atat_zoo.system.digests import Stamp
from atat_zoo.system.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atat_zoo.data import Split

#: Folders that are left out: other packages, tests, tables of characters and texts of the documentation.
LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__pycache__"}
)


@component
class PythonLibraryCorpus(Corpus):
    """The Python files of the standard library: 10 MB in Python 3.11, one file per document.

    Tests, other packages, tables of character encodings, texts of the documentation, the settings of the build, empty
    files and copies of a file are left out. The split is fixed, by a hash of the module's or package's name: 10 % of
    the names are for testing, 5 % for validation, and the others for training. So a package is never divided, and a
    module is in the same split in every version of Python.
    """

    name = "python_library"
    summary = "the standard library of the Python that runs: 10 MB of Python code"
    refs = ("https://docs.python.org/3/library/",)
    licence = "PSF-2.0"
    ends_documents = False

    @override
    def documents(self, split: Split) -> Iterator[str]:
        root, files = library_files()
        held_out = HeldOut(seed=0, test_below=_share(0.10), validation_below=_share(0.15), documents=len(files))
        names = [path.relative_to(root).parts[0].removesuffix(".py") for path in files]
        chosen, seen = set(held_out.select(names, split)), {""}
        for path, name in zip(files, names, strict=True):
            with tokenize.open(path) as file:  # which reads the declaration of the encoding
                text = file.read()
            if name in chosen and text not in seen:
                yield text
            seen.add(text)

    @override
    def fingerprint(self) -> dict[str, Any]:
        root, files = library_files()
        digest = hashlib.sha256()
        for path in files:
            digest.update(f"{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
        return {"python": platform.python_version(), "files": len(files), "sha256": digest.hexdigest()}

    @override
    def stamp(self) -> Any:
        return [Stamp.of(path) for path in library_files()[1]]

    @override
    def size(self) -> int:
        return sum(path.stat().st_size for path in library_files()[1])


def library_files() -> tuple[Path, list[Path]]:
    """Return the folder of the standard library and its Python files; raise a `UserError` if there are none."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [
        path
        for path in sorted(root.rglob("*.py"))
        if LEFT_OUT.isdisjoint(path.relative_to(root).parts) and not path.name.startswith("_sysconfigdata")
    ]
    if not files:
        raise UserError(
            f"corpus 'python_library': {root} has no Python files; run a Python that keeps its library there"
        )
    return root, files


def _share(share: float) -> int:
    return int(share * 2**64)
