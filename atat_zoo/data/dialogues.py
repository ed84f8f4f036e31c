"""Dialogues, which are lists of messages with roles.

`to_text` encodes a dialogue as a string, so that it can be held out and shuffled like any other document.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from atat_zoo.data import Split
from atat_zoo.system.errors import clip, nearest

ROLES = ("system", "user", "assistant", "tool")
ASSISTANT = "assistant"  # whose messages are answers
# The content of each key of a record: a role for text, "" for a list of messages, None for an unsupported key.
KEYS: dict[str, str | None] = {
    "system": "system",
    "messages": "",
    "conversations": "",
    "conversation": "",
    "prompt": "user",
    "instruction": "user",
    "input": "user",
    "response": ASSISTANT,
    "completion": ASSISTANT,
    "output": ASSISTANT,
    **dict.fromkeys(("tools", "history", "images")),
}
# The role for each name that datasets use.
_ROLES = {role: role for role in (*ROLES, "developer")} | {
    "human": "user",
    "gpt": ASSISTANT,
    "function": "tool",
    "observation": "tool",
}
_MORE = ("tool_calls", "tool_call_id", "reasoning_content")  # of a message, for its template
_FORM = 'write {"messages": [{"role": "user", "content": "…"}, …]}, or {"prompt": "…", "response": "…"}'


class Message(NamedTuple):
    """One message of a dialogue: a role and its content."""

    role: str  # of `ROLES`
    content: str

    @property
    def more(self) -> dict[str, Any]:
        """Additional fields that a chat template may use, such as `tool_calls`."""
        return getattr(self, "_more", {})

    @property
    def answers(self) -> bool:
        """Whether the loss includes the message, because the assistant says something or calls a tool."""
        return self.role == ASSISTANT and bool(self.content.strip() or "tool_calls" in self.more)

    @property
    def text(self) -> str:
        """The text in the plain template (`TokenizerModel.chat`): the content, followed by the other fields as JSON."""
        more = json.dumps(self.more, ensure_ascii=False) if self.more else ""
        return "\n".join(filter(None, [self.content, more]))

    def saying(self, content: str, more: dict[str, Any] | None = None) -> Message:
        """Return a copy of the message with the given content; `more`, unless empty, replaces its additional fields."""
        if not (more := more or self.more):
            return Message(self.role, content)
        made = _FullMessage(self.role, content)
        made._more = more
        return made


class _FullMessage(Message):
    """A message with fields in addition to its role and content."""

    _more: dict[str, Any]


class Part(NamedTuple):
    """Consecutive tokens of a dialogue, which are either context or an answer."""

    ids: list[int]
    answer: bool  # whether a model learns to generate the tokens; otherwise they are context


def messages_of(value: Any) -> list[Message]:
    """Return the messages in a JSON object: either the list under one of its `KEYS`, or a prompt and its answer.

    Messages after the last answer are dropped, because nothing is learned from them. If there is no answer, all
    messages are kept.

    Raises:
        ValueError: if the object is not a dialogue; the message names the remedy.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"is not a dialogue: {clip(repr(value), 60)}; {_FORM}")
    there = {key: role for key, role in KEYS.items() if value.get(key) is not None}
    if unread := [key for key in there if there[key] is None and value[key]]:
        raise ValueError(f"has {unread[0]!r}, which is not supported; move it into a message, or remove the key")
    lists, asks, answers = ([key for key in there if there[key] == role] for role in ("", "user", ASSISTANT))
    if (len(lists), len(answers)) not in ((1, 0), (0, 1)) or not (lists or asks):
        raise ValueError(f"has {' and '.join(map(repr, lists + asks + answers)) or 'no messages'}; {_FORM}")
    every: list[Any] = []
    for key in [*(key for key in there if there[key] == "system"), *lists, *(() if lists else asks), *answers]:
        found, role = value[key], there[key]
        if isinstance(found, list):
            every += found
        elif role == "":
            raise ValueError(f"has no list of messages: {clip(repr(found), 60)}; {_FORM}")
        elif key in asks[1:] and isinstance(found, str) and isinstance(value[asks[0]], str):
            every[-1]["content"] = "\n\n".join(filter(None, [every[-1]["content"], found]))  # an instruction, its input
        elif found != "" or role != "system":
            every.append({"role": role, "content": found})
    messages = [message_of(each, number) for number, each in enumerate(every, 1)]
    said = [message.content for message in messages]
    if unsaid := [key for key in asks if lists and value[key] not in said]:  # else it repeats a message of the list
        raise ValueError(f"has both {unsaid[0]!r} and {lists[0]!r}; remove one of them")
    return messages[: max((i for i, message in enumerate(messages, 1) if message.answers), default=len(messages))]


def message_of(value: Any, number: int = 1) -> Message:
    """Return the message in a JSON object with role and content; if invalid, raise a `ValueError` with `number`."""
    if not isinstance(value, Mapping):
        raise ValueError(f"message {number} is not a message: {clip(repr(value), 60)}; {_FORM}")
    named, content = (value.get(key, value.get(other)) for key, other in (("role", "from"), ("content", "value")))
    role = _ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        known = f"{nearest(named, ROLES) if isinstance(named, str) else ''} (available: {', '.join(ROLES)})"
        raise ValueError(f"message {number} has the unknown role {clip(repr(named), 60)}{known}")
    if isinstance(content, list) and all(map(_is_text, content)):
        content = "".join(part["text"] for part in content)
    if content is None and role == ASSISTANT:  # it calls tools, or says nothing
        content = ""
    if not isinstance(content, str):
        raise ValueError(f"message {number} has content that is not text: {clip(repr(content), 60)}; write it as text")
    more = {key: value[key] for key in _MORE if value.get(key)}
    # JSON can contain half a surrogate pair, but UTF-8 cannot.
    return Message(role, "").saying(content.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), more)


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


class DialogueText(str):
    """A dialogue as a string, with the place where it was read, such as `talk.jsonl, line 8`."""

    place: str


def to_text(messages: Iterable[Message], place: str = "a dialogue") -> str:
    """Return a dialogue as a string for `from_text`; identical messages give identical strings."""
    text = DialogueText(json.dumps([(*each, *filter(None, [each.more])) for each in messages], ensure_ascii=False))
    text.place = place
    return text


def from_text(text: str) -> list[Message]:
    """Return the messages of a dialogue that `to_text` encoded."""
    return [Message(role, "").saying(content, *more) for role, content, *more in json.loads(text)]


def texts_of(corpus: Any, split: Split, form: str) -> Iterator[str]:
    """Yield the documents of a split, or its dialogues as strings if `form` is `"chat"`."""
    return corpus.dialogues(split) if form == "chat" else corpus.documents(split)


def learned_text(text: str) -> Iterator[str]:
    """Yield the role and the text of each message in a dialogue from `to_text`, on which a tokenizer is trained."""
    return (f"{message.role}\n{message.text}" for message in from_text(text))
