"""The networks are the published ones: the same logits, from the same weights; see oracle.py."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from atat_zoo_checkpoints import ddit, llama
from atat_zoo_checkpoints.ddit import PREFIX
from atat_zoo_checkpoints.ddit_forms import of_hub, of_setdlm
from atat_zoo_checkpoints.llama_forms import FORMS, backbone_of
from filled import BLOCK, DDIT, FULL, LENGTH, LLADA2, LLAMA, SIGMA, fill, listed, order, some, text

from atat_zoo import Zoo
from atat_zoo.diffusion.attention import attention_mask
from atat_zoo.modeling.objectives.causal_module import two_streams
from atat_zoo.registry import Context

RECORD = json.loads(Path(__file__).with_name("logits.json").read_text())
LOGITS = RECORD["logits"]
PARTS = {"position_sets": "left_to_right", "estimator": "uniform", "curriculum": "none", "target": "difficulty"}


def network(use, size, V, prefix="", **more):
    spec = Zoo.load().spec("backbone", {"use": use, **size, **more})
    module = spec.build(Context(vocabulary_size=V, length=16)).eval()
    own, _ = spec.published(module)
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(fill(name.removeprefix(prefix), weight.shape))
    return module


def holds(found, name):
    assert torch.tensor(some(found)).sub(torch.tensor(LOGITS[name])).abs().max() < 1e-4


def all_logits(module, hidden):
    """Return the logits of all rows of the published table."""
    return F.linear(hidden, module.head.weight, module.head.bias)


@pytest.mark.parametrize("name", FULL)
def test_the_published_sizes_have_the_published_weights(name, monkeypatch):
    """On the meta device, where they take no memory."""
    config, model = FULL[name], "a model"
    if name in ("mdlm", "setdlm"):
        hub = {**config, "model_length": 1024, "time_conditioning": False}
        shape = of_setdlm(config, model) if name == "setdlm" else of_hub(hub, model)
        table = {"use": "ddit", "condition": shape.condition, "rows": shape.rows, "form": name}
    else:
        table = backbone_of(config, FORMS[config["model_type"]], model)
    spec = Zoo.load().spec("backbone", table)
    for module in (ddit, llama):
        monkeypatch.setattr(module, "require", lambda *_: None)
    with torch.device("meta"):
        own, constants = spec.published(spec.build(Context(vocabulary_size=1000, length=16)))
    assert listed(own | constants) == RECORD["keys"][name]


@pytest.mark.parametrize("shape", DDIT)
@pytest.mark.parametrize("name", ["mdlm", "mdlm, timed", "autoregressive", "sedd", "duo", "bd3lm"])
@torch.no_grad()
def test_ddit(name, shape):
    size, rows, length = DDIT[shape], DDIT[shape]["rows"], LENGTH[shape]
    timed = name in ("mdlm, timed", "sedd", "duo")
    size = {**size, "condition": 0} if name == "autoregressive" else size
    form = name if name in PREFIX else "mdlm"
    module = network("ddit", size, rows - 1, PREFIX[form], form=form, time_conditioning=timed)
    ids, sigma = text(shape, rows), torch.tensor(SIGMA)
    t = (1 - torch.exp(-sigma)) / (1 - 1e-3) if timed else None
    if name == "bd3lm":
        clean = text(shape, rows, 2)
        seen = attention_mask(two_streams(length, BLOCK), None, 2 * length, ids.device)
        found = module(torch.cat([ids, clean], 1), positions=torch.arange(length).repeat(2), attention=seen)[:, :length]
    else:
        found = module(ids, t, attention="causal" if name == "autoregressive" else None)
    found = module.head(found).log_softmax(-1) if name == "autoregressive" else all_logits(module, found)
    if name == "sedd":
        found = found - torch.expm1(sigma).log()[:, None, None] - math.log(rows - 1)
        found = found.scatter(-1, ids[..., None], 0.0)
    holds(found, f"{name}, {shape}")


@pytest.mark.parametrize("shape", DDIT)
@pytest.mark.parametrize("name", ["setdlm", "setdlm, adaln"])
@torch.no_grad()
def test_a_set_causal_network(name, shape):
    """By the objective, which reads masks and tokens in another order than the published code."""
    size, rows, length = DDIT[shape], DDIT[shape]["rows"], LENGTH[shape]
    size = {**size, "condition": size["condition"] if "adaln" in name else 0}
    backbone = network("ddit", size, rows - 1, PREFIX["setdlm"], form="setdlm")
    clean, place = text(shape, rows, 2), order(length)
    context = Context(vocabulary_size=rows - 1, length=length - 1)
    zoo = Zoo.load()
    built = {kind: zoo.build(kind, each, context) for kind, each in PARTS.items()}
    found = []
    for row in clean:  # whose starts differ
        objective = zoo.spec("objective", {"use": "set_diffusion", "start": int(row[0])})
        module = objective.build(context, {**built, "backbone": backbone}, 1)
        hidden = module.hidden_in_steps(row[None, 1:], place.argsort()[None, 1:] - 1, ascending=False)
        found.append(all_logits(backbone, hidden)[:, place[1:] - 1])
    holds(torch.cat(found), f"{name}, {shape}")


@pytest.mark.parametrize("shape", LLAMA)
@pytest.mark.parametrize("name", ["llada", "dream", "llada2"])
@torch.no_grad()
def test_llama(name, shape):
    size, length = (LLADA2 if name == "llada2" else LLAMA)[shape], LENGTH[shape]
    rows, block = size["rows"], torch.arange(length) // BLOCK
    more = {"llada": {}, "dream": {"qkv_bias": True, "shift": True, "eps": 1e-6}, "llada2": {}}[name]
    more |= {"form": name, "prefix": "model." if name == "llada" else ""}
    module = network("llada2" if name == "llada2" else "llama", size, rows - 1, **more)
    found = module(text(shape, rows), attention=block[:, None] >= block if name == "llada2" else None)
    holds(all_logits(module, found), f"{name}, {shape}")
