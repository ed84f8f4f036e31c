"""The code blocks of README.md and of docs/, carried out in the order of the page.

- `console`: each line that begins with `$ ` is run, but for what sets up a machine. A package that the page has written
  and installs is found by the commands after it, which also check its experiments.
- `toml`: written to the file that its first line names, and loaded as an experiment.
- `python`: run, or, if its first line names a file, written there for the blocks after it. If a block `text` follows at
  once, it is what must be printed.

A block marked `noexec` after its language is only shown, and any other language too.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from atat_zoo.experiment import load
from tests import fixtures, forked
from tests.installing import install_beside

ROOT = Path(__file__).parents[1]
# What sets up a machine, or takes hours.
SETUP = ("git clone", "make ", "source ", "pip install")
# How much is measured or written, and how much of it a test has.
AMOUNTS = re.compile(r"(--(?:sequences|prices|bracket|orders|number) |-n |\btexts = )\d+")
# What `make quickstart` leaves behind, by a training of a few steps.
SMALL = [
    "backbone.layers=1",
    "backbone.heads=2",
    "backbone.width=64",
    "train.steps=4",
    "train.batch_size=8",
    "evaluation.sequences=8",
]
SMALL += ["evaluation.mask_samples=1", "evaluation.samples=1", "data.sequences=2000"]


class Block(NamedTuple):
    """A code block, and the block `text` that follows it at once, or None."""

    language: str
    text: str
    printed: str | None

    @property
    def file(self):
        """The file that the first line names."""
        name = re.match(r"# (\S+\.(?:toml|py))\n", self.text)
        return name[1] if name else None


def blocks(page):
    """Return the code blocks of a page, in its order."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^```(.*)\n((?:.*\n)*?)```\n(?:\n```text\n((?:.*\n)*?)```)?", text, re.MULTILINE)
    return [Block(language, code, printed or None) for language, code, printed in found]


def prepare(folder):
    """Leave in a folder what the pages begin with: the quickstart's run, corpora, a folder of stories, and studies."""
    run(["atat", "train", "quickstart", *SMALL], folder)
    fixtures.write_all(folder)
    shutil.copytree(ROOT / "docs" / "studies", folder / "docs" / "studies")  # as in a checkout
    (folder / "stories").mkdir()
    (folder / "new").mkdir()
    (folder / "new" / "one.txt").write_text("\n\n".join(fixtures.sentences(20)))
    (folder / "stories" / "all.txt").write_text("\n\n".join(fixtures.sentences(600)))


def carry_out(page, folder):
    """Carry out the blocks of a page; raises AssertionError where one does not do what it says."""
    with pytest.MonkeyPatch.context() as patch:
        _carry_out(page, folder, patch)


def _carry_out(page, folder, patch):
    installed = False
    for number, block in enumerate(blocks(page)):
        path = folder / (block.file or f"block{number}.{block.language}")
        if block.language in ("toml", "python"):
            path.write_text(block.text, encoding="utf-8")
        # A study and the manifest of a paper are read by their commands.
        studied = block.language == "toml" and {"arms", "table"} & tomllib.loads(block.text).keys()
        if block.language == "toml" and not studied and not installed:
            with contextlib.chdir(folder):
                load(path)
        if block.language == "python" and not block.file:
            code = f"import runpy; runpy.run_path({path.name!r}, run_name='__main__')"
            env = {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}", "HF_HOME": f"{folder}/hub"}
            done = forked.run([], folder, code=code, env=env)
            assert done.returncode == 0, f"{page.name}: {block.text}\n{done.stdout}{done.stderr}"
            if block.printed is not None:
                assert done.stdout.strip() == block.printed.strip(), f"{page.name}: {block.text}\n{done.stdout}"
        if block.language == "console":
            for line in block.text.splitlines():
                if line.startswith("$ pip install -e ./"):
                    own, installed = install_beside(folder / line.partition("./")[2], folder), True
                    patch.setenv("PYTHONPATH", f"{folder}:{own}:{os.environ.get('PYTHONPATH', '')}")
                elif line.startswith("$ ") and not line[2:].startswith(SETUP):
                    run(_fitted(line[2:]), folder)


def _fitted(command):
    """Return a command with the few steps and items of a test."""
    words = shlex.split(AMOUNTS.sub(r"\g<1>2", command.replace("--step 400", "--step 4")), comments=True)
    if "owt-small/atat" in words and words[1] != "check":
        return words + fixtures.FEW
    if "--resume" in words:
        return words[: words.index("--resume") + 2]
    if "train" in words and "convolution.toml" in words:
        return [*words, *(each for each in SMALL if not each.startswith("backbone."))]
    # Of two that set one key, the last counts.
    return words + SMALL if {"train", "atat_zoo.train"} & {*words} else words


def run(words, folder):
    """Run a command in a folder; it succeeds."""
    if words[0] == "atat":
        done = forked.run(words[1:], folder)
        code, said = done.returncode, done.stdout + done.stderr
    else:
        # As a launcher would, whose two ranks import everything anew (tests/test_cluster.py has one).
        assert words[:5] == ["composer", "-n", "2", "-m", "atat_zoo.train"]
        launched = "import runpy; runpy.run_module('atat_zoo.train', run_name='__main__')"
        ranks = forked.ranks(2, words[5:], folder, code=launched)
        said = "".join(rank.communicate()[0] for rank in ranks)
        code = max(abs(rank.returncode) for rank in ranks)
    assert code == 0, f"{shlex.join(words)}\n{said}"
