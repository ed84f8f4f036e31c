"""Small runs of every form that is exported, without a training."""

import functools
import tempfile
from pathlib import Path

import numpy as np
import torch

from atat_zoo.experiment.runs import RunFolder, write_text
from atat_zoo.modeling.backbones.hub import modeling_atat_zoo, write
from atat_zoo.modeling.backbones.neighbours import CountTable
from tests.generation.making import TABLE, tiny_model

V, PAD, L = 258, 259, 24
CAUSAL = "autoregressive"
BACKBONE = TABLE["backbone"]
COUNTED = BACKBONE | {"neighbours": 2, "tied": True, "output_bias": "zero", "local_heads": 1}
TIMED = BACKBONE | {"time_conditioning": True, "mlp_ratio": 2.5}
TEXT = np.random.default_rng(3).zipf(1.3, (60, L)) % V
FORMS = {
    "mdlm": {},
    "counted": {"backbone": COUNTED},
    "timed": {"backbone": TIMED, "noise": "cosine"},
    "linear": {"backbone": TIMED},
    "adaptive": {"objective": "adaptive", "without": ("masking",)},
    "sedd": {"objective": "sedd", "without": ("masking", "estimator")},
    "sets": {"objective": "sets", "backbone": COUNTED, "sampler": "strided", "without": ("masking", "estimator")},
    "strided": {
        "objective": {"use": "strided", "stride": 4},
        "sampler": {"use": "strided", "stride": 4},
        "without": ("masking", "estimator"),
    },
    "autoregressive": {
        "objective": "autoregressive",
        "backbone": COUNTED,
        "sampler": "left_to_right",
        "without": ("masking", "estimator"),
    },
}


def model_of(form, **changes):
    """Return a model of a form."""
    return tiny_model(scale=0.3, count_table=lambda: CountTable.count([TEXT], V), **FORMS[form] | changes)


def run_of(model, folder):
    """Write a run folder of a model, as a training does; returns it."""
    run = RunFolder(folder)
    model.save(run.model)
    write_text(run.resolved, model.experiment.to_toml())
    return run


@functools.cache
def network_of(form):
    """Return the network of an export; it has V tokens, then the mask or the start, then the padding."""
    model = model_of(form)
    made = modeling_atat_zoo.AtatZooForCausalLM if form == CAUSAL else modeling_atat_zoo.AtatZooForMaskedLM
    with tempfile.TemporaryDirectory() as folder:
        parts = model.module.backbone, model.tokenizer, model.experiment
        write(model.experiment.parts["backbone"], *parts, Path(folder), dtype=None, max_shard_size="1GB")
        return made.from_pretrained(folder)


def wanted_of(model, form):
    """Return ids, where predictions are asked for, and our logits there."""

    def logits_at(where, head_inputs):
        return model.module.logits(head_inputs.at(where))

    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, V, (3, L), generator=generator)
    with torch.no_grad():
        if form == "causal":
            read, where = torch.cat([torch.full((3, 1), V), ids[:, :-1]], 1), torch.ones_like(ids, dtype=torch.bool)
            return {"ids": read, "where": where, "logits": logits_at(where, model.module.head_inputs(ids, None))}
        if form == "turns":
            turns = torch.arange(L).repeat(3, 1) % 5 - 1
            turns[1] = torch.randint(-1, 1, (L,), generator=generator)
            turns[2] = torch.randint(-1, 4, (L,), generator=generator)
            where = turns >= 0
            logits = logits_at(where, model.module.of_turns(ids, turns))
            return {"ids": ids, "turns": turns, "where": where, "logits": logits}
        where = torch.rand(3, L, generator=generator) < torch.tensor([0.2, 0.6, 1.0])[:, None]
        ids[where] = V
        return {"ids": ids, "where": where, "logits": logits_at(where, model.module.head_inputs(ids, None))}
