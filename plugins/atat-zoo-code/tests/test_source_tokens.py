"""Classes of characters and tokens, and lines of code, against Python's own tokens."""

import keyword

import numpy as np
import pytest
from atat_zoo_code.python_library import PythonLibraryCorpus
from atat_zoo_code.source_tokens import (
    CLASSES,
    COMMENT,
    IDENTIFIER,
    KEYWORD,
    NUMBER,
    OPERATOR,
    SPACE,
    STRING,
    Span,
    byte_offsets,
    character_classes,
    code_lines,
    parses,
    token_classes,
    token_span,
)
from code_models import FILES
from hypothesis import example, given, settings
from hypothesis import strategies as st

WORDS = st.one_of(
    st.tuples(st.just(KEYWORD), st.sampled_from(keyword.kwlist)),
    st.tuples(st.just(IDENTIFIER), st.sampled_from(["x", "match", "print", "_", "été", "self", "type"])),
    st.tuples(st.just(OPERATOR), st.sampled_from(["+", "**=", "->", ":=", ",", ".", "@", "...", "()", "[]", "{}"])),
    st.tuples(st.just(NUMBER), st.sampled_from(["0", "1_000", "0x1f", "1e-3", "2j", "3.5"])),
    st.tuples(st.just(STRING), st.sampled_from(['"a b"', "''", "rb'# not'", '"""two\n lines"""', "'é\\n'", "'😀'"])),
)
LINES = st.lists(
    st.tuples(st.lists(WORDS, min_size=1, max_size=6), st.sampled_from(["", "# c", "#", "# if 'x'"])), max_size=5
)


def naive(text, ends):
    """Return the class of each token, by its characters one by one."""
    classes, at, begin, found = character_classes(text), 0, 0, []
    where = [len(text[:i].encode()) for i in range(len(text))]
    for end in ends:
        inside = []
        while at < len(text) and where[at] < end:
            assert where[at] >= begin
            inside.append(classes[at])
            at += 1
        found.append(next((kind for kind in inside if kind != SPACE), SPACE))
        begin = end
    return found


@settings(deadline=None)
@given(LINES)
def test_each_word_has_its_class(lines):
    text, wanted = "", []
    for words, comment in lines:
        for kind, word in words:
            text += word + " "
            wanted += [kind] * len(word) + [SPACE]
        text += comment + "\n"
        wanted += [COMMENT] * len(comment) + [SPACE]
    assert character_classes(text).tolist() == wanted


def test_white_space_between_tokens_has_no_other_class():
    text = "if x:\n\ty = f(1, \\\n   2)\n"
    shown = "".join("kionsc "[kind] for kind in character_classes(text))
    assert shown == "kk io  i o iono      no "
    assert len(CLASSES) == 7


@settings(deadline=None)
@given(st.text())
@example("\x7f\x80\u07ff\u0800\uffff\U00010000")
def test_offsets_are_those_of_utf_8(text):
    text = text.encode(errors="ignore").decode()
    assert byte_offsets(text).tolist() == [len(text[:i].encode()) for i in range(len(text) + 1)]


SOURCE = 'x = 1  # é\nif x:\n    s = "é  😀"\n\n    y = [s, 2.5]\n'
CUTS = st.lists(st.integers(1, len(SOURCE.encode()) - 1), unique=True).map(sorted)


@settings(deadline=None)
@given(CUTS)
def test_a_token_has_the_class_of_its_first_visible_character(cuts):
    ends = np.array([*cuts, len(SOURCE.encode())])
    assert token_classes(SOURCE, ends).tolist() == naive(SOURCE, ends)


def test_a_text_without_tokens_has_no_classes():
    assert token_classes("", np.array([], np.int64)).tolist() == []
    assert token_classes(" \n", np.array([1, 2])).tolist() == [SPACE, SPACE]


@settings(deadline=None)
@given(CUTS, st.tuples(st.integers(0, len(SOURCE)), st.integers(0, len(SOURCE))).map(sorted))
def test_a_span_of_tokens_is_exactly_its_characters(cuts, span):
    ends, offsets = [*cuts, len(SOURCE.encode())], byte_offsets(SOURCE)
    begin, end = (int(offsets[each]) for each in span)
    found = token_span(Span(*span), offsets, np.array(ends))
    if {begin, end} <= {0, *ends}:
        starts = [0, *ends]
        assert [starts[each] for each in found] == [begin, end]
    else:
        assert found is None


LISTING = '''\
import os
def f(x):
    """Return x."""
    # a comment
    if x:
        return {
            "a": 1,  # one
            "b",
        }

    y = 1
    text = """first
    second = 3
    """.strip()
    also = x + \\
        2

def g():
\tpass
    '''


def test_lines_of_code_by_hand():
    assert [LISTING[slice(*span)] for span in code_lines(LISTING)] == [
        "\n    if x:",
        "\n        return {",
        '\n            "a": 1,  # one',
        '\n            "b",',
        "\n        }",
        "\n    also = x + \\",
        "\n        2",
        "\n\tpass",
    ]


def test_lines_of_the_library_are_whole_lines_of_code():
    for text in PythonLibraryCorpus().documents("validation"):
        for begin, end in code_lines(text):
            line = text[begin:end]
            assert line[0] == "\n"
            assert line[1].isspace()
            assert "\n" not in line[1:]
            assert text[end : end + 1] in ("\n", "")
            assert line.strip()
            assert not line.strip().startswith(("#", '"""'))
            assert text[:begin].rpartition("\n")[2].strip()


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("x = 1\n", True),
        ("", True),
        ("if x:\ny = 1\n", False),
        ("x = '\\d' is 'y'\n", True),  # with two warnings
        ("x = (\n", False),
        ("x = 1\0\n", False),
        ("(" * 300 + ")" * 300, False),
    ],
)
def test_what_parses(text, accepted):
    assert parses(text) is accepted


@pytest.mark.parametrize("error", [SyntaxError, IndentationError, ValueError, MemoryError, RecursionError])
def test_what_the_parser_refuses_does_not_parse(error, monkeypatch):
    def refuse(text):
        raise error

    monkeypatch.setattr("ast.parse", refuse)
    assert not parses("x")


def test_files_for_the_other_tests_have_lines_of_code():
    for path in FILES:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        assert parses(text)
        assert len(code_lines(text)) > 20
