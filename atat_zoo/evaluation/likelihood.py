"""The NLL of held-out text, or bounds on it: the contribution of each token to each bound of an objective, in nats.

`evaluate_run` evaluates a run and saves its perplexity, exp(Σ NELBO / Σ tokens); see docs/explanation/mathematics.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atat_zoo.data.shard_manifest import load_counts
from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.diffusion.likelihood_bounds import average
from atat_zoo.diffusion.loss_by_mask_rate import LossByMaskRate
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.diffusion.statistics import rank_within, ratio, spearman, spearman_by_chance
from atat_zoo.evaluation import Progress, batches
from atat_zoo.evaluation.held_out_text import Text, byte_counts, special_ids, text_of
from atat_zoo.evaluation.metrics import built, reading
from atat_zoo.evaluation.ngram_likelihood import NGramPriorNats, figure, measure_ngram_prior
from atat_zoo.evaluation.results.evaluation import LIKELIHOOD, BoundValue, Evaluation, MetricValue, method_of
from atat_zoo.evaluation.results.quantity_names import ANSWERS, NELBO, exponential
from atat_zoo.evaluation.results.store import finite
from atat_zoo.evaluation.text_scores import measure_texts
from atat_zoo.experiment import EvaluationSpec, Experiment
from atat_zoo.experiment.effects import learns_importance, masks_uniformly
from atat_zoo.generation.model import Model
from atat_zoo.modeling.bounds import Bound
from atat_zoo.system.devices import exact_device
from atat_zoo.system.errors import UserError

_WORD = re.compile(r"(?<=\s)\S")


@attrs.frozen(kw_only=True, eq=False)
class Measurement:
    """The bounds, losses, importance and metrics of a model on n sequences of L tokens."""

    rows: Tensor  # index of each sequence in the held-out set, int64 [n]
    tokens: Tensor  # int64 [n, L]
    maskable: Tensor  # bool [n, L]
    counted: Tensor  # bool [n, L], the tokens over which metrics are averaged
    contribution: Mapping[str, Tensor]  # by bound name, each token's contribution in nats, float64 [n, L]
    token_loss: Tensor  # cross-entropy averaged over the draws that masked the token, NaN if none did, float64 [n, L]
    #: With an estimator, the `loss` and the `entropy` of the prediction, in nats, and the `importance` of each token
    #: under each of K masks, float32 [n, K, L], NaN where not masked; otherwise empty
    under_masks: Mapping[str, Tensor] = attrs.field(factory=dict)
    metrics: Mapping[str, MetricValue] = attrs.field(factory=dict)  # by title, over all processes
    #: the number of tokens under each of K masks and the sum of their losses in nats, float64 [n, 2, K], or empty
    of_masks: Tensor = attrs.field(factory=lambda: torch.zeros(0, dtype=torch.float64))

    @property
    def importance(self) -> Tensor | None:
        """Importance averaged over the masks that hid a token, [n, L], NaN if none did; None without an estimator."""
        return self.under_masks["importance"].nanmean(1) if self.under_masks else None

    def masked_tokens(self) -> MaskedTokens:
        """Return the counted tokens under each mask that hid them; the model must have an importance estimator."""
        loss, counted = self.under_masks["loss"], self.counted[:, None]
        seen = counted & loss.isfinite()
        # The rank is computed in float32: the order of losses that differ by less than its resolution does not matter.
        ranks = rank_within(loss.nan_to_num().flatten(0, 1), seen.flatten(0, 1))[0].view(loss.shape)
        return MaskedTokens(
            loss=loss[seen].double(),
            importance=self.under_masks["importance"][seen].double(),
            entropy=self.under_masks["entropy"][seen].double(),
            rank=ranks[seen].double(),
            token=self.tokens[:, None].expand(loss.shape)[seen],
            sequence=seen.nonzero()[:, 0],
        )

    def loss_by_mask_rate(self, experiment: Experiment, step: int, **facts: Any) -> LossByMaskRate | None:
        """Return the mean loss of a masked token at each mask rate; None if there are no uniformly random masks."""
        if not (len(self.of_masks) and masks_uniformly(experiment)):
            return None
        of = {"sequences": self.of_masks.shape[0], "masks": self.of_masks.shape[2], **facts}
        masked, loss = self.of_masks.unbind(1)
        return LossByMaskRate.fit(masked, loss, self.tokens.shape[1], step=step, measured_on=of)

    def refuse_nan(self, name: str) -> Measurement:
        """Return this measurement, or raise a `UserError` that names the model if the NLL of a sequence is NaN."""
        for bound, nats in self.contribution.items():
            if count := int(nats.sum(1).isnan().sum()):
                raise UserError(
                    f"{name}: the bound {bound} is NaN for {count} of {len(nats)} sequences, so the weights may be "
                    "damaged or too large for their precision; evaluate another model"
                )
        return self

    @staticmethod
    def join(pieces: Sequence[Measurement]) -> Measurement:
        """Return the measurements of several processes joined in the order of their rows."""
        order = torch.cat([p.rows for p in pieces]).argsort()

        def joined(values: list[Any]) -> Any:
            if isinstance(values[0], dict):  # a process without rows has no bounds
                names = max(values, key=len)
                return {name: joined([value[name] for value in values if name in value]) for name in names}
            return None if values[0] is None else torch.cat(values)[order]

        # The metrics already cover all processes.
        fields = [f.name for f in attrs.fields(Measurement) if f.name != "metrics"]
        return attrs.evolve(pieces[0], **{name: joined([getattr(p, name) for p in pieces]) for name in fields})


@attrs.frozen(kw_only=True, eq=False)
class MaskedTokens:
    """N masked tokens of held-out sequences; a token counts once for each mask that hides it. All fields are [N]."""

    loss: Tensor  # cross-entropy in nats
    importance: Tensor  # in [0, 1]
    entropy: Tensor  # of the prediction, in nats
    rank: Tensor  # of the loss among the tokens of the sequence that the mask hides, (rank + ½)/n
    token: Tensor  # its id, int64
    sequence: Tensor  # the index of its sequence, int64, ascending


@torch.no_grad()
def measure(
    module: Any,
    tokens: Tensor,
    maskable: Tensor,
    spec: EvaluationSpec,
    *,
    seed: int,
    rows: Tensor | None = None,
    form: str = "text",
    counted: Tensor | None = None,
    documents: Tensor | None = None,
    progress: Progress = None,
) -> Measurement:
    """Return the `Measurement` of an `ObjectiveModule` on sequences: tokens int64 [n, L] and maskable bool [n, L].

    The masks are a function of (seed, row), and therefore the same for every model, number of processes and batch size.
    `rows` are the indices of the sequences in the held-out set, int64 [n] (default: 0 … n−1). The metrics of `spec` are
    computed from predictions under the same masks and combined over the process group, so every process must call
    this function. The bound `nelbo` is named `answers` if `form`, which is data.format, is `chat`. `counted` and
    `documents` are fields of `Text`; without `counted`, every maskable token is counted.
    """
    rows = torch.arange(len(tokens)) if rows is None else rows
    counted = maskable if counted is None else counted
    draws, bound = spec.mask_samples, spec.bound
    training, device = module.training, exact_device(next(module.parameters()).device)
    denoiser = module.denoiser()
    module.eval()
    metrics = None
    if of_predictions := reading(spec.metrics, "predictions"):
        # Importing torchmetrics takes seconds.
        from atat_zoo.evaluation.metric_states import Metrics

        metrics = Metrics(built(of_predictions), device)
    contribution: dict[str, list[Tensor]] = {}
    losses: list[Tensor] = []
    of_masks: list[Tensor] = []
    under_masks: dict[str, list[Tensor]] = {}
    try:
        for some in batches(len(tokens), spec.batch_size, progress):
            x, of_text = tokens[some].to(device), maskable[some].to(device)
            keys = sequence_keys(seed, "evaluation", rows[some].to(device))
            optional: dict[str, Any] = {}  # an objective may accept none of them
            if metrics is not None:
                optional["observe"] = metrics.observer(rows[some], counted[some])
            if documents is not None:
                optional["documents"] = documents[some].to(device)
            if denoiser.estimates_importance:
                optional["difficulty"] = True
            estimates = module.bound(x, of_text, keys, draws, bound, **optional)
            of_hidden, entropy = (estimates.pop(name, None) for name in ("importance", "entropy"))
            for name, estimate in estimates.items():
                named = ANSWERS if (form, name) == ("chat", NELBO) else name
                contribution.setdefault(named, []).append(estimate.contribution.cpu())
            # The losses of the first bound, which is the bound under uniform masking if that was estimated.
            estimate = next(iter(estimates.values()))
            losses.append((estimate.loss_sum / estimate.loss_count).cpu())
            if estimate.of_masks is not None:
                of_masks.append(torch.stack([each.double() for each in estimate.of_masks], 1).cpu())
            if denoiser.estimates_importance:
                if of_hidden is not None:
                    importance = of_hidden.each
                elif denoiser.importance_reads == "z":
                    importance = _importance_when_hidden(module, x, of_text, keys, draws, bound)
                else:
                    # A time-conditioned estimator is evaluated at the middle of the diffusion.
                    t = torch.full((len(x),), 0.5, device=device)
                    importance = (
                        module.importance(x, of_text, t).float()[:, None].where(~estimate.each.isnan(), torch.nan)
                    )
                for name, each in (("loss", estimate.each), ("entropy", entropy.each), ("importance", importance)):
                    under_masks.setdefault(name, []).append(each.cpu())
    finally:
        module.train(training)
    # A process has no rows if there are more processes than sequences.
    if metrics is not None and not len(tokens):
        metrics.show_nothing(module.context.vocabulary_size)
    empty = torch.zeros(0, tokens.shape[1], dtype=torch.float64)
    return Measurement(
        rows=rows,
        tokens=tokens,
        maskable=maskable,
        counted=counted,
        contribution={name: torch.cat(values) for name, values in contribution.items()},
        token_loss=torch.cat([empty, *losses]),
        under_masks={name: torch.cat(values) for name, values in under_masks.items()},
        metrics={} if metrics is None else metrics.values(),
        of_masks=torch.cat([empty[:, 0], *of_masks]),
    )


def _importance_when_hidden(module: Any, x: Tensor, maskable: Tensor, keys: Tensor, draws: int, bound: Bound) -> Any:
    """Return each token's importance under each mask, float32 [n, K, L]; NaN where it is not masked."""

    def at_masked(z: Tensor, t: Tensor | None, masked: Tensor, x: Tensor) -> dict[str, Tensor]:
        return {"importance": module.importance(z, maskable, t)[masked]}

    masks = module.masks(maskable, keys, draws, bound)
    return average(at_masked, x, masks, module.denoiser().mask_id, keep=True)["importance"].each


def bound_value(nats: Tensor, n: Tensor, sizes: Tensor, factorisation: str = "") -> BoundValue:
    """Return a bound per token and per byte, given the nats, counted tokens and bytes of each sequence, [n]."""
    per_token, error = ratio(nats, n)
    value, (bits, of_bits) = exponential(per_token), ratio(nats / math.log(2), sizes)
    return BoundValue(
        nats_per_token=per_token,
        value=value,
        stderr=value * error,
        bits_per_byte=bits,
        bits_per_byte_stderr=of_bits,
        factorisation=factorisation,
    )


def summarise(
    measured: Measurement,
    *,
    tokenizer: TokenizerModel,
    counts: NDArray[np.int64] | None,
    split: str,
    step: int,
    ema: bool,
    seed: int,
    draws: int,
    ngram: NGramPriorNats | None = None,
    method: str = "exact_k",
    factorisations: Mapping[str, str] | None = None,
    learned: bool = False,
    form: str = "text",
    corpus: str = "",
    of_texts: Mapping[str, MetricValue] | None = None,
) -> Evaluation:
    """Return the `Evaluation` of a measurement: its bounds, metrics and baselines, and its settings.

    `counts` are the counts of the training tokens by id, int64 [vocabulary size], if known. `ngram` is measured on the
    same sequences and masks. `of_texts` are the metrics of generated texts, and `factorisations` are those of
    `Objective.factorisations`. `learned` tells whether importance is learned. The others are fields of `Evaluation`.
    """
    x, maskable, per = measured.tokens, measured.maskable, measured.counted
    n = per.sum(1)
    sizes = byte_counts(tokenizer, x, maskable)
    texts = [tokenizer.decode(row[there].tolist()) for row, there in zip(x, maskable, strict=True)]
    characters, words = sum(map(len, texts)), sum(len(_WORD.findall(text)) for text in texts)
    of_text = maskable & ~torch.isin(x, torch.tensor(special_ids(tokenizer), dtype=x.dtype))
    named = factorisations or {}
    bounds = {
        name: bound_value(each.sum(1), n, sizes, named.get(name, "")) for name, each in measured.contribution.items()
    }

    without_special = per_character = per_word = None
    if NELBO in bounds:
        nelbo = measured.contribution[NELBO]
        without_special = exponential(float((nelbo * of_text).sum() / of_text.sum()))
        per_character = float(nelbo.sum()) / math.log(2) / characters if characters else None
        per_word = exponential(float(nelbo.sum()) / words) if words else None
    first = next(iter(measured.contribution.values()))  # under the masks that the n-gram model is measured with
    unigram = by_chance = None
    if counts is not None:
        prior = torch.from_numpy(counts).double() + 1.0
        unigram = math.exp(-float((prior / prior.sum()).log()[x[per]].mean()))
    masked = measured.masked_tokens() if measured.under_masks else None
    if masked and learned:
        by_chance = finite(spearman_by_chance(masked.token, masked.loss))
    rhos = {name: finite(rho) for name, rho in loss_correlations(masked, counts).items()} if masked else {}
    return Evaluation(
        split=split,
        step=step,
        ema=ema,
        seed=seed,
        corpus=corpus,
        form=form,
        method=method,
        sequences=len(x),
        draws=0 if method == LIKELIHOOD else draws,
        tokens=int(n.sum()),
        special_tokens=int(n.sum() - of_text.sum()),
        padding=int((~per).sum()),
        bytes=int(sizes.sum()),
        characters=characters,
        words=words,
        bounds=bounds,
        perplexity_without_special=without_special,
        bits_per_character=per_character,
        perplexity_per_word=per_word,
        unigram_perplexity=unigram,
        ngram_prior=None if ngram is None else figure(ngram, first.sum(1), n),
        metrics={**measured.metrics, **(of_texts or {})},
        importance_spearman=rhos.get("importance"),
        importance_chance=by_chance,
        frequency_spearman=rhos.get("frequency"),
        entropy_spearman=rhos.get("entropy"),
    )


def loss_correlations(masked: MaskedTokens, counts: NDArray[np.int64] | None) -> dict[str, float]:
    """Return Spearman's ρ of each predictor of the loss with the loss of masked tokens.

    The predictors are the `importance`, the `entropy` of the prediction and, given the training `counts` by id,
    the `frequency` of the token, negated because rare tokens have high losses.
    """
    predictors = {"importance": masked.importance, "entropy": masked.entropy}
    if counts is not None:  # rare tokens are hard
        predictors["frequency"] = -torch.from_numpy(counts)[masked.token].double()
    return {name: spearman(values, masked.loss) for name, values in predictors.items()}


def evaluate_run(
    model: Model,
    run: str | Path,
    spec: EvaluationSpec,
    *,
    seed: int,
    text: Text | None = None,
    progress: Progress = None,
) -> Evaluation:
    """Evaluate `model`, which is `Model.from_run(run)`, on held-out text; save the result in the run and return it.

    With the same seed, two models get the same masks. `text` comes from `text_of` (default: the run's held-out text).
    """
    text = text or text_of(model, run, spec, packed=True)
    method, x = method_of(model.experiment, spec.bound), (text.tokens, text.maskable)
    form = model.experiment.data.format
    counts = ngram = None
    if text.data is not None:
        counts = load_counts(text.data)
        ngram = measure_ngram_prior(model.module, text.data, *x, spec, exact=method == LIKELIHOOD, seed=seed)
    measured = measure(
        *(model.module, *x, spec),
        seed=seed,
        form=form,
        counted=text.counted,
        documents=text.documents,
        progress=progress,
    ).refuse_nan(str(run))
    if not text.corpus and model.module.loss_by_mask_rate is None:
        curve = measured.loss_by_mask_rate(model.experiment, model.step, split=text.split, seed=seed)
        model.keep_loss_by_mask_rate(curve)
    evaluation = summarise(
        measured,
        tokenizer=model.tokenizer,
        counts=counts,
        ngram=ngram,
        split=text.split,
        step=model.step,
        ema=model.experiment.train.ema_decay > 0,
        draws=spec.mask_samples,
        seed=seed,
        method=method,
        factorisations=model.experiment.parts["objective"].factorisations(model.experiment),
        learned=learns_importance(model.experiment),
        form=form,
        corpus=text.corpus,
        of_texts=measure_texts(model, *x, spec, seed=seed),
    )
    evaluation.record(run)
    return evaluation
