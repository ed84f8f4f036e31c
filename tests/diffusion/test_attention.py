import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.diffusion.attention import SHORT, attend


@given(
    rows=st.integers(1, 3),
    queries=st.integers(1, 6),
    keys=st.integers(1, 9),
    masked=st.sampled_from(["no", "for each row", "for all rows", "causal"]),
    seed=st.integers(0, 99),
)
def test_products_in_bf16_are_the_attention_of_float32(rows, queries, keys, masked, seed):
    generator = torch.Generator().manual_seed(seed)
    queries = keys if masked == "causal" else queries
    shapes = [(rows, 2, count, 4) for count in (queries, keys, keys)]
    q, k, v = (torch.randn(shape, generator=generator).bfloat16().requires_grad_() for shape in shapes)
    mask = None
    if masked in ("for each row", "for all rows"):
        shape = (rows, 1, queries, keys) if masked == "for each row" else (queries, keys)
        mask = torch.rand(shape, generator=generator) < 0.5
        mask[..., 0] = True
    found = attend(q, k, v, mask, causal=masked == "causal")
    wide = [each.detach().float().requires_grad_() for each in (q, k, v)]
    expected = F.scaled_dot_product_attention(*wide, attn_mask=mask, is_causal=masked == "causal")
    assert found.dtype is torch.bfloat16
    assert found.float().sub(expected).abs().max() < 0.03
    gradients = [
        torch.autograd.grad(out.float().square().sum(), into) for out, into in ((found, (q, k, v)), (expected, wide))
    ]
    for mine, theirs in zip(*gradients, strict=True):
        assert mine.float().sub(theirs).abs().max() < 0.05 * (1 + theirs.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_in_other_precisions_it_is_the_fused_kernel(dtype):
    q, k, v = torch.randn(3, 2, 2, 5, 4, dtype=dtype)
    assert torch.equal(attend(q, k, v), F.scaled_dot_product_attention(q, k, v))
    assert torch.equal(attend(q, k, v, causal=True), F.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_long_texts_and_single_ones_are_for_the_fused_kernel(monkeypatch):
    def scores(*_):
        raise AssertionError("by products")

    q, k = torch.randn(2, 1, 1, 4).bfloat16(), torch.randn(2, 1, SHORT + 1, 4).bfloat16()
    monkeypatch.setattr(torch.Tensor, "softmax", scores)
    attend(q, k, k)
    attend(q[:1], k[:1, :, :8], k[:1, :, :8])
    with pytest.raises(AssertionError, match="by products"):
        attend(q, k[:, :, :8], k[:, :, :8])
