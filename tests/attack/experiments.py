"""Experiments mutated from those that ship and those of the tests: accepted, or refused in sentences."""

import copy
import functools
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import tomllib
import traceback
from pathlib import Path
from typing import Any

import tomli_w

from atat_zoo.experiment import from_table, load
from atat_zoo.system.errors import UserError
from tests.attack import driver, hostile
from tests.attack.damage import CHANGES
from tests.attack.driver import FAILED, FINE, MEMORY, REFUSED, Kind, Verdict, atat, judge
from tests.bad_input import BASE
from tests.golden.experiments import BASE as GOLDEN
from tests.golden.experiments import RUNS
from tests.tiny import tiny_toml

Table = dict[str, Any]
SHIPPED = Path(__file__).parents[2] / "experiments"
CODE = "from tests.attack.experiments import child; child()"
SECONDS = 10  # for one experiment
TRAINED = 0.02  # of those that are accepted and tiny


def attack(numbers, seed, base, work):
    """Check the experiments in as few processes as possible: one that has died or grown is followed by another."""
    verdicts: dict[int, Verdict] = {}
    while left := [number for number in numbers if number not in verdicts]:
        told = {"ATTACK": json.dumps({"seed": seed, "numbers": left})}
        ended = atat(["check"], work, env=told, code=CODE, seconds=SECONDS * len(left))
        for line in ended.out.splitlines():
            number, tiny, *verdict = json.loads(line)
            verdicts[number] = Verdict(*verdict)
            if tiny and driver.source("training", seed, number).random() < TRAINED:
                verdicts[number] = trained(seed, number, work)
        if ended.code != 0:
            missing = next(number for number in left if number not in verdicts)
            why = f"the process ends with {ended.code}: {driver.last_words(ended.err)}"
            verdicts[missing] = Verdict(FAILED, why, ended.memory)
    return [verdicts[number] for number in numbers]


def trained(seed, number, work):
    folder = work / f"training-{number}"
    name, overrides = compose(driver.source("experiments", seed, number), folder)
    small = ["train.steps=1", "--out", "run"]
    verdict = judge(atat(["train", name, *overrides, *small], folder, seconds=60), (0, 2, 130))
    shutil.rmtree(folder, ignore_errors=True)
    return verdict._replace(why=f"trained: {verdict.why}" if verdict.why else "")


# The child's side


class TooLong(BaseException):
    """An experiment takes too long to read."""


def stop(*_):
    raise TooLong(f"takes more than {SECONDS} s")


def child():
    told = json.loads(os.environ["ATTACK"])
    signal.signal(signal.SIGALRM, stop)
    for number in told["numbers"]:
        folder = Path(f"check-{number}").resolve()
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        verdict, tiny = check(told["seed"], number, folder)
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.chdir(folder.parent)
        shutil.rmtree(folder, ignore_errors=True)
        print(json.dumps([number, tiny, *verdict]), flush=True)
        if verdict.memory > MEMORY:
            sys.exit(0)  # the next one begins in a process that is small again


def check(seed, number, folder):
    """Check one experiment; returns the verdict and whether it is small enough to be trained."""
    name, overrides = compose(driver.source("experiments", seed, number), folder)
    os.chdir(folder)
    outcome, why, tiny = FINE, "", False
    try:
        made = load(name, overrides)
        again = from_table(tomllib.loads(made.to_toml()))
        tiny = small(made.to_table())
        if again.to_table() != made.to_table():
            why = "as resolved it is another experiment"
        if double := set(overrides) & set(hostile.DOUBLE):
            why = f"a part of an override is dropped: {double}"
    except UserError as error:
        said = str(error).encode(errors="backslashreplace").decode()  # as standard error does
        outcome, why = REFUSED, driver.unreadable("".join(f"error: {line}\n" for line in said.splitlines()))
    except (Exception, TooLong):
        why = driver.last_words(traceback.format_exc())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    if memory > MEMORY:
        why = why or f"{memory >> 20} MiB of memory"
    return Verdict(FAILED if why else outcome, why, memory), tiny


def small(table):
    numbers = [value for path, value in leaves(table) if type(value) is int and path != ("seed",)]
    own = table["corpus"]["use"] == "files" and table["train"]["compile"] is not True and "init_from" not in table
    few = table["data"]["workers"] <= 2 and table.get("backbone", {}).get("layers", 1) <= 4
    return own and few and max(numbers) <= 2048


# The mutations


def compose(draw, folder):
    """Write a mutated experiment into a folder; returns its name and overrides."""
    folder.mkdir(parents=True)
    for split in ("train", "validation"):
        (folder / f"{split}.txt").write_text("the people of this nation keep a just peace with all states\n" * 60)
    text = draw.choice(originals())()
    if draw.random() < 0.7:
        text = mutated_table(draw, text)
    data = text.encode()
    if draw.random() < 0.35:
        data = mutated_text(draw, data)
    if draw.random() < 0.12:
        data = extending(draw, folder) + data
    (folder / "x.toml").write_bytes(data)
    return "x.toml", [override(draw, text) for _ in range(draw.choice((0, 0, 0, 1, 2)))]


@functools.cache
def resolved(name, *overrides):
    return load(name, overrides).to_toml()


def golden(overrides):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as place:
        place.write(GOLDEN.replace("corpus/", ""))
        place.flush()
        return load(place.name, overrides).to_toml()


@functools.cache
def originals():
    """Return what gives each text that is mutated."""
    files = sorted(path for path in SHIPPED.rglob("*.toml") if path.parent.name != "studies")
    names = [path.relative_to(SHIPPED) for path in files]
    full = [functools.partial(resolved, str(name)) for name in names if name.parts[0] != "base"]
    # The golden runs differ in their objectives, optimizers and schedules.
    runs = [functools.partial(golden, overrides) for overrides in RUNS.values()]
    bad = BASE.replace("text.txt", "train.txt").replace("held-out.txt", "validation.txt")
    return (*[path.read_text for path in files], *full, *runs, *runs, *[tiny_toml, lambda: bad] * 8)


def leaves(table, path=()):
    """Yield every value of nested tables and lists with its path, the outer ones too."""
    items = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ()
    for key, value in items:
        yield (*path, key), value
        yield from leaves(value, (*path, key))


def mutated_table(draw, text):
    table = tomllib.loads(text)
    raw: dict[str, str] = {}
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        path, value = draw.choice(list(leaves(table)))
        place: Any = functools.reduce(lambda each, key: each[key], path[:-1], table)
        key = path[-1]
        change = draw.random()
        if change < 0.6:
            mark = f"@@{len(raw)}@@"
            raw[f'"{mark}"'] = hostile.snippet(draw)
            place[key] = mark
        elif change < 0.7:
            del place[key]
        elif change < 0.78 and isinstance(place, dict):
            place[draw.choice(("x", "use", "name", "extends", "", "a b", "ü", f"{key}s"))] = value
        elif change < 0.86:
            place[key] = draw.choice(({"use": value}, [value], {"a": value}, str(value)))
        elif change < 0.94:
            place[key] = copy.deepcopy(draw.choice(list(leaves(table)))[1])
        elif isinstance(place, dict):
            table[str(key)] = place.pop(key)
        if not table:
            break
    text = tomli_w.dumps(table)
    for mark, snippet in raw.items():
        text = text.replace(mark, snippet)
    return text


def mutated_text(draw, data):
    """Change the text of an experiment: a line of it, its encoding or line ends, or bytes as files are damaged."""
    lines = data.splitlines(keepends=True)
    at = draw.randrange(len(lines) + 1)
    before, after, change = b"".join(lines[:at]), b"".join(lines[at:]), draw.randrange(10)
    if change == 0:
        return before + draw.choice([*lines, b"\n"]) + after
    if change == 1:
        return before + b"".join(lines[at + 1 :])
    if change == 2:
        return data.decode().encode(draw.choice(("utf-16", "utf-32", "utf-8-sig", "cp037")))
    if change == 3:
        return data.replace(b"\n", draw.choice((b"\r\n", b"\r", b"\0", b"\x0b", "\u2028".encode(), b"\n\n")))
    if change == 4:
        keys = ("x", "a.b.c", '"' + "k" * 5000 + '"', ".".join("a" * 2000), "[[x]]\ny", "[a.b]\n[a]\nb", "''")
        return before + f"{draw.choice(keys)} = {hostile.snippet(draw)}\n".encode() + after
    return draw.choice(CHANGES)(draw, data)


def extending(draw, folder):
    """Write files that extend each other in a strange way, and return the line that extends the first."""

    def chain(length, line):
        for number in range(length):
            (folder / f"{number}.toml").write_text(line.format((number + 1) % length))

    change = draw.randrange(6)
    if change < 3:  # a circle, a diamond on a diamond, a long chain
        length, line = ((3, '"{0}.toml"'), (20, '["{0}.toml", "{0}.toml"]'), (1500, '"{0}.toml"'))[change]
        chain(length, f"extends = {line}\n")
        if change:  # with an end
            (folder / f"{length - 1}.toml").write_text("")
    elif change == 3:
        (folder / "0.toml").symlink_to("0.toml")
    elif change == 4:
        (folder / "0.toml").write_bytes(mutated_text(draw, b"seed = 3\n[train]\nsteps = 4\n"))
    else:
        return f"extends = {hostile.snippet(draw)}\n".encode()
    return b'extends = "0.toml"\n'


def override(draw, text):
    """Return an override for an experiment: of one of its keys, or nonsense."""
    if draw.random() < 0.2:
        return draw.choice(hostile.TEXTS)
    try:
        paths = [".".join(map(str, path)) for path, _ in leaves(tomllib.loads(text))]
    except (ValueError, RecursionError):
        paths = ["train.steps"]
    value = draw.choice((hostile.snippet(draw), draw.choice(hostile.TEXTS)))
    return f"{draw.choice(paths or ['seed'])}={value}"


KIND = Kind("experiments", 200, attack, batch=250)
