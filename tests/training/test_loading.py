"""Nothing of a run is run: pickles planted in its files are refused, and checkpoints are read as data."""

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
from atat_zoo.training.continuing import Loading, check_saved, inert, only_data, refused
from tests import forked
from tests.tiny import folder_of

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


# Loading


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


def test_what_a_checkpoint_of_ours_holds_is_loaded(tmp_path):
    state = {
        "time": timedelta(seconds=3),
        "version": torch.__version__,
        "weights": torch.arange(3),
        "texts": ["ü", None],
    }
    torch.save({"state": state}, tmp_path / "checkpoint.pt")
    with only_data():
        loaded = torch.load(tmp_path / "checkpoint.pt", weights_only=False)
    assert torch.equal(loaded["state"].pop("weights"), state.pop("weights"))
    assert loaded["state"] == state


def test_the_list_of_what_is_allowed_is_restored():
    before = set(torch.serialization.get_safe_globals())
    with only_data():
        assert timedelta in torch.serialization.get_safe_globals()
    assert set(torch.serialization.get_safe_globals()) == before


def test_algorithms_are_not_evaluated():
    """Composer evaluates their texts, when they are in a list."""
    checkpoint = {"state": {"algorithms": [("Alibi", {"repr": "__import__('os')"})], "model": {}}}
    inert(checkpoint)
    assert checkpoint == {"state": {"algorithms": {"Alibi": {"repr": "__import__('os')"}}, "model": {}}}


def test_a_state_that_could_not_be_loaded_is_refused_when_it_is_saved(tmp_path):
    torch.save({"callbacks": {"Mine": {"where": Path("x"), "what": types.SimpleNamespace()}}}, tmp_path / "mine.pt")
    with pytest.raises(
        UserError, match=r"holds pathlib\.(_local\.)?PosixPath, types\.SimpleNamespace could not be resumed"
    ) as said:
        check_saved(tmp_path / "mine.pt")
    assert "\n" not in str(said.value)
    torch.save({"callbacks": {"Mine": {"best": 0.5, "since": [1, 2]}}}, tmp_path / "mine.pt")
    check_saved(tmp_path / "mine.pt")


def test_only_what_goes_wrong_while_it_loads_is_the_checkpoints_fault(tmp_path):
    loading = Loading(tmp_path / "step-00000005.pt")
    with pytest.raises(ZeroDivisionError), loading.guarded():
        raise ZeroDivisionError
    loading.before_load(None, None)
    with pytest.raises(UserError, match=r"5\.pt cannot be continued from: KeyError: 'x'; delete"), loading.guarded():
        raise KeyError("x")
    with pytest.raises(UserError, match=r"^mine$"), loading.guarded():
        raise UserError("mine")
    loading.after_load(None, None)
    with pytest.raises(ZeroDivisionError), loading.guarded():
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (UnpicklingError("Unsupported global: GLOBAL os.system was not allowed"), r"and texts \(os\.system\), and"),
        (UnpicklingError("invalid load key"), "and texts, and nothing else is read"),
        (ValueError("first\nsecond"), "from: ValueError: first; delete"),
        (ValueError(), "from: ValueError: ; delete"),
    ],
)
def test_the_refusal_of_a_checkpoint_names_what_it_holds(error, why):
    with pytest.raises(UserError, match=why):
        raise refused(Path("step.pt"), error)


# Runs

# A training that is killed after the checkpoint of a step.
KILLED = """
import os, signal
from atat_zoo.training import lifecycle
save = lifecycle.Checkpoints.save
def kill(self, state, step):
    save(self, state, step)
    if step == 10:
        os.kill(os.getpid(), signal.SIGKILL)
lifecycle.Checkpoints.save = kill
from atat_zoo.cli import main
main()
"""


def killed(tiny, run):
    """Return a run that was killed after step 10."""
    words = ["train", str(tiny.path), "--out", run, "evaluation.samples=0"]
    done = tiny.atat(*words, check=False, code=KILLED)
    assert done.returncode < 0, done.stderr
    return tiny.root / run


def ended(tiny, *commands):
    """Return the exit codes of commands."""
    return [tiny.atat(*words, check=False).returncode for words in commands]


def everything(run, *more):
    """Yield the commands that read a run."""
    for command in ("sample", "eval", "importance"):
        yield [command, str(run), *more]
    yield ["compare", str(run), str(run), *more]


def note(path):
    """Write the hash of a checkpoint, as somebody would who has changed it on purpose."""
    said = json.loads(path.with_suffix(".json").read_text())
    said["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_suffix(".json").write_text(json.dumps(said))


@pytest.fixture(scope="module")
def interrupted(tiny):
    """Return a run that was killed after step 10; copy it to change it."""
    return killed(tiny, "interrupted")


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
            resume = ["train", "--resume", str(run)]
            with_step = ["sample", str(run), "--step", step]
            commands += [*everything(run), with_step, resume, ["data", "info", str(run)]]
            planted[touched] = file
        codes = ended(tiny, *commands)
        assert set(codes) <= {0, 2}, list(zip(codes, commands, strict=True))
    assert not [file for touched, file in planted.items() if touched.exists()]
    assert len(planted) > 15


@pytest.mark.slow
@pytest.mark.parametrize("how", ["a pickle", "among tensors"])
def test_a_checkpoint_that_holds_code_is_refused(tiny, newest, tmp_path, how):
    newest.write_bytes(PICKLES[how](Planted(tmp_path / "touched")))
    note(newest)
    done = tiny.atat("train", "--resume", str(newest.parents[1]), check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    said = f"error: the checkpoint {newest} cannot be continued from: it holds more than tensors, numbers and texts"
    assert said in done.stderr
    assert ("(shutil.copyfile)" in done.stderr) == (how != "a pickle")
    assert not (tmp_path / "touched").exists()


@pytest.mark.slow
def test_every_rank_refuses_it(tiny, newest, tmp_path):
    newest.write_bytes(PICKLES["in a zip"](Planted(tmp_path / "touched")))
    note(newest)
    for rank in forked.ranks(2, ["train", "--resume", str(newest.parents[1])], tiny.root):
        said, _ = rank.communicate()
        assert rank.returncode == 2, said
        assert "(shutil.copyfile)" in said
    assert not (tmp_path / "touched").exists()


@pytest.mark.slow
def test_what_composer_would_evaluate_is_not(tiny, newest, uninterrupted, tmp_path):
    """A checkpoint of nothing but data, with the text of an algorithm that Composer adds when it loads."""
    checkpoint = torch.load(newest, weights_only=False)
    text = f"__name__ and open({str(tmp_path / 'touched')!r}, 'w')"
    checkpoint["state"]["algorithms"].append(("Alibi", {"repr": text}))
    torch.save(checkpoint, newest)
    note(newest)
    tiny.atat("train", "--resume", str(newest.parents[1]))
    assert not (tmp_path / "touched").exists()
    assert tiny.weights(newest.parents[1]) == tiny.weights(uninterrupted)


@pytest.mark.slow
def test_a_checkpoint_of_something_else_is_refused(tiny, newest):
    for content in ([], {"state": {"model": {"objective.x": torch.ones(2)}, "timestamp": {"Timestamp": {}}}}):
        torch.save(content, newest)
        note(newest)
        done = tiny.atat("train", "--resume", str(newest.parents[1]), check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert f"error: the checkpoint {newest} cannot be continued from: " in done.stderr


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
