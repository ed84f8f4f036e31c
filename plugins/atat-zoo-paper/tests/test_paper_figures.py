"""Figures of studies: drawn from the results, alike each time, and what they cannot show."""

import json
import re

import pytest
from atat_zoo_paper.study_tables import axis_of

from atat_zoo.reports import PALETTE
from atat_zoo.studies import study_file
from atat_zoo.studies.differences import sensitivity
from tests.pages import ROOT

FIGURE = {"kind": "curve", "study": "sets_budgets", "label": "steps", "caption": "Steps.", "intervals": "sequences"}


def test_a_figure_is_drawn_from_the_results_and_alike_each_time(place):
    place.study("sets_budgets")

    def drawn():
        place.made(figures=[FIGURE, FIGURE | {"kind": "arms", "label": "arms", "names": {"sets": "One_for_all"}}])
        return [path.read_bytes() for path in sorted((place.out / "figures").iterdir())]

    once = drawn()
    assert drawn() == once
    svg = place.text("figures/arms.svg")
    assert ">One_for_all</text>" in svg
    assert ">sets</text>" in place.text("figures/steps.svg"), "as it is called"
    assert set(re.findall(r'font-size="([\d.]+)px"', svg)) == {"6.5", "7"}  # as in the figures of importance

    def change(report):
        report["arms"]["mdlm-225"]["runs"][0]["bounds"]["perplexity"]["nats_per_token"] += 0.1

    place.study("sets_budgets", change)
    again = drawn()
    assert [a != b for a, b in zip(once, again, strict=True)] == [False, False, False, True, True, False], "arms, curve"
    place.made(figures=[FIGURE | {"kind": "arms"}])
    assert ">sets</text>" in place.text("figures/steps.svg"), "as it is called"


def test_a_figure_or_an_arm_without_results_says_how_to_measure_them(place):
    ((_, missing),) = place.made(figures=[FIGURE]).missing().items()
    assert missing == ["steps: the figure"]
    assert r"\texttt{atat study sets\_budgets -{}-jobs 2" in place.text("figures/steps.tex")
    place.study(
        "sets_budgets", lambda report: [report["arms"].pop(name) for name in [*report["arms"]] if "sets" in name]
    )
    assert list(place.made(figures=[FIGURE]).missing().values()) == [["steps: sets"]]
    assert (place.out / "figures" / "steps.pdf").is_file()


def test_a_sweep_is_drawn_point_by_point(place):
    study = 'seeds = [1, 2]\nbaseline = "a"\n[sweep]\nseed = 7\n[sweep.points]\nslow = ["train.steps=8"]\n'
    study += 'fast = ["train.steps=9"]\n[arms.a]\nexperiment = "mdlm"\n[arms.b]\nexperiment = "bell"\n'
    named = {"study": place.file("swept.toml", study), "names": {"a": "panel_of_a"}}
    arms = {arm: {"chosen": "fast", "at_an_end": True, "nats_per_token": {"slow": 4.0, "fast": 3.5}} for arm in "ab"}
    place.result("swept", {"arms": {"a": {"runs": []}}, "comparisons": [], "sweep": {"arms": arms}})
    place.made(figures=[FIGURE | {"kind": "sensitivity"} | named])
    svg = place.text("figures/steps.svg")
    assert all(word in svg for word in ("panel_of_a", "slow", "fast"))
    assert re.findall(r'"line mark" .*?stroke="(.+?)"', svg) == [*PALETTE[:2]]  # a panel has a colour


def test_grids_are_drawn_axis_by_axis(place):
    study = 'seeds = [18, 19, 20]\nbaseline = "a"\n[arms.a]\nexperiment = "mdlm"\n[grid]\narm = "a"\n'
    study += "[grid.axes]\ntrain.steps = [8, 9]\nschedule.warmup_steps = [3]\n[samplers]\narms = ['a']\n"
    study += "each = [{ use = 'ancestral', steps = 8 }, { use = 'ancestral', steps = 4 }]\n"
    figure = FIGURE | {"kind": "sensitivity", "study": place.file("varied.toml", study), "intervals": "both"}
    arm = json.loads((ROOT / "docs" / "studies" / "sets.json").read_text())["arms"]["mdlm"]
    report = {"arms": dict.fromkeys(("a", "a-train.steps=8"), arm), "comparisons": [], "tokens": 1}
    rows = [{"quantity": "policy bound", "values": values} for values in ([50.0, 51.0, 52.0], [60.0, 60.0, 63.0])]
    place.result("varied", report | {"samplers": [{"arm": "a", "samplers": rows}]})
    filled = place.made(figures=[figure])
    assert list(filled.missing().values()) == [["steps: a-train.steps=9", "steps: a-schedule.warmup_steps=3"]]
    points = filled.figures[0].points
    assert [(label, own) for label, _, own in points["train.steps"]] == [("8", False), ("450", True)]
    grid = sensitivity(filled.figures[0].known.study.grids, report)[0]  # as the page of the study has it
    for (_, bound, _), point in zip(points["train.steps"], grid["points"], strict=True):
        assert (bound.low, bound.high) == pytest.approx((point["low"], point["high"]))
    by_steps = points["samplers.steps"]
    assert [(label, own) for label, _, own in by_steps] == [("4", False), ("8", True)]
    assert [bound.value for _, bound, _ in by_steps] == pytest.approx([60.98, 50.99], abs=0.01)  # geometric means
    svg = re.sub(r"</?tspan[^>]*>", "", place.text("figures/steps.svg"))
    assert all(f"{word}</text>" in svg for word in ("steps", "warmup_steps", "8", "450", "perplexity", "policy bound"))


@pytest.mark.parametrize(
    ("other", "axis"),
    [
        ("{ use = 'ancestral', steps = 4 }", ("samplers.steps", [8, 4])),
        ("{ use = 'ancestral', steps = 4, temperature = 0.5 }", None),
        ("{ use = 'ancestral', steps = 8 }", None),
        ("{ use = 'strided' }", None),
    ],
)
def test_samplers_that_differ_in_one_number_have_an_axis(place, other, axis):
    study = "seeds = [18]\nbaseline = 'a'\n[arms.a]\nexperiment = 'mdlm'\n[samplers]\narms = ['a']\n"
    place.file("few.toml", f"{study}each = [{{ use = 'ancestral', steps = 8 }}, {other}]\n")
    assert axis_of(study_file.load(place.root / "few.toml")) == axis


@pytest.mark.parametrize(("stop", "axis"), [(0.2, ("samplers.threshold", [0.1, 0.2])), (0.3, None)])
def test_thresholds_are_one_axis_where_they_are_the_same(place, stop, axis):
    study = "seeds = [18]\nbaseline = 'a'\n[arms.a]\nexperiment = 'mdlm'\n[samplers]\narms = ['a']\neach = [\n"
    for one, other in ((0.1, 0.1), (0.2, stop)):
        study += f"{{ use = 'combination', tokens_per_step = {{ use = 'extended', threshold = {one} }}, "
        study += f"stopping_rule = {{ use = 'uncertainty', threshold = {other} }} }},\n"
    place.file("few.toml", f"{study}]\n")
    assert axis_of(study_file.load(place.root / "few.toml")) == axis


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "sensitivity"}, "figure[0].study: the study 'sets_budgets' has no [grid] or [sweep]"),
        ({"study": "sets"}, "figure[0].study: the study 'sets' has no budgets"),
        ({"arms": ["sets-450"]}, "figure[0].arms: arm 'sets-450' of the study 'sets_budgets' has no budgets"),
        ({"kind": "arms", "arms": ["sets-450"]}, "does not compare 'sets-450' with its baseline 'mdlm'"),
        ({"intervals": "both"}, "has one seed"),
    ],
)
def test_a_figure_that_cannot_be_is_one_sentence(place, change, said):
    place.refused(said, figures=[FIGURE | change])
