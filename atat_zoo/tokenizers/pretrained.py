"""A tokenizer that exists already, from its file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from atat_zoo.errors import UserError
from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atat_zoo.tokenizers import TokenizerModel

_VOCABULARIES = {"vocab.json": "merges.txt", "encoder.json": "vocab.bpe"}


@component
class Pretrained:
    """A tokenizer from a `tokenizer.json`, or from the two files of a byte-level BPE like GPT-2's.

    A vocabulary without special tokens keeps working without BOS and EOS; name
    them to pack with them. GPT-2's is "<|endoftext|>" for both. Ids of the text
    are the file's; V is one more than the largest. Bytes per token are exact for
    byte-level vocabularies; for others they are those of the token's own text.
    """

    name = "pretrained"
    summary = "a tokenizer.json, or vocabulary and merges as GPT-2 has them"
    refs = ("https://huggingface.co/docs/tokenizers", "arXiv:1508.07909")

    path: str = param(
        help="tokenizer.json, or the folder or vocabulary of vocab.json + merges.txt (encoder.json + vocab.bpe)"
    )
    merges: str | None = param(None, help="the merges, where they are not beside the vocabulary under their usual name")
    bos: str | None = param(None, help="name of the token that begins a sequence")
    eos: str | None = param(None, help="name of the token that ends one")

    def train(self, documents: Callable[[], Iterator[str]]) -> TokenizerModel:
        """Return the tokenizer; nothing is learned."""
        from atat_zoo.tokenizers.library import LibraryModel, from_file, from_pair

        files = self._files()
        found = from_file(files[0]) if len(files) == 1 else from_pair(*files)
        return LibraryModel(found, bos=self.bos, eos=self.eos)

    def load(self, folder: Path) -> TokenizerModel:
        """Return the tokenizer that `save` wrote; the original file is not needed."""
        from atat_zoo.tokenizers.library import LibraryModel, from_file
        from atat_zoo.tokenizers.tables import FILE

        return LibraryModel(from_file(folder / FILE), bos=self.bos, eos=self.eos)

    def fingerprint(self) -> str:
        """Return the hash of the files: other files make other shards."""
        return hashlib.sha256(b"\0".join(path.read_bytes() for path in self._files())).hexdigest()

    def _files(self) -> list[Path]:
        """Return `[tokenizer.json]`, or vocabulary and merges."""
        path = Path(self.path).expanduser()
        if path.is_dir():
            there = [name for name in ("tokenizer.json", *_VOCABULARIES) if (path / name).is_file()]
            if not there:
                raise UserError(
                    f"tokenizer.path: the folder {path} holds no tokenizer.json, vocab.json or encoder.json; "
                    "name the tokenizer's file"
                )
            path = path / there[0]
        if not path.is_file():
            raise UserError(f"tokenizer.path: there is no file {path}; name a tokenizer.json or a vocabulary")
        if self.merges is not None:
            merges = Path(self.merges).expanduser()
        elif path.name in _VOCABULARIES:
            merges = path.with_name(_VOCABULARIES[path.name])
        else:
            return [path]
        if not merges.is_file():
            raise UserError(f"tokenizer.merges: there is no file {merges}; name the merges that belong to {path}")
        return [path, merges]
