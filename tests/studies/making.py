"""A folder with a corpus, a tiny experiment and studies of it."""

from __future__ import annotations

import json
import random
import time

from tests import forked
from tests.studies.quick import CODE, SLOW, study

TINY = """
corpus = {use = "files", train = ["train.txt"], validation = ["validation.txt"], test = ["test.txt"], document = "line"}
tokenizer = "bytes"
backbone = { layers = 1, width = 16, heads = 2, max_length = 32 }
data = { root = "shards", length = 16, sequences_per_member = 8, sequences_per_shard = 64, lanes = 2 }
train = { steps = 3, batch_size = 4, log_every = 1, save_every = 1 }
schedule = { warmup_steps = 0 }
evaluation = { sequences = 4, mask_samples = 1, samples = 0 }
"""

STUDY = """
seeds = [18, 19]
baseline = "plain"
folder = "study"
[evaluation]
mask_samples = 2
[arms.plain]
experiment = "tiny.toml"
[arms.fast]
like = "plain"
overrides = ["optimizer.learning_rate=1e-2"]
"""
RUNS = ["fast-seed18", "fast-seed19", "plain-seed18", "plain-seed19"]


class Place:
    """The folder, and `atat study` run in it."""

    def __init__(self, root):
        self.root, self.folder = root, root / "study"
        draw = random.Random(0)
        words = ["the", "people", "of", "this", "nation", "keep", "a", "just", "peace", "with", "all", "states"]
        for name, lines in (("train", 120), ("validation", 24), ("test", 16)):
            text = "\n".join(" ".join(draw.choices(words, k=8)) for _ in range(lines))
            (root / f"{name}.txt").write_text(text + "\n")
        (root / "tiny.toml").write_text(TINY)
        self.write(STUDY)

    def write(self, text):
        (self.root / "study.toml").write_text(text)

    def begin(self, *words, slow=0.0):
        """Begin `atat study` in a process of its own."""
        env = {SLOW: str(slow)} if slow else {}
        return forked.Atat(["study", "study.toml", *words], self.root, code=CODE, env=env)

    def study(self, *words, code=0):
        """Run `atat study` with its trainings in this process."""
        done = study(words, self.root)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout, done.stderr

    def report(self):
        return json.loads((self.folder / "study.json").read_text())

    def numbers(self):
        """Return the results without times and memory, and without how it was trained."""

        def kept(value):
            if isinstance(value, list):
                return [kept(each) for each in value]
            left_out = {"git", "seconds", "seconds_per_step", "peak_memory", "trained_with", "machine"}
            return {k: kept(v) for k, v in value.items() if k not in left_out} if isinstance(value, dict) else value

        return kept(self.report())

    def trainings(self):
        return [json.loads(line) for line in (self.folder / "trainings.jsonl").read_text().splitlines()]

    def runs(self):
        return sorted(path.parent.name for path in self.folder.glob("*/resolved.toml"))


def wait_for(what, process, seconds=60):
    """Wait until something is true, while a process runs."""
    deadline = time.monotonic() + seconds
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def steps_of(place, run):
    path = place.folder / run / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.is_file() else 0
