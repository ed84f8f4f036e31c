"""The first words of the page: which runs are ranked, on what text, and what is said of those that are not."""

import json

import pytest

from atat_zoo.evaluation.results.quantity_names import title
from atat_zoo.reports.report_data import collect
from tests.reports.run_folders import make

NAME = title("nelbo").capitalize()
FILES = ('corpus.use="files"', 'corpus.train=["stories/*.txt"]', 'tokenizer.use="bytes"', "data.special_tokens=none")
HELD = (FILES[0], FILES[2], 'corpus.validation=["held.txt"]')
MIXTURE = ('corpus.use="mixture"', 'corpus.components=[{use="sotu"}, {use="files", train=["a.txt"], test=["t.txt"]}]')
COMPUTE = "`atat report … --compute` computes them."
# Of each run, by the letters of the alphabet: what its experiment has, and what its last evaluation has; `value` is of
# its bound. Then how the verdict begins, and what else is in it.
CASES = {
    "one run": ([((), {})], "a: objective mdlm, 450 training steps, 1,843,200 tokens of sotu. Perplexity 55.9 ± ", [
        "Perplexity 55.9 ± 1.2, 30.1 ± 0.6 % lower",
        "Evaluated on 768 sequences of validation text of sotu, 4 masks each by exact_k, seed 17; ± is one standard",
        "than that of an n-gram model of two neighbours (80.0 ± 1.5).",
    ]),
    "one of another objective": ([((), {"bound": "SEDD"})], "a: objective mdlm", ["SEDD bound 55.9 ± 1.2, "]),
    "one of a mixture": ([(MIXTURE, {})], "a: ", ["validation text of mixture (sotu, files (a.txt)), 4 masks"]),
    "the same text": ([((), {"value": 57.0}), ((), {})], f"{NAME}, lowest first: b 55.9 ± 1.2 and a 57.0 ± 1.2.", [
        COMPUTE, "seed 17, the same for every run; ± is",
    ]),
    "other text": ([((), {}), (FILES, {"value": 6.5, "bytes": 1700})], f"{NAME}: a 55.9 ± 1.2; b 6.5 ± 1.2.", [
        "because they were evaluated on different tokens: corpus.use and tokenizer.use differ.",
        "Evaluated: a on 768 sequences of validation text of sotu, ",
        "; b on 768 sequences of validation text of files (stories/*.txt), 4 masks",
    ]),
    "both": (
        [((), {"value": 57.0}), ((), {}), (FILES, {"bytes": 1})],
        f"{NAME}, lowest first on each text: b 55.9 ± 1.2 and a 57.0 ± 1.2; c 55.9 ± 1.2.",
        [],
    ),
    "other tokens": ([((), {}), (["tokenizer.vocabulary_size=512"], {})], NAME, [
        ": tokenizer.vocabulary_size differs.",
    ]),
    "two keys": ([((), {}), (["corpus.seed=1", "data.length=32"], {"bytes": 1})], NAME, [
        ": corpus.seed and data.length differ.",
    ]),
    "a file that changed": ([((), {}), ((), {"bytes": 1})], NAME, [": the text of the corpus differs."]),
    "other words for one text": (
        [((*HELD, 'corpus.train=["a.txt"]'), {}), ((*HELD, 'corpus.train=["b.txt"]'), {})],
        f"{NAME}, lowest first: a 55.9 ± 1.2 and b 55.9 ± 1.2.",
        ["Evaluated on 768 sequences of validation text of files (held.txt)", COMPUTE],
    ),
    "more of the text": ([((), {}), ((), {"sequences": 96, "bytes": 300})], f"{NAME}: a 55.9 ± 1.2; b 55.9 ± 1.2.", [
        f"and masks, a paired difference is more precise than either value); {COMPUTE}", "b on 96 sequences",
    ]),
    "one under other masks": (
        [((), {}), ((), {}), ((), {"draws": 0, "method": "likelihood"})],
        f"{NAME}, lowest first: a 55.9 ± 1.2, b 55.9 ± 1.2 and c 55.9 ± 1.2.",
        ["Evaluated: a and b on 768", ", 4 masks each by exact_k, seed 17; c on 768 ", ", no masks, seed 17; ±"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_verdict(tmp_path, case):
    every, begins, parts = CASES[case]
    runs = []
    for name, (overrides, keys) in zip("abcdef", every, strict=False):
        keys = dict(keys)
        bound = keys.pop("bound", "nelbo")
        runs.append(make(tmp_path / name, experiment="mdlm", overrides=tuple(overrides), estimator=False, bound=bound))
        file = runs[-1] / "evaluations" / "00000450.json"
        table = json.loads(file.read_text())
        table["bounds"][bound]["value"] = keys.pop("value", 55.9)
        file.write_text(json.dumps(table | keys))
    data = collect(runs)
    said = " ".join([*data["verdict"], *data["conditions"]])
    assert said.startswith(begins)
    for part in parts:
        assert part in said
    assert ("cannot be compared" in said) != (COMPUTE in said) or len(runs) == 1


CHANCE = {"importance_chance": 0.1, "frequency_spearman": 0.4}


@pytest.mark.parametrize(("rho", "nothing"), [(0.21, False), (0.2, True), (-0.5, True), (None, True)])
def test_an_estimator_that_orders_tokens_no_better_than_chance_has_learned_nothing(tmp_path, rho, nothing):
    run = make(tmp_path / "a")
    file = run / "evaluations" / "00000450.json"
    table = json.loads(file.read_text())
    for more, expected in ((CHANCE, nothing), ({}, False)):  # without a chance it was not learned
        file.write_text(json.dumps(table | more | {"importance_spearman": rho}))
        assert ("estimator orders tokens no better than chance" in " ".join(collect([run])["verdict"])) == expected


def test_the_verdict_names_the_factorisation(tmp_path):
    runs = []
    for name, factorisation in (("a", "any-order ELBO"), ("b", "left to right, exact")):
        runs.append(make(tmp_path / name, estimator=False))
        file = runs[-1] / "evaluations" / "00000450.json"
        table = json.loads(file.read_text())
        table["bounds"]["nelbo"]["factorisation"] = factorisation
        file.write_text(json.dumps(table))
    said = collect(runs)["verdict"]
    assert said[0] == f"{NAME} (any-order ELBO): a 55.9 ± 1.2."
    assert said[1] == f"{NAME} (left to right, exact): b 55.9 ± 1.2."
    assert "a lower value need not mean a better model" in said[2]
