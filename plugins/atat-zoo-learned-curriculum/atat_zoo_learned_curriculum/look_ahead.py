"""The Composer algorithm that learns the weights of the curriculum `learned`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from composer.core import Algorithm, Event, State
from composer.core.precision import get_precision_context
from composer.utils import dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from atat_zoo.data.sequences import Sequences, held_out_sequences
from atat_zoo.training.composer_model import prepare, sum_over_ranks
from atat_zoo.training.gradients import parameters_by_part
from atat_zoo_learned_curriculum.curriculum_weights import LearnedModule

Batch = dict[str, Tensor]

_AFTER = 1 << 32  # a number of steps that no training has


class LookAhead(Algorithm):
    """An algorithm that changes the log-weights of a `LearnedModule`, if the model has one, before some steps.

    Composer runs callbacks after algorithms, so `Progress` discards the statistics of these passes.
    """

    def __init__(self, every: int, sequences: int, rate: float) -> None:
        self.every, self.sequences, self.rate = every, sequences, rate
        self.looked = -1  # the last step before which the weights changed
        self.text: Sequences | None = None  # the selection half of the validation split

    @override
    def match(self, event: Event, state: State) -> bool:
        if event != Event.BEFORE_TRAIN_BATCH or not isinstance(curriculum_of(model_of(state)), LearnedModule):
            return False
        step = int(state.timestamp.batch)
        # A step that ran out of memory is repeated.
        return step % self.every == 0 and step != self.looked

    @override
    def apply(self, event: Event, state: State, logger: Any) -> None:
        self.looked = step = int(state.timestamp.batch)
        model, curriculum = model_of(state), curriculum_of(model_of(state))
        model.step = step
        # Compiled code supports only the shapes of a training step.
        with torch.compiler.set_stance("force_eager"), get_precision_context(state.precision):
            slopes = slopes_of(model, self.trained(state.batch), self.held_out(state, step))
        curriculum.learn(self.rate * slopes)
        found = curriculum.log_weights.softmax(0) * len(slopes)
        logger.log_metrics({f"curriculum/weight_{number}": weight for number, weight in enumerate(found.tolist(), 1)})

    @property
    def per_rank(self) -> int:
        """The number of training sequences, and of held-out sequences, that each rank reads."""
        return -(-self.sequences // dist.get_world_size())

    def trained(self, batch: Batch) -> Batch:
        """Return the first sequences of a step's batch on this rank."""
        return prepare({name: values[: self.per_rank] for name, values in batch.items()})

    def held_out(self, state: State, step: int) -> Batch:
        """Return this rank's held-out sequences, with numbers, and so masks, that no training sequence has."""
        ranks, device = dist.get_world_size(), state.batch["tokens"].device
        if self.text is None:
            loader: Any = state.train_dataloader
            self.text = selection_half(loader.dataset.folder)
        text, number = self.text, torch.arange(self.per_rank * ranks)
        rows = (number * len(text.tokens) // len(number) + step // self.every) % len(text.tokens)
        rows, number = rows[dist.get_global_rank() :: ranks], number[dist.get_global_rank() :: ranks]
        index = (_AFTER + step) * model_of(state).objective.batch_size + number
        batch = {"tokens": text.tokens[rows], "maskable": text.maskable[rows], "index": index}
        if text.documents is not None:
            batch["documents"] = text.documents[rows]
        return prepare({name: values.to(device) for name, values in batch.items()})


def slopes_of(model: Any, trained: Batch, held_out: Batch) -> Tensor:
    """Return ⟨∂g/∂θ_b, v⟩ / ⟨v, v⟩ for each bin b, [K], up to a constant that all bins share.

    g is the gradient of the training loss for the sequences in `trained`, with the current weights; v is that of the
    loss for those in `held_out`, without weights and in evaluation mode.
    """
    curriculum = curriculum_of(model)
    weights = [p for p in parameters_by_part(model)["denoiser"] if p.requires_grad]
    training = model.training
    model.eval()
    with curriculum.unweighted():
        v = gradient(model, held_out, weights)
    model.train(training)
    mean_over_ranks(v)
    slopes = []
    for number in range(len(curriculum.log_weights)):
        with curriculum.derivative(number):
            slopes.append(gradient(model, trained, weights) @ v)
    found = torch.stack(slopes)
    mean_over_ranks(found)
    return found / (v @ v)


def gradient(model: Any, batch: Batch, weights: Sequence[Tensor]) -> Tensor:
    """Return the gradient of the loss for a batch by some weights, in one float32 vector."""
    found = torch.autograd.grad(model(batch)["loss"], weights, allow_unused=True, materialize_grads=True)
    return torch.cat([each.flatten().float() for each in found])


def mean_over_ranks(values: Tensor) -> None:
    """Replace a tensor by its mean over the ranks."""
    sum_over_ranks(values)
    values /= dist.get_world_size()


def selection_half(shards: Path) -> Sequences:
    """Return the even-numbered sequences of the validation split in a folder of shards."""
    tokens, maskable, documents = held_out_sequences(shards, "validation")
    return Sequences(tokens[::2], maskable[::2], None if documents is None else documents[::2])


def model_of(state: State) -> Any:
    """Return the trained model, which data parallelism may wrap."""
    return state.model.module if isinstance(state.model, DistributedDataParallel) else state.model


def curriculum_of(model: Any) -> Any:
    """Return the curriculum's module, or None for a model without one."""
    return getattr(getattr(model, "objective", None), "curriculum", None)
