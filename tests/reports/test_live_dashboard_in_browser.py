"""The live page in a browser, while its run trains, is killed and continued, and its server is started anew."""

from __future__ import annotations

import re
import signal
import socket
import time
from contextlib import contextmanager, suppress

import pytest

from atat_zoo.experiment.runs import RunFolder
from tests import forked

pytestmark = pytest.mark.slow
STEPS = 60
# Where the points of the curve of the loss are from left to right, and how many bounds are drawn.
LINE = 'document.querySelector("#curves .loss .mark-line path")?.getAttribute("d") ?? ""'
CURVE = rf"[...({LINE}).matchAll(/[ML]([-\d.]+),/g)].map((point) => Number(point[1]))"
MARKS = ".mark-symbol:not(.role-legend-symbol) path"
BOUNDS = f"""document.querySelectorAll("#curves .bound {MARKS}").length"""


def wait_for(condition, what, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


@contextmanager
def watched(run, port):
    """Let `atat watch` show a run, and kill it."""
    server = forked.Atat(["watch", str(run.path), "--port", str(port)], run.path.parent)

    def answers():
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return True
        return server.poll() is not None

    wait_for(answers, "the server answers")
    assert server.poll() is None, server.communicate()
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.kill()


def test_a_page_follows_a_run_that_is_killed_and_continued_and_a_server_that_is_started_anew(tiny, browser):
    pytest.importorskip("vl_convert")
    run = RunFolder(tiny.root / "watched")
    said = [f"train.steps={STEPS}", "train.save_every=10", "train.evaluate_every=20"]
    training = forked.Atat(["train", str(tiny.path), "--out", str(run.path), *said], tiny.root)

    def train_until(step):
        """Let the training go on to a step at least, and stop it there: it is faster than the browser."""
        training.send_signal(signal.SIGCONT)
        wait_for(lambda: run.last_metrics().get("step", 0) >= step or training.poll() is not None, f"step {step}")
        training.send_signal(signal.SIGSTOP)
        return int(run.last_metrics()["step"])

    first = train_until(6)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    problems: list[str] = []
    page = browser.new_page()
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))

    def drawn(steps):
        """Wait until the page shows these steps, each of them once, in their order."""
        page.wait_for_function(f"{CURVE}.length >= {steps}", timeout=60_000)
        curve = page.evaluate(CURVE)
        assert (len(curve), curve) == (steps, sorted(set(curve)))

    with watched(run, port) as address:
        try:
            page.goto(address)
            page.wait_for_selector("html[data-drawn]")
            page.evaluate("window.same = true")
            drawn(first)
            assert page.evaluate(BOUNDS) == 1  # before the first step
            # What there is not yet has no section, not one that says so.
            assert page.locator(".missing").count() == 0
            sections = page.locator("main section").evaluate_all("(all) => all.map((one) => one.id)")
            assert sections == ["curves", "curriculum", "experiment", "environment", "commands"]
            shown = page.locator(".now").text_content()
            assert re.fullmatch(
                rf"training · step {first}/60 · [\d,]+ tokens/s · learning rate [\de.-]+ · about \d+ \w+ left · "
                r"updated at \d\d:\d\d:\d\d \S+",
                shown,
            )
            grown = train_until(first + 1)
            assert first < grown < STEPS
            drawn(grown)  # while it trains
        finally:
            training.kill()
    continued = forked.Atat(["train", "--resume", str(run.path)], tiny.root)
    out, err = continued.communicate()
    assert continued.returncode == 0, out + err
    with watched(run, port):
        page.wait_for_function(f"{BOUNDS} >= 4", timeout=60_000)
        drawn(STEPS)
        assert page.evaluate(BOUNDS) == 4
        order = page.locator("main section").evaluate_all("(all) => all.map((one) => one.id)")
        assert order == ["curves", "curriculum", "samples", "experiment", "environment", "commands"]
        assert page.locator(".now").text_content().startswith(f"finished · step {STEPS}/{STEPS} · ")
        assert page.evaluate("window.same")  # the page was not loaded again
    page.close()
    # The browser itself says that nobody answered it between the two servers.
    assert {problem for problem in problems if "ERR_CONNECTION_REFUSED" not in problem} == set()
