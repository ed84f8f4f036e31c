"""The scripts for a cluster: what they start, what goes back to the queue, and that it goes on there."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from atat_zoo import studies

FOLDER = Path(studies.__file__).with_name("sbatch")
# Stand-ins for SLURM's commands. A node is a process on this machine; one after the other, or they would share a port.
SRUN = """
shift
for ((i = 0; i < SLURM_JOB_NUM_NODES; i++)); do
    SLURM_NODEID=$i "$@" || exit
done
"""
SCONTROL = 'if [[ $1 == show ]]; then printf "%s\\n" first second; else echo "$@" >> requeued; fi'
RECORDS = 'printf "%s " "$@" >> said; echo >> said; exit "${CODE:-0}"'
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "any", "SLURM_GPUS_ON_NODE": "8"}


def submit(folder, script, *words, commands, **env):
    """Run a script as SLURM does, in a folder with the stand-ins; `commands` are further ones."""
    there = folder / "bin"
    there.mkdir(exist_ok=True)
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, **commands}.items():
        (there / name).write_text(f"#!/bin/bash\n{text}\n")
        (there / name).chmod(stat.S_IRWXU)
    variables = {**os.environ, **JOB, "PATH": f"{there}:{os.environ['PATH']}", **env}
    call = ["bash", str(FOLDER / script), *words]
    done = subprocess.run(call, cwd=folder, env=variables, text=True, capture_output=True, check=False, timeout=240)
    return done.returncode, done.stdout + done.stderr


def said(folder, *words, **how):
    """Submit a script, and return its exit code and what the stand-ins have said."""
    code, _ = submit(folder, *words, **how)
    return code, (folder / "said").read_text().splitlines()


@pytest.mark.parametrize("script", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_bash_can_read_it(script):
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_every_node_has_a_launcher_with_its_number(tmp_path):
    words = ("train.sbatch", "owt-small/atat", "runs/mine", "train.steps=5", 'corpus.train=["a b"]')
    rest = '-m atat_zoo.train owt-small/atat --out runs/mine train.steps=5 corpus.train=["a b"] '
    launched = "-n 8 --world_size 16 --node_rank {} --master_addr first --master_port 20007 " + rest
    found = said(tmp_path, *words, commands={"composer": RECORDS}, SLURM_JOB_NUM_NODES="2")
    assert found == (0, [launched.format(0), launched.format(1)])
    assert not (tmp_path / "requeued").exists()


@pytest.mark.parametrize(
    ("script", "code", "restarts", "goes_on"),
    [
        *(("train", "1", "0", True), ("train", "143", "19", True), ("train", "137", "20", False)),
        *(("train", "2", "0", False), ("study", "143", "19", True), ("study", "143", "20", False)),
        *(("study", "1", "0", False), ("study", "2", "0", False)),  # at the end of its time alone
    ],
)
def test_what_goes_back_to_the_queue(tmp_path, script, code, restarts, goes_on):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "resolved.toml").touch()
    settings = {"CODE": code, "SLURM_RESTART_COUNT": restarts, "NPROC": "2", "SLURM_ARRAY_TASK_ID": "1"}
    words = ("train.sbatch", "a", "mine", "train.microbatch_size=4") if script == "train" else ("study.sbatch", "mine")
    left, (call,) = said(tmp_path, *words, commands={"composer": RECORDS, "atat": RECORDS}, **settings)
    if script == "train":
        assert call.endswith("-m atat_zoo.train --resume mine train.microbatch_size=4 ")
        assert call.startswith("-n 2 --world_size 2 ")
    assert left == (0 if goes_on else int(code))
    assert (tmp_path / "requeued").exists() is goes_on
    assert not goes_on or (tmp_path / "requeued").read_text() == "requeue 7\n"


# As SLURM does before the end of the time: SIGTERM to every process of the step, when all of it runs.
TERMS = """
shift
SLURM_NODEID=0 setsid "$@" &
until [[ -e running ]]; do sleep 0.02; done
kill -TERM -- -$!
wait $!
"""
# A launcher, which has no handler, and its rank, which has one.
RANK = """import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
open("running", "w").close()
signal.pause()
"""
LAUNCHES = f"{sys.executable} -c '{RANK}'\ncode=$?\necho the rank ended with $code >> said\nexit $code"


def test_the_end_of_the_time_is_handed_on_and_waited_for(tmp_path):
    cases = [
        (("train.sbatch", "a", "mine"), {"srun": TERMS, "composer": LAUNCHES}, "the rank ended with 143"),
        (("study.sbatch", "mine"), {"atat": f"exec {sys.executable} -c '{ENDS}'"}, "the study is saved"),
    ]
    for number, (words, commands, last) in enumerate(cases):
        (folder := tmp_path / str(number)).mkdir()
        assert said(folder, *words, commands=commands, SLURM_ARRAY_TASK_ID="1") == (0, [last])
        assert (folder / "requeued").read_text() == "requeue 7\n"


@pytest.mark.parametrize(
    ("words", "task", "call"),
    [
        ("build.sbatch a data.length=8", {"SLURM_ARRAY_TASK_ID": "3"}, "data build a data.length=8 --slice 3/16 "),
        ("study.sbatch mine --device cuda", {"SLURM_ARRAY_TASK_ID": "3"}, "study mine --device cuda --array-index 3 "),
        ("study.sbatch mine --device cuda", {}, "study mine --device cuda --measure "),
    ],
)
def test_a_slice_and_a_training_are_tasks_of_an_array_and_a_job_measures(tmp_path, words, task, call):
    found = said(tmp_path, *words.split(), commands={"atat": RECORDS}, SLURM_ARRAY_TASK_COUNT="16", **task)
    assert found == (0, [call])


# The end of the time: SIGTERM to the shell alone, when the study runs, which takes a while to save itself.
ENDS = """import os, signal, sys, time
def save(*_):
    time.sleep(0.2)
    open("said", "w").write("the study is saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
os.kill(os.getppid(), signal.SIGTERM)
signal.pause()
"""


@pytest.mark.slow
def test_a_begun_run_goes_on_with_the_launcher(tiny, uninterrupted):
    run = tiny.root / "cluster"
    shutil.copytree(uninterrupted, run)
    shutil.rmtree(run / "model")
    for path in (run / "checkpoints").glob("step-*24*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    commands = {
        "composer": f'exec {sys.executable} -m composer.cli.launcher "$@"',
        "scontrol": SCONTROL.replace("first second", "127.0.0.1"),
    }
    code, printed = submit(tiny.root, "train.sbatch", str(tiny.path), "cluster", commands=commands, NPROC="2")
    assert (code, "continuing cluster after step 20 of 24" in printed) == (0, True), printed
    assert "ranks from 1 to 2" in printed
    shared, alone = tiny.losses("cluster"), tiny.losses("uninterrupted")
    assert list(shared) == list(alone)
    for step, line in alone.items():  # to rounding, in which a mask differs now and then
        assert shared[step]["loss"] == pytest.approx(line["loss"], rel=2e-2), step
    assert (run / "model" / "model.safetensors").is_file()
