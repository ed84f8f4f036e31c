import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.diffusion.attention import SHORT, attend, attention_mask, document_rule


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


DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1], [2, 3, 3, 3, 3]])


@pytest.mark.parametrize("causal", [False, True])
def test_a_token_sees_its_own_document(causal):
    found = attention_mask(document_rule(DOCUMENTS, causal=causal), 2, 5, DOCUMENTS.device)
    same = DOCUMENTS[:, :, None] == DOCUMENTS[:, None]
    assert torch.equal(found, (same.tril() if causal else same)[:, None])


def test_a_rule_that_reads_no_row_is_one_mask_for_all():
    found = attention_mask(lambda row, head, query, key: query - key == 1, None, 4, DOCUMENTS.device)
    assert torch.equal(found, torch.eye(4).bool().roll(1, 0) & torch.ones(4, 4).tril().bool())


def test_in_blocks_it_is_the_same_rule_and_what_sees_nothing_is_left_out():
    documents = torch.arange(256)[None].repeat(2, 1) // torch.tensor([[128], [256]])
    found = attention_mask(document_rule(documents, causal=True), 2, 256, documents.device, in_blocks=True)
    expected = torch.tensor([[[1, 0], [0, 1]], [[1, 0], [1, 1]]])
    assert torch.equal(found.to_dense(), expected[:, None].to(found.to_dense().dtype))
    row, query, key = torch.tensor([0, 0, 1, 1]), torch.tensor([130, 130, 130, 7]), torch.tensor([129, 127, 127, 8])
    assert found.mask_mod(row, None, query, key).tolist() == [True, False, True, False]
