"""The estimated cost of a network: its weights before it is built, and the FLOPs of a pass."""

from __future__ import annotations

import pytest
import torch
from atat_zoo_checkpoints import ddit, llama
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from atat_zoo import Zoo
from atat_zoo.registry import Context

V, B, L = 30, 3, 11
DDIT = {"use": "ddit", "layers": 3, "width": 24, "heads": 3, "condition": 0}
LLAMA = {"use": "llama", "layers": 3, "width": 24, "heads": 4, "kv_heads": 2, "inner": 40}
LLADA2 = LLAMA | {"use": "llada2", "head_width": 10, "rotated": 0.6, "experts": 12, "chosen": 3, "groups": 4}
LLADA2 |= {"chosen_groups": 2, "expert_inner": 7, "shared_experts": 2, "dense_layers": 1}
NETWORKS = {
    "ddit": DDIT,
    "ddit, more rows": DDIT | {"rows": 50},
    "llama": LLAMA | {"rows": 50},
    "llama, as many heads": LLAMA | {"kv_heads": None},
    "llama, half": LLAMA | {"dtype": "bfloat16"},
    "llada2": LLADA2,
    "llada2, half": LLADA2 | {"dtype": "float16", "dense_layers": 2, "shared_experts": 0},
    "llada2, dense": LLADA2 | {"dense_layers": 9, "kv_heads": None},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_memory_that_is_asked_for_is_that_of_the_matrices(name, monkeypatch):
    asked = []
    for module in (ddit, llama):
        monkeypatch.setattr(module, "require", lambda size, *_: asked.append(size))
    spec = Zoo.load().spec("backbone", NETWORKS[name])
    rows = spec.rows or V + 1
    network = spec.build(Context(vocabulary_size=V, length=L))
    held = sum(weight.nbytes for weight in network.parameters() if weight.ndim == 2)
    # The mask's row of two tables is left out where the rows are not named.
    left_out = 0 if spec.rows else 2 * network.table.weight[0].nbytes
    assert asked == [held - left_out]
    assert network.table.weight.shape == (rows, 24)


@pytest.mark.parametrize("name", [name for name in NETWORKS if "half" not in name])
@torch.no_grad()
def test_flops_are_those_that_torch_counts(name):
    spec = Zoo.load().spec("backbone", NETWORKS[name])
    network = spec.build(Context(vocabulary_size=V, length=L)).eval()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        network.head(network(torch.arange(B * L).view(B, L) % V)[:, :5])
    assert counter.get_total_flops() == spec.flops(V, B, L, 5 * B)


@pytest.mark.parametrize("table", [DDIT, LLAMA, LLADA2], ids=lambda table: table["use"])
def test_as_many_tokens_as_it_has_learned_are_read_and_no_more(table):
    network = Zoo.load().spec("backbone", table | {"max_length": L}).build(Context(vocabulary_size=V, length=L))
    assert network(torch.zeros(1, L, dtype=torch.int64)).shape == (1, L, 24)
    with pytest.raises(ValueError, match=f"{L + 1} tokens exceed this backbone's maximum of {L}"):
        network(torch.zeros(1, L + 1, dtype=torch.int64))
