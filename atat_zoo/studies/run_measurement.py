"""Evaluate trained runs, once each, on a half of the validation split or on the test split.

The index of a sequence in its split decides its half, in every study. The nats of each sequence are saved in the run's
evaluations/, with the SHA-256 of the weights and of the tokens.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from atat_zoo.data.build import build
from atat_zoo.data.sequences import alone, evenly, held_out_sequences
from atat_zoo.diffusion.bracket import Bracket
from atat_zoo.evaluation.held_out_text import check_evaluation, counted_of, digest
from atat_zoo.evaluation.likelihood import measure
from atat_zoo.evaluation.metrics import reading
from atat_zoo.evaluation.ngram_likelihood import NGramPriorNats
from atat_zoo.evaluation.policy import measure_policy
from atat_zoo.evaluation.results.evaluation import MetricValue
from atat_zoo.evaluation.results.quantity_names import POLICY_BOUND, POLICY_LIKELIHOOD
from atat_zoo.evaluation.results.store import finite, kept, once
from atat_zoo.evaluation.run_comparison import MeasuredRun, numbers_of
from atat_zoo.experiment.runs import RunFolder, sha256_of
from atat_zoo.experiment.runs.model_files import WEIGHTS
from atat_zoo.generation.model import Model
from atat_zoo.generation.samplers import Sampler
from atat_zoo.registry.spec import evolve, unstructure
from atat_zoo.studies.processes import InUse, claimed
from atat_zoo.studies.study_schema import HeldOutSpec, SamplersSpec, Study, StudyRun
from atat_zoo.system.devices import device_name, torch_device
from atat_zoo.system.environment import machine
from atat_zoo.system.errors import UserError

Table = dict[str, Any]
# Where a measurement is saved: the run, the kind of measurement, and the settings that it must contain.
File = tuple[RunFolder, str, Table]
# For each part, the index of the first sequence and the stride. No index is in both halves.
PARTS = {"selection": (0, 2), "claim": (1, 2), "test": (0, 1)}


def rows_of(part: str, total: int, limit: int) -> Tensor:
    """Return at most `limit` (0: all) indices of a part's sequences, evenly spaced, in a split of `total` sequences."""
    first, distance = PARTS[part]
    there = np.arange(first, total, distance)
    return torch.from_numpy(there[evenly(len(there), limit)])


@attrs.frozen(kw_only=True, eq=False)
class Measured(MeasuredRun):
    """The results of evaluating a run on the sequences of one part."""

    run: StudyRun
    weights: str  # SHA-256
    text: str  # SHA-256 of the tokens

    @property
    def compared(self) -> str:
        """The bound that the study compares: the arm's `bound` if the run has it, or else the objective's first."""
        bound = self.run.bound
        return bound if bound is not None and bound in self.nats else self.quantity


@attrs.frozen(kw_only=True, eq=False)
class Written:
    """The policy bounds and the time of a sampler on one run."""

    run: StudyRun
    sampler: dict[str, Any]  # the sampler's parameters
    quantity: str  # `policy bound` or `policy likelihood`
    nats: Tensor  # of each sequence, float64 [n]; infinite if the sampler cannot generate it
    count: Tensor  # tokens of each sequence, int64 [n]
    bracket: Bracket | None = None  # of a sampler whose order is random
    nfe: float  # network evaluations for a held-out text, on average
    seconds: float  # for all texts
    on: dict[str, Any]  # device, threads, processor and cores that took the seconds


def measure_all(
    study: Study, runs: Sequence[StudyRun], part: str, *, device: str = "cpu", say: Callable[[str], None] = print
) -> list[Measured]:
    """Return the measurements of finished runs on a part; reuse saved ones, and wait for those of other processes."""
    measured: dict[str, Measured] = {}
    for wait in (False, True):  # first the runs that no other study is measuring
        for run in [run for run in runs if run.name not in measured]:
            with suppress(InUse), claimed(run, wait=wait):
                file, load = _file_of_bounds(study, run, part), partial(_record, run)
                measured[run.name] = once(*file, load, partial(_measure, study, run, part, device, say))
    return [measured[run.name] for run in runs]


def recorded(study: Study, run: StudyRun, part: str) -> Measured | None:
    """Return the run's saved measurement for its current weights and these settings, or None."""
    return kept(*_file_of_bounds(study, run, part), partial(_record, run))


def _record(run: StudyRun, table: Table) -> Measured:
    beside = table["ngram_prior"]
    return Measured(
        run=run,
        nats={name: torch.tensor(values, dtype=torch.float64) for name, values in table["nats"].items()},
        count=torch.tensor(table["count"]),
        bytes=torch.tensor(table["bytes"]),
        weights=table["settings"]["weights"],
        metrics={
            title: MetricValue(**value | {"value": nan if value["value"] is None else value["value"]})
            for title, value in table.get("metrics", {}).items()
        },
        ngram=beside and NGramPriorNats(**beside | {"nats": torch.tensor(beside["nats"], dtype=torch.float64)}),
        **{key: table[key] for key in ("text", "step", "method", "parameters", "without_embeddings")},
    )


def _file_of_bounds(study: Study, run: StudyRun, part: str) -> File:
    held = study.held_out
    numbers = {"sequences": held.sequences, "draws": held.mask_samples, "seed": held.seed}
    # Without metrics, the name is the same as before metrics were added.
    metrics: Table = {"metrics": [unstructure(metric) for metric in held.metrics]} if held.metrics else {}
    metrics |= {"texts": held.texts} if reading(held.metrics, "texts") else {}
    return file_of(run, part, part=part, **numbers, bound=unstructure(held.bound), **metrics)


def _measure(study: Study, run: StudyRun, part: str, device: str, say: Callable[[str], None]) -> Table:
    say(f"{run.name}: evaluating on the {part} {'split' if part == 'test' else 'half'}")
    model = Model.from_run(run.path, device)
    spec = study.spec("test" if part == "test" else "validation")
    check_evaluation(model, run.path, spec)
    data = build(model.experiment)
    rows, tokens, maskable = text_of(data, part, spec.sequences)
    if len(rows) < 2:
        problem = f"the {part} part of the {spec.split} split has fewer than two sequences"
        raise UserError(f"{run.path}: {problem}; hold out more text")
    numbers = numbers_of(model, data, tokens, maskable, spec, seed=study.held_out.seed, rows=rows)
    beside = numbers.pop("ngram")
    return numbers | {
        "metrics": finite({title: attrs.asdict(value) for title, value in numbers["metrics"].items()}),
        "text": digest(tokens, maskable),
        "ngram_prior": beside and attrs.asdict(beside) | {"nats": beside.nats.tolist()},
        "rows": rows.tolist(),
        **{key: numbers[key].tolist() for key in ("count", "bytes")},
        "nats": {name: nats.tolist() for name, nats in numbers["nats"].items()},
    }


def text_of(data: Path, part: str, limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sequences of a part: indices int64 [n], tokens int64 [n, L] and maskable bool [n, L]."""
    found = held_out_sequences(data, "test" if part == "test" else "validation")
    rows = rows_of(part, len(found.tokens), limit)
    return rows, alone(found)[rows], found.maskable[rows]


def write_all(study: Study, run: StudyRun, *, device: str = "cpu", say: Callable[[str], None] = print) -> list[Written]:
    """Return a finished run's policy bounds and times for all samplers; saved ones are reused.

    The orders of a sequence depend only on the study's mask seed, so they are the same for all samplers and runs.
    All use the run's guidance; bounds use float32. Times are saved separately, because they depend on the machine.
    """
    spec, held = study.samplers, study.held_out
    assert spec is not None
    samplers = [unstructure(sampler) for sampler in spec.each]
    here = machine() | {"device": device_name(torch_device(device)), "threads": torch.get_num_threads()}
    on = {key: here[key] for key in ("device", "threads", "processor", "cores")}
    times = file_of(run, "times", samplers=samplers, texts=spec.texts, repeat=spec.repeat, on=on)
    orders = {"sequences": spec.sequences, "orders": spec.orders, "half": held.half, "seed": held.seed}
    policy = file_of(run, "policy", samplers=samplers, **orders)

    def read_times(table: Table) -> list[float]:
        return [float(seconds) for _, seconds in zip(samplers, table["seconds"], strict=True)]

    def read_bounds(table: Table) -> list[Table]:
        count, bounds = torch.tensor(table["count"]), []
        for sampler, values, ends, nfe in zip(spec.each, table["nats"], table["brackets"], table["nfe"], strict=True):
            of = {"nats": (nats := tensor_of(values)), "bracket": _bracket(sampler, nats, ends), "nfe": float(nfe)}
            bounds.append({**of, "count": count, "quantity": _quantity(sampler)})
        return bounds

    with claimed(run, wait=True):
        seconds = once(*times, read_times, lambda: _time(spec, run, device, say))
        bounds = once(*policy, read_bounds, lambda: _bound(spec, held, run, device, say))
    of_each = zip(samplers, seconds, bounds, strict=True)
    return [Written(run=run, sampler=sampler, seconds=of_all, on=on, **bound) for sampler, of_all, bound in of_each]


def _quantity(sampler: Sampler) -> str:
    return POLICY_LIKELIHOOD if sampler.deterministic else POLICY_BOUND


def _bracket(sampler: Sampler, nats: Tensor, ends: Iterable[Sequence[float | None]]) -> Bracket | None:
    """Return the bracket computed from saved nats, or None for a deterministic order."""
    return None if sampler.deterministic else Bracket(nats, *(tensor_of(end, -inf) for end in ends))


def _time(spec: SamplersSpec, run: StudyRun, device: str, say: Callable[[str], None]) -> Table:
    say(f"{run.name}: timing {len(spec.each)} samplers")
    model = Model.from_run(run.path, device)
    model.sample(1, sampler=spec.each[0])  # the first evaluations of a process are slower
    rounds = [[model.sample(spec.texts, sampler=each).seconds for each in spec.each] for _ in range(spec.repeat)]
    return {"seconds": [min(times) for times in zip(*rounds, strict=True)]}


def _bound(spec: SamplersSpec, held: HeldOutSpec, run: StudyRun, device: str, say: Callable[[str], None]) -> Table:
    say(f"{run.name}: policy bounds of {len(spec.each)} samplers")
    model = Model.from_run(run.path, device)
    _, tokens, maskable = text_of(build(model.experiment), held.half, spec.sequences)
    text_generator = model.experiment.parts["guidance"].guide(model.text_generator("fp32"))
    options: dict[str, Any] = {"seed": held.seed, "orders": spec.orders, "batch_size": held.batch_size}
    measured = [measure_policy(text_generator, sampler, tokens, maskable, **options) for sampler in spec.each]
    return {
        "count": counted_of(model.experiment.data.format, model.tokenizer, tokens, maskable).sum(1).tolist(),
        "nats": [finite(each.nats.tolist()) for each in measured],
        "brackets": [[finite(end.tolist()) for end in each.ends[1:]] for each in measured],
        "nfe": [float(each.nfe.mean()) for each in measured],
    }


# Gaps: whole sequences, second halves and gaps, given the rest; n sequences of L tokens


@attrs.frozen(kw_only=True, eq=False)
class Priced:
    """The NLL of the free tokens, which are predicted, given the others: −log p(free | given) in nats, or a bound."""

    run: StudyRun
    by: dict[str, Any] | None  # the sampler's parameters; None: the bound of the objective
    quantity: str  # `bound`, `policy bound` or `policy likelihood`
    nats: dict[str, Tensor]  # by name of the free part, of each sequence, float64 [n]
    count: dict[str, Tensor]  # of free tokens, int64 [n]
    brackets: dict[str, Bracket | None] = attrs.field(factory=dict)  # of a sampler whose order is random


def free_of(length: int, gaps: Sequence[int]) -> dict[str, Tensor]:
    """Return masks of the predicted positions by name, bool [L]: all, the second half, and gaps in the middle."""
    position = torch.arange(length)
    ends = {"the whole": (0, length), "the second half": (length // 2, length)}
    ends |= {f"a gap of {n}": ((length - n) // 2, (length - n) // 2 + n) for n in gaps}
    return {what: (position >= start) & (position < stop) for what, (start, stop) in ends.items()}


def samplers_of(study: Study, run: StudyRun) -> list[Sampler | None]:
    """Return the samplers that evaluate a run (None for its bound); a model with an exact likelihood uses its own."""
    assert study.gaps is not None
    own: Sampler = run.experiment.parts["sampler"]
    if run.experiment.parts["objective"].exact:
        return [own]
    return [None, *study.gaps.each, *(study.gaps.of_baseline if run.arm == study.baseline else ())]


def price(study: Study, run: StudyRun, *, device: str = "cpu", say: Callable[[str], None] = print) -> list[Priced]:
    """Return a finished run's NLL of gaps under its bound and each sampler; saved values are reused.

    The masks and orders of a sequence depend only on the study's mask seed, so all runs and samplers are paired. A
    sampler with a random order is evaluated on `random_sequences` evenly spaced sequences.
    """
    with claimed(run, wait=True):
        return [_price(study, run, by, device, say) for by in samplers_of(study, run)]


def _price(study: Study, run: StudyRun, sampler: Sampler | None, device: str, say: Callable[[str], None]) -> Priced:
    held, spec = study.held_out, study.gaps
    assert spec is not None
    drawn = sampler is not None and not sampler.deterministic
    n = min(spec.sequences, spec.random_sequences) if drawn else spec.sequences
    by = None if sampler is None else unstructure(sampler)
    settings = {"by": by, "lengths": spec.lengths, "sequences": n, "half": held.half, "seed": held.seed}
    if sampler is None:
        settings |= {"bound": unstructure(held.bound), "draws": held.mask_samples}
    elif drawn:
        settings |= {"orders": spec.orders, "spread_over": spec.sequences}

    def measured() -> Table:
        say(f"{run.name}: NLL of gaps {f'under {sampler.name}' if sampler else 'with its bound'}")
        return _measure_gaps(study, run, sampler, n, device)

    def read(table: Table) -> Priced:
        nats = {what: tensor_of(values) for what, values in table["nats"].items()}
        count = {what: torch.tensor(values) for what, values in table["count"].items()}
        quantity, brackets = "bound", {}
        if sampler:
            quantity = _quantity(sampler)
            brackets = {what: _bracket(sampler, nats[what], ends) for what, ends in table["bracket"].items()}
        return Priced(run=run, by=by, quantity=quantity, nats=nats, count=count, brackets=brackets)

    return once(*file_of(run, "gaps", **settings), read, measured)


def _measure_gaps(study: Study, run: StudyRun, sampler: Sampler | None, n: int, device: str) -> Table:
    held, spec = study.held_out, study.gaps
    assert spec is not None
    model = Model.from_run(run.path, device)
    _, tokens, maskable = text_of(build(model.experiment), held.half, spec.sequences)
    tokens, maskable = spread(tokens, n), spread(maskable, n)
    counted = counted_of(model.experiment.data.format, model.tokenizer, tokens, maskable)
    guided = model.experiment.parts["guidance"].guide(model.text_generator("fp32"))
    options: dict[str, Any] = {"seed": held.seed, "orders": spec.orders, "batch_size": held.batch_size}
    of_bound = evolve(study.spec("validation"), metrics=())
    table: Table = {"nats": {}, "count": {}, "bracket": {}}
    for what, free in free_of(tokens.shape[1], spec.lengths).items():
        among = free & maskable
        if sampler:
            priced = measure_policy(guided, sampler, tokens, among, **options)
            nats = priced.nats
            table["bracket"][what] = [finite(ends.tolist()) for ends in priced.ends[1:]]
        else:
            measured = measure(model.module, tokens, among, of_bound, seed=held.seed)
            nats = next(iter(measured.contribution.values())).sum(1)
        table["nats"][what] = finite(nats.tolist())
        table["count"][what] = (free & counted).sum(1).tolist()
    return table


def spread(values: Tensor, n: int) -> Tensor:
    """Return the values of the n evenly spaced sequences on which samplers with random orders are evaluated."""
    return values[evenly(len(values), n)]


def tensor_of(values: Sequence[float | None], infinite: float = inf) -> Tensor:
    """Return saved nats as float64 [n]; None, saved for lack of an infinity in JSON, becomes `infinite`."""
    return torch.tensor([infinite if value is None else value for value in values], dtype=torch.float64)


def file_of(run: StudyRun, what: str, **settings: Any) -> File:
    """Return the `File` with which `results.store` saves and finds a measurement of a run's current weights."""
    return run.folder, f"study-{what}", settings | {"weights": sha256_of(run.folder.model / WEIGHTS)}
