"""A model's scores for texts, with HTML output for notebooks. n texts, V predictable tokens."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from atat_zoo.diffusion.statistics import ratio
from atat_zoo.generation.samplers import changes

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.data.tokenizers import TokenizerModel

_HIDDEN = "▁"
_MOST = 40  # maximum number of states to display


class TokenScore(NamedTuple):
    """The text of a token and its value: an importance, uncertainty or probability in [0, 1], or an NLL in nats."""

    token: str
    value: float


class TokenScores(list[TokenScore]):
    """The tokens of a text and their values, which a notebook displays as a heat map."""

    def _repr_html_(self) -> str:
        most = max((value for _, value in self), default=0.0)
        return _line(_span(token, value / max(most, 1.0), f"{value:.3f}") for token, value in self)


@attrs.frozen(kw_only=True, eq=False)
class LogProbs:
    """The log-probabilities of all tokens at N masked positions of a text, given the rest.

    Attributes:
        values: nats, float32 [N, V], in the order of `positions`; the probabilities at each position sum to 1.
        positions: the indices of the masked tokens in the text, counting BOS and EOS.
    """

    values: Tensor
    positions: list[int]
    tokenizer: TokenizerModel = attrs.field(repr=False)

    def best(self, number: int = 5) -> list[TokenScores]:
        """Return the `number` most probable tokens of each position with their probabilities, in descending order."""
        values, ids = self.values.topk(min(number, self.values.shape[1]))
        return [
            TokenScores(
                TokenScore(self.tokenizer.decode([i]), p) for i, p in zip(row, of_row.exp().tolist(), strict=True)
            )
            for row, of_row in zip(ids.tolist(), values, strict=True)
        ]

    def __repr__(self) -> str:
        said = ", ".join(f"{best[0].token!r} {best[0].value:.2f}" for best in self.best(1))
        return f"<LogProbs of {self.values.shape[1]:,} tokens at {len(self.positions)} positions: {said}>"

    def _repr_html_(self) -> str:
        rows = zip(self.positions, self.best(), strict=True)
        cells = ("".join(_span(token, p, f"{p:.3f}") + f" {p:.0%} &nbsp; " for token, p in best) for _, best in rows)
        return "".join(map(_line, cells))


@attrs.frozen(kw_only=True, eq=False)
class NLLBound:
    """A bound on −log p of texts, or −log p itself if the objective computes it exactly."""

    nats: Tensor  # for each text, float64 [n]
    tokens: Tensor  # for each text, including the BOS and EOS of training, int64 [n]

    @property
    def per_token(self) -> float:
        """The mean NLL per token in nats, Σ nats / Σ tokens."""
        return ratio(self.nats, self.tokens)[0]

    @property
    def stderr(self) -> float:
        """The standard error of `per_token` over texts; NaN for a single text."""
        return ratio(self.nats, self.tokens)[1]

    def __repr__(self) -> str:
        return f"<NLLBound: {self.said}>"

    @property
    def said(self) -> str:
        """The nats per token with their standard error, and a note if the standard error is missing or 0."""
        if len(self.nats) == 1:
            return f"{self.per_token:.4f} nats per token (no standard error for a single text)"
        equal = "" if self.stderr else " (the texts do not differ)"
        return f"{self.per_token:.4f} ± {self.stderr:.4f} nats per token{equal}"


@attrs.frozen(kw_only=True, eq=False)
class TextScores:
    """Bounds on −log p of texts under a model.

    Attributes:
        bounds: the objective's bounds by name, as in `atat eval`, in the objective's order.
        texts: the tokens of each text with their contributions in nats, which sum to the text's first bound.
        draws: number of masks per text; 0 if the likelihood is exact.
    """

    bounds: Mapping[str, NLLBound]
    texts: list[TokenScores]
    draws: int

    @property
    def first(self) -> NLLBound:
        """The first bound."""
        return next(iter(self.bounds.values()))

    def __repr__(self) -> str:
        said = (f"{name} {bound.said}" for name, bound in self.bounds.items())
        drawn = f"{self.draws} draws each" if self.draws else "exact"
        return f"<TextScores of {len(self.texts)} text{'s' * (len(self.texts) != 1)}: {', '.join(said)}, {drawn}>"

    def _repr_html_(self) -> str:
        return _line(html.escape(repr(self))) + "".join(text._repr_html_() for text in self.texts)


@attrs.frozen(kw_only=True, eq=False)
class Unmasking:
    """The states of a text while it is generated.

    Attributes:
        frames: the tokens of the text at the start and after each filling or remasking, with None for a mask.
        text: the generated text, as returned by `Model.sample`.
    """

    frames: list[list[str | None]]
    text: str

    @classmethod
    def of(
        cls, start: Sequence[int], steps: Sequence[Mapping[str, Any]], tokenizer: TokenizerModel, *, text: str
    ) -> Unmasking:
        """Return the states of one text from its initial tokens and the records of `Sampler.sample`."""

        def shown(row: Sequence[int]) -> list[str | None]:
            return [None if i == tokenizer.vocabulary_size else tokenizer.decode([i]) for i in row]

        row = list(start)
        frames = [shown(row)]
        for step in steps:
            for _, position, token in changes(step, tokenizer.vocabulary_size):
                row[position] = token
            frames.append(shown(row))
        return cls(frames=frames, text=text)

    def __repr__(self) -> str:
        return f"<Unmasking of {len(self.frames[0])} tokens in {len(self.frames) - 1} changes: {self.text!r}>"

    def _repr_html_(self) -> str:
        picked = self.frames if len(self.frames) <= _MOST else [*self.frames[: _MOST - 1], self.frames[-1]]
        lines, before = [], picked[0]
        for frame in picked:
            lines.append(_line(self._spans(frame, before)))
            before = frame
        return "".join(lines)

    @staticmethod
    def _spans(frame: Sequence[str | None], before: Sequence[str | None]) -> Iterator[str]:
        for now, then in zip(frame, before, strict=True):
            yield _span(_HIDDEN if now is None else now, 0.7 * (now is not None and then is None))


def table(rows: Mapping[str, str]) -> str:
    """Return an HTML table with two columns."""
    cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(said)}</td></tr>" for name, said in rows.items())
    return f"<table>{cells}</table>"


def _line(parts: Iterator[str] | str) -> str:
    return f'<div style="font-family: monospace; white-space: pre-wrap">{"".join(parts)}</div>'


def _span(text: str, heat: float, said: str = "") -> str:
    """Return an HTML span of a text, with a background colour set by `heat`, 0 to 1, and a tooltip."""
    title = f' title="{html.escape(said)}"' if said else ""
    colour = f"rgba(240, 162, 46, {min(max(heat, 0.0), 1.0):.2f})"
    return f'<span style="background: {colour}"{title}>{html.escape(text)}</span>'
