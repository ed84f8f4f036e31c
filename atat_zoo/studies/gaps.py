"""What is paid for tokens if the rest is given: whole sequences, second halves and gaps, by bounds and samplers.

A price is −log p(free | given), nats, or a bound on it: that of the run's objective, or the policy bound of a sampler.
Legend: n sequences of L tokens.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

import attrs
import torch
from torch import Tensor

from atat_zoo.data.build import build
from atat_zoo.data.sequences import evenly
from atat_zoo.evaluation.likelihood import measure
from atat_zoo.evaluation.policy import measure_policy
from atat_zoo.evaluation.results.naming import POLICY_BOUND, POLICY_LIKELIHOOD, exponential
from atat_zoo.evaluation.results.store import finite, once
from atat_zoo.evaluation.text import counted_of
from atat_zoo.generation.model import Model
from atat_zoo.generation.samplers import Sampler
from atat_zoo.modeling.diffusion.bracket import Bracket
from atat_zoo.registry.spec import unstructure
from atat_zoo.studies.measuring import Table, file_of, tensor_of, text_of
from atat_zoo.studies.processes import claimed
from atat_zoo.studies.results import bracket_table, kept_nats, paired_over
from atat_zoo.studies.schema import GapsSpec, Study, StudyRun


@attrs.frozen(kw_only=True, eq=False)
class Priced:
    """What a run pays for the same sequences, by one bound or one sampler."""

    run: StudyRun
    by: dict[str, Any] | None  # the sampler's specification; None: the bound of the objective
    quantity: str  # `bound`, `policy bound` or `policy likelihood`
    nats: dict[str, Tensor]  # by what is free, of each sequence, float64 [n]
    count: dict[str, Tensor]  # of free tokens, int64 [n]
    bracket: dict[str, Bracket] = attrs.field(factory=dict)  # of a sampler whose order is random


def free_of(length: int, gaps: Sequence[int]) -> dict[str, Tensor]:
    """Return which positions are free, bool [L], by name: all, the second half, gaps in the middle."""
    position = torch.arange(length)
    ends = {"the whole": (0, length), "the second half": (length // 2, length)}
    ends |= {f"a gap of {n}": ((length - n) // 2, (length - n) // 2 + n) for n in gaps}
    return {what: (position >= start) & (position < stop) for what, (start, stop) in ends.items()}


def samplers_of(study: Study, run: StudyRun) -> list[Sampler | None]:
    """Return by what a run is priced; a model of one order along it, by its own sampler, and no bound."""
    assert study.gaps is not None
    own: Sampler = run.experiment.parts["sampler"]
    if run.experiment.parts["objective"].exact:
        return [own]
    return [None, *study.gaps.each, *(study.gaps.of_baseline if run.arm == study.baseline else ())]


def price(study: Study, run: StudyRun, *, device: str = "cpu", say: Callable[[str], None] = print) -> list[Priced]:
    """Return what a finished run pays by its bound and by each sampler; what was measured before is read.

    Masks and orders of a sequence are a function of the study's mask seed, so all runs and samplers are paired. A
    sampler whose order is random pays for `random_sequences` of them, spread evenly.
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
        settings |= {"bound": unstructure(held.bound), "draws": held.draws}
    elif drawn:
        settings |= {"orders": spec.orders, "spread_over": spec.sequences}

    def measured() -> Table:
        say(f"{run.name}: prices of gaps {f'by {sampler.name}' if sampler else 'by its bound'}")
        return _measure(study, spec, run, sampler, n, device)

    def read(table: Table) -> Priced:
        nats = {what: tensor_of(values) for what, values in table["nats"].items()}
        count = {what: torch.tensor(values) for what, values in table["count"].items()}
        bracket = {
            what: Bracket(nats[what], *(tensor_of(values, -inf) for values in ends))
            for what, ends in (table["bracket"].items() if drawn else ())
        }
        likelihood = POLICY_BOUND if drawn else POLICY_LIKELIHOOD
        quantity = likelihood if sampler else "bound"
        return Priced(run=run, by=by, quantity=quantity, nats=nats, count=count, bracket=bracket)

    return once(*file_of(run, "gaps", **settings), read, measured)


def _measure(study: Study, spec: GapsSpec, run: StudyRun, sampler: Sampler | None, n: int, device: str) -> Table:
    held = study.held_out
    model = Model.from_run(run.path, device)
    _, tokens, maskable = text_of(build(model.experiment), held.half, spec.sequences)
    tokens, maskable = _spread(tokens, n), _spread(maskable, n)
    counted = counted_of(model.experiment.data.form, model.tokenizer, tokens, maskable)
    guided = model.experiment.parts["guidance"].guide(model.writer("fp32"))
    options: dict[str, Any] = {"seed": held.seed, "orders": spec.orders, "batch_size": held.batch_size}
    of_bound: Any = study.spec("validation")
    of_bound = attrs.evolve(of_bound, metrics=())
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


def table(study: Study, priced: Mapping[str, Sequence[Sequence[Priced]]]) -> list[dict[str, Any]]:
    """Return for each thing to be written the price of every arm, beside every price of the baseline.

    `priced` is of each arm and seed. Two prices are compared on the sequences that both have, seed by seed.
    """
    theirs = [list(each) for each in zip(*priced.get(study.baseline, ()), strict=True)]
    rows = [(arm, list(each)) for arm, runs in priced.items() for each in zip(*runs, strict=True)]
    whats = rows[0][1][0].nats if rows else ()
    return [
        {
            "what": what,
            "rows": [
                _row(arm, mine, [other for other in theirs if other[0] is not mine[0]], what) for arm, mine in rows
            ],
        }
        for what in whats
    ]


def nats_of(priced: Mapping[str, Sequence[Sequence[Priced]]]) -> Iterator[Table]:
    """Yield the nats of each sequence of every price, as `results.nats_of` does."""
    for arm, runs in priced.items():
        for each in (each for run in runs for each in run):
            for what, nats in each.nats.items():
                about = {"part": "gaps", "arm": arm, "seed": each.run.seed, "by": each.by, "what": what}
                yield kept_nats(nats, each.count[what], **about)


def _row(arm: str, mine: list[Priced], theirs: Sequence[list[Priced]], what: str) -> dict[str, Any]:
    values = [exponential(float(one.nats[what].sum() / one.count[what].sum())) for one in mine]
    against = []
    for other in theirs:
        by_seed = {one.run.seed: one for one in other}
        both = [(one, by_seed[one.run.seed]) for one in mine if one.run.seed in by_seed]
        if both:
            n = min(len(each.count[what]) for each in both[0])
            pairs = [(_spread(one.nats[what], n), _spread(another.nats[what], n)) for one, another in both]
            against.append({"by": other[0].by, **paired_over(pairs, _spread(both[0][0].count[what], n))})
    return {
        "arm": arm,
        "by": mine[0].by,
        "quantity": mine[0].quantity,
        "seeds": [one.run.seed for one in mine],
        "sequences": len(mine[0].count[what]),
        "values": values,
        "brackets": [bracket_table(one.bracket[what], one.count[what]) for one in mine if one.bracket],
        "against": against,
    }


def _spread(values: Tensor, n: int) -> Tensor:
    """Return the values of n sequences, spread evenly over all: those that are priced if there are fewer."""
    return values[evenly(len(values), n)]
