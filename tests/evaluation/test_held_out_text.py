"""`atat eval` with other bounds and other text."""

import json
import math
import shutil
from pathlib import Path

import pytest

from tests.evaluation.making import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    estimator = {"use": "transformer", "layers": 1, "width": 8, "heads": 2}
    return make_run(tmp_path_factory.mktemp("runs"), "it", "mdlm", estimator=estimator)


@pytest.fixture
def evaluated(atat, run):
    """Return what an evaluation prints as JSON."""

    def evaluate(*words):
        code, out, err = atat("eval", str(run), "--mask-samples", "8", "--json", *words)
        assert code == 0, err
        return json.loads(out)

    return evaluate


def test_other_estimators_of_one_model(atat, run, evaluated):
    assert evaluated("--bound", "continuous_t")["method"] == "continuous_t"
    discrete = evaluated("--bound", '{use = "discrete_t", steps = 2}')
    assert ("perplexity" in discrete, list(discrete["bounds"])) == (False, ["discrete T=2"])
    said = atat("eval", str(run), "--bound", '{use = "discrete_t", steps = 2}')[1]
    assert "discrete T=2 bound" in said
    assert not any(line.strip().startswith("perplexity") for line in said.splitlines())


def test_text_that_is_named_is_evaluated_as_a_whole(run, evaluated, tmp_path):
    text, folder = "the quick brown fox jumps over the lazy dog " * 4, tmp_path / "texts"
    folder.mkdir()
    (folder / "fox.txt").write_text(text)
    found = evaluated("--corpus", str(folder / "fox.txt"), "--sequences", "0")
    assert (found["corpus"], found["split"]) == ("texts/fox.txt", "all")
    assert found["tokens"] == found["bytes"] == found["characters"] == len(text)
    assert found["sequences"] == math.ceil(len(text) / 16)
    assert found["padding"] == found["sequences"] * 16 - len(text)
    assert 0 < found["words"] < len(text.split())
    nats = found["nats_per_token"] * found["tokens"]
    assert found["perplexity_per_word"] == pytest.approx(math.exp(nats / found["words"]))
    assert found["bits_per_character"] == pytest.approx(found["bits_per_byte"])
    assert list((run / "evaluations").glob("*-fox.txt-all-exact_k-*"))
    # A folder is the files in it.
    (folder / "b.jsonl").write_text(json.dumps({"text": text}) + "\n")
    found = evaluated("--corpus", str(folder), "--sequences", "0")
    assert (found["split"], found["characters"]) == ("all", 2 * len(text))


def test_a_part_of_a_text_is_not_called_all_of_it(atat, run, tmp_path):
    (tmp_path / "fox.txt").write_text("the quick brown fox " * 20)  # 25 sequences
    for words, said in (
        ((), "/fox.txt text: 8 sequences evenly spread over it (--sequences 0 evaluates all), 4 masks each by"),
        (("--sequences", "0"), "/fox.txt, all text: 25 sequences, 4 masks each by"),
        (("--sequences", "26"), "/fox.txt, all text: 25 sequences, 4 masks each by"),
    ):
        assert said in atat("eval", str(run), "--corpus", str(tmp_path / "fox.txt"), *words)[1]


def test_training_text_is_noted_by_its_content(atat, run, tmp_path):
    copy = Path(shutil.copy(run.parent / "texts" / "train.txt", tmp_path / "copy.txt"))
    changed = tmp_path / "changed.txt"
    changed.write_text(copy.read_text().replace("old", "new"))
    note = "copy.txt contains training text of {}, so its perplexity is lower than that of new text; pass text that the"
    for path, noted in ((copy, True), (changed, False), (run.parent / "texts" / "validation.txt", False)):
        code, _, err = atat("eval", str(run), "--corpus", str(path), "--sequences", "1", "--mask-samples", "1")
        assert (code, note.format(run) in err, "note" in err) == (0, noted, noted), err
    table = f"{{use = 'files', train = ['{copy}'], document = 'line'}}"
    code, _, err = atat("eval", str(run), "--corpus", table, "--sequences", "1")
    assert (code, err) == (0, ""), "what is evaluated of it is held out"


@pytest.mark.parametrize("words", [["eval"], ["importance"], ["eval", "--task", "{use = 'infilling', texts = 4}"]])
def test_a_result_that_cannot_be_kept_is_printed(atat, run, tmp_path, words):
    """The run is on a disk that is mounted for reading: here a file is in the way."""
    other = shutil.copytree(run, tmp_path / "read-only", ignore=shutil.ignore_patterns("evaluations"))
    (other / "evaluations").touch()
    expected, done = (atat(*words, str(each), "--json") for each in (run, other))
    assert json.loads(done[1]) | {"run": 0} == json.loads(expected[1]) | {"run": 0}
    assert done[2].startswith("note: this result is not saved in the run: ")
    assert done[2].count("\n") == 1


def test_mistakes_are_said_in_one_sentence(atat, run):
    for option, value, said in (
        ("--bound", "exactk", "did you mean 'exact_k'"),
        ("--bound", "{use = 'discrete_t', steps = 0}", "steps: must be at least 1, not 0"),
        ("--corpus", "no/such/file.txt", "no/such/file.txt: no file or corpus has this name"),
        ("--corpus", "sotuu", "did you mean 'sotu'?"),
    ):
        code, _, err = atat("eval", str(run), option, value)
        assert (code, err.count("\n"), said in err) == (2, 1, True)
