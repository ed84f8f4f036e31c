"""The shape of the package: one meaning for each class name, no branch on the name of a part."""

import ast
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import yaml

import atat_zoo
from atat_zoo import Zoo
from atat_zoo.registry import KINDS

PACKAGE = Path(atat_zoo.__file__).parent
FILES = {path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


def test_a_class_name_means_one_thing():
    names = Counter(
        node.name
        for text in FILES.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_what_is_cited_is_what_is_released():
    root = PACKAGE.parent
    cited = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
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


def branches_on_a_name(text, names):
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

    return [node.lineno for node in ast.walk(ast.parse(text)) if branches(node)]


def test_nothing_outside_the_registry_branches_on_the_name_of_a_part():
    zoo = Zoo.load()
    names = {name for kind in KINDS for name in zoo.names(kind)}
    found = {str(path): branches_on_a_name(text, names) for path, text in FILES.items() if path.parts[0] != "registry"}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_only_a_branch_on_a_name_is_found():
    branches = ["if bound.name == 'exact_k': ...", "x = part.name in ('a', 'b')", "match part.name:\n  case 'a': ..."]
    others = ["if part.name == other.name and place == 'a': ...", "field.name != 'rows'"]
    assert [branches_on_a_name(text, {"exact_k", "a"}) for text in branches + others] == [[1]] * 3 + [[]] * 2
