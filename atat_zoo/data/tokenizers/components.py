"""The built-in tokenizers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

from atat_zoo.data.tokenizers import BOS, EOS, Tokenizer, TokenizerModel
from atat_zoo.registry import component, component_param, param
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.errors import UserError
from atat_zoo.system.machine import require

if TYPE_CHECKING:
    from atat_zoo.data.tokenizers.tokenizer_models import BytesModel, CharactersModel

_FILE = "tokenizer.json"
_VOCABULARIES = {"vocab.json": "merges.txt", "encoder.json": "vocab.bpe"}


@component
class BytesTokenizer(Tokenizer):
    """Every byte of the UTF-8 text is a token: V = 258, ids 0 to 255, BOS 256, EOS 257."""

    name = "bytes"
    summary = "one token per UTF-8 byte; V = 258 with BOS and EOS"
    refs = ("arXiv:2105.13626",)

    @override
    def train(self, documents: Callable[[], Iterator[str]]) -> BytesModel:
        from atat_zoo.data.tokenizers.tokenizer_models import BytesModel

        return BytesModel()

    @override
    def load(self, folder: Path) -> TokenizerModel:
        return self.train(lambda: iter(())).checked(folder)


@component
class CharactersTokenizer(Tokenizer):
    """Space and the letters a to z: V = 27, ids 0 to 26; with `special`, BOS 27 and EOS 28."""

    name = "characters"
    summary = "one token per character of text8: space and a to z, V = 27"
    refs = ("http://mattmahoney.net/dc/textdata.html",)

    special_tokens: bool = param(False, help="add BOS and EOS as ids 27 and 28")
    unknown: Literal["error", "space"] = param(
        "error", help="other characters: raise an error, or replace them by a space"
    )

    @override
    def train(self, documents: Callable[[], Iterator[str]]) -> CharactersModel:
        from atat_zoo.data.tokenizers.tokenizer_models import CharactersModel

        return CharactersModel(special=self.special_tokens, unknown=self.unknown)

    @override
    def load(self, folder: Path) -> TokenizerModel:
        return self.train(lambda: iter(())).checked(folder)


@component
class BPETokenizer(Tokenizer):
    """Byte-pair encoding on bytes, as in GPT-2, trained on the training split.

    It encodes every text, because the 256 bytes are in the vocabulary. V includes BOS and EOS, the last two ids. V is
    smaller if the corpus has too few pairs. The same text gives the same merges.
    """

    name = "bpe"
    summary = "byte-level BPE, trained on the training split"
    refs = (
        "arXiv:1508.07909",
        "https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf",
    )

    vocabulary_size: int = param(2048, help="V, including the 256 bytes, BOS and EOS", ge=258, le=2**31)

    @override
    def train(self, documents: Callable[[], Iterator[str]]) -> TokenizerModel:
        from atat_zoo.data.tokenizers.tokenizer_models import LibraryModel, trained

        # The library reserves 70 bytes a token before it reads, and aborts when it does not get them.
        size = self.vocabulary_size
        require(140 * size, f"tokenizer.vocabulary_size = {size}", "its table", "lower it")
        return LibraryModel(trained(documents(), self.vocabulary_size, (BOS, EOS)), bos=BOS, eos=EOS)

    @override
    def load(self, folder: Path) -> TokenizerModel:
        from atat_zoo.data.tokenizers.tokenizer_models import LibraryModel

        return LibraryModel.load(folder, bos=BOS, eos=EOS)


@component
class PretrainedTokenizer(Tokenizer):
    """A tokenizer from a `tokenizer.json`, or from the vocabulary and merges of a byte-level BPE such as GPT-2's.

    BOS and EOS are optional, and needed to pack with them; GPT-2 uses "<|endoftext|>" for both. The ids are those of
    the file; V is the largest id plus one. Bytes per token are exact for byte-level vocabularies; for others they are
    the bytes of the token's displayed text. Text is never encoded to BOS, EOS or an added token, except added white
    space.
    """

    name = "pretrained"
    summary = "a pretrained tokenizer: tokenizer.json, or vocabulary and merges as for GPT-2"
    refs = ("https://huggingface.co/docs/tokenizers", "arXiv:1508.07909")

    path: str = param(
        help="tokenizer.json, or the vocabulary (vocab.json, encoder.json) or the folder with vocabulary and merges"
    )
    merges: str | None = param(None, help="merges file; default: merges.txt or vocab.bpe in the vocabulary's folder")
    bos: str | None = param(None, help="BOS token")
    eos: str | None = param(None, help="EOS token")
    source: str = param("", help="where to get the files; printed when one is missing")

    @override
    def train(self, documents: Callable[[], Iterator[str]]) -> TokenizerModel:
        from atat_zoo.data.tokenizers.tokenizer_models import LibraryModel, from_file, from_pair

        files = self._files()
        library = from_file(files[0]) if len(files) == 1 else from_pair(*files)
        return LibraryModel(library, bos=self.bos, eos=self.eos)

    @override
    def load(self, folder: Path) -> TokenizerModel:
        from atat_zoo.data.tokenizers.tokenizer_models import LibraryModel

        return LibraryModel.load(folder, bos=self.bos, eos=self.eos)

    @override
    def identity(self) -> dict[str, Any]:
        return {key: value for key, value in unstructure(self).items() if key != "source"}

    @override
    def fingerprint(self) -> str:
        return _digest(*self._files())

    def _files(self) -> list[Path]:
        """Return `[tokenizer.json]`, or vocabulary and merges."""
        path = Path(os.path.expanduser(self.path))
        if path.is_dir():
            there = [name for name in (_FILE, *_VOCABULARIES) if (path / name).is_file()]
            if not there:
                raise UserError(
                    f"tokenizer.path: the folder {path} contains no tokenizer.json, vocab.json or encoder.json; name "
                    "the tokenizer's file"
                )
            path = path / there[0]
        if not path.is_file():
            remedy = self.source or "set it to a tokenizer.json or a vocabulary"
            raise UserError(f"tokenizer.path: file not found: {path}; {remedy}")
        if self.merges is not None:
            merges = Path(os.path.expanduser(self.merges))
        elif path.name in _VOCABULARIES:
            merges = path.with_name(_VOCABULARIES[path.name])
        else:
            return [path]
        if not merges.is_file():
            raise UserError(f"tokenizer.merges: file not found: {merges}; set it to the merges of {path}")
        return [path, merges]


@component
class RunTokenizer(Tokenizer):
    """The tokenizer of a finished run, so that two models share their ids.

    An experiment file names the run, from which the run's [tokenizer] and the hash of its file are filled in, as `atat
    resolve` shows. After the shards are built, the run is no longer needed. With `init_from`, this is the default
    tokenizer.
    """

    name = "run"
    summary = "the tokenizer of another run"

    path: str = param(help="run folder, relative to the working directory")
    sha256: str | None = param(None, help="SHA-256 of the run's tokenizer.json; default: filled in from the run")
    like: Tokenizer = component_param(
        "tokenizer", "bpe", help="the run's own [tokenizer]; default: filled in from the run"
    )

    @override
    def train(self, documents: Callable[[], Iterator[str]]) -> TokenizerModel:
        path = self._file()
        if self.sha256 is not None and _digest(path) != self.sha256:
            raise UserError(
                f"tokenizer.path: {path} has changed since this experiment was resolved; resolve it again, or name a "
                "run that still has the tokenizer"
            )
        return self.like.load(path.parent)

    @override
    def load(self, folder: Path) -> TokenizerModel:
        return self.like.load(folder)

    @property
    @override
    def template(self) -> str | None:
        return self.like.template

    @override
    def identity(self) -> dict[str, Any]:
        return self.like.identity()  # wherever the run lies; the hash of its file is checked by itself

    @override
    def fingerprint(self) -> str:
        return self.sha256 or _digest(self._file())

    def _file(self) -> Path:
        path = Path(self.path) / "model" / _FILE
        if not path.is_file():
            raise UserError(f"tokenizer.path: file not found: {path}; name a finished run")
        return path


def _digest(*paths: Path) -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()
