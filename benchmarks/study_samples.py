"""Generative perplexity, entropy and MAUVE of texts from each decoding order, for docs/results/study-samples.json."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

from benchmarks.baselines import atat

RESULT = Path(__file__).parents[1] / "docs" / "results" / "study-samples.json"
# A lower temperature lowers the perplexity of any text, so the reference is interpolated between several temperatures
# at the entropy of the other texts.
ANCESTRAL = [{"use": "ancestral", "steps": 64, "temperature": each} for each in (1.0, 0.9, 0.8)]
# study -> run -> samplers; the judge model is the autoregressive run of the same study and seed.
RUNS: dict[str, dict[str, list[dict[str, Any]]]] = {
    # ATAT as documented but for the time, which has an estimator to order by; and the bell.
    "screen": {
        "without_time-seed17": [
            *ANCESTRAL,
            {"use": "uncertainty_guided", "first": "most_certain"},
            {"use": "uncertainty_guided", "first": "most_uncertain"},
            {"use": "strided", "stride": 16},
        ],
        "bell-seed17": [ANCESTRAL[0], {"use": "strided", "stride": 16, "offset": "random"}],
    },
    # As many evaluations of MDLM in its own process and in the same turns.
    "sets": {
        "mdlm-seed18": [
            *ANCESTRAL,
            {"use": "ancestral", "steps": 16, "temperature": 1.0},
            {"use": "strided", "stride": 16},
        ],
        "sets-seed18": [{"use": "strided", "stride": 16}],
    },
}
KEPT = ("nats_per_token", "nats_per_token_stderr", "unigram_entropy", "distinct_2", "nfe", "tokens_per_second", "mauve")


def main() -> None:
    """Print a row for each sampler of the runs that `atat study` trained."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--study", choices=RUNS, nargs="+", default=[*RUNS])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder that contains the studies' folders")
    parser.add_argument("--num-samples", type=int, default=1000, help="number of texts per sampler")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}, too")
    given, _ = parser.parse_known_args(sys.argv[2:])
    for study in given.study:
        rows = rows_of(given.runs / study, RUNS[study], given.num_samples)
        print(table_of(rows))
        if given.write:
            known = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
            RESULT.write_text(json.dumps(known | {study: rows}, indent=1) + "\n", encoding="utf-8")


def rows_of(folder: Path, runs: dict[str, list[dict[str, Any]]], number: int) -> list[dict[str, Any]]:
    """Return the rows for a number of texts from each sampler, for the runs in a folder."""
    rows = []
    for name, samplers in runs.items():
        judge = folder / f"autoregressive-{name.rpartition('-')[2]}"
        for sampler in samplers:
            words = ["judge", str(folder / name), "--judge", str(judge), "--num-samples", str(number)]
            done = atat(*words, "--mauve", "--sampler", f"{{{settings(sampler)}}}", "--json", capture=True)
            rows.append(row(name, sampler, json.loads(done)))
            print(json.dumps(rows[-1]), flush=True)
    return rows


def row(name: str, sampler: dict[str, Any], judged: dict[str, Any]) -> dict[str, Any]:
    """Return the recorded scores of a judgement: those of the generated and of the held-out text."""
    scores = {which: {key: judged[which][key] for key in KEPT} for which in ("model", "data")}
    for each in scores.values():
        each["generative_perplexity"] = math.exp(each["nats_per_token"])
    return {"run": name, "sampler": sampler, **scores["model"], "data": scores["data"]}


def settings(sampler: dict[str, Any]) -> str:
    """Return a sampler's settings as inline TOML without braces."""
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in sampler.items())


def at_entropy(rows: list[dict[str, Any]], entropy: float) -> float | None:
    """Return the generative perplexity of ancestral text with this entropy (nats), or None if no temperature has it.

    Between two temperatures, log perplexity is linear in the unigram entropy.
    """
    points = sorted((each["unigram_entropy"], each["nats_per_token"]) for each in rows)
    for (low, a), (high, b) in itertools.pairwise(points):
        if low <= entropy <= high:
            return math.exp(a + (b - a) * (entropy - low) / (high - low))
    return None


def table_of(rows: list[dict[str, Any]]) -> str:
    """Return the table of a page; a run without ancestral texts is compared with the other runs' ancestral texts."""
    lines = [
        "| run | sampler | NFE | generative perplexity | unigram entropy | ancestral text of equal entropy | MAUVE |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in rows:
        ancestral = [row for row in rows if row["sampler"] in ANCESTRAL]
        own = [row for row in ancestral if row["run"] == each["run"]] or ancestral
        reference = None if each in own else at_entropy(own, each["unigram_entropy"])
        change = "" if reference is None else f"{reference:.0f} ({each['generative_perplexity'] / reference - 1:+.0%})"
        scores = f"{each['generative_perplexity']:.1f} | {each['unigram_entropy']:.2f} | {change} | {each['mauve']:.2f}"
        name = settings(each["sampler"]).removeprefix("use = ").replace('"', "")
        lines.append(f"| `{each['run'].partition('-')[0]}` | {name} | {each['nfe']:.1f} | {scores} |")
    data = rows[0]["data"]
    scores = f"{data['generative_perplexity']:.1f} | {data['unigram_entropy']:.2f} | | "
    lines.append(f"| validation text | | | {scores} |")
    return "\n".join(lines) + "\n"
