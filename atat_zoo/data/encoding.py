"""Batches of text to tokens, in this process or in several others, always in the order of the batches.

The others are started afresh, as a fork of threads may hang, and read the tokenizer from its folder. A bounded number
of batches is on its way. No process outlives this one, even when it is killed.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import attrs

from atat_zoo.data.pack import Encoded, Form, Packer, Piece, encode
from atat_zoo.errors import UserError

_SAFE = "PYTHONSAFEPATH"
_job: list[tuple[Any, Form]] = []  # the tokenizer and the form, in a process that was started for it


@attrs.define
class Throughput:
    """How much text was encoded, and what reading, encoding and packing it took."""

    bytes: int = 0  # in UTF-8
    seconds: float = 0.0
    core_seconds: float = 0.0  # of processor time, in all processes together

    @property
    def per_core(self) -> float:
        """Megabytes of text that a core does in a second of its time."""
        return self.bytes / 1e6 / max(self.core_seconds, 1e-9)


class Encoder:
    """Encodes the batches of one build, in so many processes; 1 is this one, with the threads of the library."""

    def __init__(self, processes: int = 1, throughput: Throughput | None = None) -> None:
        self._processes, self._throughput = processes, throughput or Throughput()
        self._pool: ProcessPoolExecutor | None = None

    @contextmanager
    def of(self, tokenizer: Any, folder: Path, packer: Packer) -> Iterator[None]:
        """Encode for a packer, whose tokenizer was saved to a folder, while this is open; then no process is left."""
        self._here = packer.encode
        self._there = (tokenizer, folder, packer.form)
        start, core_start = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
            self._throughput.seconds += time.perf_counter() - start
            self._throughput.core_seconds += time.process_time() - core_start

    def encoded(self, batches: Iterator[Sequence[Piece]]) -> Iterator[Encoded]:
        """Yield each batch as tokens; raise a `UserError` if the tokenizer cannot, or a process was killed."""
        first = list(islice(batches, 2))
        batches = chain(first, batches)
        # A process takes longer to start than one batch to encode.
        several = self._processes > 1 and len(first) > 1
        for encoded in self._elsewhere(batches) if several else map(self._here, batches):
            self._throughput.bytes += encoded.bytes
            yield encoded

    def _elsewhere(self, batches: Iterator[Sequence[Piece]]) -> Iterator[Encoded]:
        waiting: deque[Future[tuple[Encoded, float]]] = deque()
        try:
            for batch in batches:
                waiting.append(self._submit(batch))
                if len(waiting) >= 2 * self._processes:
                    yield self._result(waiting.popleft())
            while waiting:
                yield self._result(waiting.popleft())
        except BrokenProcessPool:
            raise UserError(
                "a process that encodes the text was killed, as the system does where memory runs out; run the same "
                "command again, with a smaller --processes if that was it: it continues where it was"
            ) from None
        finally:
            for future in waiting:
                future.cancel()

    def _submit(self, batch: Sequence[Piece]) -> Future[tuple[Encoded, float]]:
        # A process that is started would import from the working folder until it knows where this one looks.
        safe = os.environ.get(_SAFE)
        os.environ[_SAFE] = "1"
        try:
            if self._pool is None:
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self._processes, context, _begin, self._there)
            # Ctrl-C reaches all processes of a terminal; those that are started here never see it, and this one ends
            # them. What creates the pool unblocks it again.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                return self._pool.submit(_encode, batch)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        finally:
            del os.environ[_SAFE]
            os.environ |= {} if safe is None else {_SAFE: safe}

    def _result(self, future: Future[tuple[Encoded, float]]) -> Encoded:
        encoded, seconds = future.result()
        self._throughput.core_seconds += seconds
        return encoded


def _begin(tokenizer: Any, folder: Path, form: Form) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process is a core
    threading.Thread(target=_follow, daemon=True).start()
    _job.append((tokenizer.load(folder), form))


def _follow() -> None:
    """End with the process that started this one, which would otherwise wait for its text for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _encode(batch: Sequence[Piece]) -> tuple[Encoded, float]:
    start = time.process_time()
    encoded = encode(*_job[0], batch)
    return encoded, time.process_time() - start
