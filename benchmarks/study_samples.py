"""What ATAT's orders are worth in text: generative perplexity beside entropy, and MAUVE, as docs/study-samples.json."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from benchmarks.baselines import atat

RESULT = Path(__file__).parents[1] / "docs" / "study-samples.json"
# ATAT as documented, which has an estimator to order by; and ATAT as it now is. A cooler draw lowers the perplexity of
# any text: with several temperatures the reference can be read off at the entropy of the others.
RUNS = {
    "documented-seed17": [
        *({"use": "ancestral", "steps": 64, "temperature": each} for each in (1.0, 0.9, 0.8)),
        {"use": "uncertainty_guided", "first": "most_certain"},
        {"use": "uncertainty_guided", "first": "most_uncertain"},
        {"use": "strided", "stride": 16},
    ],
    "bell_high-seed17": [{"use": "ancestral", "steps": 64}, {"use": "strided", "stride": 16}],
}
KEPT = ("nats_per_token", "nats_per_token_stderr", "unigram_entropy", "distinct_2", "nfe", "tokens_per_second", "mauve")


def main() -> None:
    """Print a row for each sampler; the runs are those of `atat study screen`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, default=Path("runs/screen"))
    parser.add_argument("--by", default="autoregressive-seed17", help="the run that judges")
    parser.add_argument("--number", type=int, default=1000, help="texts for each sampler")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}, too")
    given, _ = parser.parse_known_args(sys.argv[2:])
    rows = []
    for name, samplers in RUNS.items():
        for sampler in samplers:
            table = ", ".join(f"{key} = {json.dumps(value)}" for key, value in sampler.items())
            words = ["judge", str(given.runs / name), "--by", str(given.runs / given.by), "--number", str(given.number)]
            done = atat(*words, "--mauve", "--sampler", f"{{{table}}}", "--json", capture=True)
            rows.append(row(name, sampler, json.loads(done)))
            print(json.dumps(rows[-1]), flush=True)
    if given.write:
        RESULT.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def row(name: str, sampler: dict[str, Any], judged: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a judgement: scores of the written and of the held-out text."""
    scores = {which: {key: judged[which][key] for key in KEPT} for which in ("model", "data")}
    for each in scores.values():
        each["generative_perplexity"] = math.exp(each["nats_per_token"])
    return {"run": name, "sampler": sampler, **scores["model"], "data": scores["data"]}
