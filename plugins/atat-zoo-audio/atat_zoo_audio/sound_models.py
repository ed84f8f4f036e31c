"""Models of sounds: loading one, inpainting, and bits per sample. A sound is int16 [n]; a model has L tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atat_zoo.system.errors import UserError
from atat_zoo_audio.mu_law import MuLawModel, text_of
from atat_zoo_audio.recordings import SCALE, read_wav

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from atat_zoo.data import Split
    from atat_zoo.generation.model import Model


def load_run(run: Path, step: str | None = None) -> tuple[Model, int]:
    """Return `Model.from_run(run, step=step)` and its sample rate; raise a `UserError` for a model of text."""
    from atat_zoo.generation.model import Model

    model = Model.from_run(run, step=step)
    rate = getattr(model.experiment.parts["corpus"], "rate", None)
    if not isinstance(model.tokenizer, MuLawModel) or rate is None:
        wanted = 'tokenizer.use = "mu_law" and the corpus melodies or recordings'
        raise UserError(f"{run} is not a model of sounds; pass a run with {wanted}")
    return model, rate


def sounds_of(model: Model, tokens: Tensor) -> NDArray[np.int16]:
    """Return tokens [...] as samples, int16 [...], each at the centre of its level."""
    tokenizer: Any = model.tokenizer
    return np.rint(tokenizer.samples[tokens.cpu().numpy()] * SCALE).astype(np.int16)


def sound_at(model: Model, run: Path, sound: str, rate: int) -> NDArray[np.int16]:
    """Return a sound: a WAV file, or a number in the test split of the run's corpus; otherwise raise a `UserError`."""
    from atat_zoo.evaluation.held_out_text import held_out_text

    if not sound.isdecimal():
        return read_wav(Path(sound), rate)
    test = held_out_text(model, run, "test", 0).tokens
    if int(sound) >= len(test):
        raise UserError(f"{run}: the test split has no sound {sound}; pass 0 to {len(test) - 1}, or a WAV file")
    return sounds_of(model, test[int(sound)])


def inpainted(
    model: Model, sound: NDArray[np.int16], gap: tuple[int, int], number: int, *, seed: int = 0
) -> NDArray[np.int16]:
    """Return a sound `number` times, int16 [number, n], with the samples from `gap[0]` to `gap[1]` − 1 generated.

    All other samples are unchanged. The model reads the L samples around the gap.
    """
    import torch

    (start, end), length = gap, model.context.length
    if not (0 <= start < end <= len(sound) and end - start <= length <= len(sound)):
        raise UserError(
            f"--gap {start} {end}: the sound has {len(sound)} samples and the model reads {length} of them; pass two "
            f"numbers from 0 to {len(sound)}, at most {length} apart, for a sound of {length} samples or more"
        )
    first = min(max((start + end - length) // 2, 0), len(sound) - length)
    around = torch.tensor(model.tokenizer.encode(text_of(sound[first : first + length] / SCALE)))
    around[start - first : end - first] = model.context.mask_id
    parts = model.experiment.parts
    text_generator = parts["guidance"].guide(model.text_generator())
    filled = text_generator.fill(parts["sampler"], around.expand(number, -1), seed=seed).tokens
    found = np.tile(sound, (number, 1))
    found[:, start:end] = sounds_of(model, filled[:, start - first : end - first])
    return found


def bits_per_sample(
    model: Model, run: Path, *, split: Split, gap: bool, mask_samples: int, seed: int
) -> dict[str, Tensor]:
    """Return −log₂ p / samples of each held-out sound, float64 [n], under each factorisation that the model reports.

    With `gap`, only the quarter in the middle is predicted, given all other samples that the factorisation reads.
    """
    import torch

    from atat_zoo.evaluation.held_out_text import text_of as text
    from atat_zoo.evaluation.likelihood import measure
    from atat_zoo.registry.spec import evolve

    spec = evolve(model.experiment.evaluation, split=split, sequences=0, mask_samples=mask_samples, metrics=())
    tokens = text(model, run, spec).tokens
    length = tokens.shape[1]
    start, end = (length * 3 // 8, length * 5 // 8) if gap else (0, length)
    position = torch.arange(length)
    predicted = ((position >= start) & (position < end)).expand(tokens.shape)
    names = model.experiment.parts["objective"].factorisations(model.experiment)
    found = measure(model.module, tokens, predicted, spec, seed=seed).contribution
    return {names.get(name, name): nats.sum(1) / (math.log(2) * (end - start)) for name, nats in found.items()}
