"""Which precision a network computes in: the one that is named, or by the hardware."""

import pytest
import torch

from atat_zoo.modeling.diffusion.precision import computes_in_bf16


@pytest.mark.parametrize("native", [False, True])
def test_auto_is_what_the_hardware_has_instructions_for(native, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    found = [computes_in_bf16(precision, "cpu") for precision in ("fp32", "bf16", "auto")]
    assert found == [False, True, native]
