"""Which tokens of a row the network reads together: all, or of packed dialogues those of the same one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from atat_zoo.modeling.diffusion.attention import visible, within
from atat_zoo.modeling.diffusion.positions import within_documents


class ReadsApart(nn.Module):
    """A module that reads rows of documents; B rows of L tokens."""

    #: Whether the backbone is compiled and takes a `BlockMask`; `train.compile` sets it.
    takes_block_masks = False
    _documents: Tensor | None = None  # of the rows that are read: see `apart`

    def attends_in_blocks(self, tokens: Tensor) -> bool:
        """Return whether a pass over tokens has a `BlockMask`: a training is compiled, and a GPU is faster with it."""
        return self.takes_block_masks and self.training and tokens.is_cuda

    @contextmanager
    def apart(self, documents: Tensor | None) -> Iterator[None]:
        """Read rows whose tokens see those of their own document alone, by its number, int64 [B, L]; all if None."""
        self._documents = documents
        try:
            yield
        finally:
            self._documents = None

    def seen(self, causal: bool = False) -> dict[str, Any]:
        """Return positions and attention of the rows that are read; nothing where all of a row is seen."""
        if self._documents is None:
            return {"attention": "causal"} if causal else {}
        of, shape = self._documents, self._documents.shape
        rule, blocks = within(of, causal=causal), self.attends_in_blocks(of)
        seen = visible(rule, shape[0], shape[1], of.device, in_blocks=blocks)
        return {"positions": within_documents(of), "attention": seen}
