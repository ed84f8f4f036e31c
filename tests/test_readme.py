"""Every command and code block of the README does what it says."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from tests import pages
from tests.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

README = ROOT / "README.md"


@pytest.mark.slow
def test_every_command_and_block_runs(tmp_path: Path) -> None:
    pages.prepare(tmp_path)
    pages.carry_out(README, tmp_path)


def test_the_tree_is_there() -> None:
    """The annotated tree names what exists, and all of the top level."""
    tree = next(block.text for block in pages.blocks(README) if block.language == "text")
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
