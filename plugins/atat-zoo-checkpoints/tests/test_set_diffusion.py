"""SetDLM's objective: what a prediction reads, and that a text is written as it is priced."""

import pytest
import torch
from atat_zoo_checkpoints.model_import import import_model
from atat_zoo_checkpoints.set_diffusion_module import SetDiffusionModule
from models import V, small

from atat_zoo.system.errors import UserError

L = 12


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    small("setdlm", folder / "model")
    return import_model(str(folder / "model"), folder / "run", [f"data.length={L}"]).module.eval()


@pytest.fixture
def text():
    generator = torch.Generator().manual_seed(1)
    # Of the first row three tokens are given, and two of those that are not come at once in each step but the last.
    steps = torch.stack([torch.randperm(L, generator=generator) // 2 for _ in range(3)])
    steps[0] = torch.where(steps[0] < 2, -1, steps[0] - 2)
    return torch.randint(0, V, (3, L), generator=generator), steps


@torch.no_grad()
def test_a_prediction_reads_all_tokens_of_earlier_turns_and_no_other(module, text):
    x, steps = text
    before = module.hidden_in_steps(x, steps, ascending=False)
    for k in range(L):
        changed = x.clone()
        changed[:, k] = (changed[:, k] + 1) % V
        moves = (module.hidden_in_steps(changed, steps, ascending=False) - before).abs().amax(2) > 0
        assert torch.equal(moves, steps > steps[:, k : k + 1])


@torch.no_grad()
def test_tokens_see_what_comes_no_later_and_those_of_their_own_turn_from_left_to_right(module, text, monkeypatch):
    x, steps = text
    seen, read = [], module.read
    monkeypatch.setattr(module, "read", lambda *a, **k: seen.append(k["attention"].clone()) or read(*a, **k))
    module.hidden_in_steps(x, steps, ascending=False)
    masks, tokens = seen[0][:, 0, :L], seen[0][:, 0, L:]
    for row, of_row in enumerate(steps.tolist()):
        came = sorted(range(L), key=lambda i: (of_row[i], i))
        for number, i in enumerate(came):
            # Numbers of what is read: L masks, the start, L tokens.
            assert tokens[row, i + 1].nonzero()[:, 0].tolist() == sorted([L, *(L + 1 + k for k in came[: number + 1])])
            earlier = [L + 1 + k for k in came if of_row[k] < of_row[i]]
            assert masks[row, i].nonzero()[:, 0].tolist() == sorted([i, L, *earlier])
        assert tokens[row, 0].nonzero()[:, 0].tolist() == [L]


@torch.no_grad()
def test_a_text_is_written_as_it_is_priced(module, text):
    """Rows end at different steps, so later calls ask for some of them."""
    x, steps = text
    price = module.cross_entropy_in_steps(x, steps)
    z, written = torch.where(steps < 0, x, module.context.mask_id), torch.zeros(3, L)
    denoiser = module.denoiser().begin_generation(z)
    for step in range(int(steps.max()) + 1):
        rows = (steps == step).any(1).nonzero()[:, 0]
        where = (steps == step)[rows]
        log_probs = denoiser.select(rows)(z[rows], None, where)
        row, position = where.nonzero(as_tuple=True)
        written[rows[row], position] = -log_probs[torch.arange(len(row)), x[rows[row], position]]
        z = torch.where(steps <= step, x, z)
    torch.testing.assert_close(written, price)
    assert (price[steps >= 0] > 0).all()


def test_a_backbone_with_a_table_of_positions_is_refused(module):
    module.backbone.position_embeddings = torch.nn.Embedding(4, 4)
    parts = {"estimator": module.estimator, "position_sets": module.sets, "backbone": module.backbone}
    parts |= {"curriculum": module.curriculum, "target": module.target}
    shares = {"prompt_share": 0.0, "gap_share": 0.0, "subset_share": 0.0, "importance_loss_weight": 0.1}
    try:
        with pytest.raises(
            UserError, match="has its start token at position −1, which learned position embeddings lack"
        ):
            SetDiffusionModule(module.context, parts, 1, start=0, **shares)
    finally:
        del module.backbone.position_embeddings


def test_embeddings_read_a_text_from_left_to_right(module, text):
    x, _ = text
    with torch.no_grad():
        one, other = module.embed(x), module.embed(torch.where(torch.arange(L) < 5, x, 0))
    assert one.shape == (3, L, 32)
    torch.testing.assert_close(one[:, :5], other[:, :5])
