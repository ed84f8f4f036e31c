"""Trainings that are stopped at a moment, continued, and compared with one that was left alone."""

import atexit
import functools
import io
import json
import os
import random
import shutil
import signal
import tarfile
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from atat_zoo.experiment.runs import RunFolder
from tests import forked
from tests.attack import moments
from tests.attack.driver import FAILED, FINE, REFUSED, Ended, Verdict, atat, judge, last_words, one_by_one, unreadable
from tests.faulty_server import serving
from tests.tiny import CLOCK, Tiny

BEGIN = [
    *("train", "tiny.toml", "--out", "run", "train.steps=9", "train.save_every=4", "train.evaluate_every=6"),
    *("data.sequences_per_shard=256", "train.keep_checkpoints=1"),
]
RESUME = ["train", "--resume", "run"]
# variant -> the words and the number of ranks
FOREIGN = [
    'corpus={use="webdataset", train=["ADDRESS/train-{0..3}.tar.gz"], validation=["ADDRESS/validation-0.tar.gz"]}',
    'data.transforms=["random_length", {use="repetition", n=2, min_distinct=0.9}]',
]
VARIANTS = {"one": ([], 1), "workers": (["data.workers=2"], 1), "two ranks": ([], 2), "foreign": (FOREIGN, 1)}
# Ten cases in a row are of these.
TEN = ("one", "one", "one", "workers", "one", "foreign", "workers", "one", "one", "two ranks")
ACTS = {
    "one": ("kill", "kill", "kill", "tear", "tear", "interrupt", "interrupt twice", "terminate", "full"),
    "workers": ("kill alone", "kill alone", "kill", "interrupt"),
    "two ranks": ("kill",),
    "foreign": ("kill", "kill", "tear", "terminate"),
}
STOPPED = {
    **dict.fromkeys(("kill", "tear", "kill alone"), (0, -signal.SIGKILL)),
    **dict.fromkeys(("interrupt", "interrupt twice"), (0, 130)),
    **dict.fromkeys(("full", "small"), (0, 2)),
    **{"terminate": (0, 143, -signal.SIGTERM), "": (0,)},
}
ATTEMPTS = 4


def prepare(base, variants=tuple(VARIANTS), extra=()):
    """Train each variant without an interruption, and write down its moments."""
    for variant in variants:
        folder = base / variant
        begun(folder)
        ended = train(variant, folder, moments.plan(log=folder / "moments"), extra=extra)
        assert ended.code == 0, f"the training that is left alone: {ended}"


def begun(folder):
    """Make a folder with the corpus and the experiment; its paths are relative, so that all runs may be the same."""
    folder.mkdir(parents=True)
    Tiny(folder, ".")


@functools.cache
def served():
    """Serve the tiny text as WebDatasets over HTTP until this process ends, and return the address."""
    context = ExitStack()
    atexit.register(context.close)
    folder = Path(context.enter_context(tempfile.TemporaryDirectory()))
    Tiny(folder)
    for split, shards in (("train", 4), ("validation", 1)):
        lines = (folder / f"{split}.txt").read_text().splitlines()
        for shard in range(shards):
            with tarfile.open(folder / f"{split}-{shard}.tar.gz", "w:gz") as tar:
                for number, line in enumerate(lines[shard::shards]):
                    member = tarfile.TarInfo(f"{number:04d}.json")
                    content = json.dumps({"text": line}).encode()
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return context.enter_context(serving(folder)).address


def train(variant, folder, env, file_limit=None, extra=()):
    """Begin the training, with `extra` words, or continue it if it was begun."""
    words, ranks = VARIANTS[variant]
    words = RESUME if RunFolder(folder / "run").exists else [*BEGIN, *words, *extra]
    words = [word.replace("ADDRESS", served()) if "ADDRESS" in word else word for word in words]
    if ranks == 1:
        return atat(words, folder, env=env, code=moments.CODE, file_limit=file_limit)
    together = forked.ranks(ranks, words, folder, env=env, code=moments.CODE)
    for _ in range(6000):
        if all(rank.wait(0.02) for rank in together) or any(rank.returncode for rank in together):
            break
    for rank in together:  # as a launcher does when one of them has ended badly
        if rank.returncode is None:
            # One that has just been started has no group of its own yet.
            for kill in (os.killpg, os.kill):
                with suppress(ProcessLookupError):
                    kill(rank.pid, signal.SIGKILL)
    said = [rank.communicate()[0] for rank in together]
    codes = [rank.returncode for rank in together]
    # The first rank's code, unless it only ended because of another's end.
    return Ended(0 if not any(codes) else -signal.SIGKILL, said[0], "", max(rank.memory for rank in together))


def attack(draw, number, seed, base, work):
    variant = TEN[number % 10]
    rank = draw.randrange(VARIANTS[variant][1])
    known = moments.read(base / variant / "moments", rank)
    # A variant's cases take one moment after the other, in an order of the seed's: in the end each has had its turn.
    order = random.Random(f"{seed} {variant}").sample(range(len(known)), len(known))
    turn = number // 10 * TEN.count(variant) + TEN[: number % 10].count(variant)
    shutil.rmtree(work)
    begun(work)
    story, memory = list[str](), 0
    for attempt in range(ATTEMPTS + 1):
        act = draw.choice(ACTS[variant]) if not attempt or draw.random() < 0.5 else ""
        if attempt == ATTEMPTS:
            act = ""
        at, limit = draw.randrange(len(known) // 2) if attempt else order[turn % len(known)], None
        if act == "full" and draw.random() < 0.5:
            act, limit = "small", int(10 ** draw.uniform(2, 5.5))
        log = work / f"moments-{attempt}"
        planned = "" if act == "small" else act
        ended = train(variant, work, moments.plan(planned, at if planned else -1, log, rank), limit)
        memory = max(memory, ended.memory)
        reached = moments.read(log, rank)[-1:] if planned else []
        story.append(f"{variant}: {act or 'left alone'} at {limit or f'{at} {reached}'}: exit code {ended.code}")
        if why := wrong(ended, act, variant):
            return failure(why, story, ended, memory)
        if ended.code == 0:
            break
        if draw.random() < 0.3:
            tear_record(draw, work / "run" / "metrics.jsonl")
    why = difference(base / variant, work)
    return failure(why, story, ended, memory) if why else Verdict(REFUSED if len(story) > 1 else FINE, "", memory)


def wrong(ended, act, variant):
    """Say what is wrong with the end of a process at which `act` was done."""
    if variant == "two ranks":
        return "" if ended.code in STOPPED[act] else f"does not continue: {ended.out[-300:]!r}"
    if act in ("kill", "tear", "kill alone") and ended.code != 0:
        return "" if ended.code in STOPPED[act] else judge(ended, (0,)).why or last_words(ended.err)
    return judge(ended, STOPPED[act]).why or (unreadable(ended.err) if ended.code == 2 else "")


def failure(why, story, ended, memory):
    return Verdict(FAILED, "\n  ".join([why, *story, f"{ended.out[-500:]}{ended.err[-1500:]}"]), memory)


def tear_record(draw, metrics):
    """Leave half a line at the end of the record, as a kill within a write does."""
    if metrics.exists():
        with metrics.open("ab") as file:
            file.write(json.dumps({"step": 10**6, "loss": 3.5}).encode()[: draw.randrange(1, 20)])


def difference(one, other):
    """Name the first file of two trainings that differs, or return an empty text."""
    for path in sorted((one / "run").rglob("*")):
        inside = path.relative_to(one)
        if path.is_dir() or path.name in (".lock", "environment.json") or "checkpoints" in inside.parts:
            continue
        if not (other / inside).is_file():
            return f"{inside} is not there"
        same = records(path) == records(other / inside) if path.name == "metrics.jsonl" else alike(path, other / inside)
        if not same:
            return f"{inside} is another"
    shards = next((one / "shards").glob("*/manifest.json"))
    if not alike(shards, other / shards.relative_to(one)):
        return "the shards are others"
    if left := [path.name for path in other.rglob("*.part")]:
        return f"unfinished files stay: {left}"
    return ""


def alike(one, other):
    return other.is_file() and one.read_bytes() == other.read_bytes()


def records(path):
    """Return the lines of a record without what a clock or the memory says."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in CLOCK} for line in lines]


KIND = one_by_one("kills", 3, attack, prepare)
