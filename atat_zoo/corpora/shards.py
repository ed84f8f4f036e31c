"""Shards that have been built already, here or elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from atat_zoo.errors import UserError
from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atat_zoo.corpora import Split


@component
class ShardsCorpus:
    """A folder of built shards, taken as it is: nothing is built and no text is needed.

    The experiment's tokenizer, `data.length` and `data.special` must be those of the
    folder's manifest.
    """

    name = "shards"
    summary = "a folder of shards that is already built"
    refs = ("https://github.com/webdataset/webdataset",)

    path: str = param(help="folder with manifest.json and the tar files")

    def built(self) -> Path:
        """Return the folder; with this method a corpus says that there is nothing to build."""
        return Path(self.path)

    def documents(self, split: Split) -> Iterator[str]:
        """Refuse: shards hold tokens, not text.

        Raises:
            UserError: always.
        """
        raise UserError(
            f"corpus 'shards' holds tokens and no documents ({self.path}); "
            "name the corpus that the shards were built from, to read text"
        )

    def fingerprint(self) -> dict[str, Any]:
        """Return the fingerprint of the text that the shards were built from."""
        from atat_zoo.data import manifest

        return manifest.load(self.built()).fingerprint
