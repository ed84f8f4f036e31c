"""A task that predicts the last token of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.evaluation.results.task_results import Score
from atat_zoo.evaluation.tasks import Task
from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from pathlib import Path

    from atat_zoo import Model
    from atat_zoo.evaluation import Progress

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderTask(Task):
    """Accuracy of predicting the last token of a held-out text, without padding, from all its other tokens."""

    name = "placeholder"
    summary = "accuracy of predicting the last token of a sequence"
    refs = ()

    texts: int = param(64, help="maximum number of held-out sequences; 0 for all", ge=0)

    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score]:
        """Return the accuracy as the score `last token`; the seed has no effect, because nothing is sampled."""
        import torch

        from atat_zoo.evaluation.held_out_text import digest, held_out_text

        text = held_out_text(model, run, "validation", self.texts)
        denoiser, mask_id, hits = model.text_generator().denoiser, model.context.mask_id, []
        last = text.counted & (text.counted.cumsum(1) == text.counted.sum(1, keepdim=True))
        rows = torch.arange(len(last)).split(model.experiment.evaluation.batch_size)
        for some in rows:
            tokens, where = text.tokens[some].to(model.context.device), last[some].to(model.context.device)
            with torch.no_grad():
                log_probs = denoiser(tokens.masked_fill(where, mask_id), None, where)  # [n, V]
            hits.append((log_probs.argmax(-1) == tokens[where]).cpu())
            if progress:
                progress(int(some[-1]) + 1, len(last))
        return {"last token": Score.over("share of texts", torch.cat(hits), of=digest(text.tokens, last))}


@hookimpl
def atat_zoo_task() -> list[type]:
    """Return the tasks in this package."""
    return [PlaceholderTask]
