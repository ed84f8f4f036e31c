"""Infilling of gaps in held-out texts: exact match, and the NLL of the true tokens.

There are n texts of L tokens, each with a gap of G tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from atat_zoo.evaluation import batches
from atat_zoo.evaluation.results.quantity_names import NATS_PER_TOKEN
from atat_zoo.evaluation.results.task_results import Score
from atat_zoo.evaluation.tasks import Task, conflicts_of, sampling_inputs
from atat_zoo.registry import component, component_param, param
from atat_zoo.system.errors import Problem, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.diffusion.contracts import Denoiser
    from atat_zoo.evaluation import Progress
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model
    from atat_zoo.generation.samplers import Sampler

SHARE_OF_TEXTS = "share of texts"


@component
class InfillingTask(Task):
    """Infilling of one gap in each of n validation texts, at a position sampled with (seed, index of the text).

    `exact match` is the fraction of gaps that the sampler, with the run's guidance, fills with the true text. `price`
    is the NLL of the true tokens given both sides, computed with the chain rule from left to right. `gain` is the
    increase in this NLL if the right side is masked, which is 0 for an autoregressive model. `better` is the fraction
    of texts with a positive gain.
    """

    name = "infilling"
    summary = (
        "infilling of gaps in held-out text: exact match, NLL of the true tokens, and the gain from the right context"
    )
    refs = ("arXiv:2005.05339",)

    gap: int = param(5, help="number of tokens per gap", ge=1)
    texts: int = param(256, help="maximum number of validation sequences, evenly spaced; 0 means all", ge=0)
    sampler: Sampler | None = component_param("sampler", None, help="sampler to infill with (default: the run's)")

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a `Problem` if the gap does not fit in a sequence, and the experiment's conflicts with the sampler."""
        length = experiment.data.length
        if self.gap > length - 2:
            problem = f"a gap of {self.gap} tokens does not leave a token on each side in a sequence of {length}"
            yield Problem("evaluation.tasks", f"{problem}; set gap to at most {length - 2}")
        if self.sampler is not None:
            yield from conflicts_of(experiment, sampler=self.sampler)

    @override
    def inputs(self, experiment: Experiment) -> Any:
        return sampling_inputs(self.sampler, experiment)

    @override
    def measure(self, model: Model, run: Path, *, seed: int, progress: Progress = None) -> dict[str, Score]:
        import torch

        from atat_zoo.evaluation.held_out_text import digest, held_out_text, special_ids

        text = held_out_text(model, run, "validation", self.texts)
        starts = place_gaps(text.tokens, text.counted, special_ids(model.tokenizer), self.gap, seed)
        rows = (starts >= 0).nonzero()[:, 0]
        if not len(rows):
            problem = f"none of the {len(starts)} held-out texts contains {self.gap} adjacent tokens"
            raise UserError(f"{problem} without BOS, EOS and padding; lower gap")
        tokens, starts = text.tokens[rows], starts[rows]
        # In float32, because with less precision the generated text would depend on the batch size.
        text_generator, mask_id = model.text_generator("fp32"), model.context.mask_id
        sampler = self.sampler or model.experiment.parts["sampler"]
        guided = model.experiment.parts["guidance"].guide(text_generator)
        sides: dict[bool, list[Tensor]] = {True: [], False: []}
        matches, position = [], torch.arange(tokens.shape[1])
        for some in batches(len(rows), model.experiment.evaluation.batch_size, progress):
            x, at = (each[some].to(model.context.device) for each in (tokens, starts))
            for right, of_side in sides.items():
                found = log_likelihood(text_generator.denoiser, x, at, self.gap, mask_id=mask_id, right=right)
                of_side.append(found.sum(1).cpu())
            free = (position >= starts[some][:, None]) & (position < starts[some][:, None] + self.gap)
            z = x.masked_fill(free.to(x.device), mask_id)
            filled = guided.fill(sampler, z, rows=rows[some].to(x.device), seed=seed, batch_size=len(x)).tokens
            texts = zip(filled.tolist(), x.tolist(), strict=True)
            matches += [model.tokenizer.decode(one) == model.tokenizer.decode(true) for one, true in texts]
        both, left = torch.cat(sides[True]), torch.cat(sides[False])
        of, words = digest(tokens, starts), torch.full_like(both, self.gap)
        return {
            "exact match": Score.over(SHARE_OF_TEXTS, torch.tensor(matches), of=of),
            "price": Score.over(NATS_PER_TOKEN, -both, words, of=of),
            "gain": Score.over(NATS_PER_TOKEN, both - left, words, of=of),
            "better": Score.over(SHARE_OF_TEXTS, both > left, of=of),
        }


def place_gaps(tokens: Tensor, maskable: Tensor, special: list[int], gap: int, seed: int) -> Tensor:
    """Return the start of each text's gap, int64 [n], a function of (seed, row), or −1 if no gap fits.

    The texts are [n, L]. A gap contains neither padding nor the ids in `special`, and has a token on each side.
    """
    import torch

    from atat_zoo.diffusion.randomness import sequence_keys, to_unit

    plain = maskable & ~torch.isin(tokens, torch.tensor(special, dtype=tokens.dtype))
    free = plain.unfold(1, gap, 1).all(2)  # whether the window of G tokens that starts here is free
    free[:, 0] = False
    # The token after the gap exists and is not padding.
    free = free[:, :-1] & maskable[:, gap:]
    count = free.sum(1)
    unit = to_unit(sequence_keys(seed, "gaps", torch.arange(len(tokens))), torch.float64)
    nth = (unit * count).floor().long() + 1
    return torch.where(count > 0, (free.cumsum(1) >= nth[:, None]).int().argmax(1), -1)


def log_likelihood(
    denoiser: Denoiser, tokens: Tensor, starts: Tensor, gap: int, *, mask_id: int, right: bool
) -> Tensor:
    """Return log p_θ of the true tokens in gaps in nats, float64 [n, G], computed with the chain rule.

    Tokens are predicted from left to right, with the gap's earlier tokens visible and its later tokens masked. This is
    the exact likelihood of filling the gap in this order, which left-to-right models also support. `tokens` is int64
    [n, L], `starts` is int64 [n], and `right` tells whether the text after the gap is visible.
    """
    import torch

    position = torch.arange(tokens.shape[1], device=tokens.device)
    begin = starts[:, None]
    end = begin + gap if right else torch.full_like(begin, tokens.shape[1])
    log_p = []
    for j in range(gap):
        where = position == begin + j
        z = tokens.masked_fill((position >= begin + j) & (position < end), mask_id)
        with torch.no_grad():
            log_p.append(denoiser(z, None, where).gather(1, tokens[where][:, None])[:, 0].double())
    return torch.stack(log_p, dim=1)
