"""Text with gaps: `[MASK]`, `[MASK:n]` and `[MASK:a-b]`. Imports no torch."""

from __future__ import annotations

import re

import attrs

from atat_zoo.errors import UserError

# What begins like a gap is one, or a mistake: `[MASK:3` without its end is not silently text.
_GAP = re.compile(r"\[MASK\]|\[MASK:(?P<lengths>[^\[\]]*)(?P<end>\]?)")
_LENGTHS = re.compile(r"(?P<shortest>[0-9]{1,9})(?:-(?P<longest>[0-9]{1,9}))?", re.ASCII)

FORMS = "[MASK] for a token, [MASK:3] for three, [MASK:2-5] for two to five"


@attrs.frozen
class Gap:
    """Tokens to fill in, from `shortest` to `longest` of them."""

    shortest: int
    longest: int

    @property
    def bounded(self) -> bool:
        """Whether there is a choice of lengths."""
        return self.shortest < self.longest


@attrs.frozen
class Template:
    """A text with gaps: `pieces[0] gaps[0] pieces[1] … gaps[-1] pieces[-1]`; pieces may be empty."""

    pieces: tuple[str, ...]
    gaps: tuple[Gap, ...]


def parse(text: str, where: str = "the text") -> Template:
    """Return a text as pieces and gaps.

    Args:
        text: with at least one of `[MASK]` (one token), `[MASK:n]` (exactly n) and `[MASK:a-b]` (from a to b).
        where: what to call the text in messages.

    Raises:
        UserError: when a gap is malformed, or there is none.
    """
    pieces, gaps, end = [], [], 0
    for match in _GAP.finditer(text):
        pieces.append(text[end : match.start()])
        gaps.append(_gap(match, where))
        end = match.end()
    if not gaps:
        raise UserError(f"{where} has no gap: {_short(text)!r}; write {FORMS}")
    return Template((*pieces, text[end:]), tuple(gaps))


def _gap(match: re.Match[str], where: str) -> Gap:
    if match["lengths"] is None:
        return Gap(1, 1)
    lengths = _LENGTHS.fullmatch(match["lengths"])
    if not match["end"] or lengths is None:
        raise UserError(f"{where}: {_short(match[0])!r} is no gap; write {FORMS}")
    shortest = int(lengths["shortest"])
    longest = int(lengths["longest"] or shortest)
    if shortest < 1:
        raise UserError(f"{where}: {match[0]!r} is a gap without a token; a gap has at least one, as in [MASK:1-3]")
    if longest < shortest:
        raise UserError(
            f"{where}: {match[0]!r} ends before it begins; write the smaller number first, [MASK:{longest}-{shortest}]"
        )
    return Gap(shortest, longest)


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
