"""The chat template of a model: dialogues in tokens, as the library renders them."""

from __future__ import annotations

import re
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer
from typing_extensions import override

from atat_zoo.errors import UserError, clip
from atat_zoo.tokenizers.dialogues import ASSISTANT, Message, Part
from atat_zoo.tokenizers.library import LibraryModel

if TYPE_CHECKING:
    from collections.abc import Sequence


class ChatModel(LibraryModel):
    """A tokenizer with a template.

    What is answer is found by rendering the dialogue up to each answer and to its end: the second text begins with the
    first, and the whole with the second, or the template is refused. It is then tokenised as a whole, so that no token
    is another than in the library's own `apply_chat_template`; a token on the border of an answer is given.
    """

    def __init__(self, tokenizer: Tokenizer, *, bos: str | None, eos: str | None, template: str, names: Any) -> None:
        super().__init__(tokenizer, bos=bos, eos=eos)
        self.template, self.names = template, names  # of its special tokens, by their purpose

    @cached_property
    def rendering(self) -> Tokenizer:
        """The tokenizer, by which the name of a special token is that token."""
        made = Tokenizer.from_str(self.library.to_str())
        made.encode_special_tokens = False
        return made

    @cached_property
    def special(self) -> re.Pattern[str]:
        """The name of any of its special tokens."""
        added = self.library.get_added_tokens_decoder().values()
        return re.compile("|".join(re.escape(token.content) for token in added if token.special) or "(?!)")

    @override
    def chat(self, messages: Sequence[Message], *, answering: bool = False) -> list[Part]:
        for message in messages:
            if found := self.special.search(message.content):
                raise UserError(
                    f"the message {clip(repr(message.content), 60)} names the special token {found[0]}, which would "
                    "change who says it; take it out"
                )
        whole = self.rendered(messages, answering)
        answers = [] if answering else [self.span(messages, i, whole) for i in range(len(messages))]
        encoding = self.rendering.encode(whole, add_special_tokens=False)
        learned = [any(a <= start and end <= b for a, b in answers) for start, end in encoding.offsets]
        both = groupby(zip(encoding.ids, learned, strict=True), key=lambda pair: pair[1])
        return [Part([i for i, _ in pairs], answer) for answer, pairs in both]

    def span(self, messages: Sequence[Message], i: int, whole: str) -> tuple[int, int]:
        """Return where message i begins and ends in the text of all if it is an answer, else nothing."""
        if messages[i].role != ASSISTANT:
            return 0, 0
        before, after = self.rendered(messages[:i], True), self.rendered(messages[: i + 1], False)
        if not (after.startswith(before) and whole.startswith(after)):
            raise UserError(
                f"the chat template of the tokenizer changes what stands before message {i + 1}, so that it has no "
                "tokens of its own; leave earlier answers out, or write another template by tokenizer.chat_template"
            )
        return len(before), len(after)

    def rendered(self, messages: Sequence[Message], answering: bool) -> str:
        """Return the text of messages, as the library has it."""
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        conversation: Any = [message._asdict() for message in messages]
        try:
            found: Any = render_jinja_template(
                [conversation], chat_template=self.template, add_generation_prompt=answering, **self.names
            )
        except TemplateError as error:
            said = clip(str(error))
            raise UserError(f"the chat template of the tokenizer refuses a dialogue: {said}; change the one") from None
        text: str = found[0][0] if isinstance(found, tuple) else found[0]
        return text
