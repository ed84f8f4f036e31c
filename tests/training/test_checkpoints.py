"""A checkpoint is read as data, and is refused in a sentence; nothing that is planted in a run or in shards is run."""

import hashlib
import io
import json
import os
import pickle
import shutil
import tarfile
import types
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import pytest
import torch

from atat_zoo import UserError
from atat_zoo.experiment import load
from atat_zoo.generation.model import Model
from atat_zoo.training.checkpoints import Loading, check_saved, inert, only_data
from tests import forked
from tests.tiny import folder_of
from tests.training import KILL, with_changed

FORCE, FORCE_NOT = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


class Planted:
    """Makes a file, when it is unpickled."""

    def __init__(self, touched):
        self.touched = touched

    def __reduce__(self):
        """Return a call that makes the file."""
        return shutil.copyfile, (os.devnull, str(self.touched))


def as_saved_by_torch(value, **options):
    """Return the bytes of `torch.save`."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


PICKLES = {
    "a pickle": pickle.dumps,
    "an old pickle": lambda value: pickle.dumps(value, protocol=2),
    "in a zip": as_saved_by_torch,
    "as torch saved long ago": lambda value: as_saved_by_torch(value, _use_new_zipfile_serialization=False),
    "among tensors": lambda value: as_saved_by_torch({"state": {"model": {"x": torch.ones(3)}}, "rng": [value]}),
}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("how", PICKLES)
def test_a_pickle_is_loaded_as_data_whatever_the_caller_asks_for(how, tmp_path, monkeypatch):
    (tmp_path / "planted.pt").write_bytes(PICKLES[how](Planted(tmp_path / "touched")))
    monkeypatch.setenv(FORCE_NOT, "1")
    with only_data(), pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "planted.pt", weights_only=False)
    assert not (tmp_path / "touched").exists()
    assert os.environ[FORCE_NOT] == "1"
    assert FORCE not in os.environ
    # Without it, the same file does what it holds: the test tests something.
    monkeypatch.delenv(FORCE_NOT)
    with suppress(RuntimeError):  # torch runs it first, and then finds out that it is no checkpoint
        torch.load(tmp_path / "planted.pt", weights_only=False)
    assert (tmp_path / "touched").exists()


def test_what_a_checkpoint_of_ours_holds_is_loaded_and_the_list_of_what_is_allowed_restored(tmp_path):
    before = set(torch.serialization.get_safe_globals())
    state = {"time": timedelta(seconds=3), "version": torch.__version__, "texts": ["ü", None]}
    torch.save({"state": state}, tmp_path / "checkpoint.pt")
    with only_data():
        assert torch.load(tmp_path / "checkpoint.pt", weights_only=False)["state"] == state
    assert set(torch.serialization.get_safe_globals()) == before


def test_algorithms_are_not_evaluated():
    """Composer evaluates their texts, when they are in a list."""
    checkpoint = {"state": {"algorithms": [("Alibi", {"repr": "__import__('os')"})], "model": {}}}
    inert(checkpoint)
    assert checkpoint == {"state": {"algorithms": {"Alibi": {"repr": "__import__('os')"}}, "model": {}}}


def test_a_state_that_could_not_be_loaded_is_refused_when_it_is_saved(tmp_path):
    torch.save({"callbacks": {"Mine": {"where": Path("x"), "what": types.SimpleNamespace()}}}, tmp_path / "mine.pt")
    with pytest.raises(UserError, match=r"Path, types\.SimpleNamespace could not be loaded again"):
        check_saved(tmp_path / "mine.pt")
    torch.save({"callbacks": {"Mine": {"best": 0.5, "since": [1, 2]}}}, tmp_path / "mine.pt")
    check_saved(tmp_path / "mine.pt")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (UnpicklingError("Unsupported global: GLOBAL os.system was not allowed"), r"and strings \(os\.system\), so"),
        (UnpicklingError("invalid load key"), "and strings, so it was not loaded"),
        (ValueError("first\nsecond"), r"cannot resume from the checkpoint .*5\.pt: ValueError: first; delete"),
        (ValueError(), "ValueError: ; delete"),
        (UserError("mine"), "^mine$"),
    ],
)
def test_what_goes_wrong_while_it_loads_is_the_checkpoint_s_fault_and_nothing_else(tmp_path, error, why):
    loading = Loading(tmp_path / "step-00000005.pt")
    with pytest.raises(type(error)), loading.guarded():
        raise error
    loading.before_load(None, None)
    with pytest.raises(UserError, match=why), loading.guarded():
        raise error
    loading.after_load(None, None)
    with pytest.raises(ZeroDivisionError), loading.guarded():
        raise ZeroDivisionError


# Runs

# A training that is killed after the checkpoint of a step.
KILLED = with_changed("atat_zoo.training.checkpoints:Checkpoints.save", f"original(*words)\nif words[2] == 10: {KILL}")


def ended(tiny, *commands):
    """Return the exit codes of commands."""
    return [tiny.atat(*words, check=False).returncode for words in commands]


def note(path):
    """Write the hash of a checkpoint, as somebody would who has changed it on purpose."""
    said = json.loads(path.with_suffix(".json").read_text())
    said["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_suffix(".json").write_text(json.dumps(said))


@pytest.fixture(scope="module")
def interrupted(tiny):
    """Return a run that was killed after step 10; copy it to change it."""
    done = tiny.atat("train", str(tiny.path), "--out", "cut", "evaluation.samples=0", check=False, code=KILLED)
    assert done.returncode < 0, done.stderr
    return tiny.root / "cut"


@pytest.fixture
def newest(interrupted, tmp_path):
    """Return the newest checkpoint of a copy of that run."""
    return Path(shutil.copytree(interrupted, tmp_path / "run")) / "checkpoints" / "step-00000010.pt"


@pytest.mark.slow
def test_nothing_planted_in_a_run_is_run(tiny, trained, interrupted, tmp_path):
    planted = {}
    for source, step in ((trained, "24"), (interrupted, "10")):
        # Not those of the checkpoint before the newest, which are like them; nor what both runs have.
        files = [path for path in source.rglob("*") if path.is_file()]
        older = min(path.stem for path in source.glob("checkpoints/*.pt"))
        commands = []
        for file in sorted(path.relative_to(source) for path in files if older not in str(path)):
            if file in planted.values():
                continue
            run, touched = tmp_path / f"run-{len(planted)}", tmp_path / f"touched-{len(planted)}"
            shutil.copytree(source, run)
            (run / file).write_bytes(pickle.dumps(Planted(touched)))
            commands += [[command, str(run)] for command in ("sample", "eval")]
            commands += [["sample", str(run), "--step", step]]
            commands += [["train", "--resume", str(run)], ["data", "info", str(run)]]
            planted[touched] = file
        codes = ended(tiny, *commands)
        assert set(codes) <= {0, 2}, list(zip(codes, commands, strict=True))
    assert not [file for touched, file in planted.items() if touched.exists()]
    assert len(planted) > 15


@pytest.mark.slow
def test_a_checkpoint_that_holds_code_is_refused_by_every_rank(tiny, newest, tmp_path):
    newest.write_bytes(PICKLES["in a zip"](Planted(tmp_path / "touched")))
    note(newest)
    words = ["train", "--resume", str(newest.parents[1])]
    for rank in forked.ranks(2, words, tiny.root):
        said, _ = rank.communicate()
        assert rank.returncode == 2, said
        assert "(shutil.copyfile)" in said
    newest.write_bytes(PICKLES["a pickle"](Planted(tmp_path / "touched")))
    note(newest)
    done = tiny.atat(*words, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"error: cannot resume from the checkpoint {newest}: it contains more than tensors" in done.stderr
    assert not (tmp_path / "touched").exists()


@pytest.mark.slow
def test_what_composer_would_evaluate_is_not_and_what_is_no_checkpoint_is_refused(
    tiny, newest, uninterrupted, tmp_path
):
    checkpoint = torch.load(newest, weights_only=False)
    for content in ([], {"state": {"model": {"objective.x": torch.ones(2)}, "timestamp": {"Timestamp": {}}}}):
        torch.save(content, newest)
        note(newest)
        done = tiny.atat("train", "--resume", str(newest.parents[1]), check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert f"error: cannot resume from the checkpoint {newest}: " in done.stderr
    # Nothing but data, with the text of an algorithm that Composer adds when it loads.
    text = f"__name__ and open({str(tmp_path / 'touched')!r}, 'w')"
    checkpoint["state"]["algorithms"].append(("Alibi", {"repr": text}))
    torch.save(checkpoint, newest)
    note(newest)
    tiny.atat("train", "--resume", str(newest.parents[1]))
    assert not (tmp_path / "touched").exists()
    assert tiny.weights(newest.parents[1]) == tiny.weights(uninterrupted)


@pytest.mark.slow
def test_shards_with_pickles_are_refused(tiny, trained, tmp_path):
    """Arrays of objects are pickles; their hashes in the manifest are right."""
    shards = tiny.root / "shards" / folder_of(load(str(tiny.path))).name  # others are of other tests
    np.save(buffer := io.BytesIO(), np.array([Planted(tmp_path / "touched")], dtype=object), allow_pickle=True)
    data, commands = buffer.getvalue(), []
    for name in ("counts.npy", "train", "validation"):
        copy = Path(shutil.copytree(shards, tmp_path / name / shards.name))
        manifest = json.loads((copy / "manifest.json").read_text())
        if name == "counts.npy":
            (copy / name).write_bytes(data)
            manifest["sha256"][name] = hashlib.sha256(data).hexdigest()
        else:
            for shard in manifest["splits"][name]["shards"]:
                path = copy / shard["name"]
                with tarfile.open(path, "w") as tar:
                    member = tarfile.TarInfo("000000.npy")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
                shard |= {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
        (copy / "manifest.json").write_text(json.dumps(manifest))
        out, root = str(tmp_path / "new" / name), f"data.root={json.dumps(str(copy.parent))}"
        commands += [
            ["data", "info", str(copy), "--full"],
            ["train", str(tiny.path), "--out", out, "train.steps=2", root],
        ]
    assert ended(tiny, *commands)[1::2] == [2, 2, 2]
    assert not (tmp_path / "touched").exists()


# The models beside the checkpoints


@pytest.mark.slow
def test_a_checkpoint_has_the_model_that_the_run_would_end_with(uninterrupted):
    """The moving average of the weights, as in the final model, which is of the same step."""
    folder = uninterrupted / "checkpoints" / "step-00000024"
    files = sorted(path.name for path in folder.iterdir())
    assert files == sorted(path.name for path in (uninterrupted / "model").iterdir())
    files.remove("model.json")
    assert all((folder / name).read_bytes() == (uninterrupted / "model" / name).read_bytes() for name in files)
    # The evaluation at the end adds what it measured.
    kept, final = (json.loads((each / "model.json").read_text()) for each in (folder, uninterrupted / "model"))
    assert final.pop("loss_by_mask_rate")["step"] == 24
    assert kept == final
    kept = sorted(path.name for path in folder.parent.iterdir())
    assert kept == sorted(f"step-{step:08d}{ending}" for step in (20, 24) for ending in ("", ".json", ".pt"))
    checkpoint = torch.load(folder.with_suffix(".pt"), weights_only=False)
    assert "rng" not in checkpoint
    average = checkpoint["state"]["callbacks"]["MovingAverage"]["average"]
    saved = dict(Model.load(folder).module.named_parameters())
    assert all(torch.equal(a, b) for a, b in zip(average, saved.values(), strict=True))


@pytest.mark.slow
def test_a_run_that_is_not_finished_is_used_at_a_step(tiny, newest, uninterrupted):
    run = newest.parents[1]
    assert (Model.from_run(run, step=10).step, Model.from_run(run, step=5).step) == (10, 5)
    commands = [
        ["sample", str(run)],
        ["infill", str(run), "a [MASK:2] b"],
        ["eval", str(run)],
        ["importance", str(run)],
        ["bench", "samplers", str(run), "--sampler", "ancestral", "--steps", "2", "--num-samples", "2"],
        ["eval", str(run), "--task", "{use = 'infilling', gap = 2, texts = 4}"],
        ["compare", str(run), str(run)],
    ]
    assert ended(tiny, *([*words, "--step", "10"] for words in commands)) == [0] * len(commands)
    said = json.loads(tiny.atat("infill", str(run), "a [MASK:2] b", "--step", "newest", "--json").stdout)
    assert said["step"] == 10
    assert ended(tiny, *([*words, "--step", "7"] for words in commands), *commands) == [2] * 2 * len(commands)
    # What was measured is kept, and the training continues as if nothing had been.
    assert any("step00000010" in path.name for path in (run / "evaluations").iterdir())
    tiny.atat("train", "--resume", str(run))
    assert tiny.weights(run) == tiny.weights(uninterrupted)


@pytest.mark.slow
def test_a_comparison_at_a_step_tells_the_training_until_then(tiny, trained):
    said = [
        json.loads(tiny.atat("compare", str(trained), str(trained), "--json", *step).stdout)["runs"][0]
        for step in (("--step", "20"), ())
    ]
    assert [run["step"] for run in said] == [20, 24]
    assert said[0]["seconds"] < said[1]["seconds"]


@pytest.mark.slow
def test_a_diverged_average_is_refused_by_name(tiny):
    """The weights and the loss are finite, and what would be saved is not."""
    spoil = "original(*words)\nwords[0].average[0][0] = float('nan')"
    spoilt = with_changed("atat_zoo.training.ema:MovingAverage.batch_end", spoil)
    done = tiny.atat("train", str(tiny.path), "--out", "spoilt", check=False, code=spoilt)
    assert done.returncode == 2
    assert "step-00000005 was not saved: after step 5 the weights backbone.embedding.weight are not" in done.stderr
    assert not list((tiny.root / "spoilt" / "checkpoints").iterdir())
