"""The precision of networks, set by autocast; weights and losses stay in float32."""

from typing import Literal, TypeAlias

import torch
from torch.amp.autocast_mode import is_autocast_available

from atat_zoo.system.devices import has_bf16
from atat_zoo.system.errors import UserError

# "auto" is bf16 where the hardware has the instructions, otherwise fp32.
Precision: TypeAlias = Literal["auto", "fp32", "bf16"]


def computes_in_bf16(precision: Precision, device: str | torch.device) -> bool:
    """Return whether a network on a device computes in bf16.

    Raises:
        UserError: if bf16 is requested but torch has no autocast for the device.
    """
    kind = torch.device(device).type
    if precision == "bf16" and not is_autocast_available(kind):
        raise UserError(f'precision "bf16": torch has no autocast for the device {kind!r}; use "fp32"')
    return precision == "bf16" or (precision == "auto" and has_bf16(device))
