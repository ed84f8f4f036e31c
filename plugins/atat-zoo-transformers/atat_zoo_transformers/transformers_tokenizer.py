"""The tokenizer `transformers`: the tokenizer of a published model."""

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
    """Tokenizer of a model from the Hugging Face hub or a folder, with the model's own ids.

    BOS and EOS are the tokens around a text: the model's [CLS] and [SEP], or its BOS and EOS tokens. The zoo's mask is
    V, the largest id plus one, which the backbone `transformers` replaces with the model's own mask. If a text contains
    the name of an added token, the name is encoded as plain text. Byte-level vocabularies restore every byte of a text.
    Word pieces restore its words, in lower case if the model is uncased, and decode unknown characters as the unknown
    token.

    Dialogues use the model's chat template, and the text of a message is never encoded as added tokens.

    `special_tokens`, `sha256` and `chat_template` are filled in from the model, so that a run does not depend on it.
    """

    name = "transformers"
    summary = "tokenizer of a model on the Hugging Face hub or in a local folder"
    refs = ("https://huggingface.co/docs/transformers",)

    model: str = param(help="model name on the hub, or local folder")
    revision: str | None = param(None, help="commit, tag or branch on the hub; default: main")
    special_tokens: dict[str, str] | None = param(
        None, help="names of the special tokens bos_token, cls_token, …; default: filled in from the model"
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
        """Names of the tokens around a text, with the keys "bos" and "eos"; None for a token that the model lacks."""
        names = self.special_tokens or {}
        return {
            "bos": names.get("cls_token", names.get("bos_token")),
            "eos": names.get("sep_token", names.get("eos_token")),
        }

    def train(self, documents: Callable[[], Iterator[str]]) -> TokenizerModel:
        """Return the model's tokenizer, without reading `documents`.

        Raises:
            Unreadable: if the model is missing, or its tokenizer has changed since the experiment was resolved.
        """
        from atat_zoo_transformers.model_description import Unreadable, tokenizer_of

        library = tokenizer_of(self.model, self.revision).library
        if _digest(library.to_str()) != self.sha256:
            raise Unreadable(
                f"tokenizer.model: the tokenizer of {self.model!r} has changed since this experiment was resolved; "
                "leave tokenizer.sha256 out to use the new one, or set tokenizer.revision to the earlier revision"
            )
        return self._model(library)

    def load(self, folder: Path) -> TokenizerModel:
        """Return the tokenizer that `save` wrote, without using the model."""
        from atat_zoo.data.tokenizers.tokenizer_models import FILE, from_file

        return self._model(from_file(folder / FILE))

    @property
    def template(self) -> str | None:
        """Chat template in Jinja, or None if the model has none; see `Tokenizer`."""
        return self.chat_template

    def identity(self) -> dict[str, Any]:
        """Return the parameters without the chat template, which does not change the tokens of a text."""
        return {key: value for key, value in unstructure(self).items() if key != "chat_template"}

    def _model(self, library: Any) -> TokenizerModel:
        from atat_zoo.data.tokenizers.tokenizer_models import LibraryModel
        from atat_zoo_transformers.template import ChatModel

        if self.chat_template is None:
            return LibraryModel(library, **self.ends)
        return ChatModel(library, **self.ends, template=self.chat_template, names=self.special_tokens or {})

    def fingerprint(self) -> str:
        """Return the hash of the tokenizer's file, because a different file produces different shards."""
        assert self.sha256 is not None
        return self.sha256


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
