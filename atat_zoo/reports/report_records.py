"""Results for reports that training does not record, saved in the run folder; only computing them imports torch.

`report/text.json` and `report/replay.json`, declared in `run_records`, contain the step of their model. Results from an
older step are shown with that step until they are computed again. The quality of importance and the frontier (policy
bound against NFE) are saved like other evaluations.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atat_zoo.evaluation.results import store
from atat_zoo.experiment import Experiment, conflicts_with, from_run
from atat_zoo.experiment.effects import weighs_tokens
from atat_zoo.experiment.runs import RunFolder, write_text
from atat_zoo.generation.samplers import Sampler
from atat_zoo.generation.samplers.published_samplers import fitting
from atat_zoo.registry import Zoo
from atat_zoo.registry.spec import evolve
from atat_zoo.reports import run_records
from atat_zoo.system.errors import UnsavedNote, UserError

if TYPE_CHECKING:
    from atat_zoo.generation.model import Model

Progress = Callable[[str, int, int], None]

TEXT, REPLAY, IMPORTANCE, FRONTIER = "text", "replay", "importance", "frontier"
TEXTS = 6  # held-out texts
REPLAYS, LONGEST = 3, 128  # number of texts in a replay, and their maximum number of tokens
# Shown next to the run's own sampler: the first of these that fits the model and differs from it.
OTHERS = ("ancestral", "entropy_bounded", "left_to_right")
IMPORTANCE_SEQUENCES = 192
FRONTIER_STEPS, FRONTIER_TEXTS, FRONTIER_SEQUENCES = (8, 16, 32), 2, 32


def compute(
    run: str | Path, *, frontier: bool = False, device: str = "cpu", progress: Progress | None = None
) -> dict[str, float]:
    """Compute the results that a report on a run lacks, save them in the run folder, and return the seconds of each.

    An unfinished run is evaluated with its newest model. `frontier` adds the policy bound of every named sampler, which
    takes the longest. `progress` is called with a name and the completed and total amount. A warning says why a result
    cannot be computed, for example because the run has no model. Raises UserError if the run does not exist.
    """
    folder = RunFolder(Path(run))
    folder.table()
    try:
        step = folder.newest()
        lacking = [name for name in _missing(folder, step, frontier) if frontier or name != FRONTIER]
        if not lacking:
            return {}
        from atat_zoo.generation.model import Model

        model, seconds = Model.from_run(run, device, step), dict[str, float]()
    except UserError as error:
        warnings.warn(f"no results were computed for the report: {error}", UnsavedNote, stacklevel=2)
        return {}
    computed: dict[str, Callable[..., object]] = {
        TEXT: _record_text,
        REPLAY: _record_replay,
        IMPORTANCE: _record_importance,
        FRONTIER: _record_frontier,
    }
    for name in lacking:
        began = time.perf_counter()
        try:
            computed[name](model, run, progress=progress)
        except UserError as error:
            warnings.warn(f"{run}: no {name} in the report: {error}", UnsavedNote, stacklevel=2)
            continue
        seconds[name] = time.perf_counter() - began
    return seconds


def missing(run: str | Path) -> list[str]:
    """Return the names of the results without a record for the newest model: text, replay, importance or frontier.

    A damaged file is treated as missing, with a warning. Raises UserError if the run has no model.
    """
    folder = RunFolder(Path(run))
    return _missing(folder, folder.newest(), whole=False)


def _missing(folder: RunFolder, step: int, whole: bool) -> list[str]:
    """Return the missing results; a frontier needs one sampler or, with `whole`, every named sampler that fits."""
    experiment, evaluations = from_run(folder.path), list(store.tables(folder))
    found = {name: run_records.kept(folder, name) for name in (TEXT, REPLAY)}
    if weighs_tokens(experiment):
        found[IMPORTANCE] = run_records.quality(evaluations)
    lacking = [name for name, table in found.items() if table is None or table["step"] != step]
    wanted = {name for name, _, _ in fitting(experiment, FRONTIER_STEPS)[0]} if whole else set()
    benches = [_benchmarked(table) for table in evaluations if table["step"] == step]
    return lacking if any(names and wanted <= names for names in benches) else [*lacking, FRONTIER]


def _benchmarked(table: dict[str, Any]) -> set[str]:
    """Return the names of the samplers whose policy bound a benchmark computed."""
    with suppress(KeyError, TypeError):
        return {row["name"] for row in table["measured"] if row["policy"] or row["unpriced"]}
    return set()


def _record_text(model: Model, run: str | Path, progress: Progress | None) -> None:
    """Write report/text.json: the importance and the loss of each token in texts from the experiment's split."""
    from atat_zoo.evaluation.held_out_text import held_out_text
    from atat_zoo.reports.text_views import text_table

    split, seed, told = model.experiment.evaluation.split, model.experiment.seed, progress and partial(progress, TEXT)
    text = held_out_text(model, run, split, TEXTS)
    assert text.counts is not None
    table = text_table(model, text.tokens, text.maskable, text.counts, seed=seed, progress=told)
    _write(run, TEXT, model, {"split": split, "seed": seed, **table})


def _record_replay(model: Model, run: str | Path, progress: Progress | None) -> None:
    """Write report/replay.json: the decoding steps of a few texts for the samplers of `side_by_side`, from one seed."""
    from atat_zoo.reports.text_views import picture_grid, replay_table

    experiment, picture = model.experiment, picture_grid(model.tokenizer, model.context.length)
    length = model.context.length if picture else min(model.context.length, LONGEST)
    samplers, seed = side_by_side(experiment), experiment.seed
    text_generator = experiment.parts["guidance"].guide(model.text_generator())
    tables = []
    for number, sampler in enumerate(samplers):
        if progress:
            progress(REPLAY, number, len(samplers))
        tables.append(replay_table(text_generator, sampler, number=REPLAYS, length=length, seed=seed))
    about = {"seed": seed, "length": length, "picture": picture, "uncertainty": "entropy", "unit": "nats"}
    images = [table.pop("images") for table in tables]
    _write(run, REPLAY, model, {**about, "samplers": tables, "images": images})


def side_by_side(experiment: Experiment) -> list[Sampler]:
    """Return the experiment's sampler, and a published sampler with a different name if one fits."""
    own, zoo = experiment.parts["sampler"], Zoo.load()
    others = [zoo.spec("sampler", name) for name in OTHERS if name != own.name]
    return [own, *[other for other in others if not conflicts_with(experiment, {"sampler": other})][:1]]


def _record_importance(model: Model, run: str | Path, progress: Progress | None) -> None:
    from atat_zoo.evaluation.importance_quality import importance_of_run

    own = model.experiment.evaluation
    told = progress and partial(progress, IMPORTANCE)
    spec = evolve(own, sequences=min(own.sequences or IMPORTANCE_SEQUENCES, IMPORTANCE_SEQUENCES))
    importance_of_run(model, run, spec, seed=model.experiment.seed, progress=told)


def _record_frontier(model: Model, run: str | Path, progress: Progress | None) -> None:
    from atat_zoo.evaluation.sample_quality import bench

    rows, _ = fitting(model.experiment, FRONTIER_STEPS)
    bench(model, run, None, rows, number=FRONTIER_TEXTS, sequences=FRONTIER_SEQUENCES, progress=progress)


def _write(run: str | Path, name: str, model: Model, table: dict[str, Any]) -> None:
    text = json.dumps({"format": run_records.FORMAT, "step": model.step, **table}, ensure_ascii=False, allow_nan=False)
    write_text(RunFolder(Path(run)).report / f"{name}.json", text + "\n")
