"""The parts of the GPU page: a JSON file that is written after each row, the page made from it, and the time limit."""

from __future__ import annotations

import contextlib
import json
import signal
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo.experiment.runs import write_json, write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

ENDED = ("failed", "unfinished")
MARKS = {True: "met", False: "**not met**", None: ""}


class OutOfTime(BaseException):
    """The exception for a time limit that is reached within a part; no library's `except Exception` catches it."""


@attrs.define
class Found:
    """The results of a part: rows (quantity, requirement, value, whether it is met), lines, and figures by name."""

    rows: list[tuple[str, str, str, bool | None]] = attrs.field(factory=list)
    lines: list[str] = attrs.field(factory=list)
    figures: dict[str, float] = attrs.field(factory=dict)
    keep: Callable[[], None] = lambda: None  # called after each row, so that no row is lost if the process ends

    def row(self, what: str, bar: str, seen: str, met: bool | None = None) -> None:
        """Add a row and print it."""
        self.rows.append((what, bar, seen, met))
        print(f"  {what}: {seen} {bar and f'(required: {bar})'} {MARKS[met]}".rstrip(), flush=True)
        self.keep()


@attrs.frozen
class Part:
    """A part of the page; `seconds` estimates its time on an H100 when nothing has been compiled yet."""

    name: str
    title: str
    seconds: float
    measure: Callable[[Any, Found], None]


@attrs.define
class Report:
    """The measured parts, under a heading that describes the conditions; nothing is written without a path.

    Attributes:
        heading: Device, versions and sizes; parts with a different heading cannot be reused.
        path: Path of the page; the JSON file is in the same folder.
    """

    heading: Mapping[str, Any]
    revision: str
    path: Path | None
    parts: dict[str, Any] = attrs.field(factory=dict)

    def go_on(self) -> None:
        """Load the saved parts; raise a `ValueError` if they were measured under different conditions."""
        if self.path is None or not self.json.is_file():
            return
        try:
            known = json.loads(self.json.read_text(encoding="utf-8"))
            heading, self.parts = known["heading"], dict(known["parts"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.json} cannot be read ({error}); pass --fresh to measure all again") from None
        for key, now in self.heading.items():
            if heading.get(key) != now:
                raise ValueError(f"{self.json}: {key} is {heading.get(key)}, but now {now}; pass --fresh to restart")

    @property
    def json(self) -> Path:
        """Path of the JSON file with the parts."""
        assert self.path is not None
        return self.path.with_suffix(".json")

    def measure(self, parts: Sequence[Part], setting: Any, seconds: float) -> None:
        """Measure the parts that are not done yet, one after the other, within a number of seconds.

        Parts that failed or were stopped before come last, because they may fail again and end the process.
        """
        end = setting.end = time.monotonic() + seconds
        for part in sorted(parts, key=lambda part: self.parts.get(part.name, {}).get("state") in ENDED):
            if self.parts.get(part.name, {}).get("state") == "done":
                continue
            left = end - time.monotonic()
            if left < part.seconds:
                why = f"it takes about {part.seconds:.0f} s, and {max(0, left):.0f} s were left"
                self.keep(parts, part.name, {"state": "left out", "why": why})
                continue
            print(f"-- {part.title}", flush=True)
            found, begun, outcome = Found(), time.monotonic(), {"state": "done"}
            found.keep = partial(self.so_far, parts, part.name, found, begun)
            setting.figures = {name: one.get("figures", {}) for name, one in self.parts.items()}
            try:
                with within(left):
                    part.measure(setting, found)
            except (Exception, OutOfTime) as error:
                traceback.print_exc()
                outcome = {"state": "failed", "why": " ".join(f"{type(error).__name__}: {error}".split())[:500]}
            self.keep(parts, part.name, self.outcome(outcome, found, begun))
            setting.tidy()

    def so_far(self, parts: Sequence[Part], name: str, found: Found, begun: float) -> None:
        """Write the results of an unfinished part, because it may never finish; another call measures it again."""
        self.parts[name] = self.outcome({"state": "unfinished", "why": "it was stopped here"}, found, begun)
        self.write(parts)

    def outcome(self, state: dict[str, Any], found: Found, begun: float) -> dict[str, Any]:
        """Return the record of a part that began at this time."""
        took = {"seconds": round(time.monotonic() - begun, 1), "revision": self.revision}
        return state | took | {"rows": found.rows, "lines": found.lines, "figures": found.figures}

    def keep(self, parts: Sequence[Part], name: str, outcome: dict[str, Any]) -> None:
        """Write the outcome of a part; a part that is left out now keeps its earlier outcome."""
        if outcome["state"] != "left out" or name not in self.parts:
            self.parts[name] = outcome
        print(f"  {outcome['state']}{': ' + outcome['why'] if 'why' in outcome else ''}", flush=True)
        self.write(parts)

    def write(self, parts: Sequence[Part]) -> None:
        """Write the JSON file and the page if there is a path."""
        if self.path is not None:
            write_json(self.json, {"heading": self.heading, "parts": self.parts})
            write_text(self.path, self.page(parts))

    def page(self, parts: Sequence[Part]) -> str:
        """Return the page as Markdown."""
        said = [f"- {key}: {value}" for key, value in self.heading.items()]
        done = sum(self.parts.get(part.name, {}).get("state") == "done" for part in parts)
        rows = [row for one in self.parts.values() for row in one.get("rows", ())]
        unmet = [row[0] for row in rows if row[3] is False]
        answer = f"{done} of {len(parts)} parts are done; {sum(row[3] is True for row in rows)} requirements are met"
        answer += f", not met: {'; '.join(unmet)}." if unmet else "."
        asked = "Does a GPU compute what a CPU computes, and how fast is it?"
        lines = ["# On a GPU", "", asked, "", answer, "", "`python -m benchmarks gpu` writes this page.", "", *said, ""]
        for part in parts:
            one = self.parts.get(part.name)
            if one is None:
                continue
            lines += [f"## {part.title}", ""]
            if one["state"] != "done":
                lines += [f"**{one['state'].capitalize()}**: {one['why']}.", ""]
            if one.get("rows"):
                table = [f"| {what} | {bar} | {seen} | {MARKS[met]} |" for what, bar, seen, met in one["rows"]]
                lines += ["| what | required | measured | |", "| --- | --- | --- | --- |", *table, ""]
            if one.get("lines"):
                lines += ["```text", *one["lines"], "```", ""]
            if "seconds" in one:
                lines += [f"{one['seconds']:.0f} s, at {one['revision']}.", ""]
        return "\n".join(lines)

    def missed(self, parts: Sequence[Part]) -> list[str]:
        """Return the requirements that are not met and the parts that are not done."""
        found = []
        for part in parts:
            one = self.parts.get(part.name, {"state": "left out"})
            found += [row[0] for row in one.get("rows", ()) if row[3] is False]
            found += [f"{part.name}: {one['state']}"] if one["state"] != "done" else []
        return found


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` inside the block when its seconds have passed."""

    def ring(*_: Any) -> None:
        raise OutOfTime(f"not done at the time limit, after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
