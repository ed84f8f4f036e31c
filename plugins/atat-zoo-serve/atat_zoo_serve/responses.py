"""Responses in OpenAI's format with additional fields, sent whole or as the chunks of a stream.

During generation, each choice has an `UnmaskingText`, which knows the part of the text that is already final and the
state of the whole text.
"""

from __future__ import annotations

import itertools
import time
import uuid
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import attrs
from typing_extensions import override

from atat_zoo.data.dialogues import ASSISTANT
from atat_zoo.generation.layout import Layout, truncate_at_end
from atat_zoo_serve.batching import Done, Drawn
from atat_zoo_serve.request_fields import EndingRequest, TextRequest
from atat_zoo_serve.service import Plan, rewrites

Table = dict[str, Any]
Segment = dict[str, str | int]


@attrs.define(eq=False, kw_only=True)
class UnmaskingText:
    """Text during generation; `ids` are its tokens, int64 [L] as a list, with the mask's id at masked positions."""

    layout: Layout
    lengths: tuple[int, ...]
    end: int | None = None  # the token that ends the generated text
    ids: list[int] = attrs.field(init=False)
    new: frozenset[int] = frozenset()  # positions that the last step changed

    def __attrs_post_init__(self) -> None:
        self.ids = self.layout.row(self.lengths)

    @property
    def mask_id(self) -> int:
        """The id of the mask token."""
        return self.layout.words.tokenizer.vocabulary_size

    @property
    def written(self) -> list[int]:
        """Tokens in all gaps, without the end token of a gap and the tokens after it."""
        return [self.ids[i] for _, span, _ in self._gaps() for i in span]

    @property
    def ended(self) -> bool:
        """Whether an end token stops the generated text before the end of its gap."""
        return len(self.written) < sum(self.lengths)

    def draw(self, positions: Sequence[int], tokens: Sequence[int]) -> None:
        """Put the tokens of a decoding step at their positions, which become the new ones."""
        for position, token in zip(positions, tokens, strict=True):
            self.ids[position] = token
        self.new = frozenset(positions)

    def final(self) -> tuple[str, bool]:
        """Return the text before the first mask, without an incomplete last character, and whether no mask remains."""
        said = []
        for piece, span, opens in self._gaps():
            said.append(piece)
            ids = self.ids[span.start : span.stop]
            first = ids.index(self.mask_id) if self.mask_id in ids else len(ids)
            fill = self.layout.words.text_of(ids[:first])
            fill = fill.removeprefix(" ") if opens else fill
            if first < len(ids):
                return "".join([*said, fill.rstrip("\ufffd")]), False
            said.append(fill)
        return "".join([*said, self.layout.template.pieces[-1]]), True

    def state(self) -> list[Segment]:
        """Return the text as segments: strings `given`, `written`, or `new` in the last step; counts of `masked`."""
        segments: list[Segment] = []
        for piece, span, opens in self._gaps():
            segments += [{"given": piece}] if piece else []
            for kind, group in itertools.groupby(span, self._kind):
                some = [self.ids[i] for i in group]
                text = self.layout.words.text_of(some)
                segments.append({kind: len(some) if kind == "masked" else text.removeprefix(" ") if opens else text})
                opens = False
        last = self.layout.template.pieces[-1]
        return [*segments, {"given": last}] if last else segments

    def _kind(self, position: int) -> str:
        if self.ids[position] == self.mask_id:
            return "masked"
        return "new" if position in self.new else "written"

    def _gaps(self) -> Iterator[tuple[str, range, bool]]:
        """Yield, for each gap, the text before it, its positions, and whether it takes over a space from that text."""
        for piece, span, opens in zip(
            self.layout.template.pieces, self.layout.spans(self.lengths), self.layout.opens, strict=False
        ):
            yield piece, span[: len(truncate_at_end(self.ids[span.start : span.stop], self.end))], opens


@attrs.define(eq=False, kw_only=True)
class Answer(ABC):
    """Response to a request, with one choice per text, which is built from the events of its job."""

    kind: ClassVar[str]  # the field `object`
    chunk_kind: ClassVar[str | None] = None  # the field `object` in a stream, if different
    model: str
    asked: TextRequest
    plan: Plan
    started: float = attrs.field(factory=time.time)
    texts: dict[int, UnmaskingText] = attrs.field(factory=dict)  # that have been started, by the index of their choice
    choices: dict[int, Table] = attrs.field(factory=dict)  # whose text is final, filled by `read`
    named: set[int] = attrs.field(factory=set)  # choices whose role has been sent
    sent: dict[int, str] = attrs.field(factory=dict)  # beginning of each text that has been sent
    complete: int = 0  # number of completed texts
    written: int = 0  # number of generated tokens
    evaluations: int = 0  # number of network evaluations
    id: str = attrs.field(init=False)
    rewrites: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.id = f"{self.kind}-{uuid.uuid4().hex}"
        self.rewrites = rewrites(self.plan.sampler)

    @abstractmethod
    def shown(self, text: UnmaskingText, final: str, whole: bool) -> tuple[str, str | None]:
        """Return what to send of `final`, the text before its first mask, and the finish reason if it is complete."""

    def extra(self, text: UnmaskingText) -> Table:
        """Return additional fields for a choice whose text is final; by default, an empty dict."""
        return {}

    def counted(self, text: UnmaskingText) -> int:
        """Return the number of generated tokens in a completed text; by default, the number in its gaps."""
        return sum(text.lengths)

    @property
    def finished(self) -> bool:
        """Whether all texts are complete."""
        return self.complete == len(self.plan.layouts) * self.plan.number

    def read(self, event: Drawn | Done) -> Table | None:
        """Apply an event, and return a chunk for the stream, or None if nothing visible has changed."""
        wanted, index = event.text, event.text.index
        text = self.texts.get(index)
        if text is None:
            text = UnmaskingText(layout=wanted.layout, lengths=wanted.lengths, end=self.plan.end)
            self.texts[index] = text
        if isinstance(event, Done):
            text.ids, text.new = event.tokens, frozenset()
            self.complete += 1
            self.evaluations += event.nfe
            self.written += self.counted(text)
        else:
            text.draw(event.positions, event.tokens)
        added: Table = {}
        # Tokens that may be remasked are not final before the end.
        if index not in self.choices and (isinstance(event, Done) or not self.rewrites):
            shown, reason = self.shown(text, *text.final())
            sent = self.sent.get(index, "")
            added = {"text": shown[len(sent) :], "finish_reason": reason} if reason or len(shown) > len(sent) else {}
            self.sent[index] = shown
            if reason:
                added |= self.extra(text)
                self.choices[index] = added | {"text": shown}
        if self.asked.unmasking:
            added["unmasking"] = text.state()
        return self._object([self.choice(index, added, chunk=True)], chunk=True) if added else None

    def body(self) -> Table:
        """Return the whole response as a JSON object; call it once all texts are complete."""
        choices = [self.choice(index, self.choices[index]) for index in sorted(self.choices)]
        return self._object(choices) | {"usage": self.usage(), "evaluations": self.evaluations}

    def last(self) -> Table:
        """Return the last chunk of a stream, which contains the usage."""
        return self._object([], chunk=True) | {"usage": self.usage(), "evaluations": self.evaluations}

    def usage(self) -> Table:
        """Return the numbers of prompt tokens, each prompt counted once, of generated tokens, and of both together."""
        given = self.plan.given
        return {"prompt_tokens": given, "completion_tokens": self.written, "total_tokens": given + self.written}

    def choice(self, index: int, found: Table, *, chunk: bool = False) -> Table:
        """Return a choice in OpenAI's format, whole or as a `chunk` of a stream."""
        return {"index": index, "text": "", "logprobs": None, "finish_reason": None} | found

    def _object(self, choices: list[Table], *, chunk: bool = False) -> Table:
        kind = self.chunk_kind if chunk and self.chunk_kind else self.kind
        head = {"id": self.id, "object": kind, "created": int(self.started), "model": self.model}
        return {**head, "seed": self.plan.seed, "choices": choices}


class CompletionAnswer(Answer):
    """Completion in OpenAI's format: the text between the prompt and the suffix, after the prompt if `echo` is set."""

    kind = "text_completion"
    asked: EndingRequest

    @override
    def shown(self, text: UnmaskingText, final: str, whole: bool) -> tuple[str, str | None]:
        prompt, suffix = text.layout.template.pieces
        said = final[len(prompt) : len(final) - len(suffix)] if whole else final[len(prompt) :]
        stop = self.asked.stop or []
        # The last characters may be the beginning of a stop string.
        sure = len(said) if whole else max(0, len(said) - max(map(len, stop), default=1) + 1)
        cut = min((at for each in stop if (at := said.find(each)) >= 0), default=len(said) + 1)
        before = prompt if getattr(self.asked, "echo", None) else ""
        if cut <= sure:
            return before + said[:cut], "stop"
        return before + said[:sure], ("stop" if text.ended else "length") if whole else None

    @override
    def counted(self, text: UnmaskingText) -> int:
        """Return the number of tokens up to and including EOS or the first stop string."""
        stop, ids = self.asked.stop or [], text.written

        def stopped(number: int) -> bool:
            said = text.layout.words.text_of(ids[:number])
            return any(each in (said.removeprefix(" ") if text.layout.opens[0] else said) for each in stop)

        return min(bisect_left(range(len(ids) + 1), True, key=stopped), len(ids) + text.ended)


class ChatAnswer(CompletionAnswer):
    """Chat completion in OpenAI's format: a message from the assistant."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    @override
    def choice(self, index: int, found: Table, *, chunk: bool = False) -> Table:
        said = {"content": found.get("text", "")}
        if index not in self.named or not chunk:
            said = {"role": ASSISTANT, **said}
        self.named.add(index)
        more = {key: value for key, value in found.items() if key != "text"}
        what = {"delta" if chunk else "message": said, "logprobs": None, "finish_reason": None}
        return {"index": index, **what, **more}


class InfillAnswer(Answer):
    """Response with each infilled text, and the content and length of its gaps."""

    kind = "infill"

    @override
    def shown(self, text: UnmaskingText, final: str, whole: bool) -> tuple[str, str | None]:
        return final, "stop" if whole else None

    @override
    def extra(self, text: UnmaskingText) -> Table:
        fills = text.layout.fills(text.ids, text.lengths)
        return {"fills": fills, "lengths": list(text.lengths)}
