"""An interrupted run continues bit for bit: killed, asked to stop, or in the middle of a checkpoint."""

import json
import math
import os
import random
import shutil
import signal
import time

import pytest

from tests import forked
from tests.training import KILL, die_at, with_changed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # of workers
]

# Kills its own process with a checkpoint half written: after two good ones, in the middle of the next.
KILL_IN_CHECKPOINT = with_changed(
    "composer.utils.checkpoint:_write_checkpoint_file",
    f"""
    original(*words)
    if len(calls) > 2:
        os.truncate(words[1], os.path.getsize(words[1]) // 2)
        {KILL}
    """,
)


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


def two_ranks(tiny, *words, code=None):
    """Run `atat train …` on two ranks to its end; returns what each has printed."""
    ranks = forked.ranks(2, ["train", *words], tiny.root, code=code)
    said = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return said


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


# The objective that learns an order; without the parts that it has no use for.
ADAPTIVE = """
[objective]
use = "adaptive"
form = "timed"
bias = "running"
temperature = 0.5
learn_importance = true
learn_position = true
[estimator]
use = "transformer"
layers = 1
width = 16
heads = 2
[sampler]
use = "learned_order"
"""
UNUSED = ("mask_rates", "masking", "curriculum", "estimator", "target", "sampler")


def test_a_learned_order_has_both_bounds_and_goes_on(tiny):
    kept = [table for table in tiny.path.read_text().split("\n[") if table.partition("]")[0] not in UNUSED]
    path, run = tiny.root / "adaptive.toml", tiny.root / "adaptive"
    path.write_text("\n[".join(kept) + ADAPTIVE)
    assert "adaptive bound" in tiny.atat("train", str(path), "--out", run.name).stdout
    (file,) = (run / "evaluations").iterdir()
    bounds = json.loads(file.read_text())["bounds"]
    assert bounds.keys() == {"nelbo", "adaptive"}
    assert all(0 < bound["nats_per_token"] < math.log(300) for bound in bounds.values())
    lines = tiny.losses(run)
    assert lines[24]["loss"] < lines[1]["loss"]
    assert all(math.isfinite(line["reverse_loss"]) for line in lines.values())
    assert lines[24]["reverse_loss"] != 0
    assert (run / "samples.txt").read_text().strip()
    killed_and_resumed(tiny, "adaptive-half", run, str(path))


# Masks that follow from those of the step before, weights and scores from what is shown; and stages. The first two
# epochs hold no more than 32 sequences of a lane, so that some begin on both sides of the kill.
SHOWN = (
    'estimator={use="transformer", layers=1, width=16, heads=2, reads="z"}',
    'masking={use="progressive", policy="importance", steps_per_sequence=3}',
    'curriculum={use="planner_aware"}',
    "backbone.ngram_prior=2",
    "data.workers=1",
)
STAGES = 'data.transforms=[{use="random_length", probability=0.3}, {use="repetition", n=2, min_distinct=0.9}]'


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
    assert "environment.json does not record device, precision, ranks of the run" in said
    same(tiny, folder.name, uninterrupted)


# Kills its own process when it would give a file its name, after one that has its own.
BEGIN_AND_DIE = with_changed("pathlib:Path.replace", f"if len(calls) > 1: {KILL}\nreturn original(*words)")


def test_a_run_that_was_killed_when_it_began_has_not_begun(tiny):
    run, words = "stillborn", ("train.steps=2", "evaluation.samples=0")
    killed = tiny.atat("train", str(tiny.path), "--out", run, *words, check=False, code=BEGIN_AND_DIE)
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
    assert f"resume with: atat train --resume {run}" in said
    assert "Traceback" not in said
    if number == signal.SIGTERM:
        tiny.atat("train", "--resume", run)
        same(tiny, run, uninterrupted)


def test_two_ranks_killed(tiny, uninterrupted):
    """Bit-identical to two ranks that were not killed, and close to one rank."""
    words = [str(tiny.path), "train.steps=9", "train.save_every=4"]
    two_ranks(tiny, *words, "--out", "two")
    killed(forked.ranks(2, ["train", *words, "--out", "two-killed"], tiny.root, code=die_at(6)))
    two_ranks(tiny, "--resume", "two-killed")
    same(tiny, "two-killed", tiny.root / "two")
    # The order of summation differs, and with it a mask now and then, where u is within rounding of p.
    one, two = tiny.losses(uninterrupted), tiny.losses("two")
    assert list(two) == list(range(1, 10))
    assert [two[s]["loss"] for s in two] == pytest.approx([one[s]["loss"] for s in two], rel=2e-2)


def test_two_ranks_go_on_as_one_and_as_two_again(tiny):
    """With the same samples and masks, and the same curve but for rounding; the message says so."""
    words = ("train.steps=9", "train.save_every=3", "train.keep_checkpoints=3")
    two_ranks(tiny, str(tiny.path), "--out", "two-always", *words)
    as_one = unfinished(tiny, tiny.root / "two-always", "as-one", step=3)
    said = tiny.atat("train", "--resume", as_one.name).stdout
    assert "will not be bit-for-bit reproducible; changed: ranks from 2 to 1" in said
    assert "continuing as-one after step 3" in said
    as_two = unfinished(tiny, as_one, "as-two", step=6)
    assert "continuing as-two after step 6" in two_ranks(tiny, "--resume", as_two.name)[0]
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
from atat_zoo.diffusion import chunks
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
    ranks = forked.ranks(2, ["train", str(tiny.path), "--out", "two-stopped", "train.steps=400"], tiny.root)
    wait_for_step(tiny.root / "two-stopped" / "metrics.jsonl", 7, ranks[0])
    ranks[1].send_signal(signal.SIGTERM)
    said = [rank.communicate()[0] for rank in ranks]
    assert "resume with: atat train --resume two-stopped" in said[0]
    steps = tiny.losses("two-stopped")
    newest = sorted((tiny.root / "two-stopped" / "checkpoints").glob("*.json"))[-1]
    assert json.loads(newest.read_text())["step"] == max(steps) < 400
