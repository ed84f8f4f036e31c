"""Text generation with a masked language model.

This file is saved with the model, and as custom_generate/generate.py, so that other models can use it:
`model.generate(ids, custom_generate="owner/name", …)`. Shapes: B texts, L tokens, V the vocabulary size.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SAMPLERS = ("ancestral", "confidence", "strided")
_PASSED = {"generation_config", "tokenizer", "use_model_defaults", "synced_gpus"}  # ignored


@torch.no_grad()
def generate(
    *begun: Tensor,
    model: Any,
    inputs: Tensor | None = None,
    attention_mask: Tensor | None = None,
    sampler: str | None = None,
    steps: int | None = None,
    temperature: float | None = None,
    max_length: int | None = None,
    max_new_tokens: int | None = None,
    num_return_sequences: int = 1,
    windows: bool | None = None,
    generator: torch.Generator | None = None,
    mask_token_id: int | None = None,
    **others: Any,
) -> Tensor:
    """Return texts, int64 [B · num_return_sequences, L], in which masks are replaced and given tokens are unchanged.

    Without `windows`, a generated text ends with its first EOS, and padding replaces the tokens generated after it.
    Padding in the inputs does not change the distribution of a text, and stays on the same side.

    Args:
        begun: the inputs, if passed as a positional argument.
        model: a model that returns logits [B, L, V] for ids [B, L].
        inputs: ids [B, L] that contain masks to fill or the beginning of a text; None to generate from masks only.
        attention_mask: [B, L], 0 at padding; by default, padding is recognised by the id of the padding token.
        sampler: `ancestral` unmasks random positions, as in the reverse process of uniform masking; `confidence`
            unmasks the positions with the most probable tokens, equally many per step; `strided` unmasks the j-th
            masked position of the input in step j mod s.
        steps: maximum number of decoding steps, s; default: the configuration's, or 64.
        temperature: divisor of the logits; 0 selects the most probable token; default: the configuration's, or 1.
        max_length: number of tokens in the whole text, without padding. Masks are appended to each input, before a
            final EOS. Without inputs, the default is the length of a training sequence.
        max_new_tokens: number of masks to append, as an alternative to `max_length`.
        num_return_sequences: number of texts per input.
        windows: whether to keep text generated after an EOS; by default, only if training texts did not end with EOS.
        generator: random number generator; None for torch's default.
        mask_token_id: id of the mask, if the model's configuration does not define it.
        others: arguments of other models, which must be None.

    Raises:
        ValueError: if an argument is not supported.
    """
    config = model.config
    own = {"sampler": "ancestral", "steps": 64, "temperature": 1.0, **(getattr(config, "unmasking", None) or {})}
    sampler, steps = sampler or own["sampler"], steps or own["steps"]
    temperature = own["temperature"] if temperature is None else temperature
    mask = config.mask_token_id if mask_token_id is None else mask_token_id
    if sampler not in SAMPLERS:
        raise ValueError(f"unknown sampler {sampler!r}; use {', '.join(SAMPLERS)}")
    named = others.pop("input_ids", None) if inputs is None else inputs
    inputs = begun[0] if begun else named
    if wrong := sorted(name for name, value in others.items() if name not in _PASSED and value is not None):
        raise ValueError(f"`generate` of this model does not support {', '.join(wrong)}; leave these arguments out")
    ids, visible = _begun(config, inputs, attention_mask, max_length, max_new_tokens, mask, model.device)
    ids, visible = (each.repeat_interleave(num_return_sequences, dim=0) for each in (ids, visible))

    free = (ids == mask) & visible
    number, n = free.cumsum(1) - 1, free.sum(1, keepdim=True)
    turns, turn = free.long() - 1, 0
    reading = {"turns": turns} if getattr(config, "form", "") == "turns" else {}
    if not bool(visible.all()):
        reading["attention_mask"] = visible.long()
    for step in range(steps):
        masked = (ids == mask) & visible
        if sampler == "strided":
            chosen = masked & (number % n.clamp(1, steps) == step)
        elif sampler == "ancestral":
            drawn = torch.rand(ids.shape, generator=generator, device=ids.device, dtype=torch.float32)
            chosen = masked & (drawn < 1 / (steps - step))
        else:
            chosen = masked
        if not bool(chosen.any()):
            continue  # no token would change, so skip the evaluation
        turns[masked] = turn
        logits = model(input_ids=ids, **reading).logits[chosen]
        logits[:, mask] = -torch.inf
        exact = logits.cpu() if logits.device.type == "mps" else logits  # MPS has no float64
        p = (exact.double() / (temperature or 1.0)).softmax(-1)
        if temperature:
            tokens = torch.multinomial(p, 1, generator=generator)[:, 0].to(ids.device)
        else:
            tokens = p.argmax(-1).to(ids.device)
        filled = ids.masked_scatter(chosen, tokens)
        if sampler == "confidence":
            sure = torch.full(ids.shape, -1.0).to(ids.device).masked_scatter(chosen, p.amax(-1).float().to(ids.device))
            now = -(-masked.sum(1, keepdim=True) // (steps - step))
            chosen = masked & (sure.argsort(dim=1, descending=True, stable=True).argsort(1) < now)
        ids, turn = torch.where(chosen, filled, ids), turn + 1
    if windows is None:
        windows = not getattr(config, "has_eos", True)
    return ids if windows else _ended(config, ids, free)


def visible_in(config: Any, ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return a mask, bool [B, L], that is True where ids [B, L] are not padding.

    Without an attention mask, padding is recognised by the id of the padding token.
    """
    if attention_mask is not None:
        return attention_mask.to(ids.device) != 0
    padding, *others = (getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "mask"))
    return torch.ones_like(ids, dtype=torch.bool) if padding is None or padding in others else ids != padding


def _ended(config: Any, ids: Tensor, free: Tensor) -> Tensor:
    """Return ids [B, L] with padding at the positions in `free`, bool [B, L], that follow an EOS in `free`."""
    eos, padding = (getattr(config, f"{name}_token_id", None) for name in ("eos", "pad"))
    if eos is None:
        return ids
    ends = torch.tensor(eos, device=ids.device).flatten()  # a model can have several EOS tokens
    number = (free & torch.isin(ids, ends)).cumsum(1)
    behind = free & (F.pad(number, (1, -1)) > 0)
    return ids.masked_fill(behind, int(ends[0]) if padding is None else padding)


def _begun(
    config: Any,
    inputs: Tensor | None,
    attention_mask: Tensor | None,
    length: int | None,
    more: int | None,
    mask: int,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Return the inputs with masks at the positions to generate, and a mask that is True where they are not padding."""
    bos, eos = getattr(config, "bos_token_id", None), getattr(config, "eos_token_id", None)
    if inputs is None:
        ends = [i for i in (bos, eos) if i is not None] if getattr(config, "framed", False) else []
        inputs = torch.tensor([ends], dtype=torch.int64, device=device)
        if length is None and more is None:
            length = getattr(config, "length", None)
    inputs = inputs.to(device)
    visible, texts = visible_in(config, inputs, attention_mask), []
    for row, there in zip(inputs, visible, strict=True):
        text = row[there]
        new = max(0, (length or 0) - len(text)) if more is None else more
        at = len(text) - (len(text) > 0 and eos is not None and int(text[-1]) == eos)
        texts.append(torch.cat([text[:at], text.new_full((new,), mask), text[at:]]))
    width = max(inputs.shape[1] + (more or 0), *map(len, texts))
    left = bool((~visible[:, :1] & visible[:, -1:]).any())

    def padded(row: Tensor, value: int) -> Tensor:
        return F.pad(row, (width - len(row), 0) if left else (0, width - len(row)), value=value)

    padding = 0 if bool(visible.all()) else int(inputs[~visible][0])
    ids = torch.stack([padded(text, padding) for text in texts])
    return ids, torch.stack([padded(torch.ones_like(text), 0) for text in texts]) == 1
