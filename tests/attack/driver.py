"""Run the cases of a kind, judge how each ended, and count."""

import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import attrs

from tests import forked

MEMORY = 2 << 30  # bytes that a process may use
SPACE = 8 << 30  # bytes of addresses that it may reserve, 4 GB of them for libraries: more endangers the machine
SECONDS = 120  # that it may take
LONG = 30_000  # characters of a sentence that repeats what a person has written

FINE, REFUSED, FAILED = "fine", "refused", "failed"


class Ended(NamedTuple):
    """How a process ended: its exit code (negative for a signal, None when it did not end), output and memory."""

    code: int | None
    out: str
    err: str
    memory: int


class Verdict(NamedTuple):
    """What became of a case, why it failed, and the bytes of memory that it took."""

    outcome: str
    why: str = ""
    memory: int = 0


class Kind(NamedTuple):
    """A kind of cases, of which `share` are run at a scale of 1.

    `attack` gets the numbers of up to `batch` cases, the seed, the folder in which `prepare` has made files once, and
    an empty one; it returns their verdicts.
    """

    name: str
    share: int
    attack: Callable[[Sequence[int], int, Path, Path], list[Verdict]]
    prepare: Callable[[Path], None] = lambda base: None
    batch: int = 1


def one_by_one(name, share, attack, *prepare):
    """Return a kind whose cases are attacked alone: with source, number, seed, prepared folder and one of their own."""

    def attack_all(numbers, seed, base, work):
        return [attack(source(name, seed, number), number, seed, base, work) for number in numbers]

    return Kind(name, share, attack_all, *prepare)


def source(kind, seed, number):
    """Return the source of everything that is random in a case."""
    return random.Random(f"{kind} {seed} {number}")


def atat(words, cwd, *, env=None, seconds=SECONDS, space=SPACE, **how):
    """Run `atat …` to its end.

    One that takes longer than `seconds` is asked to stop as a person would, by Ctrl-C, once and again: work that takes
    long is no fault if it can be stopped. `how` is handed on to `forked.Atat`.
    """
    process = forked.Atat(words, cwd, env=env, space=space, **how)  # type: ignore[arg-type]
    for patience in (seconds, 20, 20):
        if process.wait(patience):
            return Ended(process.returncode, *process.communicate(), process.memory)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
    return Ended(None, *process.kill(), process.memory)


def judge(ended, codes=(0, 2)):
    """Judge how a process ended by what holds for all of them."""
    said = f"{ended.out}\n{ended.err}"
    refused = ended.code not in (0, 130, 143, -signal.SIGTERM)
    why = ""
    if ended.code is None:
        why = f"does not end, not even by Ctrl-C: {said[-300:]!r}"
    elif "Traceback (most" in said or "Fatal Python error" in said or "Exception ignored" in said:
        why = last_words(said)
    elif ended.code not in codes:
        why = f"exit code {ended.code}: {said.strip()[-300:]!r}"
    elif ended.memory > MEMORY:
        why = f"{ended.memory >> 20} MiB of memory: {said.strip()[-200:]!r}"
    elif ended.code == 2:
        why = unreadable(ended.err)
    return Verdict(FAILED if why else REFUSED if refused else FINE, why, ended.memory)


def unreadable(message):
    """Say what makes a message no list of sentences, or return an empty text."""
    if not message.strip():
        return "refused without a word"
    for line in message.rstrip("\n").split("\n"):
        if strange := [c for c in line if not c.isprintable() and c not in "\t\r"]:
            return f"a message with {strange[0]!r} in it: {line[:200]!r}"
        if len(line) > LONG:
            return f"a sentence of {len(line)} characters: {line[:200]!r}"
    return ""


def last_words(text):
    """Return the exception at the end of a traceback and the line of the zoo that it came from."""
    places = re.findall(r'File "[^"]*?(atat_zoo/[^"]+)", line (\d+), in (\S+)', text)
    ends = re.findall(r"^(?:[\w.]+(?:Error|Exception|Interrupt|Exit|Warning|TooLong)\b.*)$", text, re.MULTILINE)
    where = " in {}:{} {}".format(*places[-1]) if places else ""
    return f"{ends[-1][:300] if ends else text.strip()[-300:]!r}{where}"


@attrs.define
class Tally:
    name: str
    verdicts: dict[int, Verdict] = attrs.field(factory=dict)
    seconds: float = 0.0

    def count(self, outcome):
        return sum(verdict.outcome == outcome for verdict in self.verdicts.values())

    @property
    def failures(self):
        return {n: verdict.why for n, verdict in sorted(self.verdicts.items()) if verdict.outcome == FAILED}

    @property
    def row(self):
        memory = max((verdict.memory for verdict in self.verdicts.values()), default=0) / 2**30
        counts = "".join(f"{self.count(outcome):>10,}" for outcome in (REFUSED, FINE, FAILED))
        return f"{self.name:<14}{len(self.verdicts):>8,}{counts}{memory:>9.2f} GB{self.seconds:>8.0f} s"


HEAD = f"{'kind':<14}{'cases':>8}{'sentence':>10}{'fine':>10}{'failures':>10}{'memory':>12}{'time':>10}"


def run(kind, numbers, seed, *, jobs=1, keep=None):
    """Run cases of a kind, `jobs` at a time; with `keep`, their files stay there."""
    tally, began = Tally(kind.name), time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"attack-{kind.name}-") as place:
        base = Path(place) / "base"
        base.mkdir()
        kind.prepare(base)

        def attack(some):
            # The commands run one folder further down: what they put beside their folder stays in ours.
            outer = keep / f"{kind.name}-{some[0]}" if keep else Path(place) / str(some[0])
            work = outer / "here"
            shutil.rmtree(outer, ignore_errors=True)
            work.mkdir(parents=True)
            verdicts = kind.attack(some, seed, base, work)
            tally.verdicts.update(zip(some, verdicts, strict=True))
            for number, verdict in zip(some, verdicts, strict=True):
                if verdict.outcome == FAILED:  # at once, for who cannot wait for the end
                    print(f"failed: {reproduction(kind.name, seed, number)}", file=sys.stderr, flush=True)
            if not keep:
                with suppress(RecursionError):  # whatever a case has put there
                    shutil.rmtree(outer, ignore_errors=True)

        chunks = [numbers[start : start + kind.batch] for start in range(0, len(numbers), kind.batch)]
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(attack, chunks))  # which raises what one of them has raised
    tally.seconds = time.monotonic() - began
    return tally


def reproduction(kind, seed, number):
    return f"python -m tests.attack {kind} --seed {seed} --only {number}"
