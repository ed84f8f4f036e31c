"""The files of a run, and the lock that protects them."""

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from atat_zoo.experiment.runs.changes import changes
from atat_zoo.experiment.runs.model_files import DESCRIPTION, described, sha256_of, unreadable
from atat_zoo.system import atomic_files, locks, parsing
from atat_zoo.system.errors import UserError, clip


class Checkpoint(NamedTuple):
    """A complete checkpoint of a run; `experiment` is the one that it was trained with, or None if unknown."""

    step: int
    path: Path
    experiment: dict[str, Any] | None


class RunFolder:
    """The paths of a run's files, and methods that read, write and lock them.

    resolved.toml     the experiment with every parameter, written first
    environment.json  versions, git state, hardware, seed; not needed to resume
    metrics.jsonl     one line per logged step
    checkpoints/      Composer's checkpoints, loaded only to resume, as plain data; each with the model of its step
    model/            the trained model: safetensors and JSON
    evaluations/      results, one JSON file each
    samples.txt       generated texts
    report/           data that the HTML report needs and training does not record
    logs/             files written by the loggers
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.resolved = path / "resolved.toml"
        self.environment = path / "environment.json"
        self.metrics, self.damaged = path / "metrics.jsonl", path / "metrics.damaged"
        self.checkpoints = path / "checkpoints"
        self.best = self.checkpoints / "best"
        self.model = path / "model"
        self.evaluations = path / "evaluations"
        self.samples = path / "samples.txt"
        self.report = path / "report"
        self.logs = path / "logs"
        self._lock, self._new, self._old = path / ".lock", path / ".new", path / ".old"

    @property
    def exists(self) -> bool:
        """Whether the folder contains a run, after completing an interrupted replacement; may raise a `UserError`."""
        try:
            if self._new.is_dir():
                with suppress(UserError), self.lock():  # unless locked, the process that began it was killed
                    pass
            return self.resolved.is_file()
        except OSError as error:  # the name is too long, or permission is denied
            problem = f"{clip(self.path)} cannot be read: {error.strerror}"
            raise UserError(f"{problem}; pass a folder that `atat train` wrote") from None

    def require(self) -> None:
        """Raise a `UserError` if the folder does not contain a run."""
        if not self.exists:
            raise UserError(
                f"{clip(self.path)} is not a run folder: resolved.toml is missing; pass a folder that `atat train` "
                f"wrote"
            )

    def table(self) -> dict[str, Any]:
        """Return the resolved experiment as a table, or raise a `UserError` if it is missing or damaged."""
        self.require()
        try:
            return parsing.from_toml(parsing.read(self.resolved).decode("utf-8"))
        except (OSError, ValueError) as error:  # ValueError: invalid TOML or UTF-8
            raise UserError(
                f"{self.resolved} cannot be read: {getattr(error, 'strerror', None) or error}; copy the run again, or "
                "retrain the model"
            ) from None

    def model_at(self, step: int | str | None = None) -> Path:
        """Return the folder of the final model, or of the model at a `step`, given as for `step_of`.

        Raises a `UserError` that lists the available steps if the model does not exist, or names the key that differs
        if the model belongs to a different experiment.
        """
        trained = self.table()
        if step is None and (self.model / DESCRIPTION).is_file():
            return self._own(self.model, trained)
        models, step = self._models(), self.step_of(step)
        steps = ", ".join(map(str, sorted(models)))
        if step is None:
            checkpoints = f", or choose a checkpoint, as in --step newest (available: {steps})" if models else ""
            raise UserError(
                f"{self.path} has no final model yet; finish training it with `atat train --resume {self.path}`"
                f"{checkpoints}"
            )
        if step not in models:
            choose = f"choose one of the steps {steps}" if models else "resume its training until it saves one"
            raise UserError(f"--step {step}: {self.path} has no model for this step; {choose}")
        return self._own(models[step], trained)

    def _own(self, model: Path, trained: dict[str, Any]) -> Path:
        """Return the folder of a model, or raise a `UserError` if the model belongs to a different experiment.

        A new number of steps is ignored, and so are keys that one of the experiments lacks because its version differs.
        """
        for change in changes(trained, described(model)["experiment"]):
            key, was, now, free = change
            if (not free or change.of_text) and key != "train.steps" and None not in (was, now):
                raise UserError(
                    f"{model} belongs to a different experiment: {key} is {clip(repr(now), 60)} there, but "
                    f"{clip(repr(was), 60)} in {self.resolved}; copy the run again, or undo the change"
                )
        return model

    def step_of(self, step: int | str | None) -> int | None:
        """Return the step of the `newest` or `best` model, or a number or None as given; may raise a `UserError`."""
        if step == "newest":
            return self.newest()
        if step != "best":
            return None if step is None else int(step)
        if not (self.best / DESCRIPTION).is_file():
            raise UserError(
                f"--step best: {self.path} has no best model; omit --step, or train with train.keep_best = true"
            )
        return self._step(self.best)

    @staticmethod
    def _step(model: Path) -> int:
        try:
            return int(described(model)["step"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise unreadable(model / DESCRIPTION, error) from error

    def newest(self) -> int:
        """Return the step of the newest model, the final one of a finished run; raise a `UserError` if it has none."""
        if models := self._models():
            return max(models)
        return self._step(self.model_at())

    def steps(self) -> list[int]:
        """Return the steps of all existing models: the kept checkpoints, the best model and the final model."""
        return sorted(self._models())

    def _models(self) -> dict[int, Path]:
        models: dict[int, Path] = {}
        for path in (self.best, self.model):
            with suppress(UserError):
                models[self._step(path)] = path
        for path in self.checkpoints.glob(f"step-*/{DESCRIPTION}"):
            with suppress(ValueError):
                models[int(path.parent.name.removeprefix("step-"))] = path.parent
        return models

    @property
    def in_use(self) -> bool:
        """Whether a process, such as a training run, has locked the folder."""
        return locks.held(self._lock)

    def began_with(self) -> dict[str, Any]:
        """Return the device, the precision and the number of ranks at the run's start, or an empty dict if unknown."""
        return self._environment("computes")

    def machine(self) -> dict[str, Any]:
        """Return the hardware on which the run was started, or an empty dict if unknown."""
        return self._environment("machine")

    def initial_weights(self) -> str | None:
        """Return the SHA-256 of the weights from `init_from`, or None if there are none or it is unknown."""
        return self._environment("init_from").get("sha256")

    def imported(self) -> dict[str, Any]:
        """Return the origin of imported weights: `model`, `revision` and `corpus`, the last None if not given.

        The dict is empty for a run that was trained.
        """
        return self._environment("imported")

    def _environment(self, key: str) -> dict[str, Any]:
        with suppress(OSError, ValueError, KeyError, TypeError):
            return dict(parsing.from_json(parsing.read(self.environment))[key])
        return {}

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder in a `with` block, creating it if needed, and remove unfinished files of killed processes.

        Raises a `UserError` if another process holds the lock, or if a run would delete files that are not its own.
        """

        def refuse(owner: str) -> None:
            raise UserError(
                f"{self.path} is in use by another process ({owner}); wait for that process, or choose a different "
                f"folder with --out"
            )

        def begun() -> bool:
            return any(path.exists() for path in (self.resolved, *self._records))

        file, made = self._lock, list[Path]()
        with ExitStack() as stack:
            try:
                made += [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
                self.path.mkdir(parents=True, exist_ok=True)
                stack.callback(self._remove_empty, made)
                # A run is locked before its first file is written, and the lock file remains even if the run is killed.
                # That file is checked last, because another process may be starting a run.
                there = [path.name for path in self._records if path.exists()]
                if there and not (self.resolved.is_file() or file.exists()):
                    raise UserError(
                        f"{self.path} is not a run folder, but contains files that a run would overwrite "
                        f"({', '.join(there)}); move "
                        "them away, or choose a different folder with --out"
                    )
                stack.enter_context(locks.locked(file, refuse, keep=begun))
                self._exchange()
            except OSError as error:
                problem = f"{clip(self.path)} cannot be a run folder: {error.strerror}"
                raise UserError(f"{problem}; choose a different folder with --out") from error
            for folder in (self.path, self.model, self.evaluations, self.checkpoints, self.report):
                atomic_files.clean(folder)
            yield

    @staticmethod
    def _remove_empty(made: Sequence[Path]) -> None:
        """Remove the folders, innermost first, that were created for a run that never started."""
        with suppress(OSError):
            for folder in made:
                folder.rmdir()

    @property
    def _records(self) -> tuple[Path, ...]:
        """The files and folders that a new run replaces in addition to `resolved.toml`."""
        files = (self.environment, self.metrics, self.damaged, self.samples)
        return (*files, self.checkpoints, self.model, self.evaluations, self.report, self.logs)

    def keeps(self, path: Path) -> bool:
        """Return whether a path, existing or not, is one that the run itself writes, and not a file added by others.

        Of report/, only files count, because a folder in it may be the user's.
        """
        if not self.resolved.is_file():
            return False
        own, path = Path(os.path.realpath(self.path)), Path(os.path.realpath(path))
        first = own / (path.relative_to(own).parts or ("",))[0] if path.is_relative_to(own) else path
        names = {each.name for each in (self.resolved, self._lock, *self._records)}
        return first.parent == own and first.name in names and (first.name != self.report.name or path.is_file())

    @contextmanager
    def replacement(self) -> Iterator["RunFolder"]:
        """Yield an empty run folder; on success, its run replaces the run in this folder, and the old run is deleted.

        The caller holds `lock`. A failure before the replacement leaves the old run unchanged. Once begun, the
        replacement is completed even if the process is killed: the next process that locks the folder or reads its run
        completes it. Files that do not belong to the run are kept.
        """
        with atomic_files.making_folder(self._new, replace=True, shown=self.path) as beside:
            yield RunFolder(beside)
        try:
            self._exchange()
        except OSError as error:
            raise UserError(
                f"{self.path} has a new run, which cannot replace the old one: {error.strerror}; free some space, "
                f"then retry with any command that reads the run"
            ) from error

    def _exchange(self) -> None:
        """Replace the run in this folder with the complete one in `.new`, even after an interruption."""
        leaving = self.path / ".leaving"
        if self._new.is_dir():
            if not self._old.exists():
                leaving.mkdir(exist_ok=True)
                for path in (self.resolved, *self._records):
                    if os.path.lexists(path):
                        path.rename(leaving / path.name)
                leaving.rename(self._old)  # the old run has been moved completely
                atomic_files.sync_folder(self.path)
            for path in sorted(self._new.iterdir(), key=lambda path: path.name == self.resolved.name):
                path.rename(self.path / path.name)
            self._new.rmdir()
            atomic_files.sync_folder(self.path)
        if self._old.exists():
            atomic_files.discard(self._old)

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl, or raise a `UserError` if the file cannot be written."""
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            reason = f"{self.metrics} cannot be written: {error.strerror}"
            raise UserError(f"{reason}; free some space or make it writable, then resume") from error

    def read_metrics(self, *, damaged: bool = False) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl except a truncated last line.

        Any other damaged line raises a `UserError`, or is skipped with `damaged`.
        """
        lines, problem = self._metrics()
        if problem and not damaged:
            raise UserError(f"{problem}; copy the run again, or delete these lines")
        return lines

    def last_metrics(self) -> dict[str, Any]:
        """Return the last complete line of metrics.jsonl, read from the end, or an empty dict."""
        with suppress(OSError), parsing.opened(self.metrics) as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL))
            return next(filter(None, map(_line, reversed(file.read().split(b"\n")))), {})
        return {}

    def cut_metrics(self, step: int) -> str:
        """Drop damaged lines, and the lines after `step`, so that a resumed run writes each step once.

        Returns a sentence about the damaged lines and where they are kept, or an empty string.
        """
        try:
            lines, problem = self._metrics()
        except UserError as error:
            lines, problem = [], str(error).partition(";")[0]
        if problem:
            if self.metrics.is_file():
                shutil.copyfile(self.metrics, self.damaged)
            else:  # a circular link
                self.metrics.replace(self.damaged)
            problem += f"; the file is kept as {self.damaged.name}, and its readable lines are used"
        atomic_files.write_text(
            self.metrics, "".join(json.dumps(line) + "\n" for line in lines if line["step"] <= step)
        )
        return problem

    def _metrics(self) -> tuple[list[dict[str, Any]], str]:
        """Return the complete lines of metrics.jsonl, and a sentence about damaged lines before the last line."""
        try:
            texts = parsing.read(self.metrics).split(b"\n")
        except FileNotFoundError:
            return [], ""
        except OSError as error:
            raise UserError(f"{self.metrics} cannot be read: {error.strerror}; make it a readable file") from None
        lines: list[dict[str, Any]] = []
        damaged = []
        for number, text in enumerate(texts, 1):
            line = _line(text) if text.strip() else None
            if line and line["step"] > (lines[-1]["step"] if lines else -1):
                lines.append(line)
            elif text.strip() and number < len(texts):  # the text after the last line break was truncated
                damaged.append(number)
        if not damaged:
            return lines, ""
        first, number = damaged[0], len(damaged)
        which = f"line {first} is" if number == 1 else f"{number} lines, the first of them line {first}, are"
        return lines, f"{self.metrics}: {which} damaged"

    def checkpoint_model(self, step: int) -> Path:
        """Return the path of the model that belongs to the checkpoint at `step`."""
        return self.checkpoints / f"step-{step:08d}"

    @contextmanager
    def writing_checkpoint(self, step: int, keep: int) -> Iterator[Path]:
        """Yield a path for the checkpoint at `step`, then hash it and keep only the last `keep` checkpoints up to it.

        The caller writes the model at `step` first, so that every complete checkpoint has a model.
        """
        path = self.checkpoint_model(step).with_suffix(".pt")
        # Unfinished files left by a killed process; we hold the lock, so no process is writing them.
        for part in self.checkpoints.glob(".step-*.part"):
            atomic_files.discard(part)
        with atomic_files.replacing(path) as beside:
            yield beside
            digest = sha256_of(beside)
        # The hash comes last: a checkpoint without it was interrupted.
        note: dict[str, Any] = {"step": step, "sha256": digest, "experiment": None}
        with suppress(UserError):
            note["experiment"] = described(self.checkpoint_model(step))["experiment"]
        atomic_files.write_json(path.with_suffix(".json"), note)
        # A later step belongs to an abandoned continuation: it must not count towards `keep`, and a resumed run must
        # not continue from it.
        self.drop_later(step)
        saved = sorted(file.stem for file in self._of_checkpoints() if file.suffix == ".pt")
        self._drop(lambda stem: stem not in saved[-keep:])

    def drop_later(self, step: int) -> list[int]:
        """Delete the checkpoints after a step, and return the steps of the complete ones among them."""
        return self._drop(lambda stem: stem > self.checkpoint_model(step).name)

    def _of_checkpoints(self) -> list[Path]:
        there = self.checkpoints.iterdir() if self.checkpoints.is_dir() else ()
        return [file for file in there if re.fullmatch(r"step-\d{8,}", file.stem)]

    def _drop(self, chosen: Callable[[str], bool]) -> list[int]:
        files = [file for file in self._of_checkpoints() if chosen(file.stem)]
        for file in sorted(files, key=lambda file: file.suffix != ".json"):  # notes first
            atomic_files.discard(file)
        return sorted(int(file.stem.removeprefix("step-")) for file in files if file.suffix == ".json")

    def last_checkpoint(self, step: int | None = None) -> Checkpoint | None:
        """Return the newest checkpoint with a correct hash, or None; with `step`, check only that step's checkpoint."""
        which = "step-*" if step is None else self.checkpoint_model(step).name
        for note in sorted(self.checkpoints.glob(f"{which}.json"), reverse=True):
            path = note.with_suffix(".pt")
            with suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
                recorded = parsing.from_json(parsing.read(note))
                if sha256_of(path) == recorded["sha256"]:
                    experiment = recorded["experiment"]
                    return Checkpoint(int(recorded["step"]), path, None if experiment is None else dict(experiment))
        return None


_TAIL = 1 << 16  # bytes that hold a line of metrics.jsonl with all metrics of callbacks
# The values in a line of metrics.jsonl that other code computes with.
_NUMBERS = {"step": int, "tokens": int, "peak_memory": int, "tokens_per_second": float, "seconds": float}


def _line(text: bytes) -> dict[str, Any] | None:
    """Return a line of metrics.jsonl, or None if `append_metrics` did not write it."""
    with suppress(ValueError, OverflowError):
        line = parsing.from_json(text)
        if isinstance(line, dict) and "step" in line:
            values = [(line.get(key, 0), kind) for key, kind in _NUMBERS.items()]
            if all(type(value) in (int, kind) and math.isfinite(value) for value, kind in values):
                return line
    return None
