"""`python -m tests.mutants`: test a sample of mutants, print the rates and the survivors; exit code 1 below the bar."""

import argparse
import contextlib
import difflib
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import libcst as cst
from mutmut.configuration import reset_config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import read_mutant_function, read_original_function
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.stats import status_by_exit_code
from mutmut.utils.format_utils import get_mutant_name

from tests.mutants import ROOMS, SENTENCES, UNCOMPUTED

ROOT = Path(__file__).parents[2]
KILLED = {"killed", "timeout", "segfault"}
BAR = 0.95
CONFIGURATION = """
[tool.mutmut]
source_paths = ["atat_zoo"]
only_mutate = ["atat_zoo/{room}/*"]
also_copy = ["registry.toml", "experiments", "plugins"]
pytest_add_cli_args = ["-m", "not slow"]
pytest_add_cli_args_test_selection = ["tests/{room}"]
process_isolation = "forkserver"  # torch
use_git_change_detection = false
timeout_constant = 10.0
timeout_multiplier = 3.0
do_not_mutate_patterns = {patterns}
"""


def folder_of(room):
    """Make the folder where mutmut works on a room: links to the tree, and its configuration."""
    folder = ROOT / "build" / "mutants" / room
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tests", "registry.toml", "experiments", "plugins"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(ROOT / name)
    undecorated(ROOT / "atat_zoo", folder / "atat_zoo")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    text += CONFIGURATION.format(room=room, patterns=json.dumps(SENTENCES))
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    shutil.rmtree(folder / "mutants" / "tests", ignore_errors=True)  # of tests that are gone
    return folder


def undecorated(package, copy):
    """Copy a package without `@override`: mutmut leaves a decorated function alone."""
    if copy.is_symlink():
        copy.unlink()
    for path in package.rglob("*"):
        target = copy / path.relative_to(package)
        if path.is_dir() or "__pycache__" in path.parts:
            continue
        text = path.read_bytes().replace(b"    @override\n", b"")
        if not target.is_file() or target.read_bytes() != text:  # what is as it was is not tested anew
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text)
    for gone in [path for path in copy.rglob("*.py") if not (package / path.relative_to(copy)).is_file()]:
        gone.unlink()


def mutants_of(room):
    """Return the mutants of a room by name: the file, and its text with all of them."""
    found = {}
    for path in sorted(Path("atat_zoo", room).glob("*.py")):
        mutated = mutate_file_contents(str(path), path.read_text(encoding="utf-8"))
        module = cst.parse_module(mutated.code)
        found |= {get_mutant_name(path, name): (path, module) for name in mutated.mutant_names}
    return found


def difference(name, module):
    """Return the lines that a mutant changes, as they are and as it has them."""
    name = name.rpartition(".")[2]
    both = (cst.Module([read(module, name)]).code for read in (read_original_function, read_mutant_function))
    lines = list(difflib.ndiff(*(code.splitlines() for code in both)))
    was, now = ("\n".join(line[2:].strip() for line in lines if line[0] == sign) for sign in "-+")
    return was, now


def is_equivalent(path, was, now, equivalent):
    """Return whether a mutant changes nothing that is computed here, or is listed by file, line before and after."""

    def unplaced(code):
        return re.sub(r"[\s,]+(?=[,)]|$)", "", re.sub(UNCOMPUTED, "", code))

    return unplaced(was) == unplaced(now) or {"file": str(path), "was": was, "is": now} in equivalent


def test(room, number, seed, jobs, equivalent):
    """Test a sample, print its row and its survivors; returns all mutants of the room, and of the sample: n, killed."""
    mutants = mutants_of(room)
    names = sorted(mutants)
    if number is not None:
        names = random.Random(f"{seed} {room}").sample(names, min(number, len(names)))
    changes = {name: difference(name, mutants[name][1]) for name in names}
    names = [name for name in names if not is_equivalent(mutants[name][0], *changes[name], equivalent)]

    def results():
        found = {}
        for path in {mutants[name][0] for name in names}:
            data = SourceFileMutationData(path=path)
            data.load()
            found |= data.exit_code_by_key
        return {name: status_by_exit_code[found.get(name)] for name in names}

    if left := [name for name, status in results().items() if status not in KILLED]:
        command = [sys.executable, "-c", "from mutmut.__main__ import cli; cli()", "run", "--max-children", str(jobs)]
        with Path("mutmut.log").open("w", encoding="utf-8") as log:
            subprocess.run([*command, *left], stdout=log, stderr=log, check=False)
    found = results()
    killed = sum(status in KILLED for status in found.values())
    rate = killed / max(1, len(names))
    print(f"{room:12}{len(mutants):8}{len(changes):8}{len(changes) - len(names):12}{killed:8}{rate:8.1%}", flush=True)
    for name, status in found.items():
        if status not in KILLED:
            was, now = changes[name]
            print(f"\n{status}: {name}\n  was {was}\n  is  {now}\n", flush=True)
    return len(mutants), len(names), killed


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"{', '.join(ROOMS)}; all when absent")
    parser.add_argument("--number", default="200", help='mutants in all, as many of each room, or "all"')
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    words = parser.parse_args()
    if unknown := set(words.rooms) - set(ROOMS):
        parser.error(f"there is no room {', '.join(sorted(unknown))} (there are: {', '.join(ROOMS)})")
    number = None if words.number == "all" else -(-int(words.number) // len(ROOMS))
    equivalent = tomllib.loads((Path(__file__).parent / "equivalent.toml").read_text(encoding="utf-8"))["equivalent"]
    equivalent = [{key: each[key] for key in ("file", "was", "is")} for each in equivalent]
    # No GPU, for a process that has used one cannot be forked; and a mutant that asks for all memory gets none.
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    print(f"{'room':12}{'mutants':>8}{'sample':>8}{'equivalent':>12}{'killed':>8}{'rate':>8}", flush=True)
    counts = []
    for room in words.rooms or ROOMS:
        with contextlib.chdir(folder_of(room)):
            reset_config()
            counts.append(test(room, number, words.seed, words.jobs, equivalent))
    rate = sum(all_ * killed / n for all_, n, killed in counts if n) / max(1, sum(all_ for all_, n, _ in counts if n))
    print(f"{'in all':12}{sum(c[0] for c in counts):8}{sum(c[1] for c in counts):20}{'':8}{rate:8.1%}")
    return 0 if rate >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
