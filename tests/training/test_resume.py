"""An interrupted run continues bit for bit: killed, asked to stop, or in the middle of a checkpoint."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import tomli_w

from tests import forked

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # of workers
]

COMPOSER = str(Path(sys.executable).with_name("composer"))

# Kills its own process with a checkpoint half written: after `good` checkpoints, in the middle of the next.
KILL_IN_CHECKPOINT = """
import os, signal, sys
import composer.utils.checkpoint as checkpoint
whole, good = checkpoint._write_checkpoint_file, [0]
def half(state, filename):
    whole(state, filename)
    good[0] += 1
    if good[0] > 2:
        os.truncate(filename, os.path.getsize(filename) // 2)
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint._write_checkpoint_file = half
from atat_zoo.cli import main
main()
"""


# Kills its own process when so many steps have been made.
DIE = """
import os, signal
from atat_zoo.training import composer_model
before = composer_model.Progress.before_train_batch
def die(self, state, logger):
    if state.timestamp.batch == {step}:
        os.kill(os.getpid(), signal.SIGKILL)
    before(self, state, logger)
composer_model.Progress.before_train_batch = die
from atat_zoo.cli import main
main()
"""


def wait_for_step(path, step, process):
    """Wait until a run has recorded a step."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        lines = path.read_text().splitlines() if path.is_file() else []
        if any(json.loads(line)["step"] >= step for line in lines if line.endswith("}")):
            return
        time.sleep(0.01)
    raise AssertionError(f"no step {step} in {path}")


def start(tiny, run, *words):
    """Begin a training that is slow enough to be caught."""
    return forked.Atat(["train", str(tiny.path), "--out", run, *words], tiny.root, merged=True)


def two_ranks(tiny, *words):
    """Begin `atat train …` on two ranks."""
    return forked.ranks(2, ["train", *words], tiny.root)


def killed(ranks):
    """Wait until the first rank has killed itself, and kill the others."""
    assert ranks[0].wait(120)
    for rank in ranks:
        rank.kill()
    assert ranks[0].returncode == -signal.SIGKILL


def same(tiny, run, reference):
    """Assert that two runs recorded the same figures and ended with the same weights."""
    assert tiny.losses(run) == tiny.losses(reference)
    assert tiny.weights(run) == tiny.weights(reference)


def test_sigkill_at_a_random_step(tiny, uninterrupted):
    """Its loader's workers live on for seconds, and who restarts it does so at once."""
    run = "killed"
    process = start(tiny, run, "data.workers=2")
    wait_for_step(tiny.root / run / "metrics.jsonl", random.Random(2).randrange(6, 20), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tiny.root / run / "model").exists()
    said = tiny.atat("train", "--resume", run).stdout
    assert "continuing" in said
    same(tiny, run, uninterrupted)


def killed_and_resumed(tiny, run, reference, *words):
    """Assert that a training which is killed while it writes a checkpoint, and resumed, is as the reference."""
    killed = tiny.atat("train", *words, "--out", run, check=False, code=KILL_IN_CHECKPOINT)
    assert killed.returncode == -signal.SIGKILL
    tiny.atat("train", "--resume", run)
    same(tiny, run, reference)


def test_sigkill_while_a_checkpoint_is_written(tiny, uninterrupted):
    killed_and_resumed(tiny, "half", uninterrupted, str(tiny.path))


# Masks, weights and scores that follow what is shown, which the estimator reads, too; and stages. The first two epochs
# hold no more than 32 sequences of a lane, so that some begin on both sides of the kill.
SHOWN = (
    'estimator={use="transformer", layers=1, width=16, heads=2, reads="z"}',
    'masking={use="reveal"}',
    'curriculum={use="planner_aware"}',
    "backbone.neighbours=2",
    "data.workers=1",
)
STAGES = 'data.stages=[{use="random_length", share=0.3}, {use="repetition", n=2, distinct=0.9}]'


def test_stages_and_masks_that_follow_what_is_shown_go_on(tiny):
    reference = tiny.train("staged", *SHOWN, STAGES)
    assert tiny.losses(reference) != tiny.losses(tiny.train("unstaged", *SHOWN))
    killed_and_resumed(tiny, "staged-killed", reference, str(tiny.path), *SHOWN, STAGES)


def unfinished(tiny, uninterrupted, run, step=20):
    """Return a copy of the run as if it had been killed after a step."""
    folder = tiny.root / run
    shutil.copytree(uninterrupted, folder)
    shutil.rmtree(folder / "model")
    for path in (folder / "checkpoints").glob("step-*"):
        if int(path.stem.removeprefix("step-")) > step:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder


def test_damage_that_prevents_no_resume(tiny, uninterrupted):
    """Of the newest checkpoint, before which there is another; of records; and of what only informs."""
    folder = unfinished(tiny, uninterrupted, "damaged", step=24)
    newest = folder / "checkpoints" / "step-00000024.pt"
    os.truncate(newest, newest.stat().st_size // 2)
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    (folder / "metrics.jsonl").write_bytes(b"\n".join([*lines[:10], b"\xff\xfe", *lines[10:]]) + b"\n")
    (folder / "environment.json").write_text('{"computes": {"device": "cpu"}}')
    said = tiny.atat("train", "--resume", folder.name).stdout
    assert "continuing damaged after step 20 of 24" in said
    assert "metrics.jsonl: line 11 is damaged; the file is kept" in said
    assert "environment.json does not say with which device, precision, ranks the run began" in said
    same(tiny, folder.name, uninterrupted)


# Kills its own process when it would give a file its name, after so many that have theirs.
BEGIN_AND_DIE = """
import os, pathlib, signal
left = [{after}]
def dying(self, target):
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    os.replace(self, target)
pathlib.Path.replace = dying
from atat_zoo.cli import main
main()
"""


@pytest.mark.parametrize("after", [0, 1])
def test_a_run_that_was_killed_when_it_began_has_not_begun(tiny, after):
    run, words = f"stillborn-{after}", ("train.steps=2", "evaluation.samples=0")
    code = BEGIN_AND_DIE.format(after=after)
    killed = tiny.atat("train", str(tiny.path), "--out", run, *words, check=False, code=code)
    assert killed.returncode == -signal.SIGKILL
    assert list(tiny.losses(tiny.train(run, *words))) == [1, 2]
    assert not list((tiny.root / run).rglob("*.part"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop(tiny, uninterrupted, number):
    run = f"stopped-{number}"
    process = start(tiny, run)
    wait_for_step(tiny.root / run / "metrics.jsonl", 7, process)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, said
    assert f"continue with: atat train --resume {run}" in said
    assert "Traceback" not in said
    if number == signal.SIGTERM:
        tiny.atat("train", "--resume", run)
        same(tiny, run, uninterrupted)


def test_two_ranks_killed(tiny, uninterrupted):
    """Bit-identical to two ranks that were not killed, and close to one rank."""
    words = [str(tiny.path), "train.steps=9", "train.save_every=4"]
    for rank in two_ranks(tiny, *words, "--out", "two"):
        said, _ = rank.communicate()
        assert rank.returncode == 0, said
    killed(forked.ranks(2, ["train", *words, "--out", "two-killed"], tiny.root, code=DIE.format(step=6)))
    for rank in two_ranks(tiny, "--resume", "two-killed"):
        said, _ = rank.communicate()
        assert rank.returncode == 0, said
    same(tiny, "two-killed", tiny.root / "two")
    # The order of summation differs, and with it a mask now and then, where u is within rounding of p.
    one, two = tiny.losses(uninterrupted), tiny.losses("two")
    assert list(two) == list(range(1, 10))
    assert [two[s]["loss"] for s in two] == pytest.approx([one[s]["loss"] for s in two], rel=2e-2)


def test_two_ranks_go_on_as_one_and_as_two_again(tiny):
    """With the same samples and masks, and the same curve but for rounding; the message says so."""
    words = ("train.steps=9", "train.save_every=3", "train.checkpoints_kept=3")
    for rank in two_ranks(tiny, str(tiny.path), "--out", "two-always", *words):
        rank.communicate()
    as_one = unfinished(tiny, tiny.root / "two-always", "as-one", step=3)
    said = tiny.atat("train", "--resume", as_one.name).stdout
    assert "not bit for bit what it would have been: ranks 2 is now 1" in said
    assert "continuing as-one after step 3" in said
    as_two = unfinished(tiny, as_one, "as-two", step=6)
    said = [rank.communicate()[0] for rank in two_ranks(tiny, "--resume", as_two.name)]
    assert "continuing as-two after step 6" in said[0]
    always, changing = tiny.losses("two-always"), tiny.losses(as_two)
    assert always.keys() == changing.keys()
    for step, line in always.items():
        assert changing[step]["loss"] == pytest.approx(line["loss"], rel=1e-3), step
        assert changing[step]["mask_rate"] == pytest.approx(line["mask_rate"], abs=1e-6), step
        # What is a function of seed and step is equal to the bit, such as the rates that were drawn.
        for name in ("learning_rate", "mask_rates", "tokens", "stage"):
            assert changing[step][name] == line[name], (step, name)


# A head whose logits come a few positions at a time, as with a large vocabulary.
IN_CHUNKS = """
from atat_zoo.modeling.objectives import chunks
chunks.LOGITS = 5 * 258
from atat_zoo.cli import main
main()
"""


def test_two_ranks_form_the_gradients_of_chunks_as_of_all_logits(tiny):
    metrics = 'evaluation.metrics=["brier_score", "calibration_error", "self_bleu", "unigram_entropy", "copied"]'
    words = ["train", str(tiny.path), "train.steps=3", "train.precision=fp32", metrics, "evaluation.texts=5", "--out"]
    started = {
        name: forked.ranks(2, [*words, f"two-{name}"], tiny.root, code=code)
        for name, code in (("chunks", IN_CHUNKS), ("whole", None))
    }
    for rank in [*started["chunks"], *started["whole"]]:
        said, _ = rank.communicate()
        assert rank.returncode == 0, said
    chunks, whole = tiny.losses("two-chunks"), tiny.losses("two-whole")
    assert list(chunks) == list(whole) == [1, 2, 3]
    assert chunks != whole  # they were in chunks
    for step, line in whole.items():
        assert chunks[step]["loss"] == pytest.approx(line["loss"], rel=1e-4), step
    # What both ranks have measured is what one measures.
    (file,) = (tiny.root / "two-whole" / "evaluations").glob("*")
    two, one = (
        json.loads(each)["metrics"] for each in (file.read_text(), tiny.atat("eval", "two-whole", "--json").stdout)
    )
    assert list(two) == list(one) == ["brier_score", "calibration_error", "self_bleu", "unigram_entropy", "copied_8"]
    for name, found in one.items():
        assert two[name]["value"] == pytest.approx(found["value"], abs=1e-6), name
        assert two[name]["stderr"] == pytest.approx(found["stderr"], abs=1e-6), name
    assert one["unigram_entropy"]["value"] > 1


def test_two_ranks_asked_to_stop(tiny):
    """Both stop after the same step, which is saved, though only the one that writes nothing is asked."""
    ranks = two_ranks(tiny, str(tiny.path), "--out", "two-stopped", "train.steps=400")
    wait_for_step(tiny.root / "two-stopped" / "metrics.jsonl", 7, ranks[0])
    ranks[1].send_signal(signal.SIGTERM)
    said = [rank.communicate()[0] for rank in ranks]
    assert "continue with: atat train --resume two-stopped" in said[0]
    steps = tiny.losses("two-stopped")
    newest = sorted((tiny.root / "two-stopped" / "checkpoints").glob("*.json"))[-1]
    assert json.loads(newest.read_text())["step"] == max(steps) < 400


def test_the_launcher_runs_the_command_on_each_rank(tiny):
    words = [COMPOSER, "-n", "2", "-m", "atat_zoo.train", "no-such-experiment"]
    done = subprocess.run(words, cwd=tiny.root, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "there is no experiment 'no-such-experiment'" in done.stdout + done.stderr


@pytest.mark.parametrize("finished", [False, True])
def test_an_experiment_that_was_edited_is_refused(tiny, uninterrupted, finished):
    folder = tiny.root / f"edited-{finished}"
    shutil.copytree(uninterrupted, folder) if finished else unfinished(tiny, uninterrupted, folder.name)
    before = tiny.weights(folder.name) if finished else None
    resolved = folder / "resolved.toml"
    edited = tomllib.loads(resolved.read_text())
    edited["noise"]["use"] = "cosine"
    edited["data"]["lanes"] = 8
    edited["data"]["stages"] = [{"use": "random_length", "share": 0.5}]
    resolved.write_text(tomli_w.dumps(edited))
    said = tiny.atat("train", "--resume", folder.name, check=False)
    assert said.returncode == 2
    assert said.stderr == (
        f"error: {folder.name}/resolved.toml is not what the checkpoint of step {24 if finished else 20} was trained "
        "with (noise.use 'linear' is now 'cosine', data.lanes 4 is now 8, data.stages [] is now "
        "[{'use': 'random_length', 'share': 0.5, 'least': 1}]); put that back, or train it from the "
        "beginning in another folder\n"
    )
    assert (tiny.weights(folder.name) if finished else None) == before
    assert list(tiny.losses(folder)) == list(tiny.losses(uninterrupted))  # nothing is cut


def test_what_changes_no_weight_may_be_edited(tiny, uninterrupted):
    folder = unfinished(tiny, uninterrupted, "edited-freely")
    shutil.copytree(tiny.root / "shards", tiny.root / "moved")
    edited = tomllib.loads((folder / "resolved.toml").read_text())
    edited["data"] |= {"root": str(tiny.root / "moved"), "workers": 2}
    edited["train"] |= {"save_every": 3, "evaluate_every": 2, "loggers": [{"use": "file"}]}
    edited["sampler"]["steps"] = 2
    (folder / "resolved.toml").write_text(tomli_w.dumps(edited))
    said = tiny.atat("train", "--resume", folder.name).stdout
    assert "changed since step 20: sampler.steps 4 is now 2, data.root " in said
    assert tiny.weights(folder.name) == tiny.weights(uninterrupted)


def test_resume_of_a_finished_run_changes_nothing(tiny, uninterrupted):
    before = tiny.weights(uninterrupted)
    tiny.atat("train", "--resume", str(uninterrupted))
    assert tiny.weights(uninterrupted) == before


def test_a_chosen_checkpoint_is_continued_from_and_those_after_it_are_deleted(tiny, uninterrupted):
    """Of a finished run, whose final model stays until the end."""
    folder = tiny.root / "chosen"
    shutil.copytree(uninterrupted, folder)
    for words, message in (
        (
            ["--resume", "chosen", "--step", "7"],
            "--step 7: chosen has no complete checkpoint of this step; choose one of",
        ),
        (["tiny.toml", "--step", "20"], "--step only works with --resume; add the run to continue"),
    ):
        refused = tiny.atat("train", *words, check=False)
        assert refused.returncode == 2
        assert message in refused.stderr
    assert list(tiny.losses(folder)) == list(range(1, 25))
    said = tiny.atat("train", "--resume", "chosen", "--step", "20").stdout
    assert "deleted the checkpoints after step 20: 24" in said
    assert "continuing chosen after step 20 of 24" in said
    same(tiny, "chosen", uninterrupted)
    assert sorted(path.name for path in (folder / "checkpoints").glob("*.pt")) == [
        f"step-{step:08d}.pt" for step in (20, 24)
    ]


def test_a_chosen_checkpoint_is_that_of_an_interrupted_training_afterwards(tiny, uninterrupted):
    folder = tiny.root / "chosen-killed"
    shutil.copytree(uninterrupted, folder)
    killed = tiny.atat("train", "--resume", folder.name, "--step", "20", check=False, code=DIE.format(step=20))
    assert killed.returncode == -signal.SIGKILL
    assert "continuing chosen-killed after step 20" in tiny.atat("train", "--resume", folder.name).stdout
    same(tiny, folder.name, uninterrupted)
