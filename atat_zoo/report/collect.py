"""Run folders to the data of a page: rows for its charts, texts for its players, words and tables for the rest.

Quick, and without torch: nothing is computed that is not recorded. What a run lacks is said with the command that
records it.
"""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from atat_zoo import __version__
from atat_zoo.errors import UserError
from atat_zoo.evaluation.naming import title
from atat_zoo.parsing import from_json
from atat_zoo.report import recorded
from atat_zoo.report.recorded import figure, first
from atat_zoo.report.verdict import table_of_bounds, verdict
from atat_zoo.report.wording import NONE, number, uncertain
from atat_zoo.run import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

Table = dict[str, Any]
# The experiment that the others are variations of.
BASE = "mdlm"
# Characters of all texts and replays together; the page stays under 3 MB.
_ROOM = 1_200_000


def collect(runs: Sequence[Path]) -> Table:
    """Return the data of the page of one or more runs, as JSON can have it.

    Raises:
        UserError: when one of them is no run folder, or is named twice.
    """
    folders = [RunFolder(path) for path in runs]
    resolved = [folder.table() for folder in folders]
    names = _names(runs)
    described = [_described(*each) for each in zip(names, folders, resolved, strict=True)]
    rows: dict[str, list[Table]] = {name: [] for name in TABLES}
    thinned = []
    for one, folder in zip(described, folders, strict=True):
        lines = folder.read_metrics(damaged=True)
        curves = [_point(one["name"], line) for line in lines]
        kept = recorded.thin(curves, "loss")
        if len(kept) < len(curves):
            thinned.append(f"{one['name']}: {len(kept):,} of {len(curves):,} recorded lines are drawn")
        rows["curves"] += kept
        rows["stages"] += _stages(one["name"], lines)
        rows["bounds"] += _bounds(one["name"], one["evaluated"], lines)
        rows["uncertainty"] += [
            {"run": one["name"], **row} for row in (recorded.quartiles(one["replay"]) if one["replay"] else ())
        ]
        rows["frontier"] += [_priced(one["name"], each) for each in recorded.priced(folder)]
        if quality := one["quality"]:
            rows["bands"] += _bands(one["name"], quality)
            rows["bins"] += [{"run": one["name"], **each} for each in quality["bins"]]
        one["evaluated"] = one["evaluated"][-1:]
    _fit(described)
    comparison = first(filter(None, map(recorded.comparison, folders))) if len(folders) > 1 else None
    return {
        "format": 1,
        "kind": "runs",
        "title": names[0] if len(names) == 1 else number(len(names), "run"),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "verdict": verdict(described, comparison),
        "overview": table_of_bounds(described),
        "runs": described,
        "tables": rows,
        "thinned": thinned,
        "experiment": _experiment(names, resolved),
        "commands": _commands(runs, described),
    }


TABLES = ("curves", "stages", "bounds", "bands", "bins", "uncertainty", "frontier", "arms")


def _names(runs: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that tell them apart."""
    paths = [path.resolve() for path in runs]
    if len(set(paths)) < len(paths):
        twice = next(path for i, path in enumerate(runs) if paths[i] in paths[:i])
        raise UserError(f"{twice} is named twice; once will do")
    longest = max(len(path.parts) for path in paths)
    for length in range(1, longest + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names


def _described(name: str, folder: RunFolder, table: Table) -> Table:
    """Return what the page says of one run."""
    lines = folder.read_metrics(damaged=True)
    last = lines[-1] if lines else {}
    return {
        "name": name,
        "objective": str(table.get("objective", {}).get("use", NONE)),
        "step": last.get("step", 0),
        "model": _newest(folder) or last.get("step", 0),
        "steps": table.get("train", {}).get("steps"),
        "tokens": last.get("tokens"),
        "seconds": last.get("seconds"),
        "evaluated": recorded.evaluated(folder),
        "quality": recorded.quality(folder),
        "text": recorded.text(folder),
        "replay": recorded.replay(folder),
        "samples": recorded.samples(folder),
        "environment": _environment(folder),
        "command": _command(folder),
        "resolved": folder.resolved.read_text(encoding="utf-8"),
    }


def _newest(folder: RunFolder) -> int | None:
    """Return the step of the newest model, or None."""
    try:
        return folder.newest()
    except UserError:
        return None


def _point(run: str, line: Table) -> Table:
    keys = ("step", "tokens", "seconds", "loss", "mask_rate", "mask_rate_target")
    return {"run": run, **{key: figure(line.get(key)) for key in keys}}


def _stages(run: str, lines: list[Table]) -> list[Table]:
    """Return the stages of the curriculum, with the steps at which each was first and last recorded."""
    stages: list[Table] = []
    for line in lines:
        stage = line.get("stage")
        if not isinstance(stage, str) or stage == "none":
            continue
        if stages and stages[-1]["stage"] == stage:
            stages[-1]["to"] = line["step"]
        else:
            stages.append({"run": run, "stage": stage, "from": stages[-1]["to"] if stages else 0, "to": line["step"]})
    return stages


def _bounds(run: str, evaluated: list[Table], lines: list[Table]) -> list[Table]:
    """Return the bounds at each step as recorded under the same conditions: those of the last evaluation."""
    rows = []
    for table in evaluated:
        if recorded.conditions(table) != recorded.conditions(evaluated[-1]):
            continue
        line = next((line for line in lines if line["step"] >= table["step"]), lines[-1] if lines else {})
        for name, bound in table["bounds"].items():
            value, error = bound["value"], bound["stderr"]
            row = {"run": run, "bound": title(name), "value": value, "said": uncertain(value, error)}
            row |= {"low": value - (error or 0), "high": value + (error or 0), "step": table["step"]}
            rows.append(row | {key: figure(line.get(key)) for key in ("tokens", "seconds")})
    return rows


def _bands(run: str, quality: Table) -> list[Table]:
    rows = []
    for order, band in enumerate(quality["bands"]):
        count = "–".join(dict.fromkeys((_short(band["least"]), _short(band["most"]))))
        for what, key in (("importance", "importance_spearman"), ("frequency alone", "frequency_spearman")):
            if (rho := band[key]) is not None:
                row = {"run": run, "band": count, "order": order, "orders by": what, "rho": rho}
                rows.append(row | {"loss": band["loss"], "tokens": band["tokens"]})
    return rows


def _short(count: float) -> str:
    """Return a count with as few digits as an axis has room for: 12k for 12,288."""
    return f"{count:g}" if count < 1000 else f"{count / 1000:.{1 if count < 10_000 else 0}f}k"


def _priced(run: str, one: Table) -> Table:
    """Return a policy bound of `atat bench samplers` against its network evaluations."""
    value, error = one["value"], one.pop("stderr")
    ends = {"low": value - (error or 0), "high": value + (error or 0), "said": uncertain(value, error)}
    return {"run": run, **one, **ends, "settings": settings(one["settings"])}


def settings(table: Table) -> str:
    """Return a part's parameters as `steps = 16, temperature = 1.0`, with the names of its own parts."""
    return ", ".join(
        f"{key} = {value.get('use') if isinstance(value, dict) else value}"
        for key, value in table.items()
        if key not in ("use", "name")
    )


def _environment(folder: RunFolder) -> list[list[str]]:
    """Return environment.json as rows of a key and a value; empty when there is none."""

    def rows(table: Table, path: str = "") -> list[list[str]]:
        found = []
        for key, value in table.items():
            if isinstance(value, dict):
                found += rows(value, f"{path}{key} ")
            else:
                words = shlex.join(map(str, value)) if isinstance(value, list) else str(value)
                found.append([path + key, words])
        return found

    try:
        table = from_json(folder.environment.read_bytes())
    except (OSError, ValueError):
        return []
    return rows({key: value for key, value in table.items() if key != "command"}) if isinstance(table, dict) else []


def _command(folder: RunFolder) -> str | None:
    """Return the command that began the run, as a person types it."""
    try:
        words = from_json(folder.environment.read_bytes())["command"]
        return shlex.join(["atat", *map(str, words[1:])])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _experiment(names: list[str], resolved: list[Table]) -> Table:
    """Return the keys that differ from the base, or between the runs: first these, then those."""
    from atat_zoo import experiment as experiments

    tables = [dict(_flat(table)) for table in (experiments.load(BASE).to_table(), *resolved)]
    keys = dict.fromkeys(key for table in tables for key in table if key != "name")
    rows = [[key, *(table.get(key, NONE) for table in tables)] for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    apart = [row for row in rows if len(set(row[2:])) > 1]
    alike = [row for row in rows if row not in apart]
    return {"columns": ["key", f"experiment {BASE}", *names], "rows": apart + alike, "apart": len(apart)}


def _flat(table: Table, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of each key of a table and of the tables in it, with its value in words."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield path + key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _commands(runs: Sequence[Path], described: list[Table]) -> list[str]:
    """Return the commands that make the runs and this page again."""
    folders = [shlex.quote(str(path)) for path in runs]
    trained = [one["command"] for one in described if one["command"]]
    compared = [f"atat compare {' '.join(folders)}"] if len(folders) > 1 else []
    return [*trained, *(f"atat eval {run}" for run in folders), *compared, f"atat report {' '.join(folders)} --compute"]


def _fit(described: list[Table]) -> None:
    """Round the grids, and leave out the last texts of every run until there is room for all."""

    def size() -> int:
        return sum(len(json.dumps([one["text"], one["replay"]])) for one in described)

    for one in described:
        for text in one["text"]["texts"] if one["text"] else ():
            for key in ("importance", "loss"):
                text[key] = text[key] and [[v if v is None else round(v, 3) for v in row] for row in text[key]]
            text["surprisal"] = text["surprisal"] and [v if v is None else round(v, 2) for v in text["surprisal"]]
    while size() > _ROOM:
        holders: list[list[Any]] = [one["text"]["texts"] for one in described if one["text"]]
        holders += [sampler["texts"] for one in described if one["replay"] for sampler in one["replay"]["samplers"]]
        longest = max(map(len, holders))
        if longest <= 1:
            break
        for texts in holders:
            del texts[longest - 1 :]
