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
    """Encodes every byte of the UTF-8 text as one token; the ids are 0 to 255, BOS 256 and EOS 257."""

    name = "bytes"
    summary = "one token per UTF-8 byte; 258 tokens with BOS and EOS"
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
    """Encodes the space and the letters a to z with the ids 0 to 26; with `special_tokens`, BOS is 27 and EOS 28."""

    name = "characters"
    summary = "one token per character of text8: the space and a to z"
    refs = ("http://mattmahoney.net/dc/textdata.html",)

    special_tokens: bool = param(False, help="add BOS and EOS as ids 27 and 28")
    unknown: Literal["error", "space"] = param(
        "error", help="for other characters: raise an error, or replace them with a space"
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

    It can encode any text, because the vocabulary contains the 256 bytes; BOS and EOS have the last two ids. A corpus
    with too few pairs gives fewer than `vocabulary_size` tokens. Identical text gives identical merges.
    """

    name = "bpe"
    summary = "byte-level BPE, trained on the training split"
    refs = (
        "arXiv:1508.07909",
        "https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf",
    )

    vocabulary_size: int = param(2048, help="maximum vocabulary size, including bytes, BOS and EOS", ge=258, le=2**31)

    @override
    def train(self, documents: Callable[[], Iterator[str]]) -> TokenizerModel:
        from atat_zoo.data.tokenizers.tokenizer_models import LibraryModel, trained

        # The library allocates 70 bytes per token before it reads, and aborts if this fails.
        size = self.vocabulary_size
        require(140 * size, f"tokenizer.vocabulary_size = {size}", "its table", "lower it")
        return LibraryModel(trained(documents(), self.vocabulary_size, (BOS, EOS)), bos=BOS, eos=EOS)

    @override
    def load(self, folder: Path) -> TokenizerModel:
        from atat_zoo.data.tokenizers.tokenizer_models import LibraryModel, from_file

        return LibraryModel(from_file(folder / _FILE), bos=BOS, eos=EOS)


@component
class PretrainedTokenizer(Tokenizer):
    """A tokenizer from a `tokenizer.json`, or from the vocabulary and merges of a byte-level BPE such as GPT-2's.

    BOS and EOS are optional unless `data.special_tokens` requires them; GPT-2 uses "<|endoftext|>" for both. The ids
    are taken from the file, and the vocabulary size is the largest id plus one. The number of bytes per token is exact
    for byte-level vocabularies; for others, it is the length of the token's displayed text. Text is never encoded to
    BOS, EOS or an added token, except added white space.
    """

    name = "pretrained"
    summary = "a pretrained tokenizer: a tokenizer.json, or a vocabulary and merges such as GPT-2's"
    refs = ("https://huggingface.co/docs/tokenizers", "arXiv:1508.07909")

    path: str = param(
        help="a tokenizer.json, a vocabulary (vocab.json, encoder.json), or the folder that contains these files"
    )
    merges: str | None = param(None, help="merges file; default: merges.txt or vocab.bpe next to the vocabulary")
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
        from atat_zoo.data.tokenizers.tokenizer_models import LibraryModel, from_file

        return LibraryModel(from_file(folder / _FILE), bos=self.bos, eos=self.eos)

    @override
    def identity(self) -> dict[str, Any]:
        return {key: value for key, value in unstructure(self).items() if key != "source"}

    @override
    def fingerprint(self) -> str:
        return _digest(*self._files())

    def _files(self) -> list[Path]:
        """Return the path of `tokenizer.json`, or of the vocabulary and the merges."""
        path = Path(os.path.expanduser(self.path))
        if path.is_dir():
            there = [name for name in (_FILE, *_VOCABULARIES) if (path / name).is_file()]
            if not there:
                raise UserError(
                    f"tokenizer.path: the folder {path} contains no tokenizer.json, vocab.json or encoder.json; set it "
                    "to the tokenizer's file"
                )
            path = path / there[0]
        if not path.is_file():
            remedy = self.source or "set it to a tokenizer.json or vocabulary file"
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
    """The tokenizer of a finished run, so that two models share the same ids.

    An experiment file names only the run; the run's [tokenizer] and the hash of its file are filled in, as `atat
    resolve` shows. Once the shards are built, the run is no longer needed. With `init_from`, this is the default
    tokenizer.
    """

    name = "run"
    summary = "the tokenizer of a different run"

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
                "run that still has the original tokenizer"
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
        return self.like.identity()  # without the path of the run; the hash of its file is checked separately

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
