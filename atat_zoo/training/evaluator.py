"""Held-out evaluations during training: all ranks run them, rank 0 records the results, and callbacks receive them."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from composer import Callback, Logger, State
from composer.utils import dist
from torch import Tensor

from atat_zoo.data.sequences import held_out_sequences
from atat_zoo.evaluation.held_out_text import counted_of
from atat_zoo.evaluation.likelihood import Measurement, measure, summarise
from atat_zoo.evaluation.ngram_likelihood import NGramPriorNats, measure_ngram_prior
from atat_zoo.evaluation.results.evaluation import BoundValue, Evaluation, MetricValue, method_of
from atat_zoo.evaluation.text_scores import Judges, measure_texts
from atat_zoo.experiment.effects import learns_importance
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.training.checkpoints import CurrentModel


class Evaluator:
    """An evaluator of bounds and metrics on held-out text; all ranks share the work, and rank 0 records the results."""

    def __init__(self, current: CurrentModel, data: Path, folder: RunFolder, device: str) -> None:
        self.current, self.data, self.folder, self.judges = current, data, folder, Judges(device)
        experiment = current.experiment
        spec = experiment.evaluation
        self.tokens, self.maskable, self.documents = held_out_sequences(data, spec.split, spec.sequences)
        self.sequences = min(len(self.tokens), experiment.train.evaluate_sequences or len(self.tokens))
        self.tables: dict[int, NGramPriorNats | None] = {}

    def __call__(self, step: int, *, final: bool = True) -> Evaluation:
        """Evaluate the current model and record the results.

        With `final=False`, only `train.evaluate_sequences` sequences are used, with the same masks as otherwise.
        All ranks must call this method. Rank 0 combines the values of all ranks with those of the n-gram model, and
        sends the results to the other ranks.
        """
        experiment, context = self.current.experiment, self.current.context
        spec, rank, ranks = experiment.evaluation, dist.get_global_rank(), dist.get_world_size()
        total = len(self.tokens)
        chosen = torch.arange(total if final else self.sequences)
        chosen = chosen * total // len(chosen)
        rows, form = chosen[rank::ranks], experiment.data.format
        with self.current.at(step) as model:
            own = self.tokens[rows], self.maskable[rows]
            mine = measure(
                model.module,
                *own,
                spec,
                seed=experiment.seed,
                rows=rows,
                form=form,
                counted=counted_of(form, context.tokenizer, *own),
                documents=None if self.documents is None else self.documents[rows],
            )
            measured = Measurement.join(dist.all_gather_object(mine) if ranks > 1 else [mine])
            # A sampler may need it, and all ranks must generate with the same one.
            model.module.loss_by_mask_rate = measured.loss_by_mask_rate(
                experiment, step, split=spec.split, seed=experiment.seed
            )
            text = self.tokens[chosen], self.maskable[chosen]
            of_texts = measure_texts(
                model, *text, spec, seed=experiment.seed, judges=self.judges, rank=rank, ranks=ranks
            )
        evaluations: list[Any] = [None]
        if rank == 0:
            evaluations[0] = summarise(
                measured,
                tokenizer=context.tokenizer,
                counts=context.counts,
                ngram=self.table(chosen),
                form=form,
                split=spec.split,
                step=step,
                ema=self.current.average is not None,
                draws=spec.mask_samples,
                seed=experiment.seed,
                method=method_of(experiment, spec.bound),
                factorisations=experiment.parts["objective"].factorisations(experiment),
                learned=learns_importance(experiment),
                of_texts=of_texts,
            )
        if ranks > 1:
            dist.broadcast_object_list(evaluations)
        evaluation: Evaluation = evaluations[0]
        if rank == 0:
            evaluation.record(self.folder, required=True)
        return evaluation

    def table(self, rows: Tensor) -> NGramPriorNats | None:
        """Return the NLL of the n-gram model on the held-out sequences `rows`, computed once, or None if that fails."""
        if len(rows) not in self.tables:
            experiment = self.current.experiment
            self.tables[len(rows)] = measure_ngram_prior(
                self.current.module,
                self.data,
                self.tokens[rows],
                self.maskable[rows],
                experiment.evaluation,
                exact=experiment.parts["objective"].exact,
                seed=experiment.seed,
                rows=rows,
            )
        return self.tables[len(rows)]


class Evaluations(Callback):
    """A callback that evaluates before the first step and every `every` steps up to `last`, and logs the results."""

    def __init__(self, every: int, last: int, evaluate: Callable[[int], Evaluation]) -> None:
        self.every, self.last, self.evaluate = every, last, evaluate

    def fit_start(self, state: State, logger: Logger) -> None:
        """Evaluate the initial model; a resumed run already has this evaluation."""
        if not int(state.timestamp.batch):
            log_evaluation(logger, self.evaluate(0))

    def batch_end(self, state: State, logger: Logger) -> None:
        """Evaluate the model if an evaluation is due, and call the callbacks' `evaluated` with its perplexity."""
        step = int(state.timestamp.batch)
        if step % self.every == 0 and step <= self.last:
            evaluation = self.evaluate(step)
            log_evaluation(logger, evaluation)
            perplexity = evaluation.own[1].value
            for callback in state.callbacks:
                if (evaluated := getattr(callback, "evaluated", None)) is not None:  # see `Callback`
                    evaluated(perplexity, state)


def log_evaluation(logger: Logger, evaluation: Evaluation) -> None:
    """Log the exponential of each bound (the perplexity for `nelbo`) and the value of each metric."""
    found: dict[str, BoundValue | MetricValue] = {**evaluation.bounds, **evaluation.metrics}
    logger.log_metrics({f"{evaluation.split}/{name}": each.value for name, each in found.items()}, evaluation.step)


class PatienceStopper(Callback):
    """A callback that stops after `patience` evaluations without a new lowest perplexity, also if training is resumed.

    Composer's `EarlyStopper` reads metrics from Composer's evaluation loop, which does not compute the bound.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.best, self.waited = math.inf, 0

    def evaluated(self, perplexity: float, state: State) -> None:
        """Count an evaluation, and stop training after `patience` of them without a new lowest perplexity."""
        self.waited = 0 if perplexity < self.best else self.waited + 1
        self.best = min(self.best, perplexity)
        self.fit_start(state)

    def fit_start(self, state: State, logger: Logger | None = None) -> None:
        """Stop a resumed run that had already stopped early."""
        if self.waited >= self.patience:
            state.stop_training()

    def state_dict(self) -> dict[str, Any]:
        """Return the best perplexity and the number of evaluations since then, for the checkpoint."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.best, self.waited = state["best"], state["waited"]
