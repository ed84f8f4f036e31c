"""Micro-batches that are made smaller when memory does not suffice."""

from types import SimpleNamespace

import pytest
import torch
from composer import Callback

from atat_zoo.experiment import load
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from atat_zoo.system.errors import UserError
from atat_zoo.training import train


class Scarce(Callback):
    """Lets Composer find the size of micro-batches, which it does of itself on a GPU only."""

    def fit_start(self, state, logger):
        state.auto_microbatching = True


class OutOfMemory(Scarce):
    """Says in place of a GPU that more than four sequences do not fit: at first in the step's second micro-batch."""

    def __init__(self):
        self.refused = []

    def after_loss(self, state, logger):
        """Refuse, when the figures of the micro-batch have been counted."""
        rows = len(state.batch["tokens"])
        if rows > 4 or (int(state.timestamp.batch) == 2 and rows > 2 and len(self.refused) == 1):
            self.refused.append((int(state.timestamp.batch), rows))
            raise RuntimeError("CUDA out of memory")


@pytest.mark.slow
def test_what_a_step_saw_before_memory_ran_out_is_not_counted(tiny, tmp_path):
    """The parts with a memory, the figures and the weights are those of the sizes that fit."""
    memory, short = OutOfMemory(), ["train.steps=4", "train.save_every=2"]
    retried = train(load(str(tiny.path), [*short, "train.microbatch_size=8"]), tmp_path / "retried", callbacks=[memory])
    assert memory.refused == [(0, 8), (2, 4)]

    class Smaller(Callback):
        def batch_start(self, state, logger):
            state.device_train_microbatch_size = 4 if int(state.timestamp.batch) < 2 else 2

    given = train(load(str(tiny.path), short), tmp_path / "given", callbacks=[Smaller()])
    assert tiny.losses(retried.folder.path) == tiny.losses(given.folder.path)
    assert tiny.weights(retried.folder.path) == tiny.weights(given.folder.path)


def test_the_rates_of_a_step_are_strata_of_its_batch_and_not_of_a_micro_batch(tiny):
    experiment = load(str(tiny.path))
    assert (experiment.train.batch_size, experiment.train.rows_at_once(1)) == (8, 2)
    module = assemble(experiment, Context(vocabulary_size=256, length=16, steps=2, seed=5))
    for step in range(3):
        times = torch.cat([module.times(rows) for rows in torch.arange(8 * step, 8 * step + 8).split(2)])
        assert sorted((times.double() * 8).ceil().long().tolist()) == [1, 2, 3, 4, 5, 6, 7, 8]


class Thrashing(Scarce):
    """Says in place of a GPU that its allocator had to make room for each of the first three steps."""

    def __init__(self):
        self.stepped, self.sizes = list[int](), list[object]()

    def __getattr__(self, name):
        return getattr(torch, name)  # as the torch that Composer's trainer sees

    @property
    def cuda(self):
        seen = {"num_alloc_retries": min(3, len(self.stepped))}
        return SimpleNamespace(is_available=lambda: True, memory_stats=lambda: seen, empty_cache=lambda: None)

    def fit_start(self, state, logger):
        super().fit_start(state, logger)
        for optimizer in state.optimizers:
            self.count(optimizer, state)

    def count(self, optimizer, state):
        step = optimizer.step  # no hook: where a class and the one that it is made of have been used, it runs twice

        def counted(*words, **named):
            made = step(*words, **named)
            self.stepped.append(int(state.timestamp.batch))
            return made

        optimizer.step = counted

    def batch_end(self, state, logger):
        self.sizes.append(state.device_train_microbatch_size)


@pytest.mark.slow
def test_a_batch_is_not_repeated_after_its_step_where_memory_is_scarce(tiny, tmp_path, monkeypatch):
    """Each has one step of the optimizer; those after the second are computed in smaller micro-batches."""
    memory = Thrashing()
    monkeypatch.setattr("composer.trainer.trainer.torch", memory)
    wanted = load(str(tiny.path), ["train.steps=5", "train.microbatch_size=8"])
    train(wanted, tmp_path / "run", callbacks=[memory])
    assert memory.stepped == [0, 1, 2, 3, 4]
    assert memory.sizes == [8, 4, 4, 4, 4]


def test_without_a_gpu_there_is_no_size_to_find(tiny, tmp_path):
    wanted = load(str(tiny.path), ["train.microbatch_size=auto", "train.device=cpu", f"data.root={tmp_path / 'no'}"])
    with pytest.raises(UserError, match=r'train.microbatch_size = "auto" needs a CUDA GPU; choose a number'):
        train(wanted, tmp_path / "run")
    assert not (tmp_path / "no").exists()
