"""The interface of tokenizers, which convert text to ids 0 … V−1 and back, where V is the size of the vocabulary.

The mask token has the id V and is not part of the vocabulary.
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
    unknown: int | None = None  # id for text that the tokenizer cannot represent
    template: str | None = None  # its own Jinja chat template; None for the plain template

    @property
    def library(self) -> Tokenizers | None:
        """The equivalent tokenizer from the `tokenizers` library; None by default."""
        return None

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without BOS and EOS."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several texts, each without BOS and EOS."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; BOS and EOS are omitted, and id V (the mask) becomes `[MASK]`."""

    def picture(self, ids: Sequence[int]) -> list[list[str | None]] | None:
        """Return the rows of the picture that the last ids are, as CSS colours; None, the default, for text.

        A mask, or a token that is not a pixel, has no colour (None). Reports then show pictures instead of text.
        """
        return None

    def image(self, ids: Sequence[int]) -> tuple[str, bytes] | None:
        """Return a description and a PNG file that show ids as a whole, such as a spectrogram; None, the default.

        Reports show it with the tokens. A mask (id V) may occur.
        """
        return None

    def byte_counts(self) -> NDArray[np.int64]:
        """Return the number of UTF-8 bytes in each token, int64 [V], which is 0 for BOS and EOS."""

    def chat(self, messages: Sequence[Message], *, answering: bool = False) -> list[Part]:
        """Return the tokens of a dialogue: the context, and the answers, which are the assistant's messages.

        With `answering`, the tokens end where the assistant's next message begins. In the plain template, the default,
        a message consists of BOS, its role, a newline, its text and EOS, and the loss of an answer includes its text
        and EOS. A tokenizer may have its own template. A dialogue that the template rejects, or a tokenizer without BOS
        and EOS, raises a `UserError`.
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
        """Return the token sequences from which the answers in a dialogue are learned; by default, one from `chat`.

        A template may format earlier messages differently from the last ones. Then each answer has its own sequence,
        with the previous messages as context, as in generation.
        """
        return [self.chat(messages)]

    def check_turns(self, messages: Sequence[Message]) -> None:
        """Raise a `UserError` if the text of a message could be read as a message with a different role.

        By default, and with the plain template, this is impossible, because no text is encoded to BOS or EOS.
        """
        return

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` to a folder, to be read by the component's `load`."""


class Tokenizer(Protocol):
    """The base class of tokenizers; a component implements `train` and `load`."""

    name: str
    # Example texts for the conformance suite, the first of which it can encode exactly; () for the suite's English
    # ones.
    texts: ClassVar[tuple[str, ...]] = ()

    def train(self, documents: Callable[[], Iterator[str]]) -> TokenizerModel:
        """Return the tokenizer, which is trained on the documents of the training split if it needs training."""

    def load(self, folder: Path) -> TokenizerModel:
        """Return the tokenizer that `TokenizerModel.save` wrote to `folder`, without reading its original files."""

    def fingerprint(self) -> str | None:
        """Return a hash of the tokenizer's files, so that other files get new shards; None if it has no files."""
        return None

    def identity(self) -> dict[str, Any]:
        """Return the `[tokenizer]` table without the parameters that do not affect the tokens."""
        return unstructure(self)

    @property
    def template(self) -> str | None:
        """The tokenizer's own Jinja chat template, or None (the default) for the plain template."""
        return None

    @property
    def like(self) -> Tokenizer | None:
        """The tokenizer of the run that `run` names (then `fingerprint` is its file's SHA-256); None for all others."""
        return None
