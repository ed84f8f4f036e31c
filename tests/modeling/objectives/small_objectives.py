"""Small objectives with random weights, and batches for them."""

import attrs
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from atat_zoo import Zoo
from atat_zoo.modeling.objectives import Batch
from atat_zoo.registry import Context

V, L, N = 7, 6, 8  # vocabulary, length, rows of a global batch
CONTEXT = Context(vocabulary_size=V, length=L, width=16, steps=100, seed=5)
BACKBONE = {"use": "dit", "layers": 1, "width": 16, "heads": 2, "output_bias": "zero"}
DEEP = BACKBONE | {"layers": 2, "local_heads": 1, "max_length": 32}
COUNTED = DEEP | {"ngram_prior": 2}
BASELINES = {
    "autoregressive": {"use": "autoregressive"},
    "sedd": {"use": "sedd"},
    "d3pm": {"use": "d3pm", "steps": 10},
    "mlm": {"use": "mlm", "rate": 0.4},
    "block": {"use": "block", "block_size": 2},
    "sets": {"use": "set_causal", "gap_share": 0.5},
    "strided": {"use": "strided_causal", "stride": 3},
}


PARTS = {
    "position_sets": {"use": "strided", "stride": 3},
    "backbone": BACKBONE,
    "noise": "linear",
    "mask_rates": "noise",
    "estimator": {"use": "transformer", "layers": 1, "width": 8, "heads": 2},
    "masking": "importance",
    "mask_drawing": "bernoulli",
    "curriculum": {"use": "three_stage", "warmup_steps": 0},
    "target": "difficulty",
}


def assembled(objective, context=CONTEXT, batch_size=N, **parts):
    """An objective as it is before training."""
    zoo = Zoo.load()
    spec = zoo.spec("objective", objective)
    table = PARTS | parts
    made = {
        kind: zoo.build(kind, table[kind], context) if isinstance(table[kind], str | dict) else table[kind]
        for kind in sorted(spec.uses)
    }
    return spec.build(context, made, batch_size).train()


def build(objective, seed=0, random=True, context=CONTEXT, **parts):
    """An objective with random weights everywhere, so that nothing is zero by chance, or as it starts."""
    torch.manual_seed(seed)
    module = assembled(objective, context, **parts)
    if random:
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if "norm" not in name and "scale" not in name:
                    parameter.normal_(std=0.4)
    return module


def sets_of(length, v=V, sets="strided", counts=False, **objective):
    """A network of two layers with random weights, in float64, with a prior if asked for."""
    context = Context(vocabulary_size=v, length=length, width=16, seed=5)
    backbone = COUNTED if counts else DEEP
    module = build({"use": "set_causal", **objective}, context=context, backbone=backbone, position_sets=sets)
    if counts:
        prior, pairs = module.prior, torch.cartesian_prod(torch.arange(v), torch.arange(v))
        times = (pairs.sum(1) * 7 + pairs[:, 0]) % 5 + 1
        for apart in (1, 2):
            prior.register_buffer(f"apart_{apart}", torch.cat([pairs, times[:, None]], 1).int())
        prior.tokens = torch.arange(1, v + 1)
    return module.double().eval()


def full_batch(tokens, step=0, progress=0.1):
    """Tokens [B, L], all of them maskable, as the global batch of a step."""
    rows, length = tokens.shape
    return Batch(
        tokens=tokens,
        maskable=torch.ones_like(tokens, dtype=torch.bool),
        index=torch.arange(rows) + step * rows,
        mean_maskable=torch.tensor(float(length)),
        progress=progress,
    )


def batch(first=0, rows=None, *, padded=True, seed=None, progress=0.1, context=CONTEXT):
    """The global batch of a step, or some of its rows; pads are at the end. Another seed has other tokens."""
    V, L = context.vocabulary_size, context.length
    tokens = torch.randint(0, V, (N, L), generator=torch.Generator().manual_seed(first if seed is None else seed))
    whole = full_batch(tokens, first, progress=progress)
    if padded:
        whole.maskable[1, 3:] = False
        whole.maskable[2] = False
        whole.maskable[5, -1:] = False
        whole = attrs.evolve(whole, mean_maskable=whole.maskable.sum(1).float().mean())
    return whole if rows is None else part_of(whole, rows)


def part_of(whole, rows):
    """The rows of a micro-batch; the normalisation stays that of the global batch."""
    return attrs.evolve(whole, tokens=whole.tokens[rows], maskable=whole.maskable[rows], index=whole.index[rows])


class Largest(TorchDispatchMode):
    """The largest tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else [out]:
            if isinstance(each, torch.Tensor):
                self.elements = max(self.elements, each.numel())
        return out
