"""Networks of exports, in this process, and what the runs predict that they are of."""

import functools
import tempfile
from pathlib import Path

import torch
from atat_zoo_checkpoints import hub
from atat_zoo_checkpoints.hub import modeling_atat_zoo

from tests.generation import forms
from tests.generation.forms import CAUSAL, V, model_of
from tests.generation.making import L

PAD = V + 1
FORMS = [form for form in forms.FORMS if form != "block"]  # which is not exported


@functools.cache
def network_of(form):
    """Return the network of an export; it has V tokens, then the mask or the start, then the padding."""
    model = model_of(form)
    made = modeling_atat_zoo.AtatZooForCausalLM if form == CAUSAL else modeling_atat_zoo.AtatZooForMaskedLM
    with tempfile.TemporaryDirectory() as folder:
        parts = model.module.backbone, model.tokenizer, model.experiment
        hub.export(*parts, Path(folder), dtype=None, max_shard_size="1GB")
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
            logits = logits_at(where, model.module.inputs_in_steps(ids, turns))
            return {"ids": ids, "turns": turns, "where": where, "logits": logits}
        where = torch.rand(3, L, generator=generator) < torch.tensor([0.2, 0.6, 1.0])[:, None]
        ids[where] = V
        return {"ids": ids, "where": where, "logits": logits_at(where, model.module.head_inputs(ids, None))}
