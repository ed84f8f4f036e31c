"""One number is called perplexity, and one module writes the word."""

import ast
from pathlib import Path

import atat_zoo
from atat_zoo.evaluation.results import naming

PACKAGE = Path(atat_zoo.__file__).parent


def literals(tree):
    """Yield the strings of a module that are no docstrings: what could be printed or become a key."""
    documentation = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
            yield node


def test_only_one_module_writes_the_word():
    speakers = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "perplex" in (text := path.read_text()).lower()
        and any("perplex" in node.value.lower() for node in literals(ast.parse(text)))
    }
    assert speakers == {"evaluation/results/naming.py"}


def test_every_other_bound_has_a_name_of_its_own():
    titles = [naming.title(quantity) for quantity in ("nelbo", "adaptive", "discrete T=8")]
    assert titles == ["perplexity", "adaptive bound", "discrete T=8 bound"]
