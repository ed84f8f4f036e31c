"""The live dashboard of a run: a page that is served on localhost only, and text curves for a terminal.

The dashboard does not change if the run's files disappear for a moment, for example when the run is trained again.
"""

import hashlib
import json
import sys
import textwrap
import threading
from contextlib import suppress
from datetime import datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from atat_zoo.evaluation.results import store
from atat_zoo.evaluation.results.format import lasting, uncertain
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.experiment.runs.model_files import DESCRIPTION
from atat_zoo.reports.html_report import page
from atat_zoo.reports.report_data import collect
from atat_zoo.reports.run_list import FINISHED, IMPORTED, TRAINING, ListedRun, glance, own_bound
from atat_zoo.reports.run_records import curve, evaluated, figure, of_training, thin
from atat_zoo.system.errors import UserError

_RECENT = 10  # lines of metrics.jsonl from which the remaining time is estimated
_HERE = "127.0.0.1"
# Names of this machine. A request under any other name comes from a page that tries to read ours.
_NAMES = ("localhost", _HERE, "::1")


def stamp(run: RunFolder) -> str:
    """Return a hash that changes when a shown file changes in time or size, or training begins or ends."""
    shown = [run.resolved, run.environment, run.metrics, run.samples, run.model / DESCRIPTION]
    said: list[Any] = [run.in_use]
    for path in [*shown, *store.files(run), *sorted(run.report.glob("*.json"))]:
        with suppress(OSError):
            state = path.stat()
            said.append((path.name, state.st_mtime_ns, state.st_size))
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]


class PageServer(ThreadingHTTPServer):
    """A server on localhost for the page of a run at `/` and the data of the run at `/data`."""

    daemon_threads = True

    def __init__(self, run: Path, port: int) -> None:
        self.run = RunFolder(run)
        self._lock, self._tag, self._data = threading.Lock(), "", b""
        try:
            super().__init__((_HERE, port), _Handler)
        except OSError as error:
            problem = f"--port {port}: the port cannot be opened: {error.strerror}"
            raise UserError(f"{problem}; choose a different port, or 0 for a free one") from None

    @property
    def address(self) -> str:
        """The URL of the page."""
        return f"http://{_HERE}:{self.server_port}/"

    def data(self) -> tuple[str, bytes]:
        """Return the `stamp` of the run, and the data of its page as JSON.

        Raises UserError or OSError if the run does not exist, even if only for a moment.
        """
        with self._lock:
            tag = stamp(self.run)  # before reading the files, so that the next check notices changes made meanwhile
            if tag != self._tag:
                data = collect([self.run.path]) | {"now": now(self.run, glance(self.run.path, ""))}
                self._data, self._tag = json.dumps(data, allow_nan=False).encode(), tag
            return self._tag, self._data

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error, unless the browser closed the connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        host = None
        with suppress(ValueError):
            host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        if host not in _NAMES:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"This page is available only on this machine.\n")
            return
        try:
            answer = self._asked(self.path.partition("?")[0])
        except Exception:  # a bug; the terminal shows where
            text = b"This page cannot be created; see the error in the terminal that runs `atat watch`.\n"
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", text)
            raise
        self._answer(*answer)

    def _asked(self, path: str) -> tuple[HTTPStatus, str, bytes, str]:
        if path not in ("/", "/data"):
            # Browsers always request an icon, and report an error if the request fails.
            return HTTPStatus.NO_CONTENT if path == "/favicon.ico" else HTTPStatus.NOT_FOUND, "", b"", ""
        try:
            tag, data = self.server.data()
            if path == "/data" and self.headers.get("If-None-Match") == f'"{tag}"':
                return HTTPStatus.NOT_MODIFIED, "", b"", tag
            if path == "/data":
                return HTTPStatus.OK, "application/json", data, tag
            return HTTPStatus.OK, "text/html; charset=utf-8", page(json.loads(data), live="/data").encode(), ""
        except (UserError, OSError):
            if path == "/data":
                return HTTPStatus.NO_CONTENT, "", b"", ""  # the page stays as it is
            text = f"{self.server.run.path} cannot be read at the moment. Reload this page later.\n"
            return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", text.encode("utf-8", "replace"), ""

    def _answer(self, status: HTTPStatus, kind: str, body: bytes, tag: str = "") -> None:
        self.send_response(status)
        headers = {"Content-Type": kind, "ETag": tag and f'"{tag}"', "Cache-Control": "no-cache"}
        headers |= {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}
        if status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        """Do not log requests."""


def now(run: RunFolder, seen: ListedRun) -> list[str]:
    """Return phrases on a run: its state, step and, if known, speed, learning rate, time left and last update."""
    lines = [line for line in run.read_metrics(damaged=True) if figure(line.get("seconds")) is not None]
    said = [seen.state] if seen.state == IMPORTED else [seen.state, f"step {seen.step}/{seen.steps}"]
    if lines:
        last, before = lines[-1], lines[-_RECENT] if len(lines) >= _RECENT else {"step": 0, "seconds": 0.0}
        said += [f"{last['tokens_per_second']:,.0f} tokens/s"] if "tokens_per_second" in last else []
        rate = figure(last.get("learning_rate"))
        said += [] if rate is None or seen.state == FINISHED else [f"learning rate {rate:.2g}"]
        if seen.state == TRAINING and seen.steps and last["step"] > before["step"]:
            each = (last["seconds"] - before["seconds"]) / (last["step"] - before["step"])
            said.append(f"about {lasting(max(0, seen.steps - last['step']) * each)} left")
    with suppress(OSError):
        at = datetime.fromtimestamp(run.metrics.stat().st_mtime).astimezone()
        said.append(f"updated at {at:%H:%M:%S %Z}")
    return said


def ticks(steps: int, width: int) -> list[int]:
    """Return ticks at quarters of the steps, or at the halves or the ends if the labels would not fit."""
    parts = next((parts for parts in (4, 2) if (parts + 1) * (len(str(steps)) + 3) <= width), 1)
    return sorted({steps * i // parts for i in range(parts + 1)})


def frame(run: RunFolder, width: int, height: int) -> tuple[str, bool]:
    """Return text curves of bounds and loss for a terminal of this size, and whether the run is finished.

    Raises UserError or OSError if the run does not exist, even if only for a moment.
    """
    import plotext

    seen = glance(run.path, run.path.resolve().name)
    if seen.problem:
        raise UserError(seen.problem)
    lines = [line for line in run.read_metrics(damaged=True) if figure(line.get("loss")) is not None]
    curves: dict[str, list[tuple[int, float]]] = {}
    for table in curve(of_training(evaluated(store.tables(run)), run.table())):
        bound = own_bound(table)
        curves.setdefault(f"{bound.quantity} of {table['sequences']:,} sequences", []).append((bound.step, bound.value))
    curves["training loss, nats per token"] = [(line["step"], line["loss"]) for line in thin(lines, "loss")]
    drawn = {title: points for title, points in curves.items() if len(points) > 1}
    parts = [seen.name, str(seen.objective), *now(run, seen)]
    whole = textwrap.wrap("  ".join(part.replace(" ", "\xa0") for part in parts), max(30, width))
    said = [line.replace("\xa0", " ") for line in whole]
    if seen.bound:
        said.append(f"{seen.bound.quantity} {uncertain(seen.bound.value, seen.bound.stderr)} at step {seen.bound.step}")
    each = max(8, (height - 1 - len(said)) // max(1, len(drawn)))
    for title, points in drawn.items():
        plotext.clear_figure()
        plotext.theme("clear")
        plotext.limit_size(False, False)
        plotext.plot_size(max(30, width), each)
        plotext.title(f"{title}, against steps")
        try:
            plotext.xlim(0, seen.steps)
            plotext.xticks(ticks(seen.steps or 0, max(30, width)))
            plotext.plot(*zip(*points, strict=True), marker="braille")
            said += plotext.uncolorize(plotext.build()).split("\n")
        except (ArithmeticError, ValueError):  # values so large or small that their differences are not finite
            (start, one), (end, other) = points[0], points[-1]
            said.append(f"{title}: cannot be drawn; {one:g} at step {start}, {other:g} at step {end}")
    return "\n".join(line.rstrip() for line in said).rstrip(), seen.state in (FINISHED, IMPORTED)
