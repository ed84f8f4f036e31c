"""Words as tokens: how a tokenizer writes them, and where they are in a text.

Legend: B rows, L positions, V tokens, W windows of a row, F forms of n pieces, U distinct pieces of all forms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch

from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor

    from atat_zoo.tokenizers import TokenizerModel

# Comparisons of one block of rows: what is in memory at once.
_AT_ONCE = 1 << 23


@attrs.frozen(kw_only=True)
class Form:
    """One way to write a word.

    Attributes:
        pieces: its tokens.
        anywhere: whether it counts inside other words as well, as a bare token does.
    """

    pieces: tuple[int, ...]
    anywhere: bool = False


def forms_of(tokenizer: TokenizerModel, word: str) -> list[Form]:
    """Return how a tokenizer writes a word: with and without a space before it, as it is and capitalised.

    Args:
        tokenizer: text to ids.
        word: a word or several; only one in lower case is capitalised too.

    Raises:
        UserError: when it has no letters, the tokenizer cannot write it, or knows nothing of it but its letters.
    """
    bare = word.strip()
    if not bare:
        raise UserError(f"{word!r} is no word; name one with letters, or leave it out")
    forms: list[Form] = []
    for text in dict.fromkeys((bare, bare[0].upper() + bare[1:])):
        for before in (" ", ""):
            pieces = _written(tokenizer, before + text)
            if pieces is not None and Form(pieces=pieces) not in forms:
                forms.append(Form(pieces=pieces))
    if not forms:
        raise UserError(f"{word!r} is unknown: the tokenizer cannot write it; correct it, or leave it out")
    if _spelt(tokenizer, bare, forms):
        raise UserError(
            f"{word!r} is unknown: the tokenizer has no piece of it longer than a letter; correct it, or leave it out"
        )
    return forms


def _written(tokenizer: TokenizerModel, text: str) -> tuple[int, ...] | None:
    """Return the ids of a text, or None if they do not give it back."""
    try:
        ids = tokenizer.encode(text)
    except UserError:
        return None
    same = tokenizer.decode(ids).strip().casefold() == text.strip().casefold()
    return tuple(ids) if ids and same else None


def _spelt(tokenizer: TokenizerModel, word: str, forms: Sequence[Form]) -> bool:
    """Return whether a tokenizer with pieces longer than a letter spells a word of three or more letter by letter."""
    if len(word) < 3 or int(tokenizer.byte_counts().max()) <= 4:
        return False
    return all(len(tokenizer.decode([i]).strip()) <= 1 for form in forms for i in form.pieces)


class Terms:
    """Words and tokens, ready to be looked for in rows of tokens.

    A word begins where the token before it does not end in a letter or begins one itself, as " war" does, and it
    ends where the token behind does not continue it: "war" is not in "forward" nor in "wars".
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
        """Look the words up.

        Args:
            tokenizer: text to ids; the mask is its `vocabulary_size`.
            words: in the forms of `forms_of`.
            tokens: ids that count anywhere.
            longest: tokens in a text: a word of more is refused.
            key: what the words are called in an experiment, for the messages; the ids are its `tokens`.

        Raises:
            UserError: naming the word that cannot be looked for, or the id that is no token's.
        """
        self.mask_id = tokenizer.vocabulary_size
        forms: dict[Form, None] = {}
        for word in words:
            try:
                possible = forms_of(tokenizer, word)
            except UserError as error:
                raise UserError(f"{key}: {error}") from None
            fitting = [form for form in possible if longest is None or len(form.pieces) <= longest]
            if not fitting:
                least = min(len(form.pieces) for form in possible)
                raise UserError(f"{key}: {word!r} takes {least} tokens and a text has {longest}; leave it out")
            forms.update(dict.fromkeys(fitting))
        for token in tokens:
            if not 0 <= token < self.mask_id:
                called = key.removesuffix("words") + "tokens"
                raise UserError(f"{called}: there is no token {token}; ids go from 0 to {self.mask_id - 1}")
            forms[Form(pieces=(token,), anywhere=True)] = None
        self.forms = list(forms)
        distinct = sorted({piece for form in self.forms for piece in form.pieces})
        self.pieces = torch.tensor(distinct, dtype=torch.int64)
        index = {piece: i for i, piece in enumerate(distinct)}
        self._goes_on, self._open_end = _joints(tokenizer)
        self._groups: list[_Group] = []
        for n in sorted({len(form.pieces) for form in self.forms}):
            group = [form for form in self.forms if len(form.pieces) == n]
            pattern = torch.tensor([form.pieces for form in group])
            anywhere = torch.tensor([form.anywhere for form in group])
            self._groups.append(
                _Group(
                    n=n,
                    pattern=pattern,
                    index=torch.tensor([[index[piece] for piece in form.pieces] for form in group]),
                    anywhere=anywhere,
                    inside=~anywhere & self._goes_on[pattern[:, 0]],
                )
            )

    def gains(self, tokens: Tensor) -> Tensor:
        """Return how much of a word each piece would add, float32 [B, L, U] in [0, 1], for z int64 [B, L].

        A window in which everything visible fits a form of n pieces, m of them, gives (m + 1)/n to each piece at its
        masked position; the largest of all forms counts. The potential of a window is (visible pieces)/n, and 0 once
        one does not fit; the gain is its rise against a token that does not fit: 1/n for the piece, and m/n that
        would be lost. Until a word is complete the potential rises by 1 in all, in any order; broken off, by 0.
        """
        return self._over_rows(tokens, self._gains_of)

    def forbidden(self, tokens: Tensor) -> Tensor:
        """Return which pieces must not be drawn if no word is to be there afterwards, bool [B, L, U].

        Of each window that a form fits so far, the piece at its last masked position: without it the word cannot
        be completed, however many positions are drawn at once.
        """
        return self._over_rows(tokens, self._forbidden_of) > 0

    def occurrences(self, tokens: Tensor) -> Tensor:
        """Return which tokens belong to one of the words, bool [B, L]; a masked token belongs to none."""
        self._move(tokens.device)
        there = torch.zeros_like(tokens, dtype=torch.bool)
        for group in self._groups:
            windows = tokens.shape[1] - group.n + 1
            if windows < 1:
                continue
            present, hidden, _ = self._fits(tokens, group)
            before, _ = self._neighbours(tokens, group.n)
            present &= ~hidden.any(-1, keepdim=True) & ~(group.inside & self._open_end[before])
            for k in range(group.n):
                there[:, k : k + windows] |= present.any(-1)
        return there

    def _over_rows(self, tokens: Tensor, of: Callable[[Tensor, _Group], Iterator[tuple[int, Tensor]]]) -> Tensor:
        """Return the largest value of all forms for each piece at each position, float32 [B, L, U].

        `of` yields, for each position k in a form, the values of the piece there, [B, W, F].
        """
        self._move(tokens.device)
        # Only a window of a longer text may be seen, so behind its end it may go on.
        length, longest = tokens.shape[1], max((group.n for group in self._groups), default=1)
        tokens = torch.nn.functional.pad(tokens, (0, longest - 1), value=self.mask_id)
        largest = torch.zeros(*tokens.shape, len(self.pieces), device=tokens.device)
        each = max(1, tokens.shape[1] * max((group.pattern.numel() for group in self._groups), default=1))
        step = max(1, _AT_ONCE // each)
        for start in range(0, len(tokens), step):
            rows, out = tokens[start : start + step], largest[start : start + step]
            for group in self._groups:
                windows = tokens.shape[1] - group.n + 1
                for k, values in of(rows, group):
                    index = group.index[:, k].expand_as(values)
                    out[:, k : k + windows].scatter_reduce_(2, index, values, "amax")
        return largest[:, :length]

    def _move(self, device: torch.device) -> None:
        """Move the tables to a device."""
        if self.pieces.device != device:
            self.pieces, self._goes_on = self.pieces.to(device), self._goes_on.to(device)
            self._open_end = self._open_end.to(device)
            self._groups = [group.to(device) for group in self._groups]

    def _gains_of(self, tokens: Tensor, group: _Group) -> Iterator[tuple[int, Tensor]]:
        fits, hidden, visible = self._fits(tokens, group)
        before, _ = self._neighbours(tokens, group.n)
        # A form that begins without a space waits until it is known that no word goes before it.
        fits &= ~(group.inside & ((before == self.mask_id) | self._open_end[before]))
        for k in range(group.n):
            yield k, (visible + 1) / group.n * (fits & hidden[:, :, k : k + 1])

    def _forbidden_of(self, tokens: Tensor, group: _Group) -> Iterator[tuple[int, Tensor]]:
        fits, hidden, _ = self._fits(tokens, group)
        before, _ = self._neighbours(tokens, group.n)
        fits &= ~(group.inside & self._open_end[before])
        behind = torch.zeros_like(hidden[:, :, :1])
        for k in reversed(range(group.n)):
            here = hidden[:, :, k : k + 1]
            yield k, (fits & here & ~behind).float()
            behind = behind | here

    def _fits(self, tokens: Tensor, group: _Group) -> tuple[Tensor, Tensor, Tensor]:
        """Return where a form fits all that is visible, bool [B, W, F]; what is masked; how much is visible."""
        windows = tokens.unfold(1, group.n, 1)
        hidden = windows == self.mask_id
        visible = torch.zeros(*windows.shape[:2], len(group.pattern), device=tokens.device)
        fits = torch.ones_like(visible, dtype=torch.bool)
        for k in range(group.n):
            equal = windows[:, :, k : k + 1] == group.pattern[:, k]
            visible += equal
            fits &= equal | hidden[:, :, k : k + 1]
        _, after = self._neighbours(tokens, group.n)
        fits &= group.anywhere | ~self._goes_on[after]
        return fits, hidden, visible

    def _neighbours(self, tokens: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Return the token before and behind each window of n, int64 [B, W, 1]; V + 1 beyond the ends."""
        beyond = torch.full_like(tokens[:, :1], self.mask_id + 1)
        padded = torch.cat([beyond, tokens, beyond], dim=1)
        windows = tokens.shape[1] - n + 1
        return padded[:, :windows, None], padded[:, n + 1 : n + 1 + windows, None]


@attrs.frozen(kw_only=True, eq=False)
class _Group:
    """All forms of n pieces.

    Attributes:
        n: their number.
        pattern: the pieces, int64 [F, n].
        index: which of the U distinct ones each is, int64 [F, n].
        anywhere: `Form.anywhere`, bool [F].
        inside: whether the form could also go on with a word before it, bool [F].
    """

    n: int
    pattern: Tensor
    index: Tensor
    anywhere: Tensor
    inside: Tensor

    def to(self, device: torch.device) -> _Group:
        """Return the group on a device."""
        moved = {key: getattr(self, key).to(device) for key in ("pattern", "index", "anywhere", "inside")}
        return attrs.evolve(self, **moved)


def _joints(tokenizer: TokenizerModel) -> tuple[Tensor, Tensor]:
    """Return whether each token continues the word before it, and whether it may end inside one.

    Both bool [V + 2]: false for the mask and for what is beyond the ends.
    """
    goes_on = torch.zeros(tokenizer.vocabulary_size + 2, dtype=torch.bool)
    open_end = goes_on.clone()
    try:
        letter = tokenizer.encode("a")
    except UserError:  # a tokenizer without it
        letter = []
    alone = tokenizer.decode(letter)
    for token in range(tokenizer.vocabulary_size):
        # Behind a letter, since some tokenizers show only there whether a token continues a word.
        goes_on[token] = tokenizer.decode([*letter, token]).removeprefix(alone)[:1].isalnum()
        open_end[token] = tokenizer.decode([token])[-1:].isalnum()
    return goes_on, open_end


def biased(importance: Tensor, there: Tensor, strength: float) -> Tensor:
    """Return importance in [0, 1], moved by a share of the way to 1, or to 0 if negative, where `there` is true."""
    return torch.where(
        there, torch.lerp(importance, torch.full_like(importance, strength > 0), abs(strength)), importance
    )
