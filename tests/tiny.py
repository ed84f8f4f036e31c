"""A tiny experiment in which everything that has a state is switched on."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import forked

if TYPE_CHECKING:
    import subprocess

    from atat_zoo.experiment import Experiment

TINY = """
seed = 5
[corpus]
use = "files"
train = ["{root}/train.txt"]
validation = ["{root}/validation.txt"]
document = "line"
[tokenizer]
use = "bytes"
[backbone]
layers = 1
width = 32
heads = 2
max_length = 32
dropout = 0.1
[estimator]
use = "hybrid"
learned = {{ use = "transformer", layers = 1, width = 32, heads = 2 }}
[rates]
use = "adaptive"
bins = 2
[masking]
use = "position"
bias = "running"
[target]
use = "difficulty"
scale = "running"
[curriculum]
use = "dynamic"
[data]
root = "{root}/shards"
length = 16
sequences_per_member = 8
sequences_per_shard = 32
lanes = 4
[train]
steps = 24
batch_size = 8
microbatch_size = 2
ema = 0.9
log_every = 1
save_every = 5
[optimizer]
use = "muon"
learning_rate = 3e-3
[schedule]
warmup_steps = 4
[evaluation]
sequences = 8
draws = 2
samples = 1
[sampler]
use = "ancestral"
steps = 4
"""


class Tiny:
    """A folder with a corpus and an experiment, and the command line run on it, each time in another process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "tiny.toml"
        words = ["the", "people", "of", "this", "nation", "keep", "a", "just", "peace", "with", "all", "states"]
        draw = random.Random(0)
        for name, lines in (("train", 600), ("validation", 60)):
            text = "\n".join(" ".join(draw.choices(words, k=12)) for _ in range(lines))
            (root / f"{name}.txt").write_text(text + "\n")
        self.path.write_text(TINY.format(root=root))

    def atat(
        self, *words: str, check: bool = True, code: str | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `atat …`, or Python `code` with the words as its arguments."""
        done = forked.run(words, self.root, code=code, env=env)
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    def train(self, run: str, *words: str, **env: str) -> Path:
        """Train to the end in a process of its own; returns the run folder."""
        self.atat("train", str(self.path), "--out", run, *words, **env)
        return self.root / run

    def losses(self, run: Path | str) -> dict[int, dict[str, Any]]:
        """Return the recorded figures by step, without the clock's and the memory's."""
        lines = [json.loads(line) for line in (self.root / run / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            line.pop("tokens_per_second")
            line.pop("seconds")
            line.pop("peak_memory")
            line.pop("flops_per_second")
        steps = [line["step"] for line in lines]
        assert len(steps) == len(set(steps)), "a step was recorded twice"
        return {line["step"]: line for line in lines}

    def weights(self, run: Path | str) -> bytes:
        """Return the final weights as they lie on the disk."""
        return (self.root / run / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Return the tiny experiment; its shards are built once."""
    return Tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def uninterrupted(tiny: Tiny) -> Path:
    """Return a run that was never interrupted."""
    return tiny.train("uninterrupted")


@pytest.fixture(scope="session")
def trained(tiny: Tiny, uninterrupted: Path) -> Path:
    """Return a copy of that run, for tests that leave something behind in it."""
    return Path(shutil.copytree(uninterrupted, tiny.root / "trained"))


def folder_of(experiment: Experiment) -> Path:
    """Return the folder for the shards of an experiment whose text is there, built or not."""
    from atat_zoo.data.build import ShardSource, folder_for

    return folder_for(experiment, ShardSource.now(experiment))
