"""An import goes down, never up; and a component's module needs no torch."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import atat_zoo
from atat_zoo import Zoo
from atat_zoo.registry import KINDS

PACKAGE = Path(atat_zoo.__file__).parent
ROOT = PACKAGE.parent


@pytest.fixture(scope="module")
def contract():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (only,) = table["tool"]["importlinter"]["contracts"]
    return only


def test_every_package_has_its_layer(contract):
    """One that is in no layer would be checked by nobody."""
    listed = {name.strip().removeprefix("atat_zoo.") for layer in contract["layers"] for name in layer.split("|")}
    there = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    there |= {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert listed == there


def test_the_tree_of_contributing_has_the_layers_in_their_order(contract):
    layers = [[name.strip().removeprefix("atat_zoo.") for name in layer.split("|")] for layer in contract["layers"]]
    level = {name: number for number, layer in enumerate(layers) for name in layer}
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tree = text.partition("```text\n")[2].partition("```")[0]
    named = [word.removesuffix("/").removesuffix(".py") for word in re.findall(r"^  (\S+)  +\S", tree, re.MULTILINE)]
    assert level.keys() - named == {"train", "__main__", "errors"}  # two that start it, and what all may raise
    assert [level[name] for name in named] == sorted(level[name] for name in named)


def lint(folder):
    return subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_import_goes_down_never_up():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Contracts: 1 kept, 0 broken." in done.stdout


def test_an_import_that_goes_up_is_found(tmp_path):
    """The check above can fail."""
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text(encoding="utf-8"), encoding="utf-8")
    for path in PACKAGE.rglob("*.py"):
        copied = tmp_path / path.relative_to(ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(path.read_bytes())
    errors = tmp_path / "atat_zoo" / "errors.py"
    errors.write_text(errors.read_text(encoding="utf-8") + "\nimport atat_zoo.registry\n", encoding="utf-8")
    done = lint(tmp_path)
    assert done.returncode == 1
    assert "atat_zoo.errors -> atat_zoo.registry" in done.stdout


def test_components_need_no_torch_to_be_imported():
    """At run time, that is: for types and inside methods they may name it."""
    zoo = Zoo.load()
    for kind in KINDS:
        for name in zoo.names(kind):
            entry = zoo.describe(kind, name)
            if entry.distribution != "atat-zoo":
                continue
            path = Path(sys.modules[entry.load().__module__].__file__)
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    module = getattr(node, "module", None) or node.names[0].name
                    assert module.partition(".")[0] not in {"torch", "composer"}, path


def imported_with(module):
    """Return the modules that are imported when one is, in a process of its own."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_results_are_read_without_torch():
    modules = sorted(path.stem for path in (PACKAGE / "results").glob("[a-z]*.py"))
    assert modules
    assert "torch" not in imported_with(", ".join(f"atat_zoo.results.{name}" for name in modules))


def test_a_trainer_does_not_import_what_writes_texts():
    there = imported_with("atat_zoo.training.trainer")
    assert "atat_zoo.objectives.assembly" in there
    assert not there & {"atat_zoo.generation.infilling", "atat_zoo.measure.infilling", "atat_zoo.measure.sampling"}


def rooms_that(does):
    """Return the packages with a syntax node of which `does` is true."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if any(map(does, ast.walk(ast.parse(path.read_text(encoding="utf-8"))))):
            found.add(path.relative_to(PACKAGE).parts[0])
    return found


def is_attribute(node, name):
    return isinstance(node, ast.Attribute) and node.attr == name


def test_only_results_open_the_evaluations_of_a_run():
    def opens(node):
        listed = isinstance(node, ast.Attribute) and is_attribute(node.value, "evaluations")
        return listed or (isinstance(node, ast.BinOp) and is_attribute(node.left, "evaluations"))

    assert rooms_that(opens) == {"results"}


def test_only_measuring_asks_a_model_for_its_bound():
    """Besides the suite that objectives are held to."""
    assert rooms_that(lambda node: isinstance(node, ast.Call) and is_attribute(node.func, "bound")) == {
        "measure",
        "testing",
    }
