"""`python -m tests.mutants`: test a sample of mutants, print the rates and the survivors; exit code 1 below the bar."""

import argparse
import difflib
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import libcst as cst
from mutmut.configuration import reset_config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import read_mutant_function, read_original_function
from mutmut.stats import status_by_exit_code

from tests.mutants import GROUPS, ROOMS, ROOT, SENTENCES, UNCOMPUTED, files_of, held_by

KILLED = {"killed", "timeout", "segfault"}
BAR = 0.95
CONFIGURATION = """
[tool.mutmut]
source_paths = [{package}]
only_mutate = {files}
also_copy = {copied}
pytest_add_cli_args_test_selection = {tests}
process_isolation = "forkserver"  # torch
use_git_change_detection = false
timeout_constant = 10.0
timeout_multiplier = 3.0
do_not_mutate_patterns = {patterns}
"""
# What tests read, besides the package.
READ = (
    "tests",
    "registry.toml",
    "experiments",
    "plugins",
    "docs",
    "benchmarks",
    "README.md",
    "CHANGELOG.md",
    "CITATION.cff",
)
# Prints what a plugin, or one of its extras, needs and this interpreter does not have.
MISSING = """
import sys
from importlib.metadata import PackageNotFoundError, distribution, version
from packaging.requirements import Requirement
try:
    needs = [Requirement(line) for line in distribution(sys.argv[1]).requires or ()]
except PackageNotFoundError:
    sys.exit(sys.argv[1])
for need in needs:
    try:
        version(need.name)
    except PackageNotFoundError:
        sys.exit(need.name)
"""


def folder_of(group):
    """Make the folder where mutmut works on a group, links to the tree in it; returns it, and the group's files."""
    folder = ROOT / "build" / "mutants" / "+".join(group).replace("/", ".")
    folder.mkdir(parents=True, exist_ok=True)
    if group[0].startswith("atat-zoo-"):
        root, package = ROOT / "plugins" / group[0], group[0].replace("-", "_")
        copied = [each.name for each in root.iterdir() if each.name not in (package, "pyproject.toml")]
        tests = ["tests"]
    else:
        root, package, copied = ROOT, "atat_zoo", list(READ)
        tests = [test for room in group for test in held_by(room)]
    for name in copied:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(root / name)
    undecorated(root / package, folder / package)
    files = sorted(str(path.relative_to(root)) for room in group for path in files_of(room))
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    values = {"package": package, "files": files, "copied": copied, "tests": tests, "patterns": SENTENCES}
    text += CONFIGURATION.format(**{key: json.dumps(value) for key, value in values.items()})
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    shutil.rmtree(folder / "mutants" / "tests", ignore_errors=True)  # of tests that are gone
    return folder, files


def undecorated(package, copy):
    """Copy a package without `@override`: mutmut leaves a decorated function alone."""
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


def mutants_of(files):
    """Make the mutants of files, where they are not made; returns the file of each by its name."""
    from mutmut.__main__ import create_mutants_for_file  # it reads the configuration of the folder that we are in

    found = {}
    for path in map(Path, files):
        made = Path("mutants") / path
        made.parent.mkdir(parents=True, exist_ok=True)
        result = create_mutants_for_file(path, made)
        if result.error:
            raise result.error
        data = SourceFileMutationData(path=path)
        data.load()
        found |= dict.fromkeys(data.exit_code_by_key, path)
    return found


def difference(name, module):
    """Return the lines that a mutant changes, as they are and as it has them."""
    name = name.rpartition(".")[2]
    both = (cst.Module([read(module, name)]).code for read in (read_original_function, read_mutant_function))
    lines = list(difflib.ndiff(*(code.splitlines() for code in both)))
    was, now = ("\n".join(line[2:].strip() for line in lines if line[0] == sign) for sign in "-+")
    return was, now


def differences(mutants):
    """Return the difference of every mutant by its name."""
    found = {}
    for path in sorted(set(mutants.values())):
        module = cst.parse_module((Path("mutants") / path).read_text(encoding="utf-8"))
        found |= {name: difference(name, module) for name, at in mutants.items() if at == path}
    return found


def is_equivalent(path, was, now, equivalent):
    """Return whether a mutant changes nothing that is computed here, or is listed by file, line before and after."""

    def unplaced(code):
        return re.sub(r"[\s,]+(?=[,)]|$)", "", re.sub(UNCOMPUTED, "", code))

    return unplaced(was) == unplaced(now) or {"file": str(path), "was": was, "is": now} in equivalent


def test(group, number, seed, jobs, python, equivalent):
    """Test a sample of a group; returns all of its mutants and those of the sample, n and killed, and what to print."""
    began, title = time.monotonic(), ", ".join(group)
    folder, files = folder_of(group)
    plugin = group[0] if group[0].startswith("atat-zoo-") else None
    python = python if plugin else sys.executable
    if plugin:
        absent = subprocess.run([python, "-c", MISSING, plugin], capture_output=True, text=True, check=False)
        if absent.returncode:
            return None, f"{title}: left out, for {absent.stderr.strip()} is not installed"
    os.chdir(folder)
    reset_config()
    mutants = mutants_of(files)
    names = sorted(mutants)
    if number is not None:
        names = random.Random(f"{seed} {title}").sample(names, min(number, len(names)))
    changes = differences({name: mutants[name] for name in names})
    prefix = f"plugins/{plugin}/" if plugin else ""
    names = [name for name in names if not is_equivalent(f"{prefix}{mutants[name]}", *changes[name], equivalent)]

    def results():
        found = {}
        for path in {mutants[name] for name in names}:
            data = SourceFileMutationData(path=path)
            data.load()
            found |= data.exit_code_by_key
        return {name: status_by_exit_code[found.get(name)] for name in names}

    if left := [name for name, status in results().items() if status not in KILLED]:
        command = [python, str(Path(__file__).with_name("mutmut_run.py")), "run", "--max-children", str(jobs)]
        with Path("mutmut.log").open("w", encoding="utf-8") as log:
            done = subprocess.run([*command, *left], stdout=log, stderr=log, check=False)
        if done.returncode:
            text = f"{title}: mutmut stopped; see {folder}/mutmut.log"
            return (len(mutants), len(names), 0), text
    found = results()
    killed = sum(status in KILLED for status in found.values())
    rate = killed / max(1, len(names))
    lines = [
        f"{title:44}{len(mutants):8}{len(changes):8}{len(changes) - len(names):12}{killed:8}{rate:8.1%}"
        f"{time.monotonic() - began:8.0f} s"
    ]
    failing = Path("failing.txt").read_text(encoding="utf-8").splitlines() if Path("failing.txt").exists() else []
    if failing:
        lines.append(f"{len(failing)} of the tests fail without a mutant, and hold nothing here: {', '.join(failing)}")
    for name, status in found.items():
        if status not in KILLED:
            was, now = changes[name]
            lines.append(f"\n{status}: {name}\n  was {was}\n  is  {now}\n")
    return (len(mutants), len(names), killed), "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"{', '.join(ROOMS)}; all, in groups, when absent")
    parser.add_argument("--num-samples", default="200", help='mutants in all, as many of each group, or "all"')
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="groups, or mutants of one, at a time")
    parser.add_argument(
        "--plugins-python", default=sys.executable, help="an interpreter that has the plugins installed"
    )
    words = parser.parse_args()
    if unknown := set(words.rooms) - set(ROOMS):
        parser.error(f"there is no room {', '.join(sorted(unknown))} (there are: {', '.join(ROOMS)})")
    groups = [(room,) for room in words.rooms] or GROUPS
    number = None if words.num_samples == "all" else -(-int(words.num_samples) // len(groups))
    equivalent = tomllib.loads((Path(__file__).parent / "equivalent.toml").read_text(encoding="utf-8"))["equivalent"]
    equivalent = [{key: each[key] for key in ("file", "was", "is")} for each in equivalent]
    # No GPU, for a process that has used one cannot be forked; and a mutant that asks for all memory gets none. Address
    # space alone has no limit, for V8, which draws the figures, reserves more of it than there is memory.
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    resource.setrlimit(resource.RLIMIT_DATA, (16 << 30, 16 << 30))
    print(f"{'':44}{'mutants':>8}{'sample':>8}{'equivalent':>12}{'killed':>8}{'rate':>8}{'time':>8}", flush=True)
    counts = []
    beside = min(words.jobs, len(groups))
    run = partial(
        test,
        number=number,
        seed=words.seed,
        jobs=words.jobs // beside,
        python=words.plugins_python,
        equivalent=equivalent,
    )
    with ProcessPoolExecutor(beside, multiprocessing.get_context("fork")) as pool:
        for count, text in pool.map(run, groups):
            print(text, flush=True)
            counts += [count] if count else []
    rate = sum(all_ * killed / n for all_, n, killed in counts if n) / max(1, sum(all_ for all_, n, _ in counts if n))
    print(f"{'in all':44}{sum(c[0] for c in counts):8}{sum(c[1] for c in counts):8}{'':20}{rate:8.1%}")
    if left_out := len(groups) - len(counts):
        print(f"{left_out} of {len(groups)} groups are not in this rate")
    return 0 if rate >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
