"""How a component is built, and that what it does not say is what its contract says."""

import pytest

from atat_zoo.registry import Context, component, component_param, network_of, param
from atat_zoo.registry.registry_file import Entry


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
    inner: Inner = component_param("estimator", None, help="the one inside")


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
        (
            "backbone",
            {"both_ways_only": False, "lora_rank": 0, "ngram_prior": 0, "adjustable": (), "pretrained": False},
        ),
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
    assert kind == "estimator" or not hasattr(made, "flops"), "what has no default is not made up"
