"""Models of pictures: loading one, samples of a class, and inpainting. L: tokens of a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from atat_zoo.system.errors import UserError, nearest
from atat_zoo_images.grid_orders import grid_of
from atat_zoo_images.picture_files import ids_of_file
from atat_zoo_images.picture_guidance import PixelsGuidance
from atat_zoo_images.pixel_tokenizer import PixelsModel

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.generation.model import Model


def load_run(run: Path, step: str | None = None) -> Model:
    """Return `Model.from_run(run, step=step)`; raise a `UserError` if its tokenizer is not `pixels`."""
    from atat_zoo.generation.model import Model

    model = Model.from_run(run, step=step)
    if not isinstance(model.tokenizer, PixelsModel):
        raise UserError(f'{run} is not a model of pictures; pass a run with tokenizer.use = "pixels"')
    return model


def labels_of(model: Model, run: Path) -> dict[str, int]:
    """Return the names of a model's classes, with their ids; raise a `UserError` if its pictures have no label."""
    tokenizer: Any = model.tokenizer
    if not tokenizer.labels or not grid_of(model.context.length)[0]:
        raise UserError(
            f"the pictures of {run} have no label; train with corpus.label = true, and data.length = pixels + 1"
        )
    return tokenizer.labels


def samples_of(model: Model, label: str, number: int, *, guidance: float = 0.0, **options: Any) -> Tensor:
    """Return pictures of a class, int64 [number, L]; `guidance` is the scale of classifier-free guidance."""
    prompt, options["guidance"] = f"<{label}>", "pixels"
    if guidance:
        block = model.text_generator().denoiser.block_size
        empty = "dropped" if block else "masked"
        guide = {"use": "classifier_free", "condition": prompt, "strength": guidance, "empty": empty}
        options["guidance"] = {"use": "combined", "first": guide, "second": "pixels"}
    return model.sample(number, prompt=prompt, **options).sample.tokens


def inpainted(model: Model, ids: list[int], number: int, *, seed: int = 0) -> Tensor:
    """Return `number` pictures, int64 [number, L], with the masks among `ids` filled and all other tokens unchanged."""
    import torch

    parts = model.experiment.parts
    text_generator = PixelsGuidance().guide(parts["guidance"].guide(model.text_generator()))
    return text_generator.fill(parts["sampler"], torch.tensor(ids).expand(number, -1), seed=seed).tokens


def picture_ids(model: Model, run: Path, picture: str, label: str | None = None) -> list[int]:
    """Return the tokens of a picture: a file, or a number in the test split of the run's corpus.

    The label of a file is `label`, or a mask without one. Raises a `UserError` if there is no such picture or class.
    """
    from atat_zoo.evaluation.held_out_text import held_out_text

    labels = labels_of(model, run) if label is not None else {}
    if label is not None and label not in labels:
        raise UserError(f"--class: unknown class {label!r}{nearest(label, [*labels])} (classes: {', '.join(labels)})")
    first, side = grid_of(model.context.length)
    if picture.isdecimal():
        test = held_out_text(model, run, "test", 0).tokens
        if int(picture) >= len(test):
            raise UserError(f"{run}: the test split has no picture {picture}; pass 0 to {len(test) - 1}, or a file")
        ids = test[int(picture)].tolist()
    else:
        tokenizer: Any = model.tokenizer
        ids = [model.context.mask_id] * first + ids_of_file(Path(picture), tokenizer, side)
    return ids if label is None else [labels[label], *ids[1:]]
