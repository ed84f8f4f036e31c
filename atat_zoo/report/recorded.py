"""What a run folder has recorded, checked value by value: a damaged file is a missing one. Imports no torch."""

from __future__ import annotations

import json
import math
import statistics
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from atat_zoo.errors import LeftOut, UserError, clip
from atat_zoo.parsing import from_json, read
from atat_zoo.run.model_files import WEIGHTS, described, sha256_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from atat_zoo.run import RunFolder

FORMAT = 1  # of the files in report/
Table = dict[str, Any]
# Points of a curve: more are not seen.
POINTS = 800
_LONGEST = 20_000  # characters of samples.txt on the page


def figure(value: Any) -> float | None:
    """Return a finite number, or None for anything else."""
    with suppress(OverflowError):  # an integer that is no float
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return value
    return None


def counts(value: Any) -> list[int]:
    """Return the counts of a histogram, of which one is positive at least, or an empty list."""
    whole = isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)
    return value if whole and figure(sum(value)) else []


def _error(value: Any) -> float | None:
    """Return a standard error, or None for what can be none."""
    return found if (found := figure(value)) is not None and found >= 0 else None


def thin(rows: list[Table], key: str, points: int = POINTS) -> list[Table]:
    """Return at most `points` rows in their order: the first, the last, and those of the extremes of each stretch."""
    if len(rows) <= points:
        return rows
    kept = {0, len(rows) - 1}
    stretches = points // 2 - 1
    for i in range(stretches):
        some = range(i * len(rows) // stretches, (i + 1) * len(rows) // stretches)
        known = [j for j in some if rows[j][key] is not None] or [some[0]]
        kept |= {min(known, key=lambda j: rows[j][key] or 0), max(known, key=lambda j: rows[j][key] or 0)}
    return [rows[i] for i in sorted(kept)]


def evenly(rows: list[Table], points: int = POINTS) -> list[Table]:
    """Return at most `points` rows in their order, the first and the last among them, whatever their values."""
    return rows if len(rows) <= points else [rows[i * (len(rows) - 1) // (points - 1)] for i in range(points)]


def tables(run: RunFolder) -> Iterator[Table]:
    """Yield the JSON objects in evaluations/, in the order of their names; one that cannot be read is a warning."""
    for path in sorted(run.evaluations.glob("*.json")):
        try:
            table = from_json(read(path))
        except (OSError, ValueError) as error:
            problem = f"{clip(path)} cannot be read: {clip(error)}"
            warnings.warn(f"{problem}; it is left out: evaluate again", LeftOut, stacklevel=1)
            continue
        if isinstance(table, dict) and type(table.get("step")) is int:
            yield table


def evaluated(tables: Iterable[Table]) -> list[Table]:
    """Return the evaluations of bounds on the experiment's own text, by step; a value that is damaged is None."""
    found = [each for each in map(_evaluation, tables) if each]
    return sorted(found, key=lambda table: (table["step"], table["split"], table["sequences"], table["draws"]))


def of_training(evaluations: Sequence[Table], experiment: Mapping[str, Any]) -> list[Table]:
    """Return those of `evaluated` that the training itself recorded; the last is the one that a run is judged by.

    Other evaluations are of another split, or under other masks.

    Raises:
        KeyError, TypeError: when the experiment is not whole.
    """
    spec = experiment["evaluation"]
    own = {"split": spec["split"], "seed": experiment["seed"]}
    drawn = {"draws": spec["draws"], "method": spec["bound"]["use"]}
    found = []
    for each in evaluations:  # with more sequences later
        same = own | (drawn if each["draws"] else {})  # nothing is drawn for a likelihood
        fits = each["sequences"] <= (spec["sequences"] or each["sequences"])
        if fits and all(each[key] == value for key, value in same.items()):
            found.append(each)
    return found


def curve(evaluations: Sequence[Table]) -> list[Table]:
    """Return those of `evaluated`, one a step, that were measured on the same text: of most steps, or of most text."""
    alike: dict[tuple[Any, ...], dict[int, Table]] = {}
    for each in evaluations:
        alike.setdefault(conditions(each), {})[each["step"]] = each
    steps = max(alike.values(), key=lambda found: (len(found), first(found.values())["sequences"]), default={})
    return list(steps.values())


def of_one_kind(evaluations: list[Table], experiment: Mapping[str, Any]) -> list[Table]:
    """Return the evaluations that tell of a run, by step; the last is the one that it is judged by.

    They are the training's own; where there are none, those under the conditions of the last.

    Raises:
        KeyError, TypeError: when the experiment is not whole.
    """
    alike = [each for each in evaluations if conditions(each) == conditions(evaluations[-1])]
    return of_training(evaluations, experiment) or alike


def _evaluation(table: Table) -> Table | None:
    if not isinstance(table.get("bounds"), dict) or table.get("corpus"):
        return None
    bounds = {
        str(name): {"value": value, "stderr": _error(one.get("stderr"))}
        for name, one in table["bounds"].items()
        if isinstance(one, dict) and (value := figure(one.get("value"))) is not None
    }
    count = {key: table.get(key, 0) for key in ("sequences", "draws", "seed", "tokens", "bytes", "words")}
    if not bounds or any(type(value) is not int for value in count.values()):
        return None
    words = {key: str(table.get(key, "")) for key in ("split", "method")}
    beside = table.get("count_table")
    if isinstance(beside, dict):
        kinds = {"value": figure, "stderr": _error, "percent": figure, "percent_stderr": _error}
        beside = {"reads": str(beside.get("reads"))} | {key: kind(beside.get(key)) for key, kind in kinds.items()}
    else:
        beside = None
    return {"step": table["step"], **count, **words, "bounds": bounds, "count_table": beside}


def quality(tables: Iterable[Table]) -> Table | None:
    """Return the last recorded quality of the importance, or None."""
    last = None
    for table in tables:
        with suppress(KeyError, TypeError, ValueError):
            bands: list[Table] = [
                {key: _float(band[key]) for key in ("tokens", "least", "most", "loss")}
                | {key: figure(band[key]) for key in ("importance_spearman", "frequency_spearman")}
                for band in table["bands"]
            ]
            bins = [
                {key: _float(one[key]) for key in ("importance", "rank", "loss", "tokens")} for one in table["bins"]
            ]
            if last is None or table["step"] >= last["step"]:
                last = {"step": table["step"], "bands": bands, "bins": bins}
    return last


def priced(tables: Iterable[Table]) -> list[Table]:
    """Return the samplers with a policy bound, as `atat bench samplers` recorded them of the last step it was given."""
    found = []
    for table in tables:
        rows = table.get("measured")
        for one in rows if isinstance(rows, list) else ():
            with suppress(KeyError, TypeError, ValueError):
                policy = one["policy"]
                numbers = {"evaluations": _float(policy["nfe"]), "value": _float(policy["value"])}
                sampler = one["sampler"] if isinstance(one["sampler"], dict) else {}
                named = {"sampler": _str(one["name"]), "settings": sampler, "quantity": _str(policy["quantity"])}
                about = {"step": table["step"], "sequences": _int(policy["sequences"])}
                found.append(named | numbers | about | {"stderr": _error(policy["stderr"])})
    last = max((one["step"] for one in found), default=0)
    return [one for one in found if one["step"] == last]


def conditions(table: Table) -> tuple[Any, ...]:
    """Return what an evaluation was made on: text, masks, and how the bound was estimated."""
    # As many tokens may be of another text; hardly as many bytes and words, too.
    return tuple(table[key] for key in ("split", "sequences", "tokens", "bytes", "words", "draws", "seed", "method"))


def text(run: RunFolder) -> Table | None:
    """Return report/text.json, or None when it is not there; of a damaged one a warning says so."""
    return _read(run.report / "text.json", _text)


def replay(run: RunFolder) -> Table | None:
    """Return report/replay.json, or None as `text`."""
    return _read(run.report / "replay.json", _replay)


def comparison(run: RunFolder) -> Table | None:
    """Return report/compare.json, or None as `text`.

    It is what `atat compare --json` prints, with `models`, the `model_sum` of each run.
    """
    return _read(run.report / "compare.json", _comparison)


def model_sum(run: RunFolder) -> str | None:
    """Return the SHA-256 of the weights of a run's final model, or None when it has none that can be read."""
    with suppress(OSError, UserError, KeyError, TypeError):
        return str(described(run.model).get("sha256", {}).get(WEIGHTS) or sha256_of(run.model / WEIGHTS))
    return None


def samples(run: RunFolder) -> str:
    """Return the generated texts, or an empty text."""
    with suppress(OSError):
        written = read(run.samples)[: 4 * _LONGEST].decode("utf-8", "replace").strip()
        return written if len(written) <= _LONGEST else written[:_LONGEST] + "\n… the rest is in samples.txt"
    return ""


def quartiles(replay: Table) -> Iterator[Table]:
    """Yield the quartiles of the uncertainties of the masked places, by sampler and network evaluation."""
    for sampler in replay["samplers"]:
        at: dict[int, list[float]] = {}
        for one in sampler["texts"]:
            for frame in one["frames"]:
                at.setdefault(frame["evaluation"], []).extend(each for _, each in frame["open"])
        for evaluation, values in sorted(at.items()):
            if len(values) > 1:
                low, median, high = statistics.quantiles(values, n=4, method="inclusive")
                row = {"evaluation": evaluation, "low": low, "median": median, "high": high, "places": len(values)}
                yield {"sampler": sampler["name"], **row}


def _read(path: Path, check: Callable[[Table], Table]) -> Table | None:
    try:
        table = from_json(read(path))
        if table["format"] == FORMAT:
            return check(table)
        problem = f"is of format {clip(table['format'])}, and this version reads {FORMAT}"
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        problem = f"cannot be read: {clip(error)}"
    except (TypeError, KeyError, AttributeError, StopIteration):
        problem = "is not what was recorded"
    problem = f"{clip(path)} {problem}; it is left out"
    warnings.warn(f"{problem}: `atat report --compute` records it again", LeftOut, stacklevel=1)
    return None


def _words(values: Any, length: int, kind: Callable[[Any], Any]) -> list[Any]:
    """Return a list of this length, each value checked."""
    if not isinstance(values, list) or len(values) != length:
        raise TypeError
    return [kind(each) for each in values]


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _int(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError
    return value


def _float(value: Any) -> float:
    if (found := figure(value)) is None:
        raise TypeError
    return found


def _text(table: Table) -> Table:
    rates = [_float(rate) for rate in table["rates"]]
    texts = []
    for one in table["texts"]:
        tokens = [_str(token) for token in one["tokens"]]

        def grid(values: Any, length: int = len(tokens)) -> Any:
            return None if values is None else _words(values, len(rates) or 1, lambda row: _words(row, length, figure))

        texts.append(
            {
                "tokens": tokens,
                "maskable": _words(one["maskable"], len(tokens), bool),
                "surprisal": None if one["surprisal"] is None else _words(one["surprisal"], len(tokens), figure),
                "importance": grid(one["importance"]),
                "loss": grid(one["loss"]),
            }
        )
    return {
        "step": _int(table["step"]),
        "split": _str(table["split"]),
        "seed": _int(table["seed"]),
        "draws": _int(table["draws"]),
        "rates": rates,
        "estimator": table["estimator"] and _str(table["estimator"]),
        "importance_depends_on_rate": bool(table["importance_depends_on_rate"]),
        "texts": texts,
    }


def _replay(table: Table) -> Table:
    samplers = []
    for sampler in table["samplers"]:
        texts = []
        for one in sampler["texts"]:
            start = [None if token is None else _str(token) for token in one["start"]]

            def place(position: Any, length: int = len(start)) -> int:
                if _int(position) >= length:
                    raise KeyError
                return int(position)

            frames = [
                {
                    "evaluation": _int(frame["evaluation"]),
                    "filled": [[place(i), _str(token)] for i, token in frame["filled"]],
                    "hidden": [place(i) for i in frame["hidden"]],
                    "open": [[place(i), round(_float(each), 4)] for i, each in frame["open"]],
                }
                for frame in one["frames"]
            ]
            texts.append({"start": start, "frames": frames})
        settings = sampler["settings"] if isinstance(sampler["settings"], dict) else {}
        settings = json.loads(json.dumps(settings), parse_constant=lambda _: None)
        counts = _words(sampler["evaluations"], len(texts), _int)
        samplers.append({"name": _str(sampler["name"]), "settings": settings, "evaluations": counts, "texts": texts})
    return {
        "step": _int(table["step"]),
        "seed": _int(table["seed"]),
        "length": _int(table["length"]),
        "uncertainty": _str(table["uncertainty"]),
        "unit": _str(table["unit"]),
        "samplers": samplers,
    }


def _comparison(table: Table) -> Table:
    runs = []
    for run in table["runs"]:
        difference = next(iter(run["bounds"].values()))["difference"]
        if difference is not None:
            difference = {key: figure(difference[key]) for key in ("percent", "percent_low", "percent_high")}
        runs.append({"difference": difference})
    return {"models": _words(table["models"], len(runs), _str), "runs": runs}


def first(values: Iterable[Any]) -> Any:
    """Return the first value, or None."""
    return next(iter(values), None)
