"""Every kind of bad input, produced for real.

A case is a table of bad_input.toml: its title, the command after `atat`, what it prints, and what is there before:
`toml` in bad.toml, `files`, and what functions of `prepare` make, each with its arguments. `python -m tests.bad_input`
writes what each prints, there and in the sections of docs/reference/error-messages.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import json
import os
import re
import shlex
import socket
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

from tests import forked, in_process

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "error-messages.md"
DATA = Path(__file__).with_name("bad_input.toml")
CASES = tomllib.loads(DATA.read_text(encoding="utf-8"))

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


def flip_bit(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


class Before:
    """What can be there before a command, in a folder with BASE as base.toml and its text."""

    def __init__(self, root):
        self.root, self.base = root, root / "runs" / "base"

    def build(self):
        done = in_process.run(["data", "build", "base.toml"], self.root)
        assert done.returncode == 0, done.stderr

    def shards(self):
        """Build them in a folder whose name does not depend on versions."""
        self.build()
        next(path for path in (self.root / "shards").iterdir() if path.is_dir()).rename(self.root / "shards" / "mine")

    def claim(self):
        path = self.root / "shards" / "mine" / "manifest.json"
        path.write_text(path.read_text().replace('"length": 16', '"length": 1099511627776'))

    @property
    def shard(self):
        return next((self.root / "shards").glob("*/train*.tar"))

    def truncate(self):
        os.truncate(self.shard, self.shard.stat().st_size // 2)

    def remove(self):
        self.shard.unlink()

    def flip(self):
        for shard in (self.root / "shards").glob("*/train*.tar"):
            flip_bit(shard, 2000)

    def webdataset(self):
        for number in range(2):
            with tarfile.open(self.root / f"made-{number}.tar", "w") as tar:
                for text in ("text.txt", "held-out.txt"):
                    tar.add(self.root / text, f"{number}/{text}")

    def cut_webdataset(self):
        with tarfile.open(self.root / "made-1.tar") as tar:
            second = tar.getmembers()[1].offset
        os.truncate(self.root / "made-1.tar", second)

    def archive(self, *names):
        """Write an archive as it is kept after it was fetched."""
        from atat_zoo.data.downloads import file_name

        (self.root / "corpora" / "ours").mkdir(parents=True)
        with tarfile.open(self.root / "corpora" / "ours" / file_name("https://host/ours.tar"), "w") as tar:
            for name in names:
                tar.add(self.root / "text.txt", name)

    def encrypted(self):
        with zipfile.ZipFile(self.root / "text8.zip", "w") as archive:
            archive.writestr("text8", "we the people")
        data = bytearray((self.root / "text8.zip").read_bytes())
        for place in (data.index(b"PK\3\4") + 6, data.index(b"PK\1\2") + 8):
            data[place] |= 1
        (self.root / "text8.zip").write_bytes(data)

    def bomb(self):
        (self.root / "text.txt.gz").write_bytes(gzip.compress(b"a" * (70 << 20), 1))

    def words(self, number, last):
        """Write a tokenizer of words, of which the last has an id."""
        from tokenizers import Tokenizer, models, pre_tokenizers

        number = int(number)
        tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(number)}, unk_token="w0"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        text = tokenizer.to_str().replace(f'"w{number - 1}":{number - 1}', f'"w{number - 1}":{last}')
        (self.root / "words.json").write_text(text)

    def chain(self):
        for number in range(1, 34):
            base = number - 1 if number > 1 else "base"
            (self.root / f"{number}.toml").write_text(f'extends = "{base}.toml"\n')

    def hold(self):
        self.base.mkdir(parents=True)
        lock = (self.base / ".lock").open("w")
        lock.write("process 4711 on another-machine\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        return lock

    def begin(self, name="base", file="base.toml"):
        (self.root / "runs" / name).mkdir(parents=True)
        resolved = in_process.run(["resolve", file], self.root).stdout
        (self.root / "runs" / name / "resolved.toml").write_text(resolved)

    def finish(self):
        """Write what a finished run says of its model; the weights are not looked at."""
        model = self.base / "model"
        model.mkdir()
        experiment = tomllib.loads((self.base / "resolved.toml").read_text())
        files = ("model.safetensors", "tokenizer.json")
        sums = dict.fromkeys(files, hashlib.sha256(b"").hexdigest())
        (model / "model.json").write_text(json.dumps({"step": 6, "experiment": experiment, "sha256": sums}))
        for name in files:
            (model / name).touch()

    def model(self, file="base.toml"):
        """Write a run whose model is whole and was never trained."""
        from atat_zoo.experiment import load
        from atat_zoo.generation.model import Model
        from atat_zoo.modeling.objectives import assemble
        from atat_zoo.registry import Context

        self.begin(file=file)
        experiment = load(str(self.root / file))
        tokenizer = experiment.parts["tokenizer"].train(lambda: iter([(self.root / "text.txt").read_text()]))
        context = Context(vocabulary_size=tokenizer.vocabulary_size, length=experiment.data.length)
        module = assemble(experiment, context)
        made = Model(experiment=experiment, context=context, tokenizer=tokenizer, module=module, step=0)
        made.save(self.base / "model")

    def damage(self):
        flip_bit(self.base / "model" / "model.safetensors", -100)

    def diverge(self):
        """Write a weight that is not finite, and its hash."""
        from safetensors.torch import load_file, save_file

        model = self.base / "model"
        weights = load_file(model / "model.safetensors")
        weights["backbone.head.weight"][0, 0] = float("nan")
        save_file(weights, model / "model.safetensors")
        said = json.loads((model / "model.json").read_text())
        said["sha256"]["model.safetensors"] = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
        (model / "model.json").write_text(json.dumps(said))

    def take_port(self):
        taken = socket.socket()
        with contextlib.suppress(OSError):  # where somebody else has taken it
            taken.bind(("127.0.0.1", 28422))
            taken.listen()
        return taken

    def plant(self):
        """Write a checkpoint that runs a command, with its hash."""
        import torch

        path = self.base / "checkpoints" / "step-00000002.pt"
        path.parent.mkdir()
        torch.save({"state": _Code()}, path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        path.with_suffix(".json").write_text(json.dumps({"step": 2, "sha256": digest, "experiment": None}))

    def code(self):
        import torch

        torch.save({"state_dict": {}, "hyper_parameters": _Code()}, self.root / "last.ckpt")

    def rate(self, drop):
        """Write a form's key, and what two people saved: the form, and one of the same texts in another order."""
        from atat_zoo_human_eval.rating_form import QUESTIONS, RatedText, RatingForm

        texts = [RatedText(run=i % 2, text=f"text {i}") for i in range(4)]
        forms = [RatingForm.shuffled(QUESTIONS, texts, [{"run": "a"}, {"run": "b"}], seed) for seed in (0, 1)]
        (self.root / "form.key.json").write_text(json.dumps(forms[0].key()))
        rows = [{"text": i, "question": name, "rating": 3} for i in (1, 2, 3, 4) for name in QUESTIONS]
        for name, form in (("ann", forms[0]), ("again", forms[1])):
            answers = {"form": form.digest, "rater": "Ann", "ratings": rows[int(drop) :]}
            (self.root / f"{name}.json").write_text(json.dumps(answers))

    def evaluate(self, name, sequences):
        from atat_zoo.experiment.runs import RunFolder
        from tests.reports.run_folders import write_evaluation

        self.begin(name)
        write_evaluation(RunFolder(self.root / "runs" / name), 60.0, sequences=int(sequences))


class _Code:  # runs a command when it is unpickled
    def __reduce__(self):
        return os.system, ("true",)


def produce(case):
    """Prepare a folder, run the command in it, and return its exit code and what it printed: message and output."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        root, command = Path(name), case["atat"]
        # A study names its experiments, and a manifest extends nothing.
        base = "" if command.startswith(("study ", "paper ")) else 'extends = "base.toml"\n'
        lines = (f"in {year} the state of the union was strong and its people free\n" for year in range(1790, 1890))
        files = {"base.toml": BASE, "bad.toml": base + case.get("toml", ""), "text.txt": "".join(lines)}
        files["held-out.txt"] = "we the people of the union\n" * 10
        for file, text in files.items():
            (root / file).write_text(text)
        for step in case.get("prepare", ()):
            function, *arguments = step.split()
            held = getattr(Before(root), function)(*arguments)
            if held is not None:
                stack.callback(held.close)
        for file, text in case.get("files", {}).items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(text)
        words, env, limit = shlex.split(command), case.get("env"), case.get("file_limit")
        # What trains, or may not reach the end of a training, has a process of its own.
        alone = env or limit or case.get("apart")
        done = forked.run(words, root, env=env, file_limit=limit) if alone else in_process.run(words, root)
    message = done.stderr.replace(str(root) + "/", "").replace(str(root), ".").strip()
    # What differs from machine to machine: the hash in a folder's name, the example plugin, the memory, this checkout.
    message = message.replace(f"{PAGE.parents[2]}/", "")
    message = re.sub(r"(files-\w+-\d+)-[0-9a-f]{10}", r"\1-…", message).replace(", rank", "")
    message = re.sub(r"this machine has only [\d,.]+ GB", "this machine has only … GB", message)
    return done.returncode, message, done.stdout


def on_the_page(text):
    """Return the page with what its cases have: its sections' titles are what is written by hand."""
    head, *titles = re.split(r"^## (.*)\n(?:(?!## ).*\n?)*", text, flags=re.MULTILINE)
    sections = [head]
    for title in filter(None, titles):
        case = CASES[title]
        sections.append(f"## {title}\n\n```console\n$ atat {case['atat']}\n{case['prints']}\n```\n\n")
        if "toml" in case:
            sections.append(f"with\n\n```toml\n{case['toml']}```\n\n")
    return "".join(sections).rstrip() + "\n"


def written(cases):
    """Return the cases as TOML."""
    from atat_zoo.registry.registry_file import inline

    def value(value):
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{json.dumps(key)} = {inline(text)}" for key, text in value.items()) + " }"
        return f"'''\n{value}'''" if isinstance(value, str) and "\n" in value else inline(value)

    return "\n".join(
        f"[{json.dumps(title)}]\n" + "".join(f"{key} = {value(each)}\n" for key, each in case.items())
        for title, case in cases.items()
    )


def main():
    """Write what each case prints."""
    for case in CASES.values():
        case["prints"] = produce(case)[1]
    DATA.write_text(written(CASES), encoding="utf-8")
    PAGE.write_text(on_the_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
