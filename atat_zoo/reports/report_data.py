"""The data of a report page from run folders: chart rows, texts, tables and sentences.

The module loads only results that runs have recorded, and imports no torch.
"""

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from atat_zoo import __version__
from atat_zoo.evaluation.results import store
from atat_zoo.evaluation.results import table as written
from atat_zoo.evaluation.results.format import NONE, joined, leaves, settings, uncertain
from atat_zoo.evaluation.results.quantity_names import title, words
from atat_zoo.evaluation.results.task_results import TaskResult, notes_of, task_results
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.reports import run_records
from atat_zoo.reports.run_list import whole
from atat_zoo.reports.run_records import figure, first
from atat_zoo.reports.verdict import heading, on_what, table_of_bounds, table_of_metrics, verdict
from atat_zoo.system.errors import UserError

Table = dict[str, Any]
Results = dict[tuple[str, int], TaskResult]  # of tasks, by title and seed
BASE = "mdlm"  # the experiment that the others modify
_SEQUENCES = ("length", "special_tokens", "packing", "remainder")  # the keys of [data] that determine the sequences
# Bytes of the data: together with the library (0.9 MB) and the charts, the page stays under 3 MB.
_ROOM = 2_000_000
# The tables of the charts, each with its section.
TABLES = {
    **{"curves": "curves", "rates": "curriculum", "spread": "curriculum", "stages": "curriculum"},
    **{"strengths": "curriculum", "bounds": "curves", "metrics": "metrics", "reliability": "metrics"},
    **{"bands": "importance", "bins": "importance"},
    **{"uncertainty": "uncertainty", "frontier": "frontier", "arms": "arms", "sensitivity": "arms"},
}
_RATES, _STRENGTH = ("mask_rate", "mask_rate_target"), "curriculum_strength"


def collect(runs: Sequence[Path], *, out: Path | None = None, figures: Path | None = None) -> Table:
    """Return the data of a page about one or more runs as a JSON object.

    `out` and `figures` are the options of `atat report`; they are part of the command that regenerates the page. Raises
    UserError for a path that is not a run folder, is passed twice, or has an incomplete experiment.
    """
    folders = [RunFolder(path) for path in runs]
    resolved = [folder.table() for folder in folders]
    names = short_names(runs)
    metrics = [folder.read_metrics(damaged=True) for folder in folders]
    described = [_described(*each) for each in zip(names, folders, resolved, metrics, strict=True)]
    rows: dict[str, list[Table]] = {name: [] for name in TABLES}
    notes = {"experiment": [f"Settings are compared with {BASE}, because a run does not record its base experiment."]}
    points = min(run_records.POINTS, max(20, 8 * run_records.POINTS // len(runs)))
    for run, lines in zip(described, metrics, strict=True):
        for name, drawn in _charts(run, lines, points, notes).items():
            rows[name] += [{"run": run["name"], **row} for row in drawn]
    if counted := [run["name"] for run in described if run["counts"]]:
        said = "the network includes the n-gram prior from step 0, so the training loss starts low."
        _note(notes, "curves", joined(counted), said)
    sentences, priced = list(verdict(described, compared(folders))), bool(rows["frontier"])
    trained = [run["command"] for run in described]
    more: Table = {"runs": described, "overview": table_of_bounds(described), "notes": notes}
    more["conditions"] = list(on_what(described))
    more["metrics"] = table_of_metrics(described)
    more["experiment"] = _experiment(names, resolved)
    more["tasks"] = task_tables({run["name"]: run.pop("tasks") for run in described})
    more["commands"] = commands(runs, trained, priced, out=out, figures=figures)
    data = page_data("runs", heading(described), sentences, rows, **more)
    for run in described:
        run["evaluated"] = run["evaluated"][-1:]
        del run["source"]
    samples = partial(_halved, key="samples", rest="\n… see samples.txt for the rest")
    experiments = partial(_halved, key="resolved", rest="\n# see resolved.toml for the rest")
    for cut in (_figures, _last_texts, _texts, samples, _rows, experiments):
        while _size(data) > _ROOM and cut(data):
            pass
    return data


def page_data(kind: str, title: str, verdict: list[str], tables: dict[str, list[Table]], **more: Any) -> Table:
    """Return the data that every page has, updated with the fields of `more`."""
    about = {"format": 1, "kind": kind, "title": title, "written": datetime.now(UTC).isoformat(timespec="seconds")}
    shown = {
        "version": __version__,
        "verdict": verdict,
        "conditions": (),
        "overview": None,
        "runs": (),
        "tables": tables,
        "notes": {},
    }
    return about | shown | more


def _note(notes: dict[str, list[str]], section: str, name: str, said: str) -> None:
    notes.setdefault(section, []).append(f"{name}: {said}")


def _charts(run: Table, lines: list[Table], points: int, notes: dict[str, list[str]]) -> dict[str, list[Table]]:
    """Return the rows of each chart of a run; add notes on rows that are left out or older than the run."""
    name = run["name"]
    curves = [_point(line, "tokens", "seconds", "loss") for line in lines]
    rates = [_point(line, *_RATES) for line in lines if any(line.get(key) is not None for key in _RATES)]
    strengths = [_point(line, _STRENGTH) for line in lines if line.get(_STRENGTH) is not None]
    kept, spaced = run_records.thin(curves, "loss", points), run_records.evenly(rates, points)
    if len(kept) < len(curves):
        said = f"{len(kept):,} of {len(curves):,} logged steps are drawn, with each interval's extremes of the loss."
        _note(notes, "curves", name, said)
    if len(spaced) < len(rates):
        said = f"{len(spaced):,} of {len(rates):,} logged mask rates are drawn, evenly spaced"
        _note(notes, "curriculum", name, f"{said}; the histogram uses all of them.")
    along = run_records.curve(run["evaluated"])
    if along and (fewer := along[-1]["sequences"]) < (whole := run["evaluated"][-1]["sequences"]):
        said = f"the curve uses {fewer:,} of the {whole:,} sequences of the final evaluation."
        _note(notes, "curves", name, said)
    quality, policies = run["quality"], run.pop("policies")
    of = {"text": run["text"], "importance": quality, "uncertainty": run["replay"], "replay": run["replay"]}
    for section, table in {**of, "frontier": first(policies)}.items():
        if table and (table["step"] != run["model"] or section == "frontier"):
            at = f"; the run is at step {run['model']:,}" if table["step"] != run["model"] else ""
            _note(notes, section, name, f"this was recorded at step {table['step']:,}{at}.")
    return {
        "curves": kept,
        "rates": spaced,
        "spread": _spread(lines),
        "stages": _stages(lines),
        "strengths": run_records.evenly(strengths, points),
        "bounds": _bounds(along, lines),
        "metrics": list(_metrics(along)),
        "reliability": list(_reliability(run["evaluated"][-1:])),
        "bands": _bands(quality) if quality else [],
        "bins": quality["bins"] if quality else [],
        "uncertainty": list(run_records.quartiles(run["replay"])) if run["replay"] else [],
        "frontier": [_frontier(policy) for policy in policies],
    }


def compared(folders: Sequence[RunFolder]) -> Table | None:
    """Return the recorded comparison of the runs' current final models with the first run's, or None without one."""
    if len(folders) > 1 and (found := run_records.kept(folders[0], "compare")):
        return found if found["models"] == list(map(run_records.model_sum, folders)) else None
    return None


def short_names(runs: Sequence[Path]) -> list[str]:
    """Return the shortest distinct ends of the paths; raise `UserError` if a path occurs twice."""
    # A name may contain bytes that are not UTF-8, which a page cannot contain.
    paths = [Path(str(path.resolve()).encode(errors="backslashreplace").decode()) for path in runs]
    if len(set(paths)) < len(paths):
        twice = next(path for i, path in enumerate(runs) if paths[i] in paths[:i])
        raise UserError(f"{twice} is passed twice; pass it once")
    lengths = range(1, 1 + max(len(path.parts) for path in paths))
    ends = (["/".join(path.parts[-length:]) for path in paths] for length in lengths)
    return next(names for names in ends if len(set(names)) == len(names))


def _described(name: str, folder: RunFolder, table: Table, lines: list[Table]) -> Table:
    """Return the data of one run."""
    last, evaluations, newest = lines[-1] if lines else {}, list(store.tables(folder)), 0
    with suppress(UserError):  # the run has no model yet
        newest = folder.newest()
    with whole(folder):
        objective, steps = str(table["objective"]["use"]), int(table["train"]["steps"])
        evaluated = run_records.of_one_kind(run_records.evaluated(evaluations), table)
        source = {section: dict(table.get(section, {})) for section in ("corpus", "tokenizer", "data")}
    of = evaluated[-1]["step"] if evaluated else last.get("step")
    environment, backbone = run_records.environment(folder), table.get("backbone")
    # Whether the network includes an n-gram prior from the beginning.
    counted = table.get("init_from") is None and isinstance(backbone, dict) and bool(backbone.get("ngram_prior"))
    return {
        "name": name,
        "objective": objective,
        "step": last.get("step", 0),
        "model": max(newest, last.get("step", 0)),
        "steps": steps,
        "trained": first(line.get("tokens") for line in lines if line["step"] == of),
        "tokens": last.get("tokens"),
        "seconds": last.get("seconds"),
        "evaluated": evaluated,
        "counts": counted,
        "source": source | {"data": {key: source["data"].get(key) for key in _SEQUENCES}},
        "quality": run_records.quality(evaluations),
        "policies": run_records.policy_nll(evaluations),
        "tasks": last_tasks(evaluations),
        "text": run_records.kept(folder, "text"),
        "replay": run_records.kept(folder, "replay"),
        "figures": run_records.figures(folder),
        "samples": run_records.samples(folder),
        "sampler": _sampler(table),
        "environment": [
            [key, shlex.join(map(str, value)) if isinstance(value, list) else str(value)]
            for key, value in leaves(environment, " ")
            if key.partition(" ")[0] != "command"
        ],
        "command": command(environment),
        "resolved": tomli_w.dumps(table),
    }


def _sampler(table: Table) -> str:
    """Return a description of the sampler that generated samples.txt, or an empty string."""
    with suppress(KeyError, TypeError, AttributeError):
        chosen = settings(table["sampler"])
        return f"{table['sampler']['use']}{f' ({chosen})' * bool(chosen)}, seed {table['seed']}"
    return ""


def _point(line: Table, *keys: str) -> Table:
    return {key: figure(line.get(key)) for key in ("step", *keys)}


def _spread(lines: list[Table]) -> list[Table]:
    """Return the distribution over bins of [0, 1] of the mask rates that all recorded steps sampled."""
    counts = [counts for line in lines if (counts := run_records.counts(line.get("mask_rates")))]
    sums = [sum(each) for each in zip(*(each for each in counts if len(each) == len(counts[0])), strict=True)]
    total, bins = sum(sums), len(sums)
    return [{"low": i / bins, "high": (i + 1) / bins, "drawn": n, "share": n / total} for i, n in enumerate(sums) if n]


def _stages(lines: list[Table]) -> list[Table]:
    """Return the stages of the curriculum with their first and last recorded steps."""
    stages: list[Table] = []
    for line in lines:
        stage = line.get("stage")
        if not isinstance(stage, str) or stage in ("none", "train"):  # no curriculum, or an objective without one
            continue
        if not stages or stages[-1]["stage"] != stage:
            stages.append({"stage": stage, "from": stages[-1]["to"] if stages else 0})
        stages[-1]["to"] = line["step"]
    return stages


def _bounds(evaluated: list[Table], lines: list[Table]) -> list[Table]:
    rows = []
    for table in evaluated:
        line = next((line for line in lines if line["step"] >= table["step"]), lines[-1] if lines else {})
        line = line if table["step"] else {"tokens": 0, "seconds": 0}
        for name, bound in table["bounds"].items():
            said = uncertain(bound["value"], bound["stderr"])
            row = {
                "bound": title(name, bound["factorisation"]),
                "value": bound["value"],
                "said": said,
                **_ends(bound["value"], bound["stderr"]),
                "step": table["step"],
            }
            rows.append(row | {key: figure(line.get(key)) for key in ("tokens", "seconds")})
    return rows


def _metrics(evaluated: list[Table]) -> Iterator[Table]:
    for table in evaluated:
        for name, metric in table["metrics"].items():
            value, error = metric["value"], metric["stderr"]
            row = {"metric": words(name), "value": value, "said": uncertain(value, error), **_ends(value, error)}
            yield row | {"step": table["step"]}


def _reliability(evaluated: list[Table]) -> Iterator[Table]:
    """Yield the confidence bins of an evaluation's reliability diagrams."""
    for table in evaluated:
        for name, metric in table["metrics"].items():
            yield from ({"of": words(name), **each} for each in metric["diagram"] or ())


def _frontier(policy: Table) -> Table:
    """Return the policy bound and the NFE of a sampler as recorded by `atat bench samplers`."""
    value, error = policy["value"], policy.pop("stderr")
    said = {"said": uncertain(value, error), "settings": settings(policy["settings"])}
    return policy | _ends(value, error) | said


def _ends(value: float, stderr: float | None) -> Table:
    """Return the ends of a value's error bar, ± one standard error."""
    low, high = (figure(value + sign * (stderr or 0)) for sign in (-1, 1))
    return {"low": low, "high": high}


def _bands(quality: Table) -> list[Table]:
    rows = []
    for order, band in enumerate(quality["bands"]):
        count = "–".join(dict.fromkeys((_short(band["least"]), _short(band["most"]))))
        for what in ("importance", "frequency", "entropy"):
            if (rho := band[f"{what}_spearman"]) is not None:
                row = {"band": count, "order": order, "orders by": what, "rho": rho}
                rows.append(row | {"loss": band["loss"], "tokens": band["tokens"]})
    return rows


def _short(count: float) -> str:
    """Return a short count for an axis, such as 12k for 12,288."""
    return f"{count:g}" if count < 1000 else f"{count / 1000:.{1 if count < 10_000 else 0}f}k"


def _experiment(names: list[str], resolved: list[Table]) -> Table:
    """Return the experiment's keys that differ between the runs, followed by those that differ from the base."""
    from atat_zoo.experiment.experiment_file import load

    # With its size, because a run may have the same name as the base.
    base = load(f"cpu/{BASE}", [f"name={BASE}"]).to_table()
    as_json = partial(json.dumps, ensure_ascii=False, default=str)
    tables = [
        {key: value if isinstance(value, str) else as_json(value) for key, value in leaves(table)}
        for table in (base, *resolved)
    ]
    keys = dict.fromkeys(key for table in tables for key in table if key != "name")
    rows = [[key, *(table.get(key, NONE) for table in tables)] for key in keys]
    rows = sorted((row for row in rows if len(set(row[1:])) > 1), key=lambda row: len(set(row[2:])) == 1)
    apart = sum(len(set(row[2:])) > 1 for row in rows)
    return {"columns": ["key", f"experiment {BASE}", *names], "rows": rows, "apart": apart}


def _size(data: Any) -> int:
    """Return the size of the data on the page in bytes; some characters are escaped as six bytes."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode("utf-8", "replace")) + 5 * sum(map(text.count, "<>&\u2028\u2029"))


def _figures(data: Table) -> bool:
    """Leave out the figures of the last run that has figures."""
    run = next((run for run in reversed(data["runs"]) if run["figures"]), None)
    if run:
        run["figures"] = []
        _note(data["notes"], "importance", run["name"], "figures are left out to keep the page small.")
    return run is not None


def _last_texts(data: Table) -> bool:
    holders: list[list[Any]] = [run["text"]["texts"] for run in data["runs"] if run["text"]]
    holders += [sampler["texts"] for run in data["runs"] if run["replay"] for sampler in run["replay"]["samplers"]]
    longest = max(map(len, holders), default=0)
    for texts in holders if longest > 1 else ():
        del texts[longest - 1 :]
    return longest > 1


def _texts(data: Table) -> bool:
    """Leave out the largest texts and replays of runs until the page is small enough."""
    over = _size(data) - _ROOM
    held = [(_size(one[key]), i, key) for i, one in enumerate(data["runs"]) for key in ("text", "replay") if one[key]]
    for size, i, key in sorted(held, reverse=True):
        if over > 0:
            over -= size
            data["runs"][i][key] = None
            said = "this is left out to keep the page small; write a report on only this run to see it."
            _note(data["notes"], key, data["runs"][i]["name"], said)
    return False


def _halved(data: Table, key: str, rest: str) -> bool:
    one = max(data["runs"], key=lambda run: len(run[key]))
    if len(one[key]) <= 2 * len(rest):
        return False
    one[key] = one[key].removesuffix(rest)[: len(one[key]) // 2 - len(rest)] + rest
    return True


def _rows(data: Table) -> bool:
    """Leave out every other row of the longest table."""
    name, rows = max(data["tables"].items(), key=lambda item: len(item[1]))
    if len(rows) > 200:
        data["tables"][name] = rows[::2]
        said = f"Only some rows of {name}, evenly spaced, are drawn to keep the page small."
        notes = data["notes"].setdefault(TABLES[name], [])
        notes += [said] * (said not in notes)
    return len(rows) > 200


# Tasks: one table per task, with a column for each run


def last_tasks(evaluations: Iterable[Mapping[str, Any]]) -> Results:
    """Return the result of each task and seed from the tables in evaluations/, at the highest step that has one."""
    found: Results = {}
    for result in sorted(task_results(evaluations), key=lambda result: result.step):
        found[result.task, result.seed] = result
    return found


def task_tables(by_run: Mapping[str, Results]) -> list[Table]:
    """Return a table per task and seed with the scores, standard errors and notes of the runs."""
    both = sorted(dict.fromkeys(each for results in by_run.values() for each in results))
    return [
        _task_table(task, seed, {run: of[task, seed] for run, of in by_run.items() if (task, seed) in of}, by_run)
        for task, seed in both
    ]


def _task_table(task: str, seed: int, results: Mapping[str, TaskResult], runs: Iterable[str]) -> Table:
    every = [score for result in results.values() for score in result.scores.values()]
    published = list(dict.fromkeys(name for score in every for name in score.published))
    rows = []
    for name in dict.fromkeys(name for result in results.values() for name in result.scores):
        of = {run: result.scores[name] for run, result in results.items() if name in result.scores}
        one = next(iter(of.values()))
        items = ", ".join(dict.fromkeys(f"{score.items:,}" for score in of.values()))
        theirs = [f"{one.published[each]:.2f}" if each in one.published else NONE for each in published]
        ours = [uncertain(of[run].value, of[run].stderr) if run in of else NONE for run in runs]
        rows.append([name, one.quantity, items, *ours, *theirs])
    steps = dict.fromkeys(result.step for result in results.values())
    at = [f"{joined([run for run, each in results.items() if each.step == step])} at step {step:,}" for step in steps]
    said = [
        f"Seed {seed}, {joined(at)}; ± one standard error over items.",
        *notes_of({run: [each] for run, each in results.items()}),
    ]
    if len(results) > 1:
        said.append("`atat compare RUN RUN --task` computes paired differences with confidence intervals.")
    columns = ["score", "quantity", "items", *runs, *(f"{name}, published" for name in published)]
    return written.Table(title=task, said=said, columns=columns, rows=rows).to_json()


# The commands that reproduce the runs of a page and the page itself


def command(environment: dict[str, Any]) -> str | None:
    """Return the command that started a run, quoted for a shell, or None if `environment` does not record it."""
    try:
        program, *words = map(str, environment["command"])
        if program.endswith("atat_zoo/train.py"):  # started by the launcher, which starts a process for each rank
            return shlex.join(["composer", "-n", str(environment["computes"]["ranks"]), "-m", "atat_zoo.train", *words])
        return shlex.join(["atat", *words])
    except (ValueError, KeyError, TypeError):
        return None


def commands(
    runs: Sequence[Path], trained: Sequence[str | None], frontier: bool, *, out: Path | None, figures: Path | None
) -> list[str]:
    """Return the shell commands that reproduce the page, from training the runs to writing the report.

    Runs are named as the caller passed them or, if they were trained in a different folder, by full path after a note.
    `trained` lists the training command of each run (see `command`); `frontier` tells whether there are policy bounds.
    """
    here = all(_makes(one, run) for one, run in zip(trained, runs, strict=True) if one)

    def word(path: Path) -> str:
        return shlex.quote(str(path if here else path.absolute()))

    folders = [word(run) for run in runs]
    every = " ".join(folders)
    options = [f" {option} {word(path)}" for option, path in (("--out", out), ("--figures", figures)) if path]
    return [
        *([] if here else ["# Run these commands in the folder where the runs were trained:"]),
        *filter(None, trained),
        *(f"atat eval {folder}" for folder in folders),
        *([f"atat compare {every}"] if len(runs) > 1 else []),
        f"atat report {every} --compute{' --frontier' * frontier}{''.join(options)}",
    ]


def _makes(command: str, run: Path) -> bool:
    """Return whether an `atat train` command in the working directory writes to this run folder."""
    words = [word.removeprefix("--out=") for word in shlex.split(command)]
    named = words if "--out" in command else [f"runs/{run.resolve().name}"]
    return any(os.path.abspath(each) == os.path.abspath(run) for each in named)
