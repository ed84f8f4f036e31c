"""Dialogues: messages of roles that take turns, and the plain template that makes tokens of them.

A corpus gives a dialogue as a text, `to_text`, so that it is held out, shuffled and shared like any other document.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from atat_zoo.errors import UserError, clip, nearest

if TYPE_CHECKING:
    from atat_zoo.tokenizers import TokenizerModel

ROLES = ("system", "user", "assistant", "tool")
ASSISTANT = "assistant"  # whose messages are answers
KEYS = ("messages", "prompt", "response", "completion")  # of an object that is a dialogue
_FORM = 'write {"messages": [{"role": "user", "content": "…"}, …]}, or {"prompt": "…", "response": "…"}'


class Message(NamedTuple):
    """What one side says in its turn."""

    role: str  # of `ROLES`
    content: str


class Part(NamedTuple):
    """Tokens of a dialogue that follow each other."""

    ids: list[int]
    answer: bool  # whether a model learns to write them; else they are given


def messages_of(value: Any) -> list[Message]:
    """Return the messages of an object as JSON has it: `messages`, or `prompt` and `response` or `completion`.

    What is said after the last answer is left out: nothing is learned of it.

    Raises:
        ValueError: a sentence with the remedy, where the object is none, or nothing in it is answered.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"is no dialogue: {clip(repr(value), 60)}; {_FORM}")
    there = [key for key in KEYS if value.get(key) is not None]
    if there == ["messages"]:
        every = value["messages"]
        if not isinstance(every, Sequence) or isinstance(every, str) or not every:
            raise ValueError(f"has no list of messages: {clip(repr(every), 60)}; {_FORM}")
        messages = [message_of(each, number) for number, each in enumerate(every, 1)]
    elif len(there) == 2 and there[0] == "prompt":
        pair = [{"role": role, "content": value[key]} for role, key in zip(("user", ASSISTANT), there, strict=True)]
        messages = [message_of(each, number) for number, each in enumerate(pair, 1)]
    else:
        raise ValueError(f"has {' and '.join(map(repr, there)) or 'no messages'}; {_FORM}")
    while messages and messages[-1].role != ASSISTANT:
        messages.pop()
    if not messages:
        raise ValueError(f"has no answer: no message has the role {ASSISTANT!r}; leave the line out, or answer it")
    return messages


def message_of(value: Any, number: int = 1) -> Message:
    """Return an object with a role and a content as a message, or raise a `ValueError` with its number."""
    if not isinstance(value, Mapping):
        raise ValueError(f"message {number} is none: {clip(repr(value), 60)}; {_FORM}")
    role, content = value.get("role"), value.get("content")
    if role not in ROLES:
        known = f"{nearest(role, ROLES) if isinstance(role, str) else ''} (there are: {', '.join(ROLES)})"
        raise ValueError(f"message {number} has the role {clip(repr(role), 60)}{known}")
    if not isinstance(content, str):
        raise ValueError(f"message {number} has no text as its content: {clip(repr(content), 60)}; write it as one")
    if role == ASSISTANT and not content.strip():
        raise ValueError(f"message {number} is an answer without a word; leave it out, or write one")
    # JSON can contain half of a surrogate pair, but UTF-8 cannot.
    return Message(role, content.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def to_text(messages: Iterable[Message]) -> str:
    """Return a dialogue as the text that `from_text` reads: the same messages give the same text."""
    return json.dumps(list(messages), ensure_ascii=False)


def from_text(text: str) -> list[Message]:
    """Return the messages of a dialogue."""
    return [Message(*each) for each in json.loads(text)]


def plain(tokenizer: TokenizerModel, messages: Sequence[Message], answering: bool) -> list[Part]:
    """Return a dialogue by the plain template; see `TokenizerModel.chat`."""
    if tokenizer.bos is None or tokenizer.eos is None:
        raise UserError(
            "dialogues need a tokenizer with BOS and EOS, between which each message stands; set tokenizer.special = "
            "true (characters), or tokenizer.bos and tokenizer.eos (pretrained)"
        )
    asked = [Message(ASSISTANT, "")] if answering else []
    encoded = iter(tokenizer.encode_batch([text for each in (*messages, *asked) for text in (f"{each[0]}\n", each[1])]))
    parts = []
    for role, _ in messages:
        head, content = [tokenizer.bos, *next(encoded)], [*next(encoded), tokenizer.eos]
        parts += [Part(head, False), Part(content, role == ASSISTANT)]
    return parts + [Part([tokenizer.bos, *next(encoded)], False) for _ in asked]
