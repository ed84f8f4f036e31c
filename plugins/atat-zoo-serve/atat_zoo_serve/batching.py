"""Request batching: one thread owns the model and generates compatible texts together.

Texts with the same sampler share a batch. If model or sampler do not accept padding (`TextGenerator.accepts_padding`),
they also need the same length, and a space at the same positions. A text depends only on its own seed and number, not
on its batch, except for rounding differences when the network evaluates several texts at once.
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

# Padding takes as long as tokens, so the longest text of a batch has at most _RATIO times the tokens of the shortest.
# If each token is read once, a step reads so few that its fixed time counts more, and the limit is _RATIO_ONCE. Texts
# with fewer than _SHORT tokens take as long as that many.
_RATIO, _RATIO_ONCE, _SHORT = 1.5, 4.0, 32


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
    rewrites: bool = True  # whether the sampler may remask tokens; if not, a text is complete once it has no masks
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
        self._batch: Batch = []  # without the texts that are complete or cancelled
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
                job.gone = True
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

    @property
    def writing(self) -> int:
        """Number of texts that are being generated."""
        return len(self._batch)

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
        self._batch = []

    def _take(self) -> Batch:
        """Remove the next batch from the queue and return it."""
        with self._changed:
            waiting = [(job, text) for job in self._jobs for text in job.texts or ()]
            batch = self._compatible(waiting)
            for job, text in batch:
                assert job.texts is not None
                job.texts.remove(text)
            self._jobs = [job for job in self._jobs if job.texts != []]
            self._batch = batch
            return batch

    def _compatible(self, waiting: Batch) -> Batch:
        """Return the first text, and others that share its batch, as many as fit, in the same order."""
        if not waiting:
            return []
        batch: Batch = []
        (first_job, first), most = waiting[0], self.text_generator.length
        mixed = self.text_generator.accepts_padding(first_job.sampler)
        # A model that predicts ahead caches what it has read. With remasking, no token is final.
        once = self.text_generator.denoiser.predicts_ahead and not first_job.rewrites
        shortest, longest, ratio = first.form[0], first.form[0], _RATIO_ONCE if once else _RATIO
        for job, text in waiting:
            low, high = min(shortest, text.form[0]), max(longest, text.form[0])
            similar = mixed and high <= min(ratio * max(low, _SHORT), most)
            if job.how == first_job.how and (similar or text.form == first.form):
                batch.append((job, text))
                shortest, longest = low, high
            if len(batch) == self.batch_size:
                break
        return batch

    def _leave(self, job: Job, text: WantedText) -> None:
        self._batch = [each for each in self._batch if each != (job, text)]

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
                self._try([(other, text) for other, text in self._batch if other is job])

    def _write(self, batch: Batch) -> None:
        import torch

        rows = [text.layout.row(text.lengths) for _, text in batch]
        mask_id, cost = self.text_generator.denoiser.mask_id, self.text_generator.cost
        masks = {row: tokens.count(mask_id) for row, tokens in enumerate(rows)}  # of texts that are still generated
        evaluations, gone = [0] * len(batch), set[int]()  # gone: texts whose job was cancelled

        def complete(row: int, tokens: list[int], nfe: int) -> None:
            (job, text), _ = batch[row], masks.pop(row)
            self._leave(job, text)
            job.tell(Done(text, tokens, nfe))

        def observe(record: dict[str, Any]) -> list[int]:
            drawn: dict[int, Drawn] = {}
            for row, position, token in changes(record, mask_id):
                step = drawn.setdefault(row, Drawn(batch[row][1], [], []))
                step.positions.append(position)
                step.tokens.append(token)
            for row, step in drawn.items():
                job, _ = batch[row]
                if job.follows:
                    job.tell(step)
                if row in masks and not job.rewrites:
                    # Every evaluation fills at least one mask, and no token changes again.
                    evaluations[row] += cost
                    masks[row] -= len(step.positions)
                    for position, token in zip(step.positions, step.tokens, strict=True):
                        rows[row][position] = token
                    if not masks[row]:
                        complete(row, rows[row], evaluations[row])
            for row in [row for row in masks if batch[row][0].gone]:
                gone.add(row)
                del masks[row]
                self._leave(*batch[row])
            if gone and not masks:
                raise GoneError
            return list(gone)

        texts = [text for _, text in batch]
        openings = [text.form[1] for text in texts]
        text_generator, z = self.text_generator.padded(rows, openings, texts[0].layout.words)
        sample = text_generator.fill(
            batch[0][0].sampler,
            z,
            rows=torch.tensor([text.number for text in texts]),
            seed=[job.seed for job, _ in batch],
            batch_size=len(batch),
            observe=observe,
        )
        for row, (tokens, nfe) in enumerate(zip(sample.tokens.tolist(), sample.nfe.tolist(), strict=True)):
            if row in masks:
                complete(row, tokens[: len(rows[row])], nfe)

    def _fail(self, job: Job, error: Exception) -> None:
        self.cancel(job)
        job.tell(Failed(error))
