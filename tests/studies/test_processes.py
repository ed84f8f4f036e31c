"""Trainings as processes: how they are started, stopped and recorded."""

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from atat_zoo.studies import processes
from atat_zoo.studies.processes import InUse, LocalExecutor, Stopped, claimed, launch, ran_with, threads_for
from atat_zoo.system.errors import UserError


def wait(process):
    deadline = time.monotonic() + 60
    while process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process.poll()


@pytest.mark.slow
def test_a_process_runs_atat_by_itself_and_imports_nothing_from_the_working_folder(tmp_path, monkeypatch):
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "click.py").write_text(f"import sys\nsys.exit('click of {folder}')\n")
    monkeypatch.chdir(tmp_path / "here")
    log = tmp_path / "log.txt"
    process = launch(["check", "quickstart"], log, {"OMP_NUM_THREADS": "1"})
    # Ctrl-C of the terminal does not reach it.
    assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
    assert wait(process) == 0
    assert "quickstart is valid" in log.read_text()
    # What it says of its mistakes is there too.
    assert wait(launch(["check", "nothing"], log, {})) == 2
    assert processes._problem(2, log).startswith("unknown experiment 'nothing'")
    assert wait(launch(["check", "quickstart"], log, {"PYTHONPATH": str(tmp_path / "there")})) == 1
    assert log.read_text() == "click of there\n"


@pytest.mark.parametrize(
    ("text", "code", "problem"),
    [
        ("step 1\nTraceback\nValueError: no\n\n", 1, "ValueError: no (exit code 1, logs/x.txt)"),
        ("error: one\nsome\nerror: two\n", 2, "one; two (exit code 2, logs/x.txt)"),
        ("", -9, "no message (signal 9, logs/x.txt)"),
    ],
)
def test_what_a_training_said_last(tmp_path, text, code, problem):
    (tmp_path / "logs").mkdir()
    (log := tmp_path / "logs" / "x.txt").write_text(text)
    assert processes._problem(code, log) == problem


def test_the_cores_are_shared(monkeypatch):
    monkeypatch.setattr(processes, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_for(jobs) for jobs in (1, 3, 20)] == [8, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_for(2) == 3


def test_the_gpus_are_those_that_this_process_sees(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert processes.gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-5a,7")
    assert processes.gpus() == ["3", "GPU-5a"]


class Training:
    """A training that ends when its turn comes."""

    def __init__(self, gpu):
        self.gpu, self.code, self.signals = gpu, None, []
        self.send_signal = self.signals.append

    def poll(self):
        return self.code


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Return a function that lets trainings run for these devices, and what it said; and all that were begun."""
    begun = []

    def launched(words, log, env):
        begun.append(Training(env.get("CUDA_VISIBLE_DEVICES")))
        return begun[-1]

    def train(jobs, gpus, devices, sleep):
        def slept(seconds):
            active = [training for training in begun if training.code is None]
            assert len(active) <= jobs
            sleep(active)

        monkeypatch.setattr(processes, "launch", launched)
        monkeypatch.setattr(processes.time, "sleep", slept)
        runs, said = [], []
        for number, device in enumerate(devices):
            of_all = {"folder": SimpleNamespace(exists=False), "finished": False, "file": "tiny.toml", "overrides": ()}
            experiment = SimpleNamespace(train=SimpleNamespace(steps=3, device=device))
            name = f"run{number}"
            runs.append(SimpleNamespace(name=name, path=tmp_path / name, experiment=experiment, **of_all))
        LocalExecutor(folder=tmp_path, jobs=jobs, say=said.append, gpus=gpus).train(runs)
        return said

    return train, begun


@pytest.mark.parametrize(
    ("jobs", "gpus", "devices", "on"),
    [
        (2, ["3", "5"], ["auto"] * 4, ["3", "5", "3", "5"]),
        (4, ["3", "5"], ["auto", "gpu", "cpu", "auto"], ["3", "5", None, "3"]),  # they share
        (2, [], ["auto"] * 2, [None, None]),
    ],
)
def test_each_training_has_a_gpu_of_its_own(train, jobs, gpus, devices, on):
    train, begun = train

    def sleep(active):  # the first of those that run ends
        active[0].code = 0

    said = [line for line in train(jobs, gpus, devices, sleep) if "training" in line]
    assert [training.gpu for training in begun] == on
    assert said == [f"run{i}: training to step 3" + (f" on GPU {gpu}" if gpu else "") for i, gpu in enumerate(on)]


def test_a_signal_is_handed_on_each_time_and_nothing_begins_after_it(train):
    train, begun = train
    before = signal.getsignal(signal.SIGINT)

    def sleep(active):
        os.kill(os.getpid(), signal.SIGINT if len(active) == 2 else signal.SIGTERM)
        active[0].code = 0

    with pytest.raises(Stopped) as stopped:
        train(2, [], ["cpu"] * 4, sleep)
    assert stopped.value.number == signal.SIGINT
    assert [training.signals for training in begun] == [[signal.SIGINT], [signal.SIGINT, signal.SIGTERM]]
    assert signal.getsignal(signal.SIGINT) is before


def test_no_training_is_left_behind_when_something_goes_wrong(train):
    train, begun = train

    def sleep(active):
        if not active[0].signals:
            raise OSError("the disk is full")
        active[0].code = 0

    with pytest.raises(OSError, match="the disk is full"):
        train(1, [], ["cpu"], sleep)
    assert [(training.signals, training.code) for training in begun] == [([signal.SIGTERM], 0)]


def test_one_process_claims_a_run(tmp_path):
    run = SimpleNamespace(path=tmp_path / "study" / "a-seed1", name="a-seed1")
    other, in_use = SimpleNamespace(path=tmp_path / "study" / "b", name="b"), f"process {os.getpid()} on"
    with claimed(run), claimed(other), pytest.raises(InUse, match=in_use):
        claimed(run).__enter__()
    for wait in (False, True):  # released: the one does not raise, the other does not wait; and it is claimed again
        with claimed(run, wait=wait), pytest.raises(InUse):
            claimed(run).__enter__()
    assert not run.path.exists()


def test_how_a_run_was_trained_is_read_past_a_torn_line(tmp_path):
    assert ran_with(tmp_path) == {}
    lines = [*['{"run": "a", "jobs": 2, "threads": 1}'] * 2, "5", '{"run": "a", "jo']
    (tmp_path / "trainings.jsonl").write_text("\n".join([*lines, '{"run": "a", "jobs": 1, "threads": 2}']))
    beside, unknown = ({"jobs": jobs, "threads": threads, "alone": False} for jobs, threads in ((2, 1), (1, 2)))
    assert ran_with(tmp_path) == {"a": [beside, unknown]}


@pytest.mark.parametrize(
    ("before", "after", "jobs", "alone"),
    [(5.0, 5.9, 1, True), (5.0, 5.9, 2, False), (5.0, 6.1, 1, False), (None, 5.0, 1, False), (5.0, None, 1, False)],
)
def test_a_training_ran_alone_where_all_else_took_a_tenth_of_a_core_at_most(
    tmp_path, monkeypatch, before, after, jobs, alone
):
    monkeypatch.setattr(processes, "spent_by_others", lambda: after)
    monkeypatch.setattr(processes.time, "monotonic", lambda: 110.0)
    run = SimpleNamespace(name="a", finished=True)
    process = SimpleNamespace(poll=lambda: 0)
    training = processes._Training(run, process, ExitStack(), tmp_path / "log", 100.0, before, None)
    executor = LocalExecutor(folder=tmp_path, jobs=jobs, say=lambda _: None, gpus=[])
    assert executor._ended(training, stopped=False) == ""
    assert ran_with(tmp_path)["a"][0]["alone"] is alone


def test_what_ended_children_took_is_not_spent_by_others(monkeypatch):
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [200, 10, 20, 4000, 500, 3, 2, 5]  # user, nice, system, idle, waiting for disks, …, stolen
    stat = f"cpu  {' '.join(str(each * ticks) for each in fields)} 7 7\ncpu0 1 2 3\n".encode()
    monkeypatch.setattr(processes.Path, "read_bytes", lambda _: stat)
    used = SimpleNamespace(ru_utime=30.0, ru_stime=1.0)
    monkeypatch.setattr(processes.resource, "getrusage", lambda _: used)
    assert processes.spent_by_others() == pytest.approx(240 - 31)

    def absent(_):
        raise FileNotFoundError

    monkeypatch.setattr(processes.Path, "read_bytes", absent)
    assert processes.spent_by_others() is None


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="only Linux counts what the machine spends")
def test_what_this_process_computes_is_spent():
    before, until = processes.spent_by_others(), time.process_time() + 0.1
    while time.process_time() < until:
        sum(range(1000))
    assert processes.spent_by_others() - before >= 0.08  # in ticks of a hundredth


def test_a_script_is_submitted_where_sbatch_is(tmp_path, monkeypatch):
    script, asked = tmp_path / "submit.sh", []
    script.write_text("echo job 7; exit $CODE\n")
    monkeypatch.setattr(processes.shutil, "which", lambda name: asked.append(name))
    assert processes.submit(script) is None
    assert asked == ["sbatch"]
    monkeypatch.setattr(processes.shutil, "which", lambda name: name)
    monkeypatch.setenv("CODE", "0")
    assert processes.submit(script) == "job 7"
    monkeypatch.setenv("CODE", "1")
    with pytest.raises(UserError, match=r"sbatch rejected .*submit\.sh: "):
        processes.submit(script)
