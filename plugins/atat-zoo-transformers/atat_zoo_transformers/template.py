"""Encode dialogues with a model's chat template, so that the text of a message never becomes control tokens."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

from tokenizers import Tokenizer
from typing_extensions import override

from atat_zoo.data.dialogues import ROLES, Message, Part
from atat_zoo.data.tokenizers.tokenizer_models import LibraryModel, adapted, encoded_by
from atat_zoo.system.errors import UserError, clip

_REMEDY = "pass a different template with tokenizer.chat_template"


class _Frame(NamedTuple):
    """The template's own text around the contents of n messages, in n + 1 pieces."""

    pieces: list[str]
    answers: list[tuple[int, int]]  # start and end of each answer in the text with placeholders
    marks: list[str]  # the placeholder of each message; empty without content

    def contents_in(self, text: str, messages: Sequence[Message]) -> list[str] | None:
        """Return the message contents in a rendered text, or None if the text around them is not `pieces`."""
        found, at = [], len(self.pieces[0])
        said = [message.content for message, mark in zip(messages, self.marks, strict=True) if mark]
        for content, after in zip(said, self.pieces[1:], strict=True):
            # Many templates strip white space from contents.
            forms = (content, content.strip(), content.lstrip(), content.rstrip())
            form = next((form for form in forms if text.startswith(form + after, at)), "")
            found.append(form)
            at += len(form + after)
        pairs = zip([*found, ""], self.pieces, strict=True)
        return found if text == "".join(piece + content for content, piece in pairs) else None


class RewrittenError(UserError):
    """Error for a template that changes the text before an answer if more messages follow."""


class ChatModel(LibraryModel):
    """Tokenizer with a chat template.

    The template is rendered with placeholders for the message contents. In the template's own text, the names of
    special tokens are encoded as special tokens. Each content is encoded separately as plain text and then inserted, so
    it never contains control tokens or changes the tokens around it. The other tokens are the same as with
    `apply_chat_template` in `transformers`. A template must contain each content exactly once, in order, and unchanged
    except for white space at its ends.

    To locate an answer, the dialogue is rendered up to the start and up to the end of the answer. The second text must
    begin with the first, and the whole text with the second. A token that crosses the boundary of an answer is treated
    as given. If a template rewrites earlier answers, for example to remove their reasoning, each answer gets a separate
    text.
    """

    def __init__(self, tokenizer: Tokenizer, *, bos: str | None, eos: str | None, template: str, names: Any) -> None:
        super().__init__(tokenizer, bos=bos, eos=eos)
        self.template, self.names = template, names  # `names`: special tokens by role

    @cached_property
    def contents(self) -> Tokenizer:
        """Tokenizer for contents, which does not add a leading space."""
        return adapted(self._text, prefix=False)

    @cached_property
    def beginning(self) -> Tokenizer:
        """Tokenizer for the template's own text, which encodes the name of a special token as that token."""
        made = Tokenizer.from_str(self.library.to_str())
        made.encode_special_tokens = False
        return made

    @cached_property
    def going_on(self) -> Tokenizer:
        """Tokenizer for template text that follows other text, which does not add a leading space."""
        return adapted(self.beginning, prefix=False)

    @override
    def chats(self, messages: Sequence[Message]) -> list[list[Part]]:
        try:
            return [self.chat(messages)]
        except RewrittenError:
            return [self.chat(messages[: i + 1], learned=[i]) for i, message in enumerate(messages) if message.answers]

    @override
    def chat(
        self, messages: Sequence[Message], *, answering: bool = False, learned: Sequence[int] | None = None
    ) -> list[Part]:
        """Return a dialogue's tokens; `learned` are the answers to train on, by default all, or none if `answering`."""
        if learned is None:
            learned = [i for i, message in enumerate(messages) if message.answers and not answering]
        text = self.rendered(messages, answering)
        # A template may omit an empty content together with the text around it.
        for empty in dict.fromkeys([True, all(message.content for message in messages)]):
            frame = self.framed(messages, answering, learned, empty=empty)
            contents = frame and frame.contents_in(text, messages)
            if frame and contents is not None:
                return list(self.spliced(frame, contents))
        raise UserError(
            "the chat template of the tokenizer changes, repeats, reorders or omits the text of a message: "
            f"{clip(repr([message.content for message in messages]), 100)}; change the message, or {_REMEDY}"
        )

    @override
    def check_turns(self, messages: Sequence[Message]) -> None:
        roles = [message.role for message in messages]
        own = list(self.frames([roles, ["system", *roles]] if roles[0] != "system" else [roles]))
        first = {role: roles.index(role) for role in roles}
        swapped = [[*roles[:i], role, *roles[i + 1 :]] for i in first.values() for role in ROLES if role != roles[i]]
        headers = {self.header(piece) for frame in [*own, *self.frames(swapped)] for piece in frame.pieces[:-1]}
        if any(not self.controls(piece) for frame in own for piece in frame.pieces[1:]) or any(
            one != other and other.startswith(one) for one in headers for other in headers
        ):
            raise UserError(
                "the chat template of the tokenizer marks the speaker with text that a message may contain; put "
                f"special tokens between messages ({_REMEDY}), or pass trusted=True if you trust the authors of all "
                "messages"
            )

    def frames(self, dialogues: Iterable[Sequence[str]]) -> Iterator[_Frame]:
        """Yield the template's text around messages, a `_Frame`, for each sequence of roles that it accepts."""
        for roles in dialogues:
            with suppress(UserError):
                if frame := self.framed([Message(role, "x") for role in roles], True):
                    yield frame

    def controls(self, piece: str) -> list[int]:
        """Return the offsets of the control tokens in a piece of the template's text."""
        encoding = self.going_on.encode(piece, add_special_tokens=False)
        return [a for i, (a, _) in zip(encoding.ids, encoding.offsets, strict=True) if i in self.control]

    def header(self, piece: str) -> str:
        """Return the text between the last control token and a content, which names the speaker."""
        return piece[max(self.controls(piece), default=0) :]

    def framed(
        self, messages: Sequence[Message], answering: bool, learned: Sequence[int] = (), *, empty: bool = True
    ) -> _Frame | None:
        """Return the template's text around messages, a `_Frame`, or None if it cannot be determined.

        Messages without content have placeholders only if `empty` is set.
        """
        key = secrets.token_hex(16)
        marks = [f"x{key}{i:06}" if message.content or empty else "" for i, message in enumerate(messages)]
        marked = [message.saying(mark) for message, mark in zip(messages, marks, strict=True)]
        text = whole = self.rendered(marked, answering)
        pieces = []
        for mark in filter(None, marks):
            piece, found, text = text.partition(mark)
            if not found:
                return None
            pieces.append(piece)
        return _Frame([*pieces, text], [self.span(marked, i, whole) for i in learned], marks)

    def spliced(self, frame: _Frame, contents: Sequence[str]) -> Iterator[Part]:
        """Yield the tokens of a dialogue in parts; each part states whether it is trained on."""
        learned: list[tuple[int, bool]] = []
        at = 0

        def add(tokens: Iterable[tuple[int, tuple[int, int]]], length: int) -> None:
            nonlocal at
            for i, (start, end) in tokens:
                learned.append((i, any(a <= at + start and at + end <= b for a, b in frame.answers)))
            at += length

        encoded = iter(encoded_by(self.contents, contents))
        marks = [*filter(None, frame.marks), ""]
        for number, (piece, mark) in enumerate(zip(frame.pieces, marks, strict=True)):
            add(self.own(piece, first=number == 0), len(piece))
            add(((i, (0, len(mark))) for i in (next(encoded) if mark else ())), len(mark))
        for answer, tokens in groupby(learned, key=lambda pair: pair[1]):
            yield Part([i for i, _ in tokens], answer)

    def own(self, piece: str, *, first: bool) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the id and the offsets of each token in a piece of the template's text.

        Except in the first piece, text before the first control token continues the preceding text.
        """
        cut = 0 if first else min(self.controls(piece), default=len(piece))
        for tokenizer, start, part in ((self.going_on, 0, piece[:cut]), (self.beginning, cut, piece[cut:])):
            encoding = tokenizer.encode(part, add_special_tokens=False)
            for i, (a, b) in zip(encoding.ids, encoding.offsets, strict=True):
                yield i, (start + a, start + b)

    def span(self, messages: Sequence[Message], i: int, whole: str) -> tuple[int, int]:
        """Return the start and end of answer i in the whole text; raise a `RewrittenError` if earlier text changes."""
        before, after = self.rendered(messages[:i], True), self.rendered(messages[: i + 1], False)
        if not (after.startswith(before) and whole.startswith(after)):
            raise RewrittenError(
                f"the chat template of the tokenizer changes the text before message {i + 1} when messages follow, so "
                f"the tokens of its answer cannot be determined; remove earlier answers, or {_REMEDY}"
            )
        return len(before), len(after)

    def rendered(self, messages: Sequence[Message], answering: bool) -> str:
        """Return the text of messages as `transformers` renders it, or raise a `UserError` if the template fails."""
        from jinja2 import TemplateError, TemplateSyntaxError

        from atat_zoo_transformers.rendering import TooMuchError, rendered

        given = {"add_generation_prompt": answering, "tools": None, "documents": None}
        try:
            text = rendered(
                self.template, [message._asdict() | message.more for message in messages], **given, **self.names
            )
            text.encode()
        except TooMuchError:
            said = f"does not end, is too long or creates too much text; {_REMEDY}"
        except TemplateSyntaxError as error:
            said = f"is not a Jinja template: line {error.lineno}: {clip(error)}; {_REMEDY}"
        except Exception as error:  # the template is code from someone else, which may raise anything
            kind = "" if type(error) is TemplateError else f"{type(error).__name__}: "
            said = f"refuses a dialogue: {kind}{clip(error)}; change the dialogue, or {_REMEDY}"
        else:
            return text
        raise UserError(f"the chat template of the tokenizer {said}")
