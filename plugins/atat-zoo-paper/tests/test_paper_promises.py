"""Tables of promises: every measured value is looked up, as a change, and what was not measured says why."""

import pytest

PROMISES = {"data": "promises", "label": "promises", "caption": "Promised and measured."}
PROMISES |= {"columns": ["promised", "setting", "quantity", "measured", "source"]}
PROMISED = {"name": "cost", "promised": "+2 %"}
ARM = PROMISED | {"study": "ablation", "arm": "full"}
SAMPLER = ARM | {"arm": "importance_only", "sampler": 2}
PAGE = """\
| setting | time | other |
|---|--:|---|
| all | 3.0 | 1.0 |

Text.

| relative to MDLM | memory | time |
| --- | --- | --- |
| estimator | 1.063 | 0.75 [0.70, 0.80] |
| all | 1.075 | |
| short |
"""


def rows(place, *wanted):
    """Return the rows of a table of promises as Markdown."""
    place.made(PROMISES | {"rows": list(wanted)})
    return place.texts("promises")[1].splitlines()[4 : 4 + len(wanted)]


def test_a_value_of_a_study_is_looked_up(place):
    def change(report):
        full = next(each for each in report["comparisons"] if each["arm"] == "full")
        full["both"] |= {"percent": -1.25, "percent_low": -2.5, "percent_high": 0.125}
        full["ratios"] |= {"parameters": 1.0625, "seconds": None}
        sampler = next(each for each in report["samplers"] if each["arm"] == "importance_only")["samplers"][1]
        sampler["both"] |= {"percent": 30.0, "percent_low": 20.0, "percent_high": 40.0}
        sampler |= {"seconds_ratio": 0.25}

    place.study("ablation", change)
    place.study("sets")
    wanted = [ARM, ARM | {"column": "parameters", "setting": "all"}, ARM | {"column": "seconds"}]
    wanted += [SAMPLER, SAMPLER | {"column": "times_as_long"}, PROMISED | {"study": "sets", "arm": "autoregressive"}]
    found = rows(place, *wanted)
    assert found[:5] == [
        "| cost | +2 % |  | perplexity (any-order ELBO) | −1.2 % [−2.5, +0.1] | study ablation |",
        "| cost | +2 % | all | parameters | +6.2 % | study ablation |",
        "| cost | +2 % |  | seconds | — | study ablation |",
        "| cost | +2 % |  | perplexity (sampler, exact) | +30 % [+20, +40] | study ablation |",
        "| cost | +2 % |  | time | −75.0 % | study ablation |",
    ]
    assert "| perplexity (own order, exact against any-order ELBO) | −28.6 % [−30.9, −26.2] |" in found[5]
    # By another reference; and with one seed, over sequences only.
    inverse = place.study("ablation")
    against = ARM | {"arm": "inverse", "against": "full"}
    (one,) = (each for each in inverse["comparisons"] if (each["arm"], each["against"]) == ("inverse", "full"))
    (changed,) = rows(place, against)
    assert f"{one['both']['percent']:+.2f} % [" in changed
    longer = place.study("longer")["comparisons"][0]
    assert longer["both"] is None
    (single,) = rows(place, PROMISED | {"study": "longer", "arm": longer["arm"]})
    assert f"{longer['sequences']['percent']:+.1f} % [".replace("-", "−") in single


def test_a_study_without_results_is_missing(place):
    place.study("sets")
    wanted = [ARM, ARM | {"column": "parameters"}, SAMPLER, SAMPLER | {"column": "times_as_long"}]
    filled = place.made(PROMISES | {"rows": wanted})
    assert list(filled.missing()) == [f"atat study ablation --jobs 2 --write {place.results}/ablation.md"]
    assert [cells[4].text for cells in filled.tables[0].rows] == ["--"] * 4
    place.study("ablation", lambda report: report["arms"].pop("importance_only"))  # the reference, which failed
    assert place.made(PROMISES | {"rows": wanted[:2]}).missing()


def test_a_seed_that_failed_is_noted(place):
    def change(report):
        for each in [*report["comparisons"], *report["samplers"]]:
            each["seeds"] = each["seeds"][:2]

    place.study("ablation", change)
    (arm, sampler, time) = rows(place, ARM, SAMPLER, SAMPLER | {"column": "times_as_long"})
    assert all("(2 of 3 seeds)" in each for each in (arm, sampler, time))


def test_a_ratio_of_a_page_is_looked_up_by_row_and_column(place):
    page = PROMISED | {"page": place.file("costs.md", PAGE)}
    wanted = [page | {"row": row, "column": column} for row, column in (("all", "memory"), ("estimator", "time"))]
    assert rows(place, *wanted) == [
        f"| cost | +2 % |  | memory | +7.5 % | {page['page']} |",
        f"| cost | +2 % |  | time | −25 % [−30, −20] | {page['page']} |",
    ]
    for row, column, got in (("all", "time", "3.0, "), ("short", "memory", "none"), ("all", "costs", "none")):
        said = f"row '{row}', column '{column}': expected one ratio, such as 1.41 or 1.41 [1.31, 1.50], got {got}"
        place.refused(said, PROMISES | {"rows": [page | {"row": row, "column": column}]})
    place.refused(
        "table[0].rows[1].page: the page absent.md cannot be read",
        PROMISES | {"rows": [wanted[0], wanted[0] | {"page": "absent.md"}]},
    )


def test_what_was_not_measured_says_why_and_is_not_missing(place):
    filled = place.made(PROMISES | {"rows": [PROMISED | {"unmeasured": "nobody has rated samples"}]})
    assert "| cost | +2 % |  |  | nobody has rated samples |  |" in place.texts("promises")[1]
    assert filled.missing() == {}
    assert place.rows("promises")["cost"]["measured"] == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"study": "ablation"}, "set `study` and `arm`"),
        ({}, "set `study` and `arm`"),
        ({"page": "a.md", "row": "all"}, "or `page`, `row` and `column`"),
        ({"unmeasured": "no", "study": "ablation", "arm": "full"}, "or `unmeasured`"),
        ({"page": "a.md", "row": "all", "column": "x", "sampler": 2}, "set `study` and `arm`"),
        ({"study": "ablation", "arm": "ful"}, "no arm 'ful'; did you mean 'full'?"),
        (
            {"study": "ablation", "arm": "full", "column": "parameter"},
            "no ratio 'parameter'; did you mean 'parameters'?",
        ),
        ({"study": "ablation", "arm": "importance_only", "column": "steps"}, "no ratio 'steps' (ratios: none)"),
        ({"study": "ablation", "arm": "full", "against": "mdlm"}, "has no arm 'mdlm'"),
        ({"study": "ablation", "arm": "full", "sampler": 9}, "has 2 samplers, so it has no sampler = 9"),
        ({"study": "ablation", "arm": "full", "sampler": 1}, "sampler: must be at least 2, not 1"),
        ({"study": "sets", "arm": "sets", "sampler": 2}, "the study 'sets' has no [samplers]"),
        (
            {"study": "ablation", "arm": "full", "sampler": 2, "column": "seconds"},
            "column is `times_as_long` or left out",
        ),
    ],
)
def test_a_row_that_cannot_be_is_one_sentence(place, change, said):
    place.study("ablation")
    place.study("sets")
    place.refused(said, PROMISES | {"rows": [PROMISED | change]})


def test_a_column_of_promises_is_one_that_they_have(place):
    said = "table[0].columns: promises have no column 'measure'; did you mean 'measured'?"
    place.refused(said, PROMISES | {"columns": ["measure"], "rows": [PROMISED | {"unmeasured": "no"}]})
