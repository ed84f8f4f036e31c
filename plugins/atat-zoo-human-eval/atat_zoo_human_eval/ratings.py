"""Unblinded ratings from several raters of a form: means, differences, and agreement between raters.

Every rater answers every question about every text. Shapes: N texts, R raters.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np
from numpy.typing import NDArray

from atat_zoo.evaluation.results.intervals import Interval, of_difference, of_mean
from atat_zoo.system.errors import UserError, clip, nearest
from atat_zoo.system.parsing import from_json, read
from atat_zoo_human_eval.rating_form import RatingForm

COLUMNS = ("form", "rater", "text", "question", "rating")
_NAMED = 3  # number of places that a message about many places names


class Ratings(NamedTuple):
    """One rater's name and ratings, which are int64 [N] for each question, and the file that contains them."""

    path: Path
    rater: str
    values: dict[str, NDArray[np.int64]]


@attrs.frozen(kw_only=True)
class Answers:
    """All raters' answers to one question."""

    means: tuple[float, ...]  # mean rating of each run
    intervals: tuple[Interval | None, ...]  # CI of each mean, over texts; None for a single text
    differences: tuple[Interval | None, ...]  # CI for each pair of runs, later minus earlier, in the order of `pairs`
    alpha: float | None  # Krippendorff's ordinal α, or None if it is undefined


@attrs.frozen(kw_only=True)
class RatingResult:
    """Results of a form: each run's mean ratings, the differences between runs, and the raters' agreement."""

    form: str  # its digest
    raters: tuple[str, ...]
    runs: tuple[str, ...]
    texts: tuple[int, ...]  # number of texts of each run
    answers: dict[str, Answers]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of runs as indices (later, earlier)."""
        return _pairs(len(self.runs))

    def to_table(self) -> dict[str, Any]:
        """Return all results as a JSON object."""
        answers = {}
        for name, each in self.answers.items():
            means = {
                run: {"mean": mean, **_ends(interval)}
                for run, mean, interval in zip(self.runs, each.means, each.intervals, strict=True)
            }
            differences = [
                {"run": self.runs[b], "minus": self.runs[a], "difference": each.means[b] - each.means[a], **_ends(one)}
                for (b, a), one in zip(self.pairs, each.differences, strict=True)
            ]
            answers[name] = {"means": means, "differences": differences, "krippendorff_alpha": each.alpha}
        texts = dict(zip(self.runs, self.texts, strict=True))
        return {"form": self.form, "raters": list(self.raters), "texts": texts, "questions": answers}


def _ends(interval: Interval | None) -> dict[str, float | None]:
    return {"low": interval.low, "high": interval.high} if interval else {"low": None, "high": None}


def _pairs(runs: int) -> list[tuple[int, int]]:
    return [(b, a) for a, b in combinations(range(runs), 2)]


def alpha(values: NDArray[Any]) -> float | None:
    """Return Krippendorff's ordinal α of ratings [R, N], with NaN for missing ratings.

    Return None if all are equal or no text has two. Krippendorff, Computing Krippendorff's Alpha-Reliability (2011).
    """
    import krippendorff

    given = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    if len(np.unique(given)) < 2 or not (np.isfinite(values).sum(0) > 1).any():
        return None
    return float(krippendorff.alpha(values, level_of_measurement="ordinal"))


def unblinded(form: RatingForm, given: Sequence[Ratings]) -> RatingResult:
    """Return each run's results, from all raters' ratings of a form.

    Ratings are averaged over raters. Intervals over texts are Student's for a mean and Welch's for a difference.
    """
    whose = np.array([each.run for each in form.texts])
    numbers = range(len(form.runs))
    answers = {}
    for name in form.questions:
        values = np.stack([each.values[name] for each in given])
        of_text = values.mean(0)
        by_run = [of_text[whose == number] for number in numbers]
        answers[name] = Answers(
            means=tuple(float(each.mean()) for each in by_run),
            intervals=tuple(map(of_mean, by_run)),
            differences=tuple(of_difference(by_run[b], by_run[a]) for b, a in _pairs(len(form.runs))),
            alpha=alpha(values) if len(given) > 1 else None,
        )
    return RatingResult(
        form=form.digest,
        raters=tuple(each.rater for each in given),
        runs=tuple(each["run"] for each in form.runs),
        texts=tuple(int((whose == number).sum()) for number in numbers),
        answers=answers,
    )


def ratings_of(form: RatingForm, paths: Sequence[Path]) -> list[Ratings]:
    """Return the ratings in each file, or raise a `UserError` that lists the problems in all files."""
    files, problems, raters = [], list[str](), dict[str, Path]()
    for path in paths:
        try:
            digest, rater, rows = _read(path)
        except UserError as error:
            problems.append(str(error))
            continue
        name = clip(path)
        if digest != form.digest:
            problems.append(
                f"{name} rates form {clip(digest)}, but this key is for {form.digest}; pass the key of the rated form"
            )
            continue
        if rater in raters:
            first = clip(raters[rater])
            problems.append(f"{name}: {clip(rater)} also appears in {first}; leave out one file, or rename the rater")
        raters.setdefault(rater, path)
        values, wrong = _values(form, rows)
        problems += [f"{name}: {problem}" for problem in wrong]
        files.append(Ratings(path, rater, values))
    if problems:
        raise UserError("\n".join(problems))
    return files


def _read(path: Path) -> tuple[str, str, list[dict[str, Any]]]:
    """Return the form's digest, the rater's name, and one row per rating."""
    try:
        data = read(path)
    except OSError as error:
        raise UserError(f"{clip(path)} cannot be read: {error.strerror}; pass a file that the form saved") from None
    try:
        if path.suffix.lower() == ".csv":
            rows = list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")))
            form, rater = ({row[column] for row in rows} for column in COLUMNS[:2])
            for row in rows:
                for column in ("text", "rating"):
                    row[column] = int(row[column])
        else:
            table = from_json(data)
            rows, form, rater = table["ratings"], {table["form"]}, {table["rater"]}
        plain = all(type(row["text"]) is type(row["rating"]) is int and type(row["question"]) is str for row in rows)
        if not plain or not rows or not all(type(each) is str for each in form | rater):
            raise ValueError
    except (ValueError, LookupError, TypeError, AttributeError, csv.Error):
        problem = f"{clip(path)} does not contain ratings saved by a form"
        raise UserError(f"{problem}, as JSON or as CSV ({', '.join(COLUMNS)}); save the ratings again") from None
    for what, found in (("form", form), ("rater", rater)):
        if len(found) > 1:
            both = ", ".join(map(clip, sorted(found)))
            raise UserError(f"{clip(path)} contains more than one {what} ({both}); use a separate file for each")
    if not next(iter(rater)).strip():
        raise UserError(f"{clip(path)} does not name the rater; enter a name in the form, and save the ratings again")
    return next(iter(form)), next(iter(rater)).strip(), rows


def _values(form: RatingForm, rows: Sequence[dict[str, Any]]) -> tuple[dict[str, NDArray[np.int64]], list[str]]:
    """Return a dict from question to ratings [N], and all problems in the ratings."""
    size, names = len(form.texts), list(form.questions)
    values: dict[str, NDArray[np.int64]] = {name: np.zeros(size, np.int64) for name in names}
    problems = []
    for question in sorted({row["question"] for row in rows} - {*names}):
        known = f"{nearest(question, names)} (questions: {', '.join(names)})"
        problems.append(f"the form has no question {clip(question)!r}{known}")
    rows = [row for row in rows if row["question"] in values]
    for number in sorted({row["text"] for row in rows if not 1 <= row["text"] <= size}):
        problems.append(f"text {clip(number)} does not exist; the form has texts 1 to {size}")
    rows = [row for row in rows if 1 <= row["text"] <= size]
    for row in rows:
        points = form.questions[row["question"]].points
        if 1 <= row["rating"] <= points:
            values[row["question"]][row["text"] - 1] = row["rating"]
        else:
            problems.append(
                f"{_place(row['text'], row['question'])}: {clip(row['rating'])} is not a rating from 1 to {points}"
            )
    counts = Counter((row["text"], row["question"]) for row in rows)
    everything = [(number, name) for number in range(1, size + 1) for name in names]
    doubled, missing = [place for place in everything if counts[place] > 1], [p for p in everything if not counts[p]]
    problems += [f"more than one rating for {said}; save the ratings again" for said in _some(doubled)]
    problems += [f"no rating for {said}; complete the form, and save the ratings again" for said in _some(missing)]
    return values, problems


def _some(places: Sequence[tuple[int, str]]) -> Iterator[str]:
    """Yield one string that names the first places and counts the others, or nothing if there are none."""
    if places:
        more = len(places) - _NAMED
        yield "; ".join(_place(*each) for each in places[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _place(text: int, question: str) -> str:
    return f"text {text}, {question}"
