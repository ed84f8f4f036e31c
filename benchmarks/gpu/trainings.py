"""Training runs with Composer (against a bare loop, with ATAT's parts, a long one), and the tests that need a GPU."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.composer_overhead import BareLoop
from benchmarks.pairs import report

if TYPE_CHECKING:
    from atat_zoo.training import Result
    from benchmarks.gpu.measured import Found
    from benchmarks.gpu.setting import Setting

ROOT = Path(__file__).parents[2]
#: Seconds that a training takes besides its steps, the share of the rest that these have, seconds of a step where none
#: was measured, and the fewest steps.
BEGINNING, SHARE, UNKNOWN_STEP, LEAST = 25.0, 0.85, 0.15, 20


def median(result: Result, figure: str, warm: int) -> float | None:
    """Return the median of a metric over the lines after the first `warm` steps, or None if it was not recorded."""
    values = [line[figure] for line in result.folder.read_metrics() if line["step"] > warm and figure in line]
    return statistics.median(values) if values else None


def measure(setting: Setting, found: Found) -> None:
    """Train `mdlm` together with a bare loop, followed by the other experiments."""
    warm = setting.size.warm
    experiment = setting.experiment("mdlm", *setting.words)
    bare = BareLoop(experiment)
    mdlm = setting.trained(experiment, "mdlm", bare)
    ratio = 1 / report("Composer", "bare loop", bare.timed[warm:])
    found.row("speed of a step, relative to a bare loop", "≥ 0.95", f"{ratio:.3f}", ratio >= 0.95)
    used, speed = (median(mdlm, figure, warm) for figure in ("utilisation", "tokens_per_second"))
    assert speed is not None
    seen = "the GPU's peak is unknown" if used is None else f"{used:.1%}"
    found.row("model-FLOP utilisation of `mdlm`", "≥ 40 %", seen, None if used is None else used >= 0.4)
    found.row("tokens per second of `mdlm`", "", f"{speed:,.0f}")
    found.figures["step"] = setting.size.rows * setting.size.length / speed
    del bare
    for name in ("bell", "atat", "importance"):
        setting.tidy()
        other = median(setting.trained(setting.experiment(name, *setting.words), name), "tokens_per_second", warm)
        assert other is not None
        found.row(f"time of a step, `{name}` over `mdlm`", "≤ 1.06", f"{speed / other:.3f}", speed / other <= 1.06)


def waiting_tests(setting: Setting, found: Found) -> None:
    """Run the tests that need a GPU; if all are skipped, the row fails."""
    paths = setting.tests or sorted(
        str(path) for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text(encoding="utf-8")
    )
    words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *paths]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    said = [f"pytest exited with code {done.returncode}", *done.stdout.strip().splitlines()]
    found.row("tests that need a GPU", "pass", said[-1], done.returncode == 0 and "passed" in said[-1])
    found.lines += [line for line in said if line.startswith(("FAILED", "ERROR"))]


def long(setting: Setting, found: Found) -> None:
    """Train `mdlm` for the remaining time on the given text or on random words."""
    of = setting.figures
    step = of.get("trainings", {}).get("step") or of.get("steps", {}).get("compiled") or UNKNOWN_STEP
    left = setting.end - time.monotonic()
    steps = min(int(SHARE * (left - BEGINNING) / step), setting.size.most)
    if steps < LEAST:
        raise RuntimeError(f"{left:.0f} s are left, which is too short for {LEAST} steps")
    more = [*(setting.text or setting.words), f"train.steps={steps}", f"train.save_every={steps}"]
    more += ["train.log_every=10", "schedule.warmup_steps=10"]
    result = setting.trained(setting.experiment("mdlm", *more), "long")
    lines = result.folder.read_metrics()
    speed = median(result, "tokens_per_second", setting.size.warm)
    tokens = steps * setting.size.rows * setting.size.length
    found.row(
        f"`mdlm` for {steps} steps on {'the given text' if setting.text else 'random words'}", "", f"{tokens:,} tokens"
    )
    found.row("tokens per second", "", f"{speed:,.0f}" if speed else "too few steps")
    first, last = lines[0]["loss"], lines[-1]["loss"]
    found.row(
        f"loss at step {lines[0]['step']} and {lines[-1]['step']}", "falls", f"{first:.3f}, {last:.3f}", last < first
    )
    if result.evaluation is not None:
        found.lines.append(result.evaluation.sentence())
