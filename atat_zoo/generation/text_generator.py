"""Sampling and infilling with a denoiser and any sampler. B sequences in a batch, L tokens each.

A `TextGenerator` is a denoiser with its tokenizer, from any source; `Model.text_generator` returns one.

The model also chooses the length n of a gap [MASK:a-b]. With a uniform prior, P(n | given) ∝ p_θ(given text | gap of n
masks) by Bayes' rule, and each fill samples its own n. Ranking by the mean log-likelihood of the fill would instead
prefer lengths that are easy to fill. The text to the left of the first such gap has the same likelihood for all n and
cancels. The likelihood of the rest follows from the chain rule: each token is predicted from the tokens to its left,
with all others masked, which is exact for an exact denoiser. Only the first 32 tokens after each gap are evaluated.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo.diffusion.contracts import Denoiser
from atat_zoo.generation.layout import Layout, Request, SpaceAwareTokenizer, TextForm, frame_tokens, refuse_length
from atat_zoo.generation.samplers import Observer, Sample, Sampler, shifted
from atat_zoo.system.errors import UserError, clip

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_SHOWN = 8  # maximum number of texts to print
_REACH = 32  # given tokens after each gap that are evaluated for its length; later ones carry little information
_LEAST = -100.0  # lower limit of log p_θ of a given token, in nats


@attrs.frozen(kw_only=True, eq=False)
class Generation:
    """Generated texts, one for each row of `sample.tokens`, with the NFE and the sampling time in seconds."""

    texts: list[str]
    sample: Sample
    seconds: float

    def __repr__(self) -> str:
        shown = "".join(f"\n  {clip(repr(text))}" for text in self.texts[:_SHOWN])
        more = f"\n  and {len(self.texts) - _SHOWN:,} more" if len(self.texts) > _SHOWN else ""
        return f"<Generation in {self.seconds:.2f} s: {self.sample!r}{shown}{more}>"


@attrs.frozen(kw_only=True)
class FilledText:
    """A text with its gaps filled, the text and the number of tokens that fill each gap, and the NFE."""

    text: str
    fills: list[str]
    lengths: tuple[int, ...]
    nfe: int


@attrs.frozen(kw_only=True, eq=False)
class Infilling:
    """The fills of the given texts; `filled[j][k]` is fill k of text j."""

    filled: list[list[FilledText]]
    lengths: list[dict[tuple[int, ...], float]]  # the probability of each combination of gap lengths
    max_nfe: int  # the largest NFE that the sampler's settings allow for a fill
    evaluations: int  # total number of rows evaluated to choose the lengths
    seconds: float

    @property
    def texts(self) -> list[str]:
        """All filled texts as a flat list: the fills of the first text, then those of the second, and so on."""
        return [filled.text for fills in self.filled for filled in fills]


@attrs.frozen(kw_only=True, eq=False)
class TextGenerator(TextForm):
    """A denoiser with a tokenizer, which generates text.

    If `special` is "sequence" or "both", BOS and EOS are given at the ends of a sequence. For a sequence longer than
    `length`, they are at the ends of the window that the denoiser sees instead of in the sequence.
    """

    denoiser: Denoiser
    cost: int = 1  # forward passes per evaluation of the denoiser
    device: str | torch.device = "cpu"  # device of the texts
    network: str | torch.device | None = None  # device of the network, if different
    bf16: bool = False  # whether the network computes in bf16, by autocast; log-probabilities are always float32

    def __attrs_post_init__(self) -> None:
        self.denoiser.frame = frame_tokens(self.tokenizer, self.special)

    def write(
        self, sampler: Sampler, *, rows: Tensor | None = None, observe: Observer | None = None, **options: Any
    ) -> Generation:
        """Return a `Generation` of texts from a sampler; the options are those of `TextForm.request`."""
        return self.generate(self.request(sampler, **options), rows=rows, observe=observe)

    def generate(self, request: Request, *, rows: Tensor | None = None, observe: Observer | None = None) -> Generation:
        """Return a `Generation` with the texts of a request.

        Text n does not depend on the number of texts, up to rounding in batched forward passes. With `rows`, int64 [n],
        only the texts with these numbers are generated. `observe` is called with a record of each step (see
        `Sampler.sample`), whose rows are numbered over all texts.
        """
        import torch

        rows = torch.arange(request.number, device=self.device) if rows is None else rows.to(self.device)
        tokens = torch.tensor(request.row, dtype=torch.int64, device=self.device).expand(len(rows), -1)
        started = time.perf_counter()
        text_generator = self.opening(request.opening, request.words)
        sample = text_generator.fill(
            request.sampler, tokens, rows=rows, seed=request.seed, batch_size=request.batch_size, observe=observe
        )
        texts = list(map(request.text, sample.tokens.tolist()))
        return Generation(texts=texts, sample=sample, seconds=time.perf_counter() - started)

    def autocast(self) -> torch.autocast:
        """Return the autocast context for the network's precision."""
        import torch

        kind = torch.device(self.device if self.network is None else self.network).type
        return torch.autocast(kind, torch.bfloat16, enabled=self.bf16)

    def fill(
        self,
        sampler: Sampler,
        tokens: Tensor,
        *,
        rows: Tensor | None = None,
        seed: int | Sequence[int] = 0,
        batch_size: int = 64,
        observe: Observer | None = None,
    ) -> Sample:
        """Return a `Sample` of `tokens`, int64 [B, L], with all masks filled, `batch_size` rows at a time.

        `rows`, int64 [B], holds the row numbers, by default 0, 1, …. Row number n samples with the key (seed, n);
        `seed` is one number, or one number per row.
        """
        import torch

        from atat_zoo.diffusion.randomness import sequence_keys
        from atat_zoo.system.devices import move_to

        refuse_length(sampler, len(tokens), tokens.shape[1], self.length)
        tokens, rows = move_to((tokens, torch.arange(len(tokens)) if rows is None else rows), self.device)
        each = zip(seed, rows.split(1), strict=True) if isinstance(seed, Sequence) else [(seed, rows)]
        seeds = torch.cat([sequence_keys(one, "sample", some) for one, some in each])
        # One autocast around all batches, so that the weights are cast once.
        with self.autocast():
            parts = [
                sampler.sample(self.denoiser, some, keys, observe=shifted(observe, rows=batch_size * i))
                for i, (some, keys) in enumerate(zip(tokens.split(batch_size), seeds.split(batch_size), strict=True))
                if len(some)
            ]
        if not parts:
            return Sample(tokens=tokens, nfe=tokens.new_zeros(0), max_nfe=0)
        nfe, most = torch.cat([part.nfe for part in parts]), max(part.max_nfe for part in parts)
        return Sample(tokens=torch.cat([part.tokens for part in parts]), nfe=nfe * self.cost, max_nfe=most * self.cost)

    def accepts_padding(self, sampler: Sampler) -> bool:
        """Return whether texts of different lengths, up to the training length, can share a batch; see `padded`."""
        reads_padding = sampler.uses_importance and self.denoiser.estimates_importance
        return self.denoiser.supports_padding and sampler.accepts_padding and not reads_padding

    def padded(
        self, rows: Sequence[Sequence[int]], openings: Sequence[Sequence[int]], words: SpaceAwareTokenizer
    ) -> tuple[TextGenerator, Tensor]:
        """Return a text generator for texts of any lengths, and their tokens, int64 [B, L], with padding at the end.

        `openings` are the positions of each text whose token must begin with a space, as in `opening`. Texts may differ
        in length or openings only if they satisfy `accepts_padding`.
        """
        import torch

        length, padding = max(map(len, rows)), self.denoiser.mask_id + 1
        wide = [[*row, *[padding] * (length - len(row))] for row in rows]
        tokens = torch.tensor(wide, dtype=torch.int64, device=self.device)
        every = [openings[0]] if len({*map(tuple, openings)}) == 1 else openings
        equal = length == min(map(len, rows))
        generator = self if equal else attrs.evolve(self, denoiser=self.denoiser.with_padding())
        return generator._opening(every, words), tokens

    def infill(
        self,
        sampler: Sampler,
        layouts: Sequence[Layout],
        *,
        number: int = 1,
        seed: int = 0,
        batch_size: int = 64,
        weigher: TextGenerator | None = None,
    ) -> Infilling:
        """Return an `Infilling` with `number` fills of each text, given as a layout that `layouts` returns.

        A fill depends only on the seed, the text, its index and the index of the fill. Up to `batch_size` rows of the
        same length are filled together. The probabilities of the lengths come from `weigher`, by default this text
        generator. Pass one without guidance, because a ban on words in the given text would exclude lengths.
        """
        import torch

        weigher = weigher or self
        started = time.perf_counter()
        weighed = [length_posterior(weigher, layout, batch_size) for layout in layouts]
        ids = row_numbers(len(layouts), number)
        picked = [draw_lengths(p, seed, row) for p, row in zip(weighed, ids, strict=True)]

        # Batch rows of the same length whose gaps need a leading space at the same positions.
        together: dict[tuple[int, tuple[int, ...]], list[tuple[int, int, list[int]]]] = defaultdict(list)
        for j, (layout, chosen) in enumerate(zip(layouts, picked, strict=True)):
            for k, lengths in enumerate(chosen):
                row = layout.row(lengths)
                together[len(row), layout.opening(lengths)].append((j, k, row))
        filled: list[list[Any]] = [[None] * number for _ in layouts]
        max_nfe = 0
        for (_, opening), rows in together.items():
            tokens = torch.tensor([row for _, _, row in rows], device=self.device)
            numbers = torch.tensor([int(ids[j, k]) for j, k, _ in rows], device=self.device)
            text_generator = self.opening(opening, layouts[0].words)
            sample = text_generator.fill(sampler, tokens, rows=numbers, seed=seed, batch_size=batch_size)
            max_nfe = max(max_nfe, sample.max_nfe)
            for (j, k, _), row, nfe in zip(rows, sample.tokens.tolist(), sample.nfe.tolist(), strict=True):
                layout, lengths = layouts[j], picked[j][k]
                fills = layout.fills(row, lengths)
                filled[j][k] = FilledText(text=layout.text(fills), fills=fills, lengths=lengths, nfe=nfe)
        return Infilling(
            filled=filled,
            lengths=weighed,
            max_nfe=max_nfe,
            evaluations=sum(num_length_evaluations(layout) * weigher.cost for layout in layouts),
            seconds=time.perf_counter() - started,
        )

    def opening(self, positions: Sequence[int], words: SpaceAwareTokenizer) -> TextGenerator:
        """Return a text generator whose tokens at `positions` begin with a space, unless this has probability 0."""
        return self._opening([positions], words)

    def _opening(self, openings: Sequence[Sequence[int]], words: SpaceAwareTokenizer) -> TextGenerator:
        if not any(openings):
            return self
        import torch

        from atat_zoo.generation.guided_denoiser import GuidedDenoiser, Opening

        allowed = torch.zeros(self.tokenizer.vocabulary_size, dtype=torch.bool, device=self.device)
        allowed[words.openers] = True
        most = max(map(len, openings))
        there = torch.tensor([[*each, *[-1] * (most - len(each))] for each in openings], device=self.device)
        return attrs.evolve(self, denoiser=GuidedDenoiser(self.denoiser, Opening(there, allowed)))


def row_numbers(texts: int, number: int) -> Tensor:
    """Return the row number k + j · 2³² for fill k of text j, int64 [texts, number]."""
    import torch

    return torch.arange(number) + torch.arange(texts)[:, None] * (1 << 32)


def length_posterior(
    text_generator: TextGenerator, layout: Layout, batch_size: int = 64
) -> dict[tuple[int, ...], float]:
    """Return P(lengths | text) as a dict; raise a `UserError` if lengths vary and the model reads left to right."""
    import torch

    if len(layout.choices) == 1:
        return {layout.choices[0]: 1.0}

    @torch.no_grad()
    def evidence(lengths: tuple[int, ...]) -> float:
        """Return log p_θ of the given tokens to the right of the first gap of variable length, in nats."""
        mask_id = text_generator.denoiser.mask_id
        row = torch.tensor(layout.row(lengths), device=text_generator.device)
        position = torch.arange(len(row), device=text_generator.device)
        asked = torch.tensor(_asked(layout, lengths), device=text_generator.device)
        total = 0.0
        for start in range(0, len(asked), batch_size):
            some = asked[start : start + batch_size]
            z = torch.where(position >= some[:, None], mask_id, row)
            log_probs = text_generator.denoiser(z, None, position == some[:, None])
            # A given word that is banned has probability 0 at any length, which must cancel; −∞ − −∞ would not.
            total += float(log_probs.gather(1, row[some][:, None]).double().clamp(min=_LEAST).sum())
        return total

    try:
        shares = torch.tensor([evidence(lengths) for lengths in layout.choices], dtype=torch.float64).softmax(0)
    except UserError as error:
        if text_generator.denoiser.block_size is None:
            raise
        raise UserError(
            "a gap [MASK:a-b] needs a model that reads the text after the gap, and this one reads from left to "
            "right; fix the length, as in [MASK:3]"
        ) from error
    return dict(zip(layout.choices, shares.tolist(), strict=True))


def num_length_evaluations(layout: Layout) -> int:
    """Return the number of rows that are evaluated to choose the gap lengths of a text."""
    return len(layout.choices) * len(_asked(layout, layout.choices[0])) if len(layout.choices) > 1 else 0


def _asked(layout: Layout, lengths: tuple[int, ...]) -> list[int]:
    """Return the positions of the given tokens whose likelihood is evaluated."""
    first = next(i for i, gap in enumerate(layout.template.gaps) if gap.shortest < gap.longest)
    behind = list(zip(layout.spans(lengths), layout.pieces[1:], strict=True))[first:]
    return [i for span, piece in behind for i in range(span.stop, span.stop + min(_REACH, len(piece)))]


def draw_lengths(weighed: dict[tuple[int, ...], float], seed: int, rows: Tensor) -> list[tuple[int, ...]]:
    """Return gap lengths for each row number in `rows`, int64 [n], sampled from the posterior with (seed, row)."""
    import torch

    from atat_zoo.diffusion.randomness import sequence_keys, to_unit

    choices = list(weighed)
    if len(choices) == 1:
        return choices * len(rows)
    edges = torch.tensor(list(weighed.values()), dtype=torch.float64).cumsum(0)
    unit = to_unit(sequence_keys(seed, "gap lengths", rows), torch.float64)
    numbers = torch.searchsorted(edges, unit * edges[-1], right=True)
    return [choices[min(i, len(choices) - 1)] for i in numbers.tolist()]
