"""What a trained model says of texts in hand. n texts of L tokens, D width, V predictable tokens, N masked places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor

from atat_zoo.errors import UserError
from atat_zoo.experiment import conflicts_with
from atat_zoo.generation.shown import Bounded, LogProbs, TextScores, TokenScore, TokenScores
from atat_zoo.modeling.diffusion.randomness import row_keys
from atat_zoo.registry import Zoo
from atat_zoo.system.devices import exact_device
from atat_zoo.system.parsing import refuse_halves

if TYPE_CHECKING:
    from atat_zoo.data.tokenizers import TokenizerModel
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.samplers import Sampler
    from atat_zoo.generation.writer import Infilling, Writer
    from atat_zoo.modeling.bounds import Bound
    from atat_zoo.modeling.uncertainty import Uncertainty
    from atat_zoo.registry import Context

Named = str | Mapping[str, Any]


class TextReader:
    """The methods of a `Model` that read texts; a text is framed as in training, by BOS and EOS if it was there."""

    experiment: Experiment
    context: Context
    tokenizer: TokenizerModel
    module: Any
    writer: Callable[..., Writer]
    infill: Callable[..., Infilling]

    def importance(self, text: str) -> TokenScores:
        """Return the importance of each token of a text by the model's estimator, in [0, 1].

        An estimator that reads z is asked for each token with this one masked. One that reads the time is evaluated in
        the middle of the diffusion, as in evaluations.

        Raises:
            UserError: when the model has no estimator, or the text does not fit.
        """
        module = self.module
        if not module.denoiser().estimates_importance:
            problem = f"objective {self.experiment.parts['objective'].name!r} has no importance"
            raise UserError(f'{problem}; train with objective.use = "mdlm" or "adaptive" and an estimator')
        row, inner = self._row(text)
        whole = torch.zeros_like(row[None], dtype=torch.bool)
        whole[:, inner] = True
        reads_x = module.denoiser().importance_reads == "x"
        values = []
        with torch.no_grad():
            for tokens, where in [(row[None], whole)] if reads_x else self._each_masked(row, inner):
                t = torch.full((len(tokens),), 0.5, device=row.device)
                values.append(module.importance(tokens, torch.ones_like(where), t)[where])
        return self._scores(row[inner], torch.cat(values))

    def uncertainty(self, text: str, metric: str | Uncertainty = "entropy", *, batch_size: int = 64) -> TokenScores:
        """Return the uncertainty of each token of a text given all others, in [0, 1]: each is masked in turn.

        The metric is of the kind uncertainty, by name or as a specification. A token takes one network evaluation.

        Raises:
            UserError: when the text does not fit, or there is no such metric.
        """
        measure = Zoo.load().spec("uncertainty", metric) if isinstance(metric, str) else metric
        row, inner = self._row(text)
        denoiser = self.writer().denoiser
        with torch.no_grad():
            values = [measure(denoiser(z, None, where)) for z, where in self._each_masked(row, inner, batch_size)]
        return self._scores(row[inner], torch.cat(values))

    def log_probs(self, text: str, masked: Sequence[int] | None = None) -> LogProbs:
        """Return the log-probability of every token at the masked places of a text, given the rest, in nats.

        Args:
            text: with its masks as gaps of known lengths, `[MASK]` or `[MASK:3]`; where a gap follows a space that
                belongs to its word, only tokens that begin with one are possible. Or a text without gaps.
            masked: in a text without gaps the tokens to mask, numbered from 0, ends not counted.

        Raises:
            UserError: when a gap is malformed or has no length, there is nothing to mask, or the text does not fit; or
                when a model that reads from left to right is asked for a token behind a gap.
        """
        from atat_zoo.generation.layout import SpaceAwareTokenizer, lay_out, parse, require_leading_space

        writer, mask_id = self.writer(), self.context.mask_id
        if masked is None:
            words = SpaceAwareTokenizer(self.tokenizer)
            layout = lay_out(parse(text), words, self.experiment.data.special, self.context.length)
            if len(layout.choices) > 1:
                raise UserError("the text has a gap without a length; say how many tokens it has, as in [MASK:3]")
            writer = require_leading_space(writer, layout.opening(layout.choices[0]), words)
            z = torch.tensor(layout.row(layout.choices[0], mask_id), device=self.context.device)
        else:
            row, inner = self._row(text)
            n = inner.stop - inner.start
            if not masked or not all(0 <= i < n for i in masked):
                raise UserError(f"masked: the text has {n} tokens; name some of 0 to {n - 1}")
            z = row.clone()
            z[torch.tensor(sorted(set(masked)), device=z.device) + inner.start] = mask_id
        where = z == mask_id
        with torch.no_grad():
            values = writer.denoiser(z[None], None, where[None])
        return LogProbs(values=values.float(), positions=where.nonzero()[:, 0].tolist(), tokenizer=self.tokenizer)

    def score(
        self,
        texts: str | Sequence[str],
        *,
        draws: int | None = None,
        seed: int | None = None,
        bound: Bound | Named | None = None,
        batch_size: int = 64,
    ) -> TextScores:
        """Return what texts cost: bounds on −log p in nats, or −log p itself where the objective knows it.

        It is what `atat eval` measures, on texts in hand: with the same draws, seed and text the numbers are the same.
        Text n has the masks of row n. A text may be shorter than those of the training. It is padded where those were,
        with `data.rows = "document"`, and otherwise not, but to a whole number of a model's blocks.

        Args:
            texts: one or several.
            draws: masks of each; those of [evaluation] if None. More of them make the bound's estimate surer.
            seed: of the masks; the experiment's if None.
            bound: how it is estimated, of the kind bound; that of [evaluation] if None.
            batch_size: texts at once.

        Raises:
            UserError: when a text is empty or too long, or the objective has no such bound.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        if not texts:
            raise UserError("there is no text; give one")
        spec = self.experiment.evaluation
        draws, seed = draws or spec.draws, self.experiment.seed if seed is None else seed
        method: Any = spec.bound if bound is None else bound
        method = Zoo.load().spec("bound", method) if isinstance(method, str | Mapping) else method
        found: dict[str, dict[int, Tensor]] = {}
        lists = [
            self._framed(text, f"text {i + 1}" if len(texts) > 1 else "the text")[0] for i, text in enumerate(texts)
        ]
        device = exact_device(next(self.module.parameters()).device)
        with torch.no_grad():
            for rows, tokens, maskable in self._together(lists, batch_size):
                keys = row_keys(seed, "evaluation", rows.to(device))
                estimates = self.module.bound(tokens.to(device), maskable.to(device), keys, draws, method)
                for name, estimate in estimates.items():
                    pairs = zip(rows.tolist(), estimate.contribution.cpu(), strict=True)
                    found.setdefault(name, {}).update((i, nats[: len(lists[i])]) for i, nats in pairs)
        n = torch.tensor([len(ids) for ids in lists])
        bounds = {
            name: Bounded(nats=torch.stack([each[i].sum() for i in range(len(lists))]), tokens=n)
            for name, each in found.items()
        }
        first = next(iter(found.values()))
        shares = [self._scores(torch.tensor(ids), first[i]) for i, ids in enumerate(lists)]
        exact = self.experiment.parts["objective"].exact
        return TextScores(bounds=bounds, texts=shares, draws=0 if exact else draws)

    def embed(self, texts: str | Sequence[str], *, batch_size: int = 64) -> Tensor:
        """Return the mean of the last hidden states over the tokens of each text, float32 [n, D] on the CPU.

        Nothing is masked, and a network that reads the time is told t = 0. The ends of the training are read, and are
        not in the mean.

        Raises:
            UserError: when a text is empty or too long.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        framed = [self._framed(text, f"text {i + 1}" if len(texts) > 1 else "the text") for i, text in enumerate(texts)]
        made = torch.zeros(len(texts), self.context.width or self.module.backbone.embedding.embedding_dim)
        with torch.no_grad():
            for rows, tokens, _ in self._together([ids for ids, _ in framed], batch_size, padded=False):
                hidden = self.module.embed(tokens.to(self.context.device)).float().cpu()
                for i, states in zip(rows.tolist(), hidden, strict=True):
                    made[i] = states[framed[i][1]].mean(0)
        return made

    def fill(self, text: str, *, evaluations: int = 8, sampler: Sampler | Named | None = None) -> str:
        """Return a text with its gaps filled: the surest places first, by the likeliest tokens.

        That is greedy, and in general not the likeliest filling. `infill` draws, and may be asked for several.

        Args:
            text: with gaps, `[MASK]`, `[MASK:3]` or `[MASK:2-4]`.
            evaluations: of the network, at most; a model that writes in an order of its own takes those that it needs.
            sampler: another one in place of this.

        Raises:
            UserError: when a gap is malformed, or the text has no gap or does not fit.
        """
        return self.infill(text, 1, sampler=sampler or self._greedy(evaluations)).texts[0]

    def _greedy(self, evaluations: int) -> Any:
        """Return the first sampler without chance that fits the model."""
        zoo, own, draw = Zoo.load(), self.experiment.parts["sampler"], {"use": "categorical", "temperature": 0.0}
        sure = {"use": "uncertainty", "uncertainty": "confidence"}
        pace = {"use": "fixed", "steps": evaluations}
        tables: list[dict[str, Any]] = [
            {"use": "combination", "order": sure, "pace": pace, "draw": draw},
            {"use": "left_to_right", "draw": draw},
        ]
        for spec in (zoo.spec("sampler", table) for table in tables):
            if not conflicts_with(self.experiment, {"sampler": spec}):
                return spec
        names = {field.name for field in attrs.fields(type(own))}
        change = {"temperature": 0.0} if "temperature" in names else {"draw": zoo.spec("draw", draw)}
        return attrs.evolve(own, **change) if names & change.keys() else own

    def _each_masked(self, row: Tensor, inner: slice, batch_size: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a row with each of its inner tokens masked in turn, int64 [b, L], and where, bool [b, L]."""
        position = torch.arange(len(row), device=row.device)
        for places in position[inner].split(batch_size):
            where = position == places[:, None]
            yield row.expand(len(where), -1).masked_fill(where, self.context.mask_id), where

    def _row(self, text: str) -> tuple[Tensor, slice]:
        """Return a text as a row of the model, int64 [L], and the slice of the text's own tokens."""
        row, inner = self._framed(text)
        return torch.tensor(row, device=self.context.device), inner

    def _framed(self, text: str, where: str = "the text") -> tuple[list[int], slice]:
        """Return the tokens of a text with the ends of the training, and the slice of the text's own."""
        from atat_zoo.generation.layout import ends

        first, last = ends(self.tokenizer, self.experiment.data.special)
        refuse_halves(text, where)
        ids = self.tokenizer.encode(text)
        row = [*first, *ids, *last]
        if not ids:
            raise UserError(f"{where} is empty; give at least a word")
        if len(row) > self.context.length:
            problem = f"{where} is {len(row)} tokens, special tokens included"
            raise UserError(f"{problem}, and the model has learned {self.context.length}; shorten it")
        return row, slice(len(first), len(first) + len(ids))

    def _together(
        self, lists: Sequence[list[int]], batch_size: int, padded: bool = True
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the numbers [b] of texts that are read together, tokens and where these are no padding, [b, L] both."""
        whole, block = self.experiment.data.rows == "document", self.module.denoiser().block_size or 1
        by_length: dict[int, list[int]] = defaultdict(list)
        for number, ids in enumerate(lists):
            length = self.context.length if whole else -(-len(ids) // block) * block
            by_length[length if padded else len(ids)].append(number)
        for length, numbers in by_length.items():
            for some in torch.tensor(numbers).split(batch_size):
                texts = [lists[i] for i in some.tolist()]
                n = torch.tensor([len(ids) for ids in texts])
                tokens = torch.tensor([[*ids, *[0] * (length - len(ids))] for ids in texts])
                yield some, tokens, torch.arange(length) < n[:, None]

    def _scores(self, ids: Tensor, values: Tensor) -> TokenScores:
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        return TokenScores(TokenScore(self.tokenizer.decode([i]), value) for i, value in pairs)
