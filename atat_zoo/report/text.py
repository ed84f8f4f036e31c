"""Importance and loss over held-out text, token by token. n texts of L tokens, of which S are shown; R mask rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from atat_zoo.diffusion.bounds import uniform_order
from atat_zoo.diffusion.randomness import fold, row_keys
from atat_zoo.estimators import weighs_tokens
from atat_zoo.objectives.denoising import dense

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from atat_zoo.model import Model
    from atat_zoo.tokenizers import TokenizerModel

RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
DRAWS = 4  # times that each token is hidden at each rate
SHOWN = 256  # tokens of a text that are recorded; the model reads all
DIGITS = 4  # decimals of nats and importance


def text_table(
    model: Model,
    tokens: Tensor,
    maskable: Tensor,
    counts: Tensor,
    *,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Return what report/text.json says of the texts: their tokens, surprisal, importance and loss.

    Loss, and an importance that reads z, are means over the masks that hide the token: see `masks_of`. Importance that
    reads x is that at the rate. A model whose likelihood is exact predicts each token from the same others whatever is
    hidden: then there are no `rates`, and one loss of each token.

    Args:
        model: of `Model.from_run`.
        tokens: x, int64 [n, L].
        maskable: bool [n, L].
        counts: training tokens by id, int64 [V].
        seed: of the masks, which are a function of (seed, text, rate).
        progress: called with the completed and the total number of levels.
    """
    weighs, exact = weighs_tokens(model.experiment), model.experiment.parts["objective"].exact
    device = model.context.device
    x, of_text = tokens.to(device), maskable.to(device)
    keys = row_keys(seed, "report", torch.arange(len(x), device=device))
    mass = counts.double() + 1
    surprisal = (-(mass / mass.sum()).log())[tokens]
    losses, importance = [], []
    levels: list[float | None] = [None] if exact else list(RATES)
    for number, rate in enumerate(levels):
        masks = [of_text] if rate is None else list(masks_of(of_text, fold(keys, number), rate, DRAWS))
        loss, weight = measured(model.module, x, of_text, masks, weighs, model.experiment.evaluation.batch_size)
        losses.append(loss)
        importance.append(weight)
        if progress:
            progress(number + 1, len(levels))
    estimator: Any = model.experiment.parts["estimator"] if weighs else None
    return {
        "draws": 1 if exact else DRAWS,
        "rates": [] if exact else list(RATES),
        "estimator": estimator and estimator.name,
        "importance_depends_on_rate": bool(weighs and (estimator.reads == "z" or estimator.reads_time)),
        "texts": [
            {
                "tokens": shown(model.tokenizer, tokens[row, :SHOWN].tolist()),
                "maskable": maskable[row, :SHOWN].tolist(),
                "surprisal": numbers(surprisal[row]),
                "importance": [numbers(each[row]) for each in importance] if weighs else None,
                "loss": [numbers(each[row]) for each in losses],
            }
            for row in range(len(tokens))
        ],
    }


def masks_of(maskable: Tensor, keys: Tensor, rate: float, draws: int) -> Iterator[Tensor]:
    """Yield masks, bool [n, L], of k = round(rate · maskable tokens) tokens, at least one.

    A draw is a random order of the text that is hidden k tokens at a time, from its beginning again in the last mask:
    each mask is uniform, and each token is hidden once a draw, or twice. A text whose order takes fewer masks than
    another's is not masked in the rest. `keys` are of the texts, int64 [n].
    """
    n = maskable.sum(1, keepdim=True)
    k = (n * rate).round().long().clamp(min=1)
    masks = (n / k).ceil()
    for draw in range(draws):
        order = uniform_order(maskable, fold(keys, draw))
        for number in range(int(masks.max())):
            yield ((order - number * k) % n.clamp(min=1) < k) & maskable & (number < masks)


@torch.no_grad()
def measured(
    module: Any, x: Tensor, maskable: Tensor, masks: list[Tensor], weighs: bool, batch_size: int
) -> tuple[Tensor, Tensor]:
    """Return the mean loss and importance of each token over the masks that hide it, float64 [n, L]; NaN where none.

    The masks are of one rate, bool [n, L] each; `batch_size` rows are evaluated at once, or n.
    """
    denoiser = module.denoiser()
    losses, importance = torch.zeros(2, *x.shape, dtype=torch.float64, device=x.device)
    count = torch.zeros_like(x)
    together = max(1, batch_size // len(x))
    for first in range(0, len(masks), together):
        masked = torch.cat(masks[first : first + together])
        text, of_text = (each.repeat(len(masked) // len(x), 1) for each in (x, maskable))
        z = torch.where(masked, denoiser.mask_id, text)
        t = denoiser.time_at(masked.sum(1) / of_text.sum(1).clamp(min=1))
        losses += dense(masked, module.cross_entropy(z, t, masked, text)).view(-1, *x.shape).double().sum(0)
        if weighs:
            reads = text if denoiser.importance_reads == "x" else z
            found = module.importance(reads, of_text, t).double() * masked
            importance += found.view(-1, *x.shape).sum(0)
        count += masked.view(-1, *x.shape).sum(0)
    return losses / count, importance / count


def shown(tokenizer: TokenizerModel, ids: Sequence[int]) -> list[str]:
    """Return each token as it is displayed: decoded alone, so a part of a character is U+FFFD; BOS and EOS by name."""
    special = {tokenizer.bos: "<bos>", tokenizer.eos: "<eos>"}
    return [special[i] if i in special else tokenizer.decode([i]) for i in ids]


def numbers(values: Tensor) -> list[float | None]:
    """Return the values of the tokens that are shown, [S] of [L], rounded; None where there is none."""
    return [round(value, DIGITS) if value == value else None for value in values[:SHOWN].tolist()]
