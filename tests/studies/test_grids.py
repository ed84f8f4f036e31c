"""Grids: which arms they are, what is refused, and how a bound changes along their axes."""

import math
from pathlib import Path

import pytest

from atat_zoo.studies import markdown
from atat_zoo.studies.differences import sensitivity
from atat_zoo.system.errors import UserError
from tests.studies.making import STUDY

GRID = """
[[grid]]
arm = "fast"
against = ["plain"]
axes.optimizer.learning_rate = [1e-3, 1e-2, 0.1]
axes."optimizer.betas" = [[0.9, 0.95]]
[[grid]]
arm = "plain"
seeds = [19]
product = true
[grid.axes]
train.steps = [3, 6]
masking = ["uniform", {use = "uniform"}]
"""
BY_RATE = [((0.001,), "fast-optimizer.learning_rate=0.001"), ((0.01,), "fast")]
BY_RATE += [((0.1,), "fast-optimizer.learning_rate=0.1")]
BETAS = "fast-optimizer.betas=0.9+0.95"


def test_a_point_is_an_arm_and_the_arms_own_value_is_the_arm(read):
    study = read(STUDY + GRID.replace('"uniform", {use = "uniform"}', '"uniform", {use="position", temperature=0.5}'))
    steps = [f"plain-train.steps={n}-masking={how}" for n in (3, 6) for how in ("uniform", "use=position")]
    steps = [name.replace("position", "position+temperature=0.5") for name in steps]
    assert list(study.arms) == ["plain", "fast", BY_RATE[0][1], BY_RATE[2][1], BETAS, *steps[1:]]
    by_rate, by_betas, by_steps = study.grids
    assert (by_rate.arm, by_rate.keys, by_rate.points) == ("fast", ("optimizer.learning_rate",), BY_RATE)
    # Where the arm's own value is none of the axis, the arm stands beside it.
    assert by_betas.points == [(([0.9, 0.95],), BETAS), ((by_betas.points[1][0]), "fast")]
    assert by_betas.points[1][0] != ([0.9, 0.95],)
    assert [arm for _, arm in by_steps.points] == ["plain", *steps[1:]]
    run = study.run(BY_RATE[2][1], 18)
    assert run.experiment.parts["optimizer"].learning_rate == 0.1
    assert (study.against(run.arm), study.seeds[run.arm]) == (("fast", "plain"), (18, 19))
    assert (study.against(steps[3]), study.seeds[steps[3]]) == (("plain",), (19,))
    assert study.run(steps[3], 19).experiment.train.steps == 6
    assert study.run(steps[3], 19).experiment.parts["masking"].temperature == 0.5


def test_numbers_are_in_order_around_the_arms_own(read):
    (grid,) = read(STUDY + '[grid]\narm = "fast"\naxes.optimizer.learning_rate = [1e-3, 1]\n').grids
    assert [values for values, _ in grid.points] == [(0.001,), (0.01,), (1,)]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "optimizer.learning_rate",
            "optimizer.rate",
            "grid[0].axes.optimizer.rate: 'optimizer.rate=0.001' in its over",
        ),
        ("optimizer.learning_rate", "optimisr.rate", "optimisr: unknown key in an experiment"),
        ("1e-3, ", "-1, ", "grid[0].axes.optimizer.learning_rate: 'optimizer.learning_rate=-1' in its overrides: opt"),
        ("[1e-3, 1e-2, 0.1]", "[]", "grid[0]: axes.optimizer.learning_rate has no values; list some"),
        ("[1e-3, 1e-2, 0.1]", "0.1", "grid[0].axes: optimizer.learning_rate: expected list of value, got 0.1 (float)"),
        ("train.steps = [3, 6]\nmasking", "#", "grid[1]: axes is empty; add a key with its values"),
        ('arm = "fast"', 'arm = "fst"', "grid[0].arm: no arm is named 'fst'; did you mean 'fast'?"),
        ('["plain"]', '["plan"]', "grid[0].against: no arm is named 'plan'; did you mean 'plain'?"),
        ("1e-3, 1e-2", "1e-3, 1e-3", "'fast-optimizer.learning_rate=0.001' would name two arms; rename one of them"),
        ("train.steps = [3, 6]", "train.steps = [6]", "equals another point; leave one of them out"),
        (
            "train.steps = [3, 6]",
            "train.steps = [5, 6]",
            "masking='uniform' equals the arm 'five'; leave one of them",
        ),
        ("train.steps = [3, 6]", "train.steps = [4, 6]", "equals the arm 'plain-4'; leave one of them out"),
        (
            "train.steps = [3, 6]",
            "seed = [3, 6]",
            "grid[1].axes.seed: the key seeds sets the seed; leave this axis out",
        ),
        ("[[0.9, 0.95]]", f"[{list(range(40))}]", "is too long for a folder name; define the point as an arm"),
        (
            "seeds = [19]",
            "seeds = [20]",
            "seeds: arms 'plain-train.steps=6-masking=uniform' and 'plain' have no common seed",
        ),
        ("product = true", "produkt = true", "grid[1].produkt: is not a parameter of"),
        ('arm = "plain"', 'arm = "timed"', "grid[1].arm: 'timed' sets match_seconds; choose an arm"),
        ("[grid.axes]\n", "[grid.axes]\n", "sweep.points.b: train.steps is an axis of grid[1]; leave it out of one of"),
    ],
)
def test_a_mistake_in_a_grid_is_a_sentence(read, before, after, said):
    masks = 'masking = ["uniform", {use = "uniform"}]\n'
    text = GRID if "another point" in said else GRID.replace(masks, 'masking = ["uniform"]\n')
    assert before in text
    more = '[sweep]\nseed = 7\npoints = { a = [], b = ["train.steps=9"] }\n' if "sweep" in said else ""
    more += '[arms.timed]\nlike = "fast"\nmatch_seconds = "plain"\n' if "timed" in said else ""
    more += '[arms.five]\nexperiment = "five.toml"\n' if "five" in said else ""
    Path("five.toml").write_text('extends = "tiny.toml"\n[train]\nsteps = 5\n')
    study = STUDY.replace('"tiny.toml"', '"tiny.toml"\nbudgets = [4]') if "plain-4" in said else STUDY
    with pytest.raises(UserError) as caught:
        read(study + text.replace(before, after) + more)
    (line,) = str(caught.value).splitlines()
    assert line.startswith("study.toml: ")
    assert said in line


def test_a_point_with_other_seeds_or_measured_steps_is_trained_beside_an_arm(read):
    more = '[arms.other]\nlike = "plain"\noverrides = ["train.steps=6"]\nseeds = [20, 18]\n'
    more += '[arms.timed]\nlike = "plain"\noverrides = ["train.steps=6"]\nmatch_seconds = "fast"\n'
    (grid,) = read(STUDY + more + '[grid]\narm = "plain"\nseeds = [19]\naxes.train.steps = [6]\n').grids
    assert [arm for _, arm in grid.points] == ["plain", "plain-train.steps=6"]


def test_a_point_trains_what_an_arm_does_where_the_sweep_chooses_for_both(read):
    swept = '[sweep]\nseed = 7\npoints = { a = [], b = ["optimizer.learning_rate=0.1"] }\n'
    swept += '[grid]\narm = "plain"\naxes.train.steps = [6]\n'
    more = '[arms.longer]\noverrides = ["train.steps=6"]\n'
    study = read(f'{STUDY}{more}experiment = "tiny.toml"\n{swept}')  # which may get another point than plain
    assert study.grids[0].points[-1][1] == "plain-train.steps=6"
    with pytest.raises(UserError, match=r"train.steps=6 equals the arm 'longer'"):
        read(f'{STUDY}{more}like = "plain"\n{swept}')


@pytest.mark.parametrize(
    ("axis", "override"),
    [("optimizer.learning_rate = [1e-3]", "optimizer=adamw"), ('optimizer = ["adamw"]', "optimizer.learning_rate=0.1")],
)
def test_an_axis_and_a_point_of_the_sweep_set_no_part_of_each_other(read, axis, override):
    text = f'[sweep]\nseed = 7\npoints = {{ a = [], b = ["{override}"] }}\n[grid]\narm = "plain"\naxes.{axis}\n'
    with pytest.raises(UserError, match=r"sweep\.points\.b: optimizer\S* is an axis of grid; leave it out of one"):
        read(STUDY + text)


def arm_of(*nats):
    bounds = [{"perplexity": {"value": math.exp(x), "stderr": 0.1 * math.exp(x), "nats_per_token": x}} for x in nats]
    return {"runs": [{"bound": "perplexity", "bounds": each} for each in bounds]}


def test_a_point_has_its_interval_and_its_difference_from_the_arm(read):
    study = read(STUDY + '[grid]\narm = "fast"\naxes.optimizer.learning_rate = [1e-3, 1]\n')
    low, high = (f"fast-optimizer.learning_rate={rate}" for rate in (0.001, 1))
    ends = {"percent": 1.0, "percent_low": -1.0, "percent_high": 3.0}
    compared = {"arm": low, "against": "fast", "both": ends, "sequences": None}
    part = {
        "arms": {"fast": arm_of(2.0, 2.2), low: arm_of(3.0, 3.0), high: arm_of(4.0)},
        "comparisons": [compared, {"arm": high, "against": "fast", "problem": "no seed"}],
    }
    (grid,) = sensitivity(study.grids, part)
    table = markdown.grid_table(grid)
    assert table.headings == [
        "optimizer.learning_rate",
        "factorisation",
        "perplexity, 95 % CI",
        "seeds",
        "difference from fast",
    ]
    # Student's t with one degree of freedom times the standard error of two values 0.2 apart; 1.96 errors of a bound.
    half = math.hypot(12.706204736 * 0.1, 0.1959964)
    own = [math.exp(2.1 + shift) for shift in (0, -half, half)]
    one = [math.exp(4 + shift) for shift in (0, -0.1959964, 0.1959964)]
    words = "{:.2f} [{:.2f}, {:.2f}]".format
    assert table.texts == [
        [
            "0.001",
            "any-order ELBO",
            words(*[math.exp(3 + shift) for shift in (0, -0.1959964, 0.1959964)]),
            "2",
            "+1.00 % [-1.00, +3.00]",
        ],
        ["0.01", "any-order ELBO", words(*own), "2", "—"],
        ["1", "any-order ELBO", words(*one), "1", "no seed"],
    ]
    del part["arms"][high]  # not finished yet
    assert len(sensitivity(study.grids, part)[0]["points"]) == 2
