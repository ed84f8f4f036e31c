"""A text while it unmasks: the beginning that is final, and the state of the whole."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs

from atat_zoo.generation.layout import Layout, SpaceAwareTokenizer, before_end

Segment = dict[str, str | int]


@attrs.define(eq=False, kw_only=True)
class UnmaskingText:
    """The tokens of a text that is being written, int64 [L] as a list, with the mask's id where they are masked."""

    layout: Layout
    lengths: tuple[int, ...]
    words: SpaceAwareTokenizer
    end: int | None = None  # the token that ends what is written
    ids: list[int] = attrs.field(init=False)
    new: frozenset[int] = frozenset()  # positions that the last step has filled

    def __attrs_post_init__(self) -> None:
        self.ids = self.layout.row(self.lengths, self.mask_id)

    @property
    def mask_id(self) -> int:
        """The mask."""
        return self.words.tokenizer.vocabulary_size

    @property
    def written(self) -> list[int]:
        """The tokens of all gaps, as far as these go, without the end."""
        return [self.ids[i] for _, span, _ in self._gaps() for i in span]

    @property
    def ended(self) -> bool:
        """Whether what is written ends before its gap does."""
        return len(self.written) < sum(self.lengths)

    def draw(self, positions: Sequence[int], tokens: Sequence[int]) -> None:
        """Take a step."""
        for position, token in zip(positions, tokens, strict=True):
            self.ids[position] = token
        self.new = frozenset(positions)

    def final(self) -> tuple[str, bool]:
        """Return the text up to the first mask, and whether there is none; tokens may begin a character that lacks."""
        said = []
        for piece, span, opens in self._gaps():
            said.append(piece)
            ids = self.ids[span.start : span.stop]
            first = ids.index(self.mask_id) if self.mask_id in ids else len(ids)
            fill = self.words.text_of(ids[:first])
            fill = fill.removeprefix(" ") if opens else fill
            if first < len(ids):
                return "".join([*said, fill.rstrip("\ufffd")]), False
            said.append(fill)
        return "".join([*said, self.layout.template.pieces[-1]]), True

    def state(self) -> list[Segment]:
        """Return the whole text: what is `given`, `written` before the last step, `new` in it, and so many `masked`."""
        segments: list[Segment] = []
        for piece, span, opens in self._gaps():
            segments += [{"given": piece}] if piece else []
            for kind, group in itertools.groupby(span, self._kind):
                some = [self.ids[i] for i in group]
                text = self.words.text_of(some)
                segments.append({kind: len(some) if kind == "masked" else text.removeprefix(" ") if opens else text})
                opens = False
        last = self.layout.template.pieces[-1]
        return [*segments, {"given": last}] if last else segments

    def _kind(self, position: int) -> str:
        if self.ids[position] == self.mask_id:
            return "masked"
        return "new" if position in self.new else "written"

    def _gaps(self) -> Iterator[tuple[str, range, bool]]:
        """Yield each gap: the text before it, its positions, and whether a space of that text belongs to it."""
        for piece, span, opens in zip(
            self.layout.template.pieces, self.layout.spans(self.lengths), self.layout.opens, strict=False
        ):
            yield piece, span[: len(before_end(self.ids[span.start : span.stop], self.end))], opens
