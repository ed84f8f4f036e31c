"""Models that write block by block, with random weights."""

import torch

from atat_zoo import Zoo
from atat_zoo.registry import Context

V, L, SIZE = 7, 12, 3
BACKBONE = {"use": "dit", "layers": 3, "width": 16, "heads": 2, "max_length": 64}


def module(use, seed=0, size=SIZE):
    """A small model with random weights, in float64."""
    zoo = Zoo.load()
    context = Context(vocabulary_size=V, length=L, width=16, steps=10)
    spec = zoo.spec("objective", {"use": "block", "size": size} if use == "block" else use)
    table = {"backbone": BACKBONE, "noise": "linear"}
    torch.manual_seed(seed)
    built = spec.build(context, {kind: zoo.build(kind, table[kind], context) for kind in table}, 8)
    for name, parameter in built.named_parameters():
        if "norm" not in name and "scale" not in name:
            torch.nn.init.normal_(parameter, std=0.4)
    return built.double().eval()
