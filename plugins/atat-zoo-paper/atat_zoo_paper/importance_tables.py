"""Data for the figures of `atat importance-figures`.

A token is analysed if a mask draw has masked it, so that it has an importance and a loss. Shapes: n texts, L
tokens, N analysed tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from atat_zoo.diffusion.statistics import average_ranks
from atat_zoo.evaluation.held_out_text import Text, held_out_text, special_ids
from atat_zoo.evaluation.importance_quality import weigh
from atat_zoo.evaluation.likelihood import Measurement
from atat_zoo.evaluation.results import store
from atat_zoo.evaluation.results.format import number, settings
from atat_zoo.evaluation.results.intervals import interval, resampled
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.generation.model import Model
from atat_zoo.generation.samplers import Sampler
from atat_zoo.registry.spec import unstructure
from atat_zoo.reports.report_data import last_tasks, short_names
from atat_zoo.reports.text_views import shown, text_table
from atat_zoo.system.errors import UserError
from atat_zoo_paper.word_classes import CLASSES, word_classes

Row = dict[str, Any]
Weighed = tuple[Text, Measurement]
Progress = Callable[[str, int, int], None]

TEXTS = 64  # number of texts that the sampler generates
_QUANTILES = {"p05": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95}
_PROBE = "context_probe"


@attrs.frozen(kw_only=True, eq=False)
class Analysis:
    """Analysis of a run's importance, and its comparison with that of other runs on the same held-out text."""

    model: Model
    run: Path
    others: tuple[Path, ...] = ()
    spec: EvaluationSpec
    seed: int  # of masks, texts and resamples
    sampler: Sampler
    device: str = "cpu"
    progress: Progress | None = None

    def check(self) -> None:
        """Raise a `UserError` if another run has different held-out text; call this before `tables`, which is slow."""
        for other in self.others:
            text, own = self._text(self.model, self.run), self._text(Model.from_run(other), other)
            if not (torch.equal(own.tokens, text.tokens) and torch.equal(own.maskable, text.maskable)):
                advice = "use runs with the same corpus, tokenizer and data.length, such as runs with different seeds"
                raise UserError(f"the held-out tokens of {other} differ from those of {self.run}; {advice}")

    def _text(self, model: Model, run: Path) -> Text:
        return held_out_text(model, run, self.spec.split, self.spec.sequences)

    def _told(self, what: str) -> Callable[[int, int], None] | None:
        return self.progress and partial(self.progress, what)

    def _weigh(self, model: Model, run: Path, what: str) -> Measurement:
        return weigh(model, run, self.spec, seed=self.seed, progress=self._told(what))[1]

    def tables(self, weighed: Weighed) -> tuple[dict[str, list[Row]], list[str]]:
        """Return a dict from figure to its rows, and messages about omitted and uninformative figures.

        `weighed` is the result of `weigh` with the same model and settings.
        """
        text, measured = weighed
        assert text.counts is not None
        found = {
            "rates": self._rates(text),
            "classes": classes(measured, self.model),
            "frequency": frequency(measured, text.counts),
            "checkpoints": self._checkpoints(measured),
            "agreement": self._agreement(measured, text.counts),
            "evaluations": self._evaluations(),
            _PROBE: list(self._probe()),
        }
        return {name: rows for name, rows in found.items() if rows}, list(self._said(found))

    def _said(self, found: dict[str, list[Row]]) -> Iterator[str]:
        if not found["checkpoints"]:
            yield "checkpoints is omitted because it needs two checkpoints; train with a larger train.keep_checkpoints"
        if not found["agreement"]:
            yield "agreement is omitted because it needs several runs; also pass runs with different seeds"
        if len(found["evaluations"]) == 1:
            same = number(found["evaluations"][0]["evaluations"], "decoding step")
            yield f"evaluations has one bar: every text takes {same} with {self.sampler.name}; pass another --sampler"
        if not found[_PROBE]:
            yield f"{_PROBE} is omitted because it has not been evaluated; run `atat eval {self.run} --task {_PROBE}`"

    def _rates(self, text: Text) -> list[Row]:
        """Return the importance and loss of each token in the first text at each mask rate, as in report/text.json.

        For a model with an exact likelihood, which does not depend on the mask rate, the rate is 1.
        """
        assert text.counts is not None
        first = (text.tokens[:1], text.maskable[:1], text.counts)
        table = text_table(self.model, *first, seed=self.seed, progress=self._told("rates"))
        one, rows = table["texts"][0], list[Row]()
        for level, rate in enumerate(table["rates"] or [1.0]):
            values = zip(one["tokens"], one["importance"][level], one["loss"][level], strict=True)
            about = {"depends_on_rate": table["importance_depends_on_rate"], "rate": rate}
            rows += [
                about | {"position": position, "token": token, "importance": weight, "loss": loss}
                for position, (token, weight, loss) in enumerate(values)
            ]
        return rows

    def _checkpoints(self, measured: Measurement) -> list[Row]:
        """Return statistics and rank correlations of importance at each saved checkpoint.

        `rho` is Spearman's ρ with the loss of masked tokens at the same step, as in `atat importance`, and `rho_last`
        with the importance at the last step.
        """
        steps = RunFolder(self.run).steps()
        if len(steps) < 2:
            return []
        every = {}
        for step in steps:
            model = self.model if step == self.model.step else Model.from_run(self.run, self.device, step)
            known = model is self.model
            every[step] = measured if known else self._weigh(model, self.run, f"step {step}")
        rows = []
        for step, each in every.items():
            seen = _seen(each, every[steps[-1]])
            importance, loss, last = _measured(seen, each.importance, each.token_loss, every[steps[-1]].importance)
            masked, sequence = each.masked_tokens(), seen.nonzero()[:, 0]
            of_loss = self._correlated([masked.importance, masked.loss], masked.sequence, len(seen))[0]
            of_last = self._correlated([importance, last], sequence, len(seen))[0]
            about = {"step": step, **spread(importance, loss), **of_loss}
            rows.append(about | {f"{key}_last": value for key, value in of_last.items()})
        return rows

    def _agreement(self, measured: Measurement, counts: Tensor) -> list[Row]:
        """Return Spearman's ρ of importance for each pair of runs over the same tokens, with an interval.

        `partial` is the partial correlation given the token's frequency, which every estimator can learn.
        """
        runs = (self.run, *self.others)
        if not self.others:
            return []
        every, seeds = [measured], [self.model.experiment.seed]
        names = short_names(runs)
        for other, name in zip(self.others, names[1:], strict=True):
            model = Model.from_run(other, self.device)
            every.append(self._weigh(model, other, name))
            seeds.append(model.experiment.seed)
        rows = []
        for a, b in combinations(range(len(runs)), 2):
            seen = _seen(every[a], every[b])
            columns = _measured(seen, every[a].importance, every[b].importance, counts[measured.tokens])
            of_all, given = self._correlated(columns, seen.nonzero()[:, 0], len(seen))
            about = {
                "run": names[a],
                "seed": seeds[a],
                "other": names[b],
                "other_seed": seeds[b],
                "tokens": int(seen.sum()),
            }
            rows.append({**about, **of_all, **{f"partial_{key}": value for key, value in given.items()}})
        return rows

    def _correlated(self, columns: Sequence[Tensor], sequence: Tensor, texts: int) -> tuple[Row, Row]:
        """Return ρ of the first two columns, each [N], and its value given the third, with a bootstrap over texts.

        `sequence` is the index of each token's text, int64 [N]. Ranks come from the full data, even in a resample.
        """
        sums = _rank_sums(columns, sequence, texts)
        found = [correlations(each) for each in (sums.sum(0), resampled(sums, purpose="importance", seed=self.seed))]
        given = _interval(*map(partial_correlation, found)) if len(columns) > 2 else {}
        return _interval(*(each[..., 0, 1] for each in found)), given

    def _evaluations(self) -> list[Row]:
        """Return the number of texts that take each NFE with the sampler."""
        made = self.model.sample(TEXTS, sampler=self.sampler, seed=self.seed)
        about = {"sampler": self.sampler.name, "settings": settings(unstructure(self.sampler))}
        each, texts = made.sample.nfe.unique(return_counts=True)
        return [about | {"evaluations": n, "texts": k} for n, k in zip(each.tolist(), texts.tolist(), strict=True)]

    def _probe(self) -> Iterator[Row]:
        """Yield the scores in the task context_probe, if the model of this step was evaluated on it."""
        for result in last_tasks(store.tables(RunFolder(self.run))).values():
            if result.settings["task"]["use"] == _PROBE and result.step == self.model.step:
                for name, score in result.scores.items():
                    about = {"task": result.task, "seed": result.seed, "score": name, "quantity": score.quantity}
                    yield about | {"value": score.value, "stderr": score.stderr, "words": score.items}


def _seen(*measured: Measurement) -> Tensor:
    """Return a mask, bool [n, L], of the tokens that were analysed in every measurement."""
    weighed = [each.importance for each in measured if each.importance is not None]
    there = [each.counted & each.token_loss.isfinite() for each in measured]
    return torch.stack([*there, *(each.isfinite() for each in weighed)]).all(0)


def _measured(seen: Tensor, *values: Tensor | None) -> list[Tensor]:
    """Return the values [n, L] at the positions in the mask `seen` [n, L], as float64 [N]."""
    return [each[seen].double() for each in values if each is not None]


def spread(importance: Tensor, loss: Tensor) -> Row:
    """Return the mean and quantiles of importance [N], and the mean loss [N] in nats, of N ≥ 1 tokens."""
    values = importance.numpy()
    quantiles = dict(zip(_QUANTILES, np.quantile(values, list(_QUANTILES.values())).tolist(), strict=True))
    return {"tokens": len(values), **_rounded({"mean": float(values.mean()), **quantiles, "loss": float(loss.mean())})}


def classes(measured: Measurement, model: Model) -> list[Row]:
    """Return a row for each word class that occurs: its share of the tokens, and their statistics from `spread`."""
    seen = _seen(measured)
    importance, loss = _measured(seen, measured.importance, measured.token_loss)
    of_rows = [word_classes(shown(model.tokenizer, row)) for row in measured.tokens.tolist()]
    of_token = torch.tensor([[-1 if each is None else each for each in row] for row in of_rows])
    special = torch.tensor(special_ids(model.tokenizer), dtype=torch.int64)
    of_token[torch.isin(measured.tokens, special)] = -1
    rows = []
    for kind, name in enumerate(CLASSES):
        inside = of_token[seen] == kind
        if inside.any():
            share = round(float(inside.double().mean()), 6)
            rows.append({"class": name, "share": share, **spread(importance[inside], loss[inside])})
    return rows


def frequency(measured: Measurement, counts: Tensor) -> list[Row]:
    """Return a row from `spread` for each range of training counts, in powers of two; `counts` is int64 by token id."""
    power = (counts + 1).double().log2().floor().long()
    seen = _seen(measured)
    of_token = power[measured.tokens][seen]
    importance, loss = _measured(seen, measured.importance, measured.token_loss)
    rows = []
    for k in of_token.unique().tolist():
        inside, members = of_token == k, counts[power == k]
        about = {"least": int(members.min()), "most": int(members.max()), "entries": len(members)}
        rows.append({**about, **spread(importance[inside], loss[inside])})
    return rows


def _rank_sums(columns: Sequence[Tensor], of_text: Tensor, texts: int) -> Tensor:
    """Return Σ 1, Σ r and Σ r rᵀ over the tokens of each text, float64 [n, 1 + m + m²], for ranks r of m columns."""
    ranks = torch.stack([average_ranks(column) for column in columns], 1)
    ranks = (ranks - ranks.mean(0)) / len(ranks)
    products = (ranks[:, :, None] * ranks[:, None, :]).flatten(1)
    each = torch.cat([torch.ones(len(ranks), 1, dtype=torch.float64), ranks, products], 1)
    return each.new_zeros(texts, each.shape[1]).index_add(0, of_text, each)


def correlations(sums: Tensor) -> Tensor:
    """Return the correlations [..., m, m] of columns r from Σ 1, Σ r, Σ r rᵀ [..., 1 + m + m²]; NaN for a constant."""
    m = math.isqrt(sums.shape[-1] - 1)
    mean, second = sums[..., 1 : m + 1] / sums[..., :1], sums[..., m + 1 :] / sums[..., :1]
    covariance = second.unflatten(-1, (m, m)) - mean[..., :, None] * mean[..., None, :]
    deviation = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    return covariance / (deviation[..., :, None] * deviation[..., None, :])


def partial_correlation(rho: Tensor) -> Tensor:
    """Return the partial correlation of the first two columns given the third, from correlations [..., 3, 3].

    The result is NaN if the third column determines one of the others.
    """
    one, a, b = rho[..., 0, 1], rho[..., 0, 2], rho[..., 1, 2]
    left = (1 - a.square()) * (1 - b.square())
    return torch.where(left > 1e-12, (one - a * b) / left.clamp(min=0).sqrt(), torch.nan)


def _interval(value: Tensor, samples: Tensor) -> Row:
    """Return a correlation with its interval, or a row of None if it is undefined, for example for a constant."""
    if not bool(value.isfinite()):
        return dict.fromkeys(("rho", "low", "high"))
    found = interval(float(value), samples)
    ends = (found.low, found.high) if bool(samples.isfinite().all()) else (math.nan, math.nan)
    return store.finite(_rounded(dict(zip(("rho", "low", "high"), (found.value, *ends), strict=True))))


def _rounded(row: Row) -> Row:
    return {key: round(value, 6) for key, value in row.items()}
