"""Tables of studies: every number is of a result, in every form, and what is missing says how it is measured."""

import math
import re
import statistics

import pytest
from manifests import ARMS, CITED

from atat_zoo.studies.differences import over_both
from tests.pages import ROOT

STUDIES = ROOT / "experiments" / "studies"


def test_a_changed_value_is_in_every_form(place):
    place.study("sets")
    place.made(ARMS)
    before, old = place.texts("main"), place.rows("main")

    def change(report):
        for run in report["arms"]["sets_417"]["runs"]:
            run["bounds"]["sets bound"]["nats_per_token"] += 1.0
        table = next(each for each in report["comparisons"] if each["arm"] == "sets_417")["both"]
        table |= {"percent": -1.2345, "percent_low": -2.3456, "percent_high": 0.1234}

    place.study("sets", change)
    place.made(ARMS)
    tex, markdown, table = place.texts("main")
    assert all(a != b for a, b in zip(before, (tex, markdown, table), strict=True))
    rows = place.rows("main")
    for key in ("value", "value low", "value high"):
        assert float(rows["sets_417"][key]) == pytest.approx(float(old["sets_417"][key]) * 2.718281828)
    assert (rows["sets_417"]["difference"], rows["MDLM"]) == ("-1.2345", old["MDLM"])
    assert "| −1.2 % [−2.3, +0.1] |" in markdown
    assert r"$-$1.2~\% {[}$-$2.3, +0.1{]}" in tex
    claims = place.text("results.tex")
    assert r"sets\_417 and MDLM do not differ significantly in exp(nats per token) (sets bound and " in claims
    assert "autoregressive is lower than MDLM in perplexity" in claims


def test_the_interval_of_bits_per_byte_is_as_wide_as_that_of_nats_per_token(place):
    place.study("sets")
    place.made(ARMS | {"columns": ["nats_per_token", "bits_per_byte"], "intervals": "sequences"})
    for row in place.rows("main").values():
        shares = [float(row[f"{key} high"]) / float(row[key]) for key in ("nats_per_token", "bits_per_byte")]
        assert shares[0] == pytest.approx(shares[1])
        assert 1.0 < shares[0] < 1.02


def test_each_row_says_which_arm_its_difference_is_from(place):
    place.study("sets")
    rows = [{"arm": "mdlm", "name": "MDLM"}, {"arm": "sets"}, {"arm": "atat"}, {"arm": "atat", "against": "sets"}]
    rows[3]["name"] = "ATAT"
    (table,) = place.made(ARMS | {"rows": rows}).tables
    notes = [note for note in table.notes if "reference arm" in note]
    assert [note.partition(" is ")[2] for note in notes] == ["MDLM for sets; atat.", "sets for ATAT."]


def test_a_multiplier_is_of_one_seed_or_has_an_interval(place):
    arms = {"sets": [None], "sets-225": [2.5], "sets-450": [2.5, 3.5], "sets-900": [2.5, None]}

    def change(report):
        for each in report["multipliers"]:
            each["each"] = [{"seed": 18, "multiplier": value, "where": "beyond"} for value in arms[each["arm"]]]

    place.study("sets_budgets", change)
    wanted = {"study": "sets_budgets", "columns": ["multiplier"], "rows": [{"arm": arm} for arm in arms]}
    (table,) = place.made(ARMS | wanted | {"intervals": "sequences"}).tables
    assert [(cell.text, cell.value) for _, cell in table.rows] == [("—", None), ("> 2.50", 2.5), *[("—", None)] * 2]


@pytest.mark.parametrize(("value", "bold"), [(None, True), (60.0, True), (39.6, False)])
def test_what_is_cited_may_be_the_best(place, value, bold):
    place.study("sets")
    place.made(ARMS, cited=[CITED | ({"values": {"value": value}} if value else {})])
    tex, markdown, _ = place.texts("main")
    assert ("| autoregressive | **39.6" in markdown) == (r"autoregressive & \textbf{39.6" in tex) == bold
    assert r"Other\_one~\cite{arXiv-2406.07524}" in tex
    assert f"| Other_one [arXiv:2406.07524] | {f'{value:g}' if value else 'not comparable'} |" in markdown


def test_a_study_without_results_is_missing_until_it_is_written(place):
    filled = place.made(ARMS)
    (command,) = filled.missing()
    assert command == f"atat study sets --jobs 2 --write {place.results}/sets.md"
    assert len(filled.missing()[command]) == place.texts("main")[0].count("& --") == 4 * 4
    assert "The results do not contain any comparisons yet." in place.text("results.tex")
    place.study("sets", lambda report: report["arms"].pop("sets_417"))  # which failed
    missing = [what for found in place.made(ARMS).missing().values() for what in found]
    assert missing == [f"main: sets_417, {column}" for column in ARMS["columns"]]
    place.study("sets")
    assert place.made(ARMS).missing() == {}
    assert place.text("missing.md") == "# Missing\n\nNothing.\n"
    assert place.texts("main")[1].count("**") == 2 * 2


def test_a_seed_that_failed_is_noted_and_missing_and_none_of_its_column_is_bold(place):
    def change(report):
        report["arms"]["sets_417"]["runs"].pop()
        report["arms"]["sets"]["runs"] = report["arms"]["sets"]["runs"][:1]
        for each in report["comparisons"]:
            each["seeds"] = each["seeds"][: 2 if each["arm"] == "sets_417" else 3]

    place.study("sets", change)
    ((command, missing),) = place.made(ARMS).missing().items()
    assert command.startswith("atat study sets ")
    assert missing == ["main: sets, value", "main: sets_417, value", "main: sets_417, difference"]
    markdown = place.texts("main")[1]
    assert re.search(r"^\| sets \| 1 of 3 seeds \| sets bound \|", markdown, re.MULTILINE)
    assert re.search(
        r"^\| sets_417 \| [^|]+\] \(2 of 3 seeds\) \| sets bound \| [^|]+\(2 of 3 ", markdown, re.MULTILINE
    )
    assert "**" not in markdown


@pytest.mark.parametrize("intervals", ["both", "sequences"])
def test_a_metric_of_an_arm_has_the_interval_over_seeds_and_texts(place, intervals):
    values, errors = [0.5, 0.75, 0.625], [0.25, 0.25, 0.25]
    text = (STUDIES / "sets.toml").read_text().replace("[evaluation]", '[evaluation]\nmetrics = ["brier_score"]')

    def change(report):
        for run, value, stderr in zip(report["arms"]["sets"]["runs"], values, errors, strict=True):
            run["metrics"] = {"brier_score": {"value": value, "stderr": stderr}}

    place.study("sets", change)
    wanted = {"study": place.file("sets.toml", text), "columns": ["brier_score"], "rows": [{"arm": "sets"}]}
    place.made(ARMS | wanted | {"intervals": intervals})
    (row,) = place.rows("main").values()
    assert float(row["brier_score"]) == statistics.fmean(values)
    found = over_both(values, errors)
    if intervals == "both":
        assert [float(row[f"brier_score {end}"]) for end in ("low", "high")] == [found.low, found.high]
    else:
        assert not row.get("brier_score low")


GAPS = {"data": "gaps", "study": "sets", "label": "gaps", "caption": "Gaps.", "columns": ["the whole"]}
IN_TURNS = {"arm": "atat", "by": "strided"}


@pytest.mark.parametrize("intervals", ["both", "sequences"])
def test_a_difference_of_prices_has_the_interval_that_is_asked_for(place, intervals):
    report = place.study("sets")
    rows = [{"arm": "mdlm", "name": "MDLM_bound"}, IN_TURNS | {"name": "ATAT in turns"}]
    rows += [IN_TURNS | {"name": f"against {each}", "against": each} for each in ("bound", "strided")]
    place.made(GAPS | {"rows": rows, "intervals": intervals})

    def strided(tables):
        return next(each for each in tables if (each["by"] or {}).get("use") == "strided")

    against = strided(strided([each for each in report["gaps"][0]["rows"] if each["arm"] == "atat"])["against"])
    ends = [float(place.rows("gaps")["against strided"][f"the whole{end}"]) for end in ("", " low", " high")]
    assert ends == [against[intervals][key] for key in ("percent", "percent_low", "percent_high")]
    assert against["both"]["percent_low"] < against["sequences"]["percent_low"]
    said = place.text("results.tex")
    assert ("over seeds and sequences" in said) is (intervals == "both")
    assert re.search(r"ATAT in turns .+ MDLM\\_bound in the perplexity of the whole", said)
    assert re.search(r"ATAT in turns .+ mdlm \(sampler strided\) in", said)  # the table has no row for it


def test_a_price_is_not_shown_of_an_arm_without_results(place):
    place.study("sets", lambda report: report["arms"].pop("atat"))
    place.made(GAPS | {"rows": [{"arm": "mdlm"}, IN_TURNS]})
    assert [row["the whole"] != "" for row in place.rows("gaps").values()] == [True, False]


SAMPLERS = {"data": "samplers", "study": "system", "label": "samplers", "caption": "Samplers."}
SAMPLERS |= {"columns": ["value", "difference", "evaluations", "times_as_long"]}
SAMPLERS |= {"rows": [{"arm": "all_parts", "sampler": 1}, {"arm": "all_parts", "sampler": 3, "name": "certain first"}]}


def test_a_table_of_samplers_has_prices_evaluations_and_differences_from_the_first(place):
    certain = place.study("system")["samplers"][0]["samplers"][2]
    place.made(SAMPLERS)
    lines = place.texts("samplers")[1].splitlines()
    assert lines[4].startswith("| all_parts, strided | ")
    assert lines[4].endswith(" | — | 16.0 | — |")
    first, difference, *others = lines[5].split(" | ")[1:]
    assert first == f"{math.exp(statistics.fmean(map(math.log, certain['values']))):.1f}"
    assert difference.startswith(f"{certain['both']['percent']:+.1f} % [")
    assert others == [f"{certain['nfe']:.1f}", f"{certain['seconds_ratio']:.2f} |"]
    # A seed less is said; without results each cell has the command.
    place.study("system", lambda report: report["samplers"][0].update(seeds=[18, 19]))
    place.made(SAMPLERS)
    assert "(2 of 3 seeds)" in place.texts("samplers")[1]
    place.study("system", lambda report: report.update(samplers=None))
    (command,) = {cell.command for row in place.made(SAMPLERS).tables[0].rows for cell in row[1:]}
    assert "atat study system" in command


TASKED = """
seeds = [1, 2, 3]
baseline = "one"
[evaluation]
tasks = ["infilling"]
[arms.one]
experiment = "mdlm"
[arms.two]
experiment = "bell"
"""
VALUES = {"exact match": [0.25, 0.5, 0.3], "price": [4.0, 5.0, 6.0]}
SCORES = {"data": "scores", "task": "infilling", "label": "gaps", "caption": "Gaps.", "columns": [*VALUES]}
SCORES |= {"higher": ["exact match"], "rows": [{"arm": "one"}, {"arm": "two", "name": "Two"}]}


@pytest.fixture
def scores(place):
    """Write the results of a study with a task, and return a table of it."""
    row = {"arm": "one", "seeds": [1, 2, 3], "items": [9] * 3, "stderrs": [0.1, 0.2, 0.3]}
    task = {"settings": {"use": "infilling"}, "notes": ["said beside it"], "scores": []}
    for name, values in VALUES.items():
        about = {"score": name, "exponential": name == "price", "quantity": "q", "published": {}}
        task["scores"].append(about | {"rows": [row | {"values": values}]})
    place.result("tasked", {"arms": {"one": {"runs": []}}, "comparisons": [], "tasks": [task]})
    return SCORES | {"study": place.file("tasked.toml", TASKED)}


def test_a_score_is_its_mean_over_seeds_and_an_arm_without_one_is_missing(place, scores):
    (_, match, price), (_, *theirs) = place.made(scores).tables[0].rows
    found = over_both(VALUES["exact match"], [0.1, 0.2, 0.3])
    assert (match.value, match.low, match.high) == (found.value, found.low, found.high)
    logs = over_both([math.log(value) for value in VALUES["price"]], [0.1 / 4, 0.2 / 5, 0.3 / 6])
    assert (price.low, price.high) == pytest.approx((math.exp(logs.low), math.exp(logs.high)))
    assert price.value == pytest.approx(math.exp(statistics.fmean(map(math.log, VALUES["price"]))))
    assert {each.text for each in theirs} == {"--"}
    assert "said beside it" in place.texts("gaps")[1]
    (_, match, _), _ = place.made(scores | {"intervals": "sequences"}).tables[0].rows
    assert (match.value, match.high) == pytest.approx((0.35, 0.35 + 1.96 * 0.2), rel=1e-3)  # the error of a seed
    (place.results / "tasked.json").unlink()  # what was never measured is missing, whatever its name
    filled = place.made(scores | {"columns": ["no such score"], "higher": []})
    assert {row[1].text for row in filled.tables[0].rows} == {"--"}


@pytest.mark.parametrize(
    ("table", "change", "said"),
    [
        (ARMS, {"columns": ["valeu"]}, "columns: a table of arms has no column 'valeu'; did you mean 'value'?"),
        (ARMS, {"columns": []}, "table[0].columns: expected at least one column"),
        (ARMS, {"rows": [{"arm": "set"}]}, "rows: the study 'sets' has no arm 'set'; did you mean 'sets'?"),
        (ARMS, {"rows": [{"arm": "sets", "nmae": "x"}]}, "rows[0].nmae: is not a parameter of 'table[0].rows[0]'"),
        (ARMS, {"rows": [{"arm": "sets", "against": "atat"}]}, "'sets' with 'atat' (compared with: mdlm)"),
        (ARMS, {"rows": [{"arm": "sets"}, {"arm": "mdlm", "study": "sets_256"}]}, "on different text or masks"),
        (ARMS, {"rows": [{"arm": "mdlm", "study": "longer"}]}, "has one seed, so intervals cannot cover seeds"),
        (ARMS, {"label": "A b"}, "table[0].label: expected up to 61 lower-case letters, digits"),
        (ARMS, {"data": "studies"}, "evaluations | tasks | parameters, got 'studies'; did you mean 'study'?"),
        (GAPS, {"rows": [IN_TURNS | {"against": "stride"}]}, "'stride' of the baseline; did you mean 'strided'?"),
        (SAMPLERS, {"columns": ["values"]}, "samplers have no column 'values'; did you mean 'value'?"),
        (SAMPLERS, {"study": "sets"}, "table[0].study: the study 'sets' has no [samplers]"),
        (SAMPLERS, {"rows": [{"arm": "all_part", "sampler": 1}]}, "the arm 'all_part'; did you mean 'all_parts'?"),
        (
            SAMPLERS,
            {"rows": [{"arm": "all_parts", "sampler": 4}]},
            "the study 'system' has 3 samplers, so it has no sampler = 4",
        ),
        (SCORES, {"task": "infill"}, "has no task 'infill'; did you mean 'infilling'? (tasks: infilling)"),
        (SCORES, {"columns": ["prize"], "higher": []}, "'infilling' has no score 'prize'; did you mean 'price'?"),
        (SCORES, {"lower": ["prices"]}, "'prices' in lower or higher is not a column; did you mean 'price'?"),
    ],
)
def test_a_table_that_cannot_be_is_one_sentence(place, scores, table, change, said):
    place.study("sets")
    place.study("system")
    place.refused(said, (scores if table is SCORES else table) | change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"source": "Sahoo et al., 2024"}, "source: expected arXiv:2406.07524 or doi:10.1162/tacl_a_00300"),
        ({"table": "mian"}, "cited[0].table: unknown table 'mian'; did you mean 'main'?"),
        ({"at_most": True}, "at_most: there are no values that could be upper bounds"),
        ({"values": {"valu": 1.0}}, "cited[0].values: table 'main' has no column 'valu'; did you mean 'value'?"),
    ],
)
def test_a_cited_row_has_a_source_and_a_place(place, change, said):
    place.refused(said, ARMS, cited=[CITED | change])


def test_damaged_results_are_refused(place):
    place.study("sets", lambda report: report["arms"]["sets"].pop("runs"))
    place.refused("table[0]: the results are damaged", ARMS)
    (place.results / "sets.json").write_text("{")
    place.refused("cannot be read", ARMS)
