"""`atat judge`: what is printed, what is written, and what is said of mistakes."""

import json

import pytest

from atat_zoo.cli.judge_command import judge_of
from atat_zoo.evaluation import mauve
from atat_zoo.evaluation.judges import HuggingFaceJudge, RunJudge
from tests.cli.terminal import printed, refused
from tests.evaluation.making import runs

MAUVE = "{use = 'mauve', judge = {use = 'run', path = 'other'}}"


root = runs(
    judge={},
    text_generator={"objective": "mdlm", "sampler": {"use": "ancestral", "steps": 4}},
    other={"objective": "mdlm"},
    unfinished={},
)


@pytest.fixture
def atat(atat, monkeypatch, root):
    """Run the command in this process; returns exit code, standard output and standard error."""
    monkeypatch.chdir(root)
    return lambda *words, text_generator="text_generator": atat("judge", text_generator, *words)


@pytest.mark.slow
def test_a_table_with_the_held_out_text_beside_it(atat):
    out = printed(atat, "--judge", "judge", "--num-samples", "4")
    assert "4 texts of 16 tokens by ancestral, seed 0, step 3" in out
    assert "judge: judge (autoregressive, step 3)" in out
    lines = {line.split("  ")[0] for line in out.splitlines()}
    # The one is never printed without the other two.
    assert {"generative perplexity", "unigram entropy, nats", "NFE per text"} <= lines
    assert {"4-grams copied", "8-grams copied", "13-grams copied", "longest copy, tokens"} <= lines
    assert "MAUVE" not in out


def test_json_and_options(atat, root):
    words = (
        "--judge",
        "judge",
        "--num-samples",
        "3",
        "--length",
        "8",
        "--seed",
        "2",
        "--split",
        "test",
        "--ngram",
        "2",
    )
    said = json.loads(printed(atat, *words, "--sampler", "{use = 'ancestral', steps = 2}", "--json"))
    assert (said["run"], said["number"], said["length"], said["seed"], said["split"]) == (
        "text_generator",
        3,
        8,
        2,
        "test",
    )
    assert (said["sampler"]["use"], said["sampler"]["steps"], said["model"]["max_nfe"]) == ("ancestral", 2, 2)
    assert list(said["model"]["copied"]) == list(said["data"]["copied"]) == ["2"]
    written = [
        json.loads(path.read_text()) for path in (root / "text_generator" / "evaluations").glob("judged-*-seed2-*.json")
    ]
    assert written == [{key: value for key, value in said.items() if key != "run"}]
    assert json.loads(atat(*words, "sampler.steps=3", "--json")[1])["model"]["max_nfe"] == 3


@pytest.mark.slow
def test_mauve(atat):
    pytest.importorskip("mauve", reason="the extra atat-zoo[mauve] is not installed")
    out = printed(atat, "--judge", "judge", "--num-samples", "20", "--mauve")
    assert [line for line in out.splitlines() if line.startswith("MAUVE  ")]
    assert "MAUVE is not reliable on fewer than 1,000 texts." in out


def test_what_the_judge_may_be_called(root):
    assert judge_of("hf:openai-community/gpt2", root) == HuggingFaceJudge(model="openai-community/gpt2")
    assert judge_of("{use = 'huggingface', model = 'x', length = 8}", root) == HuggingFaceJudge(model="x", length=8)
    assert judge_of(str(root / "judge"), root) == RunJudge(path=str(root / "judge"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--judge", "nowhere"), "--judge nowhere: folder nowhere does not exist; pass the folder of a run, hf:NAME"),
        (("--judge", "text_generator"), "a run cannot judge its own text"),
        (("--judge", "other"), "the run other has the objective 'mdlm', which only bounds a text's likelihood"),
        (("--judge", "{use = 'run'}"), "judge.path: is missing"),
        (("--judge", "unfinished"), "unfinished has no final model yet"),
        (("--judge", "judge", "--length", "17"), "length 17 exceeds the model's maximum length, 16"),
        (("--judge", "judge", "--mauve", "--num-samples", "9"), "MAUVE needs at least 20 texts"),
        ((), "--judge"),
        (("--judge", "judge", "--mauve", "--num-samples", "500"), "lower --num-samples to 7"),
        # The metric by its name is held to the same.
        (("--judge", "judge", "--metric", MAUVE, "--num-samples", "9"), "MAUVE needs at least 20 texts"),
        (("--judge", "judge", "--metric", MAUVE, "--num-samples", "500"), "lower --num-samples to 7"),
    ],
)
def test_a_mistake_is_said_in_a_sentence(atat, root, words, sentence):
    (root / "unfinished" / "model" / "model.json").unlink(missing_ok=True)
    code, out, err = atat(*words)
    assert (code, "generative" in out, sentence in err) == (2, False, True)
    assert all(line.startswith("error: ") for line in err.splitlines()) or not words


def test_a_package_that_is_missing(atat, monkeypatch):
    monkeypatch.setattr(mauve, "find_spec", lambda name: None)
    assert "pip install 'atat-zoo[mauve]'" in refused(atat, "--judge", "judge", "--mauve", "--num-samples", "20")
