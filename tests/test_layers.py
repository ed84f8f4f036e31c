"""An import goes down, never up, and in no circle; and what is read without torch is imported without it."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import networkx
import pytest

import atat_zoo

PACKAGE = Path(atat_zoo.__file__).parent
ROOT = PACKAGE.parent
TREES = {path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}


@pytest.fixture(scope="module")
def contracts():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return table["tool"]["importlinter"]["contracts"]


@pytest.fixture(scope="module")
def layers(contracts):
    """The rooms, from those that import all others to those that import none."""
    return [[name.strip().removeprefix("atat_zoo.") for name in layer.split("|")] for layer in contracts[0]["layers"]]


def test_every_package_of_plugins_is_forbidden(contracts):
    there = {path.name.replace("-", "_") for path in (ROOT / "plugins").glob("atat-zoo-*")}
    assert {*contracts[1]["forbidden_modules"]} == there


def test_every_room_has_its_layer(layers):
    """One that is in no layer would be checked by nobody."""
    there = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    there |= {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert {name for layer in layers for name in layer} == there
    assert len(there - {"__main__", "train"}) <= 13, "a newcomer surveys no more"


def test_contributing_lists_the_rooms_in_the_order_of_the_work(layers):
    level = {name: -number for number, layer in enumerate(layers) for name in layer}
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tree = text.partition("```text\n")[2].partition("```")[0]
    named = [word.removesuffix("/").removesuffix(".py") for word in re.findall(r"^  (\S+)  +\S", tree, re.MULTILINE)]
    assert level.keys() - named == {"train", "__main__"}  # what starts it
    assert [level[name] for name in named] == sorted(level[name] for name in named)


def lint(folder):
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_an_import_goes_down_never_up():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Contracts: 4 kept, 0 broken." in done.stdout


@pytest.mark.slow
def test_an_import_that_goes_up_is_found(tmp_path):
    """The check above can fail."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(PACKAGE, tmp_path / "atat_zoo")
    with (tmp_path / "atat_zoo" / "errors.py").open("a") as file:
        file.write("\nimport atat_zoo.registry\nimport atat_zoo_serve\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    assert "atat_zoo.errors -> atat_zoo.registry" in done.stdout
    assert "atat_zoo.errors -> atat_zoo_serve" in done.stdout


def imported(tree, modules):
    """Return the modules of ours that a module imports when it is imported: not for types, not inside functions."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in modules else node.module for name in inner}
    return found & modules


def test_no_module_imports_itself_by_way_of_others():
    trees = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): tree for path, tree in TREES.items()}
    edges = [(name, other) for name, tree in trees.items() for other in imported(tree, trees.keys())]
    assert len(edges) > len(trees)
    assert list(networkx.simple_cycles(networkx.DiGraph(edges))) == []


def imported_with(module):
    """Return the modules that are imported when one is, in a process of its own."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_results_are_read_without_torch():
    modules = sorted(path.stem for path in (PACKAGE / "evaluation" / "results").glob("[a-z]*.py"))
    assert modules
    assert "torch" not in imported_with(", ".join(f"atat_zoo.evaluation.results.{name}" for name in modules))


@pytest.mark.slow
def test_a_trainer_does_not_import_what_writes_texts():
    there = imported_with("atat_zoo.training.trainer")
    assert "atat_zoo.modeling.objectives" in there
    assert not there & {
        "atat_zoo.generation.guided",
        "atat_zoo.evaluation.tasks.infilling",
        "atat_zoo.evaluation.sample_quality",
    }


def rooms_that(does):
    """Return the folders with a syntax node of which `does` is true."""
    return {str(Path(*path.parts[1:-1])) for path, tree in TREES.items() if any(map(does, ast.walk(tree)))}


def is_attribute(node, name):
    return isinstance(node, ast.Attribute) and node.attr == name


def test_only_results_open_the_evaluations_of_a_run():
    def opens(node):
        listed = isinstance(node, ast.Attribute) and is_attribute(node.value, "evaluations")
        return listed or (isinstance(node, ast.BinOp) and is_attribute(node.left, "evaluations"))

    assert rooms_that(opens) == {"evaluation/results"}


def test_only_measuring_asks_a_model_for_its_bound():
    """Besides `Model.score`, of texts in hand, and the suite that objectives are held to."""
    asking = rooms_that(lambda node: isinstance(node, ast.Call) and is_attribute(node.func, "bound"))
    assert asking == {"evaluation", "generation", "testing"}
