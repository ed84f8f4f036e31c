"""The shape of the package: imports go down and in no circle, a class name means one thing, no branch on a name."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import networkx
import pytest
import yaml

import atat_zoo
from atat_zoo import Zoo
from atat_zoo.registry import KINDS

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


def test_every_room_has_its_layer_and_every_package_of_plugins_is_forbidden(contracts, layers):
    """One that is in no layer would be checked by nobody."""
    there = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    there |= {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert {name for layer in layers for name in layer} == there
    assert len(there - {"__main__", "train"}) <= 13, "a newcomer surveys no more"
    plugins = {path.name.replace("-", "_") for path in (ROOT / "plugins").glob("atat-zoo-*")}
    assert {*contracts[1]["forbidden_modules"]} == plugins


def test_every_room_can_be_surveyed():
    rooms = [path.parent for path in PACKAGE.glob("*/__init__.py")]
    lines = {room.name: sum(path.read_bytes().count(b"\n") for path in room.rglob("*.py")) for room in rooms}
    assert {room: number for room, number in lines.items() if number > 6_500} == {}
    assert len(list((ROOT / "experiments").rglob("*.toml"))) <= 90, "compose it from base/, or let it replace another"


def test_contributing_lists_the_rooms_in_the_order_of_the_work(layers):
    level = {name: -number for number, layer in enumerate(layers) for name in layer}
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tree = text.partition("```text\n")[2].partition("```")[0]
    named = [word.removesuffix("/").removesuffix(".py") for word in re.findall(r"^  (\S+)  +\S", tree, re.MULTILINE)]
    assert level.keys() - named == {"train", "__main__"}  # what starts it
    assert [level[name] for name in named] == sorted(level[name] for name in named)


def test_an_import_goes_down_never_up():
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Contracts: 4 kept, 0 broken." in done.stdout


def imported(tree, modules):
    """Return the modules of ours that a module imports: at run time, for types, or in a function."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in modules else node.module for name in inner}
    return found & modules


def circles(trees):
    """Return the circles of imports between modules, whose syntax trees are by name."""
    edges = [(name, other) for name, tree in trees.items() for other in imported(tree, trees.keys())]
    return list(networkx.simple_cycles(networkx.DiGraph(edges)))


def test_no_two_modules_have_one_name():
    """A name leads to one file, but for the module `examples`, which the conformance suite looks for in a package."""
    paths = [*PACKAGE.rglob("*.py"), *(ROOT / "plugins").glob("atat-zoo-*/atat_zoo_*/**/*.py")]
    named = Counter(path.name for path in paths if not path.name.startswith(("__", "examples.")))
    assert [name for name, number in named.items() if number > 1] == []


@pytest.mark.parametrize("package", [PACKAGE, *sorted((ROOT / "plugins").glob("atat-zoo-*/atat_zoo_*"))], ids=str)
def test_no_module_imports_itself_by_way_of_others(package):
    paths = [path.relative_to(package.parent) for path in package.rglob("*.py")]
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]
    texts = [(package.parent / path).read_text(encoding="utf-8") for path in paths]
    assert circles(dict(zip(names, map(ast.parse, texts), strict=True))) == []


def test_a_circle_is_found_wherever_the_import_stands():
    first = "def f():\n    from room.b import x"
    second = "if TYPE_CHECKING:\n    from room import a"
    trees = {"room.a": ast.parse(first), "room.b": ast.parse(second), "room.c": ast.parse("import room.a")}
    assert [sorted(circle) for circle in circles(trees)] == [["room.a", "room.b"]]


def imported_with(module):
    """Return the modules that are imported when one is, in a process of its own."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_results_are_read_without_torch():
    modules = sorted(path.stem for path in (PACKAGE / "evaluation" / "results").glob("[a-z]*.py"))
    assert modules
    assert "torch" not in imported_with(", ".join(f"atat_zoo.evaluation.results.{name}" for name in modules))


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


def test_a_class_name_means_one_thing():
    names = Counter(
        node.name
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_what_is_cited_is_what_is_released():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    assert project["version"] == atat_zoo.__version__
    assert cited.keys() >= {"cff-version", "message", "title", "authors"}, "the format demands them"


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_is_named_after_its_kind(kind):
    zoo = Zoo.load()
    ending = kind.rpartition("_")[2].capitalize()  # a position bias is a `…Bias`
    for name in zoo.names(kind):
        entry = zoo.describe(kind, name)
        if entry.distribution == "atat-zoo":
            assert entry.path.endswith(ending), entry.path


def branches_on_a_name(tree, names):
    """Return the lines that compare an attribute called `name`, of anything, with the name of a part."""

    def is_name(node):
        return isinstance(node, ast.Attribute) and node.attr == "name"

    def is_text(node):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return any(map(is_text, node.elts))
        return isinstance(node, ast.Constant) and node.value in names

    def branches(node):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        matched = isinstance(node, ast.Match) and is_name(node.subject)
        return matched or (any(map(is_name, sides)) and any(map(is_text, sides)))

    return [node.lineno for node in ast.walk(tree) if branches(node)]


def test_nothing_outside_the_registry_branches_on_the_name_of_a_part():
    zoo = Zoo.load()
    names = {name for kind in KINDS for name in zoo.names(kind)}
    others = {path: tree for path, tree in TREES.items() if path.parts[1] != "registry"}
    found = {str(path): branches_on_a_name(tree, names) for path, tree in others.items()}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_only_a_branch_on_a_name_is_found():
    branches = ["if bound.name == 'exact_k': ...", "x = part.name in ('a', 'b')", "match part.name:\n  case 'a': ..."]
    others = ["if part.name == other.name and place == 'a': ...", "field.name != 'rows'"]
    assert [branches_on_a_name(ast.parse(text), {"exact_k", "a"}) for text in branches + others] == [[1]] * 3 + [[]] * 2
