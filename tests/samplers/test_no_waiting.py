"""No sampler waits for the device, except through one function, and only where a part decides there.

The meta device has shapes and no data: whoever asks it for a value, a count of true entries or a copy fails. So a
sampler that reaches its end there, with the answers that it got on the CPU, has asked for nothing else.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from atat_zoo import Zoo
from atat_zoo.diffusion import positions as module
from atat_zoo.diffusion.contracts import Denoiser
from atat_zoo.samplers import loop
from atat_zoo.samplers.pace import StridedPace
from atat_zoo.samplers.teacher_forcing import TeacherForcing

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


class NoBlockingCopies(TorchDispatchMode):
    """Refuses what makes the host wait until a copy to the device is done, which the meta device does not mind."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs, aten = kwargs or {}, torch.ops.aten
        if function is aten._to_copy.default and args[0].device.type == "cpu":
            away = torch.device(kwargs.get("device") or "cpu").type == "meta"
            assert kwargs.get("non_blocking") or not away, "a copy to the device that the host waits for"
        if function in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default):
            there = all(index is None or index.device == args[0].device for index in args[1])
            assert there, "an index that is on another device, which is copied first"
        return function(*args, **kwargs)


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


def run(sampler, z, **options):
    return sampler.sample(Flat(), z, torch.arange(ROWS, device=z.device), **options)


@pytest.fixture
def asked(monkeypatch):
    """What was asked of the device, and then of the record."""
    answers = []

    def listen(tensor):
        answers.append(tensor.clone())
        return tensor

    def replay(tensor):
        answer = answers.pop(0)
        assert (tensor.device.type, tensor.shape, tensor.dtype) == ("meta", answer.shape, answer.dtype)
        return answer

    def through(function):
        for place in (module, loop):
            monkeypatch.setattr(place, "to_host", function)

    through(listen)
    return answers, lambda: through(replay)


def sampler_of(name):
    if name == "extended":  # a pace of no named sampler
        return Zoo.load().spec("sampler", {"use": "combination", "pace": {"use": "extended", "max_steps": 12}})
    spec = Zoo.load().spec("sampler", name)
    fewer = hasattr(spec, "steps") and name != "semi_autoregressive"
    return Zoo.load().spec("sampler", {"use": name, "steps": STEPS}) if fewer else spec


@pytest.mark.parametrize("name", [*NAMES, "extended"])
def test_a_sampler_asks_the_device_through_one_function_alone(name, asked):
    answers, replay = asked
    sampler = sampler_of(name)
    made = run(sampler, given())
    assert not (made.tokens == V).any()
    number = len(answers)
    if name not in [*DECIDES, "extended"]:
        assert number == 1, "it asks how much there is to fill, once"
    else:
        # A decision and a remask a step, the beginning, and the blocks.
        assert number <= 2 * made.max_nfe + 2
    replay()
    z = given().to("meta")
    with NoBlockingCopies():
        elsewhere = run(sampler, z)
    assert not answers
    assert elsewhere.tokens.device.type == "meta"
    assert elsewhere.max_nfe == made.max_nfe


@pytest.mark.parametrize("name", ["uncertainty_guided", "strided", "semi_autoregressive"])
def test_neither_does_a_run_along_a_known_text(name, asked):
    answers, replay = asked
    sampler = sampler_of(name)

    def along(z):
        forced = TeacherForcing(z.clamp(max=V - 1))
        sampler.score_text(Flat(), z, torch.arange(ROWS, device=z.device), forced)
        return forced.nats

    assert torch.equal(along(given()) > 0, given() == V)
    replay()
    z = given().to("meta")
    with NoBlockingCopies():
        assert along(z).device.type == "meta"
    assert not answers


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in DECIDES])
def test_on_a_gpu(name, monkeypatch):
    def ask(tensor):
        torch.cuda.set_sync_debug_mode("default")
        found = tensor.cpu()
        torch.cuda.set_sync_debug_mode("error")
        return found

    z = given().cuda()
    monkeypatch.setattr(loop, "to_host", ask)
    try:
        run(sampler_of(name), z)
    finally:
        torch.cuda.set_sync_debug_mode("default")
