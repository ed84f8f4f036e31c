"""Run folders written by hand: small ones, with what `atat ls` reads, and full ones, with all that a page shows."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from atat_zoo.evaluation.results.quantity_names import NELBO
from atat_zoo.experiment import load
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.studies.differences import sensitivity
from atat_zoo.studies.study_schema import Grid

RESOLVED = """\
name = "{name}"
seed = 17
[objective]
use = "{objective}"
[train]
steps = 30
[evaluation]
split = "validation"
sequences = 8
mask_samples = 2
[evaluation.bound]
use = "exact_k"
"""
ATAT = "documented/atat"
CONFIRM = Path(__file__).parents[2] / "docs" / "studies" / "confirm.json"
# A PNG file with two grey pixels.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAAAAADRSSBWAAAAC0lEQVR4nGNg+A8AAQIBAEK+vGgAAAAASUVORK5CYII="
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


def write_run(path, *, objective="mdlm", steps=30, finished=False):
    """Write a run of 30 steps that has trained `steps` of them."""
    run = RunFolder(path)
    path.mkdir(parents=True)
    run.resolved.write_text(RESOLVED.format(name=path.name, objective=objective))
    for step in range(10, steps + 1, 10):
        line = {"step": step, "loss": 90 / step, "tokens": 512 * step, "tokens_per_second": 64.0, "seconds": 8.0 * step}
        run.append_metrics(line | {"learning_rate": 0.002 / step})
    if finished:
        run.model.mkdir()
        (run.model / "model.json").write_text("{}")
    return run


def write_evaluation(run, value, name=NELBO, *, stderr=None, file="", **changed):
    """Write an evaluation as the training records it, but for what is changed."""
    own = {"corpus": "", "split": "validation", "step": 30, "sequences": 8, "draws": 2, "seed": 17, "method": "exact_k"}
    counts = {"tokens": 512, "bytes": 1800, "characters": 1800, "words": 300, "padding": 0}
    table = {**own, **counts, "bounds": {name: {"value": value, "stderr": stderr or value / 50}}, **changed}
    run.evaluations.mkdir(exist_ok=True)
    _json(run.evaluations / f"{file or len(list(run.evaluations.iterdir()))}.json", table)


def make(
    path,
    *,
    experiment=ATAT,
    overrides=(),
    lines=45,
    estimator=True,
    words=None,
    report=True,
    seed=0,
    bound="nelbo",
    picture=None,
    images=None,
):
    """Write a finished run of 450 steps that has recorded everything, and return its folder."""
    run, random_ = RunFolder(path), random.Random(seed)
    path.mkdir(parents=True)
    loaded = load(experiment, ("train.steps=450" if lines <= 450 else f"train.steps={lines}", *overrides))
    run.resolved.write_text(loaded.to_toml(), encoding="utf-8")
    _json(run.environment, _environment(experiment))
    every = 450 // lines if lines <= 450 else 1
    steps = [every * (i + 1) for i in range(lines)]
    written = [_line(step, steps[-1], estimator, random_) for step in steps]
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in written))
    for share, value in ((0.4, 71.2371), (0.7, 61.4412), (1.0, 55.9381)):
        step = steps[math.ceil(share * lines) - 1]
        counts = {"reads": "two neighbours", "value": 80.035, "stderr": 1.542}
        counts |= {"percent": 100 * ((value + seed) / 80.035 - 1), "percent_stderr": 0.559}
        own = {"step": step, "sequences": 768, "draws": 4, "tokens": 49152, "ngram_prior": counts}
        own["metrics"] = _metrics(share)
        write_evaluation(run, value + seed, bound, stderr=1.2444, file=f"{step:08d}", **own)
    _json(run.evaluations / "samplers-2x16.json", _samplers(steps[-1]))
    write_task(run, steps[-1], 0.3481 + seed)
    if estimator:
        _json(run.evaluations / "importance.json", _quality(steps[-1]))
    tokens = [f" {word}" for word in TEXT.split()] * 3 if words is None else list(words)
    run.samples.write_text("".join(tokens) + "\n", encoding="utf-8")
    if report:
        more = {} if picture is None else {"picture": picture}  # absent in files of earlier versions
        of_text, of_replay = ({}, {}) if images is None else ({"images": images}, {"images": [images]})
        _json(run.report / "text.json", _text(tokens, steps[-1], estimator, random_) | more | of_text)
        _json(run.report / "replay.json", _replay(tokens, steps[-1], random_) | more | of_replay)
    return path


def _metrics(share):
    diagram = {"confidence": [0.1, 0.5, 0.9], "accuracy": [0.05, 0.4, 0.95 * share], "share": [0.6, 0.3, 0.1]}
    return {
        "calibration_error": {"value": 0.2 - 0.1 * share, "stderr": 0.0123, "table": diagram},
        "coherence": {"value": 0.1 * share, "stderr": None, "table": None},
        "distinct_2": {"value": None, "stderr": None, "table": None},
    }


def write_task(run, step, price, *, seed=17):
    """Write what a task has found, as `atat eval --task` keeps it; the gain has no number."""
    plain = {"stderr": None, "items": 2, "of": "e3", "exponential": False, "published": {}}
    scores = {
        "price": {**plain, "quantity": "nats per token", "value": price, "stderr": 0.02, "sums": [1.0, None]},
        "corpus": {**plain, "quantity": "perplexity", "value": 95.126, "exponential": True, "published": {"AR": 82.05}},
        "gain": {**plain, "quantity": "nats per token", "value": None},
    }
    scores = {name: {"sums": [], "weights": [3.0, 3.0], **score} for name, score in scores.items()}
    about = {"task": "infilling (gap = 3)", "step": step, "ema": True, "scores": scores, "notes": ["a <b>note</b>"]}
    settings = {"task": {"use": "infilling"}, "inputs": None, "seed": seed, "weights": "00"}
    _json(run.evaluations / f"task-infilling-{step}-{seed}.json", {"settings": settings, **about})


def _json(path, value):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def _environment(experiment):
    about = {"seed": 17, "computes": {"device": "cpu", "precision": "bf16", "ranks": 1}}
    about["command"] = ["atat", "train", experiment, "--out", "runs/it"]
    return about | {"packages": {"torch": "2.7.0"}, "git": {"commit": "0" * 40, "changed": False}}


def _line(step, steps, estimator, random_):
    share = step / steps
    rate = 0.55 + 0.05 * random_.random()
    stage = ("easy" if share < 0.3 else "medium" if share < 0.7 else "hard") if estimator else "none"
    strength = {"easy": -2.0, "medium": 0.0, "hard": 2.0}
    return {
        "step": step,
        "loss": 4 + 3 * math.exp(-6 * share) + 0.1 * random_.gauss(0, 1),
        "mask_rate": rate + 0.004 * random_.gauss(0, 1),
        "mask_rate_target": rate,
        "mask_rates": [random_.randrange(5) if 4 <= i < 18 else 0 for i in range(20)],
        "stage": stage,
        **({"curriculum_strength": strength[stage]} if estimator else {}),
        "tokens": step * 4096,
        "tokens_per_second": 3210.5,
        "seconds": 1.25 * step,
        "peak_memory": 2 << 30,
    }


def _quality(step):
    bands = [
        {"tokens": 9800, "types": 9, "least": 3 * 8**i, "most": 3 * 8 ** (i + 1) - 1, "loss": 6.0 - i,
         "importance_spearman": 0.31 + 0.05 * i, "frequency_spearman": 0.12 - 0.02 * i,
         "entropy_spearman": 0.42}
        for i in range(5)
    ]  # fmt: skip
    bins = [
        {"low": i / 10, "high": i / 10 + 0.1, "tokens": 4900, "importance": i / 10 + 0.05, "rank": 0.1 + 0.08 * i,
         "loss": 2 + i / 2}
        for i in range(10)
    ]  # fmt: skip
    return {"split": "validation", "step": step, "seed": 17, "tokens": 49000, "bands": bands, "bins": bins}


def _samplers(step):
    measured: list[dict[str, Any]] = [
        {"name": name, "steps": steps, "sampler": {"use": name, "steps": steps},
         "policy": {"quantity": "policy bound", "value": 54.0 + add + 90 / steps, "stderr": 1.9, "nfe": float(steps),
                    "sequences": 64}}
        for name, add in (("ancestral", 3.0), ("strided", 0.0))
        for steps in (8, 16, 32, 64)
    ]  # fmt: skip
    measured.append({"name": "remdm", "steps": 8, "sampler": {"use": "remdm"}, "policy": None, "unpriced": "remasks"})
    return {"step": step, "seed": 0, "measured": measured}


def _text(tokens, step, estimator, random_):
    rates = [round(0.1 * i, 1) for i in range(1, 10)]
    hard = [random_.random() for _ in tokens]

    def one(shift):
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


def _replay(tokens, step, random_):
    def one(at_once, again):
        order = random_.sample(range(len(tokens)), len(tokens))
        frames, left, evaluation = [], list(order), 0
        while left:
            evaluation += 1
            now, rest = left[:at_once], left[at_once:]
            hidden = [now[0]] if again and evaluation == 2 else []
            filled = [[i, tokens[i]] for i in now]
            open_ = [[i, 6 * len(left) / len(order) * random_.random()] for i in left]
            frames.append({"evaluation": evaluation, "filled": filled, "hidden": [], "open": open_})
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


def with_grids(path):
    """Write the results of the study `confirm` as if some of its arms were points of two grids; returns the file."""
    report = json.loads(CONFIRM.read_text())
    steps = [((450,), "mdlm"), ((360,), "bell_360"), ((315,), "bell_315")]
    scales = [((0.6, "on"), "bell_middle"), ((1.0, "on"), "bell_wide"), ((None, "off"), "mdlm")]
    grids = [Grid(arm="mdlm", keys=("train.steps",), points=steps)]
    grids.append(Grid(arm="mdlm", keys=("mask_rates.scale", "</script><b>"), points=scales))
    report["grids"] = sensitivity(grids, report)
    path.write_text(json.dumps(report))
    return path
