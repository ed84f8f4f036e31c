"""Writing in bf16, and with a compiled backbone."""

import pytest
import torch
from torch._dynamo.utils import counters

from atat_zoo.diffusion.precision import computes_in_bf16
from atat_zoo.samplers.published import AncestralSampler
from atat_zoo.testing.toys import FunctionDenoiser
from tests.model.making import tiny_model


@pytest.fixture(scope="module")
def model():
    return tiny_model(scale=0.2, backbone={"use": "dit", "layers": 2, "width": 32, "heads": 2})


class Seen(AncestralSampler):
    """Keeps the log-probabilities that the draws see, and whether a product is in bf16 there."""

    def sample(self, denoiser, tokens, seeds, **options):
        def look(z, t, where):
            found = denoiser(z, t, where)
            seen.append((found, (torch.ones(2, 2) @ torch.ones(2, 2)).dtype))
            return found

        return super().sample(FunctionDenoiser(look, denoiser.mask_id), tokens, seeds, **options)


seen = []


@pytest.mark.parametrize("precision", ["fp32", "bf16", "auto"])
def test_the_network_computes_in_it_and_the_probabilities_do_not(model, precision):
    seen.clear()
    made = model.sample(2, sampler=Seen(steps=3), precision=precision)
    assert len(made.texts) == 2
    bf16 = computes_in_bf16(precision, "cpu")
    assert {log_probs.dtype for log_probs, _ in seen} == {torch.float32}
    assert {dtype for _, dtype in seen} == {torch.bfloat16 if bf16 else torch.float32}
    for log_probs, _ in seen:
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(len(log_probs)), rtol=1e-5, atol=1e-5)
    assert not torch.is_autocast_enabled("cpu")


def test_bf16_is_near_to_fp32(model):
    found = {}
    for precision in ("fp32", "bf16"):
        seen.clear()
        model.sample(2, sampler=Seen(steps=1), precision=precision)
        found[precision] = seen[0][0]
    assert not torch.equal(found["bf16"], found["fp32"])
    assert float((found["bf16"] - found["fp32"]).abs().max()) < 0.2


@pytest.mark.slow
def test_a_compiled_backbone_writes_the_same_text(model):
    plain = model.sample(3, seed=4, precision="fp32")
    counters.clear()
    compiled = model.sample(3, seed=4, precision="fp32", compile=True)
    assert compiled.texts == plain.texts
    # It was compiled, and what was compiled has run.
    assert counters["frames"]["ok"] > 0
    # The model itself stays as it is.
    assert model.module.backbone._compiled_call_impl is None
    assert model.writer(compile=True).denoiser.module.backbone.embedding is model.module.backbone.embedding
