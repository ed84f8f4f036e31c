"""Files of runs and of shards are damaged: a command that reads them gives the same result, or a sentence."""

import functools
import hashlib
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.attack import moments
from tests.attack.damage import damage, forge
from tests.attack.driver import FAILED, Verdict, atat, judge, one_by_one
from tests.tiny import Tiny

TRAIN = [
    *("train.steps=4", "train.save_every=2", "data.sequences_per_shard=256", "evaluation.samples=0", "sampler.steps=2"),
    'tokenizer={use="bpe", vocabulary_size=300}',
]
# What people may edit, or what describes the rest: changed to another valid value, it gives another result.
EDITABLE = frozenset({"resolved.toml", "model.json", "manifest.json"})
# What only informs, and all in these folders: no damage to it may stop anything, but that a comparison needs the
# metrics, and a report at least a file of them.
INFORMS = frozenset({"environment.json", "metrics.jsonl", "samples.txt", ".lock"})
INFORM = frozenset({"evaluations", "report"})
_REPORTS = ("report", "report both", "report --compute", "report cut")
REFUSES = frozenset(
    {("eval unfinished", name) for name in INFORMS} | {(name, "metrics.jsonl") for name in ("compare", *_REPORTS)}
)


# What is compared of what a command prints or leaves behind; the output itself, or nothing.
Result = Callable[[str, Path], Any]


def printed(out, work):
    return out


def parsed(read):
    return lambda out, work: read(json.loads(out))


def page(out):
    """Return what reads the runs of a page; nothing guards the numbers that it shows of them."""

    def result(_, work):
        text = (work / out).read_text(encoding="utf-8")
        given = text.partition('<script type="application/json" id="given">')[2].partition("</script>")[0]
        return [run["name"] for run in json.loads(given)["data"]["runs"]]

    return result


def weights(run):
    return lambda _, work: hashlib.sha256((work / run / "model" / "model.safetensors").read_bytes()).hexdigest()


BOUNDS = parsed(lambda table: table["bounds"])
Command = tuple[list[str], Result]
COMMANDS: dict[str, Command] = {
    "eval": (["eval", "run", "--json"], BOUNDS),
    "sample": (["sample", "run", "--seed", "3", "--num-samples", "2"], printed),
    "infill": (["infill", "run", "the [MASK:3] of"], printed),
    "compare": (
        ["compare", "run", "other", "--json"],
        parsed(lambda table: [row.get("bounds", row) for row in table.get("rows", [])]),
    ),
    "importance": (["importance", "run"], printed),
    "resume finished": (["train", "--resume", "run"], weights("run")),
    "resume": (["train", "--resume", "cut"], weights("cut")),
    "train": (["train", "tiny.toml", "--out", "new", *TRAIN], weights("new")),
    "train from": (["train", "tiny.toml", "init_from=run", "--out", "new", *TRAIN], weights("new")),
    "info": (["data", "info", "SHARDS", "--full"], lambda *_: None),
    "eval unfinished": (["eval", "cut"], lambda *_: None),
    "eval step": (["eval", "cut", "--step", "2", "--json"], BOUNDS),
    "report": (["report", "run"], page("run/report.html")),
    "report both": (["report", "run", "other", "--out", "both.html"], page("both.html")),
    "report --compute": (["report", "run", "--compute"], page("run/report.html")),
    "report cut": (["report", "cut", "--compute"], page("cut/report.html")),
    "ls": (["ls", ".", "--json"], parsed(lambda runs: [run["name"] for run in runs])),
    "diff": (["diff", "run", "other", "--json"], parsed(sorted)),
}
# A page without its library, whose engine would reserve more addresses than a case may.
PAGE = """from atat_zoo import cli, reports
from atat_zoo.reports import html_report
reports.ADDRESSES, html_report._library = 0, str
cli.main()"""
# folder -> the commands that read it
READERS = {
    "run": (
        *("eval", "eval", "eval", "sample", "infill", "compare", "importance", "resume finished", "train from"),
        *("report", "report both", "report --compute", "ls", "diff"),
    ),
    "cut": ("resume", "resume", "resume", "eval unfinished", "eval step", "eval step", "report cut"),
    "shards": ("info", "train", "eval", "resume", "compare", "report cut"),
    "run/report": ("report", "report both", "report --compute"),
}


def prepare(base):
    """Train two runs, and interrupt a third."""
    files = base / "files"
    files.mkdir()
    Tiny(files, ".")
    watch = {"env": moments.plan(log=base / "all"), "code": moments.CODE}
    for run, how in (("run", {}), ("other", {}), ("cut", watch)):
        ended = atat(["train", "tiny.toml", "--out", run, *TRAIN], files, **how)
        assert ended.code == 0, ended
    shutil.rmtree(files / "cut")
    last_step = max(i for i, name in enumerate(moments.read(base / "all")) if name == "step")
    kill = moments.plan("kill", last_step, base / "cut")
    atat(["train", "tiny.toml", "--out", "cut", *TRAIN], files, env=kill, code=moments.CODE)
    ended = atat(["report", "run", "other", "--compute", "--out", "page.html"], files, code=PAGE)
    assert ended.code == 0, ended
    (files / "page.html").unlink()
    for lock in files.rglob("*.lock"):
        lock.touch()


# One case at a time asks.
_ONCE = threading.Lock()


def undamaged(base, name):
    """Return what a command's result is when nothing is damaged, None where it is refused."""
    kept, place = base / f"{name}.json", base / "reference"
    with _ONCE:
        if not kept.exists():
            shutil.copytree(base / "files", place)
            ended = ended_by(name, place)
            assert ended.code in (0, 2), ended
            kept.write_text(json.dumps(COMMANDS[name][1](ended.out, place) if ended.code == 0 else None))
            shutil.rmtree(place)
    return json.loads(kept.read_text())


def words_of(name, place):
    shards = next((place / "shards").glob("files-*[0-9a-f]"))
    return [str(shards.relative_to(place)) if word == "SHARDS" else word for word in COMMANDS[name][0]]


def ended_by(name, place):
    words = words_of(name, place)
    return atat(words, place, code=PAGE if words[0] == "report" else None)


@functools.cache
def listing(files, folder):
    """Return the files of a folder, relative to all: one shard of a split, and the model several times."""
    found = sorted(path.relative_to(files) for path in (files / folder).rglob("*") if path.is_file())
    found = [path for path in found if path.suffix != ".tar" or "000000" in path.name]
    return found + [path for path in found if path.parent.name in ("model", "shards")] * 3


def attack(draw, number, seed, base, work):
    shutil.copytree(base / "files", work, dirs_exist_ok=True)
    folder = draw.choice(list(READERS))
    name = draw.choice(READERS[folder])
    words = words_of(name, work)
    paths = [path for each in READERS for path in listing(base / "files", each)]
    victim = work / draw.choice(listing(base / "files", folder))
    before, mark = victim.read_bytes(), work / "a planted pickle was loaded"
    how = damage(draw, victim, [work / path for path in paths], mark)
    forged = draw.random() < 0.5 and forge(victim, before)
    story = f"\n  {victim.relative_to(work)}: {how}{' and its hash with it' if forged else ''}; atat {' '.join(words)}"
    ended = ended_by(name, work)
    verdict = judge(ended)
    why = verdict.why
    if mark.exists():
        why = "a pickle in this file is loaded, and runs what it holds"
    elif not why and ended.code == 0 and not forged and victim.name not in EDITABLE:
        found = json.loads(json.dumps(COMMANDS[name][1](ended.out, work)))
        if found != undamaged(base, name):
            why = f"another result, and not a word: {str(found)[:200]}"
    informs = victim.name in INFORMS or victim.parent.name in INFORM
    if not why and ended.code == 2 and informs and (name, victim.name) not in REFUSES:
        # A file that informs may be anything, but a lock must be a file.
        if victim.name == ".lock" and victim.is_dir() and f"{victim.name} is a folder" in ended.err:
            return verdict
        why = f"refused for the sake of a file that only informs: {ended.err.strip()[:300]!r}"
    if why:
        return Verdict(FAILED, why + story, ended.memory)
    return verdict


KIND = one_by_one("artefacts", 20, attack, prepare)
