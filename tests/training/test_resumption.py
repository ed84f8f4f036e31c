"""What a run goes on from: a chosen checkpoint, more steps, an edited experiment, or nothing at all."""

import json
import shutil
import signal
import tomllib
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import tomli_w

from atat_zoo.experiment import load
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.system.errors import UserError
from atat_zoo.training import resume, train
from atat_zoo.training.resumption import _check_extends, record, resume_from
from tests.training import die_at, with_changed
from tests.training.test_resume import same, unfinished


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
    same(tiny, run.path, straight.path)
    assert run.resolved.read_bytes() == straight.resolved.read_bytes()
    found = json.loads(run.environment.read_text())
    (change,) = found.pop("changed")
    assert (change["train.steps"], change["after_step"]) == ([8, 13], 8)
    assert began.replace(microsecond=0) <= datetime.fromisoformat(change["when"]) <= datetime.now(UTC)
    assert found == environment
    # A second time; and what goes on with the steps that it has is not recorded.
    for _ in range(2):
        assert resume(run.path, overrides=["train.steps=14"]).step == 14
    changes = json.loads(run.environment.read_text())["changed"]
    assert [each["train.steps"] for each in changes] == [[8, 13], [13, 14]]


@pytest.mark.slow
def test_a_run_that_goes_on_is_not_finished_until_it_has_made_its_steps(tiny, tmp_path):
    run = trained(tiny, tmp_path / "run", "train.steps=3")
    # Killed before its next checkpoint, its last one is still that of a training of fewer steps.
    record(run, resume_from(run, ["train.steps=6"], print)[0], 3)
    stop = "if words[1].timestamp.batch == 4: os.kill(os.getpid(), signal.SIGTERM)\noriginal(*words)"
    code = with_changed("atat_zoo.training.composer_model:Progress.batch_start", stop)
    tiny.atat("train", "--resume", str(run.path), check=False, code=code)
    assert not run.model.exists()
    assert (run.newest(), run.table()["train"]["steps"]) == (5, 6)
    assert resume(run.path).step == 6
    assert tiny.weights(run.path) == tiny.weights(trained(tiny, tmp_path / "straight", "train.steps=6").path)


def begun(tiny, path, *words):
    """Return the folder of a run with a checkpoint of step 24, in which nothing is."""
    folder, experiment = RunFolder(path), load(str(tiny.path), words)
    folder.checkpoints.mkdir(parents=True)
    folder.resolved.write_text(experiment.to_toml())
    with folder.writing_checkpoint(24, 1) as checkpoint:
        checkpoint.write_bytes(b"")
    note = folder.checkpoints / "step-00000024.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"experiment": experiment.to_table()}))
    return folder


FALLING = "schedule={{use='{}', warmup_steps=4}}"
BELL = ("mask_rates.use=logit_normal", "mask_rates.uniform_share=0.5", "curriculum.use=none")


@pytest.mark.parametrize(
    ("words", "override", "said"),
    [
        (
            (),
            "train={steps=30, max_grad_norm=2}",
            "^train.max_grad_norm changed from 1.0 to 2.0 on the command line: .* only change .* such as "
            "train.microbatch_size, train.sharding and data.workers; remove it, or start another run with init_from=",
        ),
        ((), "train.steps=24", ""),
        ((), "train.steps=30", ""),
        ((), "train.steps=20", "train.steps = 20: .*has already been trained for 24 steps; choose a larger"),
        (
            ("train.steps=30",),
            "train.steps=24",
            "train.steps = 24: .*has already been trained for 24 steps; choose a larger",
        ),
        ((FALLING.format("cosine"),), "train.steps=30", "after 24 of 24 steps, .* differs from a run of 30"),
        (("curriculum.use=three_stage",), "train.steps=30", "because curriculum 'three_stage' depends on the number"),
        (
            (*BELL, "mask_rates.uniform_until=0.2"),
            "train.steps=30",
            "because mask_rates 'logit_normal' depends on the number of steps",
        ),
        (BELL, "train.steps=30", ""),
        ((), "train.compile=auto", ""),
        ((), "train.max_grad_norm=1.0", ""),  # the run's
        ((), "name=other", "name changed from .* to 'other' on the command line: "),
    ],
)
def test_what_may_change_on_the_command_line(tiny, tmp_path, words, override, said):
    folder = begun(tiny, tmp_path / "run", *words)
    before = folder.resolved.read_bytes()
    if said:
        with pytest.raises(UserError, match=said.replace("'", ".")):
            resume_from(folder, [override], print)
    else:
        experiment, last = resume_from(folder, [override], print)
        key = override.partition("=")[0]
        assert (f"{key}={getattr(experiment.train, key.removeprefix('train.'))}", last.step) == (override, 24)
    shutil.rmtree(folder.checkpoints)
    if override == "train.steps=30":
        with pytest.raises(UserError, match=r"train.steps: .* has no checkpoint to resume from; .* --overwrite"):
            resume_from(folder, [override], print)
    assert folder.resolved.read_bytes() == before


def test_what_changed_since_the_checkpoint_is_told_or_refused(tiny, tmp_path):
    folder, told = begun(tiny, tmp_path / "run"), []
    text = folder.resolved.read_text()
    folder.resolved.write_text(text.replace("save_every = 5", "save_every = 3"))
    assert resume_from(folder, [], told.append)[1].step == 24
    assert told == ["since step 24: train.save_every changed from 5 to 3"]
    folder.resolved.write_text(text.replace("lanes = 4", "lanes = 8"))
    with pytest.raises(UserError, match=r"at step 24 \(data.lanes changed from 4 to 8\); restore this file"):
        resume_from(folder, [], told.append)
    with pytest.raises(UserError, match=r"--step 7: .* has no complete checkpoint at this step; choose one .*: 24$"):
        resume_from(folder, [], told.append, step=7)
    shutil.rmtree(folder.checkpoints)
    assert resume_from(folder, [], told.append)[1] is None
    with pytest.raises(UserError, match="it has no checkpoint yet; omit --step"):
        resume_from(folder, [], told.append, step=7)


@pytest.mark.slow
def test_a_finished_run_whose_experiment_was_edited_is_refused_and_stays(tiny, uninterrupted):
    folder = tiny.root / "edited"
    shutil.copytree(uninterrupted, folder)
    edited = tomllib.loads((folder / "resolved.toml").read_text())
    edited["noise"]["use"] = "cosine"
    edited["data"]["transforms"] = [{"use": "random_length", "probability": 0.5}]
    (folder / "resolved.toml").write_text(tomli_w.dumps(edited))
    said = tiny.atat("train", "--resume", folder.name, check=False)
    assert said.returncode == 2
    changed = "noise.use changed from 'linear' to 'cosine', data.transforms changed from [] to [{'use': "
    assert f"checkpoint at step 24 ({changed}" in said.stderr
    same(tiny, folder, uninterrupted)  # nothing is cut


@pytest.mark.slow
def test_what_changes_no_weight_may_be_edited(tiny, uninterrupted):
    folder = unfinished(tiny, uninterrupted, "edited-freely")
    shutil.copytree(tiny.root / "shards", tiny.root / "moved")
    edited = tomllib.loads((folder / "resolved.toml").read_text())
    edited["data"] |= {"root": str(tiny.root / "moved")}
    edited["train"] |= {"save_every": 3, "evaluate_every": 2, "loggers": [{"use": "file"}]}
    edited["sampler"]["steps"] = 2
    (folder / "resolved.toml").write_text(tomli_w.dumps(edited))
    said = tiny.atat("train", "--resume", folder.name, "data.workers=2", "seed=5").stdout  # the seed is the run's
    assert "since step 20: sampler.steps changed from 4 to 2, data.root " in said
    assert "data.workers changed from 0 to 2" in said
    assert RunFolder(folder).table()["data"]["workers"] == 2
    (change,) = json.loads((folder / "environment.json").read_text())["changed"]
    assert (change["data.workers"], change["after_step"]) == ([0, 2], 20)
    assert tiny.weights(folder.name) == tiny.weights(uninterrupted)
    # Then it is finished, and goes on to nothing.
    tiny.atat("train", "--resume", folder.name, "train.microbatch_size=8")
    assert tiny.weights(folder.name) == tiny.weights(uninterrupted)


@pytest.mark.slow
def test_a_chosen_checkpoint_is_continued_from_and_those_after_it_are_deleted(tiny, uninterrupted):
    """Of a finished run; when it is killed, that checkpoint is its newest."""
    folder = tiny.root / "chosen"
    shutil.copytree(uninterrupted, folder)
    refused = tiny.atat("train", "tiny.toml", "--step", "20", check=False)
    assert (refused.returncode, "--step only works with --resume; add" in refused.stderr) == (2, True)
    killed = tiny.atat("train", "--resume", "chosen", "--step", "20", check=False, code=die_at(20))
    assert killed.returncode == -signal.SIGKILL
    assert "deleted the checkpoints after step 20: 24" in killed.stdout
    assert "continuing chosen after step 20 of 24" in tiny.atat("train", "--resume", "chosen").stdout
    same(tiny, "chosen", uninterrupted)
    kept = sorted(path.name for path in (folder / "checkpoints").glob("*.pt"))
    assert kept == [f"step-{step:08d}.pt" for step in (20, 24)]


def test_a_change_of_steps_is_recorded_once_however_often_it_is_killed_behind_the_line(tiny, tmp_path):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    few, more = (load(str(tiny.path), [f"train.steps={steps}"]) for steps in (3, 6))
    run.resolved.write_text(few.to_toml())
    run.environment.write_text('{"ranks": 1}')
    for _ in range(2):
        record(run, more, 3)
        assert run.table()["train"]["steps"] == 6
        run.resolved.write_text(few.to_toml())  # killed before that was written
    found = json.loads(run.environment.read_text())
    assert found["ranks"] == 1
    assert [(each["train.steps"], each["after_step"]) for each in found["changed"]] == [([3, 6], 3)]
    record(run, few, 3)
    assert json.loads(run.environment.read_text()) == found, "nothing has changed"
    run.model.mkdir()
    record(run, load(str(tiny.path), ["train.steps=3", "data.workers=2"]), 3)
    assert run.table()["data"]["workers"] == 2
    assert run.model.exists(), "it is still the final one"
    record(run, more, 5)
    assert not run.model.exists()
    assert [each["after_step"] for each in json.loads(run.environment.read_text())["changed"]] == [3, 3, 5]


def test_a_part_that_does_not_say_what_more_steps_change_may_go_on_unless_it_is_a_schedule():
    experiment = SimpleNamespace(train=SimpleNamespace(steps=5), kinds=("masking",))
    experiment.parts = dict.fromkeys(("masking", "schedule"), SimpleNamespace(name="own"))
    _check_extends(experiment, SimpleNamespace(path="run"), 1, 3)
    experiment.kinds = ("masking", "schedule")
    with pytest.raises(
        UserError, match=r"^train.steps = 5: .* because schedule 'own' depends on the number of steps; start"
    ):
        _check_extends(experiment, SimpleNamespace(path="run"), 1, 3)
