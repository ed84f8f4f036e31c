"""The run folder: lock, records, checkpoints."""

import hashlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo import UserError
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.system import locks, parsing
from atat_zoo.system.atomic_files import HOST
from tests.system.dying import dies

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    return folder


def save(folder, step, keep=2, data=None):
    with folder.writing_checkpoint(step, keep) as path:
        path.write_bytes(data if data is not None else b"weights of step %d" % step)
    return folder.checkpoints / f"step-{step:08d}.pt"


def steps(folder):
    return sorted(int(p.stem.removeprefix("step-")) for p in folder.checkpoints.glob("step-*.pt"))


# The experiment


def test_what_is_no_run_is_a_sentence(folder, tmp_path, monkeypatch):
    nothing = RunFolder(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"nothing is not a run folder: resolved\.toml is missing; pass a folder"):
        nothing.table()
    assert not nothing.in_use
    assert not nothing.path.exists()  # naming and asking make nothing
    for data in (b"[half", b"\xff\xfe"):
        folder.resolved.write_bytes(data)
        assert folder.exists
        with pytest.raises(UserError, match=r"^[^\n]*resolved\.toml cannot be read: .*; copy the run again[^\n]*$"):
            folder.table()
    with monkeypatch.context() as small:
        small.setattr(parsing, "_LARGEST", 1)
        with pytest.raises(UserError, match=r"resolved\.toml cannot be read: it is larger"):
            folder.table()
    for ask in (RunFolder(tmp_path / ("x" * 5000)).table, RunFolder(tmp_path / ("x" * 5000)).lock().__enter__):
        with pytest.raises(UserError, match=r"^.{,450}File name too long.{,450}$"):
            ask()
    (tmp_path / "other" / ".lock").mkdir(parents=True)
    words = r"other/\.lock is a folder, but must be a regular file; remove it"
    with pytest.raises(UserError, match=words), RunFolder(tmp_path / "other").lock():
        pass


# The lock

HOLDER = """
    import sys
    from pathlib import Path
    from atat_zoo.experiment.runs import RunFolder

    with RunFolder(Path(sys.argv[1])).lock():
        print("held", flush=True)
        sys.stdin.readline()
"""


def test_a_second_process_is_refused_with_the_first_ones_number_until_it_is_killed(tmp_path):
    folder = RunFolder(tmp_path / "run")
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError) as caught, folder.lock():
            pass
        assert str(caught.value).startswith(f"{folder.path} is in use by another process (process {holder.pid} on ")
        assert "--out" in str(caught.value)
        holder.kill()
        holder.wait(20)
    with folder.lock():  # what is killed holds nothing
        assert (folder.path / ".lock").read_text().startswith(f"process {os.getpid()} on ")


def test_whether_a_folder_is_in_use_can_be_seen_without_being_in_the_way(tmp_path):
    folder = RunFolder(tmp_path / "run")
    looking, stop = threading.Event(), threading.Event()

    def look():
        while not stop.is_set():
            assert folder.in_use in (True, False)
            looking.set()
            time.sleep(0.001)

    watcher = threading.Thread(target=look)
    with folder.lock():
        assert folder.in_use
    assert not folder.in_use
    watcher.start()
    looking.wait(20)
    try:
        for _ in range(200):  # a training is not refused because somebody looks
            with folder.lock():
                assert folder.in_use
    finally:
        stop.set()
        watcher.join()


def test_a_lock_ends_with_its_block_and_a_forked_process_holds_and_deletes_none(folder):
    """The workers of a loader live on for seconds when their trainer is killed."""
    with pytest.raises(ZeroDivisionError), folder.lock():
        raise ZeroDivisionError
    fork = multiprocessing.get_context("fork")
    began, end = fork.Barrier(2), fork.Event()
    with folder.lock():
        worker = fork.Process(target=lambda: (began.wait(), end.wait()))
        worker.start()
        began.wait()
        with pytest.raises(UserError, match="in use"), folder.lock():
            pass
    try:
        with folder.lock():
            assert worker.is_alive()
    finally:
        end.set()
        worker.join()
    path, stack = folder.path / "lock", ExitStack()
    stack.enter_context(locks.locked(path, print, keep=lambda: False))
    child = os.fork()
    if child == 0:
        files = [os.open("/dev/null", os.O_RDONLY) for _ in range(5)]
        with suppress(BaseException):
            stack.close()
            list(map(os.fstat, files))  # leaving the block closed none of them
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert locks.held(path)
    stack.close()
    assert not path.exists()


def test_the_next_start_cleans_up(folder):
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    left = [
        place / f".x.{gone.stdout.strip()}@{HOST}.part" for place in (folder.path, folder.model, folder.evaluations)
    ]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    (folder.path / ".lock").touch()  # which a killed run leaves, too
    with folder.lock():
        assert not any(path.exists() for path in left)


@pytest.mark.parametrize("made", [(), ("runs",), ("runs", "run")])
def test_what_is_refused_before_a_run_begins_leaves_nothing_and_a_run_keeps_its_lock(tmp_path, made):
    path = tmp_path / "runs" / "run"
    tmp_path.joinpath(*made).mkdir(parents=True, exist_ok=True)
    with RunFolder(path).lock():
        assert (path / ".lock").is_file()
    left = [str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")]
    assert left == ["/".join(made[:number]) for number in range(1, len(made) + 1)]
    fill(path, {"notes.md": "kept"})
    with RunFolder(path).lock():
        pass
    assert [each.name for each in path.iterdir()] == ["notes.md"]
    with RunFolder(path).lock():
        RunFolder(path).metrics.touch()
    assert (path / ".lock").is_file()


def test_a_lock_on_a_file_that_was_deleted_is_none(folder):
    """Who waited for one that is deleted at its end locks the next file, as everybody else does."""
    path, order = folder.path / "lock", []
    began = threading.Event()

    def second():
        with locks.locked(path, lambda _: began.set()):
            order.append("second")
            with pytest.raises(UserError), locks.locked(path, refuse):
                pass

    def refuse(owner):
        raise UserError(owner)

    waiting = threading.Thread(target=second)
    with locks.locked(path, refuse, keep=lambda: False):
        waiting.start()
        assert began.wait(20)
        order.append("first")
    waiting.join(20)
    assert order == ["first", "second"]
    assert path.is_file()


RUN = {"resolved.toml": "a", "environment.json": "a", "samples.txt": "a", "model/model.json": "a", "logs/x/y": "a"}
RUN |= {"evaluations/a.json": "a", "metrics.jsonl": "", "metrics.damaged": "", "report/spread.json": "a"}
NEXT = {"environment.json": "b", "model/model.json": "b", "model/b": "b", "checkpoints/b": "b", "resolved.toml": "b"}
NEXT |= {"samples.txt": "b"}  # which is behind resolved.toml in the alphabet
BEGUN = {"environment.json": "b", "resolved.toml": "b"}
THEIRS = {"notes.md": "kept", "report.html": "kept", "figures/loss.svg": "kept"}


def fill(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def files_of(folder):
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path.read_text() for name, path in found.items() if name != ".lock"}


def put(path, files):
    folder = RunFolder(path)
    with folder.lock(), folder.replacement() as new:
        fill(new.path, files)


def locked(folder):
    with folder.lock():
        pass


@pytest.mark.parametrize("begun", [True, False])
def test_a_new_run_takes_the_place_of_the_old_one_and_leaves_what_is_no_runs(folder, begun):
    old = RUN if begun else {name: text for name, text in RUN.items() if name != "resolved.toml"}
    fill(folder.path, {".lock": "", **old, **THEIRS})
    with folder.lock():
        with folder.replacement() as new:
            fill(new.path, NEXT)
            assert files_of(folder.path).items() >= {**old, **THEIRS}.items()
        assert files_of(folder.path) == {**NEXT, **THEIRS}
    assert {path.name for path in folder.path.iterdir() if path.name.startswith(".")} == {".lock"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError, OSError])
def test_a_new_run_that_is_not_complete_leaves_the_old_one(folder, error):
    fill(folder.path, {".lock": "", **RUN, **THEIRS})

    def fail():
        with folder.lock(), folder.replacement() as new:
            fill(new.path, NEXT)
            raise error(f"{new.path} is bad")

    with pytest.raises(UserError if error is OSError else error) as caught:
        fail()
    assert files_of(folder.path) == {**RUN, **THEIRS}
    assert ".new" not in str(caught.value) or error is KeyboardInterrupt
    assert sorted(path.name for path in folder.path.iterdir() if path.name.startswith(".")) == [".lock"]


@pytest.mark.parametrize(
    ("old", "new", "then"),
    [(RUN, NEXT, "read"), (RUN, NEXT, "killed again"), (NEXT, BEGUN, "locked"), ({}, NEXT, "locked")],
)
def test_a_kill_at_any_moment_leaves_the_old_run_or_the_new_one(tmp_path, old, new, then, monkeypatch):
    """And all of it, for whoever reads the folder or locks it next, also if that process is killed at its first."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # which takes long, and is a moment all the same
    whole = [{**old, **THEIRS}, {**new, **THEIRS}]
    seen, moment, died = [], 0, True
    while died:
        folder = RunFolder(tmp_path / str(moment))
        fill(folder.path, {".lock": "", **old, **THEIRS})
        died = dies(partial(put, folder.path, new), moment)
        shown = {name: text for name, text in files_of(folder.path).items() if not name.startswith(".")}
        assert shown in whole or "resolved.toml" not in shown, "who looks meanwhile sees no half of a run"
        if then == "killed again":
            dies(partial(locked, folder), moment % 9)
        if then == "read":
            assert folder.exists or not old
            left = {name: text for name, text in files_of(folder.path).items() if not name.startswith(".")}
        else:
            with folder.lock():
                left = files_of(folder.path)
                hidden = {path.name for path in folder.path.iterdir() if path.name.startswith(".")}
                assert hidden == {".lock"}
        assert left in whole
        seen.append(whole.index(left))
        moment += 1
    assert moment > 15
    assert seen == sorted(seen), "once the new run is there it stays"
    assert {*seen} == {0, 1}


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("old", [RUN, {"environment.json": "a"}])
def test_an_exchange_that_is_refused_is_completed_by_the_next_command(folder, monkeypatch, old, at):
    fill(folder.path, {".lock": "", **old, **THEIRS})
    rename, calls = os.rename, []

    def refused(source, target):
        if {Path(source).parent.name, Path(target).parent.name} & {".leaving", ".new"}:
            calls.append(source)
            if len(calls) > at:
                raise OSError(28, "No space left on device")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refused)
        with pytest.raises(UserError, match="run has a new run, which cannot replace the old one: No space"):
            put(folder.path, NEXT)
    assert folder.exists
    assert files_of(folder.path) == {**NEXT, **THEIRS}
    with folder.lock():
        fill(folder.path, {".new/resolved.toml": "c"})
        assert folder.exists
        assert (folder.path / ".new").is_dir(), "it is left to the process that puts it in place"


OWN = ["resolved.toml", ".lock", "model/model.json", "model/more/x", "evaluations/new.json", "checkpoints", "logs/a"]
OTHERS = ["", "report.html", "notes.md", "report/figures", "report/figures/a.svg", "modelled", "a/model/x", "../model"]


def test_what_a_run_keeps_is_told_from_what_others_put_beside_it(folder, monkeypatch):
    own = [*OWN, "report/spread.json"]
    assert not any(folder.keeps(folder.path / name) for name in (*own, *OTHERS)), "there is no run"
    fill(folder.path, RUN)
    (folder.path.parent / "link").symlink_to(folder.path / "model")
    monkeypatch.chdir(folder.path)
    for place in (folder.path, Path(), Path("..", "run"), Path("..", "link", "..")):
        assert [name for name in (*own, *OTHERS) if folder.keeps(place / name)] == own
    assert folder.keeps(Path("..", "link", "model.json"))


@pytest.mark.parametrize("name", ["logs/slurm.out", "samples.txt"])
def test_what_a_run_would_clear_and_is_no_runs_is_refused_and_kept(name, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("years of work")
    (tmp_path / "notes.md").write_text("which no run replaces")
    for _ in range(2):  # the first attempt leaves no lock, which would make it a run's
        there = "is not a run folder, but contains files that a run would overwrite"
        words = rf"{there} \({name.split('/')[0]}\); move them away"
        with pytest.raises(UserError, match=words), RunFolder(tmp_path).lock():
            pass
        assert path.read_text() == "years of work"
    assert {each.name for each in tmp_path.iterdir()} == {name.split("/")[0], "notes.md"}


# The records


@given(kept=st.integers(0, 6), cut=st.integers(1, 14))
def test_a_last_line_that_was_cut_off_is_left_out(kept, cut, tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    assert folder.read_metrics() == []
    whole = [{"step": step, "x": step / 3, "loss": None, "stage": "ünïcode\u2028\x85"} for step in range(kept)]
    for line in whole:
        folder.append_metrics(line)
    with folder.metrics.open("a") as file:
        file.write(json.dumps({"step": 99, "x": 1.5})[:-cut])
    assert folder.read_metrics() == whole
    assert folder.last_metrics() == (whole[-1] if whole else {})
    with folder.metrics.open("ab") as file:
        file.write(b"\0" * 100)  # after a power failure
    assert folder.read_metrics() == whole
    folder.cut_metrics(1000)
    folder.append_metrics({"step": 7})
    assert folder.read_metrics() == [*whole, {"step": 7}]


def test_records_after_the_checkpoint_are_dropped(folder):
    for step in range(10, 60, 10):
        folder.append_metrics({"step": step, "x": "long" * 10_000})  # the last is found behind as much as there is
    assert folder.last_metrics()["step"] == 50
    folder.cut_metrics(30)
    assert [line["step"] for line in folder.read_metrics()] == [10, 20, 30]
    folder.cut_metrics(0)
    assert folder.metrics.read_bytes() == b""
    folder.metrics.unlink()
    folder.metrics.symlink_to("metrics.jsonl")
    assert "metrics.jsonl cannot be read: Too many levels of symbolic links; the file is kept" in folder.cut_metrics(1)
    assert folder.damaged.is_symlink()
    assert folder.read_metrics() == []


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        b"5",
        b"[" * 5000,
        b'{"step": "x"}',
        b'{"step": 1}',
        b'{"step": 2, "tokens_per_second": NaN}',
        b'{"step": 2, "seconds": 1' + b"0" * 400 + b"}",
        b'{"step": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_damaged_line_is_a_sentence_and_no_hindrance(folder, line):
    whole = [{"step": 1, "loss": 2.5}, {"step": 3, "loss": 1.5}]
    first, last = (json.dumps(each).encode() + b"\n" for each in whole)
    folder.metrics.write_bytes(first + line + b"\n" + last)
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 2 is damaged; copy the run again, or delete"):
        folder.read_metrics()
    assert folder.read_metrics(damaged=True) == whole
    damaged = folder.metrics.read_bytes()
    assert "metrics.jsonl: line 2 is damaged; the file is kept as metrics.damaged" in folder.cut_metrics(100)
    assert folder.damaged.read_bytes() == damaged
    assert folder.cut_metrics(100) == ""
    assert folder.read_metrics() == whole
    folder.metrics.write_bytes(first + line + b"\n" + line + b"\n")
    assert "metrics.jsonl: 2 lines, the first of them line 2, are damaged;" in folder.cut_metrics(0)
    assert folder.read_metrics() == []


# The checkpoints


def test_checkpoints_are_hashed_and_the_newest_are_kept(folder):
    put_model(folder, 5, noise={"use": "linear"})
    path = save(folder, 5, data=b"abc")
    said = {"step": 5, "sha256": hashlib.sha256(b"abc").hexdigest(), "experiment": {"noise": {"use": "linear"}}}
    assert json.loads(path.with_suffix(".json").read_text()) == said
    shutil.rmtree(folder.checkpoint_model(5))
    assert folder.last_checkpoint() == (5, path, said["experiment"])
    for step in (6, 10, 20):
        save(folder, step, keep=3)
    assert steps(folder) == [6, 10, 20]
    assert len(list(folder.checkpoints.iterdir())) == 6
    save(folder, 30, keep=1)
    assert steps(folder) == [30]
    assert folder.last_checkpoint() == (30, folder.checkpoints / "step-00000030.pt", None)


@pytest.mark.parametrize(
    "damage",
    [
        lambda bad, note: bad.write_bytes(b"W" + bad.read_bytes()[1:]),
        lambda bad, note: bad.unlink(),
        lambda bad, note: note.write_bytes(note.read_bytes()[:20]),
        lambda bad, note: note.write_text("[]"),
        lambda bad, note: note.unlink(),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_skipped(folder, damage):
    good, bad = save(folder, 1), save(folder, 2)
    damage(bad, bad.with_suffix(".json"))
    assert folder.last_checkpoint() == (1, good, None)
    good.unlink()
    assert folder.last_checkpoint() is None


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_broken_later_checkpoint_never_pushes_out_a_whole_one(folder, keep):
    """Step 20 is damaged, the run goes on from 10 and saves 15: 15 must be what is found then."""
    save(folder, 10, keep)
    later = save(folder, 20, keep=3)
    later.write_bytes(b"damaged")
    assert folder.last_checkpoint().step == 10
    save(folder, 15, keep)
    assert folder.last_checkpoint().step == 15
    assert steps(folder) == ([15] if keep == 1 else [10, 15])
    save(folder, 20, keep)
    assert folder.last_checkpoint().step == 20


# The models


def put_model(folder, step, at=None, **experiment):
    """Write the files of a model of `step`, beside its checkpoint or elsewhere."""
    path = at or folder.checkpoint_model(step)
    path.mkdir(parents=True)
    for name in ("model.safetensors", "tokenizer.json"):
        (path / name).write_text("{}")
    hashes = {"tokenizer.json": hashlib.sha256(b"{}").hexdigest()}
    (path / "model.json").write_text(json.dumps({"step": step, "experiment": experiment, "sha256": hashes}))
    return path


@pytest.fixture
def begun(folder):
    folder.resolved.write_text("")
    return folder


def test_models_are_found_by_step(begun):
    with pytest.raises(UserError, match="no final model yet"):
        begun.newest()
    ten, five = put_model(begun, 10), put_model(begun, 5)
    assert begun.newest() == 10
    final = put_model(begun, 12, begun.model)
    assert begun.newest() == 12
    assert (begun.model_at(), begun.model_at(5), begun.model_at(10), begun.model_at(12)) == (final, five, ten, final)
    with pytest.raises(UserError, match=r"--step 7: .* has no model for this step; choose one of the steps 5, 10, 12$"):
        begun.model_at(7)
    shutil.rmtree(begun.checkpoints)
    (final / "model.json").write_text("{")
    with pytest.raises(UserError, match=r"model\.json "):
        begun.newest()


def test_the_newest_and_the_best_model_are_found_by_name(begun):
    for which, words in (("newest", "no final model yet"), ("best", "--step best: .* has no best")):
        with pytest.raises(UserError, match=words):
            begun.model_at(which)
    ten, best = put_model(begun, 10), put_model(begun, 7, begun.best)
    put_model(begun, 5)
    assert (begun.model_at("newest"), begun.model_at("best"), begun.model_at(7)) == (ten, best, best)
    assert (begun.step_of("newest"), begun.step_of("best"), begun.step_of(5), begun.step_of(None)) == (10, 7, 5, None)
    assert begun.steps() == [5, 7, 10]
    seven = put_model(begun, 7)
    assert begun.model_at("best") == seven, "the model beside a checkpoint is the same"
    (best / "model.json").write_text("{")
    with pytest.raises(UserError, match=r"best/model\.json cannot be read: .*; copy the run again"):
        begun.model_at("best")


def test_later_checkpoints_are_deleted_and_no_other_file(folder):
    for step in (5, 10, 15):
        save(folder, step, keep=9)
        put_model(folder, step)
    put_model(folder, 15, folder.best)
    (folder.checkpoints / "step-of-mine").mkdir()
    assert folder.last_checkpoint(5).step == 5
    assert folder.last_checkpoint(7) is None
    assert folder.drop_later(10) == [15]
    assert folder.drop_later(10) == []
    assert steps(folder) == [5, 10]
    assert folder.steps() == [5, 10, 15], "the best model stays"
    assert (folder.checkpoints / "step-of-mine").is_dir()
    assert folder.last_checkpoint().step == 10


def test_a_run_that_is_not_finished_says_which_steps_it_has(begun):
    with pytest.raises(UserError, match=r"no final model yet; finish training it with `atat train --resume \S+`$"):
        begun.model_at()
    (put_model(begun, 4) / "model.json").unlink()  # half a model is none
    with pytest.raises(
        UserError, match=r"--step 4: .* has no model for this step; resume its training until it saves one"
    ):
        begun.model_at(4)
    put_model(begun, 5)
    with pytest.raises(
        UserError, match=r"--resume \S+`, or choose a checkpoint, as in --step newest \(available: 5\)$"
    ):
        begun.model_at()


def test_a_model_of_another_run_is_refused(begun):
    """Its own hashes fit, as all of its files were copied."""
    begun.resolved.write_text('[noise]\nuse = "linear"\n[train]\nsteps = 9\n[sampler]\nsteps = 4')
    noise, other = {"use": "linear", "new": 1}, {"use": "cosine"}  # a newer version had another parameter
    for step, kind in ((3, noise), (6, other)):
        put_model(begun, step, noise=kind, train={"steps": 6}, sampler={"steps": 8})
    assert begun.model_at(3) == begun.checkpoint_model(3)
    put_model(begun, 9, begun.model, noise=other)
    there = r"belongs to a different experiment: noise\.use is 'cosine' there, but 'linear' in .*resolved\.toml; copy"
    for step in (None, 6, 9):
        with pytest.raises(UserError, match=there):
            begun.model_at(step)


def test_a_model_goes_with_its_checkpoint_and_nothing_else_does(begun):
    for step in (1, 2, 3, 4):
        put_model(begun, step)
        save(begun, step, keep=2)
    put_model(begun, 9)  # killed before its checkpoint was written
    (begun.checkpoints / "step-of-mine").mkdir()
    half = begun.checkpoints / ".step-00000005.pt.12345.part"
    half.write_bytes(b"half")
    killed = put_model(begun, 5, begun.checkpoints / ".step-00000005.4711.part")
    save(begun, 4, keep=2)
    folders = sorted(path.name for path in begun.checkpoints.iterdir() if path.is_dir())
    assert folders == ["step-00000003", "step-00000004", "step-of-mine"]
    assert not killed.exists()
    assert not half.exists()


# The environment


@pytest.mark.parametrize(
    "data", [None, b"", b"\xff", b"{", b"[]", b"5", b"{}", b'{"computes": 3}', b'{"computes": [1]}', b"[" * 100_000]
)
def test_an_environment_that_is_damaged_says_nothing(folder, data):
    if data is not None:
        folder.environment.write_bytes(data)
    assert folder.began_with() == {}
    assert folder.initial_weights() is None
