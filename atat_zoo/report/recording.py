"""What a report shows and a training does not record: computed once, and kept in the run folder. Imports no torch.

`report/text.json` and `report/replay.json` are of one step. Those of an older one are computed again here; until then
a page shows them, and says of which step they are. The quality of the importance and the frontier, policy bounds
against evaluations, are evaluations like any other.

report/text.json
    format, step, split, seed
    draws                      times that each token is hidden at each rate
    rates                      mask rates, R of them; none for a model whose likelihood is exact, which has one list
    estimator                  its name, or null where no importance tells tokens apart
    importance_depends_on_rate
    texts                      tokens, maskable, surprisal in nats by the counts of the training text; importance in
                               [0, 1] (or null) and loss in nats: a list over the tokens for each rate, null for a token
                               that is never hidden

report/replay.json
    format, step, seed, length, uncertainty ("entropy"), unit ("nats")
    samplers                   name, settings, evaluations of each text, texts
        start                  the given tokens, null for a mask
        frames                 evaluation: network evaluations so far; filled: [position, token] of each; hidden:
                               positions masked again after that; open: [position, entropy of its prediction] of the
                               masks before it, where the model can predict
"""

from __future__ import annotations

import json
import time
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo.errors import NotKept, UserError
from atat_zoo.estimators import weighs_tokens
from atat_zoo.experiment import conflicts_with, from_table
from atat_zoo.registry import Zoo
from atat_zoo.report import recorded
from atat_zoo.run import RunFolder, write_text
from atat_zoo.samplers.named import fitting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atat_zoo.experiment import Experiment
    from atat_zoo.model import Model
    from atat_zoo.samplers import Sampler

    Progress = Callable[[str, int, int], None]

TEXT, REPLAY, IMPORTANCE, FRONTIER = "text", "replay", "importance", "frontier"
TEXTS = 6  # held-out texts
REPLAYS, LONGEST = 3, 128  # texts of a replay, and their tokens at most
# Beside the run's own sampler: the first that fits the model and is another one.
OTHERS = ("ancestral", "entropy_bounded", "left_to_right")
IMPORTANCE_SEQUENCES = 192
FRONTIER_STEPS, FRONTIER_TEXTS, FRONTIER_SEQUENCES = (8, 16, 32), 2, 32


def compute(
    run: str | Path, *, frontier: bool = False, device: str = "cpu", progress: Progress | None = None
) -> dict[str, float]:
    """Compute what a report on a run lacks, and keep it in the run folder.

    What cannot be computed, because there is no model yet for example, is a warning: a report shows what there is.

    Args:
        run: the run folder; of a run that is not finished, the newest model.
        frontier: whether to compute the policy bound of every named sampler, too, which takes the longest.
        device: see `Model.from_run`.
        progress: called with the name of what is computed, the amount done and the amount to do.

    Returns:
        Seconds by the name of what was computed; empty when nothing was missing.

    Raises:
        UserError: when there is no run.
    """
    folder = RunFolder(Path(run))
    folder.table()
    try:
        step = folder.newest()
        lacking = [name for name in missing(run) if name != FRONTIER]
        if frontier and not _complete(folder, step):
            lacking.append(FRONTIER)
        if not lacking:
            return {}
        from atat_zoo.model import Model

        model, seconds = Model.from_run(run, device, step), dict[str, float]()
    except UserError as error:
        warnings.warn(f"nothing is computed for the report: {error}", NotKept, stacklevel=2)
        return {}
    computed: dict[str, Callable[..., object]] = {
        TEXT: record_text,
        REPLAY: record_replay,
        IMPORTANCE: record_importance,
        FRONTIER: record_frontier,
    }
    for name in lacking:
        began = time.perf_counter()
        try:
            computed[name](model, run, progress=progress)
        except UserError as error:
            warnings.warn(f"{run}: no {name} in the report: {error}", NotKept, stacklevel=2)
            continue
        seconds[name] = time.perf_counter() - began
    return seconds


def missing(run: str | Path) -> list[str]:
    """Return what `compute` would compute of the newest model of a run, of text, replay, importance and frontier.

    What is damaged is missing, and a warning says so.

    Raises:
        UserError: when there is no run, or it has no model.
    """
    folder = RunFolder(Path(run))
    step, evaluations = folder.newest(), list(recorded.tables(folder))
    experiment = from_table(folder.table(), where=str(folder.resolved))
    found = {TEXT: recorded.text(folder), REPLAY: recorded.replay(folder)}
    if weighs_tokens(experiment):
        found[IMPORTANCE] = recorded.quality(evaluations)
    lacking = [name for name, table in found.items() if table is None or table["step"] != step]
    if not any(_priced(table) for table in evaluations if table["step"] == step):
        lacking.append(FRONTIER)
    return lacking


def record_text(
    model: Model, run: str | Path, *, texts: int = TEXTS, seed: int | None = None, progress: Progress | None = None
) -> None:
    """Record the importance and the loss of held-out texts, token by token: report/text.json.

    Args:
        model: of `Model.from_run(run)`.
        run: the run folder.
        texts: their number, spread evenly over the split of the experiment's evaluations.
        seed: of the masks; the experiment's own if None.
        progress: see `compute`.

    Raises:
        UserError: when the held-out text is gone, or of another tokenizer, or the file cannot be written.
    """
    import torch

    from atat_zoo.data.manifest import load_counts
    from atat_zoo.evaluation.run import held_out_text
    from atat_zoo.report.text import text_table

    split, seed = model.experiment.evaluation.split, model.experiment.seed if seed is None else seed
    tokens, maskable, data = held_out_text(model, run, split, texts)
    counts = torch.from_numpy(load_counts(data))
    table = text_table(model, tokens, maskable, counts, seed=seed, progress=progress and partial(progress, TEXT))
    _write(run, TEXT, model, {"split": split, "seed": seed, **table})


def record_replay(
    model: Model,
    run: str | Path,
    *,
    samplers: Sequence[Sampler] | None = None,
    texts: int = REPLAYS,
    seed: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Record texts as they unmask, by some samplers from the same seed: report/replay.json.

    Args:
        model: of `Model.from_run(run)`.
        run: the run folder.
        samplers: their specifications; the experiment's own and another one if None.
        texts: of each sampler.
        seed: of the samplers; the experiment's own if None.
        progress: see `compute`.

    Raises:
        UserError: when the guidance does not suit the model, or the file cannot be written.
    """
    from atat_zoo.report.replay import replay_table

    experiment = model.experiment
    samplers, seed = samplers or side_by_side(experiment), experiment.seed if seed is None else seed
    writer, length = experiment.parts["guidance"].guide(model.writer()), min(model.context.length, LONGEST)
    tables = []
    for number, sampler in enumerate(samplers):
        if progress:
            progress(REPLAY, number, len(samplers))
        tables.append(replay_table(writer, sampler, number=texts, length=length, seed=seed))
    about = {"seed": seed, "length": length, "uncertainty": "entropy", "unit": "nats"}
    _write(run, REPLAY, model, {**about, "samplers": tables})


def side_by_side(experiment: Experiment) -> list[Sampler]:
    """Return the sampler of an experiment, and a published one of another name if one fits."""
    own, zoo = experiment.parts["sampler"], Zoo.load()
    others = [zoo.spec("sampler", name) for name in OTHERS if name != own.name]
    return [own, *[each for each in others if not conflicts_with(experiment, {"sampler": each})][:1]]


def record_importance(model: Model, run: str | Path, *, progress: Progress | None = None) -> None:
    """Record the quality of the importance, as `atat importance` does."""
    from atat_zoo.evaluation.importance import importance_of_run

    own: Any = model.experiment.evaluation
    told = progress and partial(progress, IMPORTANCE)
    spec = attrs.evolve(own, sequences=min(own.sequences or IMPORTANCE_SEQUENCES, IMPORTANCE_SEQUENCES))
    importance_of_run(model, run, spec, seed=model.experiment.seed, progress=told)


def record_frontier(model: Model, run: str | Path, *, progress: Progress | None = None) -> None:
    """Record the policy bound of every named sampler at few steps, as `atat bench samplers` does."""
    from atat_zoo.evaluation.sampling import bench

    rows, _ = fitting(model.experiment, FRONTIER_STEPS)
    bench(model, run, None, rows, number=FRONTIER_TEXTS, sequences=FRONTIER_SEQUENCES, progress=progress)


def _write(run: str | Path, name: str, model: Model, table: dict[str, Any]) -> None:
    text = json.dumps({"format": recorded.FORMAT, "step": model.step, **table}, ensure_ascii=False, allow_nan=False)
    write_text(RunFolder(Path(run)).report / f"{name}.json", text + "\n")


def _complete(folder: RunFolder, step: int) -> bool:
    """Return whether a benchmark priced every named sampler that fits the model."""
    experiment = from_table(folder.table(), where=str(folder.resolved))
    every = {name for name, _, _ in fitting(experiment, FRONTIER_STEPS)[0]}
    return any(every <= _priced(table) for table in recorded.tables(folder) if table["step"] == step)


def _priced(table: dict[str, Any]) -> set[str]:
    """Return the names of the samplers whose policy bound a benchmark asked for."""
    with suppress(KeyError, TypeError):
        return {each["name"] for each in table["measured"] if each["policy"] or each["unpriced"]}
    return set()
