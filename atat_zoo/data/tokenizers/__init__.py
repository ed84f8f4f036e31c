"""The contract of tokenizers: text to ids 0 … V−1 and back.

The mask token is not part of the vocabulary; its id is V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from atat_zoo.data.dialogues import ASSISTANT, Message, Part
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer as Tokenizers


BOS, EOS = "<bos>", "<eos>"


class TokenizerModel(Protocol):
    """A tokenizer that is ready to use."""

    vocabulary_size: int  # V
    bos: int | None  # id that begins a sequence
    eos: int | None  # id that ends one
    unknown: int | None = None  # id of what it cannot read
    template: str | None = None  # its own template of dialogues, for Jinja; None for the plain one

    @property
    def library(self) -> Tokenizers | None:
        """The equivalent tokenizer of the `tokenizers` library; None, the default, if the library cannot express it."""
        return None

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without BOS and EOS."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several texts."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; BOS and EOS are omitted, id V (the mask) becomes `[MASK]`."""

    def byte_counts(self) -> NDArray[np.int64]:
        """Return the number of UTF-8 bytes of each token, int64 [V]; 0 for BOS and EOS."""

    def chat(self, messages: Sequence[Message], *, answering: bool = False) -> list[Part]:
        """Return a dialogue in tokens: the context, and the answers, which are the messages of the assistant.

        With `answering` it ends where the assistant's next message begins. By default a message is BOS, its role, a
        newline, its content and EOS, and the loss of an answer includes content and EOS; a tokenizer may have its own
        template. A dialogue that the template rejects, or a tokenizer without BOS and EOS, raises a `UserError`.
        """
        if self.bos is None or self.eos is None:
            raise UserError(
                "dialogues need a tokenizer with BOS and EOS, which enclose each message; set "
                "tokenizer.special_tokens = true (characters), or tokenizer.bos and tokenizer.eos (pretrained)"
            )
        asked = [Message(ASSISTANT, "")] if answering else []
        texts = [text for each in (*messages, *asked) for text in (f"{each.role}\n", each.text)]
        encoded = iter(self.encode_batch(texts))
        parts = []
        for message in messages:
            head, content = [self.bos, *next(encoded)], [*next(encoded), self.eos]
            parts += [Part(head, False), Part(content, message.answers)]
        return parts + [Part([self.bos, *next(encoded)], False) for _ in asked]

    def chats(self, messages: Sequence[Message]) -> list[list[Part]]:
        """Return the token sequences from which the answers of a dialogue are learned; by default one, from `chat`.

        A template may write earlier messages differently from the last ones. Then there is a sequence for each answer,
        with the messages before it as context, as at generation time.
        """
        return [self.chat(messages)]

    def check_turns(self, messages: Sequence[Message]) -> None:
        """Raise a `UserError` if the text of a message could be read as a message of another role.

        By default, and with the plain template, this is impossible: no text is encoded to BOS or EOS.
        """
        return

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` into a folder, for the component's `load`."""


class Tokenizer(Protocol):
    """The base class of tokenizers; a component implements `train` and `load`."""

    name: str
    # Examples for the conformance suite, of which it can write the first; () for the suite's own, in English.
    texts: ClassVar[tuple[str, ...]] = ()

    def train(self, documents: Callable[[], Iterator[str]]) -> TokenizerModel:
        """Return the tokenizer, after training it on the training split if needed."""

    def load(self, folder: Path) -> TokenizerModel:
        """Return the tokenizer that `save` wrote; the original files are not needed."""

    def fingerprint(self) -> str | None:
        """Return a hash of the tokenizer's files, so that shards of other files are not reused; None without files."""
        return None

    def identity(self) -> dict[str, Any]:
        """Return the tokenizer's table, without the parameters that do not affect the tokens."""
        return unstructure(self)

    @property
    def template(self) -> str | None:
        """The tokenizer's own Jinja chat template; None, the default, for the plain template."""
        return None

    @property
    def like(self) -> Tokenizer | None:
        """The run's own tokenizer, for the tokenizer of a run, whose fingerprint is the hash of `tokenizer.json`."""
        return None
