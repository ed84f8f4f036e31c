"""Samplers do not wait for a GPU unless a part decides there; `tests/virtual_gpu` shows it without one."""

import attrs
import pytest
import torch

from atat_zoo import Zoo
from atat_zoo.generation.samplers import loop
from atat_zoo.generation.samplers.pace import StridedPace
from atat_zoo.modeling.diffusion.contracts import Denoiser

V, L, ROWS, STEPS = 9, 16, 4, 5
NAMES = Zoo.load().names("sampler")
# Those whose parts decide by what the network says, or hide tokens by a draw on the device, or count by position.
DECIDES = [
    name
    for name in NAMES
    if (parts := getattr(Zoo.load().spec("sampler", name), "parts", lambda: None)()) is None
    or parts.pace.needs
    or isinstance(parts.pace, StridedPace)
    or parts.stop.active
    or parts.remask.active
]


class Flat(Denoiser):
    """A denoiser that knows nothing, on any device."""

    mask_id, reads_time = V, True
    estimates_importance = gives_order_weights = scores_visible_tokens = True

    def importance(self, draft, masked):
        return draft / V

    def __call__(self, tokens, t, where):
        assert isinstance(where, tuple)
        base = torch.zeros(V, dtype=torch.float64, device=tokens.device)
        return (base[None] + tokens[where][:, None] * 0).log_softmax(-1)

    def ordered(self, tokens, t, where):
        log_probs = self(tokens, t, where)
        return log_probs, log_probs[:, 0]

    def everywhere(self, tokens, t, where, visible):
        return self(tokens, t, where), self(tokens, t, visible)[:, 0]


def given():
    z = torch.full((ROWS, L), V)
    z[1, :7] = 1
    z[2] = 2
    return z


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in DECIDES])
def test_on_a_gpu(name, monkeypatch):
    def ask(tensor):
        torch.cuda.set_sync_debug_mode("default")
        found = tensor.cpu()
        torch.cuda.set_sync_debug_mode("error")
        return found

    spec, z = Zoo.load().spec("sampler", name), given().cuda()
    sampler = attrs.evolve(spec, steps=STEPS) if hasattr(spec, "steps") else spec
    monkeypatch.setattr(loop, "to_host", ask)
    try:
        sampler.sample(Flat(), z, torch.arange(ROWS, device=z.device))
    finally:
        torch.cuda.set_sync_debug_mode("default")
