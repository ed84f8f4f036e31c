"""Trained runs measured on a half of the validation split or on the test split, each once.

The halves are fixed by the number of a sequence in its split, whatever the settings of a study. The nats of each
sequence are kept in the run's evaluations/, with the SHA-256 of the weights and of the tokens that they belong to.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import numpy as np
import torch
from torch import Tensor

from atat_zoo import parsing
from atat_zoo.data.build import build
from atat_zoo.data.sequences import held_out
from atat_zoo.errors import UserError
from atat_zoo.evaluation.compare import sizes
from atat_zoo.evaluation.count_table import TableNats
from atat_zoo.evaluation.measuring import measure
from atat_zoo.evaluation.naming import POLICY_BOUND, POLICY_LIKELIHOOD
from atat_zoo.evaluation.perplexity import byte_counts, finite, method_of
from atat_zoo.evaluation.policy import measure_policy
from atat_zoo.evaluation.run import check_evaluation, table_beside
from atat_zoo.model import Model
from atat_zoo.registry.spec import unstructure
from atat_zoo.run import sha256_of, write_json
from atat_zoo.run.model_files import WEIGHTS
from atat_zoo.study.processes import InUse, claimed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from atat_zoo.study.schema import Study, StudyRun

_T = TypeVar("_T")
# Of a split: the number of the first sequence, and the distance to the next.
PARTS = {"selection": (0, 2), "claim": (1, 2), "test": (0, 1)}


def rows_of(part: str, total: int, limit: int) -> Tensor:
    """Return the numbers of the sequences of a part of a split with `total`: at most `limit`, spread evenly; 0: all.

    int64, rising. Even numbers select and odd ones are for claims: no number is in both.
    """
    first, distance = PARTS[part]
    there = np.arange(first, total, distance)
    count = min(limit, len(there)) if limit else len(there)
    return torch.from_numpy(there[np.arange(count) * len(there) // max(1, count)])


@attrs.frozen(kw_only=True, eq=False)
class Measured:
    """A run on the sequences of one part."""

    run: StudyRun
    weights: str  # SHA-256
    text: str  # SHA-256 of the tokens
    step: int
    method: str  # how the bound was estimated; `likelihood` if it is exact
    nats: dict[str, Tensor]  # each bound by name, nats of each sequence, float64 [n]
    count: Tensor  # tokens of each sequence, int64 [n]
    bytes: Tensor  # UTF-8 bytes of each sequence, int64 [n]
    table: TableNats | None  # the count table of its training shards, under the same masks
    parameters: int  # of the entire model
    without_embeddings: int


@attrs.frozen(kw_only=True, eq=False)
class Written:
    """A sampler of a run."""

    run: StudyRun
    sampler: dict[str, Any]  # the specification
    quantity: str  # `policy bound` or `policy likelihood`
    nats: Tensor  # of each sequence, float64 [n]; infinite if the sampler cannot write it
    count: Tensor  # tokens of each sequence, int64 [n]
    nfe: float  # network evaluations for a held-out text, on average
    seconds: float  # for all texts


def measure_all(
    study: Study, runs: Sequence[StudyRun], part: str, *, device: str = "cpu", say: Callable[[str], None] = print
) -> list[Measured]:
    """Measure finished runs on a part of the held-out text; what was measured before is read.

    Raises:
        UserError: when a run cannot be measured so.
    """
    later = []
    for run in runs:  # first those that no other study measures just now
        try:
            with claimed(run):
                _measured(study, run, part, device, say)
        except InUse:
            later.append(run)
    for run in later:
        with claimed(run, wait=True):
            _measured(study, run, part, device, say)
    return [_measured(study, run, part, device, say) for run in runs]


def recorded(study: Study, run: StudyRun, part: str) -> Measured | None:
    """Return the measurement that a run keeps, if it is of its weights and of these settings."""
    path, settings = _place(study, run, part)
    table = _said(path, settings)
    if table is None:
        return None
    try:
        beside = table["count_table"]
        return Measured(
            run=run,
            nats={name: _nats(values) for name, values in table["nats"].items()},
            count=torch.tensor(table["count"]),
            bytes=torch.tensor(table["bytes"]),
            weights=settings["weights"],
            table=None if beside is None else TableNats(**beside | {"nats": _nats(beside["nats"])}),
            **{key: table[key] for key in _KEPT},
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return None  # damaged: it is measured again


def _nats(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


_KEPT = ("text", "step", "method", "parameters", "without_embeddings")


def _place(study: Study, run: StudyRun, part: str) -> tuple[Path, dict[str, Any]]:
    """Return the file of a measurement of bounds, and what it must say of itself."""
    held = study.held_out
    numbers = {key: getattr(held, key) for key in ("sequences", "draws", "seed")}
    return _file(run, part, part=part, **numbers, bound=unstructure(held.bound))


def _measured(study: Study, run: StudyRun, part: str, device: str, say: Callable[[str], None]) -> Measured:
    known = recorded(study, run, part)
    if known is not None:
        return known
    say(f"{run.name}: measuring on the {part} {'split' if part == 'test' else 'half'}")
    path, settings = _place(study, run, part)
    model = Model.from_run(run.path, device)
    spec = study.spec("test" if part == "test" else "validation")
    check_evaluation(model, run.path, spec)
    data = build(model.experiment)
    tokens, maskable = held_out(data, spec.split)
    rows = rows_of(part, len(tokens), spec.sequences)
    if len(rows) < 2:
        raise UserError(
            f"{run.path}: the {part} part of its {spec.split} split has fewer than two sequences; hold out more"
        )
    tokens, maskable = tokens[rows], maskable[rows]
    found = measure(
        model.module,
        tokens,
        maskable,
        rows,
        seed=study.held_out.seed,
        draws=spec.draws,
        batch_size=spec.batch_size,
        bound=spec.bound,
    )
    beside = table_beside(model, data, tokens, maskable, spec, seed=study.held_out.seed, rows=rows)
    total, without = sizes(model.module, model.context.vocabulary_size)
    table = {
        "settings": settings,
        "text": hashlib.sha256(tokens.numpy().tobytes() + maskable.numpy().tobytes()).hexdigest(),
        "step": model.step,
        "count_table": None if beside is None else attrs.asdict(beside) | {"nats": beside.nats.tolist()},
        "method": method_of(model.experiment, spec.bound),
        "parameters": total,
        "without_embeddings": without,
        "rows": rows.tolist(),
        "count": maskable.sum(1).tolist(),
        "bytes": byte_counts(model.tokenizer, tokens, maskable).tolist(),
        "nats": {name: each.sum(1).tolist() for name, each in found.contribution.items()},
    }
    write_json(path, table)
    made = recorded(study, run, part)
    return _read_back(path, made)


def write_all(study: Study, run: StudyRun, *, device: str = "cpu", say: Callable[[str], None] = print) -> list[Written]:
    """Let a finished run write with every sampler, and measure their policy bounds; what was measured before is read.

    The orders of a sequence are a function of the study's mask seed, the same for all samplers and runs. Float32, as
    for every bound; the run's guidance is part of both.
    """
    spec, held = study.samplers, study.held_out
    assert spec is not None
    path, settings = _file(
        run,
        "samplers",
        half=held.half,
        seed=held.seed,
        samplers=[unstructure(sampler) for sampler in spec.each],
        threads=torch.get_num_threads(),
        **{key: getattr(spec, key) for key in ("sequences", "orders", "texts", "repeat")},
    )
    with claimed(run, wait=True):
        found = _written(study, run, path, settings)
        if found is None:
            say(f"{run.name}: writing with {len(spec.each)} samplers")
            write_json(path, {"settings": settings, **_write(study, run, device)})
            found = _written(study, run, path, settings)
    return _read_back(path, found)


def _written(study: Study, run: StudyRun, path: Path, settings: dict[str, Any]) -> list[Written] | None:
    """Return what a run keeps of its samplers, if it is of its weights and of these settings."""
    assert study.samplers is not None
    table = _said(path, settings)
    try:
        return table and [
            Written(
                run=run,
                sampler=settings["samplers"][i],
                quantity=POLICY_LIKELIHOOD if sampler.deterministic else POLICY_BOUND,
                nats=_nats([float("inf") if each is None else each for each in table["nats"][i]]),
                count=torch.tensor(table["count"]),
                nfe=table["nfe"][i],
                seconds=table["seconds"][i],
            )
            for i, sampler in enumerate(study.samplers.each)
        ]
    except (ValueError, LookupError, TypeError):
        return None  # damaged: it is measured again


def _write(study: Study, run: StudyRun, device: str) -> dict[str, Any]:
    spec, held = study.samplers, study.held_out
    assert spec is not None
    model = Model.from_run(run.path, device)
    tokens, maskable = held_out(build(model.experiment), "validation")
    rows = rows_of(held.half, len(tokens), spec.sequences)
    tokens, maskable = tokens[rows], maskable[rows]
    model.sample(1, sampler=spec.each[0])  # the first evaluations of a process are slower
    rounds = [[model.sample(spec.texts, sampler=each).seconds for each in spec.each] for _ in range(spec.repeat)]
    writer = model.experiment.parts["guidance"].guide(model.writer("fp32"))
    options: dict[str, Any] = {"seed": held.seed, "orders": spec.orders, "batch_size": held.batch_size}
    found = [measure_policy(writer, each, tokens, maskable, **options) for each in spec.each]
    return {
        "count": maskable.sum(1).tolist(),
        "nats": [finite(each.nats.tolist()) for each in found],
        "nfe": [float(each.nfe.mean()) for each in found],
        "seconds": [min(times) for times in zip(*rounds, strict=True)],
    }


def _file(run: StudyRun, what: str, **settings: Any) -> tuple[Path, dict[str, Any]]:
    """Return the file of a measurement of a run's weights, and what it must say of itself."""
    settings["weights"] = sha256_of(run.folder.model / WEIGHTS)
    # JSON has no tuples.
    settings = json.loads(json.dumps(settings))
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return run.folder.evaluations / f"study-{what}-{name}.json", settings


def _said(path: Path, settings: dict[str, Any]) -> Any:
    """Return the content of a measurement's file if it can be read and is of these settings, otherwise None."""
    try:
        table = parsing.from_json(path.read_bytes())
        return table if table["settings"] == settings else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _read_back(path: Path, found: _T | None) -> _T:
    """Return what was read from a file that has just been written."""
    if found is None:
        raise UserError(f"{path} cannot be read back; is it being changed by another program?")
    return found
