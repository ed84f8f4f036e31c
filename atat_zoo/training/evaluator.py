"""The held-out evaluation of a training: when it is, on all ranks, and who is told; rank 0 writes."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from composer import Callback, Logger, State
from composer.utils import dist
from torch import Tensor

from atat_zoo.data.sequences import held_out_sequences
from atat_zoo.evaluation.likelihood import Measurement, measure, summarise
from atat_zoo.evaluation.ngram import NGramNats, measure_ngram
from atat_zoo.evaluation.results.evaluation import BoundValue, Evaluation, MetricValue, method_of
from atat_zoo.evaluation.text import counted_of
from atat_zoo.evaluation.written import Judges, measure_texts
from atat_zoo.experiment import Experiment
from atat_zoo.experiment.runs import RunFolder, write_json
from atat_zoo.generation.model import Model
from atat_zoo.registry import Context
from atat_zoo.system import parsing
from atat_zoo.system.atomic import making_folder
from atat_zoo.training.lifecycle import MovingAverage
from atat_zoo.training.sharding import WholeWeights

EVALUATION = "evaluation.json"  # beside the best model: by which it is that


class Evaluator:
    """Measures the bound on held-out text, on all ranks together, and writes the numbers."""

    def __init__(
        self,
        experiment: Experiment,
        data: Path,
        context: Context,
        folder: RunFolder,
        objective: torch.nn.Module,
        average: MovingAverage | None,
        device: str,
        whole: WholeWeights | None = None,
        base: dict[str, Any] | None = None,
    ) -> None:
        self.experiment, self.context, self.folder, self.device = experiment, context, folder, device
        self.objective, self.average, self.whole = whole.module if whole else objective, average, whole
        self.base = base  # see `Model`
        spec = experiment.evaluation
        self.tokens, self.maskable, self.documents = held_out_sequences(data, spec.split, spec.sequences)
        self.data = data
        self.sequences = min(len(self.tokens), experiment.train.evaluate_sequences or len(self.tokens))
        self.tables: dict[int, NGramNats | None] = {}
        self.judges = Judges(device)

    def __call__(self, step: int, *, final: bool = True) -> Evaluation:
        """Evaluate the current weights (their moving average, if there is one) and write the numbers.

        Before the end, only `train.evaluate_sequences`, under the masks that they have at the end. The numbers are made
        of what all ranks measure on rank 0 alone, which decodes, ranks and has the count table; the others get them.
        """
        spec, rank, ranks = self.experiment.evaluation, dist.get_global_rank(), dist.get_world_size()
        total = len(self.tokens)
        chosen = torch.arange(total if final else self.sequences)
        chosen = chosen * total // len(chosen)
        rows, form = chosen[rank::ranks], self.experiment.data.form
        how: dict[str, Any] = {"seed": self.experiment.seed, "rows": rows, "form": form}
        how["documents"] = None if self.documents is None else self.documents[rows]
        with self._weights():
            own = self.tokens[rows], self.maskable[rows]
            mine = measure(self.objective, *own, spec, counted=counted_of(form, self.context.tokenizer, *own), **how)
            share: dict[str, Any] = {"rank": rank, "ranks": ranks, "judges": self.judges}
            text = self.tokens[chosen], self.maskable[chosen]
            of_texts = measure_texts(self._model(step), *text, spec, seed=self.experiment.seed, **share)
        gathered = dist.all_gather_object(mine) if ranks > 1 else [mine]
        evaluations: list[Any] = [None]
        if rank == 0:
            evaluations[0] = summarise(
                Measurement.join(gathered),
                tokenizer=self.context.tokenizer,
                counts=self.context.counts,
                ngram=self.table(chosen),
                form=form,
                split=spec.split,
                step=step,
                ema=self.average is not None,
                draws=spec.draws,
                seed=self.experiment.seed,
                method=method_of(self.experiment, spec.bound),
                of_texts=of_texts,
            )
        if ranks > 1:
            dist.broadcast_object_list(evaluations)
        evaluation: Evaluation = evaluations[0]
        if rank == 0:
            evaluation.record(self.folder, required=True)
        return evaluation

    def table(self, rows: Tensor) -> NGramNats | None:
        """Return the count table on some of the text under the same masks, which is the same at every step."""
        if len(rows) not in self.tables:
            self.tables[len(rows)] = measure_ngram(
                self.objective,
                self.data,
                self.tokens[rows],
                self.maskable[rows],
                self.experiment.evaluation,
                exact=self.experiment.parts["objective"].exact,
                seed=self.experiment.seed,
                rows=rows,
            )
        return self.tables[len(rows)]

    def write(self, step: int, folder: Path | None) -> None:
        """Write the current weights (their moving average, if there is one) as a model; they stay as they are.

        Ranks without a folder take part in collecting them.
        """
        if folder is None and self.whole is None:
            return
        with self._weights():
            if folder is not None:
                self._model(step).save(folder)

    def keep_best(self, evaluation: Evaluation) -> None:
        """Write the current weights as the best model, unless another one had a lower bound; all ranks must call it."""
        first = dist.get_global_rank() == 0
        found = [first and is_better(evaluation, self.folder)]
        if dist.get_world_size() > 1:
            dist.broadcast_object_list(found)
        if not found[0]:
            return
        with making_folder(self.folder.best, replace=True) if first else nullcontext() as beside:
            self.write(evaluation.step, beside)
            if beside is not None:
                write_json(beside / EVALUATION, evaluation.to_table())

    def _model(self, step: int) -> Model:
        return Model(
            experiment=self.experiment,
            context=self.context,
            tokenizer=self.context.tokenizer,
            module=self.objective,
            step=step,
            base=self.base,
        )

    def save(self, step: int) -> Model | None:
        """Write the final model and return it, on rank 0; all ranks must call it."""
        if dist.get_global_rank() != 0:
            self.write(step, None)
            return None
        with making_folder(self.folder.model, replace=True) as beside:
            self.write(step, beside)
        # With a moving average the module has its training weights again, so load the saved ones.
        return Model.load(self.folder.model, self.device)

    @contextmanager
    def _weights(self) -> Iterator[None]:
        """Use the moving average; and not what is compiled, which has the shapes of a training step alone."""
        eager: Any = torch.compiler.set_stance("force_eager") if self.experiment.train.compile else nullcontext()
        averaged = self.average.swapped() if self.average else nullcontext()
        with eager, averaged, self.whole.gathered() if self.whole else nullcontext():
            yield


def is_better(evaluation: Evaluation, folder: RunFolder) -> bool:
    """Return whether an evaluation has a lower bound than that of the run's best model.

    What was measured otherwise, as before `evaluation.sequences` was changed, counts as none.
    """
    now, before = evaluation.to_table(), dict[str, Any]()
    with suppress(OSError, ValueError, TypeError):
        before = dict(parsing.from_json(parsing.read(folder.best / EVALUATION)))
    name = next(iter(evaluation.bounds))
    value, best = evaluation.bounds[name].nats_per_token, math.inf
    with suppress(KeyError, TypeError):
        if all(before[key] == now[key] for key in ("corpus", "split", "form", "method", "sequences", "draws", "seed")):
            best = float(before["bounds"][name]["nats_per_token"])
    return value < best


@runtime_checkable
class WatchesEvaluations(Protocol):
    """A callback that gets the held-out perplexity of each evaluation on the way; NaN for an objective without one."""

    def evaluated(self, perplexity: float, state: State) -> None:
        """Receive the perplexity."""


class Evaluations(Callback):
    """Evaluates before the first step and every so many until `last`; tells the loggers and callbacks that watch."""

    def __init__(self, every: int, last: int, evaluate: Callable[[int], Evaluation]) -> None:
        self.every, self.last, self.evaluate = every, last, evaluate

    def fit_start(self, state: State, logger: Logger) -> None:
        """Evaluate what is there before anything is learned; a run that is continued has this already."""
        if not int(state.timestamp.batch):
            log_evaluation(logger, self.evaluate(0))

    def batch_end(self, state: State, logger: Logger) -> None:
        """Evaluate if it is time, until the step `last`."""
        step = int(state.timestamp.batch)
        if step % self.every == 0 and step <= self.last:
            evaluation = self.evaluate(step)
            log_evaluation(logger, evaluation)
            perplexity = evaluation.nelbo.value if evaluation.nelbo else math.nan
            for callback in state.callbacks:
                if isinstance(callback, WatchesEvaluations):
                    callback.evaluated(perplexity, state)


def log_evaluation(logger: Logger, evaluation: Evaluation) -> None:
    """Log the exponential of each bound, of which that of `nelbo` is the perplexity, and the value of each metric."""
    found: dict[str, BoundValue | MetricValue] = {**evaluation.bounds, **evaluation.metrics}
    logger.log_metrics({f"{evaluation.split}/{name}": each.value for name, each in found.items()}, evaluation.step)


class PatienceStopper(Callback):
    """Stops after `patience` evaluations without a new best perplexity; a resumed run continues the count."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.best, self.waited = math.inf, 0

    def evaluated(self, perplexity: float, state: State) -> None:
        """Count an evaluation; see `WatchesEvaluations`."""
        self.waited = 0 if perplexity < self.best else self.waited + 1
        self.best = min(self.best, perplexity)
        self._stop(state)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Do not continue a run that was already stopped."""
        self._stop(state)

    def _stop(self, state: State) -> None:
        if self.waited >= self.patience:
            state.stop_training()

    def state_dict(self) -> dict[str, Any]:
        """Return the best perplexity and the count of evaluations since, for the checkpoint."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.best, self.waited = state["best"], state["waited"]
