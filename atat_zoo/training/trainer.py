"""Training of a validated experiment in a run folder."""

import logging
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import attrs
import torch
from composer import Callback, DataSpec, Trainer
from composer.algorithms import GradientClipping
from composer.utils import dist
from torch import Tensor

from atat_zoo.data import shard_manifest as shards
from atat_zoo.data.build import build
from atat_zoo.data.stream import TokenStream, train_loader
from atat_zoo.diffusion.ngram_prior import load_ngram_prior
from atat_zoo.diffusion.precision import computes_in_bf16
from atat_zoo.evaluation.results.evaluation import Evaluation
from atat_zoo.evaluation.results.store import finite
from atat_zoo.evaluation.results.task_results import TaskResult
from atat_zoo.evaluation.tasks import measure_tasks
from atat_zoo.experiment import Experiment
from atat_zoo.experiment.runs import RunFolder, write_json, write_text
from atat_zoo.experiment.runs.run_folder import Checkpoint
from atat_zoo.generation.model import Model
from atat_zoo.modeling.masking import StepwiseMasking
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context, Zoo
from atat_zoo.system.atomic_files import check_name
from atat_zoo.system.devices import device_name, exact_device
from atat_zoo.system.environment import describe
from atat_zoo.system.errors import UserError, clip
from atat_zoo.system.interruption import Interruption
from atat_zoo.training.checkpoints import Checkpoints, CurrentModel, Loading, asked_to_stop, inert
from atat_zoo.training.composer_model import Progress, SkippedRows, ZooModel, prepare
from atat_zoo.training.cost import peak_flops, utilisation
from atat_zoo.training.ema import MovingAverage
from atat_zoo.training.evaluator import Evaluations, Evaluator, log_evaluation
from atat_zoo.training.initial_weights import InitialWeights
from atat_zoo.training.memory import (
    COMPOSER,
    ZooTrainer,
    check,
    compiles,
    device_of,
    forget_old_shapes,
    keep_freed_memory,
    let_go,
)
from atat_zoo.training.metrics_writer import CallbackValues, MetricsWriter, without_composers_loss
from atat_zoo.training.resumption import cut_back, record, resume_from
from atat_zoo.training.sharding import WholeWeights, shard


class Reporter(Protocol):
    """The interface through which training reports progress; the command line shows bars, `Silent` shows nothing."""

    def building(self, stage: str, done: int, total: int | None) -> None:
        """Report the progress of a stage of building shards; `total` is `None` if it is unknown."""

    def training(self, step: int, steps: int, line: dict[str, Any]) -> None:
        """Report the line of metrics.jsonl after step `step` of `steps`."""

    def working(self, name: str, done: int, total: int | None) -> None:
        """Report the progress of evaluating the task with this name."""

    def message(self, text: str) -> None:
        """Show a message to the user."""


class Silent:
    """A reporter that shows nothing."""

    def building(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    training = working = message = building


@attrs.frozen(kw_only=True, eq=False)
class Result:
    """The result of a training run, either `finished` or interrupted by `signal` after `step` and resumable.

    `evaluation` and `tasks` belong to the final model; only rank 0 has `tasks` and a `model`.
    """

    folder: RunFolder
    finished: bool
    step: int
    signal: int | None = None
    evaluation: Evaluation | None = None
    tasks: Sequence[TaskResult] = ()
    model: Model | None = None


def train(
    experiment: Experiment,
    out: Path,
    *,
    overwrite: bool = False,
    reporter: Reporter | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Train a validated experiment in the run folder `out`; with `overwrite`, replace the run that is there.

    Without `overwrite`, an existing run raises a `UserError`. Composer's `callbacks` run after the built-in ones.
    """
    folder = _folder(out)
    with _locked(folder):
        # Only rank 0 checks: by the time another rank did, rank 0 might already have begun this run.
        if dist.get_global_rank() == 0 and folder.exists and not overwrite:
            raise UserError(
                f"{out} already has a run; continue it with --resume {out}, replace it with --overwrite, "
                "or choose another folder with --out"
            )
        return _run(experiment, folder, reporter or Silent(), callbacks, None, fresh=True)


def resume(
    out: Path,
    *,
    overrides: Sequence[str] = (),
    step: int | None = None,
    reporter: Reporter | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Resume the run in `out` from its newest complete checkpoint, or that of `step`, at exactly the next sample.

    `overrides` can change the number of steps, such as `train.steps=600`, and how a step is computed, such as
    `train.microbatch_size=8`.
    """
    folder, reporter = _folder(out), reporter or Silent()
    folder.require()
    with _locked(folder):
        message = (reporter if dist.get_global_rank() == 0 else Silent()).message
        experiment, last = resume_from(folder, overrides, message, step)
        return _run(experiment, folder, reporter, callbacks, last, fresh=False)


def _folder(out: Path) -> RunFolder:
    """Return a run folder, or raise a `UserError` if Composer could not save in a folder of this name."""
    # Composer fills in braces, and parses a checkpoint's name as a URL, which drops line breaks and fragments.
    if re.search(r"[{}#?\x00-\x1f\x7f-\x9f]|^( |//|[a-z][a-z0-9+.-]*:)", str(out), re.IGNORECASE):
        not_allowed = "braces, #, ?, control characters or a URL prefix, which Composer would interpret"
        problem = f"the name of a run folder must not contain {not_allowed}; choose a different name"
        raise UserError(f"{clip(out)}: {problem}")
    check_name(out)
    return RunFolder(out)


def _locked(folder: RunFolder) -> Any:
    # Rank 0 locks the folder for all ranks; under the launcher, the others end when rank 0 ends.
    return folder.lock() if dist.get_global_rank() == 0 else nullcontext()


def _run(
    experiment: Experiment,
    folder: RunFolder,
    reporter: Reporter,
    callbacks: Sequence[Callback],
    last: Checkpoint | None,
    *,
    fresh: bool,
) -> Result:
    spec, rank, ranks = experiment.train, dist.get_global_rank(), dist.get_world_size()
    if "GROUP_RANK" in os.environ:  # torchrun's name for the variable that Composer needs to load a checkpoint
        os.environ.setdefault("NODE_RANK", os.environ["GROUP_RANK"])
    device = device_of(spec.device)
    check(experiment, device, ranks)
    # A run with a checkpoint no longer needs the run of its initial weights, unless LoRA leaves these unchanged.
    by_lora = experiment.init_from is not None and experiment.parts["backbone"].lora_rank > 0
    initial = InitialWeights.from_experiment(experiment) if fresh else None
    if initial and initial.source.folder.path.resolve() == folder.path.resolve():
        raise UserError(
            f"init_from: {folder.path} would be overwritten by the run that starts from it; choose another --out"
        )
    if device == "cpu":
        keep_freed_memory()
        forget_old_shapes()
    data = build(experiment, progress=reporter.building if rank == 0 else None)
    torch.manual_seed(experiment.seed)
    context = Context(
        vocabulary_size=shards.load(data).vocabulary_size,
        length=experiment.data.length,
        counts=shards.load_counts(data),
        ngram_prior=partial(load_ngram_prior, data),
        steps=spec.steps,
        seed=experiment.seed,
        device=str(exact_device(device)),
        tokenizer=experiment.parts["tokenizer"].load(data),
    )
    masking: Any = experiment.parts["masking"]
    stepwise = isinstance(masking, StepwiseMasking)  # uses a sequence in several training steps
    with _quiet():
        stream = TokenStream(
            data,
            seed=experiment.seed,
            lanes=experiment.data.lanes,
            batch_size=spec.batch_size,
            rank=rank,
            world_size=ranks,
            together=experiment.data.shuffled_shards,
            skip=experiment.data.on_corrupt == "skip",
            transforms=experiment.data.transforms,
            context=context,
            repeats=masking.steps_per_sequence if stepwise else 1,
            spacing=masking.spacing if stepwise else 1,
        )
        loader = train_loader(stream, workers=experiment.data.workers, device=device)
        compiled, sharded = compiles(spec.compile, device), spec.sharding == "full" and ranks > 1
        objective: Any = assemble(experiment, attrs.evolve(context, compiled=compiled, sharded=sharded))
        whole = WholeWeights(objective) if sharded else None
        if compiled:
            compile_objective(objective)
        bf16 = computes_in_bf16(spec.precision, device)
        computes = {"device": device_name(device), "precision": "bf16" if bf16 else "fp32", "ranks": ranks}
        checkpoint = None if fresh else cut_back(folder, last, computes, reporter.message)
        if experiment.init_from is not None and (checkpoint is None or by_lora):
            initial = initial or InitialWeights.again(experiment, folder, last, reporter.message)
            began = initial.load_into(objective)
            if checkpoint is None:
                reporter.message(began)
        kept = initial.kept_by(objective) if initial and by_lora else {}
        base = {f"objective.{name}": weight for name, weight in kept.items()}
        if fresh:
            every = list(objective.parameters())
            trained, of = sum(p.numel() for p in every if p.requires_grad), sum(p.numel() for p in every)
            reporter.message(f"trainable parameters: {trained:,} of {of:,} ({trained / of:.2%})")
            if rank == 0:
                facts = {"computes": computes, "parameters": {"trainable": trained, "all": of}}
                _begin(experiment, folder, facts, initial)
        model = ZooModel(objective, spec.steps, bf16=bf16, detailed=bool(spec.loggers))
        if whole:
            shard(model, device)
        average = MovingAverage(model, spec.ema_decay, device) if spec.ema_decay else None
        current = CurrentModel(
            experiment, context, objective, average, whole, base=initial.base() if initial and base else None
        )
        evaluator = Evaluator(current, data, folder, device)
        interruption = Interruption(partial(asked_to_stop, reporter.message))
        checkpoints = Checkpoints(folder, spec, interruption, current.write, base)
        ours, loggers = _callbacks(model, evaluator, device, reporter)
        ours = [*ours, *callbacks, checkpoints]
        trainer = _trainer(experiment, device, model, loader, ours, loggers, Loading(checkpoint), base)
        done = trainer.state.timestamp.batch.value
        if not fresh and rank == 0:
            record(folder, experiment, done)
        if checkpoint:
            reporter.message(f"continuing {folder.path} after step {done} of {spec.steps}")
        if int(trainer.state.timestamp.batch) < spec.steps:
            with interruption:
                trainer.fit()
        step = int(trainer.state.timestamp.batch)
        evaluation = None if checkpoints.interrupted else evaluator(step)
        if evaluation:
            log_evaluation(trainer.logger, evaluation)
            if spec.keep_best and evaluator.sequences == len(evaluator.tokens):  # else bounds are not comparable
                current.keep_best(evaluation, folder)
        trainer.close()
        let_go(trainer)
        if evaluation is None:
            return Result(folder=folder, finished=False, step=step, signal=interruption.signal)
        saved = current.save(step, folder.model, device)
        tasks: Sequence[TaskResult] = ()
        if saved:
            seed, of = experiment.seed, experiment.evaluation.tasks
            tasks = measure_tasks(of, saved, folder.path, seed=seed, progress=reporter.working)
        return Result(folder=folder, finished=True, step=step, evaluation=evaluation, tasks=tasks, model=saved)


def compile_objective(objective: Any) -> None:
    """Compile the backbone of an objective assembled with `compiled`; the objective compiles its own losses."""
    from torch._dynamo import config as dynamo
    from torch._functorch import config as functorch

    # In torch 2.7, donated buffers make it look for operations that it has removed, so the gradient of dropout fails;
    # with the DDP optimizer, several ranks cannot recompute activations.
    functorch.donated_buffer = dynamo.optimize_ddp = False
    objective.backbone.compile(dynamic=False)


def _begin(experiment: Experiment, folder: RunFolder, facts: dict[str, Any], initial: InitialWeights | None) -> None:
    """Write the first files of a new run; an earlier run is not replaced before this point."""
    source = {"init_from": initial.record()} if initial else {}
    environment = {"seed": experiment.seed, **facts, **source, **describe(Zoo.load().plugins)}
    with folder.replacement() as new:
        write_json(new.environment, environment)
        write_text(new.resolved, experiment.to_toml())


def _callbacks(model: ZooModel, evaluator: Evaluator, device: str, reporter: Reporter) -> tuple[list[Any], list[Any]]:
    """Return the callbacks and the loggers in the order in which they run.

    For each event, Composer runs the callbacks in the order of their list, and then the loggers. At the end of a step:

    1. `Progress` updates the state of the components, so that later callbacks see and save the new state;
    2. `MovingAverage` adds the new weights;
    3. the experiment's callbacks compute their metrics;
    4. `MetricsWriter` collects these metrics, and stops a diverged run before it is evaluated;
    5. `Evaluations` evaluates the EMA, after which a callback may stop training (it also runs before the first step);
    6. the callbacks passed to `train`.

    After all of these, at the event `batch_checkpoint`, `MetricsWriter` writes its line, including the metrics of an
    evaluation at this step, and `Checkpoints` saves the state and stops an interrupted run.
    """
    current, folder = evaluator.current, evaluator.folder
    experiment, spec = current.experiment, current.experiment.train

    def evaluate(step: int) -> Evaluation:
        evaluation = evaluator(step, final=False)
        at = f"step {step}" if step else f"step 0, {_before(experiment)}"
        reporter.message(f"{at}: {evaluation.sentence(len(evaluator.tokens))}")
        if spec.keep_best:
            current.keep_best(evaluation, folder)
        writer.metrics = finite({f"{evaluation.split}/{name}": one.value for name, one in evaluation.metrics.items()})
        return evaluation

    # `_run` evaluates the final model; a curve on fewer sequences needs its own last point.
    last = spec.steps - (evaluator.sequences == len(evaluator.tokens))
    peak = peak_flops(experiment, device, model.bf16)
    skipped = [SkippedRows(reporter.message)] if experiment.data.on_corrupt == "skip" else []
    values = [CallbackValues()] if spec.callbacks or spec.algorithms or skipped else []
    writer = MetricsWriter(
        model,
        folder,
        spec,
        reporter.training,
        *values,
        utilisation=partial(utilisation, experiment, current.context.vocabulary_size, peak, dist.get_world_size()),
        every=spec.evaluate_every if experiment.evaluation.metrics else 0,
    )
    callbacks = [
        Progress(model),
        *skipped,
        *([current.average] if current.average else []),
        *(callback.build() for callback in spec.callbacks),
        writer,
        *([Evaluations(spec.evaluate_every, last, evaluate)] if spec.evaluate_every else []),
    ]
    if spec.loggers:
        folder.logs.mkdir(exist_ok=True)
    loggers = [without_composers_loss(logger.build(folder.logs)) for logger in spec.loggers]
    return callbacks, [*loggers, *values]


def _before(experiment: Experiment) -> str:
    if experiment.init_from is not None:
        return f"weights of {experiment.init_from}"
    counts = experiment.parts["backbone"].ngram_prior
    return "n-gram prior only" if counts else "before training"


def _trainer(
    experiment: Experiment,
    device: str,
    model: ZooModel,
    loader: Any,
    callbacks: list[Any],
    loggers: list[Any],
    loading: Loading,
    base: dict[str, Tensor],
) -> Trainer:
    spec, kind = experiment.train, torch.device(device).type
    optimizer = experiment.parts["optimizer"].build(model)
    clip = [GradientClipping(clipping_type="norm", clipping_threshold=spec.max_grad_norm)] if spec.max_grad_norm else []
    with loading.guarded():
        trainer = ZooTrainer(
            model=model,
            train_dataloader=DataSpec(
                loader,
                batch_transforms=prepare,
                get_num_samples_in_batch=lambda batch: len(batch["tokens"]),
                get_num_tokens_in_batch=lambda batch: batch["tokens"].numel(),
            ),
            optimizers=optimizer,
            schedulers=experiment.parts["schedule"].build(optimizer, spec.steps),
            step_schedulers_every_batch=True,
            max_duration=f"{spec.steps}ba",
            device=COMPOSER[kind],
            precision="amp_bf16" if kind == "cuda" and model.bf16 else "fp32",
            device_train_microbatch_size=spec.rows_at_once(dist.get_world_size()),
            algorithms=[*clip, *(algorithm.build() for algorithm in spec.algorithms)],
            callbacks=[*callbacks, loading],
            loggers=loggers,
            progress_bar=False,
            log_to_console=False,
            run_name=experiment.name,
            seed=experiment.seed % 2**32,
            load_path=str(loading.path) if loading.path else None,
            load_ignore_keys=partial(inert, base=base),
        )
    trainer.logger.log_hyperparameters(experiment.to_table())
    # Composer allows TF32 on a GPU; here fp32 means fp32, in training as in evaluation.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return trainer


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the warnings from Composer and its dependencies, but not those from atat_zoo."""
    with warnings.catch_warnings():
        for module in ("composer", "torch", "torchmetrics", "webdataset"):
            warnings.filterwarnings("ignore", module=rf"{module}(\..*)?")
        logging.getLogger("composer").setLevel(logging.ERROR)
        yield
