"""A page of a run of each objective, trained and recorded as a person does it, in a real browser."""

from __future__ import annotations

import pytest

from atat_zoo import Zoo
from tests.measure.making import prose
from tests.report.browser import chromium
from tests.report.test_report_in_browser import opened

pytestmark = pytest.mark.slow
EXPERIMENT = """
[corpus]
use = "files"
document = "line"
train = ["train.txt"]
validation = ["validation.txt"]
[tokenizer]
use = "bytes"
[backbone]
layers = 1
width = 16
heads = 2
max_length = 32
[data]
root = "shards"
length = 16
lanes = 2
sequences_per_member = 8
sequences_per_shard = 64
[train]
steps = 6
batch_size = 8
log_every = 1
[evaluation]
sequences = 8
draws = 2
samples = 1
"""
ESTIMATOR = "estimator={use = 'transformer', layers = 1, width = 8, heads = 2}"
# How many marks each chart has that the page shows.
DRAWN = """Object.fromEntries(Object.entries(charts).filter(([, one]) => one.host.isConnected).map(([name, one]) =>
    [name, one.host.querySelectorAll(".role-mark:not(.mark-group) > *").length]))"""
# What an objective is trained with, the sampler that writes its texts, and whether it weighs tokens.
OBJECTIVES = {
    "mdlm": ([ESTIMATOR, "masking=importance", "curriculum.use=three_stage"], "ancestral", True),
    "mlm": ([], "ancestral", False),
    "sedd": ([], "ancestral", False),
    "d3pm": (["objective.steps=10"], "ancestral", False),
    "adaptive": ([ESTIMATOR], "learned_order", True),
    "block": (["objective.size=4"], "semi_autoregressive", False),
    "autoregressive": ([], "left_to_right", False),
    "strided": (["objective.stride=4"], "strided", False),
}


def test_every_objective_is_here():
    zoo = Zoo.load()
    own = {name for name in zoo.names("objective") if zoo.describe("objective", name).distribution == "atat-zoo"}
    assert set(OBJECTIVES) == own


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("objectives")
    for split, sentences in (("train", 200), ("validation", 60)):
        (root / f"{split}.txt").write_text(prose(sentences, seed=sentences))
    (root / "small.toml").write_text(EXPERIMENT)
    return root


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_page_shows_what_an_objective_has_and_says_why_not(atat, browser, root, objective, monkeypatch):
    pytest.importorskip("vl_convert")
    monkeypatch.chdir(root)  # where the run has the name of an experiment
    settings, sampler, weighs = OBJECTIVES[objective]
    sampled = ["--sampler", sampler, "--steps", "4", "--number", "2", "--sequences", "4"]
    for words in (
        ["train", "small.toml", "--out", objective, f"objective.use={objective}", f"sampler.use={sampler}", *settings],
        ["bench", "samplers", objective, *sampled],
        ["report", objective, "--compute"],
    ):
        code, _, err = atat(*words)
        assert (code, err) == (0, "")
    with opened(browser, root / objective / "report.html") as page:
        drawn = page.evaluate(DRAWN)
        curriculum = objective == "mdlm"
        assert drawn.pop("stages", 0) == (3 if curriculum else 0)
        assert drawn.pop("strength", 0) > 0 if curriculum else "strength" not in drawn
        assert drawn.pop("bands", 0) > 0 if weighs else "bands" not in drawn
        assert drawn.pop("calibration", 0) > 0 if weighs else "calibration" not in drawn
        assert set(drawn) == {"loss", "bound", "rates", "spread", "uncertainty", "frontier"}
        assert all(drawn.values()), drawn
        lacking = ["Without an importance estimator there is nothing to hold against the loss."]
        assert page.locator(".missing").all_text_contents() == ([] if weighs else lacking)
        assert page.locator("#text .tokens").count() == 1 + weighs
        assert page.locator("#replay .sampler").count() == 1 + page.evaluate("data.runs[0].replay.samplers.length > 1")
        assert page.locator("#samples pre").text_content().strip()
        rate = page.evaluate("data.tables.rates[0].mask_rate_target")
        if page.evaluate("data.tables.rates.every((row) => row.mask_rate === data.tables.rates[0].mask_rate)"):
            assert f"{rate:g}" in page.locator("#curriculum figure .role-axis-label").all_text_contents()
