"""A resolved experiment loads back identically, whatever its parameters."""

import json
import tomllib
from typing import get_args

import attrs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from atat_zoo import UserError, Zoo
from atat_zoo.experiment import from_table, load
from atat_zoo.experiment.effects import without_effect
from atat_zoo.experiment.schema import SECTIONS
from atat_zoo.registry import KINDS, TABLES
from atat_zoo.registry.spec import fields_of, unstructure
from tests.specs import values

# An experiment with it is whole only where that run is; tests/experiment/test_inheritance.py has one.
READS_A_RUN = {("tokenizer", "run")}


@st.composite
def tables(draw, cls):
    """Draw a table for a component or a section: some parameters, parts inside it included."""
    table = {"use": cls.name} if hasattr(cls, "name") else {}
    for field in fields_of(cls):
        if field.default is not attrs.NOTHING and draw(st.booleans()):
            continue
        if field.many:
            table[field.name] = draw(st.lists(parts(field.kind), max_size=2))
        elif field.kind:
            table[field.name] = draw(parts(field.kind))
        else:
            table[field.name] = draw(values(field.type, field.bounds))
    return table


@st.composite
def parts(draw, kind):
    zoo = Zoo.load()
    name = draw(st.sampled_from([name for name in zoo.names(kind) if (kind, name) not in READS_A_RUN]))
    return draw(tables(zoo.component(kind, name)))


@st.composite
def experiments(draw):
    chosen = draw(st.sets(st.sampled_from(sorted(TABLES)), max_size=4))
    table = {kind: draw(parts(kind)) for kind in chosen}
    table |= {section: draw(tables(cls)) for section, cls in SECTIONS.items()}
    # Rules between keys that most of what is drawn would break.
    data, longest = table["data"], table.get("backbone", {}).get("max_length", 64)
    data |= {"length": min(data.get("length", longest), longest)}
    if data.get("form") == "chat":
        data |= {"special_tokens": "none", "transforms": []}
        table["corpus"] = {"use": "files", "train": ["dialogues.jsonl"]}
    data |= {"sequences": max(data["sequences"], data.get("lanes", 8))} if data.get("sequences") else {}
    return table | {"name": "drawn", "seed": draw(st.integers(0, 2**63 - 1))}


@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_a_part_is_written_and_read_back(data, kind):
    zoo = Zoo.load()
    made, problems = zoo.structure(kind, data.draw(parts(kind)), kind)
    assume(not problems)  # a rule of the part's own
    table = unstructure(made)
    again, problems = zoo.structure(kind, table, kind)
    assert (again, problems) == (made, [])
    assert unstructure(again) == table


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.filter_too_much])  # most combinations of components conflict
@given(table=experiments())
def test_an_experiment_resolves_to_itself(table, tmp_path_factory):
    try:
        made = from_table(table)
    except UserError:
        assume(False)
    assume(not list(without_effect(made, Zoo.load())))  # which a file may not have, and an old run may
    path = tmp_path_factory.mktemp("resolved") / "resolved.toml"
    path.write_text(made.to_toml(), encoding="utf-8")
    again = load(str(path))
    assert again == made
    assert again.to_toml() == made.to_toml()
    # As it stands in model.json.
    assert from_table(json.loads(json.dumps(made.to_table()))) == made


@given(table=experiments(), data=st.data())
def test_a_wrong_type_is_refused_wherever_it_stands(table, data):
    keys = [(section, field) for section, cls in SECTIONS.items() for field in fields_of(cls)]
    section, field = data.draw(st.sampled_from(keys))
    # True is an int in Python, and must not be one here.
    wrong = 1 if {bool, str} & {field.type, *get_args(field.type)} else True
    table[section][field.name] = wrong
    with pytest.raises(UserError) as caught:
        from_table(table)
    assert any(f"{section}.{field.name}: expected " in line for line in str(caught.value).splitlines())


def test_resolve_says_every_parameter(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('[estimator]\nuse = "hybrid"\nlearned = "uniform"')
    table = tomllib.loads(load(str(path)).to_toml())
    used = [kind for kind in TABLES if kind != "position_sets"]  # which is for another objective
    assert list(table) == ["name", "seed", *used, *SECTIONS]
    inside = {"learned": {"use": "uniform"}, "prior": {"use": "frequency"}}
    assert table["estimator"] == {"use": "hybrid", "mix": 0.7, **inside}
    for section, cls in SECTIONS.items():
        absent = {field.name for field in fields_of(cls)} - set(table[section])
        assert absent == {field.name for field in fields_of(cls) if field.default is None}
