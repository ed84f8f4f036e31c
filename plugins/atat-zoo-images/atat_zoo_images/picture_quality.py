"""The quality of a run on pictures: bits per dimension, and how often a classifier recognises the class of a sample.

Shapes: n pictures of L tokens, D of which are pixels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from atat_zoo_images.grid_orders import grid_of
from atat_zoo_images.picture_files import rgb
from atat_zoo_images.picture_models import labels_of, samples_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from atat_zoo.data import Split
    from atat_zoo.generation.model import Model


class Bits(NamedTuple):
    """−log₂ p(pixels | class) / D of each held-out picture, under one factorisation."""

    factorisation: str
    each: Tensor  # float64 [n]


class Quality(NamedTuple):
    """What `quality` returns, on n held-out pictures and on samples of each class."""

    bits: list[Bits]
    label: Tensor  # id of each picture's class, int64 [n]
    right: Tensor  # whether the classifier recognises the picture, bool [n]
    recognised: dict[str, Tensor]  # for each class, whether it takes the samples for this class, bool [samples]


def quality(
    model: Model, run: Path, *, split: Split, samples: int, mask_samples: int, seed: int, guidance: float = 0.0
) -> Quality:
    """Return the `Quality` of a run on a held-out split and on `samples` generated pictures of each class."""
    import torch

    from atat_zoo.data.sequences import corpus_sequences
    from atat_zoo.evaluation.held_out_text import text_of
    from atat_zoo.registry.spec import evolve

    labels = labels_of(model, run)
    spec = evolve(model.experiment.evaluation, split=split, sequences=0, mask_samples=mask_samples, metrics=())
    tokens = text_of(model, run, spec).tokens
    data = model.experiment.data
    found = corpus_sequences(
        model.experiment.parts["corpus"],
        model.tokenizer,
        "train",
        length=data.length,
        special=data.special_tokens,
        rows=data.packing,
        limit=0,
    )
    recognise = classifier(model, found.tokens)

    def recognised(pictures: Tensor) -> Tensor:
        return torch.from_numpy(recognise(pictures)) == pictures[:, 0]

    made = {label: samples_of(model, label, samples, guidance=guidance, seed=seed) for label in labels}
    return Quality(
        bits=bits_per_dimension(model, tokens, spec, seed),
        label=tokens[:, 0],
        right=recognised(tokens),
        recognised={label: recognised(pictures.cpu()) for label, pictures in made.items()},
    )


def bits_per_dimension(model: Model, tokens: Tensor, spec: Any, seed: int) -> list[Bits]:
    """Return the `Bits` of pictures, int64 [n, L], under each factorisation that the model reports."""
    import torch

    from atat_zoo.evaluation.likelihood import measure

    first, side = grid_of(tokens.shape[1])
    pixels = (torch.arange(tokens.shape[1]) >= first).expand(tokens.shape)  # the label is given, not predicted
    names = model.experiment.parts["objective"].factorisations(model.experiment)
    found = measure(model.module, tokens, pixels, spec, seed=seed).contribution
    return [Bits(names.get(name, name), nats.sum(1) / (math.log(2) * side**2)) for name, nats in found.items()]


def classifier(model: Model, train: Tensor) -> Callable[[Tensor], NDArray[np.int64]]:
    """Fit a support vector machine to labelled pictures, int64 [n, L]; return a function from pictures to label ids."""
    from sklearn.svm import SVC

    tokenizer: Any = model.tokenizer
    colours = rgb(tokenizer.colours) / 255.0

    def features(tokens: Tensor) -> NDArray[np.float64]:
        pixels: NDArray[np.int64] = tokens[:, grid_of(tokens.shape[1])[0] :].numpy()
        return colours[pixels].reshape(len(tokens), -1)

    machine = SVC(C=10.0).fit(features(train), train[:, 0].numpy())
    return lambda tokens: machine.predict(features(tokens))


def tables(found: Mapping[str, Quality], labels: Mapping[str, int]) -> str:
    """Return Markdown: a table of runs, compared with the first one, and a table with a row for each class."""
    import torch

    from atat_zoo.evaluation.results.intervals import paired

    runs, one = list(found), next(iter(found.values()))
    lines = ["| run | bits per dimension | factorisation | against " + runs[0] + " | samples recognised |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for run, each in found.items():
        recognised = _percent(torch.cat([*each.recognised.values()]))
        for bits in each.bits:
            (mean, error), against = _mean(bits.each), ""
            if bits is not one.bits[0]:
                difference = paired(bits.each, one.bits[0].each, torch.ones(len(bits.each)))
                against = f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
            lines.append(f"| {run} | {mean:.3f} ± {error:.3f} | {bits.factorisation} | {against} | {recognised} |")
    heads = "".join(f" {run}: bits | {run}: samples recognised |" for run in runs)
    lines += ["", f"| class | pictures | of them recognised |{heads}", "| --- " * (3 + 2 * len(runs)) + "|"]
    for label, i in labels.items():
        of_class = one.label == i
        cells = [str(int(of_class.sum())), _percent(one.right[of_class])]
        for each in found.values():
            cells += [f"{float(each.bits[0].each[of_class].mean()):.3f}", _percent(each.recognised[label])]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(
        [*lines, "", f"The classifier recognises {_percent(one.right)} of {len(one.right)} real pictures."]
    )


def _mean(values: Tensor) -> tuple[float, float]:
    """Return the mean of values [n], and its standard error."""
    return float(values.mean()), float(values.std() / len(values) ** 0.5)


def _percent(right: Tensor) -> str:
    """Return the share of true values as text."""
    return f"{100 * float(right.double().mean()):.1f} %" if len(right) else "—"
