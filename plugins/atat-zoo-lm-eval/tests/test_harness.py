"""The harness itself runs tasks of local files with a run."""

import functools
import json
import math
import sys
from pathlib import Path

import datasets
import pytest
from atat_zoo_lm_eval import RunLM
from atat_zoo_lm_eval.__main__ import main
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from atat_zoo.cli import run as run_command
from atat_zoo.system.errors import UserError

TASKS = Path(__file__).parent / "tasks"


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Stand where the tasks look for their file, and keep what `datasets` writes in a folder of the test."""
    monkeypatch.chdir(TASKS)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def evaluated(run, *tasks, **options):
    return simple_evaluate(
        model="atat_zoo",
        model_args={"run": str(run), "sampler": "klass", "mask_samples": 8},
        tasks=list(tasks),
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        bootstrap_iters=0,
        **options,
    )


def test_tasks_of_all_kinds_run_on_local_files(run, offline):
    found = evaluated(run, "circle_choice", "circle_write", "circle_text", batch_size=4)
    results = found["results"]
    assert results["circle_choice"]["acc,none"] == 1
    assert results["circle_write"]["exact_match,none"] == 1
    # The harness counts words and bytes, and sums what the model returns.
    texts = [json.loads(line)["text"] for line in (TASKS / "circle.jsonl").read_text().splitlines()]
    rolling = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in texts]
    nats = -math.fsum(RunLM(run, mask_samples=8).loglikelihood_rolling(rolling, disable_tqdm=True))
    assert results["circle_text"]["bits_per_byte,none"] == pytest.approx(
        nats / math.log(2) / sum(map(len, texts)), abs=1e-5
    )
    assert results["circle_text"]["word_perplexity,none"] == pytest.approx(math.exp(nats / len(texts)), rel=1e-4)
    assert "lower bounds" in found["config"]["atat_zoo"]["note"]
    again = evaluated(run, "circle_text", "circle_choice", batch_size=1)["results"]
    for metric in ("bits_per_byte,none", "word_perplexity,none"):
        assert again["circle_text"][metric] == pytest.approx(results["circle_text"][metric], rel=1e-4)


def test_a_run_is_no_chat(run, offline):
    with pytest.raises(UserError, match="does not support chat templates; leave out --apply_chat_template"):
        evaluated(run, "circle_choice", apply_chat_template=True)


@pytest.fixture
def command(offline, monkeypatch):
    """Give a command line to the harness, which reads all tasks that it comes with unless it is told not to."""
    few = functools.partialmethod(TaskManager.__init__, include_defaults=False)
    monkeypatch.setattr(TaskManager, "__init__", few)
    # Its handler would write to this test's stream after the test.
    monkeypatch.setattr("lm_eval.__main__.setup_logging", lambda: None)

    def run_with(**model_args):
        given = ",".join(f"{key}={value}" for key, value in model_args.items())
        words = ["run", "--model", "atat_zoo", "--include_path", str(TASKS), "--tasks", "circle_text"]
        monkeypatch.setattr(sys, "argv", ["lm_eval", *words, "--batch_size", "4", "--model_args", given])
        with pytest.raises(SystemExit) as ended:
            run_command(main, "lm_eval")
        return ended.value.code

    return run_with


def test_the_command_line_prints_the_table_and_what_it_is(run, command, capsys):
    RunLM.notes.clear()
    assert command(run=run, sampler="klass", mask_samples=8) == 0
    table, _, note = capsys.readouterr().out.rpartition("atat_zoo, ")
    assert "word_perplexity" in table
    assert "up to 8 masks (seed 0)" in note
    assert note.rstrip().endswith("is exp of an upper bound on the NLL")


def test_bad_input_is_a_sentence(command, tmp_path, capsys):
    assert command(run=tmp_path / "none") == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith(f"error: {tmp_path / 'none'} is not a run folder")
