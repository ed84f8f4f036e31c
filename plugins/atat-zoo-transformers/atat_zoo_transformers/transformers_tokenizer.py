"""The tokenizer of a model."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from atat_zoo.data.tokenizers import Tokenizer
from atat_zoo.registry import component, param
from atat_zoo.registry.spec import unstructure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from atat_zoo.data.tokenizers import TokenizerModel


@component
class TransformersTokenizer(Tokenizer):
    """The tokenizer of a model of the Hugging Face hub, or of a folder, with the model's own ids.

    BOS and EOS are the tokens that stand around a text there: [CLS] and [SEP] of BERT, else those that are called so.
    The zoo's mask is V, as everywhere, and the backbone `transformers` reads it as the model's own; V is the largest id
    plus one. A text that names an added token, special or not, is text. Byte-level vocabularies restore every byte of a
    text; word pieces restore its words, in lower case if the model has no other, and write a character that they do not
    know as their unknown token.

    Dialogues have the model's own chat template, in which no text of a message is an added token.

    `special_tokens`, `sha256` and `chat_template` are filled in from the model, so that a run no longer needs it.
    """

    name = "transformers"
    summary = "the tokenizer of a model on the Hugging Face hub or in a local folder"
    refs = ("https://huggingface.co/docs/transformers",)

    model: str = param(help="model name on the hub, or local folder")
    revision: str | None = param(None, help="commit, tag or branch on the hub; default: main")
    special_tokens: dict[str, str] | None = param(
        None, help="special tokens: bos_token, cls_token, …; default: filled in from the model"
    )
    sha256: str | None = param(None, help="SHA-256 of tokenizer.json; default: filled in from the model")
    chat_template: str | None = param(
        None, help="chat template (Jinja); default: filled in from the model, if it has one"
    )

    def __attrs_post_init__(self) -> None:
        if self.special_tokens is None or self.sha256 is None:
            from atat_zoo_transformers.model_description import template_of, tokenizer_of

            library, special, templates = tokenizer_of(self.model, self.revision)
            object.__setattr__(self, "special_tokens", special if self.special_tokens is None else self.special_tokens)
            if self.chat_template is None:
                object.__setattr__(self, "chat_template", template_of(self.model, templates))
            object.__setattr__(self, "sha256", self.sha256 or _digest(library.to_str()))

    @property
    def ends(self) -> dict[str, str | None]:
        """The names of BOS and EOS."""
        names = self.special_tokens or {}
        return {
            "bos": names.get("cls_token", names.get("bos_token")),
            "eos": names.get("sep_token", names.get("eos_token")),
        }

    def train(self, documents: Callable[[], Iterator[str]]) -> TokenizerModel:
        """Return the tokenizer; nothing is learned.

        Raises:
            Unreadable: when the model is not there, or has another tokenizer than when the experiment was resolved.
        """
        from atat_zoo_transformers.model_description import Unreadable, tokenizer_of

        library = tokenizer_of(self.model, self.revision).library
        if _digest(library.to_str()) != self.sha256:
            raise Unreadable(
                f"tokenizer.model: {self.model!r} has another tokenizer than when this experiment was resolved; "
                "resolve it again, or name the revision that it had"
            )
        return self._model(library)

    def load(self, folder: Path) -> TokenizerModel:
        """Return the tokenizer that `save` wrote; the model is not needed."""
        from atat_zoo.data.tokenizers.tokenizer_models import FILE, from_file

        return self._model(from_file(folder / FILE))

    @property
    def template(self) -> str | None:
        """See `Tokenizer`."""
        return self.chat_template

    def identity(self) -> dict[str, Any]:
        """Return its table without the template, which changes no token of a text."""
        return {key: value for key, value in unstructure(self).items() if key != "chat_template"}

    def _model(self, library: Any) -> TokenizerModel:
        from atat_zoo.data.tokenizers.tokenizer_models import LibraryModel
        from atat_zoo_transformers.template import ChatModel

        if self.chat_template is None:
            return LibraryModel(library, **self.ends)
        return ChatModel(library, **self.ends, template=self.chat_template, names=self.special_tokens or {})

    def fingerprint(self) -> str:
        """Return the hash of the tokenizer's file: a different file gives different shards."""
        assert self.sha256 is not None
        return self.sha256


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
