"""A tiny experiment in which everything that has a state is switched on."""

import json
import random
import shutil
from pathlib import Path

import pytest

from tests import forked, in_process

# What a clock or the memory says of a step.
CLOCK = ("tokens_per_second", "flops_per_second", "seconds", "peak_memory")
WORDS = ["the", "people", "of", "this", "nation", "keep", "a", "just", "peace", "with", "all", "states"]
TINY = {
    "corpus": {"use": "files", "train": ["train.txt"], "validation": ["validation.txt"], "document": "line"},
    "tokenizer": {"use": "bytes"},
    "backbone": {"layers": 1, "width": 32, "heads": 2, "max_length": 32, "dropout": 0.1},
    "estimator": {"use": "hybrid", "learned": {"use": "transformer", "layers": 1, "width": 32, "heads": 2}},
    "mask_rates": {"use": "adaptive", "bins": 2},
    "masking": {"use": "position", "bias": "running"},
    "target": {"use": "difficulty", "scale": "running"},
    "curriculum": {"use": "dynamic"},
    "data": {
        "root": "shards",
        "length": 16,
        "special_tokens": "none",
        "sequences_per_member": 8,
        "sequences_per_shard": 32,
        "lanes": 4,
    },
    "train": {"steps": 24, "batch_size": 8, "microbatch_size": 2, "ema_decay": 0.9, "log_every": 1, "save_every": 5},
    "optimizer": {"use": "muon", "learning_rate": 3e-3},
    "schedule": {"warmup_steps": 4},
    "evaluation": {"sequences": 8, "mask_samples": 2, "samples": 1},
    "sampler": {"use": "ancestral", "steps": 4},
}


def lines(count, draw):
    return "".join(" ".join(draw.choices(WORDS, k=12)) + "\n" for _ in range(count))


def tiny_toml(root="."):
    """Return the tiny experiment with its corpus and shards in `root`."""

    def written(value):
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{key} = {written(inner)}" for key, inner in value.items()) + " }"
        return json.dumps(value)

    text = "seed = 5\n"
    for name, table in TINY.items():
        text += f"[{name}]\n" + "".join(f"{key} = {written(value)}\n" for key, value in table.items())
    for path in ("train.txt", "validation.txt", "shards"):
        text = text.replace(f'"{path}"', f'"{root}/{path}"')
    return text


class Tiny:
    """A folder with a corpus and an experiment, and the command line run on it."""

    def __init__(self, root, named=None):
        """Write them; the experiment names its folder `named`, or in full."""
        self.root, self.path, draw = root, root / "tiny.toml", random.Random(0)
        for name, count in (("train", 600), ("validation", 60)):
            (root / f"{name}.txt").write_text(lines(count, draw))
        self.path.write_text(tiny_toml(named or root))

    def atat(self, *words, check=True, code=None, **env):
        """Run `atat …`; Python `code` with the words as its arguments, or with variables, in a process of its own."""
        apart = code is not None or bool(env)
        done = forked.run(words, self.root, code=code, env=env) if apart else in_process.run(words, self.root)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def train(self, run, *words, **env):
        self.atat("train", str(self.path), "--out", run, *words, **env)
        return self.root / run

    def losses(self, run):
        """Return the recorded figures by step, without the clock's and the memory's."""
        text = (self.root / run / "metrics.jsonl").read_text()
        lines = [{k: v for k, v in json.loads(line).items() if k not in CLOCK} for line in text.splitlines()]
        by_step = {line["step"]: line for line in lines}
        assert len(by_step) == len(lines), "a step was recorded twice"
        return by_step

    def weights(self, run):
        return (self.root / run / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Return the tiny experiment; its shards are built once."""
    return Tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def uninterrupted(tiny):
    return tiny.train("uninterrupted")


@pytest.fixture(scope="session")
def trained(tiny, uninterrupted):
    """Return a copy of that run, for tests that leave something behind in it."""
    return Path(shutil.copytree(uninterrupted, tiny.root / "trained"))


def folder_of(experiment):
    """Return the folder for the shards of an experiment whose text is there, built or not."""
    from atat_zoo.data.build import Build, ShardSource

    return Build(experiment, ShardSource.now(experiment), print).folder
