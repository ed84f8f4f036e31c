"""Texts from prompts: B texts in a batch, L tokens in a text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

import attrs
import torch

from atat_zoo.diffusion.randomness import row_keys
from atat_zoo.errors import UserError
from atat_zoo.samplers import Sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from atat_zoo.diffusion.records import Denoiser
    from atat_zoo.model import Model
    from atat_zoo.samplers import Sampler
    from atat_zoo.tokenizers import TokenizerModel


@attrs.frozen(kw_only=True, eq=False)
class Generation:
    """Texts, and what they cost.

    Attributes:
        texts: one for each row of `sample.tokens`.
        sample: tokens, network evaluations per row and their stated maximum, trace.
        seconds: time in the sampler.
    """

    texts: list[str]
    sample: Sample
    seconds: float


def generate(
    model: Model,
    *,
    sampler: Sampler | None = None,
    number: int = 1,
    length: int | None = None,
    seed: int = 0,
    prompt: str = "",
    suffix: str = "",
    batch_size: int = 64,
    trace: bool = False,
) -> Generation:
    """Let a model write.

    Args:
        model: a trained model.
        sampler: a sampler's specification; the experiment's own if None.
        number: how many texts.
        length: tokens in a text, special tokens and prompt included; the training length if None.
        seed: the same seed writes the same texts, and text n does not depend on how many are written.
        prompt: what every text begins with.
        suffix: what every text ends with.
        batch_size: texts at once.
        trace: whether to record the steps.

    Raises:
        UserError: when the length is more than the model has learned, or prompt and suffix do not fit.
    """
    if length is not None and length > model.context.length:
        raise UserError(
            f"a length of {length} is more than the {model.context.length} tokens the model has learned; "
            f"ask for at most {model.context.length}"
        )
    module: Any = model.module
    backbone = getattr(module, "backbone", None)
    return write(
        module.denoiser(),
        model.tokenizer,
        sampler or model.experiment.parts["sampler"],
        number=number,
        length=length or model.context.length,
        seed=seed,
        prompt=prompt,
        suffix=suffix,
        special=model.experiment.data.special,
        importance=_importance(module),
        reads_time=bool(getattr(backbone, "reads_time", False)),
        device=model.context.device,
        batch_size=batch_size,
        trace=trace,
    )


def _importance(module: Any) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return the objective's importance estimator as samplers want it, or None if it has none."""
    if not hasattr(module, "importance"):
        return None

    def importance(draft: Tensor, masked: Tensor) -> Tensor:
        t = None
        if getattr(module.estimator, "reads_time", False):
            t = module.noise.time_at(masked.float().mean(1))
        found: Tensor = module.importance(draft, torch.ones_like(masked), t)
        return found

    return importance


def write(
    denoiser: Denoiser,
    tokenizer: TokenizerModel,
    sampler: Sampler,
    *,
    number: int,
    length: int,
    seed: int,
    prompt: str = "",
    suffix: str = "",
    special: Literal["none", "document", "sequence"] = "none",
    importance: Callable[[Tensor, Tensor], Tensor] | None = None,
    reads_time: bool = False,
    device: str | torch.device = "cpu",
    batch_size: int = 64,
    trace: bool = False,
) -> Generation:
    """Write texts between a prompt and a suffix.

    Args:
        denoiser: p_θ.
        tokenizer: text to ids; the mask is its `vocabulary_size`.
        sampler: a sampler's specification.
        number: how many texts.
        length: L, tokens in a text.
        seed: see `generate`.
        prompt: what every text begins with.
        suffix: what every text ends with.
        special: as in `[data]`; with "sequence", BOS and EOS are given at the two ends.
        importance: see `Sampler.sample`.
        reads_time: see `Sampler.sample`.
        device: where the denoiser is.
        batch_size: texts at once.
        trace: whether to record the steps.

    Raises:
        UserError: when prompt and suffix do not fit into the length.
    """
    before, after = tokenizer.encode(prompt), tokenizer.encode(suffix)
    if special == "sequence":
        before = before if tokenizer.bos is None else [tokenizer.bos, *before]
        after = after if tokenizer.eos is None else [*after, tokenizer.eos]
    given = len(before) + len(after)
    if given > length:
        raise UserError(
            f"prompt and suffix are {given} tokens together, special tokens included, and the length is {length}; "
            "shorten them or ask for a greater length"
        )
    row = [*before, *([tokenizer.vocabulary_size] * (length - given)), *after]
    tokens = torch.tensor(row, dtype=torch.int64, device=device).expand(number, length)
    started = time.perf_counter()
    sample = fill(
        denoiser,
        sampler,
        tokens,
        seed=seed,
        mask_id=tokenizer.vocabulary_size,
        importance=importance,
        reads_time=reads_time,
        batch_size=batch_size,
        trace=trace,
    )
    texts = [tokenizer.decode(ids) for ids in sample.tokens.tolist()]
    return Generation(texts=texts, sample=sample, seconds=time.perf_counter() - started)


def fill(
    denoiser: Denoiser,
    sampler: Sampler,
    tokens: Tensor,
    *,
    seed: int,
    mask_id: int,
    importance: Callable[[Tensor, Tensor], Tensor] | None = None,
    reads_time: bool = False,
    batch_size: int = 64,
    trace: bool = False,
) -> Sample:
    """Fill the masks of int64 [B, L], some rows at a time; row n draws by (seed, n), whatever the batch size."""
    seeds = row_keys(seed, "sample", torch.arange(len(tokens), device=tokens.device))
    parts = [
        sampler.sample(
            denoiser,
            tokens[start : start + batch_size],
            seeds[start : start + batch_size],
            mask_id=mask_id,
            importance=importance,
            reads_time=reads_time,
            trace=trace,
        )
        for start in range(0, len(tokens), batch_size)
    ]
    if len(parts) == 1:
        return parts[0]
    return Sample(
        tokens=torch.cat([part.tokens for part in parts]) if parts else tokens,
        nfe=torch.cat([part.nfe for part in parts]) if parts else tokens.new_zeros(0),
        max_nfe=max((part.max_nfe for part in parts), default=0),
        trace=_joined(parts, batch_size) if trace else None,
    )


def _joined(parts: list[Sample], batch_size: int) -> list[dict[str, Any]]:
    """Return the traces one after the other, with rows numbered over all batches."""

    def moved(record: dict[str, Any], by: int) -> dict[str, Any]:
        return {
            key: moved(value, by) if key == "hidden" else [row + by for row in value] if key == "rows" else value
            for key, value in record.items()
        }

    return [moved(record, i * batch_size) for i, part in enumerate(parts) for record in part.trace or []]
