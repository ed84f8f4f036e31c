"""Training runs as processes on this machine or as jobs on a cluster. Imports no torch before the runs start.

The process that works on a run holds its claim, `claims/RUN` in the study's folder; training locks the run folder as
usual. `trainings.jsonl` has a line for each process that ended, and `logs/RUN.txt` the output of the last process.
"""

import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import attrs

from atat_zoo.experiment.runs import write_text
from atat_zoo.studies.study_schema import Study, StudyRun, in_order
from atat_zoo.system import locks, parsing
from atat_zoo.system.errors import UserError, clip
from atat_zoo.system.interruption import Interruption
from atat_zoo.system.machine import cores

_PAUSE = 0.1  # seconds after which the processes are checked again
_BESIDE = 0.1  # share of a core that other processes may use in a run that is recorded as running alone


def launch(words: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `atat WORDS`, which writes to `log` and does not get the terminal's Ctrl-C, and return the process."""
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "atat_zoo", *words],  # -P: import nothing from the working directory
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            start_new_session=True,
        )


def threads_for(jobs: int) -> int:
    """Return the number of threads per training run: OMP_NUM_THREADS if set, or else an equal share of the cores."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return int(threads) if threads.isdecimal() and int(threads) else max(1, cores() // jobs)


def gpus() -> list[str]:
    """Return the GPUs that this process may use, named as in CUDA_VISIBLE_DEVICES."""
    import torch

    count, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    return [str(number) for number in range(count)] if visible is None else visible.replace(" ", "").split(",")[:count]


def spent_by_others() -> float | None:
    """Return the machine's CPU seconds since boot, except those of this process's ended children; None if unknown."""
    try:
        # Not `parsing.read`, which reads as many bytes as the file has: files in /proc have a size of 0.
        ticks = [int(word) for word in Path("/proc/stat").read_bytes().split(b"\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    idle, own = sum(ticks[3:5]), resource.getrusage(resource.RUSAGE_CHILDREN)
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK") - own.ru_utime - own.ru_stime


class InUse(Exception):
    """The error for a lock that another process holds; its text names the process."""


def _refuse(owner: str) -> None:
    raise InUse(owner)


@contextmanager
def claimed(run: StudyRun, *, wait: bool = False) -> Iterator[None]:
    """Claim a run for this process; if another process has claimed it, wait if `wait`, or else raise `InUse`."""
    path = run.path.parent / "claims" / run.name
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locks.locked(path, (lambda _: None) if wait else _refuse))
        except OSError as error:
            problem = f"{clip(run.path.parent)} cannot be the folder of a study: {error.strerror}"
            raise UserError(f"{problem}; set `folder` to a different path") from None
        yield


class Stopped(Exception):
    """The exception that is raised after the signal `number` stopped the study and every training run was saved."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@attrs.define(eq=False)
class _Training:
    run: StudyRun
    process: subprocess.Popen[bytes]
    claim: ExitStack
    log: Path
    began: float
    others: float | None  # CPU seconds of all other processes until the start
    gpu: str | None


def _hand_on(number: int, trainings: Sequence[_Training]) -> None:
    """Send a signal to training processes, which save a checkpoint and exit."""
    for training in trainings:
        with suppress(ProcessLookupError):
            training.process.send_signal(number)


@attrs.define
class LocalExecutor:
    """Trains up to `jobs` runs at a time on this machine, each on the GPU with the fewest of them, or on the CPU."""

    folder: Path
    jobs: int
    say: Callable[[str], None]
    gpus: list[str] = attrs.field(factory=gpus)

    def train(self, runs: Sequence[StudyRun]) -> dict[str, str]:
        """Train each unfinished run once; return the errors of failed runs by name, or raise `Stopped` after a signal.

        If another study is training a run, wait for it, and resume the run here if that study stops.
        """
        active: list[_Training] = []
        with Interruption(lambda number, _: _hand_on(number, active)) as stopping:
            failed = self._train([run for run in runs if not run.finished], active, stopping)
        if stopping.signal is not None:
            raise Stopped(stopping.signal)
        return failed

    def _train(self, waiting: list[StudyRun], active: list[_Training], stopping: Interruption) -> dict[str, str]:
        failed: dict[str, str] = {}
        told: set[str] = set()
        try:
            while active or (waiting and stopping.signal is None):
                for run in list(waiting) if stopping.signal is None else ():
                    if len(active) == self.jobs:
                        break
                    try:
                        if not run.finished:  # by a different study
                            # The GPU with the fewest training runs, if there is one and the run is not for a CPU.
                            there = self.gpus if run.experiment.train.device != "cpu" else ()
                            used = [training.gpu for training in active]
                            active.append(self._start(run, min(there, key=used.count, default=None)))
                        waiting.remove(run)
                    except InUse as owner:
                        if run.name not in told:
                            told.add(run.name)
                            self.say(f"{run.name}: in use by {owner}; waiting for it")
                time.sleep(_PAUSE)
                for training in [each for each in active if each.process.poll() is not None]:
                    active.remove(training)
                    if problem := self._ended(training, stopped=stopping.signal is not None):
                        failed[training.run.name] = problem
        finally:  # after an error here, such as a full disk, leave no training process behind
            while active:
                _hand_on(signal.SIGTERM, active)
                time.sleep(_PAUSE)
                active[:] = [each for each in active if each.process.poll() is None]
        return failed

    def _start(self, run: StudyRun, gpu: str | None) -> _Training:
        with ExitStack() as stack:
            stack.enter_context(claimed(run))
            if (run.path / ".lock").is_file():  # trained without a study, or by one that was killed
                with locks.locked(run.path / ".lock", _refuse):
                    pass
            if run.finished:
                raise InUse("a study that has just finished it")
            log = self.folder / "logs" / f"{run.name}.txt"
            log.parent.mkdir(exist_ok=True)
            begun = run.folder.exists
            words = ["--resume", str(run.path)] if begun else [run.file, *run.overrides, "--out", str(run.path)]
            env = {"OMP_NUM_THREADS": str(threads_for(self.jobs))} | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})
            others = spent_by_others()
            process = launch(["train", *words], log, env)
            where = f" on GPU {gpu}" if gpu else ""
            self.say(f"{run.name}: {'resuming' if begun else 'training'} to step {run.experiment.train.steps}{where}")
            return _Training(run, process, stack.pop_all(), log, time.monotonic(), others, gpu)

    def _ended(self, training: _Training, *, stopped: bool) -> str:
        """Record the end of a training process and release its run; return its error, or an empty string."""
        run, code = training.run, training.process.poll()
        assert code is not None
        seconds = time.monotonic() - training.began
        others, before = spent_by_others(), training.others
        # Time of ended child processes is not counted as others' time, so concurrent runs cannot detect one another.
        spent = None if self.jobs > 1 or others is None or before is None else others - before
        alone = spent is not None and spent <= _BESIDE * seconds
        how = {"jobs": self.jobs, "threads": threads_for(self.jobs), "alone": alone}
        line = {"run": run.name, **how, "code": code, "seconds": round(seconds, 1)}
        with (self.folder / "trainings.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        training.claim.close()
        if code == 0 and run.finished:
            self.say(f"{run.name}: finished in {seconds:,.0f} s")
            return ""
        problem = _problem(code, training.log)
        self.say(f"{run.name}: {'stopped' if stopped else f'failed: {problem}'} after {seconds:,.0f} s")
        return problem


def _problem(code: int, log: Path) -> str:
    """Return the error of a training process: its messages, or the last line of a traceback."""
    lines = []
    with suppress(OSError):
        lines = [line for line in parsing.read(log).decode("utf-8", "backslashreplace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")] or lines[-1:]
    end = f"exit code {code}" if code >= 0 else f"signal {-code}"
    return f"{'; '.join(clip(line, 1000) for line in errors) or 'no message'} ({end}, {log.parent.name}/{log.name})"


def ran_with(folder: Path) -> dict[str, list[dict[str, int]]]:
    """Return, by run, the distinct settings in a study's folder: `jobs` at a time, `threads` each, `alone` or not."""
    settings: dict[str, list[dict[str, int]]] = {}
    with suppress(OSError):
        for text in parsing.read(folder / "trainings.jsonl").splitlines():
            with suppress(ValueError, KeyError, TypeError):  # an incomplete line
                line = parsing.from_json(text)
                how = {key: int(line[key]) for key in ("jobs", "threads")} | {"alone": line.get("alone") is True}
                of_run = settings.setdefault(str(line["run"]), [])
                if how not in of_run:
                    of_run.append(how)
    return settings


# On a cluster: a SLURM job array of the training runs, followed by a job that evaluates them


def elements(study: Study) -> list[StudyRun]:
    """Return the runs of the job array in order; raise `UserError` if some runs depend on the results of others."""
    for key, there in (("[sweep]", study.sweep), ("match_seconds", study.matched)):
        if there:
            problem = (
                f"{clip(study.file)}: {key} makes runs depend on the results of others, but array jobs are independent"
            )
            raise UserError(f"{problem}; leave {key} out, or run the study on one machine with --jobs")
    return in_order({arm: study.arm_runs(arm, {}) for arm in study.arms})


def write_script(study: Study, measure: Sequence[str], jobs: int | None) -> Path:
    """Write the script that submits a study, and return its path.

    Args:
        study: The study.
        measure: Arguments of `atat study` for the job that evaluates: the file and options.
        jobs: Maximum number of concurrent array elements (default: as many as SLURM starts).
    """
    array = f"1-{len(elements(study))}{f'%{jobs}' if jobs else ''}"
    sbatch = shlex.quote(str(Path(__file__).with_name("sbatch") / "study.sbatch"))
    path = study.folder / "cluster.sh"
    lines = [
        "#!/bin/bash",
        "# Written by `atat study --cluster`: a job array of the study's training runs, and a job that evaluates them.",
        "# Pass options of sbatch as arguments, such as --partition=gpu. To resume the study, submit it again.",
        "set -eu",
        f"cd {shlex.quote(str(Path.cwd()))}",
        f'job=$(sbatch --parsable "$@" --array={array} {sbatch} {shlex.quote(measure[0])})',
        f'sbatch "$@" --dependency=afterany:"${{job%%;*}}" {sbatch} {shlex.join(measure)}',
    ]
    write_text(path, "\n".join(lines) + "\n")
    path.chmod(0o755)
    return path


def submit(script: Path) -> str | None:
    """Run the script and return its output, or None without `sbatch`; raise `UserError` if the script fails."""
    if shutil.which("sbatch") is None:
        return None
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False)
    if done.returncode:
        problem = f"sbatch rejected {script}: {clip(done.stderr.strip())}"
        raise UserError(f"{problem}; run it with the options of your cluster: bash {script} OPTIONS")
    return done.stdout.strip()
