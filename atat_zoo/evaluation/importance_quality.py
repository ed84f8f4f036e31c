"""The quality of importance: how well it orders held-out tokens by their loss, and how well it is calibrated.

N is the number of masked held-out tokens (a token counts once for each mask that hides it), and V is the vocabulary
size. The masks are those that estimate the bound. Importance is compared with two other predictors of the loss: the
frequency of the true token, which is unknown while the token is masked, and the entropy of the model's prediction,
which is known wherever the logits are computed. Importance is also evaluated within bands of token frequency. Intervals
are bootstrapped over sequences. Calibration is evaluated against the target `difficulty`: the rank of a token's loss
among the n masked tokens of its row, (rank + ½)/n in (0, 1).
"""

from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor
from typing_extensions import override

from atat_zoo.diffusion.statistics import largest_spearman, spearman
from atat_zoo.evaluation import Progress
from atat_zoo.evaluation.held_out_text import Text, held_out_text
from atat_zoo.evaluation.likelihood import Measurement, measure
from atat_zoo.evaluation.results.intervals import spearman_interval
from atat_zoo.evaluation.results.store import RunResult, finite
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.experiment.effects import require_estimator
from atat_zoo.generation.model import Model

BINS = 10


@attrs.frozen(kw_only=True)
class Band:
    """A group of tokens with about the same frequency."""

    tokens: int  # masked held-out tokens in the band
    types: int  # vocabulary entries in the band
    least: int  # training count of the band's rarest entry
    most: int  # training count of the band's most frequent entry
    loss: float  # mean loss in nats
    importance_spearman: float  # ρ between importance and loss
    importance_interval: tuple[float, float] | None  # its 95 % confidence interval; None for a single sequence
    frequency_spearman: float  # ρ between unigram surprisal and loss
    entropy_spearman: float  # ρ between the entropy of the prediction and loss


@attrs.frozen(kw_only=True)
class Bin:
    """A group of tokens whose importance is at least `low` and below `high`; the last bin includes 1."""

    low: float  # lower end
    high: float  # upper end
    tokens: int  # masked held-out tokens in the bin
    importance: float  # mean importance of these tokens
    rank: float  # mean rank of the tokens' losses among the masked tokens of their rows, in (0, 1)
    loss: float  # mean loss in nats


@attrs.frozen(kw_only=True)
class ImportanceQuality:
    """The quality of importance on held-out text."""

    tokens: int  # N
    mean: float  # mean importance
    deviation: float  # standard deviation of importance over tokens
    importance_spearman: float  # ρ between importance and loss, over all tokens
    importance_interval: tuple[float, float] | None  # its 95 % confidence interval; None for a single sequence
    frequency_spearman: float  # ρ between unigram surprisal and loss, over all tokens
    entropy_spearman: float  # ρ between the entropy of the prediction and loss, over all tokens
    importance_spearman_in_mask: float  # ρ between importance and the rank of the loss in its sequence under one mask
    entropy_spearman_in_mask: float  # ρ between the entropy of the prediction and this rank
    #: for an estimator that reads the clean sequence: the largest ρ that a function of it can reach; otherwise None
    largest_spearman: float | None
    bands: tuple[Band, ...]  # frequency bands from rare to frequent, each with about the same amount of text
    bins: tuple[Bin, ...]  # importance bins, without empty bins
    calibration_error: float  # Σ share · |mean importance − mean rank| over the bins; also 0 for a constant ½


@attrs.frozen(kw_only=True)
class ImportanceResult(RunResult):
    """The quality of a run's importance, and the settings of the evaluation."""

    split: str  # name of the held-out split
    step: int  # optimizer steps of the weights
    ema: bool  # whether the weights are EMA weights
    estimator: str  # name of the estimator
    target: str | None  # name of its learning target, or None if the estimator does not have one
    sequences: int  # number of sequences
    draws: int  # masks drawn for each sequence
    seed: int  # of the masks
    method: str  # how the masks were drawn
    quality: ImportanceQuality  # the numbers; an undefined correlation is NaN

    @property
    @override
    def key(self) -> str:
        return f"importance-{self.split}-{self.sequences}x{self.draws}"

    @override
    def to_table(self) -> dict[str, Any]:
        table = attrs.asdict(self)
        return finite({key: table[key] for key in table if key != "quality"} | table["quality"])


def quality(
    measured: Measurement, counts: Tensor, bands: int = 5, again: Measurement | None = None
) -> ImportanceQuality:
    """Return the quality of importance over all tokens, per band of token frequency and per importance bin.

    `counts`, int64 [V], counts the training tokens by id. `largest_spearman` needs `again`, under other masks.
    """
    of = measured.masked_tokens()
    importance, loss, tokens = of.importance, of.loss, of.token
    surprisal = -((counts.double() + 1) / (counts.double() + 1).sum()).log()[tokens]
    band_of = frequency_bands(counts, bands)

    def correlations(inside: Tensor) -> dict[str, Any]:
        return {
            "importance_spearman": spearman(importance[inside], loss[inside]),
            "importance_interval": spearman_interval(importance[inside], loss[inside], of.sequence[inside]),
            "frequency_spearman": spearman(surprisal[inside], loss[inside]),
            "entropy_spearman": spearman(of.entropy[inside], loss[inside]),
        }

    def band(number: int) -> Band:
        inside, members = band_of[tokens] == number, counts[band_of == number]
        return Band(
            tokens=int(inside.sum()),
            types=len(members),
            least=int(members.min()),
            most=int(members.max()),
            loss=float(loss[inside].mean()),
            **correlations(inside),
        )

    of_bins = calibration(importance, of.rank, loss)
    return ImportanceQuality(
        tokens=len(loss),
        mean=float(importance.mean()),
        deviation=float(importance.std(correction=0)),
        **correlations(torch.ones_like(loss, dtype=torch.bool)),
        importance_spearman_in_mask=spearman(importance, of.rank),
        entropy_spearman_in_mask=spearman(of.entropy, of.rank),
        largest_spearman=None if again is None else largest_spearman(_losses(measured), _losses(again)),
        bands=tuple(map(band, band_of[tokens].unique().tolist())),
        bins=tuple(of_bins),
        calibration_error=sum(b.tokens * abs(b.importance - b.rank) for b in of_bins) / max(1, len(loss)),
    )


def _losses(measured: Measurement) -> Tensor:
    """Return the losses of the counted tokens under each mask, [n, K, L], NaN where not masked."""
    return measured.under_masks["loss"].where(measured.counted[:, None], torch.nan)


def frequency_bands(counts: Tensor, bands: int) -> Tensor:
    """Return the frequency band of each vocabulary entry, int64 [V]; band 0 contains the rarest entries.

    Each band contains about the same share of the training tokens, which `counts`, int64 [V], counts by id. An entry
    belongs to the band that contains the midpoint of its cumulative share, so an entry with more than a band's share
    makes a neighbouring band smaller or empty.
    """
    # Add one, as for the surprisal: entries that never occur belong to the rarest band.
    mass = counts.double() + 1
    order = mass.argsort(stable=True)
    below = mass[order].cumsum(0) - mass[order] / 2
    band = torch.empty_like(order)
    band[order] = (below / mass.sum() * bands).long().clamp(max=bands - 1)
    return band


def calibration(importance: Tensor, ranks: Tensor, loss: Tensor) -> list[Bin]:
    """Return the non-empty bins of importance in [0, 1], out of `BINS` of equal width; all arguments are float [N]."""
    bin_of = (importance * BINS).long().clamp(0, BINS - 1)

    def within(number: int) -> Bin:
        inside = bin_of == number
        return Bin(
            low=number / BINS,
            high=(number + 1) / BINS,
            tokens=int(inside.sum()),
            importance=float(importance[inside].mean()),
            rank=float(ranks[inside].mean()),
            loss=float(loss[inside].mean()),
        )

    return list(map(within, bin_of.unique().tolist()))


def weigh(
    model: Model, run: str | Path, spec: EvaluationSpec, *, seed: int, progress: Progress = None
) -> tuple[Text, Measurement]:
    """Return a run's held-out text, and the loss and importance on it; raise `UserError` without an estimator."""
    require_estimator(model.experiment, run, constant=True)
    text = held_out_text(model, run, spec.split, spec.sequences)
    return text, measure(
        model.module, text.tokens, text.maskable, spec, seed=seed, counted=text.counted, progress=progress
    )


def importance_of_run(
    model: Model, run: str | Path, spec: EvaluationSpec, *, seed: int, bands: int = 5, progress: Progress = None
) -> ImportanceResult:
    """Return the quality of a run's importance on its held-out text, and save the result in the run folder."""
    experiment = model.experiment
    text, measurement = weigh(model, run, spec, seed=seed, progress=progress)
    assert text.counts is not None  # the text is the experiment's own
    again = None
    if experiment.parts["estimator"].reads == "x":  # one number for a token, whatever mask hides it
        x = (model.module, text.tokens, text.maskable, spec)
        again = measure(*x, seed=seed + 1, counted=text.counted, progress=progress)
    result = ImportanceResult(
        split=spec.split,
        step=model.step,
        ema=experiment.train.ema_decay > 0,
        estimator=experiment.parts["estimator"].name,
        target=experiment.parts["target"].name if "target" in experiment.kinds else None,
        sequences=len(text.tokens),
        draws=spec.mask_samples,
        seed=seed,
        method=spec.bound.name,
        quality=quality(measurement, text.counts, bands, again),
    )
    result.record(run)
    return result
