"""Every command and code block of the README does what it says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from atat_zoo.experiment import load
from tests import fixtures, forked

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Begun by `make quickstart` and `make test`, which set up a machine; both are run by hand and by CI.
SETUP = ("git clone", "make quickstart", "make test")


def blocks(language: str) -> list[str]:
    """Return the code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Return the commands of the console blocks."""
    lines = [line for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]
    return [line[2:] for line in lines if not line[2:].startswith(SETUP)]


@pytest.mark.slow
def test_every_command_and_block_runs(tmp_path: Path) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def alone(words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)

    # What `make quickstart` leaves behind, by a training of a few steps.
    small = ["train.steps=4", "train.batch_size=8", "evaluation.sequences=8", "evaluation.draws=1"]

    def run(words: list[str]) -> None:
        done = forked.run(words[1:], tmp_path) if words[0] == "atat" else alone(words)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"

    run(["atat", "train", "quickstart", *small])
    fixtures.write_all(tmp_path)
    (tmp_path / "stories").mkdir()
    (tmp_path / "stories" / "all.txt").write_text("\n\n".join(fixtures.sentences(600)))
    for number, block in enumerate(blocks("toml")):
        name = re.match(r"# (\S+\.toml)", block)
        path = tmp_path / (name[1] if name else f"block{number}.toml")
        path.write_text(block)
        load(path)
    for command in commands():
        words = shlex.split(command.replace("--step 400", "--step 4").replace("-n 8", "-n 2"), comments=True)
        if "owt-small/atat" in words and words[1] != "check":
            words += fixtures.FEW
        elif "train" in words or "atat_zoo.train" in words:
            words += small  # of two that set one key, the last counts
            if "--resume" in words:
                words = words[: words.index("--resume") + 2]
        run(words)
    for block in blocks("python"):  # they use what the commands have trained
        run([sys.executable, "-c", block])


def test_the_tree_is_there() -> None:
    """The annotated tree names what exists, and all of the top level."""
    tree = blocks("text")[0]
    named = {line.split()[0] for line in tree.splitlines() if line and not line.startswith(" ")}
    for name in named:
        assert (ROOT / name.rstrip("/")).exists(), name
    tracked = {"atat_zoo/", "plugins/", "registry.toml", "experiments/", "tests/", "docs/", "benchmarks/"}
    assert tracked <= named
    for line in re.findall(r"^  (\S+)  +\S", tree, re.MULTILINE):
        assert (ROOT / "atat_zoo" / line.rstrip("/")).exists(), line


def test_the_license_is_there() -> None:
    assert shutil.which("make")
    assert "Apache License" in (ROOT / "LICENSE").read_text()
