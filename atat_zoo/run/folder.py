"""The files of a run, and the lock on them."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tomllib
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from atat_zoo.errors import UserError
from atat_zoo.run import atomic
from atat_zoo.run.model_files import DESCRIPTION, described, sha256_of
from atat_zoo.run.renamed import today

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Checkpoint(NamedTuple):
    """A checkpoint of this run that is complete."""

    step: int
    path: Path


class RunFolder:
    """A run folder.

    resolved.toml     the experiment, every parameter in full
    environment.json  versions, git state, hardware, seed
    metrics.jsonl     one line per logged step
    checkpoints/      Composer's, read as data and only to continue this run; beside each the model of its step
    model/            the trained model: safetensors and JSON
    evaluations/      results, one JSON each
    samples.txt       generated texts
    logs/             files of the loggers
    """

    def __init__(self, path: Path) -> None:
        """Set the paths; nothing is read or written yet."""
        self.path = path
        self.resolved = path / "resolved.toml"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.evaluations = path / "evaluations"
        self.samples = path / "samples.txt"
        self.logs = path / "logs"

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return self.resolved.is_file()

    def table(self) -> dict[str, Any]:
        """Return the resolved experiment as a table, with the current names of its keys.

        Raises:
            UserError: when there is no run here.
        """
        if not self.exists:
            raise UserError(
                f"{self.path} is no run folder: it has no resolved.toml; name a folder that `atat train` made"
            )
        try:
            return today(tomllib.loads(self.resolved.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:  # ValueError: no TOML, no UTF-8
            raise UserError(f"{self.resolved} cannot be read: {error}; copy the run again, or train again") from None

    def model_at(self, step: int | None = None) -> Path:
        """Return the folder of the final model, or of the model beside the checkpoint of `step`.

        Raises:
            UserError: when there is no run here, or it has no such model; it says which steps there are.
        """
        self.table()
        if step is None and (self.model / DESCRIPTION).is_file():
            return self.model
        models = self._models()
        steps = ", ".join(map(str, sorted(models)))
        if step is None:
            checkpoints = f", or choose a checkpoint with --step (there are: {steps})" if models else ""
            raise UserError(
                f"{self.path} has no final model yet; finish its training with `atat train --resume {self.path}`"
                f"{checkpoints}"
            )
        if step not in models:
            choose = f"choose one of its steps: {steps}" if models else "it has none yet; leave --step out"
            raise UserError(f"--step {step}: {self.path} has no model of this step; {choose}")
        return models[step]

    def _models(self) -> dict[int, Path]:
        """Return the folders of the models by step."""
        models: dict[int, Path] = {}
        with suppress(UserError, KeyError, TypeError, ValueError, OverflowError):
            models[int(described(self.model)["step"])] = self.model
        for path in self.checkpoints.glob(f"step-*/{DESCRIPTION}"):
            with suppress(ValueError):
                models[int(path.parent.name.removeprefix("step-"))] = path.parent
        return models

    def began_with(self) -> dict[str, Any]:
        """Return the device, precision and ranks that the run began with; empty when they are not known."""
        return self._environment("computes")

    def initial_weights(self) -> str | None:
        """Return the SHA-256 of the weights that the run took from another one, or None when it is not known."""
        return self._environment("init_from").get("sha256")

    def _environment(self, key: str) -> dict[str, Any]:
        with suppress(OSError, ValueError, KeyError, TypeError):
            return dict(json.loads(self.environment.read_text(encoding="utf-8"))[key])
        return {}

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for this process.

        Raises:
            UserError: when another process has locked it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # The file is never deleted: a lock on a deleted file would guard nothing.
            descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be a run folder: {error.strerror}; choose another folder with --out"
            ) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "unknown"
                raise UserError(
                    f"{self.path} is in use by another process ({owner}); "
                    "wait for it, or choose another folder with --out"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def clear(self) -> None:
        """Remove the files of an earlier run, except the lock."""
        for path in (self.resolved, self.environment, self.metrics, self.samples):
            path.unlink(missing_ok=True)
        for path in (self.checkpoints, self.model, self.evaluations, self.logs):
            shutil.rmtree(path, ignore_errors=True)

    # Metrics

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            reason = f"{self.metrics} cannot be written: {error.strerror}"
            raise UserError(f"{reason}; free some space and resume") from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl, without a truncated last line."""
        if not self.metrics.is_file():
            return []
        lines = []
        for text in self.metrics.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):
                lines.append(json.loads(text))
        return lines

    def cut_metrics(self, step: int) -> None:
        """Drop the lines after `step`, so that a resumed run writes each step once."""
        lines = [line for line in self.read_metrics() if line["step"] <= step]
        atomic.write_text(self.metrics, "".join(json.dumps(line) + "\n" for line in lines))

    # Checkpoints

    def checkpoint_model(self, step: int) -> Path:
        """Return where the model beside the checkpoint of `step` belongs."""
        return self.checkpoints / f"step-{step:08d}"

    @contextmanager
    def writing_checkpoint(self, step: int, keep: int) -> Iterator[Path]:
        """Yield a path for the checkpoint of `step`; afterwards hash it, and delete all but the `keep` newest.

        The model of `step` is written before, so that every checkpoint that counts has one.
        """
        path = self.checkpoint_model(step).with_suffix(".pt")
        # Unfinished files of a killed process; we hold the lock, so nobody is writing them.
        for part in self.checkpoints.glob(".step-*.part"):
            atomic.discard(part)
        with atomic.replacing(path) as beside:
            yield beside
            digest = sha256_of(beside)
        # The hash comes last: a checkpoint without it was interrupted.
        atomic.write_json(path.with_suffix(".json"), {"step": step, "sha256": digest})
        # A later step belongs to an abandoned continuation: it must not count towards `keep`, and no resumed run may
        # continue from it.
        ours = [each for each in self.checkpoints.iterdir() if re.fullmatch(r"step-\d{8,}", each.stem)]
        saved = sorted(each.stem for each in ours if each.suffix == ".pt")
        here = saved.index(path.stem)
        kept = saved[max(0, here + 1 - keep) : here + 1]
        for old in sorted(ours, key=lambda each: each.suffix != ".json"):  # notes first
            if old.stem not in kept:
                atomic.discard(old)

    def last_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint with a correct hash, or None."""
        for note in sorted(self.checkpoints.glob("step-*.json"), reverse=True):
            path = note.with_suffix(".pt")
            with suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
                recorded = json.loads(note.read_text(encoding="utf-8"))
                if sha256_of(path) == recorded["sha256"]:
                    return Checkpoint(int(recorded["step"]), path)
        return None
