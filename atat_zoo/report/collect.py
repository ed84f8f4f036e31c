"""Run folders to the data of a page: rows for its charts, texts for its players, words and tables for the rest.

Quick, and without torch: nothing is computed that is not recorded. What a run lacks is said with the command that
records it.
"""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from atat_zoo import __version__
from atat_zoo.errors import UserError
from atat_zoo.evaluation.naming import title
from atat_zoo.parsing import from_json, read
from atat_zoo.report import again, recorded
from atat_zoo.report.recorded import figure, first
from atat_zoo.report.verdict import heading, table_of_bounds, verdict
from atat_zoo.report.wording import NONE, joined, uncertain
from atat_zoo.run import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Table = dict[str, Any]
# The experiment that the others are variations of.
BASE = "mdlm"
# The keys of [data] of which the sequences depend.
_SEQUENCES = ("length", "special", "rows", "remainder")
# Bytes of the data: with the library, which has 0.9 MB, and the charts the page stays under 3 MB.
_ROOM = 2_000_000


def collect(runs: Sequence[Path], *, out: Path | None = None, figures: Path | None = None) -> Table:
    """Return the data of the page of one or more runs, as JSON can have it.

    `out` and `figures` are where `atat report` was told to write, for the command that makes the page again.

    Raises:
        UserError: when one of them is no run folder, is named twice, or has no whole experiment.
    """
    folders = [RunFolder(path) for path in runs]
    resolved = [folder.table() for folder in folders]
    names = _names(runs)
    recorded_lines = [folder.read_metrics(damaged=True) for folder in folders]
    described = [_described(*each) for each in zip(names, folders, resolved, recorded_lines, strict=True)]
    rows: dict[str, list[Table]] = {name: [] for name in TABLES}
    notes = {"experiment": [f"All are held against the experiment {BASE}: a run does not record what it extends."]}
    points = min(recorded.POINTS, max(20, 8 * recorded.POINTS // len(runs)))
    for one, lines in zip(described, recorded_lines, strict=True):
        curves = [_point(one["name"], line, "tokens", "seconds", "loss") for line in lines]
        rates = [
            _point(one["name"], line, *_RATES) for line in lines if any(line.get(key) is not None for key in _RATES)
        ]
        kept, spaced = recorded.thin(curves, "loss", points), recorded.evenly(rates, points)
        if len(kept) < len(curves):
            said = f"{one['name']}: {len(kept):,} of {len(curves):,} recorded lines are drawn"
            notes.setdefault("curves", []).append(f"{said}; the extremes of every stretch are kept.")
        if len(spaced) < len(rates):
            said = f"{one['name']}: the rates of {len(spaced):,} of {len(rates):,} recorded steps are drawn"
            notes.setdefault("curriculum", []).append(f"{said}, evenly spaced; the histogram counts all.")
        strengths = [_point(one["name"], line, _STRENGTH) for line in lines if line.get(_STRENGTH) is not None]
        rows["curves"] += kept
        rows["rates"] += spaced
        rows["spread"] += _spread(one["name"], lines)
        rows["stages"] += _stages(one["name"], lines)
        rows["strengths"] += recorded.evenly(strengths, points)
        along = recorded.curve(one["evaluated"])
        rows["bounds"] += _bounds(one["name"], along, lines)
        if along and (fewer := along[-1]["sequences"]) < (whole := one["evaluated"][-1]["sequences"]):
            said = (
                f"{one['name']}: the bound is drawn of {fewer:,} of the {whole:,} sequences that the run is judged by."
            )
            notes.setdefault("curves", []).append(said)
        rows["uncertainty"] += [
            {"run": one["name"], **row} for row in (recorded.quartiles(one["replay"]) if one["replay"] else ())
        ]
        priced = one.pop("priced")
        rows["frontier"] += [_priced(one["name"], each) for each in priced]
        of = {"text": one["text"], "importance": one["quality"], "uncertainty": one["replay"], "replay": one["replay"]}
        for section, table in {**of, "frontier": first(priced)}.items():
            if table and (table["step"] != one["model"] or section == "frontier"):
                at = f"; the run is at step {one['model']:,}" if table["step"] != one["model"] else ""
                notes.setdefault(section, []).append(f"{one['name']}: of step {table['step']:,}{at}.")
        if quality := one["quality"]:
            rows["bands"] += _bands(one["name"], quality)
            rows["bins"] += [{"run": one["name"], **each} for each in quality["bins"]]
    if counted := [one["name"] for one in described if one["counts"]]:
        said = "counts of neighbouring tokens are in the network from step 0, so the training loss begins low"
        notes.setdefault("curves", []).append(f"{joined(counted)}: {said}; the bound shows what is learned beyond.")
    data = {
        "format": 1,
        "kind": "runs",
        "title": heading(described),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "verdict": verdict(described, compared(folders)),
        "overview": table_of_bounds(described),
        "runs": described,
        "tables": rows,
        "notes": notes,
        "experiment": _experiment(names, resolved),
        "commands": again.commands(
            runs, [one["command"] for one in described], bool(rows["frontier"]), out=out, figures=figures
        ),
    }
    for one in described:
        one["evaluated"] = one["evaluated"][-1:]
        del one["source"]
    _fit(data)
    return data


TABLES = (
    *("curves", "rates", "spread", "stages", "strengths"),
    *("bounds", "bands", "bins", "uncertainty", "frontier", "arms"),
)
# The sections of the tables that have not its name.
_SECTIONS = {"bounds": "curves", "bands": "importance", "bins": "importance"}
_SECTIONS |= dict.fromkeys(("rates", "spread", "stages", "strengths"), "curriculum")
_RATES, _STRENGTH = ("mask_rate", "mask_rate_target"), "curriculum_strength"


def compared(folders: Sequence[RunFolder]) -> Table | None:
    """Return the recorded comparison of the final models of these runs with that of the first, or None."""
    if len(folders) > 1 and (found := recorded.comparison(folders[0])):
        return found if found["models"] == list(map(recorded.model_sum, folders)) else None
    return None


def _names(runs: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that tell them apart."""
    # A name may have bytes that are not UTF-8, which a page cannot have.
    paths = [Path(str(path.resolve()).encode(errors="backslashreplace").decode()) for path in runs]
    if len(set(paths)) < len(paths):
        twice = next(path for i, path in enumerate(runs) if paths[i] in paths[:i])
        raise UserError(f"{twice} is named twice; once will do")
    longest = max(len(path.parts) for path in paths)
    for length in range(1, longest + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names


def _described(name: str, folder: RunFolder, table: Table, lines: list[Table]) -> Table:
    """Return what the page says of one run."""
    last, evaluations = lines[-1] if lines else {}, list(recorded.tables(folder))
    try:
        objective, steps = str(table["objective"]["use"]), int(table["train"]["steps"])
        evaluated = recorded.of_one_kind(recorded.evaluated(evaluations), table)
        source = {section: dict(table.get(section, {})) for section in ("corpus", "tokenizer", "data")}
    except (KeyError, TypeError, ValueError, OverflowError):
        problem = f"{folder.resolved} is not the whole of an experiment"
        raise UserError(f"{problem}; copy the run again, or train again") from None
    of = evaluated[-1]["step"] if evaluated else last.get("step")
    return {
        "name": name,
        "objective": objective,
        "step": last.get("step", 0),
        "model": max(_newest(folder) or 0, last.get("step", 0)),
        "steps": steps,
        "trained": first(line.get("tokens") for line in lines if line["step"] == of),
        "tokens": last.get("tokens"),
        "seconds": last.get("seconds"),
        "evaluated": evaluated,
        "counts": _counted(table),
        "source": source | {"data": {key: source["data"].get(key) for key in _SEQUENCES}},
        "quality": recorded.quality(evaluations),
        "priced": recorded.priced(evaluations),
        "text": recorded.text(folder),
        "replay": recorded.replay(folder),
        "samples": recorded.samples(folder),
        "sampler": _sampler(table),
        "environment": _environment(folder),
        "command": again.command(folder),
        "resolved": tomli_w.dumps(table),
    }


def _counted(table: Table) -> bool:
    """Return whether counts of neighbouring tokens are in the network when it begins."""
    backbone = table.get("backbone")
    return table.get("init_from") is None and isinstance(backbone, dict) and bool(backbone.get("neighbours"))


def _sampler(table: Table) -> str:
    """Return the sampler of samples.txt in words, or an empty text."""
    with suppress(KeyError, TypeError, AttributeError):
        chosen = settings(table["sampler"])
        return f"{table['sampler']['use']}{f' ({chosen})' * bool(chosen)}, seed {table['seed']}"
    return ""


def _newest(folder: RunFolder) -> int | None:
    """Return the step of the newest model, or None."""
    try:
        return folder.newest()
    except UserError:
        return None


def _point(run: str, line: Table, *keys: str) -> Table:
    return {"run": run, **{key: figure(line.get(key)) for key in ("step", *keys)}}


def _spread(run: str, lines: list[Table]) -> list[Table]:
    """Return the share of the mask rates drawn in all recorded steps, of rows or blocks, in each bin of [0, 1]."""
    counts = [counts for line in lines if (counts := recorded.counts(line.get("mask_rates")))]
    if not counts:
        return []
    sums = [sum(each) for each in zip(*(each for each in counts if len(each) == len(counts[0])), strict=True)]
    total, bins = sum(sums), len(sums)
    return [
        {"run": run, "low": i / bins, "high": (i + 1) / bins, "drawn": n, "share": n / total}
        for i, n in enumerate(sums)
        if n
    ]


def _stages(run: str, lines: list[Table]) -> list[Table]:
    """Return the stages of the curriculum, with the steps at which each was first and last recorded."""
    stages: list[Table] = []
    for line in lines:
        stage = line.get("stage")
        if not isinstance(stage, str) or stage in ("none", "train"):  # of no curriculum, and of an objective without
            continue
        if stages and stages[-1]["stage"] == stage:
            stages[-1]["to"] = line["step"]
        else:
            stages.append({"run": run, "stage": stage, "from": stages[-1]["to"] if stages else 0, "to": line["step"]})
    return stages


def _bounds(run: str, evaluated: list[Table], lines: list[Table]) -> list[Table]:
    rows = []
    for table in evaluated:
        line = next((line for line in lines if line["step"] >= table["step"]), lines[-1] if lines else {})
        line = line if table["step"] else {"tokens": 0, "seconds": 0}
        for name, bound in table["bounds"].items():
            value, error = bound["value"], bound["stderr"]
            row = {"run": run, "bound": title(name), "value": value, "said": uncertain(value, error)}
            row |= {"low": figure(value - (error or 0)), "high": figure(value + (error or 0)), "step": table["step"]}
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
    low, high = figure(value - (error or 0)), figure(value + (error or 0))
    ends = {"low": low, "high": high, "said": uncertain(value, error)}
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
        table = from_json(read(folder.environment))
    except (OSError, ValueError):
        return []
    return rows({key: value for key, value in table.items() if key != "command"}) if isinstance(table, dict) else []


def _experiment(names: list[str], resolved: list[Table]) -> Table:
    """Return the keys that differ from the base, or between the runs: first these, then those."""
    from atat_zoo.experiment.loading import load, shipped

    # By its path: here a run may have the name of the base.
    tables = [dict(_flat(table)) for table in (load(str(shipped(BASE))).to_table(), *resolved)]
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
            yield path + key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _fit(data: Table) -> None:
    """Round the grids, and leave out until there is room for all: the last texts of every run, then longer things."""
    described = data["runs"]
    for one in described:
        for text in one["text"]["texts"] if one["text"] else ():
            for key in ("importance", "loss"):
                text[key] = text[key] and [[v if v is None else round(v, 3) for v in row] for row in text[key]]
            text["surprisal"] = text["surprisal"] and [v if v is None else round(v, 2) for v in text["surprisal"]]
    for cut in (_last_texts, _texts, _samples, _rows, _words):
        while _size(data) > _ROOM and cut(data):
            pass


def _size(data: Any) -> int:
    """Return the bytes of the data on the page, where some characters are written as six."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode("utf-8", "replace")) + 5 * sum(map(text.count, "<>&\u2028\u2029"))


def _last_texts(data: Table) -> bool:
    holders: list[list[Any]] = [one["text"]["texts"] for one in data["runs"] if one["text"]]
    holders += [sampler["texts"] for one in data["runs"] if one["replay"] for sampler in one["replay"]["samplers"]]
    longest = max(map(len, holders), default=0)
    for texts in holders if longest > 1 else ():
        del texts[longest - 1 :]
    return longest > 1


def _texts(data: Table) -> bool:
    """Leave out the largest texts and replays of runs, as many as are too much."""
    over = _size(data) - _ROOM
    held = [(_size(one[key]), i, key) for i, one in enumerate(data["runs"]) for key in ("text", "replay") if one[key]]
    for size, i, key in sorted(held, reverse=True):
        if over > 0:
            over -= size
            data["runs"][i][key] = None
            said = f"{data['runs'][i]['name']}: left out, for the page would be too large; make one of this run alone."
            data["notes"].setdefault(key, []).append(said)
    return False


def _samples(data: Table) -> bool:
    return _halved(data["runs"], "samples", "\n… the rest is in samples.txt")


def _words(data: Table) -> bool:
    return _halved(data["runs"], "resolved", "\n# the rest is in resolved.toml")


def _halved(runs: list[Table], key: str, rest: str) -> bool:
    one = max(runs, key=lambda run: len(run[key]))
    if len(one[key]) <= 2 * len(rest):
        return False
    one[key] = one[key].removesuffix(rest)[: len(one[key]) // 2 - len(rest)] + rest
    return True


def _rows(data: Table) -> bool:
    """Leave out every other row of the longest table."""
    name, rows = max(data["tables"].items(), key=lambda item: len(item[1]))
    if len(rows) > 200:
        data["tables"][name] = rows[::2]
        said = f"Of {name} only rows at even distances are drawn, for the page would be too large."
        notes = data["notes"].setdefault(_SECTIONS.get(name, name), [])
        notes += [said] * (said not in notes)
    return len(rows) > 200
