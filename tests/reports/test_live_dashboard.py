"""`atat watch`: the server of the live page, and the curves in a terminal."""

import http.client
import json
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.evaluation.results.quantity_names import PERPLEXITY
from atat_zoo.reports.live_dashboard import PageServer, frame, ticks
from atat_zoo.reports.report_data import collect
from atat_zoo.system.errors import UserError
from tests.cli.terminal import printed, received, refused
from tests.reports.run_folders import write_evaluation, write_run


@contextmanager
def serving(run):
    """Serve a run's page from a thread of this process."""
    with PageServer(run, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(server, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


# The page


@pytest.mark.slow
def test_the_page_and_its_data_are_served(tmp_path):
    pytest.importorskip("vl_convert")
    run = write_run(tmp_path / "run")
    with serving(run.path) as server:
        answer, page = get(server, "/")
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert b'"live":"/data"' in page
        answer, data = get(server, "/data")
        assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
        assert json.loads(data)["tables"] == collect([run.path])["tables"]
        assert get(server, "/favicon.ico")[0].status == 204
        assert get(server, "/resolved.toml")[0].status == 404
        assert get(server, "/../resolved.toml")[0].status == 404


def test_what_has_not_changed_is_not_sent_again(tmp_path):
    run = write_run(tmp_path / "run", steps=10)
    with serving(run.path) as server:
        first = get(server, "/data")[0].headers["ETag"]
        again, nothing = get(server, "/data", If_None_Match=first)
        assert (again.status, nothing, again.headers["ETag"]) == (304, b"", first)
        changes = [
            lambda: run.append_metrics({"step": 20, "loss": 2.0}),
            lambda: write_evaluation(run, 60.0, step=20),
            lambda: run.samples.write_text("we the people"),
            lambda: run.environment.write_text("{}"),
        ]
        seen = {first}
        for change in changes:
            change()
            answer, _ = get(server, "/data", If_None_Match=first)
            assert answer.status == 200
            seen.add(answer.headers["ETag"])
        assert len(seen) == 5
        assert [row["step"] for row in json.loads(get(server, "/data")[1])["tables"]["curves"]] == [10, 20]


def test_a_run_may_vanish_and_come_again(tmp_path):
    """As it does under `atat train --overwrite`: the page keeps what it shows, and is told of no error."""
    run = write_run(tmp_path / "run")
    with serving(run.path) as server:
        first = get(server, "/data")[0].headers["ETag"]
        shutil.rmtree(run.path)
        run.path.mkdir()
        assert get(server, "/data", If_None_Match=first)[0].status == 204
        answer, text = get(server, "/")
        assert (answer.status, text.decode()) == (
            503,
            f"{run.path} cannot be read at the moment. Reload this page later.\n",
        )
        run.path.rename(tmp_path / "old")
        assert get(server, "/data")[0].status == 204
        write_run(tmp_path / "run", steps=10)
        answer, data = get(server, "/data", If_None_Match=first)
        assert answer.status == 200
        assert [row["step"] for row in json.loads(data)["tables"]["curves"]] == [10]


OWN_NAMES = ("localhost:9000", "[::1]:8421", "LOCALHOST")  # the first by a tunnel
OTHERS = ("localhost.evil.example:80", "127.0.0.1.nip.io", "user@evil.example", "[::1", "")


def test_only_pages_of_this_machine_are_answered(tmp_path):
    """A page of elsewhere may give its name our address, and would then read the run."""
    run = write_run(tmp_path / "run")
    with serving(run.path) as server:
        tag = f'"{server.data()[0]}"'
        for host, status in {**dict.fromkeys(OWN_NAMES, 304), **dict.fromkeys(OTHERS, 403)}.items():
            answer, body = get(server, "/data", Host=host, If_None_Match=tag)
            assert (answer.status, b"run" in body) == (status, False), host
        assert server.server_address[0] == "127.0.0.1"


def test_a_port_in_use_is_a_sentence(atat, tmp_path):
    run = write_run(tmp_path / "run")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            UserError, match=f"--port {port}: the port cannot be opened: Address already in use; choose"
        ):
            PageServer(run.path, port)
        pytest.importorskip("vl_convert")
        assert refused(atat, "watch", str(run.path), "--port", str(port)).startswith(f"error: --port {port}: ")


def test_what_is_no_run_and_a_missing_package_are_named(atat, tmp_path, monkeypatch):
    assert "is not a run folder: resolved.toml is missing" in refused(atat, "watch", str(tmp_path))
    monkeypatch.setattr("atat_zoo.reports.find_spec", lambda name: None)
    run = write_run(tmp_path / "run")
    for words, package in (((), "altair"), (("--terminal",), "plotext")):
        said = refused(atat, "watch", str(run.path), *words)
        assert f"needs the package {package}; install it with `pip install 'atat-zoo[report]'`" in said


# The terminal


def test_a_frame_has_the_curves_and_where_the_run_is(atat, tmp_path):
    pytest.importorskip("plotext")
    for steps in (0, 10):
        begun = write_run(tmp_path / str(steps), steps=steps)
        assert frame(begun, 60, 30)[0].splitlines()[0].startswith(f"{steps}  mdlm  stopped  step {steps}/30")
    run = write_run(tmp_path / "run", steps=20)
    write_evaluation(run, 70.04, step=10)
    write_evaluation(run, 57.66, step=20)
    with run.lock():
        text, finished = frame(run, 60, 30)
    assert not finished
    first, second, third, fourth, *_ = text.split("\n")
    assert first == "run  mdlm  training  step 20/30  64 tokens/s"
    assert second == "learning rate 0.0001  about 1 min left"
    assert re.fullmatch(r"updated at \d\d:\d\d:\d\d \S+", third)
    assert fourth == f"{PERPLEXITY} 57.7 ± 1.2 at step 20"
    drawn = re.findall(r" (\S.*), against steps\n", text)
    assert drawn == [f"{PERPLEXITY} of 8 sequences", "training loss, nats per token"]
    assert "9.0" in text  # the loss at step 10, and that at step 20
    assert "4.5" in text
    assert max(map(len, text.split("\n"))) <= 60
    assert len(text.split("\n")) <= 30
    for option in ("--terminal", "--once"):  # where there is no terminal one frame is printed
        out = printed(atat, "watch", str(run.path), option)
        assert (out.count("against steps"), "\x1b" in out) == (2, False)


@given(st.integers(1, 10**7), st.integers(30, 200), st.floats(-1e4, 1e4))
def test_the_axis_has_its_ends_and_no_tick_is_left_out(steps, width, loss):
    plotext = pytest.importorskip("plotext")
    wanted = ticks(steps, width)
    assert (wanted[0], wanted[-1]) == (0, steps)
    assert len(wanted) == min(steps, 4) + 1 or width < 50
    plotext.clear_figure()
    plotext.limit_size(False, False)
    plotext.plot_size(width, 8)
    plotext.xlim(0, steps)
    plotext.xticks(wanted)
    plotext.plot([0, steps], [loss, 2.0], marker="braille")
    *_, axis, labels = plotext.uncolorize(plotext.build()).rstrip("\n").split("\n")
    assert [int(label) for label in labels.split()] == wanted
    assert axis.count("┬") == len(wanted)


@pytest.mark.parametrize(
    ("losses", "steps"),
    [((1e308, -1e308), 30), ((1e-308, 2e-308), 30), ((2.0, 1.0), 0), ((2.0, 1.0), 10**400)],
    ids=["difference", "small", "no steps", "steps"],
)
def test_what_a_terminal_cannot_draw_is_said_in_its_place(tmp_path, losses, steps):
    pytest.importorskip("plotext")
    run = write_run(tmp_path / "run", steps=0)
    run.resolved.write_text(run.resolved.read_text().replace("steps = 30", f"steps = {steps}"))
    for step, loss in enumerate(losses, 1):
        run.append_metrics({"step": step, "loss": loss})
    write_evaluation(run, 70.04, step=1)
    write_evaluation(run, 57.66, step=2)
    text, _ = frame(run, 60, 30)
    said = f"training loss, nats per token: cannot be drawn; {losses[0]:g} at step 1, {losses[1]:g} at step 2"
    assert said in text.split("\n")
    assert f"{PERPLEXITY} of 8 sequences, against steps" in text or steps != 30  # the other curve is drawn


@pytest.mark.slow
def test_a_terminal_shows_a_run_until_it_is_finished(tmp_path):
    pytest.importorskip("plotext")
    run = write_run(tmp_path / "run", steps=20)
    ours, theirs = pty.openpty()
    often = "from atat_zoo.cli import main, report_command; report_command._EVERY = 0.1; main()"
    words = [sys.executable, "-c", often, "watch", str(run.path), "--terminal"]
    env = os.environ | {"TERM": "xterm", "COLUMNS": "300", "LINES": "24"}
    with subprocess.Popen(words, stdout=theirs, stderr=theirs, stdin=theirs, env=env) as process:
        shown, pieces = b"", received(ours, process, theirs)
        while b"step 20/30" not in shown:
            shown += next(pieces)
        run.resolved.rename(tmp_path / "aside")  # gone for a moment
        while b"is not a run folder" not in shown:
            shown += next(pieces)
        (tmp_path / "aside").rename(run.resolved)
        run.append_metrics({"step": 30, "loss": 1.25, "tokens_per_second": 64.0})
        run.model.mkdir()
        (run.model / "model.json").touch()
        shown += b"".join(pieces)
        assert process.wait(60) == 0
    os.close(theirs)
    assert b"finished  step 30/30" in shown
    assert b"\x1b[?1049h" in shown  # what was on the terminal comes back
