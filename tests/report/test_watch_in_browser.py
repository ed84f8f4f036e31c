"""The live page in a browser, while its run is killed and continued."""

from __future__ import annotations

import shutil
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from atat_zoo.run import RunFolder
from tests import forked
from tests.report.test_watch import serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.tiny import Tiny

pytestmark = pytest.mark.slow
STEPS = 60
# Where the points of the curve of the loss are from left to right, and how many bounds are drawn.
LINE = 'document.querySelector("#curves .mark-line path")?.getAttribute("d") ?? ""'
CURVE = rf"[...({LINE}).matchAll(/[ML]([-\d.]+),/g)].map((point) => Number(point[1]))"
MARKS = ".mark-symbol:not(.role-legend-symbol) path"
BOUNDS = f"""(document.querySelectorAll("#curves figure")[1]?.querySelectorAll("{MARKS}").length ?? 0)"""


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def check(curve: list[float], steps: int) -> None:
    """Check that each step is drawn once: none is missing, and the curve never goes back."""
    assert len(curve) == steps
    assert curve == sorted(set(curve))


def test_a_run_that_is_killed_and_continued_goes_on_in_the_page(tiny: Tiny) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is missing")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium")
    pytest.importorskip("vl_convert")
    run = RunFolder(tiny.root / "watched")
    said = [f"train.steps={STEPS}", "train.save_every=10", "train.evaluate_every=20"]
    training = forked.Atat(["train", str(tiny.path), "--out", str(run.path), *said], tiny.root)
    wait_for(lambda: run.last_metrics().get("step", 0) >= 12 or training.poll() is not None, "the training begins")
    training.send_signal(signal.SIGSTOP)  # or it might be finished before the browser has begun
    problems: list[str] = []
    with serving(run.path) as server, playwright.sync_playwright() as drive:
        browser = drive.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(server.address)
        page.wait_for_selector("html[data-drawn]")
        page.evaluate("window.same = true")
        training.kill()
        killed = run.last_metrics()["step"]
        assert killed < STEPS
        page.wait_for_function(f"{CURVE}.length >= {killed}", timeout=60_000)
        check(page.evaluate(CURVE), killed)
        continued = forked.Atat(["train", "--resume", str(run.path)], tiny.root)
        out, err = continued.communicate()
        assert continued.returncode == 0, out + err
        page.wait_for_function(f"{CURVE}.length >= {STEPS} && {BOUNDS} >= 3", timeout=60_000)
        check(page.evaluate(CURVE), STEPS)
        assert page.evaluate(BOUNDS) == 3
        assert page.evaluate("window.same")  # the page was not loaded again
        browser.close()
    assert problems == []
