"""Texts with gaps, `[MASK]`, `[MASK:n]` and `[MASK:a-b]`, and the positions of their tokens and masks in a row.

The text around a gap is tokenised piece by piece, so the given tokens never change. Byte-pair encodings begin words
with their space: " peace" is one token. A space before a gap therefore belongs to the gap, whose first token must then
begin with a space: the text is the same, byte for byte.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from atat_zoo.data import is_framed
from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.data.tokenizers.dialogues import message_of
from atat_zoo.errors import UserError
from atat_zoo.generation.samplers import Sampler
from atat_zoo.system.machine import require
from atat_zoo.system.parsing import refuse_halves

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.generation.writer import Writer
    from atat_zoo.modeling.diffusion.positions import Where

CHOICES = 256  # maximum of combinations of lengths for one text

# Text that begins like a gap must be one: `[MASK:3` without its end is an error.
_GAP = re.compile(r"\[MASK\]|\[MASK:(?P<lengths>[^\[\]]*)(?P<end>\]?)")
_LENGTHS = re.compile(r"(?P<shortest>[0-9]{1,9})(?:-(?P<longest>[0-9]{1,9}))?", re.ASCII)

FORMS = "[MASK] for a token, [MASK:3] for three, [MASK:2-5] for two to five"


class TooLongError(UserError):
    """A text of more tokens than the model has learned."""


@attrs.frozen
class Gap:
    """A gap of `shortest` to `longest` tokens."""

    shortest: int
    longest: int


@attrs.frozen
class Template:
    """A text with gaps: `pieces[0] gaps[0] pieces[1] … gaps[-1] pieces[-1]`; pieces may be empty."""

    pieces: tuple[str, ...]
    gaps: tuple[Gap, ...]


def parse(text: str, where: str = "the text") -> Template:
    """Return a text as pieces and gaps, or raise `UserError`, in which it is called `where`."""
    refuse_halves(text, where)
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


def ends(tokenizer: TokenizerModel, special: str) -> tuple[list[int], list[int]]:
    """Return the special tokens at the beginning and end of every row, for `special` of `[data]`."""
    if not is_framed(special):
        return [], []
    return [i for i in [tokenizer.bos] if i is not None], [i for i in [tokenizer.eos] if i is not None]


class SpaceAwareTokenizer:
    """A tokenizer that knows which of its tokens begin with a space."""

    def __init__(self, tokenizer: TokenizerModel) -> None:
        self.tokenizer = tokenizer
        ids = range(tokenizer.vocabulary_size)
        # A token that is a word or part of one: some tokenizers drop a space at the beginning of a text.
        self._word = next(([i] for i in ids if tokenizer.decode([i]).isalpha()), [])

    @functools.cached_property
    def openers(self) -> list[int]:
        """The ids whose text begins with a space; none where a space is always a separate token."""
        texts = {i: self.text_of([i]) for i in range(self.tokenizer.vocabulary_size)}
        openers = [i for i, text in texts.items() if text.startswith(" ")]
        return openers if any(texts[i].strip(" ") for i in openers) else []

    def text_of(self, ids: Sequence[int]) -> str:
        """Return the text of ids that follow other text."""
        return self.tokenizer.decode([*self._word, *ids]).removeprefix(self.tokenizer.decode(self._word))

    def before_gap(self, piece: str) -> tuple[list[int], bool]:
        """Return the ids of a piece before a gap, and whether its last space belongs to the gap."""
        if opens := piece.endswith(" ") and bool(self.openers):
            piece = piece[:-1]
        if piece[-1:].isspace():
            # The tokens of white space depend on whether a word follows: two line ends are one token at the end of
            # a text and two before a word.
            with_word = self.tokenizer.encode(piece + self.tokenizer.decode(self._word))
            if self.tokenizer.decode(with_word[:-1]) == piece:
                return with_word[:-1], opens
        return self.tokenizer.encode(piece), opens


def refuse_length(sampler: Sampler, number: int, length: int, seen: int) -> None:
    """Refuse texts that memory does not hold, or of which the denoiser would see more at once than it has `seen`."""
    if length > seen and not sampler.blockwise:
        raise TooLongError(
            f"a length of {length} is more than the {seen} tokens the model has learned; ask for at most {seen}, or "
            'take the sampler "semi_autoregressive", which goes on from block to block'
        )
    require(32 * number * length, f"writing {number} texts of {length} tokens", "those tokens", "ask for less")


def framing(
    tokenizer: TokenizerModel, special: str, length: int, *, seen: int, before: Sequence[int] = ()
) -> tuple[list[int], list[int]]:
    """Return the tokens that begin and end a row: those `before` a prompt, between BOS and EOS if the rows have these.

    A row of more tokens than are `seen` at once has none, and one that begins with BOS by itself gets no second.
    """
    first, last = ends(tokenizer, special) if length <= seen else ([], [])
    return [*(() if list(before[:1]) == first else first), *before], last


def asked(
    tokenizer: TokenizerModel, chat: str | Sequence[Mapping[str, str]], *, trusted: bool = False, where: str = "chat"
) -> list[int]:
    """Return a question, or the messages of a dialogue so far, in tokens, up to where the answer begins.

    Unless all of it is `trusted`, a template is refused by which a message can pass for one of somebody else.
    """
    try:
        every = [{"role": "user", "content": chat}] if isinstance(chat, str) else chat
        messages = [message_of(each, number) for number, each in enumerate(every, 1)]
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    if not trusted:
        tokenizer.check_turns(messages)
    return [i for part in tokenizer.chat(messages, answering=True) for i in part.ids]


def before_end(ids: Sequence[int], end: int | None) -> Sequence[int]:
    """Return the ids before the first `end`, or all ids if no id is `end`."""
    return ids[: ids.index(end)] if end in ids else ids


def answer_in(tokenizer: TokenizerModel, ids: Sequence[int]) -> str:
    """Return the text of an answer: of its tokens up to the first EOS."""
    return tokenizer.decode(before_end(ids, tokenizer.eos))


def prompted(
    words: SpaceAwareTokenizer,
    special: str,
    length: int,
    prompt: str,
    suffix: str,
    *,
    seen: int,
    before: Sequence[int] = (),
) -> tuple[list[int], tuple[int, ...]]:
    """Return a row with a prompt, masks and a suffix, and the positions whose token must begin with a space.

    Tokens `before` the prompt are what is asked, of which the prompt begins the answer.

    A row of more tokens than are `seen` at once, whose positions shift, has no BOS and EOS, and a space at the end of
    its prompt stays there. If prompt and suffix do not fit, it raises `UserError`.
    """
    tokenizer = words.tokenizer
    refuse_halves(prompt, "the prompt")
    refuse_halves(suffix, "the suffix")
    first, last = framing(tokenizer, special, length, seen=seen, before=before)
    ids, opens = words.before_gap(prompt) if length <= seen else (tokenizer.encode(prompt), False)
    before, after = [*first, *ids], [*tokenizer.encode(suffix), *last]
    given = len(before) + len(after) + opens
    if given > length:
        raise UserError(
            f"prompt and suffix are {given} tokens together, special tokens included, and the length is {length}; "
            "shorten them or ask for a greater length"
        )
    row = [*before, *([tokenizer.vocabulary_size] * (length - len(before) - len(after))), *after]
    return row, (len(before),) if opens else ()


@attrs.frozen(kw_only=True)
class Layout:
    """A text with gaps, in tokens."""

    template: Template
    pieces: tuple[tuple[int, ...], ...]  # ids of the given tokens between the gaps, special ones included
    opens: tuple[bool, ...]  # for each gap, whether its first token must begin with the space that belongs to it
    choices: tuple[tuple[int, ...], ...]  # the possible combinations of gap lengths, from the shortest on

    def spans(self, lengths: Sequence[int]) -> list[range]:
        """Return the positions of each gap, given their lengths."""
        spans, at = [], 0
        for piece, length in zip(self.pieces, lengths, strict=False):
            at += len(piece)
            spans.append(range(at, at + length))
            at += length
        return spans

    def row(self, lengths: Sequence[int], mask_id: int) -> list[int]:
        """Return the row, with masks in the gaps."""
        filled = [[*piece, *([mask_id] * length)] for piece, length in zip(self.pieces, lengths, strict=False)]
        return [*itertools.chain.from_iterable(filled), *self.pieces[-1]]

    def opening(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """Return the positions whose token must begin with a space."""
        return tuple(span[0] for span, opens in zip(self.spans(lengths), self.opens, strict=True) if opens)

    def fills(self, ids: Sequence[int], lengths: Sequence[int], words: SpaceAwareTokenizer) -> list[str]:
        """Return the text of each gap of a filled row, without the space that belongs to it."""
        texts = [words.text_of([ids[i] for i in span]) for span in self.spans(lengths)]
        return [text.removeprefix(" ") if opens else text for text, opens in zip(texts, self.opens, strict=True)]

    def text(self, fills: Sequence[str]) -> str:
        """Return the given text with the gaps filled, unchanged outside them."""
        pieces = self.template.pieces
        return "".join(piece + fill for piece, fill in zip(pieces, fills, strict=False)) + pieces[-1]


def lay_out(
    template: Template,
    words: SpaceAwareTokenizer,
    special: str,
    length: int,
    where: str = "the text",
    before: Sequence[int] = (),
) -> Layout:
    """Tokenise a text with gaps, called `where`, between `special` tokens, and behind those `before` it.

    If it does not fit the `length` in tokens, or its gaps leave too many lengths to choose from, it raises `UserError`.
    """
    tokenizer = words.tokenizer
    first, last = framing(tokenizer, special, length, seen=length, before=before)
    begun = [words.before_gap(piece) for piece in template.pieces[:-1]]
    pieces = [ids for ids, _ in begun] + [tokenizer.encode(template.pieces[-1])]
    pieces[0], pieces[-1] = [*first, *pieces[0]], [*pieces[-1], *last]
    given, least = sum(map(len, pieces)), sum(gap.shortest for gap in template.gaps)
    if given + least > length:
        raise TooLongError(
            f"{where} is {given} tokens and its gaps at least {least}, {given + least} together, and the model has "
            f"learned {length}; shorten the text or its gaps"
        )
    room = length - given - least
    lengths = [range(gap.shortest, min(gap.longest, gap.shortest + room) + 1) for gap in template.gaps]
    if (number := math.prod(map(len, lengths))) > CHOICES:
        raise UserError(
            f"{where}: its gaps can have {number:,} combinations of lengths, and at most {CHOICES} are weighed; "
            "narrow them, as in [MASK:2-5]"
        )
    choices = tuple(choice for choice in itertools.product(*lengths) if sum(choice) <= least + room)
    opens = tuple(opens for _, opens in begun)
    return Layout(template=template, pieces=tuple(map(tuple, pieces)), opens=opens, choices=choices)


def require_leading_space(writer: Writer, positions: Sequence[int], words: SpaceAwareTokenizer) -> Writer:
    """Return a writer whose tokens at some positions begin with a space, except where none of these is possible."""
    if not positions:
        return writer
    import torch

    from atat_zoo.generation.guided import Guided, normalised
    from atat_zoo.modeling.diffusion.positions import pairs

    allowed = torch.zeros(writer.tokenizer.vocabulary_size, dtype=torch.bool, device=writer.device)
    allowed[words.openers] = True
    openings = torch.tensor(positions, device=writer.device)

    def change(log_probs: Tensor, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        here = torch.isin(pairs(where)[1], openings)[:, None]
        given = normalised(log_probs.masked_fill(~allowed, -torch.inf), log_probs)
        return torch.where(here, given, log_probs)

    return attrs.evolve(writer, denoiser=Guided(writer.denoiser, change))
