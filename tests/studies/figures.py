"""Figures in prose, and the results that they name: a comment behind a paragraph says for each where it is looked up.

A paragraph, an item of a list, or a row of a table ends with `<!-- = SOURCE; SOURCE -->`, a source for each figure, or
for each difference with its interval, in their order. A source is the name of a study, and

    ARM/OTHER                      how far an arm is from another; `test ARM/OTHER` on the test split
    gaps WHAT: ARM BY/BY           how far its price by the first is from the baseline's by the second; BY: the price
    samplers ARM N                 of its N-th sampler: difference, evaluations, times as long, value of a seed
    arm ARM                        its bound, over seeds the geometric mean, and how far it is from the counts
    parameters ARM/OTHER           how many times as many parameters
    multiplier ARM                 how many times as many steps the baseline takes
    task N SCORE: ARM              the mean over seeds; `least` or `most` in place of an arm: over the arms
    metric NAME: least             of all arms and seeds; or `most`

or `samples STUDY N`, a row of docs/results/study-samples.json; or `given X`, which is X and no result.
"""

import math
import re
import statistics

from atat_zoo.evaluation.results.format import change
from atat_zoo.studies.differences import shown

FIGURE = r"(?<![\w.:])[−+]?\d+\.\d+(?!\w|\.\d)"
EXPRESSION = re.compile(rf"{FIGURE} %\s+\[{FIGURE},\s+{FIGURE}\]|{FIGURE}")
SOURCES = re.compile(r"<!-- = ([^>]*) -->")
_BLOCK = re.compile(r"\n(?=- |\| |#)|\n\n")


def blocks(text):
    """Yield the figures and the sources of each paragraph, item and row; a comment belongs to what is before it."""
    for block in _BLOCK.split(text):
        named = [source.strip() for comment in SOURCES.findall(block) for source in re.split(r";\s+", comment)]
        figures = [" ".join(each.split()) for each in EXPRESSION.findall(SOURCES.sub("", block))]
        if figures or named:
            yield figures, named


def fits(figure, source, results, samples):
    """Return whether a figure is what its source says, to its digits."""
    if source.startswith("given "):
        return figure == source.removeprefix("given ")
    kind, _, rest = source.partition(" ")
    if kind == "samples":
        study, number = rest.split()
        row = samples[study][int(number)]
        return any(_is(figure, row[key]) for key in ("nfe", "generative_perplexity", "unigram_entropy", "mauve"))
    tables, numbers = _found(results[kind], rest)
    if "[" in figure:
        return any(figure == change(shown(table), 1).replace("-", "−") for table in tables)
    return any(_is(figure, number) for number in [*numbers, *(shown(table)["percent"] for table in tables)])


def _is(figure, number):
    digits, sign = len(figure.partition(".")[2]), "+" if figure[0] in "−+" else ""
    return figure == f"{number:{sign}.{digits}f}".replace("-", "−")


def _found(report, rest):
    """Return the differences and the numbers that a source names."""
    what, _, more = rest.partition(" ")
    if what == "arm":
        runs = report["arms"][more]["runs"]
        bounds = [run["bounds"][run["bound"]] for run in runs]
        counts = [run["ngram_prior"] for run in runs]
        mean = math.exp(statistics.fmean(bound["nats_per_token"] for bound in bounds))
        beside = [] if None in counts else [100 * math.expm1(statistics.fmean(each["difference"] for each in counts))]
        return [], [mean, *beside, *map(abs, beside)]
    if what == "gaps":
        of, _, price = more.partition(": ")
        arm, _, by = price.partition(" ")
        by, _, other = by.partition("/")
        (part,) = (part for part in report["gaps"] if part["what"] == of)
        (row,) = (row for row in part["rows"] if row["arm"] == arm and _by(row) == by)
        if not other:
            return [], [statistics.geometric_mean(row["values"])]
        return [each for each in row["against"] if _by(each) == other], []
    if what == "samplers":
        arm, number = more.split()
        (rows,) = (each["samplers"] for each in report["samplers"] if each["arm"] == arm)
        row = rows[int(number) - 1]
        numbers = [row["nfe"], *row["values"], *([row["seconds_ratio"]] if "seconds_ratio" in row else [])]
        return [row] if "sequences" in row else [], numbers
    if what == "multiplier":
        (found,) = (each for each in report["multipliers"] if each["arm"] == more)
        return [], [each["multiplier"] for each in found["each"]]
    if what == "task":
        number, score, arm = re.fullmatch(r"(\d+) (.+): (\w+)", more).groups()
        (found,) = (each for each in report["tasks"][int(number)]["scores"] if each["score"] == score)
        means = {row["arm"]: statistics.fmean(row["values"]) for row in found["rows"]}
        return [], [{"least": min, "most": max}[arm](means.values()) if arm in ("least", "most") else means[arm]]
    if what == "metric":
        name, which = more.split(": ")
        values = [run["metrics"][name]["value"] for arm in report["arms"].values() for run in arm["runs"]]
        return [], [{"least": min, "most": max}[which](values)]
    part = report["test"] if what == "test" else report
    arm, _, other = (more if what in ("test", "parameters") else rest).partition("/")
    (found,) = (each for each in part["comparisons"] if (each["arm"], each["against"]) == (arm, other))
    return ([], [found["ratios"]["parameters"]]) if what == "parameters" else ([found], [])


def _by(row):
    return row["by"]["use"] if row["by"] else "bound"
