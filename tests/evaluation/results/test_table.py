"""A table in every form, and which of its cells is the best."""

import html
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.evaluation.results.table import HIGHER, LOWER, Cell, Column, Table, escape
from atat_zoo.system.errors import UserError

intervals = st.tuples(st.integers(-9, 9), st.integers(0, 3), st.integers(0, 3))


def column_of(cells, **about):
    """Return a table whose second column has these cells."""
    columns = ["name", Column(heading="c", key="c", **about)]
    return Table(columns=columns, rows=[[f"row {i}", cell] for i, cell in enumerate(cells)])


@given(st.lists(st.one_of(st.none(), intervals), min_size=2, max_size=5), st.sampled_from([LOWER, HIGHER]))
def test_the_best_is_bold_where_its_interval_lies_apart_from_all_others(ends, better):
    cells = [
        Cell(text="--", command="atat eval")
        if each is None
        else Cell(text="x", value=each[0], low=each[0] - each[1], high=each[0] + each[2])
        for each in ends
    ]
    table, wanted = column_of(cells, better=better), set()
    for i, one in enumerate(cells if None not in ends else ()):
        others = [other for j, other in enumerate(cells) if j != i]
        if all(one.high < o.low if better == LOWER else one.low > o.high for o in others):
            wanted.add((i, 1))
    assert table.best() == wanted
    assert ("**x**" in "".join(table.to_markdown())) == (r"\textbf{x}" in "".join(table.to_latex())) == bool(wanted)


@pytest.mark.parametrize(
    ("column", "ends", "bold"),
    [
        ({"better": LOWER, "than": 0}, [(-3, -2), (1, 2)], True),
        ({"better": LOWER, "than": 0}, [(1, 2), (3, 4)], False),
        ({"better": LOWER, "than": 0}, [(-1, 1), (3, 4)], False),
        ({"better": HIGHER, "than": 1}, [(1.5, 2), (0.5, 0.8)], True),
        ({"better": HIGHER, "than": 1}, [(0.8, 0.9), (0.5, 0.7)], False),
    ],
)
def test_what_is_no_better_than_the_baseline_is_not_bold(column, ends, bold):
    cells = [Cell(text="x", value=sum(each) / 2, low=each[0], high=each[1]) for each in ends]
    assert column_of(cells, **column).best() == ({(0, 1)} if bold else set())


def test_nothing_is_best_beside_what_is_missing_or_touches_it_or_by_itself():
    one, far = (Cell(text="x", value=low + 1, low=low, high=low + 2) for low in (0, 8))
    touching, absent = Cell(text="x", value=2.5, low=2, high=3), Cell(text="--", command="atat eval")
    assert column_of([one, far], better=LOWER).best() == {(0, 1)}
    for cells in ([one, touching], [one, far, absent], [one]):
        assert column_of(cells, better=LOWER).best() == set()


def test_a_table_in_every_form():
    cells = [Cell(text="1.5 [1, 2]", value=1.50001, low=1.0, high=2.0), Cell(text="=a|<b> `c`", value="=x")]
    cited = [("arXiv:1", [Cell(text="theirs"), Cell(text="9", value=9)])]
    columns = [Column(heading="", key="name"), Column(heading="50 %", key="share")]
    rows = [["one", cells[0]], ["two & 2", cells[1]]]
    table = Table(title="It", said=["above"], notes=["below"], columns=columns, rows=rows, cited=cited)
    assert table.to_text(20)[2:] == ["two & 2  =a|<b> `c`"]
    assert table.to_text() == ["         50 %", "one      1.5 [1, 2]", "two & 2  =a|<b> `c`"]
    assert table.to_markdown() == [
        *("above", "", "|  | 50 % |", "| --- | --- |", "| one | 1.5 [1, 2] |", r"| two & 2 | =a\|<b> `c` |"),
        *("| theirs [arXiv:1] | 9 |", "", "- below"),
    ]
    assert "<td>=a|&lt;b&gt; <code>c</code></td>" in table.to_html()
    assert html.unescape(re.sub("<[^>]*>", " ", table.to_html())).split()[:2] == ["50", "%"]
    assert table.to_csv().splitlines() == [
        *("name,source,share,share low,share high", "one,,1.50001,1.0,2.0", "two & 2,,'=x,,", "theirs,arXiv:1,9,,"),
    ]
    assert (table.to_latex()[0], table.to_latex().count(r"\midrule")) == (r"\begin{tabular}{lr}", 2)
    assert r"theirs~\cite{arXiv-1} & 9 \\" in table.to_latex()
    assert r"\textbf{} & \textbf{50~\%} \\" in table.to_latex()
    said = {"title": "It", "said": ["above", "below"], "columns": ["", "50 %"]}
    assert table.to_json() == said | {"rows": [["one", "1.5 [1, 2]"], ["two & 2", "=a|<b> `c`"]]}


@given(st.text(st.sampled_from('a_%&#${}\\~^<>[]|"−±×≤—–é '), max_size=30))
def test_no_special_character_of_latex_is_left(text):
    escaped = escape(text)
    assert escaped.count("{") - escaped.count(r"\{") == escaped.count("}") - escaped.count(r"\}")
    plain = re.sub(r"~\\%|\\[a-z]+(\{\})?|\\.|\$(<|>|\||-|\\pm|\\times|\\le)\$|\{\[\}|\{\]\}", "", escaped)
    assert not set(plain) & set('_%&#${}\\~^<>[]|"−±×≤—')


def test_what_latex_cannot_set_is_refused():
    with pytest.raises(UserError, match=r"LaTeX cannot typeset '語'; use Latin letters instead"):
        escape("a 語")


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(1, 20))
def test_a_wide_table_is_cut_between_its_columns_and_loses_none(widths, name):
    """Each piece begins with the names, and fits unless one column, or its first two, are too wide by themselves."""
    cells = [f"{i:x}" * width for i, width in enumerate(widths)]
    lines = Table(columns=["n" * name, *cells], rows=[["a", *cells]]).to_text(100)
    heads = [line.split() for line in lines if line.startswith("n")]
    assert [cell for head in heads for cell in head[1:]] == cells
    assert all(head[0] == "n" * name for head in heads)
    assert max(map(len, lines)) <= 100 or max(widths) > 50
    if max(widths) <= 50:  # no piece could have taken the first column of the next
        for head, after in itertools.pairwise(heads):
            assert sum(len(each) + 2 for each in head) + len(after[1]) > 100
