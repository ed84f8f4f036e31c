"""Run folders written by hand, with everything a report shows: nothing is trained."""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING, Any

from atat_zoo.experiment import load

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = (
    "</script><script>document.title = 'broken'</script>",
    "<img src=x onerror=\"document.title='broken'\">",
    "<!-- ",
    "שלום עולם",
    "\u202eright to left\u202c",
    "👩‍🚀🇩🇪",
    "a\0b",
    "]]>&lt;&amp;",
    "line\u2028end\n",
)
TEXT = "the people of this Republic have never doubted that peace with all nations is worth its price"


def make(
    path: Path,
    *,
    experiment: str = "documented/atat",
    overrides: tuple[str, ...] = (),
    lines: int = 45,
    estimator: bool = True,
    words: tuple[str, ...] | None = None,
    report: bool = True,
    seed: int = 0,
    bound: str = "nelbo",
) -> Path:
    """Write a finished run of 450 steps that has recorded everything, and return its folder."""
    random_ = random.Random(seed)
    path.mkdir(parents=True)
    loaded = load(experiment, ("train.steps=450" if lines <= 450 else f"train.steps={lines}", *overrides))
    (path / "resolved.toml").write_text(loaded.to_toml(), encoding="utf-8")
    _json(path / "environment.json", _environment(experiment))
    every = 450 // lines if lines <= 450 else 1
    steps = [every * (i + 1) for i in range(lines)]
    written = [_line(step, steps[-1], estimator, random_) for step in steps]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written))
    for share, value in ((0.4, 71.2371), (0.7, 61.4412), (1.0, 55.9381)):
        step = steps[math.ceil(share * lines) - 1]
        _json(path / "evaluations" / f"{step:08d}.json", _evaluation(step, value + seed, bound))
    _json(path / "evaluations" / "samplers-2x16.json", _samplers(steps[-1]))
    if estimator:
        _json(path / "evaluations" / "importance.json", _quality(steps[-1]))
    tokens = [f" {word}" for word in TEXT.split()] * 3 if words is None else list(words)
    (path / "samples.txt").write_text("".join(tokens) + "\n", encoding="utf-8")
    if report:
        _json(path / "report" / "text.json", _text(tokens, steps[-1], estimator, random_))
        _json(path / "report" / "replay.json", _replay(tokens, steps[-1], random_))
    return path


def _json(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def _environment(experiment: str) -> dict[str, Any]:
    return {
        "seed": 17,
        "computes": {"device": "cpu", "precision": "bf16", "ranks": 1},
        "command": ["atat", "train", experiment, "--out", "runs/it"],
        "packages": {"torch": "2.7.0"},
        "git": {"commit": "0" * 40, "changed": False},
    }


def _line(step: int, steps: int, estimator: bool, random_: random.Random) -> dict[str, Any]:
    share = step / steps
    rate = 0.55 + 0.05 * random_.random()
    return {
        "step": step,
        "loss": 4 + 3 * math.exp(-6 * share) + 0.1 * random_.gauss(0, 1),
        "mask_rate": rate + 0.004 * random_.gauss(0, 1),
        "mask_rate_target": rate,
        "stage": ("easy" if share < 0.3 else "medium" if share < 0.7 else "hard") if estimator else "none",
        "tokens": step * 4096,
        "tokens_per_second": 3210.5,
        "seconds": 1.25 * step,
        "peak_memory": 2 << 30,
    }


def _evaluation(step: int, value: float, bound: str) -> dict[str, Any]:
    one = {"nats_per_token": math.log(value), "value": value, "stderr": 1.2444, "bits_per_byte": 1.672}
    table = {"reads": "two neighbours", "counted": 47134, "value": 80.035, "stderr": 1.542}
    table |= {"percent": 100 * (value / 80.035 - 1), "percent_stderr": 0.559}
    conditions = {"corpus": "", "split": "validation", "step": step, "method": "exact_k", "sequences": 768, "draws": 4}
    return conditions | {"seed": 17, "tokens": 49152, "bounds": {bound: one}, "count_table": table}


def _quality(step: int) -> dict[str, Any]:
    bands = [
        {"tokens": 9800, "types": 9, "least": 3 * 8**i, "most": 3 * 8 ** (i + 1) - 1, "loss": 6.0 - i,
         "importance_spearman": 0.31 + 0.05 * i, "frequency_spearman": 0.12 - 0.02 * i}
        for i in range(5)
    ]  # fmt: skip
    bins = [
        {"low": i / 10, "high": i / 10 + 0.1, "tokens": 4900, "importance": i / 10 + 0.05, "rank": 0.1 + 0.08 * i,
         "loss": 2 + i / 2}
        for i in range(10)
    ]  # fmt: skip
    return {"split": "validation", "step": step, "seed": 17, "tokens": 49000, "bands": bands, "bins": bins}


def _samplers(step: int) -> dict[str, Any]:
    measured: list[dict[str, Any]] = [
        {"name": name, "steps": steps, "sampler": {"use": name, "steps": steps},
         "policy": {"quantity": "policy bound", "value": 54.0 + add + 90 / steps, "stderr": 1.9, "nfe": float(steps),
                    "sequences": 64}}
        for name, add in (("ancestral", 3.0), ("strided", 0.0))
        for steps in (8, 16, 32, 64)
    ]  # fmt: skip
    measured.append({"name": "remdm", "steps": 8, "sampler": {"use": "remdm"}, "policy": None, "unpriced": "remasks"})
    return {"step": step, "seed": 0, "measured": measured}


def _text(tokens: list[str], step: int, estimator: bool, random_: random.Random) -> dict[str, Any]:
    rates = [round(0.1 * i, 1) for i in range(1, 10)]
    hard = [random_.random() for _ in tokens]

    def one(shift: float) -> dict[str, Any]:
        importance = [[min(1.0, 0.8 * each + shift) for each in hard] for rate in rates]
        loss = [[9 * each * rate if i % 7 else None for i, each in enumerate(hard)] for rate in rates]
        return {
            "tokens": tokens,
            "maskable": [True] * len(tokens),
            "surprisal": [10 * each for each in hard],
            "importance": importance if estimator else None,
            "loss": loss,
        }

    return {
        "format": 1, "step": step, "split": "validation", "seed": 17, "draws": 4, "rates": rates,
        "estimator": "transformer" if estimator else None, "importance_depends_on_rate": False,
        "texts": [one(0.0), one(0.1)],
    }  # fmt: skip


def _replay(tokens: list[str], step: int, random_: random.Random) -> dict[str, Any]:
    def one(at_once: int, again: bool) -> dict[str, Any]:
        order = random_.sample(range(len(tokens)), len(tokens))
        frames = []
        left = list(order)
        evaluation = 0
        while left:
            evaluation += 1
            now, rest = left[:at_once], left[at_once:]
            hidden = [now[0]] if again and evaluation == 2 else []
            frames.append(
                {
                    "evaluation": evaluation,
                    "filled": [[i, tokens[i]] for i in now],
                    "hidden": [],
                    "open": [[i, 6 * len(left) / len(order) * random_.random()] for i in left],
                }
            )
            left = rest + hidden
            if hidden:
                frames.append({"evaluation": evaluation, "filled": [], "hidden": hidden, "open": []})
        return {"start": [None] * len(tokens), "frames": frames}

    samplers = []
    for name, at_once, again in (("strided", 4, False), ("ancestral", 2, True)):
        texts = [one(at_once, again) for _ in range(2)]
        counts = [text["frames"][-1]["evaluation"] for text in texts]
        samplers.append({"name": name, "settings": {"use": name}, "evaluations": counts, "texts": texts})
    return {
        "format": 1, "step": step, "seed": 17, "length": len(tokens), "uncertainty": "entropy", "unit": "nats",
        "samplers": samplers,
    }  # fmt: skip
