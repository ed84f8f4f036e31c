"""An interrupted run continues bit for bit: killed, asked to stop, or in the middle of a checkpoint."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import forked

if TYPE_CHECKING:
    from tests.tiny import Tiny

pytestmark = pytest.mark.slow

COMPOSER = str(Path(sys.executable).with_name("composer"))

# Kills its own process with a checkpoint half written: after `good` checkpoints, in the middle of the next.
KILL_IN_CHECKPOINT = """
import os, signal, sys
import composer.utils.checkpoint as checkpoint
whole, good = checkpoint._write_checkpoint_file, [0]
def half(state, filename):
    whole(state, filename)
    good[0] += 1
    if good[0] > 2:
        os.truncate(filename, os.path.getsize(filename) // 2)
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint._write_checkpoint_file = half
from atat_zoo.cli import main
main()
"""


def wait_for_step(path: Path, step: int, process: subprocess.Popen[str] | forked.Atat) -> None:
    """Wait until a run has recorded a step."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        lines = path.read_text().splitlines() if path.is_file() else []
        if any(json.loads(line)["step"] >= step for line in lines if line.endswith("}")):
            return
        time.sleep(0.01)
    raise AssertionError(f"no step {step} in {path}")


def start(tiny: Tiny, run: str, *words: str) -> forked.Atat:
    """Begin a training that is slow enough to be caught."""
    return forked.Atat(["train", str(tiny.path), "--out", run, *words], tiny.root, merged=True)


def two_ranks(tiny: Tiny, *words: str) -> list[forked.Atat]:
    """Begin `atat train …` on two ranks."""
    return forked.ranks(2, ["train", *words], tiny.root)


def same(tiny: Tiny, run: str, reference: Path) -> None:
    """Assert that two runs recorded the same figures and ended with the same weights."""
    assert tiny.losses(run) == tiny.losses(reference)
    assert tiny.weights(run) == tiny.weights(reference)


@pytest.mark.parametrize("workers", [0, 2])
def test_sigkill_at_a_random_step(tiny: Tiny, uninterrupted: Path, workers: int) -> None:
    run = f"killed-{workers}"
    process = start(tiny, run, f"data.workers={workers}")
    wait_for_step(tiny.root / run / "metrics.jsonl", random.Random(workers).randrange(6, 20), process)
    process.kill()
    assert not (tiny.root / run / "model").exists()
    said = tiny.atat("train", "--resume", run).stdout
    assert "continuing" in said
    same(tiny, run, uninterrupted)


def test_sigkill_while_a_checkpoint_is_written(tiny: Tiny, uninterrupted: Path) -> None:
    killed = tiny.atat("train", str(tiny.path), "--out", "half", check=False, code=KILL_IN_CHECKPOINT)
    assert killed.returncode == -signal.SIGKILL
    tiny.atat("train", "--resume", "half")
    same(tiny, "half", uninterrupted)


def test_a_damaged_checkpoint_is_passed_over(tiny: Tiny, uninterrupted: Path) -> None:
    """The disk lost half of the newest checkpoint after it was complete: the one before it is used."""
    process = start(tiny, "damaged")
    wait_for_step(tiny.root / "damaged" / "metrics.jsonl", 17, process)
    process.kill()
    newest = sorted((tiny.root / "damaged" / "checkpoints").glob("*.pt"))[-1]
    os.truncate(newest, newest.stat().st_size // 2)
    said = tiny.atat("train", "--resume", "damaged").stdout
    assert "continuing damaged after step 10 of 24" in said
    same(tiny, "damaged", uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop(tiny: Tiny, uninterrupted: Path, number: signal.Signals) -> None:
    run = f"stopped-{number}"
    process = start(tiny, run)
    wait_for_step(tiny.root / run / "metrics.jsonl", 7, process)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, said
    assert f"continue with: atat train --resume {run}" in said
    assert "Traceback" not in said
    tiny.atat("train", "--resume", run)
    same(tiny, run, uninterrupted)


def test_two_ranks_killed(tiny: Tiny, uninterrupted: Path) -> None:
    """Bit-identical to two ranks that were not killed, and close to one rank; begun by the launcher and without it."""
    done = subprocess.run(
        [COMPOSER, "-n", "2", "-m", "atat_zoo.train", str(tiny.path), "--out", "two"],
        cwd=tiny.root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    killed = two_ranks(tiny, str(tiny.path), "--out", "two-killed")
    wait_for_step(tiny.root / "two-killed" / "metrics.jsonl", 11, killed[0])
    for rank in killed:
        rank.kill()
    for rank in two_ranks(tiny, "--resume", "two-killed"):
        said, _ = rank.communicate()
        assert rank.returncode == 0, said
    same(tiny, "two-killed", tiny.root / "two")
    # The order of summation differs, and with it a mask now and then, where u is within rounding of p.
    one, two = tiny.losses(uninterrupted), tiny.losses("two")
    assert one.keys() == two.keys()
    assert [two[s]["loss"] for s in two] == pytest.approx([one[s]["loss"] for s in one], rel=2e-2)


def test_two_ranks_asked_to_stop(tiny: Tiny) -> None:
    """The launcher hands it on; both ranks stop after the same step, which is saved."""
    process = subprocess.Popen(
        [COMPOSER, "-n", "2", "-m", "atat_zoo.train", str(tiny.path), "--out", "two-stopped", "train.steps=400"],
        cwd=tiny.root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_for_step(tiny.root / "two-stopped" / "metrics.jsonl", 7, process)
    process.terminate()
    said, _ = process.communicate(timeout=120)
    assert "continue with: atat train --resume two-stopped" in said
    steps = tiny.losses("two-stopped")
    newest = sorted((tiny.root / "two-stopped" / "checkpoints").glob("*.json"))[-1]
    assert json.loads(newest.read_text())["step"] == max(steps)


def test_resume_of_a_finished_run_changes_nothing(tiny: Tiny, uninterrupted: Path) -> None:
    before = tiny.weights(uninterrupted)
    tiny.atat("train", "--resume", str(uninterrupted))
    assert tiny.weights(uninterrupted) == before
