"""`atat study` whose trainings are forked from it, or run in this process, not started anew: seconds less for each."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from unittest import mock

from tests import in_process

CODE = "from tests.studies.quick import main; main()"
# Seconds that every step takes longer, for a training that is to be caught in the middle.
SLOW = "STUDY_SLOW"


class Forked:
    """A training in a process of its own, which has what its parent has imported."""

    def __init__(self, words, log, env):
        self.process = multiprocessing.get_context("fork").Process(target=train, args=(words, log, env))
        self.process.start()

    def poll(self):
        return self.process.exitcode

    def send_signal(self, number):
        os.kill(self.process.pid or 0, number)


class Here:
    """A training that has ended in this process when it has begun."""

    def __init__(self, words, log, env):
        with log.open("w") as file, mock.patch.dict(os.environ, env):
            self.code = in_process.ended(words, file, file)

    def poll(self):
        return self.code


def study(words, folder):
    """Run `atat study` and its trainings in this process; returns what `subprocess.run` does."""
    from atat_zoo.studies import processes

    with mock.patch.object(processes, "launch", Here):
        return in_process.run(["study", "study.toml", *words], folder)


def train(words, log, env):
    from atat_zoo.cli import main

    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(env)
    sys.argv = ["atat", *words]
    if os.environ.get(SLOW):
        slow_down(float(os.environ[SLOW]))
    main()


def slow_down(seconds):
    from atat_zoo.training.composer_model import Progress

    before = Progress.batch_start

    def batch_start(self, *words):
        time.sleep(seconds)
        before(self, *words)  # type: ignore[arg-type]

    Progress.batch_start = batch_start  # type: ignore[assignment,method-assign]


def main():
    """Run `atat`."""
    from atat_zoo.cli import main as atat
    from atat_zoo.studies import processes

    processes.launch = Forked  # type: ignore[assignment]
    atat()
