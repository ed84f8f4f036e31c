"""The notebook runs where the quickstart has run, and what it has kept is of the kinds that it shows."""

import nbformat
import pytest
from nbclient import NotebookClient

from tests import pages

NOTEBOOK = pages.ROOT / "docs" / "tutorials" / "explore-a-model.ipynb"


def shown(notebook):
    """Return the kinds of what each cell of code shows."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[sorted(output.get("data", {output.output_type: 0})) for output in cell.outputs] for cell in cells]


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_has_kept(tmp_path):
    pages.run(["atat", "train", "quickstart", "corpus.first_year=1990", *pages.SMALL], tmp_path)
    kept, run = nbformat.read(NOTEBOOK, 4), nbformat.read(NOTEBOOK, 4)
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(run, kernel_name="python3", timeout=120, resources=where).execute()
    assert shown(run) == shown(kept)
    assert sum("text/html" in kinds for cell in shown(run) for kinds in cell) >= 6
    assert len(NOTEBOOK.read_bytes()) < 200_000
