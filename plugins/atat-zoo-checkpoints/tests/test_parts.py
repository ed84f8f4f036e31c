"""The contract of every part, in the forms that its examples do not have."""

from types import SimpleNamespace

import pytest
import torch
from atat_zoo_checkpoints import ddit_forms
from models import CONFIGS

from atat_zoo.diffusion.cache import Cache
from atat_zoo.registry import Context, Zoo
from atat_zoo.testing import cases, check_backbone

DDIT = {"use": "ddit", "layers": 2, "width": 16, "heads": 2, "condition": 8}


@pytest.mark.parametrize("case", cases(distribution="atat-zoo-checkpoints"), ids=str)
def test_conformance(case):
    case.run()


@pytest.mark.parametrize("more", [{"time_conditioning": True}, {"condition": 0}, {"rows": 80, "mask_id": 3}])
def test_every_form_keeps_the_contract_of_a_backbone(more):
    check_backbone(Zoo.load().spec("backbone", {**DDIT, **more}))


@pytest.mark.parametrize("shape", [DDIT, {"use": "llama", "layers": 1, "width": 16, "heads": 2}], ids=str)
def test_tokens_whose_place_is_not_known_are_refused(shape):
    module = Zoo.load().spec("backbone", shape).build(Context(vocabulary_size=8, length=16))
    tokens, positions = torch.zeros(1, 4, dtype=torch.int64), torch.arange(4)
    for more in ({}, {"positions": positions, "attention": "causal"}):
        with pytest.raises(ValueError, match="with a cache, pass positions, and attention as a mask"):
            module(tokens, None, cache=Cache(), **more)
    with pytest.raises(ValueError, match="exceed this backbone's maximum"):
        module(torch.zeros(1, 5000, dtype=torch.int64))


@pytest.mark.parametrize(("known", "own", "taken"), [(7, 5, 7), (None, 5, 5), (0, None, 0), (None, None, None)])
def test_the_mask_is_that_of_the_settings_before_that_of_the_tokenizer(known, own, taken):
    shape, text = SimpleNamespace(objective="mdlm", mask_id=known), SimpleNamespace(mask=own)
    assert ddit_forms._mask_of(shape, text).get("mask_id") == taken


@pytest.mark.parametrize(("rows", "tokenizer"), [(50258, "gpt2"), (30522, "bert-base-uncased"), (258, None)])
def test_the_number_of_rows_tells_the_tokenizer_of_a_published_model(rows, tokenizer):
    network = CONFIGS["setdlm"]["backbone_config"] | {"vocab_size": rows}
    shapes = [
        ddit_forms.of_hub(CONFIGS["mdlm"] | {"vocab_size": rows}, "m"),
        ddit_forms._of_sedd(CONFIGS["sedd"] | {"tokens": rows - 1}, "m"),
        ddit_forms.of_setdlm(CONFIGS["setdlm"] | {"backbone_config": network}, "m"),
    ]
    assert [(shape.rows, shape.tokenizer) for shape in shapes] == [(rows, tokenizer)] * 3


@pytest.mark.parametrize(("mask_id", "published"), [(None, 40), (0, 0), (3, 3)])
def test_a_set_diffusion_model_is_written_with_its_mask(mask_id, published):
    own = dict.fromkeys(ddit_forms._SETDLM, 2) | {"rows": 41, "length": 8}
    spec = SimpleNamespace(condition=0, mask_id=mask_id)
    sets = SimpleNamespace(window=0.25, power=3.0)
    parts = {"position_sets": sets, "objective": SimpleNamespace(start=9)}
    config = ddit_forms._setdlm_config(spec, own, SimpleNamespace(parts=parts))
    assert (config["mask_token_id"], config["bos_token_id"], config["vocab_size"]) == (published, 9, 41)
    # Its window is b of a text; on average 2·8·¼·¾ tokens of it are masked at once.
    assert config["noise_config"] | {"_target_": ""} == {
        **{"_target_": "", "length": 8, "block_size": 8},
        **{"desired_block_size": 3.0, "max_block_size": 8, "b": 0.25},
    }
