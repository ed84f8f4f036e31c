"""The records of a run folder, loaded without torch and validated; a damaged file is treated as missing."""

import base64
import json
import math
import re
import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from atat_zoo.experiment.runs import RunFolder
from atat_zoo.experiment.runs.model_files import WEIGHTS, described
from atat_zoo.system.errors import OmissionNote, UserError, clip
from atat_zoo.system.parsing import from_json, read

FORMAT = 1  # format of the files in report/
Table = dict[str, Any]
_COLOUR = re.compile("#[0-9a-f]{6}")
# Maximum number of points per curve; more would not be visible.
POINTS = 800
_LONGEST = 20_000  # characters of samples.txt on the page


# Each function converts a value to the form that a page may contain, or raises a TypeError for other values.


def figure(value: Any) -> float | None:
    """Return the value if it is a finite number, otherwise None."""
    with suppress(OverflowError):  # an integer that is too large for a float
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return value
    return None


def counts(value: Any) -> list[int]:
    """Return the counts of a histogram if at least one is positive, otherwise an empty list."""
    whole = isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)
    return value if whole and figure(sum(value)) else []


def _error(value: Any) -> float | None:
    """Return a standard error, or None for a value that cannot be one."""
    return number if (number := figure(value)) is not None and number >= 0 else None


def _refusing(fits: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not fits(value):
            raise TypeError
        return value

    return check


_string = _refusing(lambda value: isinstance(value, str))
_integer = _refusing(lambda value: type(value) is int)
_count = _refusing(lambda value: type(value) is int and value >= 0)
_number = _refusing(lambda value: figure(value) is not None)


def first(values: Iterable[Any]) -> Any:
    """Return the first value, or None."""
    return next(iter(values), None)


def _settings(value: Any) -> Table:
    return value if isinstance(value, dict) else {}


def _colours(value: Any) -> Table:
    """Return a dict from the text of tokens to CSS colours, or raise a `TypeError` for a different value."""
    if not isinstance(value, dict) or not all(
        isinstance(each, str) and _COLOUR.fullmatch(each) for each in value.values()
    ):
        raise TypeError
    return value


def _png(value: Any) -> str:
    """Return a PNG file in base64, or raise an error for a different value."""
    if not base64.b64decode(value, validate=True).startswith(b"\x89PNG\r\n\x1a\n"):
        raise TypeError
    return _string(value)


def _finite(value: Any) -> Any:
    return json.loads(json.dumps(_settings(value)), parse_constant=lambda _: None)


def _rounded(digits: int) -> Callable[[Any], float | None]:
    return lambda value: None if (number := figure(value)) is None else round(number, digits)


def _or_none(declared: Any) -> Callable[[Any], Any]:
    return lambda value: None if value is None else record(declared, value)


# Records: a dict declares the keys of a table, a one-element list the elements of a list, a tuple a list of that
# length, and a function a value. Other keys are left out.


def record(declared: Any, value: Any, at: str = "") -> Any:
    """Return the declared fields of a JSON value; raise a `TypeError` that names the missing or invalid key."""
    if isinstance(declared, dict) and isinstance(value, dict):
        if absent := [key for key in declared if key not in value]:
            raise TypeError(f"{at}{absent[0]} is missing")
        return {key: record(of, value[key], f"{at}{key}.") for key, of in declared.items()}
    if isinstance(declared, list | tuple) and isinstance(value, list):
        every = declared * (len(value) // len(declared))
        if len(every) == len(value) and (isinstance(declared, list) or every == declared):
            return [record(of, each, f"{at}{i}.") for i, (of, each) in enumerate(zip(every, value, strict=True))]
    elif callable(declared):
        with suppress(TypeError, ValueError, KeyError, AttributeError):
            return declared(value)
    raise TypeError(f"{at.rstrip('.') or 'it'} is {clip(repr(value), 40)}")


_PICTURE = _or_none(  # null for text: the tokens from number `first` on are pixels, with the colours of their text
    {"first": _count, "columns": _refusing(lambda value: type(value) is int and value > 0), "colours": _colours}
)
# PNG files in base64 of the texts as a whole, such as spectrograms, with a description; none in older files
_IMAGES = [_or_none({"said": _string, "png": _png})]
_TOKENS = {
    "tokens": [_string],
    "maskable": [bool],
    "surprisal": _or_none([_rounded(2)]),  # nats, from the token counts of the training text
    # R lists over the tokens, null for a token that is never hidden: importance in [0, 1], loss in nats
    "importance": _or_none([[_rounded(3)]]),
    "loss": _or_none([[_rounded(3)]]),
}
_TEXT = {  # report/text.json, beside its format
    **{"step": _count, "split": _string, "seed": _count},
    "draws": _count,  # number of times that each token is hidden at each rate
    "rates": [_number],  # mask rates, R of them; none for a model whose likelihood is exact, and then R is 1 above
    "estimator": _or_none(_string),  # its name, or null if all tokens have the same importance
    "importance_depends_on_rate": bool,
    "picture": _PICTURE,
    "texts": [_TOKENS],
    "images": _IMAGES,
}
_FRAME = {
    "evaluation": _count,  # network evaluations so far
    "filled": [(_count, _string)],  # position and token
    "hidden": [_count],  # positions masked again after that
    # position of each mask before the frame whose token the model can predict, and the prediction's entropy
    "open": [(_count, lambda value: round(_number(value), 4))],
}
_SAMPLER = {
    **{"name": _string, "settings": _finite},
    "evaluations": [_count],  # number for each text
    "texts": [{"start": [_or_none(_string)], "frames": [_FRAME]}],  # the given tokens, null for a mask
}
_REPLAY = {  # report/replay.json, beside its format; the uncertainty is "entropy" in "nats"
    **{"step": _count, "seed": _count, "length": _count, "uncertainty": _string, "unit": _string},
    "picture": _PICTURE,
    "samplers": [_SAMPLER],
    "images": [_IMAGES],  # of the finished texts of each sampler
}
# report/compare.json: what `atat compare --json` prints, with the `model_sum` of each run, beside its format. Of the
# bounds of a run, only the first is used.
_DIFFERENCE = {"difference": _or_none(dict.fromkeys(("percent", "percent_low", "percent_high"), figure))}
_COMPARED = {
    "models": [_string],
    "runs": [{"bounds": lambda bounds: record((_DIFFERENCE,), list(bounds.values())[:1])}],
}
# A bound of an evaluation, and that of the n-gram model beside it.
_BOUND = {"value": figure, "stderr": _error}
_TITLED = {**_BOUND, "factorisation": lambda value: value if isinstance(value, str) else ""}
_BESIDE = {"reads": str, **_BOUND, "percent": figure, "percent_stderr": _error}
# A metric of an evaluation; of one with bins of the confidence, which are a diagram, their columns.
_METRIC = {"value": figure, "stderr": _error}
_DIAGRAM = {"confidence": [_number], "accuracy": [_number], "share": [_number]}
_EVALUATION = {
    **dict.fromkeys(("step", "sequences", "draws", "seed", "tokens", "bytes", "words"), _integer),
    **dict.fromkeys(("split", "method"), str),
}
_IMPORTANCE = ("importance_spearman", "frequency_spearman", "entropy_spearman", "importance_chance")
_QUALITY = {
    "step": _integer,
    "bands": [
        dict.fromkeys(("tokens", "least", "most", "loss"), _number)
        | dict.fromkeys(("importance_spearman", "frequency_spearman", "entropy_spearman"), figure)
    ],
    "bins": [dict.fromkeys(("importance", "rank", "loss", "tokens"), _number)],
}
_POLICY = {
    "name": _string,
    "sampler": _settings,
    "policy": {"quantity": _string, "nfe": _number, "value": _number, "sequences": _count, "stderr": _error},
}
_FIGURES = {  # of report/importance/: SVG, with the step that each is of
    "classes": "Importance by word class.",
    "frequency": "Importance by token frequency in the training text.",
    "checkpoints": "Importance across checkpoints, and its rank correlation with the loss and the final importance.",
    "agreement": "Rank correlation between the importance estimates of two runs on the same tokens.",
    "evaluations": "Distribution of NFE over texts.",
}
_STEP = re.compile(rb"<desc>step (\d{1,15})</desc>")
_KEPT = {"text": _TEXT, "replay": _REPLAY, "compare": _COMPARED}


# Files


def kept(run: RunFolder, name: str) -> Table | None:
    """Return the text, replay or comparison from report/, or None; warn if the file is damaged."""
    path = run.report / f"{name}.json"
    try:
        table = from_json(read(path))
        if table["format"] == FORMAT:
            return _whole(record(_KEPT[name], {"picture": None, "images": [], **table}))
        problem = f"has format {clip(table['format'])}, not {FORMAT}"
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        problem = f"cannot be read: {clip(error)}"
    except (TypeError, KeyError) as error:
        problem = f"is damaged: {clip(error)}"
    problem = f"{clip(path)} {problem}, so it is ignored"
    warnings.warn(f"{problem}; run `atat report --compute` to compute it again", OmissionNote, stacklevel=1)
    return None


def _whole(table: Table) -> Table:
    """Return a record from report/ after checking its positions and the lengths of its lists."""
    for text in table.get("texts", ()):
        grids = [grid for grid in (text["importance"], text["loss"]) if grid is not None]
        rows = [row for grid in ([text["maskable"], text["surprisal"]], *grids) for row in grid if row is not None]
        if {*map(len, grids)} - {len(table["rates"]) or 1} or {*map(len, rows)} - {len(text["tokens"])}:
            raise TypeError("the lists of a text are not as long as its tokens")
    for sampler in table.get("samplers", ()):
        if len(sampler["evaluations"]) != len(sampler["texts"]):
            raise TypeError("a sampler has different numbers of evaluations and texts")
        for text in sampler["texts"]:
            for frame in text["frames"]:
                positions = [*frame["hidden"], *(position for position, _ in frame["filled"] + frame["open"])]
                if max(positions, default=-1) >= len(text["start"]):
                    raise TypeError("a frame has positions beyond the end of its text")
    if len(table.get("models", ())) != len(table.get("runs", ())):
        raise TypeError("the numbers of models and runs differ")
    return table


def figures(run: RunFolder) -> list[Table]:
    """Return the figures from `atat importance-figures` in report/importance/ that the page does not draw itself."""
    found = []
    for name, said in _FIGURES.items():
        with suppress(OSError):
            svg = read(run.report / "importance" / f"{name}.svg")
            if step := _STEP.search(svg):
                found.append({"said": said, "step": int(step[1]), "svg": base64.b64encode(svg).decode()})
    return found


def environment(run: RunFolder) -> Table:
    """Return environment.json, or an empty table if it cannot be read."""
    with suppress(OSError, ValueError):
        table = from_json(read(run.environment))
        return table if isinstance(table, dict) else {}
    return {}


def samples(run: RunFolder) -> str:
    """Return the first 20,000 characters of samples.txt, or an empty string if it cannot be read."""
    with suppress(OSError):
        written = read(run.samples)[: 4 * _LONGEST].decode("utf-8", "replace").strip()
        return written if len(written) <= _LONGEST else written[:_LONGEST] + "\n… see samples.txt for the rest"
    return ""


def model_sum(run: RunFolder) -> str | None:
    """Return the SHA-256 of a run's final weights, or None if the run has no readable model."""
    with suppress(OSError, UserError, KeyError, TypeError):
        return str(described(run.model)["sha256"][WEIGHTS])
    return None


# Evaluations


def evaluated(tables: Iterable[Table]) -> list[Table]:
    """Return valid evaluations of the experiment's corpus, by step; an invalid error or correlation becomes None."""
    found = []
    for table in tables:
        if isinstance(table.get("bounds"), dict) and not table.get("corpus"):
            absent = {key: "" if of is str else 0 for key, of in _EVALUATION.items()}
            bounds = {
                str(name): record(_TITLED, {"stderr": None, "factorisation": "", **bound})
                for name, bound in table["bounds"].items()
                if isinstance(bound, dict) and figure(bound.get("value")) is not None
            }
            beside = table.get("ngram_prior")
            beside = record(_BESIDE, dict.fromkeys(_BESIDE) | beside) if isinstance(beside, dict) else None
            with suppress(TypeError):
                one = record(_EVALUATION, absent | table) | {"bounds": bounds, "ngram_prior": beside}
                one |= {"metrics": _metrics(table.get("metrics"))}
                one |= {key: figure(table.get(key)) for key in _IMPORTANCE}
                found += [one] if bounds else []
    return sorted(found, key=lambda table: (table["step"], table["split"], table["sequences"], table["draws"]))


def _metrics(table: Any) -> Table:
    """Return a dict from title to metric of an evaluation, with the bins of a reliability diagram if available."""
    found = {}
    for title, metric in table.items() if isinstance(table, dict) else ():
        with suppress(KeyError, TypeError):
            one = record(_METRIC, {"stderr": None, **metric})
            one["diagram"] = None
            with suppress(KeyError, TypeError, ValueError):
                columns = record(_DIAGRAM, metric["table"])
                one["diagram"] = [dict(zip(columns, bin_, strict=True)) for bin_ in zip(*columns.values(), strict=True)]
            if one["value"] is not None:
                found[str(title)] = one
    return found


def of_training(evaluations: Sequence[Table], experiment: Mapping[str, Any]) -> list[Table]:
    """Return the evaluations with the experiment's settings, such as those in training; the last is the main result.

    Other evaluations use a different split or different masks. Raises KeyError or TypeError for an incomplete
    experiment.
    """
    spec = experiment["evaluation"]
    own = {"split": spec["split"], "seed": experiment["seed"]}
    drawn = {"draws": spec["mask_samples"], "method": spec["bound"]["use"]}
    found = []
    for table in evaluations:  # a later one may have more sequences
        same = own | (drawn if table["draws"] else {})  # an exact likelihood draws no masks
        fits = table["sequences"] <= (spec["sequences"] or table["sequences"])
        if fits and all(table[key] == value for key, value in same.items()):
            found.append(table)
    return found


def of_one_kind(evaluations: list[Table], experiment: Mapping[str, Any]) -> list[Table]:
    """Return the evaluations of `of_training` or, if there are none, those under the last evaluation's conditions."""
    alike = [table for table in evaluations if conditions(table) == conditions(evaluations[-1])]
    return of_training(evaluations, experiment) or alike


def curve(evaluations: Sequence[Table]) -> list[Table]:
    """Return one evaluation per step, all under the conditions with the most steps or, if equal, the most sequences."""
    alike: dict[tuple[Any, ...], dict[int, Table]] = {}
    for table in evaluations:
        alike.setdefault(conditions(table), {})[table["step"]] = table
    steps = max(alike.values(), key=lambda found: (len(found), first(found.values())["sequences"]), default={})
    return list(steps.values())


def conditions(table: Table) -> tuple[Any, ...]:
    """Return the fields that must be equal for evaluations to be comparable: text, masks and bound estimator."""
    # A different text may have the same number of tokens, but hardly the same number of bytes and words.
    return tuple(table[key] for key in ("split", "sequences", "tokens", "bytes", "words", "draws", "seed", "method"))


def quality(tables: Iterable[Table]) -> Table | None:
    """Return the importance quality recorded at the highest step, or None."""
    found = []
    for table in tables:
        with suppress(KeyError, TypeError):
            found.append(record(_QUALITY, table))
    return max(reversed(found), key=lambda one: one["step"], default=None)


def policy_nll(tables: Iterable[Table]) -> list[Table]:
    """Return the policy bounds that `atat bench samplers` recorded at the latest step that has any."""
    found = []
    for table in tables:
        rows = table.get("measured")
        for row in rows if isinstance(rows, list) else ():
            with suppress(KeyError, TypeError):
                one = record(_POLICY, row)
                policy = one["policy"]
                named = {"sampler": one["name"], "settings": one["sampler"], "quantity": policy["quantity"]}
                numbers = {"evaluations": policy["nfe"], "value": policy["value"], "step": table["step"]}
                found.append(named | numbers | {key: policy[key] for key in ("sequences", "stderr")})
    last = max((one["step"] for one in found), default=0)
    return [one for one in found if one["step"] == last]


# Curves


def thin(rows: list[Table], key: str, points: int = POINTS) -> list[Table]:
    """Return at most `points` rows in their order: the first, the last, and the extremes of `key` in each interval."""
    if len(rows) <= points:
        return rows
    kept = {0, len(rows) - 1}
    stretches = points // 2 - 1
    for i in range(stretches):
        stretch = range(i * len(rows) // stretches, (i + 1) * len(rows) // stretches)
        measured = [j for j in stretch if rows[j][key] is not None] or [stretch[0]]
        kept |= {extreme(measured, key=lambda j: rows[j][key] or 0) for extreme in (min, max)}
    return [rows[i] for i in sorted(kept)]


def evenly(rows: list[Table], points: int = POINTS) -> list[Table]:
    """Return at most `points` evenly spaced rows in their order, including the first and the last."""
    return rows if len(rows) <= points else [rows[i * (len(rows) - 1) // (points - 1)] for i in range(points)]


def quartiles(replay: Table) -> Iterator[Table]:
    """Yield the quartiles of the uncertainty at masked positions for each sampler and decoding step."""
    for sampler in replay["samplers"]:
        at: dict[int, list[float]] = {}
        for frame in (frame for text in sampler["texts"] for frame in text["frames"]):
            at.setdefault(frame["evaluation"], []).extend(nats for _, nats in frame["open"])
        for evaluation, values in sorted(at.items()):
            if len(values) > 1:
                low, median, high = statistics.quantiles(values, n=4, method="inclusive")
                row = {"evaluation": evaluation, "low": low, "median": median, "high": high, "places": len(values)}
                yield {"sampler": sampler["name"], **row}
