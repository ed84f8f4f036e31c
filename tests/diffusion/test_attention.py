import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st

from atat_zoo.diffusion import attention
from atat_zoo.diffusion.attention import MANY, SHORT, WEIGHTS, attend, attention_mask, document_rule


@given(
    rows=st.integers(1, 3),
    queries=st.integers(1, 6),
    keys=st.integers(1, 9),
    masked=st.sampled_from(["no", "for each row", "for all rows", "for one row", "causal"]),
    at_once=st.integers(0, 2),
    autocast=st.booleans(),
    seed=st.integers(0, 99),
)
@example(rows=2, queries=3, keys=3, masked="causal", at_once=0, autocast=True, seed=0)
def test_products_in_bf16_are_the_attention_of_float32(rows, queries, keys, masked, at_once, autocast, seed):
    generator = torch.Generator().manual_seed(seed)
    queries = keys if masked == "causal" else queries
    shapes = [(rows, 2, count, 4) for count in (queries, keys, keys)]
    q, k, v = (torch.randn(shape, generator=generator).bfloat16().requires_grad_() for shape in shapes)
    mask = None
    if masked.startswith("for"):
        shape = {"for each row": (rows, 1), "for one row": (1, 1)}.get(masked, ())
        mask = torch.rand((*shape, queries, keys), generator=generator) < 0.5
        mask[..., 0] = True
    with pytest.MonkeyPatch.context() as patch:
        if at_once:
            for name, value in (("SHORT", 0), ("MANY", 1), ("WEIGHTS", at_once * 2 * queries * keys)):
                patch.setattr(attention, name, value)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
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


@pytest.mark.parametrize(
    ("rows", "queries", "keys", "causal", "products"),
    [
        (2, 1, SHORT, False, [2]),
        (2, 1, SHORT + 1, False, []),
        (1, 1, SHORT, False, []),
        (2, SHORT, SHORT, True, [2]),
        (2, SHORT + 1, SHORT + 1, True, []),
        (1, SHORT, SHORT, True, []),
        (1, MANY, SHORT, False, [1]),
        (2, MANY - 1, SHORT + 1, False, []),
        (2, MANY, WEIGHTS // MANY // 4, False, [2]),
        (2, MANY, WEIGHTS // MANY // 4 + 1, False, [1, 1]),
        (5, MANY, WEIGHTS // MANY // 4, False, [2, 2, 1]),
        (1, MANY, WEIGHTS // MANY // 2, False, [1]),
        (1, MANY, WEIGHTS // MANY // 2 + 1, False, []),
        (WEIGHTS // SHORT, 1, SHORT, False, [WEIGHTS // SHORT]),
        (0, MANY, SHORT + 1, False, [0]),
    ],
)
def test_which_shapes_are_for_products_and_which_compute_their_weights_again(
    rows, queries, keys, causal, products, monkeypatch
):
    used = []
    monkeypatch.setattr(attention, "_by_products", lambda q, *others: used.append(len(q)) or q)
    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", lambda q, *others, **options: q)
    q, k = (torch.empty(rows, 2, count, 1, dtype=torch.bfloat16) for count in (queries, keys))
    assert attend(q, k, k, causal=causal).shape == q.shape
    assert used == products


def test_a_compiler_gets_the_fused_kernel_beyond_short_texts(monkeypatch):
    used = []
    monkeypatch.setattr(attention, "_by_products", lambda q, *others: used.append(q.shape[2]) or q)
    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", lambda q, *others, **options: q)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for length in (SHORT, SHORT + 1):
        attend(*[torch.empty(2, 1, length, 1, dtype=torch.bfloat16)] * 3)
    assert used == [SHORT]


@pytest.mark.parametrize("shape", [None, (5, 7), (2, 5, 7), (1, 1, 5, 7), (3, 1, 5, 7), (3, 2, 5, 7)])
def test_with_weights_that_are_computed_again_gradients_are_those_of_attention_in_float64(shape, monkeypatch):
    monkeypatch.setattr(attention, "WEIGHTS", 2 * 2 * 5 * 7)  # of two rows
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 2, n, 4, dtype=torch.float64, generator=generator).requires_grad_() for n in (5, 7, 7))
    mask = None if shape is None else (torch.rand(shape, generator=generator) < 0.5).index_fill(-1, torch.tensor(0), 1)

    def recomputed(*given):
        return attention._recomputed(*given, mask)

    found, expected = recomputed(q, k, v), F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(found.shape, dtype=torch.float64, generator=generator)
    of = [torch.autograd.grad((each * weights).sum(), (q, k, v)) for each in (found, expected)]
    torch.testing.assert_close(*of)
    assert torch.autograd.gradcheck(recomputed, (q, k, v))


def test_weights_that_are_computed_again_are_not_kept(monkeypatch):
    monkeypatch.setattr(attention, "WEIGHTS", 2 * 2 * 50 * 70)
    q, k, v = (torch.randn(3, 2, n, 4).bfloat16().requires_grad_() for n in (50, 70, 70))
    kept, shapes, softmax = [], [], torch.Tensor.softmax
    for by in (attention._by_products, attention._recomputed):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, to=sizes: to.append(t.numel()) or t, lambda t: t):
            out = by(q, k, v, None)
        kept.append(max(sizes, default=0))
    assert kept[0] == 3 * 2 * 50 * 70
    assert kept[1] < 2 * 50 * 70
    monkeypatch.setattr(
        torch.Tensor, "softmax", lambda s, *dim, **of: shapes.append(tuple(s.shape)) or softmax(s, *dim, **of)
    )
    out.sum().backward()
    assert sorted(shapes) == [(1, 2, 50, 70), (2, 2, 50, 70)]


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
