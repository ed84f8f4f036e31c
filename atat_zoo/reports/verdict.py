"""The first lines of a page: the trained runs, their results against baselines, and warnings."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from atat_zoo.evaluation.results.evaluation import by_chance
from atat_zoo.evaluation.results.format import NONE, cell, interval, joined, number, uncertain
from atat_zoo.evaluation.results.quantity_names import PERPLEXITY, TABLE, words
from atat_zoo.reports.run_list import bounds, own_bound
from atat_zoo.reports.run_records import conditions, curve, first
from atat_zoo.system.errors import clip

Table = dict[str, Any]
_ERROR = "± is one standard error over sequences"


def heading(runs: list[Table]) -> str:
    """Return the title of a page: the name of its run, or the names of the runs that it compares with the first."""
    names = [run["name"] for run in runs]
    if len(names) == 1:
        return names[0]
    others, bounds = names[1:], {_first(run)[0] for run in runs if run["evaluated"]}
    what = f"{bounds.pop()} of " if len(bounds) == 1 else ""
    shown = joined([*others[:3], *([f"{len(others) - 3} more"] if others[3:] else [])])
    return f"{what[:1].upper()}{what[1:]}{shown} against {names[0]}"


def verdict(runs: list[Table], comparison: Table | None) -> Iterator[str]:
    """Yield sentences on the trained runs, their results against baselines, and warnings."""
    measured = [run for run in runs if run["evaluated"]]
    if len(runs) == 1:
        yield from _one(runs[0])
        return
    if not measured:
        yield f"{number(len(runs), 'run')}; none has an evaluation on held-out text yet."
    by_bound = _grouped(measured, lambda run: _first(run)[0])
    for name, alike in by_bound.items():
        texts = [sorted(of_text, key=lambda run: (_first(run)[1], run["name"])) for of_text in _texts(alike)]
        order = ", lowest first" + " on each text" * (len(texts) > 1) if len(alike) > len(texts) else ""
        ranked = "; ".join(joined([f"{run['name']} {_first(run)[2]}" for run in of_text]) for of_text in texts)
        yield f"{name[0].upper()}{name[1:]}{order}: {ranked}."
    same = len({conditions(run["evaluated"][-1]) for run in measured}) == len(_texts(measured)) == 1
    yield from _differences(runs, measured, comparison, same, len(by_bound) > 1)
    for run in runs:
        yield from _look(run)


def on_what(runs: list[Table]) -> Iterator[str]:
    """Yield the conditions of the evaluations: their text, masks and seed."""
    measured = [run for run in runs if run["evaluated"]]
    on = {words: joined([run["name"] for run in alike]) for words, alike in _grouped(measured, _on).items()}
    if on:
        same = len(on) == 1 < len(runs) and len({conditions(run["evaluated"][-1]) for run in measured}) == 1
        conditions_of = [words if len(on) == 1 else f"{names} {words}" for words, names in on.items()]
        yield f"Evaluated{':' * (len(on) > 1)} {'; '.join(conditions_of)}{', the same for every run' * same}; {_ERROR}."
    if len(runs) == 1 and measured:
        for other in list(bounds(measured[0]["evaluated"][-1]).values())[1:]:
            yield f"{other.quantity[0].upper()}{other.quantity[1:]}: {uncertain(other.value, other.stderr)}."


def _one(run: Table) -> Iterator[str]:
    size = f", {number(run['trained'], 'token')}" if run["trained"] else ""
    last = run["evaluated"][-1] if run["evaluated"] else None
    steps = number(last["step"] if last else run["step"], "training step")
    corpus = _corpus(run["source"].get("corpus"), "train")
    yield f"{run['name']}: objective {run['objective']}, {steps}{size}{corpus}."
    if last is None:
        yield f"The run has no evaluation on held-out text yet; run `atat eval {run['name']}`."
    else:
        name, _, said = _first(run)
        against, prior = "", last.get("ngram_prior") or {}
        if prior.get("percent") is not None:
            low = "lower" if prior["percent"] < 0 else "higher"
            by = uncertain(abs(prior["percent"]), prior["percent_stderr"])
            its = uncertain(prior["value"], prior["stderr"])
            against = f", {by} % {low} than that of an {TABLE} of {prior['reads']} ({its})"
        yield f"{name[0].upper()}{name[1:]} {said}{against}."
    yield from _look(run)


def _look(run: Table) -> Iterator[str]:
    """Yield one sentence: a warning about a useless estimator, the change of the bound, and an unfinished run."""
    said, last = [], run["evaluated"][-1] if run["evaluated"] else {}
    if by_chance(last.get("importance_spearman"), last.get("importance_chance")):
        rho, chance = last["importance_spearman"], 2 * last["importance_chance"]
        found = "the same importance for every token" if rho is None else f"Spearman ρ {rho:.2f}, chance ±{chance:.2f}"
        said.append(f"its importance estimator orders tokens no better than chance ({found})")
    said += _beginning(run)
    if isinstance(run["steps"], int) and run["step"] < run["steps"]:
        said.append(f"it is unfinished, at step {run['step']:,} of {run['steps']:,}")
    if said:
        yield f"{run['name']}: {'; '.join(said)}."


def _beginning(run: Table) -> list[str]:
    """Return the change in the bound from step 0 to the last step on the same text."""
    along = curve(run["evaluated"])
    if not along or along[0]["step"] or not along[-1]["step"]:
        return []
    began, last = along[0], along[-1]
    fewer = last["sequences"] < run["evaluated"][-1]["sequences"]
    where = f" on {last['sequences']:,} of these sequences" if fewer else ""
    prior = " (n-gram prior only)" * run["counts"]
    # Without errors: the sequences and masks are the same, so these are not the errors of the difference.
    values = [own_bound(table).value for table in (began, last)]
    then, now = (uncertain(value, None) for value in values)
    went = "fell" if values[1] < values[0] else "did not fall:"
    return [f"its held-out {PERPLEXITY} {went} from {then} at step 0{prior} to {now} at step {last['step']:,}{where}"]


def _on(run: Table) -> str:
    """Return the conditions of a run's last evaluation."""
    table = run["evaluated"][-1]
    masks = f"{number(table['draws'], 'mask')} each by {table['method']}" if table["draws"] else "no masks"
    text = f"{table['split']} text{_corpus(run['source'].get('corpus'), table['split'])}"
    return f"on {number(table['sequences'], 'sequence')} of {text}, {masks}, seed {table['seed']}"


def _corpus(corpus: Any, split: str) -> str:
    """Return ` of files (a.txt, b.txt)`: a corpus with its path, or the files of the split."""
    if not isinstance(corpus, dict):
        return ""
    named = (corpus[key] for key in ("path", split, "train") if isinstance(corpus.get(key), str | list) and corpus[key])
    parts = (_corpus(part, split) for part in corpus.get("components") or () if isinstance(part, dict))
    files = first(named) or [part.removeprefix(" of ") for part in parts]
    names = files if isinstance(files, str) else ", ".join(map(str, files))
    return f" of {corpus.get('use')}" + (f" ({clip(names, 100)})" if names else "")


def _grouped(runs: list[Table], key: Callable[[Table], Any]) -> dict[Any, list[Table]]:
    found: dict[Any, list[Table]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found


def _texts(runs: list[Table]) -> list[list[Table]]:
    """Return the runs grouped by the text and the tokenizer of their last evaluations."""

    def text(run: Table) -> Any:
        return *conditions(run["evaluated"][-1])[:5], json.dumps(run["source"].get("tokenizer"), default=str)

    return list(_grouped(runs, text).values())


def _first(run: Table) -> tuple[str, float, str]:
    """Return the name, value and formatted value of a run's main bound in its last evaluation."""
    bound = own_bound(run["evaluated"][-1])
    return bound.quantity, bound.value, uncertain(bound.value, bound.stderr)


def _differences(
    runs: list[Table], measured: list[Table], comparison: Table | None, same: bool, mixed: bool
) -> Iterator[str]:
    """Yield sentences on the differences between the runs, or on why they are unknown without a `comparison`."""
    if comparison is None:
        apart, several = _apart(runs), len(_texts(measured)) > 1
        if several and (apart or len({conditions(run["evaluated"][-1])[:2] for run in measured}) == 1):
            why = f"{joined(apart or ['the text of the corpus'])} {'differ' if len(apart) > 1 else 'differs'}"
            yield f"The runs cannot be compared, because they were evaluated on different tokens: {why}."
            return
        if mixed:
            yield "The factorisations differ and some values are bounds, so a lower value need not mean a better model."
        if apart and len(measured) < len(runs):  # it is unknown whether their text is the same
            return
        why = "the runs share text and masks, so" if same else "on the same text and masks,"
        why = f"{why} a paired difference is more precise than either value"
        yield f"Paired differences are not recorded ({why}); `atat report … --compute` computes them."
        return
    differences = [row["bounds"][0]["difference"] for row in comparison["runs"]]
    changes = [f"{run['name']} {interval(*of.values())}" for run, of in zip(runs, differences, strict=True) if of]
    if changes:
        yield f"Against {runs[0]['name']}: {joined(changes)}, in exp(nats per token)."
        yield "The 95 % CIs are paired by sequence and mask, and do not include the variation between training seeds."
    else:
        yield f"The recorded comparison with {runs[0]['name']} does not list a difference for any run."


def _apart(runs: list[Table]) -> list[str]:
    """Return the corpus and tokenizer keys that differ between the runs, or only `use` if the components differ."""
    found = []
    for section in dict.fromkeys(section for run in runs for section in run["source"]):
        tables = [run["source"].get(section, {}) for run in runs]
        every = dict.fromkeys(key for table in tables for key in table)
        keys = [key for key in every if any(table.get(key) != tables[0].get(key) for table in tables)]
        found += [f"{section}.{key}" for key in (["use"] if "use" in keys else keys)]
    return found


def table_of_bounds(runs: list[Table]) -> Table:
    """Return a table with a row for each run: its objective, main bound, steps, tokens and seconds."""
    rows = []
    for run in runs:
        last = run["evaluated"][-1] if run["evaluated"] else None
        name, _, said = _first(run) if last else (NONE, 0.0, NONE)
        step = f"{run['step']:,}" + (f" of {run['steps']:,}" if run["steps"] not in (None, run["step"]) else "")
        costs = cell(run["tokens"], ","), cell(run["seconds"], ",.0f")
        rows.append([run["name"], run["objective"], name, said, step, *costs])
    return {"columns": ["run", "objective", "quantity", "value", "steps", "tokens", "seconds"], "rows": rows}


def table_of_metrics(runs: list[Table]) -> Table:
    """Return a table with a row for each metric in the last evaluations: the value and standard error of each run."""
    last = [run["evaluated"][-1]["metrics"] if run["evaluated"] else {} for run in runs]
    said = [{title: uncertain(each["value"], each["stderr"]) for title, each in metrics.items()} for metrics in last]
    titles = dict.fromkeys(title for metrics in said for title in metrics)
    rows = [[words(title), *(metrics.get(title, NONE) for metrics in said)] for title in titles]
    return {"columns": ["metric", *(run["name"] for run in runs)], "rows": rows}
