"""Every kind of bad input, produced for real: `python -m tests.bad_input` writes docs/bad-input.md from it."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import os
import re
import shlex
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests import forked

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """One kind of bad input: what it is, the command, and how the folder for it is prepared."""

    title: str
    command: tuple[str, ...]
    toml: str = ""
    prepare: Callable[[Path], object] | None = None
    file_limit: int | None = None  # bytes that a file may have: how a full disk looks to a writer
    env: tuple[tuple[str, str], ...] = ()


def _shards(root: Path) -> Path:
    """Build the shards and return their folder."""
    forked.run(["data", "build", "base.toml"], root).check_returncode()
    return next(p for p in (root / "shards").iterdir() if p.is_dir())


def _rename(folder: Path) -> Path:
    """Give the shards a name that does not depend on versions."""
    return folder.rename(folder.parent / "mine")


def _truncate(root: Path) -> None:
    shard = next(_rename(_shards(root)).glob("train*.tar"))
    os.truncate(shard, shard.stat().st_size // 2)


def _flip(root: Path) -> None:
    shard = next(_rename(_shards(root)).glob("train*.tar"))
    data = bytearray(shard.read_bytes())
    data[2000] ^= 1
    shard.write_bytes(data)


def _flip_in_place(root: Path) -> None:
    for shard in _shards(root).glob("train*.tar"):
        data = bytearray(shard.read_bytes())
        data[2000] ^= 1
        shard.write_bytes(data)


def _remove(root: Path) -> None:
    next(_rename(_shards(root)).glob("train*.tar")).unlink()


def _other_text(root: Path) -> None:
    """Let shards be of another text than their name says, as earlier versions left them behind."""
    path = _shards(root) / "manifest.json"
    content = json.loads(path.read_text())
    content["fingerprint"]["train"]["sha256"] = "0" * 64
    path.write_text(json.dumps(content))


def _claim(root: Path) -> None:
    path = _rename(_shards(root)) / "manifest.json"
    path.write_text(path.read_text().replace('"length": 16', '"length": 1099511627776'))


def _huge_id(root: Path) -> None:
    from tokenizers import Tokenizer, models

    text = Tokenizer(models.WordLevel({"we": 0, "the": 1}, unk_token="we")).to_str()
    (root / "words.json").write_text(text.replace('"the":1', '"the":4294967295'))


def _bomb(root: Path) -> None:
    (root / "text.txt.gz").write_bytes(gzip.compress(b"a" * (70 << 20), 1))


def _encrypted(root: Path) -> None:
    with zipfile.ZipFile(root / "text8.zip", "w") as archive:
        archive.writestr("text8", "we the people")
    data = bytearray((root / "text8.zip").read_bytes())
    for place in (data.index(b"PK\3\4") + 6, data.index(b"PK\1\2") + 8):
        data[place] |= 1
    (root / "text8.zip").write_bytes(data)


def _many_words(root: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(70_000)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(root / "words.json"))


def _hold(root: Path) -> object:
    (root / "runs" / "base").mkdir(parents=True)
    lock = (root / "runs" / "base" / ".lock").open("w")
    lock.write("process 4711 on another-machine\n")
    lock.flush()
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _broken_plugin(root: Path) -> None:
    info = root / "plugins" / "spirals-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: atat-zoo-spirals\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[atat_zoo]\nspirals = spirals\n")
    (root / "plugins" / "spirals.py").write_text("import a_library_that_is_missing\n")


CASES: tuple[Case, ...] = (
    Case("An unknown key", ("check", "bad.toml"), '[masking]\nuse = "importance"\ntemprature = 0.7\n'),
    Case("A wrong type", ("check", "bad.toml"), '[train]\nsteps = "many"\n'),
    Case("Not a finite number", ("check", "bad.toml"), '[masking]\nuse = "importance"\ntemperature = inf\n'),
    Case("A number out of range", ("check", "bad.toml", "objective.importance_loss_weight=-1")),
    Case("An unknown part", ("check", "bad.toml"), '[estimator]\nuse = "tranformer"\n'),
    Case("A missing plugin", ("check", "bad.toml"), '[masking]\nuse = "spiral"\n'),
    Case(
        "A missing plugin that the experiment names",
        ("check", "bad.toml"),
        'requires = ["atat-zoo-spirals"]\n[masking]\nuse = "spiral"\n',
    ),
    Case("A new part with a name that is taken", ("new", "noise", "linear")),
    Case(
        "A plugin that is broken",
        ("check", "bad.toml"),
        '[masking]\nuse = "spiral"\n',
        _broken_plugin,
        env=(("PYTHONPATH", "plugins"),),
    ),
    Case("A file that is not TOML", ("check", "bad.toml"), "[masking\n"),
    Case("A file that is nested too deeply", ("check", "bad.toml"), f"{'a.' * 70}b = 1\n"),
    Case("A file that is the base of too many others", ("check", "33.toml"), prepare=lambda root: _chain(root)),
    Case("An override with a comment behind its value", ("check", "base.toml", "train.steps=7 # no, 9")),
    Case("An override with another key behind its value", ("check", "base.toml", "train.steps=7\nseed = 3")),
    Case("An experiment that is not there", ("train", "quickstrat")),
    Case("A missing corpus", ("data", "build", "bad.toml"), '[corpus]\nuse = "files"\ntrain = ["novels/*.txt"]\n'),
    Case(
        "A vocabulary too large for the shards' type",
        ("data", "build", "bad.toml"),
        '[tokenizer]\nuse = "pretrained"\npath = "words.json"\n[data]\ndtype = "uint16"\n',
        _many_words,
    ),
    Case("Shards of a text that was edited while they were built", ("data", "build", "base.toml"), prepare=_other_text),
    Case(
        "A text that unpacks to more than it can hold",
        ("data", "build", "bad.toml"),
        '[corpus]\ntrain = ["text.txt.gz"]\n',
        _bomb,
    ),
    Case(
        "An encrypted archive",
        ("data", "build", "bad.toml"),
        '[corpus]\nuse = "text8"\npath = "text8.zip"\n',
        _encrypted,
    ),
    Case(
        "A tokenizer with one huge id",
        ("data", "build", "bad.toml"),
        '[tokenizer]\nuse = "pretrained"\npath = "words.json"\n',
        _huge_id,
    ),
    Case(
        "A vocabulary larger than any",
        ("check", "bad.toml"),
        '[tokenizer]\nuse = "bpe"\nvocabulary_size = 1099511627776\n',
    ),
    Case(
        "A sequence larger than this machine's memory",
        ("data", "build", "bad.toml"),
        "[data]\nlength = 1099511627776\n[backbone]\nmax_length = 1099511627776\n",
    ),
    Case("A batch larger than this machine's memory", ("train", "base.toml", "train.batch_size=1099511627776")),
    Case("A backbone larger than this machine's memory", ("train", "base.toml", "backbone.width=1048576")),
    Case(
        "More texts than this machine can hold",
        ("sample", "runs/base", "--number", "1099511627776"),
        prepare=lambda root: _model(root),
    ),
    Case("A manifest that claims more than its shards hold", ("data", "info", "shards/mine"), prepare=_claim),
    Case("A sequence longer than the backbone's maximum", ("check", "bad.toml"), "[data]\nlength = 4096\n"),
    Case("Too few shards for the lanes", ("data", "build", "bad.toml"), "[data]\nlanes = 4096\n"),
    Case("Ranks that do not divide the lanes", ("train", "base.toml"), env=(("WORLD_SIZE", "3"),)),
    Case("A truncated shard", ("data", "info", "shards/mine"), prepare=_truncate),
    Case("A shard that is missing", ("data", "info", "shards/mine"), prepare=_remove),
    Case("A manifest that does not match its shards", ("data", "info", "shards/mine", "--full"), prepare=_flip),
    Case("A shard that was changed, found while it is read", ("train", "base.toml"), prepare=_flip_in_place),
    Case("A full disk during a save", ("train", "base.toml"), prepare=_shards, file_limit=160_000),
    Case("A run folder in use by another process", ("train", "base.toml"), prepare=_hold),
    Case("A run folder with a name that Composer would fill in", ("train", "base.toml", "--out", "runs/{today}")),
    Case("A run folder that has a run already", ("train", "base.toml"), prepare=lambda root: _begun(root)),
    Case("A run without a final model", ("eval", "runs/base"), prepare=lambda root: _begun(root)),
    Case(
        "A step that a run has no checkpoint of",
        ("sample", "runs/base", "--step", "3"),
        prepare=lambda root: _model(root),
    ),
    Case("A final model that was damaged", ("sample", "runs/base"), prepare=lambda root: _damage(root)),
    Case("Weights that are not finite", ("eval", "runs/base"), prepare=lambda root: _diverged(root)),
    Case("A checkpoint that holds code", ("train", "--resume", "runs/base"), prepare=lambda root: _planted(root)),
    Case("A run to continue from that is not there", ("train", "base.toml", "init_from=runs/old")),
    Case(
        "A run to continue from that is not finished",
        ("train", "base.toml", "init_from=runs/base", "--out", "runs/new"),
        prepare=lambda root: _begun(root),
    ),
    Case(
        "Another backbone and tokenizer than those of the run to continue from",
        ("check", "bad.toml", "init_from=runs/base"),
        '[tokenizer]\nuse = "bpe"\n[backbone]\nwidth = 64\n',
        prepare=lambda root: _finished(root),
    ),
    Case("An objective that cannot use the sampler", ("check", "base.toml", "objective.use=autoregressive")),
    Case("A bound that is not there", ("eval", "runs/base", "--bound", "exactk")),
    Case("Text to evaluate on that is not there", ("eval", "runs/base", "--corpus", "novel.txt")),
    Case("A folder of runs that is not there", ("ls", "trainings")),
    Case("A comparison with nothing", ("compare", "runs/base"), prepare=lambda root: _begun(root)),
    Case(
        "A record that is damaged",
        ("compare", "runs/base", "runs/base"),
        prepare=lambda root: (_model(root), (root / "runs" / "base" / "metrics.jsonl").write_text('{"step": 1}\n5\n{')),
    ),
    Case("A judge of which there is no run", ("judge", "runs/base", "--by", "runs/judge")),
    Case(
        "A judge whose likelihood is only bounded",
        ("judge", "runs/base", "--by", "runs/other"),
        prepare=lambda root: (_begun(root), _begun(root, "other")),
    ),
    Case(
        "A sampler parameter out of range",
        ("sample", "runs/base", "sampler.steps=0"),
        prepare=lambda root: _model(root),
    ),
    Case(
        "A setting that a trained run does not take any more",
        ("sample", "runs/base", "train.steps=3"),
        prepare=lambda root: _model(root),
    ),
    Case("A run without a final model to write with", ("sample", "runs/base"), prepare=lambda root: _begun(root)),
    Case(
        "A prompt longer than the model",
        ("sample", "runs/base", "--prompt", "we the people of the union"),
        prepare=lambda root: _model(root),
    ),
    Case(
        "A text longer than the model has learned",
        ("sample", "runs/base", "--length", "64"),
        prepare=lambda root: _model(root),
    ),
    Case("A live view without a terminal", ("sample", "runs/base", "--watch"), prepare=lambda root: _model(root)),
    Case(
        "A full disk during a trace",
        ("sample", "runs/base", "--number", "64", "--trace", "steps.jsonl"),
        prepare=lambda root: _model(root),
        file_limit=4000,
    ),
    Case(
        "An unknown word in a list of words",
        ("sample", "runs/base", "guidance.use=token_bias", 'guidance.words=["people", "quickly"]'),
        '[tokenizer]\nuse = "bpe"\nvocabulary_size = 300\n',
        prepare=lambda root: _model(root, "bad.toml"),
    ),
    Case(
        "A gap that cannot fit",
        ("infill", "runs/base", "we the [MASK:20] of the union"),
        prepare=lambda root: _model(root),
    ),
    Case("A gap without a token", ("infill", "runs/base", "we [MASK:0] of"), prepare=lambda root: _model(root)),
    Case(
        "A gap that ends before it begins", ("infill", "runs/base", "we [MASK:5-3]"), prepare=lambda root: _model(root)
    ),
    Case("A gap of no number", ("infill", "runs/base", "we [MASK:x] of"), prepare=lambda root: _model(root)),
    Case("A text without a gap", ("infill", "runs/base", "we the people"), prepare=lambda root: _model(root)),
    Case(
        "A file without a text",
        ("infill", "runs/base", "--file", "empty.txt"),
        prepare=lambda root: (_model(root), (root / "empty.txt").touch()),
    ),
    Case(
        "A gap that leaves no text around it",
        ("bench", "infilling", "runs/base", "--gap", "15"),
        prepare=lambda root: _model(root),
    ),
    Case("A loss that is no number", ("train", "base.toml", "optimizer.learning_rate=1e38", "schedule.warmup_steps=0")),
)


def _chain(root: Path) -> None:
    for number in range(1, 34):
        (root / f"{number}.toml").write_text(f'extends = "{number - 1 if number > 1 else "base"}.toml"\n')


def _begun(root: Path, name: str = "base", file: str = "base.toml") -> None:
    (root / "runs" / name).mkdir(parents=True)
    resolved = forked.run(["resolve", file], root)
    (root / "runs" / name / "resolved.toml").write_text(resolved.stdout)


def _finished(root: Path) -> None:
    """Write what a finished run says of its model; the weights are not looked at."""
    _begun(root)
    model = root / "runs" / "base" / "model"
    model.mkdir()
    experiment = tomllib.loads((model.parent / "resolved.toml").read_text())
    (model / "model.json").write_text(json.dumps({"step": 6, "experiment": experiment}))
    for name in ("model.safetensors", "tokenizer.json"):
        (model / name).touch()


def _model(root: Path, file: str = "base.toml") -> None:
    """Write a run whose model is whole and was never trained."""
    from atat_zoo.experiment import load
    from atat_zoo.model import Model, assemble
    from atat_zoo.registry import Context

    _begun(root, file=file)
    experiment = load(str(root / file))
    tokenizer = experiment.parts["tokenizer"].train(lambda: iter([(root / "text.txt").read_text()]))
    context = Context(vocabulary_size=tokenizer.vocabulary_size, length=experiment.data.length)
    module = assemble(experiment, context)
    made = Model(experiment=experiment, context=context, tokenizer=tokenizer, module=module, step=0)
    made.save(root / "runs" / "base" / "model")


def _damage(root: Path) -> None:
    """Flip a bit of the weights."""
    _model(root)
    weights = root / "runs" / "base" / "model" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-100] ^= 1
    weights.write_bytes(data)


def _diverged(root: Path) -> None:
    """Write a weight that is not finite, and a description without hashes, as version 0.1 could."""
    from safetensors.torch import load_file, save_file

    _model(root)
    model = root / "runs" / "base" / "model"
    weights = load_file(model / "model.safetensors")
    weights["backbone.head.weight"][0, 0] = float("nan")
    save_file(weights, model / "model.safetensors")
    said = json.loads((model / "model.json").read_text())
    del said["sha256"]
    (model / "model.json").write_text(json.dumps(said))


class _Code:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Return the call of the command."""
        return os.system, ("true",)


def _planted(root: Path) -> None:
    """Write a checkpoint that runs a command, with its hash."""
    import torch

    _begun(root)
    path = root / "runs" / "base" / "checkpoints" / "step-00000002.pt"
    path.parent.mkdir()
    torch.save({"state": _Code()}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_suffix(".json").write_text(json.dumps({"step": 2, "sha256": digest}))


class Produced(NamedTuple):
    """What a case printed."""

    code: int
    message: str
    output: str


def produce(case: Case) -> Produced:
    """Prepare a folder, run the command in it, and return what it printed."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "base.toml").write_text(BASE)
        (root / "bad.toml").write_text('extends = "base.toml"\n' + case.toml)
        (root / "text.txt").write_text(
            "".join(f"in {year} the state of the union was strong and its people free\n" for year in range(1790, 1890))
        )
        (root / "held-out.txt").write_text("we the people of the union\n" * 10)
        held = case.prepare(root) if case.prepare else None
        done = forked.run(case.command, root, env=dict(case.env), file_limit=case.file_limit)
        if hasattr(held, "close"):
            held.close()
    message = done.stderr.replace(str(root) + "/", "").replace(str(root), ".").strip()
    # What differs from machine to machine: the hash in a folder's name, the example plugin, the memory.
    message = re.sub(r"(files-\w+-\d+)-[0-9a-f]{10}", r"\1-…", message).replace(", rank", "")
    message = re.sub(r"this machine has [\d,.]+ GB", "this machine has … GB", message)
    return Produced(done.returncode, message, done.stdout)


def page(produced: dict[str, str]) -> str:
    """Return the page from what each case printed."""
    lines = [
        "# What bad input prints",
        "",
        "One readable sentence per problem, on standard error, with exit code 2 and no traceback.",
        "Every message below is produced by a test (`tests/test_bad_input.py`);",
        "`python -m tests.bad_input` writes this page anew.",
    ]
    for case in CASES:
        command = shlex.join(case.command)
        lines += ["", f"## {case.title}", "", "```console", f"$ atat {command}", produced[case.title], "```"]
        if case.toml:
            lines += ["", "with", "", "```toml", case.toml.rstrip(), "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page({case.title: produce(case).message for case in CASES}), encoding="utf-8")
    print(json.dumps({"wrote": PAGE.name}))
