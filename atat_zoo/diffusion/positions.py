"""Positions of a batch, as a mask or as rows and positions, and how to find them without waiting for the device.

`mask.nonzero()` and `x[mask]` make the host wait for the device, because the size of the result depends on data. If the
host knows the number of true entries, it need not wait. Shapes: B rows, L positions, N true entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

# A bool [B, L], or rows and positions of N entries, int64 [N] each, in row-major order; `x[where]` is equal for both.
Where: TypeAlias = "Tensor | tuple[Tensor, Tensor]"


def positions(which: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows and positions, int64 [N], of the true entries of `which`, bool [B, L], in row-major order.

    The host does not wait for the device: `count`, int64 [B], is the number of true entries per row, on the CPU.
    """
    # Stable: true entries come first and stay in their order.
    order = which.flatten().sort(descending=True, stable=True).indices[: int(count.sum())]
    return order // which.shape[1], order % which.shape[1]


def document_starts(documents: Tensor) -> Tensor:
    """Return where documents begin, bool [B, L], from the document number of each token, int64 [B, L]."""
    import torch

    first = torch.ones_like(documents[:, :1], dtype=torch.bool)
    return torch.cat([first, documents[:, 1:] != documents[:, :-1]], dim=1)


def positions_in_documents(documents: Tensor) -> Tensor:
    """Return the position of each token in its document, starting at 0, from document numbers, int64 [B, L]."""
    import torch

    position = torch.arange(documents.shape[1], device=documents.device)
    first: Tensor = (position * document_starts(documents)).cummax(1).values
    return position - first


def pairs(where: Where) -> tuple[Tensor, Tensor]:
    """Return `where` as rows and positions, int64 [N] each; if it is a mask, the host waits for the device."""
    if isinstance(where, tuple):
        return where
    row, position = where.nonzero().unbind(1)
    return row, position


def to_host(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU, after the device has finished its queued work.

    Samplers read from the device only through this function, so tests can count the waits.
    """
    return tensor.cpu()
