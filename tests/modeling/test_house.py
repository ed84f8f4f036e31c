"""How the room is built: no circle between files, and what a component does not say is what its contract says."""

import ast
from pathlib import Path

import networkx
import pytest

import atat_zoo
from atat_zoo.registry import Context, component, network_of, param, part
from atat_zoo.registry.manifest import Entry

ROOT = Path(atat_zoo.__file__).parents[1]


def modules(folder):
    """Return the syntax trees of the modules of a room, by name; those beside the weights on the hub import no zoo."""
    paths = [path for path in (ROOT / folder).rglob("*.py") if "hub" not in path.parts]
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths)
    return dict(zip(names, (ast.parse(path.read_text(encoding="utf-8")) for path in paths), strict=True))


def imported(tree, names):
    """Return the modules that one imports: at run time, for types, or in a function."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    found = {(node.module, f"{node.module}.{alias.name}") for node in nodes for alias in node.names}
    return {inner if inner in names else outer for outer, inner in found} & names


def test_no_file_of_modeling_imports_itself_by_way_of_others():
    trees = modules("atat_zoo/modeling")
    edges = [(name, other) for name, tree in trees.items() for other in imported(tree, trees.keys()) - {name}]
    assert len(edges) > len(trees)
    assert not list(networkx.simple_cycles(networkx.DiGraph(edges)))


@component
class Inner:
    name = "inner"
    summary = "a part of another one"
    network = f"{__name__}:Network"
    number: int = param(3, help="any")


@component
class Outer:
    name = "outer"
    summary = "a part with another one inside, which says no more than it must"
    network = f"{__name__}:Network"
    rate: float = param(0.5, help="any")
    inner: Inner = part("estimator", None, help="the one inside")


class Network:
    def __init__(self, context, *given, **parameters):
        self.context, self.given, self.parameters = context, given, parameters


def test_a_network_is_made_of_the_context_and_the_parameters_and_parts_among_them_are_built():
    context = Context(vocabulary_size=5, length=4)
    made = network_of(Outer(inner=Inner(number=7)), context, "more")
    assert (made.context, made.given, made.parameters["rate"]) == (context, ("more",), 0.5)
    assert made.parameters["inner"].parameters == {"number": 7}
    assert Inner().build(context).parameters == {"number": 3}


@pytest.mark.parametrize(
    ("kind", "defaults"),
    [
        ("backbone", {"both_ways_only": False, "lora_rank": 0, "neighbours": 0, "adjustable": (), "pretrained": False}),
        ("objective", {"shifted": False, "separates_documents": False, "importance_loss_weight": 1.0, "hub_form": ""}),
        ("masking", {"direction": 1, "positional": False, "reads_importance": True}),
        ("estimator", {"reads": "x", "learns": False}),
    ],
)
def test_a_component_that_inherits_from_nothing_has_the_defaults_of_its_contract(kind, defaults):
    bare = component(type("Bare", (), {"name": "bare", "summary": "says nothing", "__module__": __name__}))
    globals()["Bare"] = bare
    made = Entry(kind=kind, name="bare", path=f"{__name__}:Bare", summary="").load()()
    assert {key: getattr(made, key) for key in defaults} == defaults
    assert made.build(Context(vocabulary_size=5, length=4)) is made
    assert not hasattr(made, "flops"), "what has no default is not made up"
