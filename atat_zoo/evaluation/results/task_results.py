"""Task results: scores with standard errors, and paired comparisons of two models over items.

An item is, for example, a text, a word or a pair. A score is Σ sums / Σ weights over n items, or its exponential.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo.evaluation.results import quantity_names
from atat_zoo.evaluation.results.format import NONE, change, joined, with_error
from atat_zoo.evaluation.results.intervals import Interval, paired

if TYPE_CHECKING:
    from torch import Tensor

_DIGITS = ".4f"


@attrs.frozen(kw_only=True)
class Score:
    """One score of a task."""

    quantity: str  # name of the quantity: perplexity, share of texts, nats per token
    value: float
    stderr: float | None = None  # standard error over the items, if there is one
    items: int  # n
    of: str = ""  # a digest of the items; scores with the same digest are compared item by item
    sums: tuple[float, ...] = ()  # of each item, [n]; empty if items are not compared
    weights: tuple[float, ...] = ()  # of each item, [n]
    exponential: bool = False  # whether the value is the exponential of Σ sums / Σ weights
    published: Mapping[str, float] = attrs.field(factory=dict)  # published values of the same quantity, by name

    @classmethod
    def over(
        cls,
        quantity: str,
        sums: Tensor | Sequence[float],
        weights: Tensor | Sequence[float] | None = None,
        *,
        of: str = "",
        exponential: bool = False,
        published: Mapping[str, float] | None = None,
    ) -> Score:
        """Return the score Σ sums / Σ weights over n items, both [n], or its exponential; weights default to 1."""
        import torch

        from atat_zoo.diffusion.statistics import ratio

        a = torch.as_tensor(sums, dtype=torch.float64).cpu()
        b = torch.ones_like(a) if weights is None else torch.as_tensor(weights, dtype=torch.float64).cpu()
        value, error = ratio(a, b)
        if exponential:
            value = quantity_names.exponential(value)
            error *= value
        return cls(
            quantity=quantity,
            value=value,
            stderr=error if math.isfinite(error) else None,
            items=len(a),
            of=of,
            sums=tuple(a.tolist()) if of else (),
            weights=tuple(b.tolist()) if of else (),
            exponential=exponential,
            published=published or {},
        )

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Score:
        """Return the score in a JSON object, where null is a non-finite number; a missing key raises a KeyError."""

        def number(value: float | None, otherwise: float = math.inf) -> float:
            return otherwise if value is None else float(value)

        return cls(
            quantity=str(table["quantity"]),
            value=number(table["value"], math.nan),
            stderr=None if table["stderr"] is None else float(table["stderr"]),
            items=int(table["items"]),
            of=str(table["of"]),
            sums=tuple(map(number, table["sums"])),
            weights=tuple(map(number, table["weights"])),
            exponential=bool(table["exponential"]),
            published={str(name): float(value) for name, value in table["published"].items()},
        )

    def minus(self, other: Score) -> Interval | None:
        """Return Σ (sums − other sums) / Σ weights with its interval; None if items differ or are not finite."""
        import torch

        if not self.of or (self.of, self.quantity, self.weights) != (other.of, other.quantity, other.weights):
            return None
        a, b, n = (torch.tensor(each, dtype=torch.float64) for each in (self.sums, other.sums, self.weights))
        return paired(a, b, n) if bool((a.isfinite() & b.isfinite()).all()) else None

    @property
    def mean(self) -> float:
        """Σ sums / Σ weights; `value` is this mean or its exponential."""
        if not self.exponential or math.isnan(self.value):
            return self.value
        return math.log(self.value) if self.value > 0 else -math.inf

    @property
    def said(self) -> str:
        """The value and its standard error as text."""
        return with_error(self.value, self.stderr, ".2f" if self.exponential else _DIGITS)

    def to_table(self) -> dict[str, Any]:
        """Return the numbers as a JSON object that omits the numbers of each item."""
        return attrs.asdict(self, filter=lambda field, _: field.name not in ("sums", "weights"))


def difference(one: Score, other: Score) -> str:
    """Return the difference between two scores as text, or a dash if their items differ."""
    return in_words(one.minus(other), exponential=one.exponential)


def in_words(interval: Interval | None, *, exponential: bool) -> str:
    """Return a difference of `Score.mean` as text: in percent for an exponential, otherwise in the score's unit."""
    if interval is None or not math.isfinite(interval.width):
        return NONE
    if exponential:
        return change(interval.to_table())
    return f"{interval.value:+{_DIGITS}} [{interval.low:+{_DIGITS}}, {interval.high:+{_DIGITS}}]"


@attrs.frozen(kw_only=True)
class TaskResult:
    """The result of a task for one model."""

    task: str  # title of the task
    settings: Mapping[str, Any]  # the task's parameters, the seed, and everything else that the scores depend on
    step: int  # optimizer steps of the weights
    ema: bool  # whether the weights are EMA weights
    scores: Mapping[str, Score]  # by name
    notes: tuple[str, ...] = ()  # sentences printed with the scores

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> TaskResult:
        """Return the result in a JSON object; an invalid object raises an error, such as a KeyError or TypeError."""
        return cls(
            task=str(table["task"]),
            settings={**table["settings"], "seed": int(table["settings"]["seed"])},
            step=int(table["step"]),
            ema=bool(table["ema"]),
            scores={str(name): Score.from_table(score) for name, score in table["scores"].items()},
            notes=tuple(map(str, table["notes"])),
        )

    @property
    def seed(self) -> int:
        """The seed of the random numbers."""
        return int(self.settings["seed"])

    def to_table(self) -> dict[str, Any]:
        """Return the numbers as a JSON object that omits the numbers of each item."""
        return attrs.asdict(self) | {"scores": {name: score.to_table() for name, score in self.scores.items()}}


def task_results(tables: Iterable[Mapping[str, Any]]) -> Iterator[TaskResult]:
    """Yield the valid task results among the tables in a run's evaluations/."""
    for table in tables:
        if "task" in table and "scores" in table:
            try:
                yield TaskResult.from_table(table)
            except (LookupError, TypeError, AttributeError, ValueError, OverflowError):
                continue


def notes_of(results: Mapping[str, Sequence[TaskResult]]) -> list[str]:
    """Return the notes of all runs or arms without duplicates, prefixed with names unless a note applies to all."""
    notes = {name: [note for each in of_one for note in each.notes] for name, of_one in results.items()}
    lines = []
    for note in dict.fromkeys(note for each in notes.values() for note in each):
        of = [name for name, each in notes.items() if note in each]
        lines.append(note if len(of) == len(notes) else f"{joined(of)}: {note}")
    return lines
