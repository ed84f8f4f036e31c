"""The list of equivalent mutants is about lines that are there, and says why."""

import tomllib
from pathlib import Path

from tests.mutants import ROOMS

HERE = Path(__file__).parent
EQUIVALENT = tomllib.loads((HERE / "equivalent.toml").read_text(encoding="utf-8"))["equivalent"]


def test_every_equivalent_mutant_is_of_a_line_that_is_there():
    for entry in EQUIVALENT:
        assert entry.keys() == {"file", "was", "is", "why"}
        assert entry["file"].split("/")[1] in ROOMS
        assert len(entry["why"]) > 20
        lines = [line.strip() for line in (HERE.parents[1] / entry["file"]).read_text(encoding="utf-8").splitlines()]
        missing = [line for line in entry["was"].splitlines() if line not in lines]
        assert not missing, f"{entry['file']} has no line {missing}; what was equivalent in it may not be now"


def test_no_mutant_is_listed_twice():
    keys = [(entry["file"], entry["was"], entry["is"]) for entry in EQUIVALENT]
    assert len(set(keys)) == len(keys)
