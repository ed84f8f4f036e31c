"""Trained runs measured on a half of the validation split or on the test split, each once.

The halves are fixed by the number of a sequence in its split, whatever the settings of a study. The nats of each
sequence are kept in the run's evaluations/, with the SHA-256 of the weights and of the tokens that they belong to.
"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
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
from atat_zoo.model.model import device_name, torch_device
from atat_zoo.registry.spec import unstructure
from atat_zoo.run import sha256_of, write_json
from atat_zoo.run.environment import machine
from atat_zoo.run.model_files import WEIGHTS
from atat_zoo.study.processes import InUse, claimed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atat_zoo.study.schema import Study, StudyRun

_T = TypeVar("_T")
# The file of a measurement, and what it must say of itself.
File = tuple[Path, dict[str, Any]]
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
    on: dict[str, Any]  # device, threads, processor and cores that took the seconds


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
    file = _place(study, run, part)
    return _kept(file, partial(_record, run, file[1]))


def _record(run: StudyRun, settings: dict[str, Any], table: dict[str, Any]) -> Measured:
    beside = table["count_table"]
    return Measured(
        run=run,
        nats={name: _nats(values) for name, values in table["nats"].items()},
        count=torch.tensor(table["count"]),
        bytes=torch.tensor(table["bytes"]),
        weights=settings["weights"],
        table=None if beside is None else TableNats(**beside | {"nats": _nats(beside["nats"])}),
        **{key: table[key] for key in _OF_RUN},
    )


def _nats(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


_OF_RUN = ("text", "step", "method", "parameters", "without_embeddings")


def _place(study: Study, run: StudyRun, part: str) -> File:
    """Return the file of a measurement of bounds."""
    held = study.held_out
    numbers = {key: getattr(held, key) for key in ("sequences", "draws", "seed")}
    return _file(run, part, part=part, **numbers, bound=unstructure(held.bound))


def _measured(study: Study, run: StudyRun, part: str, device: str, say: Callable[[str], None]) -> Measured:
    file = _place(study, run, part)

    def measured() -> dict[str, Any]:
        say(f"{run.name}: measuring on the {part} {'split' if part == 'test' else 'half'}")
        return _measure(study, run, part, device)

    return _once(file, partial(_record, run, file[1]), measured)


def _measure(study: Study, run: StudyRun, part: str, device: str) -> dict[str, Any]:
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
    return {
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


def write_all(study: Study, run: StudyRun, *, device: str = "cpu", say: Callable[[str], None] = print) -> list[Written]:
    """Measure a finished run's policy bound and time with every sampler; what was measured before is read.

    The orders of a sequence are a function of the study's mask seed, the same for all samplers and runs. Float32, as
    for every bound; the run's guidance is part of both. Times are kept apart: they are of one machine.
    """
    spec, held = study.samplers, study.held_out
    assert spec is not None
    samplers, here = [unstructure(sampler) for sampler in spec.each], machine()
    here |= {"device": device_name(torch_device(device)), "threads": torch.get_num_threads()}
    on = {key: here[key] for key in ("device", "threads", "processor", "cores")}
    times = _file(run, "times", samplers=samplers, texts=spec.texts, repeat=spec.repeat, on=on)
    orders = {"sequences": spec.sequences, "orders": spec.orders, "half": held.half, "seed": held.seed}
    prices = _file(run, "policy", samplers=samplers, **orders)
    with claimed(run, wait=True):
        seconds = _once(times, partial(_times, len(samplers)), lambda: _time(study, run, device, say))
        priced = _once(prices, partial(_prices, len(samplers)), lambda: _price(study, run, device, say))
    return [
        Written(
            run=run,
            sampler=sampler,
            quantity=POLICY_LIKELIHOOD if spec.each[i].deterministic else POLICY_BOUND,
            nats=priced[i][0],
            nfe=priced[i][1],
            count=priced[i][2],
            seconds=seconds[i],
            on=on,
        )
        for i, sampler in enumerate(samplers)
    ]


def _times(number: int, table: dict[str, Any]) -> list[float]:
    """Return the seconds of so many samplers."""
    if len(table["seconds"]) != number:
        raise ValueError("damaged")
    return [float(each) for each in table["seconds"]]


def _time(study: Study, run: StudyRun, device: str, say: Callable[[str], None]) -> dict[str, Any]:
    spec = study.samplers
    assert spec is not None
    say(f"{run.name}: timing {len(spec.each)} samplers")
    model = Model.from_run(run.path, device)
    model.sample(1, sampler=spec.each[0])  # the first evaluations of a process are slower
    rounds = [[model.sample(spec.texts, sampler=each).seconds for each in spec.each] for _ in range(spec.repeat)]
    return {"seconds": [min(times) for times in zip(*rounds, strict=True)]}


def _prices(number: int, table: dict[str, Any]) -> list[tuple[Tensor, float, Tensor]]:
    """Return of each of so many samplers: the nats of each sequence, evaluations, and the tokens of each sequence."""
    if len(table["nats"]) != number:
        raise ValueError("damaged")
    count = torch.tensor(table["count"])
    nats = [_nats([float("inf") if each is None else each for each in values]) for values in table["nats"]]
    return [(each, float(nfe), count) for each, nfe in zip(nats, table["nfe"], strict=True)]


def _price(study: Study, run: StudyRun, device: str, say: Callable[[str], None]) -> dict[str, Any]:
    spec, held = study.samplers, study.held_out
    assert spec is not None
    say(f"{run.name}: policy bounds of {len(spec.each)} samplers")
    model = Model.from_run(run.path, device)
    tokens, maskable = held_out(build(model.experiment), "validation")
    rows = rows_of(held.half, len(tokens), spec.sequences)
    tokens, maskable = tokens[rows], maskable[rows]
    writer = model.experiment.parts["guidance"].guide(model.writer("fp32"))
    options: dict[str, Any] = {"seed": held.seed, "orders": spec.orders, "batch_size": held.batch_size}
    found = [measure_policy(writer, each, tokens, maskable, **options) for each in spec.each]
    return {
        "count": maskable.sum(1).tolist(),
        "nats": [finite(each.nats.tolist()) for each in found],
        "nfe": [float(each.nfe.mean()) for each in found],
    }


def _file(run: StudyRun, what: str, **settings: Any) -> File:
    """Return the file of a measurement of a run's weights."""
    settings["weights"] = sha256_of(run.folder.model / WEIGHTS)
    # JSON has no tuples.
    settings = json.loads(json.dumps(settings))
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return run.folder.evaluations / f"study-{what}-{name}.json", settings


def _kept(file: File, read: Callable[[dict[str, Any]], _T]) -> _T | None:
    """Return what a file keeps; None if it is absent, of other settings, or damaged."""
    path, settings = file
    try:
        table = parsing.from_json(parsing.read(path))
        return read(table) if table["settings"] == settings else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _once(file: File, read: Callable[[dict[str, Any]], _T], measure: Callable[[], dict[str, Any]]) -> _T:
    """Return what a file keeps, which is measured first unless it is there."""
    found = _kept(file, read)
    if found is None:
        path, settings = file
        write_json(path, {"settings": settings, **measure()})
        found = _kept(file, read)
        if found is None:
            raise UserError(f"{path} cannot be read back; is it being changed by another program?")
    return found
