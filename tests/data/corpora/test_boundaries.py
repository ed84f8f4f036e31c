"""Where a document of plain text ends."""

import io

import pytest

from atat_zoo.registry import Zoo

# Each line stands between spaces.
LINES = "|= First =||Text of it .||= = Part = =||= 5 = in a table|more||= Second =||Text ."
WIKITEXT = "".join(f" {line} \n" if line else " \n" for line in LINES.split("|"))


def documents(name, text, most=1000):
    return list(Zoo.load().spec("boundary", name).documents(io.StringIO(text), most))


def test_an_article_begins_with_its_title():
    empty, first, second = documents("heading", WIKITEXT)
    assert not empty.strip()
    assert first.startswith(" = First = \n")
    assert first.endswith(" more \n \n")
    assert second == " = Second = \n \n Text . \n"


def test_a_title_stands_alone():
    assert len(documents("heading", "text\n = Title = \n \n text\n")) == 1
    assert len(documents("heading", " \n = Title = \n text\n")) == 1
    assert [text.strip() for text in documents("heading", "text\n \n = Title = \n \n")] == ["text", "= Title ="]


def test_the_others():
    text = "a b\nc\n\n \nd\n"
    assert documents("file", text) == [text]
    assert documents("line", text) == ["a b", "c", "", " ", "d"]
    assert documents("paragraph", text + " \n\t\ne\n") == ["a b\nc", "d", "e"]


@pytest.mark.parametrize("name", ["file", "heading", "line", "paragraph"])
def test_no_document_is_longer_than_memory_allows(name):
    assert "".join(documents(name, "x" * 20, most=20)) == "x" * 20
    with pytest.raises(MemoryError):
        documents(name, "x" * 21, most=20)
