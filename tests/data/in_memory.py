"""A corpus in memory, an experiment around it, and what may happen while it is built."""

import hashlib
import multiprocessing
import os
import signal
import threading
import warnings
from types import SimpleNamespace

import pytest

from atat_zoo.data.corpora import Corpus
from atat_zoo.data.tokenizers.components import BytesTokenizer
from atat_zoo.experiment.schema import DataSpec
from atat_zoo.registry import component, param


@component
class Memory(Corpus):
    """Documents given as they are."""

    name = "memory"
    summary = "for tests"
    refs = ()
    train: tuple[str, ...] = param(help="documents")
    validation: tuple[str, ...] = param(("held out",) * 40, help="documents")
    test: tuple[str, ...] = param(("for the test",) * 40, help="documents")

    def documents(self, split):
        yield from getattr(self, split)

    def fingerprint(self):
        return {"sha256": hashlib.sha256("\0".join(self.train).encode()).hexdigest()}


def texts(count, size=60):
    return tuple(f"document {i}: " + " ".join(f"w{i}.{j}" for j in range(size // 5)) for i in range(count))


DATA = {"length": 16, "special_tokens": "none", "lanes": 4, "sequences_per_member": 4, "sequences_per_shard": 8}


def experiment_of(root, *, corpus=None, tokenizer=None, **data):
    """Return what `build` uses of an experiment."""
    spec = DataSpec(root=str(root), **DATA | data)
    parts = {"corpus": corpus or Memory(train=texts(40)), "tokenizer": tokenizer or BytesTokenizer()}
    return SimpleNamespace(parts=parts, data=spec)


def hashes(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


class Stop(Exception):
    """An interruption."""


def interrupted(work, *arguments, at, after=0):
    """Do what reports its progress, and stop it at a stage, at so many characters."""

    def stop(stage, done, total):
        if stage == at and done >= after:
            raise Stop

    with pytest.raises(Stop):
        work(*arguments, progress=stop)


def killed(work, *arguments, after):
    """Do it in another process, which is killed after so many characters of the training text."""

    def kill(stage, done, total):
        if stage == "train" and done > after:
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=work, args=arguments, kwargs={"progress": kill})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def stages_of_a_second(work, *arguments):
    """Do what reports its progress; return what the same reports that is begun during its training text."""
    waits, stages = threading.Event(), list[str]()

    def show(stage, done, total):
        stages.append(stage)
        waits.set()

    second = threading.Thread(target=work, args=arguments, kwargs={"progress": show})

    def begin_second(stage, done, total):
        if stage == "train" and second.ident is None:
            second.start()
            assert waits.wait(60)

    work(*arguments, progress=begin_second)
    second.join()
    return stages
