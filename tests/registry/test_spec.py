"""Tables to specifications and back: what is taken, what is refused and in which words."""

import datetime
import math
from typing import Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo import Zoo
from atat_zoo.registry import component, component_param, components_param, param
from atat_zoo.registry.registry_file import RegistryFile, entry_of
from atat_zoo.registry.spec import Field, Mismatch, convert, fields_of, structure, unstructure


@component
class Inner:
    """A part inside a part."""

    name = "inner"
    summary = "a part inside a part"
    strength: float = param(0.5, help="how strong", ge=0, le=1)


@component
class Other:
    """The other part of its kind."""

    name = "other"
    summary = "another part inside a part"
    strength: float = param(3.0, help="how strong", ge=0)
    size: int = param(1, help="how large", ge=1)


@component
class Outer:
    """One parameter of every type."""

    name = "outer"
    summary = "one parameter of every type"
    rate: float = param(1.0, help="a float", gt=0, lt=10)
    count: int = param(3, help="an int", ge=1, le=100)
    flag: bool = param(False, help="a bool")
    text: str = param("a", help="a str")
    mode: Literal["linear", "step"] = param("step", help="a choice")
    level: Literal[1, 2] = param(1, help="a choice of numbers")
    maybe: int | None = param(None, help="an int or nothing", ge=1)
    pair: tuple[float, float] = param((0.2, 0.8), help="two floats", ge=0, le=1)
    names: tuple[str, ...] = param((), help="any number of words")
    table: dict[str, float] = param(attrs.Factory(dict), help="numbers by name")
    inner: object = component_param("position_bias", {"use": "inner", "strength": 0.25}, help="a part")


@component
class Parted:
    name = "parted"
    summary = "needs a part"

    inner: object = component_param("position_bias", attrs.NOTHING, help="what is in it")


@component
class Listed:
    name = "listed"
    summary = "takes a list of parts"

    inner: object = components_param("position_bias", help="what is in it")
    others: object = components_param("position_bias", ("other",), help="what else")


@component
class Called:
    """A parameter that is called as the names of components are."""

    summary = "has a parameter that is called name"
    name: str = param("a", help="what it is called")


@component
class Needy:
    """A parameter without a default, and a rule of its own."""

    name = "needy"
    summary = "a parameter without a default"
    path: str = param(help="where it is")
    low: float = param(0.0, help="low end")
    high: float = param(1.0, help="high end")

    def __attrs_post_init__(self):
        if self.low > self.high:
            raise ValueError("low must not be above high")


@pytest.fixture(scope="module")
def zoo():
    kinds = {Inner: "position_bias", Other: "position_bias", Outer: "masking"}
    return Zoo(RegistryFile(entries=tuple(entry_of(kind, cls, "here") for cls, kind in kinds.items())), [])


def said(zoo, cls=Outer, /, **table):
    """Return the one problem of a table."""
    made, problems = structure(cls, table, "here", zoo)
    assert made is None
    (problem,) = problems
    assert "\n" not in str(problem)
    return str(problem)


def test_fields_are_the_documentation_of_the_table():
    fields = {field.name: field for field in fields_of(Outer)}
    assert list(fields) == [
        "rate", "count", "flag", "text", "mode", "level", "maybe", "pair", "names", "table", "inner",
    ]  # fmt: skip
    assert fields["rate"] == Field("rate", float, 1.0, "a float", {"gt": 0, "lt": 10}, None)
    assert fields["inner"] == ("inner", None, {"use": "inner", "strength": 0.25}, "a part", {}, "position_bias", False)
    assert fields["table"].default == {}
    assert [field.type_name for field in fields.values()] == [
        "float", "int", "bool", "str", '"linear" | "step"', "1 | 2", "int", "[float, float]", "list of str",
        "table of float", "position_bias component",
    ]  # fmt: skip


def test_annotations_are_read_in_the_module_that_wrote_them():
    from atat_zoo.modeling.targets import DifficultyTarget

    types = {field.name: field.type for field in fields_of(DifficultyTarget)}
    assert types == {"scale": Literal["rank", "running"], "decay": float, "bins": int}


@pytest.mark.parametrize(
    ("value", "tp", "expected"),
    [
        (3, float, 3.0),
        (True, bool, True),
        (None, int | None, None),
        ([1, 2], tuple[float, float], (1.0, 2.0)),
        ([], tuple[str, ...], ()),
        ([[1, 2], [3]], tuple[tuple[int, ...], ...], ((1, 2), (3,))),
        ({"a": 1}, dict[str, float], {"a": 1.0}),
        ("step", Literal["step", "linear"], "step"),
    ],
)
def test_convert_takes(value, tp, expected):
    found = convert(value, tp)
    assert found == expected
    assert type(found) is type(expected)
    if isinstance(expected, tuple | list):
        assert [type(v) for v in found] == [type(v) for v in expected]


@pytest.mark.parametrize(
    ("value", "tp", "words"),
    [
        (True, int, "expected int, got True (bool)"),
        (1, bool, "expected bool, got 1 (int)"),
        ("1.0", float, "expected float, got '1.0' (str)"),
        ({"a": 1}, float, "expected float, got a table"),
        (math.inf, float, "expected a finite number, got inf (float)"),
        (math.nan, float, "expected a finite number, got nan (float)"),
        ([0.5, math.nan], tuple[float, float], "expected a finite number, got nan (float)"),
        (10**400, float, "expected a finite number, got 1000000000000000000000000000000000000000… (int)"),
        (2**63, int, "expected an integer of at most 64 bits, got 9223372036854775808 (int)"),
        ([1.0], tuple[float, float], "expected 2 values, [float, float], got 1"),
        ("stepp", Literal["step", "linear"], """expected "step" | "linear", got 'stepp' (str); did you mean 'step'?"""),
        (True, Literal[1, 2], "expected 1 | 2, got True (bool)"),
        (1.5, int | str, "expected int | str, got 1.5 (float)"),
        (datetime.date(2024, 1, 2), str, "expected str, got datetime.date(2024, 1, 2) (date)"),
        ("x" * 100, int, f"expected int, got '{'x' * 39}… (str)"),
    ],
)
def test_convert_refuses_in_words(value, tp, words):
    with pytest.raises(Mismatch) as caught:
        convert(value, tp)
    assert str(caught.value) == words


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(value=_values)
@pytest.mark.parametrize(
    "tp", [int, float, bool, str, int | None, tuple[float, float], tuple[str, ...], dict[str, int], Literal["a", 1]]
)
def test_convert_never_changes_a_value_but_int_to_float(value, tp):
    try:
        found = convert(value, tp)
    except Mismatch:
        return
    assert found == (tuple(value) if isinstance(value, list) else value)
    assert convert(found, tp) == found


def test_bounds_hold_for_a_class_that_is_made_in_python():
    with pytest.raises(ValueError, match="rate must be greater than 0"):
        Outer(rate=-1.0, inner=Inner())
    with pytest.raises(ValueError, match="rate must be a finite number"):
        Outer(rate=math.nan, inner=Inner())
    with pytest.raises(ValueError, match="pair must be at least 0"):
        Outer(pair=(-0.1, 0.5), inner=Inner())


@pytest.mark.parametrize(
    ("cls", "table", "words"),
    [
        (Outer, {"rate": 0.0}, ["here.rate: must be greater than 0, not 0.0"]),
        (Outer, {"maybe": 0}, ["here.maybe: must be at least 1, not 0"]),
        (Outer, {"pair": [0.5, 1.5]}, ["here.pair: must be at most 1, not [0.5, 1.5]"]),
        (Outer, {"rat": 1.0}, ["here.rat: is not a parameter of 'outer'; did you mean 'rate'? (it takes: rate, co"]),
        (Outer, {"strength": 1.0}, ["here.strength: is not a parameter of 'outer'; set here.inner.strength (it "]),
        (Outer, {"inner": "other", "size": 2}, ["here.size: is not a parameter of 'outer'; set here.inner.size (it "]),
        (Outer, {"size": 2}, ["here.size: is not a parameter of 'outer' (it takes: "]),
        (Called, {"nam": "x"}, ["here.nam: is not a parameter of 'here'; did you mean 'name'? (it takes: name)"]),
        (
            Outer,
            {"inner": {"use": 3}},
            ["here.inner.use: expected the name of a component of kind position_bias, one of inner, other, got 3"],
        ),
        (
            Outer,
            {"inner": {"use": "inner", "size": 2}},
            ["here.inner.size: is not a parameter of 'inner' (it takes: s"],
        ),
        (
            Outer,
            {"inner": 3},
            ["here.inner: expected the name of a component of kind position_bias or a table {use = …}, got 3"],
        ),
        (Needy, {}, ["here.path: is missing: where it is (str)"]),
        (Needy, {"path": "x", "low": 2.0}, ["here: low must not be above high"]),
        (Parted, {}, ["here.inner: is missing: what is in it (position_bias component)"]),
        (Parted, {"inner": {"strength": 1}}, ["here.inner.use: is missing; set it to one of inner, other"]),
        (
            Outer,
            {"rate": "x", "count": 0, "zzz": 1, "inner": "iner"},
            [
                "here.rate: expected float",
                "here.count: must be at least 1",
                "here.zzz: is not",
                "here.inner.use: unknown position_bias 'iner'; did you mean 'inner'? (available: inner, oth",
            ],
        ),
    ],
)
def test_what_is_wrong_with_a_table_is_said_key_by_key(zoo, cls, table, words):
    made, problems = structure(cls, table, "here", zoo)
    assert made is None
    assert all(str(said).startswith(start) for said, start in zip(problems, words, strict=True)), problems


def test_what_is_required_suffices(zoo):
    assert structure(Needy, {"path": "x"}, "here", zoo) == (Needy(path="x"), [])
    assert structure(Parted, {"inner": "other"}, "here", zoo) == (Parted(inner=Other()), [])
    with pytest.raises(TypeError, match="inner"):
        Parted()
    (problem,) = structure(Needy, {"path": 3}, "", zoo)[1]
    assert str(problem) == "path: expected str, got 3 (int)", "of a whole file"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("inner", Inner()),
        ("other", Other()),
        ({"use": "other", "size": 2}, Other(size=2)),
        ({"use": "inner"}, Inner()),
        ({"strength": 1}, Inner(strength=1.0)),  # no `use`: the part that stands there by default
        ({}, Inner(strength=0.25)),
        (Other(size=4), Other(size=4)),
    ],
)
def test_a_part_is_a_name_a_table_or_a_specification(zoo, value, expected):
    made, problems = structure(Outer, {"inner": value}, "here", zoo)
    assert problems == []
    assert made.inner == expected


def test_a_list_of_parts_takes_names_tables_and_specifications(zoo):
    given = {"inner": ["inner", {"use": "other", "size": 2}, Inner(strength=0.1)]}
    made, problems = structure(Listed, given, "here", zoo)
    assert problems == []
    assert made == Listed(inner=(Inner(), Other(size=2), Inner(strength=0.1)), others=(Other(),))
    table, other = unstructure(made), {"use": "other", "strength": 3.0, "size": 1}
    assert table.pop("use") == "listed"
    inner = [{"use": "inner", "strength": 0.5}, {**other, "size": 2}, {"use": "inner", "strength": 0.1}]
    assert table == {"inner": inner, "others": [other]}
    assert structure(Listed, table, "here", zoo) == (made, [])
    assert Listed(others=()).inner == ()
    field, _ = fields_of(Listed)
    assert (field.many, field.default, field.type_name) == (True, (), "list of position_bias components")
    assert entry_of("masking", Listed, "here").parameters["others"]["default"] == ["other"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("inner", "here.inner: expected a list of position_bias components, got 'inner' (str)"),
        ({"use": "inner"}, "here.inner: expected a list of position_bias components, got a table"),
        (
            ["inner", 3],
            "here.inner[1]: expected the name of a component of kind position_bias or a table {use = …}, got 3",
        ),
        (["inner", {"use": "inner", "strength": 2}], "here.inner[1].strength: must be at most 1, not 2"),
    ],
)
def test_a_list_of_parts_names_the_one_that_is_wrong(zoo, value, words):
    assert said(zoo, Listed, inner=value).startswith(words)
