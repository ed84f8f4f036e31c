"""The contract of tokenizers: text to ids 0 … V−1 and back. The mask is not one of their tokens: it is id V."""

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
        """The same tokenizer as the `tokenizers` library has it; None, the default, where it cannot express it."""
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
        """Return a dialogue in tokens: what is given, and the answers, which are the messages of the assistant.

        With `answering` it ends where the assistant's next message begins. By default a message is BOS, its role, a
        line end, its content and EOS, and of an answer content and EOS are learned; a tokenizer with a template of its
        own has that one. What the template refuses is a `UserError`, as is a tokenizer without BOS and EOS.
        """
        if self.bos is None or self.eos is None:
            raise UserError(
                "dialogues need a tokenizer with BOS and EOS, between which each message stands; set "
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
        """Return a dialogue as the texts from which its answers are learned: one, by default, as `chat` has it.

        A template that writes earlier messages in another way than the last ones has a text for each answer, with what
        stands before it, in which this alone is learned: so it is as where a model writes it.
        """
        return [self.chat(messages)]

    def check_turns(self, messages: Sequence[Message]) -> None:
        """Raise a `UserError` for a dialogue in which the text of a message can pass for one of somebody else.

        By default, and with the plain template, none can: no text is BOS or EOS.
        """
        return

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` into a folder; the specification's `load` reads it."""


class Tokenizer(Protocol):
    """A component of the kind tokenizer, which inherits from this class; `train` and `load` have no default."""

    name: str
    # Examples for the conformance suite, of which it can write the first; () for the suite's own, in English.
    texts: ClassVar[tuple[str, ...]] = ()

    def train(self, documents: Callable[[], Iterator[str]]) -> TokenizerModel:
        """Return the tokenizer, trained on the training split if it needs training."""

    def load(self, folder: Path) -> TokenizerModel:
        """Return the tokenizer that `save` wrote; files that it was made from are not needed."""

    def fingerprint(self) -> str | None:
        """Return a hash of the files that it reads: shards of other files are not reused; None where it reads none."""
        return None

    def identity(self) -> dict[str, Any]:
        """Return its table, without the parameters that change no token."""
        return unstructure(self)

    @property
    def template(self) -> str | None:
        """Its own template of dialogues, for Jinja; None, the default, where its model has the plain one."""
        return None

    @property
    def like(self) -> Tokenizer | None:
        """Of the tokenizer of a run, whose fingerprint is the hash of `tokenizer.json`: the run's own tokenizer."""
        return None
