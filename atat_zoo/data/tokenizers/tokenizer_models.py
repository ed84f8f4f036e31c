"""Tokenizers that are ready to use: tables of bytes, and wrappers around the `tokenizers` library."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import secrets
import string
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from typing_extensions import override

from atat_zoo.data.tokenizers import BOS, EOS, TokenizerModel
from atat_zoo.system.errors import UserError, nearest
from atat_zoo.system.parsing import refuse_halves

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
ALPHABET = " " + string.ascii_lowercase


class TableModel(TokenizerModel):
    """A base class of tokenizers that decodes with each id's bytes (none for BOS, EOS and ids without text)."""

    def __init__(self, table: Sequence[bytes], *, bos: int | None, eos: int | None) -> None:
        self._table = [*table, b"[MASK]"]
        self.vocabulary_size, self.bos, self.eos = len(table), bos, eos

    @override
    def decode(self, ids: Iterable[int]) -> str:
        return b"".join([self._table[i] for i in ids]).decode("utf-8", "replace")  # U+FFFD for invalid UTF-8

    @override
    def byte_counts(self) -> NDArray[np.int64]:
        return np.array([len(entry) for entry in self._table[:-1]], np.int64)


class SmallModel(TableModel):
    """A tokenizer whose `tokenizer.json` contains only a few settings."""

    content: dict[str, Any]

    @override
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    @override
    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")

    def checked(self, folder: Path) -> Self:
        """Return the tokenizer itself if `save` wrote the same one to the folder; otherwise raise a `UserError`."""
        path = folder / FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{path} is missing; build the shards again with `atat data build`") from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is not readable JSON ({error}); build the shards again") from None
        if content != self.content:
            raise UserError(
                f"{path} does not match the experiment's tokenizer: it has {_brief(content)}, but the experiment has "
                f"{_brief(self.content)}; change [tokenizer] or build the shards again"
            )
        return self


class BytesModel(SmallModel):
    """The ready-to-use `bytes` tokenizer."""

    def __init__(self) -> None:
        super().__init__([bytes([i]) for i in range(256)] + [b"", b""], bos=256, eos=257)
        self.content = {"type": "bytes"}

    @override
    def encode(self, text: str) -> list[int]:
        try:
            return list(text.encode())
        except UnicodeEncodeError:
            refuse_halves(text, "the text")
            raise

    @cached_property
    @override
    def library(self) -> Tokenizer:
        return of_bytes([BOS, EOS])


class CharactersModel(SmallModel):
    """The ready-to-use `characters` tokenizer."""

    def __init__(self, *, special: bool, unknown: str) -> None:
        table = [symbol.encode() for symbol in ALPHABET]
        super().__init__(
            [*table, b"", b""] if special else table, bos=27 if special else None, eos=28 if special else None
        )
        self.content = {"type": "characters", "special": special, "unknown": unknown, "alphabet": ALPHABET}
        self._ids = {symbol: i for i, symbol in enumerate(ALPHABET)}
        self._unknown = unknown

    @override
    def encode(self, text: str) -> list[int]:
        ids = self._ids
        if self._unknown == "space":
            return [ids.get(symbol, 0) for symbol in text]
        try:
            return [ids[symbol] for symbol in text]
        except KeyError as error:
            raise UserError(
                f"tokenizer 'characters' can encode only the space and a to z, not {error.args[0]!r}; "
                'set tokenizer.unknown = "space", or use the "bytes" or "bpe" tokenizer'
            ) from None

    @cached_property
    @override
    def library(self) -> Tokenizer:
        return of_characters(
            ALPHABET, " " if self._unknown == "space" else None, [BOS, EOS][: 2 * (self.bos is not None)]
        )


def _brief(content: Any) -> str:
    text = json.dumps(content)
    return text if len(text) <= 80 else f"{text[:77]}..."


_END_OF_TEXT = "<|endoftext|>"
# Enable threads explicitly: otherwise, the library warns when loader workers fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

_GAPS = 4096  # unused ids that a vocabulary may have, in addition to as many as it has tokens
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def from_file(path: Path) -> Tokenizer:
    """Load a tokenizer from a `tokenizer.json` of the `tokenizers` library; raise a `UserError` if it is unusable."""
    if not path.is_file():
        raise UserError(f"tokenizer file {path} is missing; build the shards again, or correct tokenizer.path")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"tokenizer file {path} cannot be read by the tokenizers library: {error}") from None
    # A file may enable truncation or padding; truncation would silently lose text here.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return _bounded(tokenizer, path)


def _bounded(tokenizer: Tokenizer, path: Path) -> Tokenizer:
    """Return a tokenizer after checking that its largest id, which determines the size of a model, is plausible."""
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    if not ids or max(ids) >= 2 * len(ids) + _GAPS:
        held = f"{len(ids)} tokens, but the largest id is {max(ids)}" if ids else "no tokens"
        raise UserError(f"tokenizer file {path} has {held}; number the tokens without large gaps, or copy it again")
    return tokenizer


def trained(documents: Iterator[str], size: int, special: tuple[str, str]) -> Tokenizer:
    """Return a byte-level BPE trained on documents, with at most `size` tokens, the last of which are `special`."""
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def from_pair(vocabulary: Path, merges: Path) -> Tokenizer:
    """Return a byte-level BPE from files in GPT-2's format: JSON and text; raise a `UserError` if they are invalid."""
    try:
        tokenizer = _byte_level(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"tokenizer.path: {vocabulary} and {merges} are not a byte-pair encoding: {error}") from None
    # GPT-2's only special token is an ordinary vocabulary entry, but stands for no text.
    if _END_OF_TEXT in tokenizer.get_vocab():
        tokenizer.add_special_tokens([_END_OF_TEXT])
    return _bounded(tokenizer, vocabulary)


def of_bytes(special: Sequence[str]) -> Tokenizer:
    """Return a `tokenizers` tokenizer with an id for each byte, 0 to 255, followed by the special tokens."""
    tokenizer = _byte_level(models.BPE({symbol: i for i, symbol in enumerate(_symbols())}, []))
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def of_characters(alphabet: str, unknown: str | None, special: Sequence[str]) -> Tokenizer:
    """Return a `tokenizers` tokenizer with an id for each character, followed by the special tokens.

    Any other character is encoded as `unknown` or, without `unknown`, raises an error.
    """
    vocabulary = {symbol: i for i, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, **({} if unknown is None else {"unk_token": unknown})))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


class LibraryModel(TableModel):
    """A `TokenizerModel` that wraps a tokenizer from the `tokenizers` library.

    Attributes:
        byte_level: whether each token is a fixed sequence of bytes. If so, decoding and `byte_counts` are exact for
            every id; otherwise, the library decodes, and the counts refer to the tokens' displayed text.
        control: the ids that no text is encoded to: BOS, EOS and all added tokens except white space and symbols of the
            model itself.
    """

    def __init__(self, tokenizer: Tokenizer, *, bos: str | None, eos: str | None) -> None:
        # Text that happens to contain the name of a special token is encoded as text.
        tokenizer.encode_special_tokens = True
        self._library = tokenizer
        vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
        own: dict[str, int] = tokenizer.get_vocab(with_added_tokens=False)
        self.byte_level = "ByteLevel" in str(tokenizer.pre_tokenizer) or "ByteLevel" in str(tokenizer.decoder)
        unknown = None if self.byte_level else _unknown(tokenizer)
        for key, name in (("bos", bos), ("eos", eos)):
            if name is not None and name not in vocabulary:
                hint = nearest(name, list(vocabulary))
                raise UserError(f"tokenizer.{key}: the vocabulary has no token {name!r}{hint}")
            if name is not None and (name == unknown or (len(name) == 1 and name in own)):
                raise UserError(f"tokenizer.{key}: text can be encoded to {name!r}; name a token that no text contains")
        ids = [None if name is None else vocabulary[name] for name in (bos, eos)]
        added = tokenizer.get_added_tokens_decoder()
        silent = {i for i, token in added.items() if token.special} | {i for i in ids if i is not None}
        table = [b""] * (max(vocabulary.values()) + 1)
        for token, i in vocabulary.items():
            if i not in silent:
                table[i] = token.encode() if i in added else _bytes_of(token, self.byte_level)
        super().__init__(table, bos=ids[0], eos=ids[1])
        self.unknown = None if unknown is None else vocabulary.get(unknown)
        control = {name for name in (bos, eos) if name is not None}
        for each in added.values():
            symbol = len(each.content) == 1 and each.content in own
            space = not each.special and not each.content.strip(" ▁\t\r\n")
            if not (symbol or space or each.content == unknown):
                control.add(each.content)
        self.control = frozenset(vocabulary[name] for name in control)
        unread = {token.content for token in added.values() if token.special} - own.keys()
        self._text = adapted(tokenizer, control) if control - unread else tokenizer

    @property
    @override
    def library(self) -> Tokenizer:
        return self._library

    @override
    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    @override
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return encoded_by(self._text, texts)

    @override
    def decode(self, ids: Iterable[int]) -> str:
        if self.byte_level:
            return super().decode(ids)
        parts: list[list[int]] = [[]]
        for i in ids:
            if i == self.vocabulary_size:
                parts.append([])
            elif i not in (self.bos, self.eos):
                parts[-1].append(i)
        return "[MASK]".join(self.library.decode(part, skip_special_tokens=True) for part in parts)

    @override
    def save(self, folder: Path) -> None:
        # Not with the library's own `save`: its errors do not report a full disk.
        (folder / FILE).write_text(self.library.to_str(), encoding="utf-8")


def encoded_by(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each text; raise a `UserError` for text that the vocabulary does not cover."""
    try:
        # The fast version does not compute offsets, which are not needed here.
        encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    except Exception as error:  # the library raises bare Exception, for text that a vocabulary does not cover
        for text in texts:
            refuse_halves(text, "the text")
        raise UserError(
            f"tokenizer: the text cannot be encoded: {error}; "
            "use a tokenizer that can encode every character, such as bytes or bpe"
        ) from None
    return [encoding.ids for encoding in encoded]


def adapted(tokenizer: Tokenizer, hidden: Collection[str] = (), *, prefix: bool = True) -> Tokenizer:
    """Return a copy that never encodes text to the `hidden` tokens and, if not `prefix`, adds no space before a text.

    The hidden tokens keep their ids, but get names that cannot be guessed, and the merges that produce them are
    dropped.
    """
    content = json.loads(tokenizer.to_str())
    names = {name: f"\0{secrets.token_hex(16)}{i}" for i, name in enumerate(sorted(hidden))}
    for token in content["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = content["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(token, token): i for token, i in model["vocab"].items()}
    else:  # Unigram's, with scores
        model["vocab"] = [[names.get(token, token), score] for token, score in model["vocab"]]
    if names and "merges" in model:
        inner = len(model.get("continuing_subword_prefix") or "")
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        model["merges"] = [[a, b] for a, b in pairs if not names.keys() & {a, b, a + b[inner:]}]
    if model.get("unk_token") in names:
        model["unk_token"] = None
    if names:
        content["post_processor"] = None
    if not prefix:
        content |= {key: _unprefixed(content[key]) for key in ("normalizer", "pre_tokenizer")}
    made = Tokenizer.from_str(json.dumps(content))
    made.encode_special_tokens = tokenizer.encode_special_tokens
    return made


def _unknown(tokenizer: Tokenizer) -> str | None:
    """Return the unknown token of a tokenizer, if it has one."""
    if isinstance(tokenizer.model, models.Unigram):
        number = json.loads(tokenizer.to_str())["model"]["unk_id"]
        return None if number is None else tokenizer.id_to_token(number)
    return tokenizer.model.unk_token


def _unprefixed(value: Any) -> Any:
    """Return the settings of a tokenizer without those that add a space before a text."""
    if isinstance(value, list):
        return [_unprefixed(each) for each in value if not (isinstance(each, dict) and each.get("type") == "Prepend")]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "Prepend":
        return None
    never = {"add_prefix_space": False, "prepend_scheme": "never"}
    return {key: never[key] if key in never else _unprefixed(each) for key, each in value.items()}


def _bytes_of(token: str, byte_level: bool) -> bytes:
    """Return the exact bytes of a byte-level token, or, for other tokenizers, the bytes of its displayed text."""
    if byte_level:
        try:
            return token.translate(_byte_of_symbol()).encode("latin-1")
        except UnicodeEncodeError:  # some character is not in the notation
            return token.encode()
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    # "##" continues a word (WordPiece), "▁" is a space (SentencePiece).
    return token.removeprefix("##").replace("▁", " ").encode()


@functools.cache
def _byte_of_symbol() -> dict[int, int]:
    """Return the byte of each printable symbol, for `str.translate`.

    All other Latin-1 characters map to a character outside Latin-1, so that encoding them fails.
    """
    symbols = {ord(symbol): byte for byte, symbol in enumerate(_symbols())}
    return {byte: 0xFFFF for byte in range(256) if byte not in symbols} | symbols


def _symbols() -> list[str]:
    """Return the printable symbol of each byte, in the notation that byte-level BPE has used since GPT-2.

    Printable Latin-1 characters represent themselves; the other 68 bytes are represented by U+0100, U+0101, … in order.
    """
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(0x100)
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]
