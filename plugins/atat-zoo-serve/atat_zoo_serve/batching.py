"""Request batching: one thread owns the model and generates compatible texts together.

Texts share a batch only if they have the same length and sampler, and need a space at the same positions. A text
depends only on its own seed and number, not on its batch, except for rounding differences when the network evaluates
several texts at once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import attrs

from atat_zoo.generation.layout import Layout
from atat_zoo.generation.samplers import Sampler, changes
from atat_zoo.generation.text_generator import TextGenerator
from atat_zoo.registry.spec import unstructure


@attrs.frozen(kw_only=True, eq=False)
class WantedText:
    """Text to generate: its `index` in the request, and the `number` that, with the job's seed, sets its randomness."""

    index: int
    number: int
    layout: Layout
    lengths: tuple[int, ...]  # number of tokens in each gap

    @cached_property
    def form(self) -> tuple[int, tuple[int, ...]]:
        """Number of tokens L, and the positions where the token must begin with a space."""
        return sum(map(len, self.layout.pieces)) + sum(self.lengths), self.layout.opening(self.lengths)


@attrs.frozen
class Drawn:
    """One decoding step of a text: the positions that changed, and their new tokens (the mask's id if remasked)."""

    text: WantedText
    positions: list[int]
    tokens: list[int]


@attrs.frozen
class Done:
    """Completed text: its tokens, int64 [L] as a list, and its number of network evaluations."""

    text: WantedText
    tokens: list[int]
    nfe: int


@attrs.frozen
class Failed:
    """Failed job, with its error."""

    error: Exception


Event = Drawn | Done | Failed


class GoneError(Exception):
    """Error that stops a computation after its job was cancelled."""


class BusyError(Exception):
    """Error for a job that is submitted while the queue is full."""


class StoppedError(Exception):
    """Error for a job that is unfinished when the server stops, or that is submitted afterwards."""


@attrs.define(eq=False, kw_only=True)
class Job:
    """A request for texts, as the worker sees it.

    The worker's thread calls `begin`, which returns the texts and runs the model if `weighs` is set. Then it calls
    `tell` with each `Event`, which includes the decoding steps (`Drawn`) only if `follows` is set.
    """

    sampler: Sampler
    seed: int
    begin: Callable[[Job], Sequence[WantedText]]
    tell: Callable[[Event], None]
    follows: bool = False
    weighs: bool = False
    gone: bool = False  # whether the job was cancelled
    texts: list[WantedText] | None = None  # that have not been started; None before `begin`
    how: str = attrs.field(init=False)  # the sampler as JSON, to find jobs with the same one

    def __attrs_post_init__(self) -> None:
        self.how = json.dumps(unstructure(self.sampler), sort_keys=True)

    def check(self) -> None:
        """Raise a `GoneError` if the job was cancelled."""
        if self.gone:
            raise GoneError


Batch = list[tuple[Job, WantedText]]


class Worker:
    """Worker that generates the texts of jobs in batches, oldest job first, with a queue of at most `waiting` jobs."""

    def __init__(self, text_generator: TextGenerator, *, batch_size: int, waiting: int) -> None:
        self.text_generator, self.batch_size, self.waiting = text_generator, batch_size, waiting
        self.writing = 0  # texts in the current batch
        self._batch: Batch = []
        self._jobs: list[Job] = []  # with texts that have not been started, oldest first
        self._changed = threading.Condition()
        self._open = True
        self._thread = threading.Thread(target=self._work, name="atat serve", daemon=True)

    def start(self) -> None:
        """Start the thread that generates texts."""
        self._thread.start()

    def stop(self) -> None:
        """Fail all jobs with a `StoppedError`, and refuse new ones; the thread ends at the next decoding step."""
        with self._changed:
            self._open = False
            for job in {id(job): job for job in (*self._jobs, *(job for job, _ in self._batch))}.values():
                job.tell(Failed(StoppedError()))
            self._jobs = []
            self._changed.notify()

    def close(self) -> None:
        """Stop, and wait up to 5 seconds for the thread to end."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    @property
    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    @property
    def queue(self) -> int:
        """Number of jobs in the queue."""
        return len(self._jobs)

    def submit(self, job: Job) -> None:
        """Add a job to the queue, or raise a `BusyError` if the queue is full and a `StoppedError` after `stop`."""
        with self._changed:
            if not self._open:
                raise StoppedError
            if len(self._jobs) >= self.waiting:
                raise BusyError
            self._jobs.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Cancel a job, which leaves the queue immediately and its batch at the next decoding step."""
        with self._changed:
            job.gone = True
            self._jobs = [other for other in self._jobs if other is not job]

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or not self._open)
                if not self._open:
                    return
            self.turn()

    def turn(self) -> None:
        """Generate one batch: the oldest text in the queue and the texts that are compatible with it."""
        with self._changed:
            jobs = list(self._jobs)
        for job in jobs:
            # A job that uses the model to begin waits until it is the oldest.
            if job.texts is None and (job is jobs[0] or not job.weighs):
                try:
                    job.texts = list(job.begin(job))
                except Exception as error:
                    self._fail(job, error)
        self._try(self._take())
        self.writing = 0

    def _take(self) -> Batch:
        """Remove the next batch from the queue and return it."""
        with self._changed:
            waiting = [(job, text) for job in self._jobs for text in job.texts or ()]
            alike = [(text.form, job.how) for job, text in waiting]
            batch = [each for each, how in zip(waiting, alike, strict=True) if how == alike[0]][: self.batch_size]
            for job, text in batch:
                assert job.texts is not None
                job.texts.remove(text)
            self._jobs = [job for job in self._jobs if job.texts != []]
            self.writing, self._batch = len(batch), batch
            return batch

    def _try(self, batch: Batch) -> None:
        """Generate a batch; if it fails, generate its jobs one by one to find those that cause the error."""
        try:
            if batch:
                self._write(batch)
        except GoneError:
            return
        except Exception as error:
            jobs = {id(job): job for job, _ in batch}
            if len(jobs) == 1:
                self._fail(batch[0][0], error)
                return
            for job in jobs.values():
                self._try([(other, text) for other, text in batch if other is job])

    def _write(self, batch: Batch) -> None:
        import torch

        texts, sampler = [text for _, text in batch], batch[0][0].sampler
        mask_id = self.text_generator.denoiser.mask_id
        gone: set[int] = set()  # rows whose job was cancelled

        def observe(record: dict[str, Any]) -> list[int]:
            changed: dict[int, Drawn] = {}
            for row, position, token in changes(record, mask_id):
                if batch[row][0].follows:
                    drawn = changed.setdefault(row, Drawn(texts[row], [], []))
                    drawn.positions.append(position)
                    drawn.tokens.append(token)
            for row, drawn in changed.items():
                batch[row][0].tell(drawn)
            gone.update(row for row, (job, _) in enumerate(batch) if job.gone or not self._open)
            if len(gone) == len(batch):
                raise GoneError
            self.writing = len(batch) - len(gone)
            return list(gone)

        text_generator = self.text_generator.opening(texts[0].form[1], texts[0].layout.words)
        sample = text_generator.fill(
            sampler,
            torch.tensor(
                [text.layout.row(text.lengths) for text in texts], dtype=torch.int64, device=text_generator.device
            ),
            rows=torch.tensor([text.number for text in texts]),
            seed=[job.seed for job, _ in batch],
            batch_size=len(batch),
            observe=observe,
        )
        for row, (tokens, nfe) in enumerate(zip(sample.tokens.tolist(), sample.nfe.tolist(), strict=True)):
            if row not in gone:
                batch[row][0].tell(Done(texts[row], tokens, nfe))

    def _fail(self, job: Job, error: Exception) -> None:
        self.cancel(job)
        job.tell(Failed(error))
