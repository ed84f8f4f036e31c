"""Texts with gaps, `[MASK]`, `[MASK:n]` and `[MASK:a-b]`, and their layout as sequences of tokens and masks.

The text around a gap is tokenised piece by piece, so the given tokens never change. In a byte-pair encoding, a token
includes the space before a word: " peace" is one token. A space before a gap therefore belongs to the gap, and the
gap's first token must begin with a space, which keeps the given text unchanged.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import attrs

from atat_zoo.data import has_eos, is_framed
from atat_zoo.data.dialogues import message_of
from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.generation.samplers import Sampler
from atat_zoo.system.errors import UserError
from atat_zoo.system.machine import require
from atat_zoo.system.parsing import refuse_halves

if TYPE_CHECKING:
    from atat_zoo.experiment import Experiment

CHOICES = 256  # maximum number of combinations of lengths for one text

# Text that begins like a gap must be one: `[MASK:3` without its end is an error.
_GAP = re.compile(r"\[MASK\]|\[MASK:(?P<lengths>[^\[\]]*)(?P<end>\]?)")
_LENGTHS = re.compile(r"(?P<shortest>[0-9]{1,9})(?:-(?P<longest>[0-9]{1,9}))?", re.ASCII)

FORMS = "[MASK] for one token, [MASK:3] for three, [MASK:2-5] for two to five"


class TooLongError(UserError):
    """The error for a text that exceeds the model's maximum length."""


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
    """Return the pieces and gaps of a text; raise a `UserError`, with `where`, if it has no gap or a malformed one."""
    refuse_halves(text, where)
    pieces, gaps, end = [], [], 0
    for match in _GAP.finditer(text):
        pieces.append(text[end : match.start()])
        gaps.append(_gap(match, where))
        end = match.end()
    if not gaps:
        raise UserError(f"{where} has no gap: {_short(text)!r}; write {FORMS}")
    return Template((*pieces, text[end:]), tuple(gaps))


def refuse_gaps(text: str, where: str, remedy: str) -> None:
    """Raise a `UserError` with a remedy if a text that cannot have gaps, such as a prompt, has one."""
    if gap := _GAP.search(text):
        raise UserError(f"{where}: {_short(gap[0])!r} would be read as plain text, not as a gap; {remedy}")


def _gap(match: re.Match[str], where: str) -> Gap:
    if match["lengths"] is None:
        return Gap(1, 1)
    lengths = _LENGTHS.fullmatch(match["lengths"])
    if not match["end"] or lengths is None:
        raise UserError(f"{where}: {_short(match[0])!r} is not a gap; write {FORMS}")
    shortest = int(lengths["shortest"])
    longest = int(lengths["longest"] or shortest)
    if shortest < 1:
        raise UserError(f"{where}: {match[0]!r} is an empty gap; give it at least one token, as in [MASK:1-3]")
    if longest < shortest:
        raise UserError(
            f"{where}: {match[0]!r} ends before it begins; write the smaller number first, [MASK:{longest}-{shortest}]"
        )
    return Gap(shortest, longest)


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def frame_tokens(tokenizer: TokenizerModel, special: str) -> tuple[list[int], list[int]]:
    """Return the token ids that `data.special_tokens` puts at the beginning and at the end of every sequence."""
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
        """The ids whose text begins with a space; empty if a space is always a separate token."""
        texts = {i: self.text_of([i]) for i in range(self.tokenizer.vocabulary_size)}
        openers = [i for i, text in texts.items() if text.startswith(" ")]
        return openers if any(texts[i].strip(" ") for i in openers) else []

    def text_of(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` as it reads in the middle of a longer text."""
        return self.tokenizer.decode([*self._word, *ids]).removeprefix(self.tokenizer.decode(self._word))

    def before_gap(self, piece: str) -> tuple[list[int], bool]:
        """Return the ids of the piece before a gap, and whether the piece's last space belongs to the gap."""
        if opens := piece.endswith(" ") and bool(self.openers):
            piece = piece[:-1]
        if piece[-1:].isspace():
            # The tokens of white space depend on whether a word follows: two line ends are one token at the end of
            # a text and two before a word.
            with_word = self.tokenizer.encode(piece + self.tokenizer.decode(self._word))
            if self.tokenizer.decode(with_word[:-1]) == piece:
                return with_word[:-1], opens
        return self.tokenizer.encode(piece), opens


def prompt_ids(
    tokenizer: TokenizerModel, chat: str | Sequence[Mapping[str, str]], *, trusted: bool = False, where: str = "chat"
) -> list[int]:
    """Return the token ids of a question or a list of messages as a chat prompt, up to where the answer begins.

    Raises a `UserError` for invalid messages and, unless they are `trusted`, if one could imitate another role.
    """
    try:
        every = [{"role": "user", "content": chat}] if isinstance(chat, str) else chat
        messages = [message_of(each, number) for number, each in enumerate(every, 1)]
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    if not trusted:
        tokenizer.check_turns(messages)
    return [i for part in tokenizer.chat(messages, answering=True) for i in part.ids]


def truncate_at_end(ids: Sequence[int], end: int | None) -> Sequence[int]:
    """Return the ids before the first `end`, or all ids if no id is `end`."""
    return ids[: ids.index(end)] if end in ids else ids


def answer_text(tokenizer: TokenizerModel, ids: Sequence[int]) -> str:
    """Return the text of an answer up to the first EOS."""
    return tokenizer.decode(truncate_at_end(ids, tokenizer.eos))


def refuse_length(sampler: Sampler, number: int, length: int, seen: int) -> None:
    """Raise a `UserError` if sequences do not fit in memory, or exceed `seen` tokens for a sampler without blocks."""
    if length > seen and not sampler.blockwise:
        raise TooLongError(
            f"length {length} exceeds the model's maximum length, {seen}; pass at most {seen}, or "
            'use the sampler "semi_autoregressive", which generates block by block'
        )
    require(
        32 * number * length,
        f"generating {number} sequence{'s' * (number != 1)} of {length} tokens",
        "those tokens",
        "generate fewer or shorter sequences",
    )


@attrs.frozen(kw_only=True)
class Layout:
    """A text with gaps, encoded as tokens."""

    template: Template
    words: SpaceAwareTokenizer
    pieces: tuple[tuple[int, ...], ...]  # ids of the given tokens between the gaps, special ones included
    opens: tuple[bool, ...]  # for each gap, whether its first token must begin with the space that belongs to it
    choices: tuple[tuple[int, ...], ...]  # the possible combinations of gap lengths, shortest first

    def spans(self, lengths: Sequence[int]) -> list[range]:
        """Return the positions of each gap for the given gap lengths."""
        spans, at = [], 0
        for piece, length in zip(self.pieces, lengths, strict=False):
            at += len(piece)
            spans.append(range(at, at + length))
            at += length
        return spans

    def row(self, lengths: Sequence[int]) -> list[int]:
        """Return the token ids of the sequence, with masks in the gaps."""
        mask_id = self.words.tokenizer.vocabulary_size
        filled = [[*piece, *([mask_id] * length)] for piece, length in zip(self.pieces, lengths, strict=False)]
        return [*itertools.chain.from_iterable(filled), *self.pieces[-1]]

    def opening(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """Return the positions of tokens that must begin with a space."""
        return tuple(span[0] for span, opens in zip(self.spans(lengths), self.opens, strict=True) if opens)

    def fills(self, ids: Sequence[int], lengths: Sequence[int]) -> list[str]:
        """Return the text that fills each gap of a sequence, without the leading space if the gap owns that space."""
        texts = [self.words.text_of([ids[i] for i in span]) for span in self.spans(lengths)]
        return [text.removeprefix(" ") if opens else text for text, opens in zip(texts, self.opens, strict=True)]

    def text(self, fills: Sequence[str]) -> str:
        """Return the given text with its gaps filled and everything else unchanged."""
        pieces = self.template.pieces
        return "".join(piece + fill for piece, fill in zip(pieces, fills, strict=False)) + pieces[-1]


@attrs.frozen(kw_only=True, eq=False)
class Request:
    """A validated request for texts, built without torch; `TextGenerator.generate` samples them."""

    sampler: Sampler
    number: int
    seed: int
    batch_size: int
    words: SpaceAwareTokenizer
    row: list[int]  # the tokens of a text, with a mask for each token to generate
    gap: slice  # the masks
    begins: int  # where the text begins: after the question that it answers
    opening: tuple[int, ...]  # positions whose token must begin with a space
    end: int | None  # the token that ends the generated text

    def text(self, ids: Sequence[int]) -> str:
        """Return prompt, generated text up to its `end` and suffix as one text, from the token ids of a sequence."""
        written = truncate_at_end(ids[self.gap], self.end)
        return self.words.tokenizer.decode([*ids[self.begins : self.gap.start], *written, *ids[self.gap.stop :]])


@attrs.frozen(kw_only=True, eq=False)
class TextForm:
    """The text format of a model, which encodes prompts and texts with gaps."""

    tokenizer: TokenizerModel  # whose `vocabulary_size` is the mask id
    length: int  # tokens in a training sequence, which the denoiser sees at once
    special: Literal["none", "document", "sequence", "both"] = "none"
    form: Literal["text", "chat"] = "text"  # a chat template adds EOS to dialogues

    @classmethod
    def from_experiment(cls, experiment: Experiment, tokenizer: TokenizerModel) -> TextForm:
        """Return the text format of an experiment."""
        data = experiment.data
        return cls(tokenizer=tokenizer, length=data.length, special=data.special_tokens, form=data.format)

    @functools.cached_property
    def words(self) -> SpaceAwareTokenizer:
        """The tokenizer, extended to know which tokens begin with a space."""
        return SpaceAwareTokenizer(self.tokenizer)

    def framing(self, length: int, before: Sequence[int] = ()) -> tuple[list[int], list[int]]:
        """Return the ids that begin a sequence, BOS (if used) and those `before` the prompt, and the ids that end it.

        A sequence longer than the training length has neither BOS nor EOS. A sequence that begins with BOS gets no
        second BOS.
        """
        first, last = frame_tokens(self.tokenizer, self.special) if length <= self.length else ([], [])
        return [*(() if list(before[:1]) == first else first), *before], last

    def end(self, *, chat: bool = False, windows: bool = False) -> int | None:
        """Return the token that ends a generated text: EOS, or None for `windows` and for a model without EOS."""
        return self.tokenizer.eos if not windows and (chat or has_eos(self.special, self.form)) else None

    def request(
        self,
        sampler: Sampler,
        *,
        number: int = 1,
        length: int | None = None,
        seed: int = 0,
        prompt: str = "",
        suffix: str = "",
        chat: str | Sequence[Mapping[str, str]] = (),
        trusted: bool = False,
        windows: bool = False,
        batch_size: int = 64,
    ) -> Request:
        """Return a request for `number` texts that begin with the prompt and end with the suffix.

        If the training data has EOS, the generated text ends before its first EOS, and the suffix follows. With
        `windows`, the texts are windows of running text: they contain all tokens except BOS and EOS, possibly from
        several documents.

        With `chat`, a question or a list of messages, the texts are answers, which begin with the prompt. Unless the
        messages are `trusted`, a chat template is refused if it lets a message imitate another role.

        A sequence has `length` tokens, including prompt, BOS and EOS; the default is the training length. A longer
        sequence, which the model reads in windows, has no BOS or EOS, and its first token need not begin with the space
        that ends the prompt. The same seed gives the same texts. `batch_size` sequences are generated at a time.

        Raises:
            UserError: if a number is too small, the length exceeds the training length and the sampler does not
                generate block by block, a message is invalid, or prompt and suffix do not fit or have gaps.
        """
        for name, value, least in (("number", number, 0), ("length", length, 1), ("batch_size", batch_size, 1)):
            if value is not None and value < least:
                raise UserError(f"{name} = {value} is too small; pass at least {least}")
        length = self.length if length is None else length
        refuse_length(sampler, number, length, self.length)
        before = prompt_ids(self.tokenizer, chat, trusted=trusted) if chat else []
        for where, text in (("the prompt", prompt), ("the suffix", suffix)):
            refuse_halves(text, where)
            refuse_gaps(text, where, "fill gaps with `atat infill`, or with `Model.infill` in Python")
        first, last = self.framing(length, before)
        encode = self.tokenizer.encode
        ids, opens = self.words.before_gap(prompt) if length <= self.length else (encode(prompt), False)
        left, right = [*first, *ids], [*encode(suffix), *last]
        masks = length - len(left) - len(right)
        if masks < opens:
            raise UserError(
                f"prompt and suffix take {length - masks + opens} tokens, including special tokens, but the length is "
                f"{length}; shorten them, or pass a larger length"
            )
        return Request(
            sampler=sampler,
            number=number,
            seed=seed,
            batch_size=batch_size,
            words=self.words,
            row=[*left, *[self.tokenizer.vocabulary_size] * masks, *right],
            gap=slice(len(left), len(left) + masks),
            begins=len(first) if chat else 0,
            opening=(len(left),) if opens else (),
            end=self.end(chat=bool(chat), windows=windows),
        )

    def layouts(self, texts: Sequence[str]) -> list[Layout]:
        """Return the layouts of texts with gaps, or raise a `UserError` with one line for each invalid text."""
        layouts, problems = [], []
        for number, text in enumerate(texts):
            where = "the text" if len(texts) == 1 else f"text {number + 1}"
            try:
                layouts.append(self.lay_out(parse(text, where), where))
            except UserError as error:
                problems.append(str(error))
        if problems:
            raise UserError("\n".join(problems))
        return layouts

    def lay_out(
        self,
        template: Template,
        where: str = "the text",
        before: Sequence[int] = (),
        remedy: str = "shorten the text or its gaps",
    ) -> Layout:
        """Return the layout of a text with gaps, with its special tokens and the tokens `before` it.

        Raises a `UserError` that refers to the text as `where` if it is too long, with a `remedy`, or if its gaps allow
        too many combinations of lengths.
        """
        first, last = self.framing(self.length, before)
        begun = [self.words.before_gap(piece) for piece in template.pieces[:-1]]
        pieces = [ids for ids, _ in begun] + [self.tokenizer.encode(template.pieces[-1])]
        pieces[0], pieces[-1] = [*first, *pieces[0]], [*pieces[-1], *last]
        given, least = sum(map(len, pieces)), sum(gap.shortest for gap in template.gaps)
        if given + least > self.length:
            raise TooLongError(
                f"{where} takes {given} tokens and its gaps at least {least}, {given + least} in total, but the "
                f"model's maximum length is {self.length}; {remedy}"
            )
        room = self.length - given - least
        lengths = [range(gap.shortest, min(gap.longest, gap.shortest + room) + 1) for gap in template.gaps]
        if (number := math.prod(map(len, lengths))) > CHOICES:
            raise UserError(
                f"{where}: its gaps allow {number:,} combinations of lengths, more than {CHOICES}; "
                "narrow them, as in [MASK:2-5]"
            )
        return Layout(
            template=template,
            words=self.words,
            pieces=tuple(map(tuple, pieces)),
            opens=tuple(opens for _, opens in begun),
            choices=tuple(choice for choice in itertools.product(*lengths) if sum(choice) <= least + room),
        )
