"""`atat eval` with other bounds and other text, on a model that was trained a little."""

import json
import math
import shutil

import pytest

pytestmark = pytest.mark.slow


def evaluated(tiny, run, *words):
    return json.loads(tiny.atat("eval", str(run), "--draws", "64", "--json", *words).stdout)


def test_other_estimators_of_one_model(tiny, trained):
    assert evaluated(tiny, trained, "--bound", "continuous_t")["method"] == "continuous_t"
    discrete = evaluated(tiny, trained, "--bound", '{use = "discrete_t", steps = 2}')
    assert "perplexity" not in discrete
    assert list(discrete["bounds"]) == ["discrete T=2"]
    said = tiny.atat("eval", str(trained), "--bound", '{use = "discrete_t", steps = 2}').stdout
    assert "discrete T=2 bound" in said
    assert not any(line.strip().startswith("perplexity") for line in said.splitlines())


def test_text_that_is_named_is_evaluated_as_a_whole(tiny, trained, tmp_path):
    text = "the quick brown fox jumps over the lazy dog " * 4
    (tmp_path / "fox.txt").write_text(text)
    found = evaluated(tiny, trained, "--corpus", str(tmp_path / "fox.txt"), "--sequences", "0")
    assert (found["corpus"], found["split"]) == (f"{tmp_path.name}/fox.txt", "all")
    assert found["tokens"] == found["bytes"] == found["characters"] == len(text)
    assert found["sequences"] == math.ceil(len(text) / 16)
    assert found["padding"] == found["sequences"] * 16 - len(text)
    assert 0 < found["words"] < len(text.split())
    nats = found["nats_per_token"] * found["tokens"]
    assert found["perplexity_per_word"] == pytest.approx(math.exp(nats / found["words"]))
    assert found["bits_per_character"] == pytest.approx(found["bits_per_byte"])
    assert list((trained / "evaluations").glob("*-fox.txt-all-exact_k-*"))


@pytest.mark.parametrize("words", [["eval"], ["importance"], ["eval", "--task", "{use = 'infilling', texts = 4}"]])
def test_a_result_that_cannot_be_kept_is_printed(tiny, trained, words):
    """The run is on a disk that is mounted for reading: here a file is in the way."""
    run = tiny.root / "read-only"
    if not run.exists():
        shutil.copytree(trained, run, ignore=shutil.ignore_patterns("evaluations"))
        (run / "evaluations").touch()
    expected = tiny.atat(*words, str(trained), "--json")
    done = tiny.atat(*words, str(run), "--json")
    assert json.loads(done.stdout) | {"run": 0} == json.loads(expected.stdout) | {"run": 0}
    assert done.stderr.startswith("note: this result is not kept in the run: ")
    assert done.stderr.count("\n") == 1


def test_a_folder_is_the_files_in_it(tiny, trained, tmp_path):
    text = "the quick brown fox jumps over the lazy dog "
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text(text * 2)
    (tmp_path / "texts/b.jsonl").write_text(json.dumps({"text": text}) + "\n")
    found = evaluated(tiny, trained, "--corpus", str(tmp_path / "texts"), "--sequences", "0")
    assert (found["split"], found["characters"]) == ("all", 3 * len(text))


def test_mistakes_are_said_in_one_sentence(tiny, trained):
    for option, value, said in (
        ("--bound", "exactk", "did you mean 'exact_k'"),
        ("--bound", "{use = 'discrete_t', steps = 0}", "steps: must be at least 1, not 0"),
        ("--corpus", "no/such/file.txt", "no/such/file.txt: there is no such file and no corpus of that name"),
        ("--corpus", "sotuu", "did you mean 'sotu'?"),
    ):
        done = tiny.atat("eval", str(trained), option, value, check=False)
        assert (done.returncode, done.stderr.count("\n"), said in done.stderr) == (2, 1, True)
