"""The likelihood of the true words of a gap given both sides, or only the left. n texts of L tokens, a gap of G."""

import math
from pathlib import Path

import attrs
import torch
from torch import Tensor
from typing_extensions import override

from atat_zoo.data import Split
from atat_zoo.diffusion.contracts import Denoiser
from atat_zoo.diffusion.randomness import row_keys, to_unit
from atat_zoo.errors import UserError
from atat_zoo.measure import Progress
from atat_zoo.measure.text import held_out_text, special_ids
from atat_zoo.model import Model
from atat_zoo.results.store import RunResult


@attrs.frozen(kw_only=True)
class GapQuality(RunResult):
    """Mean log-likelihood of the true words of gaps, in nats per token. Errors are standard errors over texts."""

    split: str  # the held-out split of the texts
    number: int  # texts
    length: int  # tokens in a text
    gap: int  # tokens in a gap
    seed: int  # of the gaps' positions
    step: int  # optimizer steps of the weights
    ema: bool  # whether the weights are a moving average
    both: float  # given the text on both sides
    both_stderr: float  # of that
    left: float  # given only the left side, with the right one masked
    left_stderr: float  # of that
    difference: float  # both − left, text by text
    difference_stderr: float  # of that
    better: float  # share of texts whose gap is more likely given both sides

    @property
    @override
    def key(self) -> str:
        return f"infilling-{self.split}-{self.number}x{self.gap}"


def infilling_of_run(
    model: Model,
    run: str | Path,
    *,
    split: Split,
    number: int,
    gap: int,
    seed: int,
    batch_size: int = 64,
    progress: Progress = None,
) -> GapQuality:
    """Cut a gap out of held-out texts, measure the likelihood of the true words, and save it in the run folder.

    Of at most `number` texts, spread evenly over the split (0: all), with gaps of `gap` tokens at positions drawn.
    """
    longest = model.context.length - 2
    if gap > longest:
        problem = f"a gap of {gap} tokens leaves no text on both sides, and the model has learned {longest + 2}"
        raise UserError(f"{problem}; ask for at most {longest}")
    text = held_out_text(model, run, split, number)
    tokens = text.tokens
    starts = place_gaps(tokens, text.maskable, special_ids(model.tokenizer), gap, seed)
    usable = starts >= 0
    if not bool(usable.any()):
        problem = f"none of the {len(tokens)} held-out texts has {gap} tokens together that are no BOS, EOS or padding"
        raise UserError(f"{problem}; ask for a smaller gap")
    tokens, starts = tokens[usable], starts[usable]
    denoiser, mask_id = model.writer().denoiser, model.context.mask_id
    log_p: dict[bool, list[Tensor]] = {True: [], False: []}
    for first in range(0, len(tokens), batch_size):
        x, at = (a[first : first + batch_size].to(model.context.device) for a in (tokens, starts))
        for right, of_side in log_p.items():
            of_side.append(log_likelihood(denoiser, x, at, gap, mask_id=mask_id, right=right).mean(1).cpu())
        if progress:
            progress(first + len(x), len(tokens))
    both, left = torch.cat(log_p[True]), torch.cat(log_p[False])
    means: dict[str, float] = {}
    for name, values in (("both", both), ("left", left), ("difference", both - left)):
        error = float(values.std() / len(values) ** 0.5) if len(values) > 1 else math.nan
        means |= {name: float(values.mean()), f"{name}_stderr": error}
    quality = GapQuality(
        split=split,
        number=len(tokens),
        length=tokens.shape[1],
        gap=gap,
        seed=seed,
        step=model.step,
        ema=model.experiment.train.ema > 0,
        better=float((both > left).double().mean()),
        **means,
    )
    quality.record(run)
    return quality


def place_gaps(tokens: Tensor, maskable: Tensor, special: list[int], gap: int, seed: int) -> Tensor:
    """Return the start of each text's gap, int64 [n], drawn by (seed, row); −1 if there is no room. Texts are [n, L].

    A gap contains no padding and none of the ids `special`, and has a token on each side.
    """
    plain = maskable & ~torch.isin(tokens, torch.tensor(special, dtype=tokens.dtype))
    free = plain.unfold(1, gap, 1).all(2)  # windows of G tokens, by their start
    free[:, 0] = False
    # The token after the gap exists and is not padding.
    free = free[:, :-1] & maskable[:, gap:]
    count = free.sum(1)
    unit = to_unit(row_keys(seed, "gaps", torch.arange(len(tokens))), torch.float64)
    nth = (unit * count).floor().long() + 1
    return torch.where(count > 0, (free.cumsum(1) >= nth[:, None]).int().argmax(1), -1)


@torch.no_grad()
def log_likelihood(
    denoiser: Denoiser, tokens: Tensor, starts: Tensor, gap: int, *, mask_id: int, right: bool
) -> Tensor:
    """Return log p_θ of the true tokens of gaps by the chain rule, in nats, float64 [n, G].

    Token by token from the left, with the gap's earlier tokens shown and its later ones masked: the exact likelihood of
    filling it in this order, which also suits models that only write from left to right. Tokens are int64 [n, L],
    starts int64 [n]; `right`: whether the text right of the gap is shown.
    """
    position = torch.arange(tokens.shape[1], device=tokens.device)
    begin = starts[:, None]
    end = begin + gap if right else torch.full_like(begin, tokens.shape[1])
    log_p = []
    for j in range(gap):
        where = position == begin + j
        z = tokens.masked_fill((position >= begin + j) & (position < end), mask_id)
        log_p.append(denoiser(z, None, where).gather(1, tokens[where][:, None])[:, 0].double())
    return torch.stack(log_p, dim=1)
