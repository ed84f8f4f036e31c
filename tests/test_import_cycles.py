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


def test_no_module_imports_itself_by_way_of_others() -> None:
    trees = {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    edges = [(name, other) for name, tree in trees.items() for other in imported(tree, set(trees))]
    assert len(edges) > len(trees)
    assert list(networkx.simple_cycles(networkx.DiGraph(edges))) == []
