"""The contract of both parts, for every architecture."""

import numpy as np
import pytest
import torch
import transformers
from models import ARCHITECTURES, CAUSAL, small

from atat_zoo.diffusion.cache import Cache
from atat_zoo.experiment.experiment_file import from_table
from atat_zoo.registry import Context, Zoo
from atat_zoo.system.errors import UserError
from atat_zoo.testing import cases, check_backbone


@pytest.mark.parametrize("case", cases(distribution="atat-zoo-transformers"), ids=str)
def test_conformance(case):
    case.run()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_keeps_the_contract_of_a_backbone(name, tmp_path):
    small(name, tmp_path, vocab_size=12)
    check_backbone(Zoo.load().spec("backbone", {"use": "transformers", "model": str(tmp_path), "mask_id": 4}))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_ids_are_the_model_s_own(name, tmp_path):
    small(name, tmp_path)
    made = Zoo.load().spec("tokenizer", {"use": "transformers", "model": str(tmp_path)}).train(lambda: iter(()))
    own = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "the people of this nation"
    assert made.encode(text) == own(text, add_special_tokens=False)["input_ids"]
    assert made.decode(made.encode(text)) == text
    ends = [i for i in (made.bos, made.eos) if i is not None]
    assert ends == ([made.eos] if name in CAUSAL else own("")["input_ids"])
    assert made.vocabulary_size == len(own)


def test_the_name_of_a_special_token_in_a_text_is_text(tmp_path):
    small("bert", tmp_path)
    made = Zoo.load().spec("tokenizer", {"use": "transformers", "model": str(tmp_path)}).train(lambda: iter(()))
    mask = transformers.AutoTokenizer.from_pretrained(tmp_path).mask_token_id
    assert mask not in made.encode("a [MASK] of peace")


def test_a_causal_model_sees_all_places_and_may_predict_each_from_the_one_before(tmp_path):
    own = small("llama", tmp_path)
    table = {"use": "transformers", "model": str(tmp_path), "mask_id": 1}
    context = Context(vocabulary_size=own.config.vocab_size, length=16, counts=np.ones(own.config.vocab_size, np.int64))
    plain, shifted = (Zoo.load().build("backbone", table | {"shift": shift}, context) for shift in (False, True))
    tokens = torch.randint(5, 250, (1, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(shifted(tokens)[:, 1:], plain(tokens)[:, :-1])
        causal = plain.head(plain(tokens, attention="causal"))[..., 5:]
        torch.testing.assert_close(causal, own(tokens).logits[..., 5:], atol=1e-5, rtol=0)
    positions = torch.arange(16)
    for options in ({"attention": "causal"}, {"positions": positions, "cache": Cache()}):
        with pytest.raises(UserError, match=r"backbone\.shift: .* passes .* an attention mask or a cache; set shift"):
            shifted(tokens, **options)


def test_a_shift_is_refused_where_a_text_is_not_denoised_as_a_whole(tmp_path):
    small("llama", tmp_path)
    part = {"use": "transformers", "model": str(tmp_path)}
    table = {"name": "shift", "tokenizer": part, "backbone": part | {"mask_id": 1, "shift": True}}
    from_table(table | {"data": {"length": 32}})
    for objective, sampler in (("autoregressive", "left_to_right"), ("block", "semi_autoregressive")):
        asked = {"objective": {"use": objective}, "sampler": {"use": sampler}, "data": {"length": 32}}
        with pytest.raises(UserError, match=rf"backbone\.shift: objective '{objective}' does not denoise a text"):
            from_table(table | asked)
