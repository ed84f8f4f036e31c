"""What a model finds in a text, token by token. B rows, L tokens, V predictable tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from atat_zoo.errors import UserError
from atat_zoo.generation.layout import ends
from atat_zoo.registry import Zoo

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.model.model import Model
    from atat_zoo.uncertainty import Uncertainty


class TokenScore(NamedTuple):
    """A token of a text, as text, and a value in [0, 1]."""

    token: str
    value: float


def importance_of(model: Model, text: str) -> list[TokenScore]:
    """Return the importance of each token of a text; see `Model.importance`.

    An estimator that reads the time is asked at the middle of the diffusion, as in evaluations.
    """
    import torch

    module: Any = model.module
    if not module.denoiser().estimates_importance:
        raise UserError(
            f"objective {model.experiment.parts['objective'].name!r} has no importance; "
            'train with objective.use = "mdlm" or "adaptive" and an estimator'
        )
    row, inner = _row(model, text)
    with torch.no_grad():
        t = torch.full((1,), 0.5, device=row.device)
        values = module.importance(row[None], torch.ones_like(row[None], dtype=torch.bool), t)[0]
    return _scores(model, row[inner], values[inner])


def uncertainty_of(model: Model, text: str, metric: str | Uncertainty, batch_size: int) -> list[TokenScore]:
    """Return the uncertainty of each token of a text given all others; see `Model.uncertainty`."""
    import torch

    measure = Zoo.load().spec("uncertainty", metric) if isinstance(metric, str) else metric
    row, inner = _row(model, text)
    denoiser = model.writer().denoiser
    position = torch.arange(len(row), device=row.device)
    values = []
    for start in range(inner.start, inner.stop, batch_size):
        where = position == position[start : min(start + batch_size, inner.stop), None]
        z = row.expand(len(where), -1).masked_fill(where, denoiser.mask_id)
        with torch.no_grad():
            values.append(measure(denoiser(z, None, where)))
    return _scores(model, row[inner], torch.cat(values))


def _row(model: Model, text: str) -> tuple[Tensor, slice]:
    """Return a text as a row of the model, int64 [L], and where in it the text's own tokens stand."""
    import torch

    first, last = ends(model.tokenizer, model.experiment.data.special)
    ids = model.tokenizer.encode(text)
    row = [*first, *ids, *last]
    if not ids:
        raise UserError("the text is empty; give at least a word")
    if len(row) > model.context.length:
        raise UserError(
            f"the text is {len(row)} tokens, special tokens included, and the model has learned "
            f"{model.context.length}; shorten it"
        )
    return torch.tensor(row, device=model.context.device), slice(len(first), len(first) + len(ids))


def _scores(model: Model, ids: Tensor, values: Tensor) -> list[TokenScore]:
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    return [TokenScore(model.tokenizer.decode([i]), value) for i, value in pairs]
