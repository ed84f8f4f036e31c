"""Commands that put something in the place of something else are stopped at a moment, and run again.

What was there, or what takes its place, is there as a whole, for whoever reads it next; what nobody asked to replace is
as it was, and nothing unfinished stays once the command has ended by itself.
"""

import json
import os
import random
import shutil
import signal
import threading
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from atat_zoo.cli.packages import offers
from tests import forked
from tests.attack import kills, moments
from tests.attack.driver import FINE, REFUSED, SPACE, Verdict, atat, judge, one_by_one
from tests.tiny import Tiny

STUDIES = Path(__file__).parents[2] / "docs" / "studies"
ROWS = [{"arm": "mdlm"}, {"arm": "sets"}]
PAPER: dict[str, Any] = {
    "title": "It",
    "results": ".",
    "table": [{"data": "study", "study": "sets", "label": "it", "caption": "It.", "columns": ["value"], "rows": ROWS}],
    "figure": [{"kind": "arms", "study": "sets", "label": "arms", "caption": "It."}],
}
TRAIN = ["train", "tiny.toml", "train.steps=2", "data.sequences_per_shard=256", "evaluation.samples=0", "--out", "run"]
FORM = ["rate", "export", "run", "--num-samples", "2", "--out", "form.html"]
RATED = ["rate", "import", "old.key.json", "ann.json", "--out", "ann.results.json"]


class Variant(NamedTuple):
    """A command, and the files and folders that it replaces or makes."""

    words: list[str]
    outputs: list[str]
    whole: bool = True  # all of them as one; otherwise each file for itself
    refused: str = ""  # what it says where it has been done already


VARIANTS = {
    "train": Variant([*TRAIN, "--overwrite", "seed=6"], ["run"]),
    "paper": Variant(["paper", "paper.toml", "--out", "paper"], ["paper"], whole=False),
    "rate export": Variant(FORM, ["form.key.json", "form.html"], whole=False, refused="already exists"),
    "rate import": Variant(RATED, ["ann.results.json"]),
    "trace": Variant(["sample", "run", "--trace", "steps.jsonl", "--seed", "2"], ["steps.jsonl"]),
}
if CHECKPOINTS := "import" in offers():
    VARIANTS |= {
        "import": Variant(["import", "model", "imported", "--overwrite", "data.length=8"], ["imported"]),
        "export": Variant(["export", "run", "hub"], ["hub"], refused="is not empty"),
    }
ACTS = ("kill", "kill", "kill", "tear", "full", "full", "small", "interrupt", "terminate")
STOPPED = kills.STOPPED | {"interrupt": (0, 130), "terminate": (0, -signal.SIGTERM)}
LEFT = (".part", ".new", ".old", ".leaving")


def prepare(base):
    """Make what is replaced."""
    files = base / "files"
    files.mkdir()
    Tiny(files, ".")
    _published(files)
    shutil.copy(STUDIES / "sets.json", files)
    figure = PAPER["figure"][0] | {"names": {"sets": "Before"}}
    (files / "paper.toml").write_text(tomli_w.dumps(PAPER | {"title": "Before", "figure": [figure]}))
    first = [
        TRAIN,
        *([["import", "model", "imported"]] if CHECKPOINTS else []),
        ["paper", "paper.toml", "--out", "paper"],
        ["sample", "run", "--trace", "steps.jsonl", "--seed", "1"],
        ["rate", "export", "run", "--num-samples", "1", "--out", "old.html"],
    ]
    for words in first:
        done = forked.run(words, files, env=_env(files))
        assert done.returncode == 0, done
    (files / "paper.toml").write_text(tomli_w.dumps(PAPER))
    key = json.loads((files / "old.key.json").read_text())
    rows = [{"text": 1, "question": name, "rating": 3} for name in key["questions"]]
    (files / "ann.json").write_text(json.dumps({"form": key["form"], "rater": "Ann", "ratings": rows}))
    (files / "ann.results.json").write_text("{}\n")


# One case at a time asks.
_ONCE = threading.Lock()


def left_alone(base, name):
    """Return the moments of a command that is left alone in the folder `base / name`."""
    with _ONCE:
        if not (base / name).exists():
            shutil.copytree(base / "files", base / name)
            ended = run(VARIANTS[name], base / name, moments.plan(log=base / f"{name} moments"))
            assert ended.code == 0, ended
    return moments.read(base / f"{name} moments")


def _published(folder):
    """Write a model, and install a plugin that reads it beside it."""
    import torch
    from safetensors.torch import save_file

    from atat_zoo.modeling.backbones.dit import DiTBackbone
    from atat_zoo.registry import Context
    from tests.installing import READER, described

    model, plugins = folder / "model", folder / "plugins"
    model.mkdir()
    plugins.mkdir()
    network = DiTBackbone(layers=1, width=16, heads=2).build(Context(vocabulary_size=258, length=16))
    save_file({name: torch.ones(each.shape) for name, each in network.named_parameters()}, model / "model.safetensors")
    (model / "config.json").write_text(json.dumps({"model_type": "small", "layers": 1}))
    (plugins / "made_up_reader.py").write_text(READER.format(name="reader").replace("\n    ", "\n"))
    described(plugins, "atat-zoo-reader", "1.0", "[atat_zoo]\nreader = made_up_reader\n")


def _env(place):
    return {"PYTHONPATH": os.pathsep.join([str(place / "plugins"), os.environ.get("PYTHONPATH", "")])}


def run(variant, place, env, limit=None):
    space = None if variant.words[0] == "paper" else SPACE  # the engine that draws reserves more addresses
    return atat(variant.words, place, env=env | _env(place), code=moments.CODE, file_limit=limit, space=space)


def attack(draw, number, seed, base, work):
    name = list(VARIANTS)[number % len(VARIANTS)]
    variant = VARIANTS[name]
    known = left_alone(base, name)
    if "step" in known:  # a training is stopped in other cases
        known = known[: known.index("step") + 1]
    # The cases of a variant take one moment after the other, in an order of the seed's.
    at = random.Random(f"{seed} {name}").sample(range(len(known)), len(known))[number // len(VARIANTS) % len(known)]
    act, limit = draw.choice(ACTS), int(10 ** draw.uniform(0, 5))
    shutil.copytree(base / "files", work, dirs_exist_ok=True)
    plan = moments.plan("" if act == "small" else act, -1 if act == "small" else at, work.parent / "moments")
    ended = run(variant, work, plan, limit if act == "small" else None)
    story = [f"{name}: {act} at {limit if act == 'small' else f'{at} {known[at]}'}: exit code {ended.code}"]
    why = kills.wrong(ended, act, "one") or between(base, work, name)
    memory, stopped = ended.memory, ended.code != 0
    if name == "rate export" and not (work / "form.html").exists():
        (work / "form.key.json").unlink(missing_ok=True)  # as it asks: it may be that of a form that was moved
    if not why:
        resumed = name == "train" and not same(base / "files", work, "run")
        if resumed and ended.code == 0:
            again = ended
        else:
            words = ["train", "--resume", "run"] if resumed else variant.words
            again = run(variant._replace(words=words), work, moments.plan(log=work.parent / "again"))
        story.append(f"again: exit code {again.code}")
        done = again.code == 2 and variant.refused and variant.refused in again.err
        why = "" if done else judge(again, (0,)).why
        why = why or finished(base, work, name)
        ended, memory = again, max(memory, again.memory)
    return kills.failure(why, story, ended, memory) if why else Verdict(REFUSED if stopped else FINE, "", memory)


def between(base, work, name):
    """Say what is wrong after a command was stopped, or return an empty text."""
    variant, (old, new) = VARIANTS[name], (base / "files", base / name)
    reader = atat(["ls", ".", "--json"], work, env=_env(work))
    if reader.code:
        return f"`atat ls` ends with {reader.code}: {reader.err[-300:]}"
    if name == "train" and not same(old, work, "run"):  # it has begun, and goes on
        resolved = Path("run", "resolved.toml")
        if not kills.alike(new / resolved, work / resolved):
            return "the run is neither the old nor the new one"
        mixed = [path for path in tree(old, "run") if path in tree(work, "run") and path not in tree(new, "run")]
        return f"files of the old run are in the new one: {mixed}" if mixed else ""
    if variant.whole:
        if not any(all(same(whole, work, output) for output in variant.outputs) for whole in (old, new)):
            return f"{', '.join(variant.outputs)}: is neither what was there nor what takes its place"
        return ""
    for output in variant.outputs:
        for path, content in tree(work, output).items():
            if content not in (tree(old, output).get(path), tree(new, output).get(path)):
                return f"{path} is neither what was there nor what takes its place"
        if lost := tree(old, output).keys() - tree(work, output).keys():
            return f"{sorted(lost)[0]} is lost"
    if name == "rate export" and (work / "form.html").exists() and not (work / "form.key.json").exists():
        return "a form without its key"
    return ""


def finished(base, work, name):
    """Say what is wrong after the command, or what continues it, has ended by itself; or return an empty text."""
    outputs = VARIANTS[name].outputs
    for output in outputs:
        if not same(base / name, work, output):
            return f"{output} is not what it is when the command is left alone"
    for path in (base / "files").rglob("*"):
        inside = path.relative_to(base / "files")
        mine = not path.is_file() or inside.parts[0] in (*outputs, "shards", "plugins") or ignored(inside)
        if not mine and not kills.alike(path, work / inside):
            return f"{inside} was not to be replaced, and is another"
    left = [str(path.relative_to(work)) for path in work.rglob(".*") if path.name.endswith(LEFT)]
    return f"unfinished files stay: {left}" if left else ""


def ignored(path):
    """Whether a file may differ: by the clock, by what was measured, and the checkpoints of a training."""
    return path.name in (".lock", "environment.json", "metrics.jsonl") or "checkpoints" in path.parts


def tree(root, output):
    """Return what each file of an output holds, by its path."""
    place = root / output
    files = [place] if place.is_file() else sorted(place.rglob("*"))
    inside = {path: path.relative_to(root) for path in files if path.is_file()}
    return {str(name): path.read_bytes() for path, name in inside.items() if not ignored(name) and not hidden(name)}


def hidden(path):
    """Whether a file is unfinished, or of what was replaced: the next command that writes there deletes those."""
    return any(part == ".old" or (part.startswith(".") and part.endswith(".part")) for part in path.parts)


def same(one, other, output):
    return tree(one, output) == tree(other, output)


KIND = one_by_one("replacements", 35, attack, prepare)
