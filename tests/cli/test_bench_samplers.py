"""`atat bench samplers`: which samplers are measured, what is printed, and what counts as equally good."""

import json
import re
from collections import defaultdict

import pytest

from tests.cli.terminal import printed, refused
from tests.evaluation.making import make_run


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    made = tmp_path_factory.mktemp("bench")
    make_run(made, "judge")
    make_run(made, "text_generator", "mdlm")
    return made


@pytest.fixture
def bench(atat, monkeypatch, root):
    """Run the command in this process; returns exit code, standard output and standard error."""
    monkeypatch.chdir(root)
    return lambda *words, text_generator="text_generator": atat("bench", "samplers", text_generator, *words)


@pytest.mark.slow
def test_every_named_sampler_at_every_number_of_steps(bench, root):
    table = json.loads(
        printed(bench, "--judge", "judge", "--num-samples", "2", "--steps", "2", "--steps", "4", "--json")
    )
    rows = table["measured"]
    assert (rows[0]["name"], rows[0]["steps"], rows[0]["time"], rows[0]["as_good"]) == ("ancestral", 4, 1.0, True)
    assert [row["steps"] for row in rows if row["name"] == "uncertainty_guided"] == [2, 4]
    assert all(row["max_nfe"] <= row["steps"] for row in rows if row["steps"] and row["name"] == "ancestral")
    # What the model cannot do is said, and what is a combination of the person's own is not a named sampler.
    assert "reverse weights" in table["refused"]["learned_order"]
    assert not {"learned_order", "combination"} & {row["name"] for row in rows}
    (record,) = (root / "text_generator" / "evaluations").glob("samplers-2x*.json")
    assert json.loads(record.read_text())["measured"] == rows
    # Another bench is another file.
    bench("--num-samples", "2", "--steps", "2", "--sampler", "klass", "--json")
    assert len(list((root / "text_generator" / "evaluations").glob("samplers-2x*.json"))) == 2


def test_without_a_judge_nothing_is_said_of_the_text_but_its_variety(bench):
    out = printed(bench, "--num-samples", "2", "--steps", "2", "--sampler", "klass")
    assert "no judge: pass --judge" in out
    assert not any(words in out for words in ("perplexity", "as good"))
    # What it is held against is there without being named.
    lines = out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("sampler "))
    assert [line.split()[:2] for line in lines[head + 1 : head + 3]] == [["ancestral", "2"], ["klass", "2"]]


def test_the_likelihood_of_held_out_text_under_a_sampler(bench):
    words = ("--num-samples", "2", "--steps", "2", "--sampler", "margin", "--sampler", "maskgit", "--sequences", "5")
    said = json.loads(printed(bench, *words, "--orders", "3", "--json"))
    assert (said["sequences"], said["orders"]) == (5, 3)
    first, margin, maskgit = said["measured"]
    assert (first["policy"]["quantity"], first["policy"]["orders"]) == ("policy bound", 3)
    assert (margin["policy"]["quantity"], margin["policy"]["orders"]) == ("policy likelihood", 1)
    assert first["policy_difference"] is None
    nats = [row["policy"]["nats_per_token"] for row in (first, margin)]
    assert margin["policy_difference"] == pytest.approx(nats[1] - nats[0])
    assert margin["policy_difference_stderr"] > 0
    assert maskgit["policy"] is None
    assert maskgit["unpriced"] == "it uses the sampled tokens to choose their positions"

    _, out, _ = bench(*words, "--orders", "3")
    lines: dict[str, str] = defaultdict(str)  # of a sampler, over the pieces of a wide table
    for line in filter(None, out.splitlines()):
        lines[line.split()[0]] += line
    assert f"{nats[0]:.3f} ± " in lines["ancestral"]
    assert "≤" in lines["ancestral"]
    assert f"{nats[1] - nats[0]:+.3f} ± " in lines["margin"]
    assert "= " in lines["margin"]
    assert lines["maskgit"].count("—") == 4
    assert "no policy bound (—): maskgit: it uses the sampled tokens to choose" in out
    assert "5 validation sequences" in out
    assert "a bound from the probability averaged over 3 orders" in out
    assert "policy" not in bench("--num-samples", "2", "--steps", "2", "--sampler", "margin", "--sequences", "0")[1]


def test_a_model_that_takes_no_ancestral_sampler(bench):
    words = ("--num-samples", "2", "--steps", "2", "--sampler", "left_to_right", "--sequences", "3")
    code, out, err = bench(*words, text_generator="judge")
    assert (code, err, "left out: ancestral" in out) == (0, "", True)
    first = json.loads(bench(*words, "--json", text_generator="judge")[1])["measured"][0]
    assert first["policy"]["quantity"] == "policy likelihood"


def test_settings_of_ones_own_as_markdown(bench):
    own = "{use = 'ancestral', steps = 3, temperature = 0.5}"
    words = ("--num-samples", "2", "--steps", "4", "--sampler", "ancestral", "--sampler", own, "--markdown")
    out = printed(bench, "--judge", "judge", *words)
    lines = [line for line in out.splitlines() if line.startswith("|")]
    assert len(lines) == 4
    assert lines[2].startswith("| ancestral | 4 |")
    assert lines[3].startswith(f"| {own} |  |")
    # A generative perplexity never stands without the entropy and NFE.
    assert all(word in lines[0] for word in ("NFE", "generative perplexity", "entropy"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--judge", "judge", "--sampler", "learned_order"), "--sampler learned_order: .*reverse weights"),
        (("--judge", "judge", "--sampler", "ancestrall"), "did you mean 'ancestral'"),
    ],
)
def test_what_is_refused(bench, words, message):
    assert re.search(message, refused(bench, *words))
