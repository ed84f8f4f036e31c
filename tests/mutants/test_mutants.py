"""Every package is a room, or is named here; the list of equivalent mutants is about lines that are there."""

import tomllib
from collections import Counter
from pathlib import Path

from tests.mutants import ROOMS, ROOT, TESTS, files_of, held_by

HERE = Path(__file__).parent
# What says, shows or checks what others compute; and a plugin that stands as an example of one, held as the others are.
NOT_ROOMS = (
    "__init__.py",
    "__main__.py",
    "train.py",
    "cli/",
    "reports/",
    "testing/",
    "modeling/__init__.py",
)
NOT_PLUGINS = {"atat-zoo-example"}
EQUIVALENT = tomllib.loads((HERE / "equivalent.toml").read_text(encoding="utf-8"))["equivalent"]


def test_every_file_and_plugin_is_of_a_room_or_named_here():
    package = ROOT / "atat_zoo"
    of_rooms = {str(path.relative_to(package)) for room in ROOMS for path in files_of(room) if package in path.parents}
    others = {str(path.relative_to(package)) for path in package.rglob("*.py")} - of_rooms
    assert [path for path in sorted(others) if not path.startswith(NOT_ROOMS)] == []
    assert {path.name for path in (ROOT / "plugins").glob("atat-zoo-*")} == {
        r for r in ROOMS if "atat-zoo" in r
    } | NOT_PLUGINS


def test_a_file_is_of_one_room_and_every_room_has_tests():
    files = Counter(path for room in ROOMS for path in files_of(room))
    assert set(files.values()) == {1}
    assert all(path.is_file() for path in files)
    assert TESTS.keys() <= set(ROOMS)
    assert all((ROOT / test).exists() for room in ROOMS if not room.startswith("atat-zoo-") for test in held_by(room))


def test_every_equivalent_mutant_is_of_a_line_that_is_there():
    files = {str(path.relative_to(ROOT)) for room in ROOMS for path in files_of(room)}
    for entry in EQUIVALENT:
        assert entry.keys() == {"file", "was", "is", "why"}
        assert entry["file"] in files
        assert len(entry["why"]) > 20
        lines = [line.strip() for line in (ROOT / entry["file"]).read_text(encoding="utf-8").splitlines()]
        missing = [line for line in entry["was"].splitlines() if line not in lines]
        assert not missing, f"{entry['file']} has no line {missing}; what was equivalent in it may not be now"


def test_no_mutant_is_listed_twice():
    keys = [(entry["file"], entry["was"], entry["is"]) for entry in EQUIVALENT]
    assert len(set(keys)) == len(keys)
