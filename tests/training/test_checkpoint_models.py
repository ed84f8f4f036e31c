"""The models beside the checkpoints: of a run that is not finished, and of the steps before its end."""

import json

import pytest
import torch

from atat_zoo.generation.model import Model
from tests.training.test_loading import ended, killed

pytestmark = pytest.mark.slow


def test_a_checkpoint_has_the_model_that_the_run_would_end_with(uninterrupted):
    """The moving average of the weights, as in the final model, which is of the same step."""
    folder = uninterrupted / "checkpoints" / "step-00000024"
    files = sorted(path.name for path in folder.iterdir())
    assert files == sorted(path.name for path in (uninterrupted / "model").iterdir())
    assert all((folder / name).read_bytes() == (uninterrupted / "model" / name).read_bytes() for name in files)
    kept = sorted(path.name for path in folder.parent.iterdir())
    assert kept == sorted(f"step-{step:08d}{ending}" for step in (20, 24) for ending in ("", ".json", ".pt"))
    checkpoint = torch.load(folder.with_suffix(".pt"), weights_only=False)
    assert "rng" not in checkpoint
    average = checkpoint["state"]["callbacks"]["MovingAverage"]["average"]
    saved = dict(Model.load(folder).module.named_parameters())
    assert all(torch.equal(a, b) for a, b in zip(average, saved.values(), strict=True))


def test_a_run_that_is_not_finished_is_used_at_a_step(tiny, uninterrupted):
    run = killed(tiny, "killed-at-a-step")
    assert (Model.from_run(run, step=10).step, Model.from_run(run, step=5).step) == (10, 5)
    commands = [
        ["sample", str(run)],
        ["infill", str(run), "a [MASK:2] b"],
        ["eval", str(run)],
        ["importance", str(run)],
        ["bench", "samplers", str(run), "--sampler", "ancestral", "--steps", "2", "--number", "2"],
        ["eval", str(run), "--task", "{use = 'infilling', gap = 2, texts = 4}"],
        ["compare", str(run), str(run)],
    ]
    assert ended(tiny, *([*words, "--step", "10"] for words in commands)) == [0] * len(commands)
    assert ended(tiny, *([*words, "--step", "newest"] for words in commands[:3])) == [0] * 3
    said = json.loads(tiny.atat("infill", str(run), "a [MASK:2] b", "--step", "newest", "--json").stdout)
    assert said["step"] == 10
    assert ended(tiny, *([*words, "--step", "7"] for words in commands), *commands) == [2] * 2 * len(commands)
    # What was measured is kept, and the training continues as if nothing had been.
    measured = [path.name for path in (run / "evaluations").iterdir()]
    assert any("step00000010" in name for name in measured)
    tiny.atat("train", "--resume", str(run))
    assert tiny.weights(run) == tiny.weights(uninterrupted)


def test_a_comparison_at_a_step_tells_the_training_until_then(tiny, trained):
    said = [
        json.loads(tiny.atat("compare", str(trained), str(trained), "--json", *step).stdout)["runs"][0]
        for step in (("--step", "20"), ())
    ]
    assert [run["step"] for run in said] == [20, 24]
    assert said[0]["seconds"] < said[1]["seconds"]


def test_a_diverged_average_is_refused_by_name(tiny):
    """The weights and the loss are finite, and what would be saved is not."""
    spoilt = """
from atat_zoo.training import lifecycle
update = lifecycle.MovingAverage.batch_end
def spoil(self, state, logger):
    update(self, state, logger)
    self.average[0][0] = float("nan")
lifecycle.MovingAverage.batch_end = spoil
from atat_zoo.cli import main
main()
"""
    done = tiny.atat("train", str(tiny.path), "--out", "spoilt", check=False, code=spoilt)
    assert done.returncode == 2
    assert "step-00000005 is not written: after step 5 the weights backbone.embedding.weight are not" in done.stderr
    assert not list((tiny.root / "spoilt" / "checkpoints").iterdir())
