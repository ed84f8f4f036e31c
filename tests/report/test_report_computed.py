"""`atat report --compute`: a page of a run of each objective, with what commands print and nothing else."""

import json

import pytest

from atat_zoo.report.collect import collect
from atat_zoo.results.format import interval, uncertain
from tests.cli.terminal import printed
from tests.measure.making import make_run

pytestmark = pytest.mark.slow


def test_a_page_has_the_numbers_that_commands_print(atat, tmp_path):
    """Of one objective: `test_recording` computes what the others have."""
    learned = {"use": "transformer", "layers": 1, "width": 8, "heads": 2}
    run = make_run(tmp_path, "mdlm", objective="mdlm", estimator=learned)
    said = printed(atat, "report", str(run), "--compute")
    assert f"{run}: text took " in said
    assert "; --frontier does that, and takes longest\n" in said
    bounds = json.loads(printed(atat, "eval", str(run), "--json", "--draws", "1"))["bounds"]
    data = collect([run])
    assert [row["value"] for row in data["tables"]["bounds"]] == [bound["value"] for bound in bounds.values()]
    first = next(iter(bounds.values()))
    assert uncertain(first["value"], first["stderr"]) in data["verdict"][0]
    bands = json.loads(printed(atat, "importance", str(run), "--json"))["bands"]
    rhos = [row["rho"] for row in data["tables"]["bands"] if row["orders by"] == "importance"]
    assert rhos == [band["importance_spearman"] for band in bands if band["importance_spearman"] is not None]


def test_runs_are_compared_and_the_verdict_is_what_compare_prints(atat, tmp_path):
    one = make_run(tmp_path, "mdlm", objective="mdlm")
    other = make_run(tmp_path, "mlm", objective="mlm")
    said = printed(atat, "report", str(one), str(other), "--compute", "--out", str(tmp_path / "page.html"))
    assert f"{one}: the comparison of all took " in said
    row = json.loads(printed(atat, "compare", str(one), str(other), "--json"))["runs"][1]
    difference = next(iter(row["bounds"].values()))["difference"]
    change = interval(*(difference[key] for key in ("percent", "percent_low", "percent_high")))
    assert any(f"{row['run']} {change}" in sentence for sentence in collect([one, other])["verdict"])
