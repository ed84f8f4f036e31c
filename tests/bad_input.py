"""Every kind of bad input, produced for real.

A case is a section of docs/bad-input.md; what it needs beside its file stands here. `python -m tests.bad_input` writes
what each prints into its section, and a new one begins as a section without a message.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import shlex
import socket
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from tests import forked

PAGE = Path(__file__).parents[1] / "docs" / "bad-input.md"

BASE = """\
[corpus]
use = "files"
train = ["text.txt"]
validation = ["held-out.txt"]
document = "line"
[tokenizer]
use = "bytes"
[backbone]
layers = 1
width = 32
heads = 2
max_length = 64
[data]
root = "shards"
length = 16
sequences_per_member = 8
sequences_per_shard = 64
lanes = 2
[train]
steps = 6
batch_size = 4
log_every = 1
save_every = 2
[evaluation]
sequences = 4
samples = 0
"""


class Case(NamedTuple):
    """One kind of bad input: what it is, the command after `atat`, what it prints, and bad.toml."""

    title: str
    command: str
    message: str
    toml: str


# A section of the page, which is where a case is written; its message may be left out.
SECTION = re.compile(
    r"^## ([^\n]+)\n\n```console\n\$ atat (.*?)\n((?:error: .*?)?)```\n(?:\nwith\n\n```toml\n(.*?)```\n)?",
    re.MULTILINE | re.DOTALL,
)
CASES = [Case(*found) for found in SECTION.findall(PAGE.read_text(encoding="utf-8"))]


def _shards(root):
    """Build the shards and return their folder."""
    code, _, message = here(["data", "build", "base.toml"], root)
    assert code == 0, message
    return next(p for p in (root / "shards").iterdir() if p.is_dir())


def _mine(root):
    """Build the shards in a folder whose name does not depend on versions, and return it."""
    return _shards(root).rename(root / "shards" / "mine")


def _shard(root):
    return next(_mine(root).glob("train*.tar"))


def _flip_bit(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _flip_in_place(root):
    for shard in _shards(root).glob("train*.tar"):
        _flip_bit(shard, 2000)


def _truncate(root):
    shard = _shard(root)
    os.truncate(shard, shard.stat().st_size // 2)


def _claim(root):
    path = _mine(root) / "manifest.json"
    path.write_text(path.read_text().replace('"length": 16', '"length": 1099511627776'))


def _webdataset(root):
    for number in range(2):
        with tarfile.open(root / f"made-{number}.tar", "w") as tar:
            for text in ("text.txt", "held-out.txt"):
                tar.add(root / text, f"{number}/{text}")


def _cut_webdataset(root):
    _webdataset(root)
    with tarfile.open(root / "made-1.tar") as tar:
        second = tar.getmembers()[1].offset
    os.truncate(root / "made-1.tar", second)


def _changed(root):
    then = {"files": {"text.txt": {"bytes": 4, "sha256": hashlib.sha256(b"then").hexdigest()}}}
    (root / "bad.source.json").write_text(json.dumps({"date": "2026-01-31", "from": [], **then}))


def _unfinished(root):
    mark = {"date": "2026-01-31", "from": [], "files": {}, "source": {"text.txt": {"url": "https://host/ours.txt"}}}
    (root / ".ours.source.part").write_text(json.dumps(mark | {"command": "atat data get ours.toml", "folder": "."}))


def _other_source(root):
    then = {"source": {"text.txt": {"url": "https://host/theirs.txt"}}}
    (root / "bad.source.json").write_text(json.dumps({"date": "2026-01-31", "from": [], "files": {}} | then))


def _archive(root, *names):
    """Write an archive as it is kept after it was fetched."""
    from atat_zoo.data.remote import file_name

    (root / "corpora" / "ours").mkdir(parents=True)
    with tarfile.open(root / "corpora" / "ours" / file_name("https://host/ours.tar"), "w") as tar:
        for name in names:
            tar.add(root / "text.txt", name)


def _huge_id(root):
    from tokenizers import Tokenizer, models

    text = Tokenizer(models.WordLevel({"we": 0, "the": 1}, unk_token="we")).to_str()
    (root / "words.json").write_text(text.replace('"the":1', '"the":4294967295'))


def _encrypted(root):
    with zipfile.ZipFile(root / "text8.zip", "w") as archive:
        archive.writestr("text8", "we the people")
    data = bytearray((root / "text8.zip").read_bytes())
    for place in (data.index(b"PK\3\4") + 6, data.index(b"PK\1\2") + 8):
        data[place] |= 1
    (root / "text8.zip").write_bytes(data)


def _many_words(root):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(70_000)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(root / "words.json"))


def _hold(root):
    (root / "runs" / "base").mkdir(parents=True)
    lock = (root / "runs" / "base" / ".lock").open("w")
    lock.write("process 4711 on another-machine\n")
    lock.flush()
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _broken_plugin(root):
    info = root / "plugins" / "spirals-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: atat-zoo-spirals\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[atat_zoo]\nspirals = spirals\n")
    (root / "plugins" / "spirals.py").write_text("import a_library_that_is_missing\n")


def _chain(root):
    for number in range(1, 34):
        (root / f"{number}.toml").write_text(f'extends = "{number - 1 if number > 1 else "base"}.toml"\n')


def _begun(root, name="base", file="base.toml"):
    (root / "runs" / name).mkdir(parents=True)
    (root / "runs" / name / "resolved.toml").write_text(here(["resolve", file], root)[1])


def _finished(root):
    """Write what a finished run says of its model; the weights are not looked at."""
    _begun(root)
    model = root / "runs" / "base" / "model"
    model.mkdir()
    experiment = tomllib.loads((model.parent / "resolved.toml").read_text())
    files = ("model.safetensors", "tokenizer.json")
    sums = dict.fromkeys(files, hashlib.sha256(b"").hexdigest())
    (model / "model.json").write_text(json.dumps({"step": 6, "experiment": experiment, "sha256": sums}))
    for name in files:
        (model / name).touch()


def _model(root, file="base.toml"):
    """Write a run whose model is whole and was never trained."""
    from atat_zoo.experiment import load
    from atat_zoo.generation.model import Model
    from atat_zoo.modeling.objectives import assemble
    from atat_zoo.registry import Context

    _begun(root, file=file)
    experiment = load(str(root / file))
    tokenizer = experiment.parts["tokenizer"].train(lambda: iter([(root / "text.txt").read_text()]))
    context = Context(vocabulary_size=tokenizer.vocabulary_size, length=experiment.data.length)
    module = assemble(experiment, context)
    made = Model(experiment=experiment, context=context, tokenizer=tokenizer, module=module, step=0)
    made.save(root / "runs" / "base" / "model")


def _damage(root):
    """Flip a bit of the weights."""
    _model(root)
    _flip_bit(root / "runs" / "base" / "model" / "model.safetensors", -100)


def _diverged(root):
    """Write a weight that is not finite, and its hash."""
    from safetensors.torch import load_file, save_file

    _model(root)
    model = root / "runs" / "base" / "model"
    weights = load_file(model / "model.safetensors")
    weights["backbone.head.weight"][0, 0] = float("nan")
    save_file(weights, model / "model.safetensors")
    said = json.loads((model / "model.json").read_text())
    said["sha256"]["model.safetensors"] = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    (model / "model.json").write_text(json.dumps(said))


def _taken(root):
    """Write a run, and take the port, if nobody else has."""
    _model(root)
    taken = socket.socket()
    with contextlib.suppress(OSError):
        taken.bind(("127.0.0.1", 28422))
        taken.listen()
    return taken


def _torn_record(root):
    _model(root)
    (root / "runs" / "base" / "metrics.jsonl").write_text('{"step": 1}\n5\n{')


class _Code:  # runs a command when it is unpickled
    def __reduce__(self):
        return os.system, ("true",)


def _planted(root):
    """Write a checkpoint that runs a command, with its hash."""
    import torch

    _begun(root)
    path = root / "runs" / "base" / "checkpoints" / "step-00000002.pt"
    path.parent.mkdir()
    torch.save({"state": _Code()}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_suffix(".json").write_text(json.dumps({"step": 2, "sha256": digest, "experiment": None}))


def _rated(root, drop=0):
    """Write a form's key, and what two people saved: one the form, one a form of the same texts in another order."""
    from atat_zoo_human_eval.rating_form import QUESTIONS, RatedText, RatingForm

    from atat_zoo.experiment.runs import write_json

    texts = [RatedText(run=i % 2, text=f"text {i}") for i in range(4)]
    forms = [RatingForm.shuffled(QUESTIONS, texts, [{"run": "a"}, {"run": "b"}], seed) for seed in (0, 1)]
    write_json(root / "form.key.json", forms[0].key())
    rows = [{"text": i, "question": name, "rating": 3} for i in (1, 2, 3, 4) for name in QUESTIONS]
    for name, form in (("ann", forms[0]), ("again", forms[1])):
        answers = {"form": form.digest, "rater": "Ann", "ratings": rows[drop:]}
        (root / f"{name}.json").write_text(json.dumps(answers))


def _evaluated(root):
    """Write two runs that were evaluated on different numbers of sequences."""
    from atat_zoo.experiment.runs import RunFolder
    from tests.reports.run_folders import write_evaluation

    for name, sequences in (("one", 768), ("other", 512)):
        _begun(root, name)
        write_evaluation(RunFolder(root / "runs" / name), 60.0, sequences=sequences)


# What some need beside their file: a function that prepares the folder, variables, the bytes that a file may have. What
# writes text has a model that was never trained, unless it is said here.
def _published(root):
    (root / "model").mkdir()
    (root / "model" / "config.json").write_text('{"model_type": "unheard_of"}')


def _code(root):
    import torch

    torch.save({"state_dict": {}, "hyper_parameters": _Code()}, root / "last.ckpt")


PREPARE: dict[str, Callable[[Path], object]] = {
    "A plugin that is broken": _broken_plugin,
    "A file that is the base of too many others": _chain,
    "A vocabulary too large for the shards' type": _many_words,
    "A text that unpacks to more than it can hold": lambda root: (root / "text.txt.gz").write_bytes(
        gzip.compress(b"a" * (70 << 20), 1)
    ),
    "A line that is no dialogue": lambda root: (root / "talk.jsonl").write_text(
        '{"prompt": "Who?", "response": "We."}\n{"prompt": "Who?", "answer": "We."}\n'
    ),
    "A WebDataset without the named file": _webdataset,
    "A WebDataset that is cut off": _cut_webdataset,
    "An encrypted archive": _encrypted,
    "A text that was changed since it was fetched": _changed,
    "A text whose recipe was changed since it was fetched": _other_source,
    "A text that was not fetched to its end": _unfinished,
    "A text with a file outside of its archive": lambda root: _archive(root, "../../../text.txt"),
    "A text of which two files have one name": lambda root: _archive(root, "train/text.txt", "test/text.txt"),
    "A tokenizer with one huge id": _huge_id,
    "A manifest that claims more than its shards hold": _claim,
    "A truncated shard": _truncate,
    "A shard that is missing": lambda root: _shard(root).unlink(),
    "A manifest that does not match its shards": lambda root: _flip_bit(_shard(root), 2000),
    "A shard that was changed, found while it is read": _flip_in_place,
    "A full disk during a save": _shards,
    "A run folder in use by another process": _hold,
    "A run folder that has a run already": _begun,
    "A run without a final model": _begun,
    "A final model that was damaged": _damage,
    "Weights that are not finite": _diverged,
    "A checkpoint that holds code": _planted,
    "A run to continue from that is not finished": _begun,
    "Another backbone and tokenizer than those of the run to continue from": _finished,
    "A comparison with nothing": _begun,
    "A record that is damaged": _torn_record,
    "A judge whose likelihood is only bounded": lambda root: (_begun(root), _begun(root, "other")),
    "A run without a final model to write with": _begun,
    "A run without a final model to serve": _begun,
    "A port that is in use": _taken,
    "An unknown word in a list of words": lambda root: _model(root, "bad.toml"),
    "A file without a text": lambda root: (_model(root), (root / "empty.txt").touch()),
    "A gap that leaves no text around it": _model,
    "A text longer than its sampler writes": _model,
    "A judge of a task of which there is no run": _model,
    "An export of a model that predicts block by block": lambda root: _begun(root, file="bad.toml"),
    "An export into a folder that is not empty": _begun,
    "A size of files that is none": _begun,
    "A push without a token": _begun,
    "A push to no name on the hub": _begun,
    "Figures of an importance that tells nothing apart": _begun,
    "A pair of sentences without a word in brackets": _model,
    "A task whose files are not here": _model,
    "GLUE without its files": _model,
    "A task that there is not": _model,
    "An option of the bound beside a task": _model,
    "A form that is not complete": lambda root: _rated(root, drop=5),
    "Ratings of another form": _rated,
    "Runs measured on different text in one table": _evaluated,
    "A published model that no backbone reads": _published,
    "A checkpoint with code": _code,
}
ENV = {
    "A published model that no backbone reads": {"ATAT_ZOO_PLUGINS": ""},
    "A plugin that is broken": {"PYTHONPATH": "plugins"},
    "A push without a token": {"HF_TOKEN": "", "HF_HOME": "."},
    "Ranks that do not divide the lanes": {"WORLD_SIZE": "3"},
}
# What trains, or may not reach the end of a training.
TRAINS = {
    "A stage that refuses everything",
    "A shard that was changed, found while it is read",
    "A checkpoint that holds code",
    "A loss that is no number",
}
# How a full disk looks to a writer.
FILE_LIMIT = {"A full disk during a save": 160000, "A full disk during a trace": 4000}


def here(words, root):
    """Run `atat …` in this process; returns its exit code, standard output and standard error."""
    from atat_zoo.cli import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    said = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with contextlib.chdir(root), mock.patch.object(sys, "argv", ["atat", *words]), said[0], said[1]:
        try:
            main()
        except SystemExit as left:
            code = left.code
    return code, out.getvalue(), err.getvalue()


def apart(case, root):
    """Run the command of a case in a process of its own, with its variables and its limit."""
    env, limit = ENV.get(case.title), FILE_LIMIT.get(case.title)
    done = forked.run(shlex.split(case.command), root, env=env, file_limit=limit)
    return done.returncode, done.stdout, done.stderr


def produce(case):
    """Prepare a folder, run the command in it, and return its exit code and what it printed: message and output."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "base.toml").write_text(BASE)
        # A study names its experiments, and a manifest extends nothing.
        base = "" if case.command.startswith(("study ", "paper ")) else 'extends = "base.toml"\n'
        (root / "bad.toml").write_text(base + case.toml)
        lines = (f"in {year} the state of the union was strong and its people free\n" for year in range(1790, 1890))
        (root / "text.txt").write_text("".join(lines))
        (root / "held-out.txt").write_text("we the people of the union\n" * 10)
        writes = case.command.startswith(("sample ", "infill ", "serve "))
        held = PREPARE.get(case.title, _model if writes else lambda root: None)(root)
        alone = case.title in {*ENV, *FILE_LIMIT, *TRAINS}
        code, output, message = apart(case, root) if alone else here(shlex.split(case.command), root)
        if hasattr(held, "close"):
            held.close()
    message = message.replace(str(root) + "/", "").replace(str(root), ".").strip()
    # What differs from machine to machine: the hash in a folder's name, the example plugin, the memory.
    message = re.sub(r"(files-\w+-\d+)-[0-9a-f]{10}", r"\1-…", message).replace(", rank", "")
    message = re.sub(r"this machine has [\d,.]+ GB", "this machine has … GB", message)
    return code, message, output


def main():
    """Write what each case prints into its section of the page."""

    def produced(section):
        case = Case(*section.groups(""))
        began = f"$ atat {case.command}\n"
        return section[0].replace(f"{began}{case.message}", f"{began}{produce(case)[1]}\n", 1)

    PAGE.write_text(SECTION.sub(produced, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
