"""Gaps in held-out texts: how often they are filled with the true words, and at what price."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from atat_zoo.errors import Problem, UserError
from atat_zoo.evaluation.results.naming import NATS_PER_TOKEN
from atat_zoo.evaluation.results.tasks import Score
from atat_zoo.evaluation.tasks import Task, conflicts_of
from atat_zoo.evaluation.tasks.written import sampling_inputs
from atat_zoo.registry import component, param, part

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.evaluation import Progress
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model

SHARE_OF_TEXTS = "share of texts"


@component
class InfillingTask(Task):
    """A gap is cut out of each of n validation texts, at a place drawn by (seed, number of the text).

    `exact match`: the share of texts in which a sampler, with the run's guidance, writes the true text. `price`: −log p
    of the true words by the chain rule from the left, given both sides. `gain`: how much more they cost given the left
    side only, with the right one masked; 0 for a model that reads from the left. `better`: the share of texts in which
    they do.
    """

    name = "infilling"
    summary = "gaps in held-out text: exact matches, the price of the true words, and what the right side gains"
    refs = ("arXiv:2005.05339",)

    gap: int = param(5, help="tokens in a gap", ge=1)
    texts: int = param(256, help="maximum number of texts, spread evenly over the validation text; 0 for all", ge=0)
    sampler: Any = part("sampler", None, help="what fills the gaps; the run's own when absent")

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """See `registry.component`."""
        length = experiment.data.length
        if self.gap > length - 2:
            problem = f"a gap of {self.gap} tokens leaves no text on both sides, and the model has learned {length}"
            yield Problem("evaluation.tasks", f"{problem}; ask for at most {length - 2}")
        if self.sampler is not None:
            yield from conflicts_of(experiment, sampler=self.sampler)

    @override
    def inputs(self, experiment: Experiment) -> Any:
        return sampling_inputs(self.sampler, experiment)

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score]:
        import torch

        from atat_zoo.evaluation.infilling import log_likelihood, place_gaps
        from atat_zoo.evaluation.text import digest, held_out_text, special_ids

        text = held_out_text(model, run, "validation", self.texts)
        starts = place_gaps(text.tokens, text.counted, special_ids(model.tokenizer), self.gap, seed)
        rows = (starts >= 0).nonzero()[:, 0]
        if not len(rows):
            problem = f"none of the {len(starts)} held-out texts has {self.gap} tokens together"
            raise UserError(f"{problem} that are no BOS, EOS or padding; ask for a smaller gap")
        tokens, starts = text.tokens[rows], starts[rows]
        # In float32: rounded further, what is written would depend on how many texts are written at once.
        writer, mask_id = model.writer("fp32"), model.context.mask_id
        sampler = self.sampler or model.experiment.parts["sampler"]
        guided = model.experiment.parts["guidance"].guide(writer)
        sides: dict[bool, list[Tensor]] = {True: [], False: []}
        matches, position = [], torch.arange(tokens.shape[1])
        for some in torch.arange(len(rows)).split(model.experiment.evaluation.batch_size):
            x, at = (each[some].to(model.context.device) for each in (tokens, starts))
            for right, of_side in sides.items():
                found = log_likelihood(writer.denoiser, x, at, self.gap, mask_id=mask_id, right=right)
                of_side.append(found.sum(1).cpu())
            free = (position >= starts[some, None]) & (position < starts[some, None] + self.gap)
            z = x.masked_fill(free.to(x.device), mask_id)
            filled = guided.fill(sampler, z, rows=rows[some].to(x.device), seed=seed, batch_size=len(x)).tokens
            texts = zip(filled.tolist(), x.tolist(), strict=True)
            matches += [model.tokenizer.decode(one) == model.tokenizer.decode(true) for one, true in texts]
            if progress:
                progress(int(some[-1]) + 1, len(rows))
        both, left = torch.cat(sides[True]), torch.cat(sides[False])
        of, words = digest(tokens, starts), torch.full_like(both, self.gap)
        return {
            "exact match": Score.over(SHARE_OF_TEXTS, torch.tensor(matches), of=of),
            "price": Score.over(NATS_PER_TOKEN, -both, words, of=of),
            "gain": Score.over(NATS_PER_TOKEN, both - left, words, of=of),
            "better": Score.over(SHARE_OF_TEXTS, both > left, of=of),
        }
