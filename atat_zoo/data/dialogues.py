"""Dialogues: messages of roles that take turns, as a corpus gives them.

A dialogue is a text, `to_text`, so that it is held out, shuffled and shared like any other document.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from atat_zoo.data import Split
from atat_zoo.system.errors import clip, nearest

ROLES = ("system", "user", "assistant", "tool")
ASSISTANT = "assistant"  # whose messages are answers
# What the keys of a row hold: a text of a role, "" for a list of messages, None for what is not read.
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
# The roles of messages by the names that they go by in data.
_ROLES = {role: role for role in (*ROLES, "developer")} | {
    "human": "user",
    "gpt": ASSISTANT,
    "function": "tool",
    "observation": "tool",
}
_MORE = ("tool_calls", "tool_call_id", "reasoning_content")  # of a message, for its template
_FORM = 'write {"messages": [{"role": "user", "content": "…"}, …]}, or {"prompt": "…", "response": "…"}'


class Message(NamedTuple):
    """What one side says in its turn."""

    role: str  # of `ROLES`
    content: str

    @property
    def more(self) -> dict[str, Any]:
        """What else its template may write: `tool_calls`, for example."""
        return getattr(self, "_more", {})

    @property
    def answers(self) -> bool:
        """Whether a model learns to write it: the assistant says something there, or calls a tool."""
        return self.role == ASSISTANT and bool(self.content.strip() or "tool_calls" in self.more)

    @property
    def text(self) -> str:
        """What the plain template writes of it: its content, and the rest as JSON."""
        more = json.dumps(self.more, ensure_ascii=False) if self.more else ""
        return "\n".join(filter(None, [self.content, more]))

    def saying(self, content: str, more: dict[str, Any] | None = None) -> Message:
        """Return it with another content, and with `more` than it has."""
        if not (more := more or self.more):
            return Message(self.role, content)
        made = _FullMessage(self.role, content)
        made._more = more
        return made


class _FullMessage(Message):
    """A message that may have more than a role and a content."""

    _more: dict[str, Any]


class Part(NamedTuple):
    """Tokens of a dialogue that follow each other."""

    ids: list[int]
    answer: bool  # whether a model learns to write them; else they are given


def messages_of(value: Any) -> list[Message]:
    """Return the messages of a JSON object, by its `KEYS`: a list of messages, or texts that end with the answer.

    Messages after the last answer are left out, because nothing is learned from them; without any answer all are kept.

    Raises:
        ValueError: a sentence with the remedy, when the object is not a dialogue.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"is not a dialogue: {clip(repr(value), 60)}; {_FORM}")
    there = {key: role for key, role in KEYS.items() if value.get(key) is not None}
    if unread := [key for key in there if there[key] is None and value[key]]:
        raise ValueError(f"has {unread[0]!r}, which is not read; write it into a message, or take the key out")
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
    if unsaid := [key for key in asks if lists and value[key] not in said]:  # else it is the first one, once more
        raise ValueError(f"has {unsaid[0]!r} beside {lists[0]!r}; take one of them out")
    return messages[: max((i for i, message in enumerate(messages, 1) if message.answers), default=len(messages))]


def message_of(value: Any, number: int = 1) -> Message:
    """Return an object with a role and a content as a message, or raise a `ValueError` with its number."""
    if not isinstance(value, Mapping):
        raise ValueError(f"message {number} is not a message: {clip(repr(value), 60)}; {_FORM}")
    named, content = (value.get(key, value.get(other)) for key, other in (("role", "from"), ("content", "value")))
    role = _ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        known = f"{nearest(named, ROLES) if isinstance(named, str) else ''} (there are: {', '.join(ROLES)})"
        raise ValueError(f"message {number} has the role {clip(repr(named), 60)}{known}")
    if isinstance(content, list) and all(map(_is_text, content)):
        content = "".join(part["text"] for part in content)
    if content is None and role == ASSISTANT:  # it calls tools, or says nothing
        content = ""
    if not isinstance(content, str):
        raise ValueError(f"message {number} has content that is not text: {clip(repr(content), 60)}; write it as text")
    more = {key: value[key] for key in _MORE if value.get(key)}
    # JSON can contain half of a surrogate pair, but UTF-8 cannot.
    return Message(role, "").saying(content.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), more)


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


class DialogueText(str):
    """A dialogue as a text, which knows where it was read: `talk.jsonl, line 8`."""

    place: str


def to_text(messages: Iterable[Message], place: str = "a dialogue") -> str:
    """Return a dialogue as the text that `from_text` reads: the same messages give the same text."""
    text = DialogueText(json.dumps([(*each, *filter(None, [each.more])) for each in messages], ensure_ascii=False))
    text.place = place
    return text


def from_text(text: str) -> list[Message]:
    """Return the messages of a dialogue."""
    return [Message(role, "").saying(content, *more) for role, content, *more in json.loads(text)]


def texts_of(corpus: Any, split: Split, form: str) -> Iterator[str]:
    """Return the documents of a split of a corpus, or its dialogues, each as a text, for `form` of `[data]`."""
    documents: Iterator[str] = corpus.dialogues(split) if form == "chat" else corpus.documents(split)
    return documents


def learned_text(text: str) -> Iterator[str]:
    """Yield the messages of a dialogue as a tokenizer learns them: with their roles, as the plain template has them."""
    return (f"{message.role}\n{message.text}" for message in from_text(text))
