"""The moments of a run: counted when it is left alone, and reached to stop it there. Runs in place of `atat`.

A moment is a call that makes something durable, or a place for it (fsync, mkdir, rename, replace, rmdir, unlink), or
the beginning of a stage of the training.
What happens at the chosen one:

    kill         SIGKILL to the process and all that it has started
    kill alone   SIGKILL to the process only, as the kernel does when memory runs out
    tear         a file that is being synced has only half of its bytes on the disk; then as `kill`
    interrupt    Ctrl-C; `interrupt twice` again three moments later
    terminate    SIGTERM
    full         from here on the disk is full
"""

import errno
import functools
import importlib
import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

CODE = "from tests.attack.moments import main; main()"
VARIABLE = "ATTACK"

STAGES = {
    "build": ("atat_zoo.training.trainer", "build"),
    "step": ("atat_zoo.training.metrics_writer", "MetricsWriter.batch_end"),
    "checkpoint": ("atat_zoo.training.checkpoints", "Checkpoints.save"),
    "evaluation": ("atat_zoo.training.evaluator", "Evaluator.__call__"),
    "save": ("atat_zoo.training.checkpoints", "CurrentModel.save"),
}
DURABLE = ("fsync", "mkdir", "rename", "replace", "rmdir", "unlink")


def plan(act="", at=-1, log=None, rank=0, stage=""):
    """Return the environment of a process that is to do `act` at a moment, and to write the moments until then.

    `at` counts all moments from 0, or those of a stage.
    """
    return {VARIABLE: json.dumps({"act": act, "at": at, "log": str(log), "rank": rank, "stage": stage})}


class Moments:
    """Counts the moments of this process and acts at one of them."""

    def __init__(self, act, at, log, rank, stage):
        mine = int(os.environ.get("RANK", "0")) == rank
        self.act, self.at, self.stage = act, at if mine else -1, stage
        self.log, self.owner = Path(f"{log}-{os.environ.get('RANK', '0')}"), os.getpid()
        self.seen: list[str] = []
        self.unlink = os.unlink
        for name in DURABLE:
            setattr(os, name, self.watched(getattr(os, name), functools.partial(self.durable, name)))
        for stage, (module, path) in STAGES.items():
            *outer, last = path.split(".")
            place = functools.reduce(getattr, outer, importlib.import_module(module))
            setattr(place, last, self.watched(getattr(place, last), lambda *_, stage=stage, **__: self.moment(stage)))

    def watched(self, call, before):

        @functools.wraps(call)
        def watched(*args, **kwargs):
            if os.getpid() == self.owner:
                before(*args, **kwargs)
            return call(*args, **kwargs)

        return watched

    def durable(self, call, what, *args, **kwargs):
        path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)
        named = re.sub(r"\.\d+@\w+\.part$", ".part", os.path.basename(path))
        if len(self.seen) == self.at and self.act == "tear" and call == "fsync" and os.path.isfile(path):
            os.truncate(path, os.path.getsize(path) // 2)
        self.moment(f"{call} {named}")
        if self.act == "full" and -1 < self.at < len(self.seen) and call not in ("rmdir", "unlink"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def moment(self, name):
        if self.stage not in ("", name):
            return
        number = len(self.seen)
        self.seen.append(name)
        if number == self.at:
            self.write()
            if self.act in ("kill", "tear"):
                os.killpg(os.getpgrp(), signal.SIGKILL)
            if self.act == "kill alone":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.act == "terminate":
                os.kill(os.getpid(), signal.SIGTERM)
        if (number == self.at and self.act.startswith("interrupt")) or (
            self.act == "interrupt twice" and -1 < self.at == number - 3
        ):
            os.kill(os.getpid(), signal.SIGINT)

    def write(self):
        """Write the names of the moments until now, unless the disk is full for them too."""
        with suppress(OSError):
            self.log.write_text(json.dumps(self.seen))


def read(log, rank=0):
    """Return the moments that a process wrote; none if it did not come to its moment."""
    path = Path(f"{log}-{rank}")
    moments: list[str] = json.loads(path.read_text() or "[]") if path.exists() else []
    return moments


def main():
    moments = Moments(**json.loads(os.environ[VARIABLE]))
    from atat_zoo.cli import main as atat

    try:
        atat()
    finally:
        if os.getpid() == moments.owner and not moments.act:
            moments.write()
