"""What a file or a person may give as TOML or JSON, and what is refused before anything walks through it."""

import json
import os
import tomllib

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.experiment import load
from atat_zoo.system import parsing
from atat_zoo.system.errors import UserError

_plain = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=8)
VALUES = st.recursive(_plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))


def inline(value):
    """Write a value as TOML on one line."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key, ensure_ascii=False)} = {inline(each)}" for key, each in value.items())
        return "{" + ", ".join(pairs).replace("\x7f", "\\u007f") + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()


def test_the_mark_of_windows_editors_is_no_key(tmp_path):
    assert parsing.from_toml("\ufeff[a]\r\nb = 1\r\n") == {"a": {"b": 1}}
    for name, encoding in (("mark", "utf-8-sig"), ("plain", "utf-8")):
        (tmp_path / f"{name}.toml").write_text('extends = "quickstart"\n', encoding=encoding)
    assert load(tmp_path / "mark.toml", ()).parts == load(tmp_path / "plain.toml", ()).parts
    (tmp_path / "wide.toml").write_text('extends = "quickstart"\n', encoding="utf-16")
    with pytest.raises(UserError, match=r"wide\.toml: is not UTF-8 text: .*; save it as UTF-8"):
        load(tmp_path / "wide.toml", ())


def test_only_regular_files_are_read_and_only_so_much(tmp_path, monkeypatch):
    monkeypatch.setattr(parsing, "_LARGEST", 5)
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert parsing.read(tmp_path / "file") == parsing.read(tmp_path / "link") == b"12345"
    (tmp_path / "file").write_bytes(b"123456")
    with pytest.raises(OSError, match="it is larger than"):
        parsing.read(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    before = os.listdir("/proc/self/fd")
    for name in ("pipe", "endless"):
        with pytest.raises(OSError, match="it is a device or a pipe"):
            parsing.read(tmp_path / name)
    assert os.listdir("/proc/self/fd") == before  # and closed
    with pytest.raises(IsADirectoryError):
        parsing.read(tmp_path)


@given(value=VALUES)
def test_a_value_is_read(value):
    assert parsing.value_of(inline(value)) == value


@given(value=VALUES, after=st.sampled_from(["# no, 9", "\ny = 3", "\n[z]", "# ]", "\n# [", "\ny = [\n3]"]))
def test_what_follows_a_value_is_never_dropped(value, after):
    with pytest.raises(parsing.TrailingInput):
        parsing.value_of(f"{inline(value)} {after}")


@given(text=st.text(st.sampled_from("7x'\"#=[]{},. \n"), max_size=12))
def test_a_value_is_the_whole_text_or_nothing(text):
    """Whatever the text: with an `x = ` before it, it is one key of TOML and no comment."""
    try:
        value = parsing.value_of(text)
    except (ValueError, parsing.TrailingInput):
        return
    assert tomllib.loads(f"x = {text}") == {"x": value}
    assert tomllib.loads(f"x = [{text}, 5]")["x"] == [value, 5]


@pytest.mark.parametrize("text", [".".join("a" * 2000) + " = 1", f"[{'.'.join('a' * 2000)}]", f"a = {'[' * 3000}"])
def test_tables_that_are_nested_without_end_are_refused(text):
    with pytest.raises(ValueError, match="it is nested more than 64 levels deep"):
        parsing.from_toml(text)


def test_json_is_bounded_alike():
    for deep in (70, 100_000):
        with pytest.raises(ValueError, match="it is nested more than 64 levels deep"):
            parsing.from_json(b"[" * deep + b"]" * deep)
    assert parsing.from_json(b'{"a": [1]}') == {"a": [1]}
    with pytest.raises(ValueError):
        parsing.from_json(b'"\xff"')
    for half in (b'"\\ud800"', b'{"a": ["\\uDfff x"]}', b'{"\\udabc": 1}'):
        with pytest.raises(ValueError, match="it contains half a surrogate pair"):
            parsing.from_json(half)
    assert parsing.from_json(b'["\\ud83d\\ude00", "\\\\ud800"]') == ["\U0001f600", "\\ud800"]


def test_a_number_that_python_could_not_print_is_refused():
    with pytest.raises(ValueError, match="an integer of more than 4096 bits"):
        parsing.from_toml(f"a = [0x{'f' * 5000}]")
    assert parsing.from_toml(f"a = {10**400}") == {"a": 10**400}  # what takes it says that it is too large
