"""The evaluation protocols of published code, and their effects on the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs
from typing_extensions import override

from atat_zoo.evaluation import progress_of_part
from atat_zoo.evaluation.results.quantity_names import title
from atat_zoo.evaluation.results.task_results import Score
from atat_zoo.evaluation.tasks.held_out import OnText, bound_score, without_special
from atat_zoo.evaluation.tasks.zero_shot import PUBLISHED, published_of
from atat_zoo.experiment import EvaluationSpec, conflicts
from atat_zoo.modeling.bounds import ClippedTBound, ExactKBound
from atat_zoo.registry import component, param
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from atat_zoo.evaluation import Progress
    from atat_zoo.evaluation.held_out_text import Text
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model

Name = Literal["mdlm", "sedd", "bd3lms", "llada"]


@attrs.frozen(kw_only=True)
class PublishedProtocol:
    """The evaluation protocol of code that was published with a paper."""

    source: str  # repository and commit
    special: str  # placement of BOS and EOS, as in `data.special_tokens`
    bound: Any  # bound estimator that determines times and masks
    draws: int = 1  # masks for each sequence
    first_given: bool = False  # whether the first token of a row is visible and not counted
    said: str  # a description of all choices that change the number


# Rows per batch, from the scripts or from reports of those who ran them. The batch size determines the strata.
_BATCH = 16
PROTOCOLS: Mapping[Name, PublishedProtocol] = {
    "mdlm": PublishedProtocol(
        source="kuleshov-group/mdlm, c112c52, mode=ppl_eval",
        special="both",
        bound=ClippedTBound(batch=_BATCH),
        said="an EOS after each text, BOS and EOS at the ends of each row, all counted; one time t ≥ 0.001 per row, "
        "stratified over batches of 16 rows; rows shuffled; an incomplete last row dropped",
    ),
    "sedd": PublishedProtocol(
        source="louaaron/Score-Entropy-Discrete-Diffusion, 0605786",
        special="document",
        bound=ClippedTBound(),
        said="an EOS after each text, which is counted, and no BOS; one independent time t ≥ 0.001 per row; an "
        "incomplete last row dropped",
    ),
    "bd3lms": PublishedProtocol(
        source="kuleshov-group/bd3lms, 1c3e8f4, scripts/zs_ppl",
        special="sequence",
        bound=ClippedTBound(batch=_BATCH, most=1.0),
        first_given=True,
        said="no EOS between texts, BOS and EOS at the ends of each row, with the BOS given and not counted; one time "
        "t ≥ 0.001 per row, stratified over batches of 16 rows; rows shuffled",
    ),
    "llada": PublishedProtocol(
        source="ML-GSAI/LLaDA, b7e6c35, get_log_likelihood.py",
        special="none",
        bound=ExactKBound(),
        draws=128,
        said="exactly k masks, with k spread evenly over 128 samples per row; no BOS and no EOS",
    ),
}


@component
class ProtocolTask(OnText):
    """The number that published evaluation code would print, and variants that show the effects of its protocol.

    `as published` uses the times, masks, framing and counting of that code. `in file order` does not shuffle the rows.
    `framed so, by exact_k` evaluates the same sequences with the estimator `exact_k`. `framed so, without BOS and EOS`
    does not count these tokens. A different framing changes the tokens, so compare different framings per byte, not per
    token.
    """

    name = "protocol"
    summary = "the number that published evaluation code would print, and how much of it is due to the code's protocol"
    refs = ("arXiv:2406.07524", "arXiv:2310.16834", "arXiv:2503.09573", "arXiv:2502.09992")

    protocol: Name = param("mdlm", help="published code whose protocol to follow")
    mask_samples: int = param(4, help="number of masks sampled per sequence by `exact_k`", ge=1)

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a `Problem` if the model reads dialogues, and the conflicts with the published evaluation."""
        if experiment.data.format != "text":
            yield Problem(
                "evaluation.tasks", "protocols are for running text, but this model reads dialogues; leave the task out"
            )
        yield from conflicts(attrs.evolve(experiment, evaluation=self._as_published(experiment)))

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score | str]:
        import math

        import torch

        from atat_zoo.evaluation.held_out_text import byte_counts, digest
        from atat_zoo.evaluation.likelihood import measure

        theirs = PROTOCOLS[self.protocol]
        text = self._rows(model, theirs)
        x, maskable = text.tokens, text.maskable
        of, n, in_order = digest(x, maskable), maskable.sum(1), torch.arange(len(x))
        shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        as_published = self._as_published(model.experiment)
        wanted = {"as published": (as_published, shuffled)}
        if not model.experiment.parts["objective"].exact:
            if getattr(theirs.bound, "batch", 1) > 1:
                wanted["in file order"] = (as_published, in_order)
            wanted["framed so, by exact_k"] = (
                EvaluationSpec(mask_samples=self.mask_samples, batch_size=_BATCH),
                in_order,
            )
        scores: dict[str, Score | str] = {}
        for number, (name, (spec, order)) in enumerate(wanted.items()):
            told = progress_of_part(progress, number * len(x), len(wanted) * len(x))
            found = measure(model.module, x[order], maskable[order], spec, seed=seed, rows=order, progress=told)
            quantity = next(iter(found.contribution))
            if "sedd" in found.contribution and spec is as_published:  # the bound that SEDD's code reports
                quantity = "sedd"
            nats = found.contribution[quantity][order.argsort()]
            figures = published_of(self.corpus) if (self.protocol, name) == ("mdlm", "as published") else None
            scores[name] = bound_score(title(quantity), nats, n, of, dict(zip(PUBLISHED, figures or (), strict=False)))
        # From the last measurement, with our own estimator or the exact likelihood.
        special, kept, rest = without_special(model, text, nats)
        if special.any():
            scores["framed so, without BOS and EOS"] = bound_score(title(quantity), kept, rest, of)
        sizes = byte_counts(model.tokenizer, x, maskable)
        scores["framed so, per byte"] = Score.over("bits per byte", nats.sum(1) / math.log(2), sizes, of=of)
        rows = f"{len(x):,} rows of {x.shape[1]}, {int(n.sum()):,} tokens, {int(special.sum()):,} of them BOS or EOS"
        return scores | {
            "text": f"{self.protocol}: {rows}",
            "protocol": f"{self.protocol}: {theirs.said} ({theirs.source})",
        }

    def _as_published(self, experiment: Experiment) -> EvaluationSpec:
        """Return the settings of the published evaluation; an exact likelihood does not need masks."""
        if experiment.parts["objective"].exact:
            return EvaluationSpec(batch_size=_BATCH)
        theirs = PROTOCOLS[self.protocol]
        return EvaluationSpec(mask_samples=theirs.draws, bound=theirs.bound, batch_size=_BATCH)

    def _rows(self, model: Model, theirs: PublishedProtocol) -> Text:
        """Return the text in complete rows, packed as in the published code."""
        from atat_zoo.data.sequences import corpus_sequences
        from atat_zoo.evaluation.held_out_text import Text

        corpus, length = self.corpus or model.experiment.parts["corpus"], model.context.length
        split, special, limit = self.split_of(corpus), theirs.special, self.sequences
        x, maskable, _ = corpus_sequences(corpus, model.tokenizer, split, length=length, special=special, limit=limit)
        full = maskable.all(1)
        x, maskable = (x[full], maskable[full].clone()) if full.any() else (x, maskable.clone())
        maskable[:, 0] &= not theirs.first_given
        return Text(tokens=x, maskable=maskable, counted=maskable, data=None, split=split)
