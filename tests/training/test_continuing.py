"""A run that is trained longer is the run that was begun with as many steps, or is refused."""

import json
import shutil
from datetime import UTC, datetime

import pytest

from atat_zoo.errors import UserError
from atat_zoo.experiment import load
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.training import resume, train
from atat_zoo.training.resumption import continued, record


def trained(tiny, out, *words):
    return train(load(str(tiny.path), words), out).folder


@pytest.mark.slow
def test_a_finished_run_goes_on_as_if_it_had_been_begun_with_more_steps(tiny, tmp_path):
    """Every part with a state is switched on; and the longer run is interrupted once."""
    straight = trained(tiny, tmp_path / "straight", "train.steps=13")
    run = trained(tiny, tmp_path / "run", "train.steps=8")
    began, environment = datetime.now(UTC), json.loads(run.environment.read_text())
    said = tiny.atat("train", "--resume", str(run.path), "train.steps=13").stdout
    assert f"continuing {run.path} after step 8 of 13" in said
    assert tiny.losses(run.path) == tiny.losses(straight.path)
    assert tiny.weights(run.path) == tiny.weights(straight.path)
    assert run.resolved.read_bytes() == straight.resolved.read_bytes()
    record = json.loads(run.environment.read_text())
    (change,) = record.pop("changed")
    assert (change["train.steps"], change["after_step"]) == ([8, 13], 8)
    assert began.replace(microsecond=0) <= datetime.fromisoformat(change["when"]) <= datetime.now(UTC)
    assert record == environment
    # A second time; and what goes on with the steps that it has is not recorded.
    for _ in range(2):
        assert resume(run.path, overrides=["train.steps=14"]).step == 14
    changes = json.loads(run.environment.read_text())["changed"]
    assert [each["train.steps"] for each in changes] == [[8, 13], [13, 14]]


@pytest.mark.slow
def test_a_run_that_goes_on_is_not_finished(tiny, tmp_path):
    """Until it has made its steps; stopped before, it goes on to them."""
    run = trained(tiny, tmp_path / "run", "train.steps=6")
    code = (
        "import os, signal\nfrom atat_zoo.training.composer_model import Progress\nbefore = Progress.batch_start\n"
        "def batch_start(self, state, logger):\n"
        "    if int(state.timestamp.batch) == 7: os.kill(os.getpid(), signal.SIGTERM)\n"
        "    before(self, state, logger)\n"
        "Progress.batch_start = batch_start\nfrom atat_zoo.cli import main\nmain()"
    )
    tiny.atat("train", "--resume", str(run.path), "train.steps=9", check=False, code=code)
    assert not run.model.exists()
    assert (run.newest(), run.table()["train"]["steps"]) == (8, 9)
    assert resume(run.path).step == 9
    straight = trained(tiny, tmp_path / "straight", "train.steps=9")
    assert tiny.weights(run.path) == tiny.weights(straight.path)


@pytest.mark.slow
def test_one_that_is_killed_before_its_next_checkpoint_goes_on(tiny, tmp_path):
    """Its last checkpoint is still that of a training of fewer steps."""
    run = trained(tiny, tmp_path / "run", "train.steps=3")
    record(run, continued(run, ["train.steps=5"], print)[0], 3)
    assert resume(run.path).step == 5
    run.resolved.write_text(run.resolved.read_text().replace('use = "constant"', 'use = "linear"', 1))
    with pytest.raises(UserError, match="is not what the checkpoint of step 5 was trained with"):
        resume(run.path)


def finished(tiny, uninterrupted, folder, *words):
    """Return a copy of a finished run as if it had had other settings."""
    shutil.copytree(uninterrupted, folder)
    experiment = load(str(tiny.path), words)
    (folder / "resolved.toml").write_text(experiment.to_toml())
    for note in (folder / "checkpoints").glob("*.json"):
        note.write_text(json.dumps(json.loads(note.read_text()) | {"experiment": experiment.to_table()}))
    return folder


FALLING = "schedule={{use='{}', warmup_steps=4}}"
BELL = ("rates.use=bell", "rates.uniform_share=0.5", "curriculum.use=none")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "override", "said"),
    [
        ((), "train={steps=30, clip=2}", "begun, but for train.steps; leave it out, or begin another run with init_f"),
        ((), "train.steps=many", "'train.steps=many' on the command line: train.steps: expected int"),
        ((), "train.steps=24", ""),
        ((), "train.steps=30", ""),
        ((), "train.steps=20", "train.steps = 20: .*has made 24 steps already; choose more"),
        ((FALLING.format("cosine"),), "train.steps=30", "after 24 of 24 steps, .* is not what a training of 30 would"),
        ((FALLING.format("wsd"),), "train.steps=30", "been: schedule 'wsd' follows the number of steps; begin another"),
        (("curriculum.use=three_stage",), "train.steps=30", "been: curriculum 'three_stage' follows the number"),
        ((*BELL, "rates.uniform_until=0.2"), "train.steps=30", "been: rates 'bell' follows the number of steps"),
        (BELL, "train.steps=30", ""),
    ],
)
def test_what_may_change(tiny, uninterrupted, tmp_path, words, override, said):
    folder = RunFolder(finished(tiny, uninterrupted, tmp_path / "run", *words))
    before = folder.resolved.read_bytes()
    if said:
        with pytest.raises(UserError, match=said.replace("'", ".")):
            continued(folder, [override], print)
    else:
        assert str(continued(folder, [override], print)[0].train.steps) in override
    assert folder.resolved.read_bytes() == before
    assert (folder.model / "model.json").exists()


@pytest.mark.slow
def test_without_a_checkpoint_there_is_nothing_to_go_on_from(tiny, uninterrupted, tmp_path):
    folder = finished(tiny, uninterrupted, tmp_path / "run")
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(UserError, match=r"train.steps: .* has no checkpoint to go on from; .* --overwrite"):
        resume(folder, overrides=["train.steps=30"])
    assert (folder / "model").exists()
