"""README.md: its examples are carried out, and it has every key of a manifest."""

import shutil

import pytest
from atat_zoo_paper import paper_file

from atat_zoo.registry.spec import fields_of
from tests import pages
from tests.evaluation.making import make_run

PAGE = pages.ROOT / "plugins" / "atat-zoo-paper" / "README.md"


@pytest.mark.slow
def test_the_blocks_of_the_page_do_what_they_say(tmp_path):
    shutil.copytree(pages.ROOT / "docs" / "studies", tmp_path / "docs" / "studies")
    shutil.copytree(pages.ROOT / "docs" / "results", tmp_path / "docs" / "results")
    make_run(tmp_path / "runs", "quickstart", "mdlm", estimator="frequency")
    pages.carry_out(PAGE, tmp_path)
    for path in (
        "papers/mine-paper/main.tex",
        "papers/documents/main.tex",
        "runs/quickstart/report/importance/rates.svg",
    ):
        assert (tmp_path / path).is_file()


def test_the_page_has_every_key():
    text = PAGE.read_text(encoding="utf-8")
    specs = [paper_file.PaperSpec, paper_file.FigureSpec, paper_file.CitedRow]
    specs += [spec for of_table in paper_file.DATA.values() for spec in of_table]
    keys = {field.name for spec in specs for field in fields_of(spec)}
    assert [key for key in sorted(keys) if f"`{key}`" not in text and f"`{key} = " not in text] == []
