"""The commands that make the runs of a page, and the page, again."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def command(environment: dict[str, Any]) -> str | None:
    """Return the command that began the run of a recorded environment, as a person types it; None when it has none."""
    try:
        program, *words = map(str, environment["command"])
        if program.endswith("atat_zoo/train.py"):  # of the launcher, which started a process for each rank
            return shlex.join(["composer", "-n", str(environment["computes"]["ranks"]), "-m", "atat_zoo.train", *words])
        return shlex.join(["atat", *words])
    except (ValueError, KeyError, TypeError):
        return None


def commands(
    runs: Sequence[Path], trained: Sequence[str | None], frontier: bool, *, out: Path | None, figures: Path | None
) -> list[str]:
    """Return the commands, all of them to be given in one folder: that of the training, if the runs share it.

    They name the runs as they were named here, or with their whole paths if the training was in another folder.
    `trained` is `command` of each run, and `frontier` whether policy bounds of samplers are recorded.
    """
    here = all(_makes(one, run) for one, run in zip(trained, runs, strict=True) if one)

    def word(path: Path) -> str:
        return shlex.quote(str(path if here else path.absolute()))

    folders = [word(run) for run in runs]
    every = " ".join(folders)
    options = [f" {option} {word(path)}" for option, path in (("--out", out), ("--figures", figures)) if path]
    return [
        *([] if here else ["# In the folder where the runs were trained, where the paths of `atat train` begin:"]),
        *filter(None, trained),
        *(f"atat eval {folder}" for folder in folders),
        *([f"atat compare {every}"] if len(runs) > 1 else []),
        f"atat report {every} --compute{' --frontier' * frontier}{''.join(options)}",
    ]


def _makes(command: str, run: Path) -> bool:
    """Return whether a command of `atat train`, given in the working directory, makes this run folder."""
    words = [word.removeprefix("--out=") for word in shlex.split(command)]
    named = words if "--out" in command else [f"runs/{run.resolve().name}"]
    return any(os.path.abspath(each) == os.path.abspath(run) for each in named)
