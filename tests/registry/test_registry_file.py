"""`registry.toml` and the code say the same, in both directions."""

import re

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo import UserError, Zoo
from atat_zoo.registry import KINDS, component, param, registry_file
from atat_zoo.registry.registry_file import Entry, RegistryFile, entry_of, read, shipped, write


def described(entries):
    return {(e.kind, e.name): attrs.asdict(e) for e in entries}


@pytest.fixture(scope="module")
def menu():
    return read(shipped())


@pytest.fixture(scope="module")
def code():
    return Zoo.from_code()


def test_the_file_is_what_would_be_written(code):
    assert len(code.entries) == len(described(code.entries)), "two classes have one kind and name"
    assert max(len(entry.summary) for entry in code.entries) <= 120
    assert shipped().read_text(encoding="utf-8") == write(code), "run `atat zoo manifest --write`"


def test_a_part_belongs_to_the_kind_in_whose_place_it_stands_and_an_alias_hides_none(menu):
    names = {kind: {cls.__name__ for cls in registry_file.components_of(kind)} for kind in KINDS}
    assert all(names.values())
    assert "RandomOrder" in names["order"] - names["sampler"]
    assert {"AncestralSampler", "SemiAutoregressiveSampler"} <= names["sampler"]
    there = {(e.kind, e.name) for e in menu.entries}
    for kind, aliases in menu.aliases.items():
        assert {(kind, name) for name in aliases.values()} <= there
        assert not {(kind, alias) for alias in aliases} & there


@component
class Sample:
    """A component to describe."""

    name = "sample"
    summary = 'a component with a "quote", a back\\slash and an umlaut: ü'
    refs = ("arXiv:2406.07524", "a book")
    rate: float = param(1e-4, help="a float", gt=0)
    pair: tuple[float, float] = param((0.9, 0.999), help="a pair", ge=0, lt=1)
    path: str = param(help='required: "quoted"')
    maybe: int | None = param(None, help="nothing by default", ge=1)


def test_an_entry_says_what_the_class_says():
    entry = entry_of("masking", Sample, "here")
    assert entry == Entry(
        kind="masking",
        name="sample",
        path=f"{Sample.__module__}:Sample",
        summary=Sample.summary,
        refs=Sample.refs,
        parameters={
            "rate": {"type": "float", "default": 1e-4, "gt": 0, "help": "a float"},
            "pair": {"type": "[float, float]", "default": [0.9, 0.999], "ge": 0, "lt": 1, "help": "a pair"},
            "path": {"type": "str", "required": True, "help": 'required: "quoted"'},
            "maybe": {"type": "int", "ge": 1, "help": "nothing by default"},
        },
        distribution="here",
    )
    assert entry.load() is Sample


_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_name = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)
_scalar = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | _text
_value = _scalar | st.lists(_scalar, max_size=3) | st.dictionaries(_name, _scalar, max_size=2)
_entry = st.builds(
    Entry,
    kind=st.sampled_from(sorted(KINDS)),
    name=_name,
    path=_text,
    summary=_text,
    refs=st.lists(_text, max_size=2).map(tuple),
    parameters=st.dictionaries(
        _name,
        st.builds(
            lambda told, other: {**other, **told},
            st.fixed_dictionaries({"type": _text, "help": _text}),
            st.dictionaries(_name, _value, max_size=3),
        ),
        max_size=3,
    ),
)


@given(
    entries=st.lists(_entry, max_size=2, unique_by=lambda e: (e.kind, e.name)),
    disabled=st.lists(_text, max_size=2),
    aliases=st.dictionaries(st.sampled_from(sorted(KINDS)), st.dictionaries(_name, _text, max_size=2), max_size=2),
)
def test_what_is_written_is_read(entries, disabled, aliases, tmp_path_factory):
    path = tmp_path_factory.mktemp("menu") / "registry.toml"
    before = RegistryFile(entries=tuple(entries), disabled=tuple(disabled), aliases=aliases)
    path.write_text(write(before), encoding="utf-8")
    after = read(path)
    assert described(after.entries) == described(before.entries)
    assert (after.disabled, after.aliases) == (before.disabled, before.aliases)
    assert write(after) == write(before)


LISTED = "[masking.x]\npath = 'a:b'\nsummary = ''\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "registry.toml is missing; reinstall"),
        (b"\xff\xfe", "cannot be read as TOML"),
        ("[masking", "cannot be read as TOML"),
        ("[maskin.x]\npath = 'a:b'\nsummary = ''", "[maskin] is not a kind of component; use one of corpus, "),
        ("[alias.maskin]\na = 'b'", "[maskin] is not a kind of component"),
        ("[masking.x]\nsummary = ''", "[masking.x] lacks the key 'path'"),
        ("[masking.x]\npath = 3\nsummary = ''", "[masking.x] path: expected str, got 3 (int); correct it"),
        (f"{LISTED}refs = 'ab'", "[masking.x] refs: expected list of str, got 'ab' (str)"),
        (f"{LISTED}parameters.y = 4", "parameters: y: expected table of value, got 4 (int)"),
        ("[masking]\nx = 3", "[masking]: x: expected table of value, got 3 (int)"),
        ("[alias.masking]\nx = [3]", "[alias]: masking: x: expected str, got a list"),
        ("[plugins]\ndisabled = 'example'", "plugins.disabled: expected list of str, got 'example' (str)"),
    ],
)
def test_a_broken_file_is_said_in_one_sentence(tmp_path, text, words):
    path = tmp_path / "registry.toml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=rf"^[^\n]*{re.escape(str(path))}[^\n]*$") as caught:
        read(path)
    assert words in str(caught.value)


def test_a_class_that_is_no_component_is_refused():
    class Plain:
        name = "plain"
        summary = "a class without attrs"

    with pytest.raises(TypeError, match="decorate it with @component"):
        entry_of("masking", Plain, "here")
    for name, summary, words in [
        (None, "x", "lacks the attribute 'name'"),
        ("x", None, "lacks the attribute 'summary'"),
    ]:
        made = component(type("Made", (), {"name": name, "summary": summary}))
        with pytest.raises(TypeError, match=words):
            entry_of("masking", made, "here")
    with pytest.raises(TypeError, match="is named 'a b'"):
        entry_of("masking", component(type("Made", (), {"name": "a b", "summary": "x"})), "here")


def test_the_menu_inside_the_package_comes_before_the_one_beside_it(tmp_path, monkeypatch):
    package = tmp_path / "site" / "atat_zoo"
    package.mkdir(parents=True)
    monkeypatch.setattr(registry_file, "PACKAGE", package)
    beside, inside = package.parent / "registry.toml", package / "registry.toml"
    beside.write_text("")
    assert shipped() == beside
    assert registry_file.read(beside).contract == registry_file.RegistryFile().contract == 1
    beside.write_text("[plugins]\ncontract = 2\n")
    assert registry_file.read(beside).contract == 2
    inside.write_text("")
    assert shipped() == inside
