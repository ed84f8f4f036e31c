"""No module needs, while it is imported, one that needs it."""

from __future__ import annotations

import ast
from pathlib import Path

import networkx

import atat_zoo

PACKAGE = Path(atat_zoo.__file__).parent


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, modules: set[str]) -> set[str]:
    """Return the modules of ours that a module imports when it is imported: not for types, not inside functions."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else node.module)
    return found & modules


def graph(trees: dict[str, ast.Module]) -> networkx.DiGraph[str]:
    edges = networkx.DiGraph()
    for name, tree in trees.items():
        edges.add_edges_from((name, other) for other in imported(tree, set(trees)))
    return edges


def test_no_module_imports_itself_by_way_of_others() -> None:
    trees = {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    assert list(networkx.simple_cycles(graph(trees))) == []


def test_a_circle_is_seen() -> None:
    trees = {
        "atat_zoo.a": ast.parse("from atat_zoo import b"),
        "atat_zoo.b": ast.parse("import atat_zoo.a"),
        "atat_zoo.c": ast.parse("def late():\n    import atat_zoo.a"),
    }
    assert [sorted(circle) for circle in networkx.simple_cycles(graph(trees))] == [["atat_zoo.a", "atat_zoo.b"]]
