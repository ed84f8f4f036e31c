"""Compare this revision with an older one in pairs: start-up, shards, training step, sampling step and evaluation.

    python -m benchmarks revisions --old REVISION [--pairs N]

Each revision runs in its own process and checkout. The revisions alternate, A B B A A B …, so that both are measured
under the same conditions. The work uses only public names, which both revisions have.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.pairs import interleave, report

# The program that each revision runs: for each line of input, it prints a line with the seconds that the work took.
WORKER = """
import json, shutil, sys, time, warnings
from pathlib import Path
warnings.filterwarnings("ignore")
folder = Path(sys.argv[1])
from atat_zoo import Model
from atat_zoo.data.build import build
try:
    from atat_zoo.evaluation.likelihood import evaluate_run
except ImportError:  # an older revision
    from atat_zoo.evaluation import evaluate_run
from atat_zoo.experiment import load
from atat_zoo.training import train

common = [f'data.root="{folder}/shards"', "train.steps=12", "train.log_every=12", "train.save_every=12",
          "evaluation.sequences=8", "evaluation.mask_samples=1", "evaluation.samples=0"]
run = folder / "run"

def training():
    train(load("quickstart", common), run, overwrite=True)
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return line["tokens"] / line["tokens_per_second"] / 12

training()
model = Model.from_run(run)
spec = model.experiment.evaluation.__class__(sequences=64, mask_samples=4)

def clocked(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start

def building():
    seconds = clocked(lambda: build(load("quickstart", [f'data.root="{folder}/anew"'])))
    shutil.rmtree(folder / "anew")
    return seconds

work = {
    "building shards": building,
    "training step": training,
    "sampling step": lambda: model.sample(16, sampler={"use": "ancestral", "steps": 32}).seconds / 32,
    "sampling step, adaptive": lambda: model.sample(16, sampler={"use": "entropy_bounded", "steps": 32}).seconds / 32,
    "evaluation": lambda: clocked(lambda: evaluate_run(model, run, spec, seed=1)),
}
print(json.dumps(list(work)), flush=True)
for line in sys.stdin:
    print(json.dumps(work[line.strip()]()), flush=True)
"""


class Revision:
    """A checkout, and a process that runs in it."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.tree = tree
        self.env = {**os.environ, "PYTHONPATH": str(tree), "ATAT_ZOO_PLUGINS": ""}
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
        folder.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(folder)],
            cwd=tree,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.names: list[str] = self._read()

    def _read(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def __call__(self, name: str) -> float:
        """Do the work with this name, and return its seconds."""
        assert self.process.stdin
        print(name, file=self.process.stdin, flush=True)
        return float(self._read())

    def list_parts(self) -> None:
        """Run `atat zoo list` in a separate process."""
        words = [sys.executable, "-m", "atat_zoo", "zoo", "list"]
        subprocess.run(words, cwd=self.tree, env=self.env, capture_output=True, check=True)

    def end(self) -> None:
        """End the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=60)


def main() -> None:
    """Print each ratio old/new; this revision is faster if the ratio is above 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks revisions", description=__doc__)
    parser.add_argument("--old", required=True, help="git revision to compare with")
    parser.add_argument("--pairs", type=int, default=10, help="number of pairs per measurement")
    parser.add_argument("--only", nargs="+", help="names of the measurements to run, such as 'training step'")
    options = parser.parse_args(sys.argv[sys.argv.index("revisions") + 1 :])
    here = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "old-tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), options.old], cwd=here, check=True)
        try:
            old, new = Revision(tree, Path(temporary) / "old"), Revision(here, Path(temporary) / "new")
            print("start-up, `atat zoo list`")
            for revision in (old, new):
                revision.list_parts()  # writes the bytecode
            report("old", "new", interleave(old.list_parts, new.list_parts, options.pairs))
            for name in options.only or new.names:
                print(name)
                timed = []
                for number in range(options.pairs):
                    first, second = (old, new) if number % 2 else (new, old)
                    measured = {first: first(name), second: second(name)}
                    timed.append((measured[old], measured[new]))
                report("old", "new", timed)
            for revision in (old, new):
                revision.end()
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=here, check=False)
