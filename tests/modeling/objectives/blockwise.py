"""Models that write block by block, with random weights."""

from atat_zoo.registry import Context
from tests.modeling.objectives import small_objectives

V, L, SIZE = 7, 12, 3
BACKBONE = {"use": "dit", "layers": 3, "width": 16, "heads": 2, "max_length": 64}


def module(use, seed=0, size=SIZE):
    """A small model with random weights, in float64."""
    context = Context(vocabulary_size=V, length=L, width=16, steps=10)
    objective = {"use": "block", "block_size": size} if use == "block" else use
    return small_objectives.build(objective, seed, context=context, backbone=BACKBONE).double().eval()
