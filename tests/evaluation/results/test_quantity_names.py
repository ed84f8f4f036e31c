"""One number is called perplexity, and one module writes the word."""

import ast
from pathlib import Path

import atat_zoo
from atat_zoo.evaluation.results import quantity_names

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
    helps = {"cli/compare_command.py", "evaluation/metrics.py"}  # what a parameter or a component is about
    helps |= {"training/callbacks.py"}  # early stopping
    helps |= {"evaluation/held_out_text.py"}  # a note on training text
    helps |= {f"evaluation/tasks/{name}.py" for name in ("generated_text", "held_out", "zero_shot")}
    assert speakers == {"evaluation/results/quantity_names.py"} | helps


def test_every_other_bound_has_a_name_of_its_own():
    titles = [quantity_names.title(quantity) for quantity in ("nelbo", "adaptive", "discrete T=8")]
    assert titles == ["perplexity", "adaptive bound", "discrete T=8 bound"]


def test_a_perplexity_has_its_factorisation():
    named = {"perplexity": "any-order ELBO", "sets bound": "own position sets", "sedd bound": "sedd, bound"}
    named |= {"policy bound": "sampler, bound", "policy likelihood": "sampler, exact", "bound": "any-order ELBO"}
    assert {each: quantity_names.factorisation(each) for each in named} == named
    assert quantity_names.factorisation("perplexity", exact=True) == "own order, exact"
    named.pop("sedd bound")  # its name says it all
    assert {*named.values(), "own order, exact"} == {*quantity_names.FACTORISATIONS}
