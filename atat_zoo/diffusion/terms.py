"""Words as tokens: their encodings, and their occurrences in sequences. A form is one encoding of a word, in pieces.

Shapes: B rows, L positions, V tokens, W windows in a row, F forms of n pieces, U distinct pieces of all forms.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.system.errors import UserError

# Maximum number of comparisons in memory at once.
_AT_ONCE = 1 << 23

Form = tuple[int, ...]  # the tokens of one encoding of a word


def forms_of(tokenizer: TokenizerModel, word: str) -> list[Form]:
    """Return a tokenizer's encodings of a word or phrase: with and without a leading space, unchanged and capitalised.

    Raises a `UserError` for a word that is empty, that the tokenizer cannot encode, or, for a word of three or more
    letters, that it spells letter by letter although it has longer tokens.
    """
    bare = word.strip()
    if not bare:
        raise UserError(f"{word!r} is not a word; pass a word, or leave it out")
    texts = [before + text for text in (bare, bare[0].upper() + bare[1:]) for before in (" ", "")]
    forms = list(dict.fromkeys(form for text in texts if (form := _written(tokenizer, text))))
    if not forms:
        raise UserError(f"{word!r} is unknown to the tokenizer, which cannot encode it; correct it, or leave it out")
    # Byte and character tokenizers spell every word; a tokenizer with longer pieces spells only unknown words.
    letters = all(len(tokenizer.decode([piece]).strip()) <= 1 for form in forms for piece in form)
    if len(bare) >= 3 and letters and int(tokenizer.byte_counts().max()) > 4:
        raise UserError(
            f"{word!r} is unknown to the tokenizer, which spells it letter by letter; correct it, or leave it out"
        )
    return forms


def _written(tokenizer: TokenizerModel, text: str) -> Form | None:
    """Return the token ids of a text, or None if they do not decode to the same text."""
    try:
        ids = tokenizer.encode(text)
    except UserError:
        return None
    same = tokenizer.decode(ids).strip().casefold() == text.strip().casefold()
    return tuple(ids) if ids and same else None


class Terms:
    """A matcher that finds words, in the forms of `forms_of`, and token ids in sequences of tokens.

    A word begins where the previous token does not end in a letter, or where the word's own first token begins a word,
    like " war". It ends where the next token does not continue it: "war" matches neither "forward" nor "wars".

    Args:
        tokenizer: maps text to ids; the mask id is its `vocabulary_size`.
        words: words to find; a `UserError` is raised if one cannot be encoded.
        tokens: ids that match at any position; a `UserError` is raised if one is not in the vocabulary.
        longest: the length of a sequence; a `UserError` is raised for a longer word.
        key: the experiment's key for the words, used in messages; the key for the ids ends in `tokens` instead.
    """

    def __init__(
        self,
        tokenizer: TokenizerModel,
        words: Iterable[str],
        *,
        tokens: Iterable[int] = (),
        longest: int | None = None,
        key: str = "words",
    ) -> None:
        self.mask_id = tokenizer.vocabulary_size
        self.forms: dict[Form, bool] = {}  # form → whether it also matches inside other words, as an id does
        for word in words:
            try:
                possible = forms_of(tokenizer, word)
            except UserError as error:
                raise UserError(f"{key}: {error}") from None
            least = min(map(len, possible))
            if longest is not None and least > longest:
                raise UserError(f"{key}: {word!r} takes {least} tokens, but a sequence has {longest}; leave it out")
            self.forms |= {form: False for form in possible if longest is None or len(form) <= longest}
        for token in tokens:
            if not 0 <= token < self.mask_id:
                called = key.removesuffix("words") + "tokens"
                raise UserError(f"{called}: the vocabulary has no token {token}; ids go from 0 to {self.mask_id - 1}")
            self.forms[token,] = True
        self.pieces = torch.tensor(sorted({piece for form in self.forms for piece in form}), dtype=torch.int64)
        self._goes_on, self._open_end = _joints(tokenizer)
        self._groups: list[_Group] = []
        for n in sorted({len(form) for form in self.forms}):
            forms = [form for form in self.forms if len(form) == n]
            pattern = torch.tensor(forms)
            anywhere = torch.tensor([self.forms[form] for form in forms])
            inside = ~anywhere & self._goes_on[pattern[:, 0]]
            self._groups.append(_Group(pattern, torch.searchsorted(self.pieces, pattern), anywhere, inside))

    def gains(self, tokens: Tensor) -> Tensor:
        """Return the gain of each piece at each position, float32 [B, L, U] in [0, 1], for z, int64 [B, L].

        In a window where all m visible tokens match a form of n pieces, the form's piece at each masked position gains
        (m + 1)/n; the largest gain over all forms is used. This is the potential of the window once the piece is
        visible, relative to a token that does not match: the potential is (visible pieces)/n, and 0 once a token does
        not match. The potential of a complete word is 1, whatever the order in which its pieces are sampled.
        """
        return self._over_rows(tokens, self._gains_of)

    def forbidden(self, tokens: Tensor) -> Tensor:
        """Return the pieces that must not be sampled, so that no word is completed, bool [B, L, U].

        For each window that has matched a form so far, this is the piece at its last masked position: without this
        piece, the word cannot be completed, however many positions are sampled at once.
        """
        return self._over_rows(tokens, self._forbidden_of) > 0

    def occurrences(self, tokens: Tensor) -> Tensor:
        """Return which tokens belong to one of the words, bool [B, L]; false for masked tokens."""
        self._move(tokens.device)
        there = torch.zeros_like(tokens, dtype=torch.bool)
        for group in self._groups:
            windows = tokens.shape[1] - group.n + 1
            if windows < 1:
                continue
            present, hidden, _, before = self._fits(tokens, group)
            present &= ~hidden.any(-1, keepdim=True) & ~(group.inside & self._open_end[before])
            for k in range(group.n):
                there[:, k : k + windows] |= present.any(-1)
        return there

    def _over_rows(self, tokens: Tensor, of: Callable[[Tensor, _Group], Iterator[tuple[int, Tensor]]]) -> Tensor:
        """Return the largest value over all forms for each piece at each position, float32 [B, L, U].

        `of` yields, for each position k in a form, the values of the piece there, [B, W, F].
        """
        self._move(tokens.device)
        # The rows may be windows of a longer text, so the text may continue after their end.
        length, longest = tokens.shape[1], max((group.n for group in self._groups), default=1)
        tokens = torch.nn.functional.pad(tokens, (0, longest - 1), value=self.mask_id)
        largest = torch.zeros(*tokens.shape, len(self.pieces), device=tokens.device)
        comparisons = max(1, tokens.shape[1] * max((group.pattern.numel() for group in self._groups), default=1))
        step = max(1, _AT_ONCE // comparisons)
        for start in range(0, len(tokens), step):
            rows, out = tokens[start : start + step], largest[start : start + step]
            for group in self._groups:
                windows = tokens.shape[1] - group.n + 1
                for k, values in of(rows, group):
                    column = group.column[:, k].expand_as(values)
                    out[:, k : k + windows].scatter_reduce_(2, column, values, "amax")
        return largest[:, :length]

    def _move(self, device: torch.device) -> None:
        if self.pieces.device != device:
            self.pieces, self._goes_on = self.pieces.to(device), self._goes_on.to(device)
            self._open_end = self._open_end.to(device)
            self._groups = [_Group(*(tensor.to(device) for tensor in group)) for group in self._groups]

    def _gains_of(self, tokens: Tensor, group: _Group) -> Iterator[tuple[int, Tensor]]:
        fits, hidden, visible, before = self._fits(tokens, group)
        # A form without a leading space waits until it is known that no word precedes it.
        fits &= ~(group.inside & ((before == self.mask_id) | self._open_end[before]))
        for k in range(group.n):
            yield k, (visible + 1) / group.n * (fits & hidden[:, :, k : k + 1])

    def _forbidden_of(self, tokens: Tensor, group: _Group) -> Iterator[tuple[int, Tensor]]:
        fits, hidden, _, before = self._fits(tokens, group)
        fits &= ~(group.inside & self._open_end[before])
        behind = torch.zeros_like(hidden[:, :, :1])
        for k in reversed(range(group.n)):
            here = hidden[:, :, k : k + 1]
            yield k, (fits & here & ~behind).float()
            behind = behind | here

    def _fits(self, tokens: Tensor, group: _Group) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return four tensors that compare the windows with the forms of a group.

        They are whether a form matches all visible tokens, bool [B, W, F]; which tokens are masked, bool [B, W, n]; the
        number of visible tokens that match, float32 [B, W, F]; and the token before each window, int64 [B, W, 1], which
        is V + 1 beyond the ends.
        """
        windows = tokens.unfold(1, group.n, 1)
        hidden = windows == self.mask_id
        visible = torch.zeros(*windows.shape[:2], len(group.pattern), device=tokens.device)
        fits = torch.ones_like(visible, dtype=torch.bool)
        for k in range(group.n):
            equal = windows[:, :, k : k + 1] == group.pattern[:, k]
            visible += equal
            fits &= equal | hidden[:, :, k : k + 1]
        beyond = torch.full_like(tokens[:, :1], self.mask_id + 1)
        padded = torch.cat([beyond, tokens, beyond], dim=1)
        fits &= group.anywhere | ~self._goes_on[padded[:, group.n + 1 :, None]]
        return fits, hidden, visible, padded[:, : windows.shape[1], None]


class _Group(NamedTuple):
    """The forms of n pieces."""

    pattern: Tensor  # the pieces, int64 [F, n]
    column: Tensor  # index of each piece among the U distinct pieces, int64 [F, n]
    anywhere: Tensor  # whether the form also matches inside other words, bool [F]
    inside: Tensor  # whether the form could also continue a preceding word, bool [F]

    @property
    def n(self) -> int:
        return self.pattern.shape[1]


def _joints(tokenizer: TokenizerModel) -> tuple[Tensor, Tensor]:
    """Return whether each token continues the preceding word, and whether it may end inside a word, bool [V + 2]."""
    goes_on = torch.zeros(tokenizer.vocabulary_size + 2, dtype=torch.bool)  # false for the mask and beyond the ends
    open_end = goes_on.clone()
    letter: list[int] = []
    with contextlib.suppress(UserError):  # the tokenizer has no such letter
        letter = tokenizer.encode("a")
    alone = tokenizer.decode(letter)
    for token in range(tokenizer.vocabulary_size):
        # After a letter, because some tokenizers show only there whether a token continues a word.
        goes_on[token] = tokenizer.decode([*letter, token]).removeprefix(alone)[:1].isalnum()
        open_end[token] = tokenizer.decode([token])[-1:].isalnum()
    return goes_on, open_end


def biased(importance: Tensor, there: Tensor, strength: float) -> Tensor:
    """Return importance moved by the fraction |strength| towards 1 (towards 0 if negative) where `there` is true."""
    moved = importance.lerp(torch.full_like(importance, strength > 0), abs(strength))
    return torch.where(there, moved, importance)
