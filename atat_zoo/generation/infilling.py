"""Infilling: gaps in given texts, filled by any sampler.

The model also chooses the length of a gap [MASK:a-b]. With a uniform prior, by Bayes' rule, P(n | given) ∝
p_θ(given text | gap of n masks), and each fill draws its own n; a mean log-likelihood of the fill would prefer lengths
that are easy to fill. The text left of the first such gap does not depend on n. The rest is evaluated by the chain
rule, each token with all tokens left of it visible and all others masked: exact with an exact denoiser.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo.errors import UserError
from atat_zoo.generation.layout import Layout, SpaceAwareTokenizer, lay_out, parse, require_leading_space
from atat_zoo.generation.samplers import Sampler

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.generation.writer import Writer

_REACH = 32  # given tokens behind each gap that are evaluated for its length; others carry little information
_LEAST = -100.0  # lower limit of log p_θ of a given token, in nats


@attrs.frozen(kw_only=True)
class Filled:
    """A text with its gaps filled, the text and the number of tokens of each gap, and its network evaluations."""

    text: str
    fills: list[str]
    lengths: tuple[int, ...]
    nfe: int


@attrs.frozen(kw_only=True, eq=False)
class Infilling:
    """Fills of given texts; lists have an item for each of these."""

    filled: list[list[Filled]]
    lengths: list[dict[tuple[int, ...], float]]  # the probability of each combination of gap lengths
    max_nfe: int  # the most network evaluations that the sampler's settings allow a fill
    evaluations: int  # total network evaluations of single rows for the lengths
    seconds: float

    @property
    def texts(self) -> list[str]:
        """All texts, one after the other."""
        return [filled.text for fills in self.filled for filled in fills]


def infill(
    writer: Writer,
    sampler: Sampler,
    texts: Sequence[str],
    *,
    number: int = 1,
    seed: int = 0,
    batch_size: int = 64,
    weigher: Writer | None = None,
) -> Infilling:
    """Fill gaps of texts, `[MASK]` (one token), `[MASK:n]` (n tokens) or `[MASK:a-b]` (a to b), `number` times each.

    A fill is a function of (seed, number of the text, number of the fill) and the text itself. Up to `batch_size` rows
    of one length are filled together. The probabilities of lengths are those of `weigher`, a writer without guidance,
    or of the writer if None: a ban on words in the given text would exclude lengths. A malformed gap, a text without
    one, and one that does not fit raise `UserError`.
    """
    import torch

    weigher = weigher or writer
    started = time.perf_counter()
    words, mask_id = SpaceAwareTokenizer(writer.tokenizer), writer.denoiser.mask_id
    layouts = layouts_of(texts, words, writer.special, writer.length)
    weighed = [posterior(weigher, layout, batch_size) for layout in layouts]
    ids = row_numbers(len(texts), number)
    picked = [draw_lengths(p, seed, row) for p, row in zip(weighed, ids, strict=True)]

    # Batch rows of the same length whose gaps need a leading space at the same positions.
    together: dict[tuple[int, tuple[int, ...]], list[tuple[int, int, list[int]]]] = defaultdict(list)
    for j, (layout, chosen) in enumerate(zip(layouts, picked, strict=True)):
        for k, lengths in enumerate(chosen):
            row = layout.row(lengths, mask_id)
            together[len(row), layout.opening(lengths)].append((j, k, row))
    filled: list[list[Any]] = [[None] * number for _ in texts]
    max_nfe = 0
    for (_, opening), rows in together.items():
        tokens = torch.tensor([row for _, _, row in rows], device=writer.device)
        numbers = torch.tensor([int(ids[j, k]) for j, k, _ in rows], device=writer.device)
        spaced = require_leading_space(writer, opening, words)
        sample = spaced.fill(sampler, tokens, rows=numbers, seed=seed, batch_size=batch_size)
        max_nfe = max(max_nfe, sample.max_nfe)
        for (j, k, _), row, nfe in zip(rows, sample.tokens.tolist(), sample.nfe.tolist(), strict=True):
            layout, lengths = layouts[j], picked[j][k]
            fills = layout.fills(row, lengths, words)
            filled[j][k] = Filled(text=layout.text(fills), fills=fills, lengths=lengths, nfe=nfe)
    return Infilling(
        filled=filled,
        lengths=weighed,
        max_nfe=max_nfe,
        evaluations=sum(questions(layout) * weigher.cost for layout in layouts),
        seconds=time.perf_counter() - started,
    )


def row_numbers(texts: int, number: int) -> Tensor:
    """Return the number of fill k of text j under a seed, k + j · 2³², int64 [texts, number]."""
    import torch

    return torch.arange(number) + torch.arange(texts)[:, None] * (1 << 32)


def layouts_of(texts: Sequence[str], words: SpaceAwareTokenizer, special: str, length: int) -> list[Layout]:
    """Return the texts in tokens, or raise `UserError` with a sentence for each text that is wrong."""
    layouts, problems = [], []
    for number, text in enumerate(texts):
        where = "the text" if len(texts) == 1 else f"text {number + 1}"
        try:
            layouts.append(lay_out(parse(text, where), words, special, length, where))
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("\n".join(problems))
    return layouts


def posterior(writer: Writer, layout: Layout, batch_size: int = 64) -> dict[tuple[int, ...], float]:
    """Return P(lengths | given text) for every combination of lengths; the model must read behind a gap."""
    import torch

    if len(layout.choices) == 1:
        return {layout.choices[0]: 1.0}

    @torch.no_grad()
    def evidence(lengths: tuple[int, ...]) -> float:
        """Return log p_θ of the given tokens right of the first bounded gap, in nats."""
        mask_id = writer.denoiser.mask_id
        row = torch.tensor(layout.row(lengths, mask_id), device=writer.device)
        position = torch.arange(len(row), device=writer.device)
        asked = torch.tensor(_asked(layout, lengths), device=writer.device)
        total = 0.0
        for start in range(0, len(asked), batch_size):
            some = asked[start : start + batch_size]
            z = torch.where(position >= some[:, None], mask_id, row)
            log_probs = writer.denoiser(z, None, position == some[:, None])
            # A given word that is banned has probability 0 at any length; this must cancel, and −∞ − −∞ would not.
            total += float(log_probs.gather(1, row[some][:, None]).double().clamp(min=_LEAST).sum())
        return total

    try:
        shares = torch.tensor([evidence(lengths) for lengths in layout.choices], dtype=torch.float64).softmax(0)
    except UserError as error:
        if writer.denoiser.block_size is None:
            raise
        raise UserError(
            "the length of a gap [MASK:a-b] is read off the text behind it, and this model predicts nothing "
            "behind a gap; state the length, as in [MASK:3]"
        ) from error
    return dict(zip(layout.choices, shares.tolist(), strict=True))


def questions(layout: Layout) -> int:
    """Return how many rows are evaluated for the lengths of a text."""
    return len(layout.choices) * len(_asked(layout, layout.choices[0])) if len(layout.choices) > 1 else 0


def _asked(layout: Layout, lengths: tuple[int, ...]) -> list[int]:
    """Return the positions of the given tokens that are evaluated."""
    first = next(i for i, gap in enumerate(layout.template.gaps) if gap.shortest < gap.longest)
    behind = list(zip(layout.spans(lengths), layout.pieces[1:], strict=True))[first:]
    return [i for span, piece in behind for i in range(span.stop, span.stop + min(_REACH, len(piece)))]


def draw_lengths(weighed: dict[tuple[int, ...], float], seed: int, rows: Tensor) -> list[tuple[int, ...]]:
    """Return lengths for each row of the numbers `rows`, int64 [n], drawn by (seed, row) from their `posterior`."""
    import torch

    from atat_zoo.modeling.diffusion.randomness import row_keys, to_unit

    choices = list(weighed)
    if len(choices) == 1:
        return choices * len(rows)
    edges = torch.tensor(list(weighed.values()), dtype=torch.float64).cumsum(0)
    unit = to_unit(row_keys(seed, "gap lengths", rows), torch.float64)
    numbers = torch.searchsorted(edges, unit * edges[-1], right=True)
    return [choices[min(i, len(choices) - 1)] for i in numbers.tolist()]
