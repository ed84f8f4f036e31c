"""The precision of networks: by autocast; weights and losses stay in float32."""

from typing import Literal, TypeAlias

import torch

# "auto" is bf16 where the hardware has the instructions, else fp32.
Precision: TypeAlias = Literal["auto", "fp32", "bf16"]


def computes_in_bf16(precision: Precision, device: str | torch.device) -> bool:
    """Return whether a network on a device computes in bf16."""
    # Hardware without the instructions emulates bf16, and is slower for it.
    if torch.device(device).type == "cpu":
        native = torch.cpu._is_avx512_bf16_supported()
    else:
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    return precision == "bf16" or (precision == "auto" and native)
