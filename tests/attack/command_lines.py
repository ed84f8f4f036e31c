"""Random words for every command: good values, hostile ones, options that are not there, outputs that are inputs.

Whatever the words, the files that were there are as they were, but those that a command was told to replace.
"""

import functools
import json
import shutil

import click

from atat_zoo.cli import atat as group
from tests import forked
from tests.attack import hostile
from tests.attack.driver import FAILED, Verdict, atat, judge, one_by_one
from tests.tiny import Tiny

CODES = (0, 2, 130)
SECONDS = 10  # then it is asked to stop
OVERRIDES = (
    *("train.steps=2", "sampler.steps=2", "seed=3", "data.length=8", "guidance.use=token_bias", "sampler=klass"),
    *('sampler={use="combination", order="dilated"}', "tokenizer.use=bpe", "init_from=run", "masking.use=importance"),
)
GOOD = {
    "run": ("run", "run", "run", "untrained", "shards", "tiny.toml"),
    "runs": ("run", "run", "again"),
    "others": ("run", "again"),
    "experiment": ("tiny.toml", "tiny.toml", "quickstart", "mdlm", "run/resolved.toml"),
    "folder": ("shards", "run", "shards/manifest.json"),
    "kind": ("masking", "sampler", "objective"),
    "name": ("importance", "klass", "mdlm"),
    "overrides": OVERRIDES,
    "words": ("the [MASK:3] of this", "a [MASK] [MASK:1-2]", "sampler.steps=2", "peace"),
    "bound": ("exact_k", "continuous_t", "{use = 'discrete_t', steps = 2}"),
    "sampler": ("ancestral", "klass", "{use = 'ancestral', steps = 2}"),
    "wanted": ("ancestral", "klass", "{use = 'ancestral', steps = 2}"),
    "by": ("run", "again", "hf:nothing", "{use = 'run', path = 'run'}"),
    "text": ("validation.txt", "*.txt", "files", "{use = 'files', train = ['train.txt']}"),
    "path": ("validation.txt", "-"),
    "out": ("new", "run", "again/x", "new.html", "form.key.json", "run/resolved.toml", "run/model"),
    "resume": ("run", "new"),
    "trace": ("steps.jsonl", "steps.jsonl", "run/resolved.toml", "again/model/model.json", "tiny.toml"),
    "figures": ("drawn", "run/model", "again"),
    "page": ("study.md", "run/model/model.md", "run.md"),
    "key": ("form.key.json",),
    "ratings": ("ann.json",),
    "asked": ("asked.toml",),
    "model": ("run", "run/model", "again"),
    "prompt": ("the", "the people of"),
    "suffix": ("states", "."),
    "baseline": ("run", "again"),
    "file": ("study.toml", "study.toml", "tiny.toml"),
    "manifest": ("paper.toml", "paper.toml", "atat", "study.toml"),
}
STUDY = """
seeds = [1]
baseline = "a"
folder = "study"
overrides = ["train.steps=2"]
[arms.a]
experiment = "tiny.toml"
"""
PAPER = """
title = "It"
[[table]]
data = "evaluations"
label = "it"
caption = "It."
columns = ["value"]
rows = [{ experiment = "tiny.toml", run = "run", overrides = ["train.steps=3", "data.sequences_per_shard=256"] }]
"""
# What runs the longest is limited, and what writes outside of the folder is left out.
NUMBERS = ("1", "2", "3", "5")
LEFT_OUT = frozenset({"write", "where"})
# With these a command is told to replace a run, or to go on with it, or adds to what it has measured.
REPLACES, GROWS = frozenset({"--overwrite", "--resume"}), frozenset({"evaluations", "report", "study"})


# A command's words and its parameters.
Command = tuple[tuple[str, ...], tuple[click.Parameter, ...]]


def prepare(base):
    """Make a run that is finished, one that is not, and a folder of shards."""
    Tiny(base, ".")
    (base / "study.toml").write_text(STUDY)
    (base / "paper.toml").write_text(PAPER)
    words = ["train", "tiny.toml", "train.steps=3", "data.sequences_per_shard=256", "sampler.steps=2", "--out"]
    for line in (
        [*words, "run"],
        [*words, "again"],
        ["rate", "export", "run", "--num-samples", "1", "--out", "form.html"],
    ):
        done = forked.run(line, base)
        assert done.returncode == 0, done.stderr
    key = json.loads((base / "form.key.json").read_text())
    rows = [{"text": 1, "question": name, "rating": 3} for name in key["questions"]]
    (base / "ann.json").write_text(json.dumps({"form": key["form"], "rater": "Ann", "ratings": rows}))
    (base / "asked.toml").write_text('[wit]\ntext = "Is it funny?"\n')
    (base / "untrained").mkdir()
    shutil.copy(base / "run" / "resolved.toml", base / "untrained")


@functools.cache
def commands():
    def inside(command, words):
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                yield from inside(below, (*words, name))
        else:
            yield words, tuple(p for p in command.params if p.name not in LEFT_OUT)

    # `new` is the same command for every kind.
    found = tuple(c for c in inside(group, ()) if c[0][0] != "new" or c[0][1] in ("noise", "experiment"))
    # Those that do much come more often than those that list.
    return found + tuple(command for command in found if command[0][0] != "zoo") * 3


def attack(draw, number, seed, base, work):
    shutil.copytree(base, work, dirs_exist_ok=True)
    words = command_line(draw)
    verdict = judge(atat(words, work, seconds=SECONDS), CODES)
    if not verdict.why and not REPLACES & {word.partition("=")[0] for word in words} and (lost := changed(base, work)):
        verdict = Verdict(FAILED, f"{lost} is another file", verdict.memory)
    shown = " ".join(word if len(word) < 60 else f"{word[:60]}…" for word in map(repr, words))
    return verdict._replace(why=f"{verdict.why}\n  atat {shown}" if verdict.why else "")


def changed(base, work):
    """Return the first file that was there and is not what it was, or an empty text."""
    for path in sorted(base.rglob("*")):
        inside = path.relative_to(base)
        if path.is_file() and not GROWS & {*inside.parts} and path.suffix != ".lock" and path.name != ".lock":
            now = work / inside
            if not now.is_file() or now.stat().st_size != path.stat().st_size or now.read_bytes() != path.read_bytes():
                return str(inside)
    return ""


def command_line(draw):
    of_command, parameters = draw.choice(commands())
    words = list(of_command)
    if draw.random() < 0.03:
        words[draw.randrange(len(words))] = draw.choice((*hostile.TEXTS, "trian", "evla", "zoo"))
    strange = draw.choice((0.0, 0.15, 0.15, 0.4))  # the share of hostile values
    rest: list[list[str]] = []
    for parameter in parameters:
        if isinstance(parameter, click.Argument):
            many = draw.choice((0, 1, 1, 2, 3)) if parameter.nargs == -1 else 1
            rest += [[value(draw, parameter, strange)] for _ in range(many)]
        elif draw.random() < (0.9 if parameter.required else 0.2):
            flag = draw.choice(parameter.opts)
            is_flag = isinstance(parameter, click.Option) and parameter.is_flag
            given = [] if is_flag else [value(draw, parameter, strange)]
            rest.append([f"{flag}={given[0]}"] if given and draw.random() < 0.1 else [flag, *given])
    if draw.random() < 0.05:
        rest.append([draw.choice(hostile.TEXTS)])
    if draw.random() < 0.05:
        rest.append([draw.choice(("--nothing", "--help", "-h", "--json", "--seed", "--", "--out"))])
    if rest and draw.random() < 0.05:
        rest.remove(draw.choice(rest))
    if draw.random() < 0.1:
        draw.shuffle(rest)
    return words + [word for each in rest for word in each]


def value(draw, parameter, strange):
    """Return a value for a parameter, hostile in this share of the cases."""
    if draw.random() < strange:
        word = draw.choice((*hostile.TEXTS, *hostile.NUMBERS))
        return f"{draw.choice(OVERRIDES).partition('=')[0]}={word}" if parameter.name == "overrides" else word
    if isinstance(parameter.type, click.Choice):
        return str(draw.choice(list(parameter.type.choices)))
    name = parameter.name or ""
    return draw.choice(GOOD.get(name, NUMBERS))


KIND = one_by_one("command_lines", 20, attack, prepare)
