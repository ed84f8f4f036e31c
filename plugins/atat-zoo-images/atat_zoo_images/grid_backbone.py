"""The backbone `grid_dit`, a DiT that knows the row and the column of each pixel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from atat_zoo.modeling.backbones.dit import DiTBackbone
from atat_zoo.registry import component
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atat_zoo.experiment import Experiment


@component
class GridDiTBackbone(DiTBackbone):
    """The backbone `dit` with rotary positions in two dimensions, for square pictures after an optional label.

    Half of the rotations of a head are by the row and half by the column of a pixel (as in vision transformers, Heo et
    al., ECCV 2024), so the attention between two pixels depends on their vertical and horizontal distance. The first
    `local_heads` heads of a layer initially attend to the pixel to the left, above, to the right, below, and then to
    those two pixels away. The grid is that of `data.length`: the last S² tokens with the largest possible S. The label
    is at the end of a row above the picture.
    """

    name = "grid_dit"
    summary = "DiT with rotary positions in two dimensions, for square pictures"
    refs = ("arXiv:2403.13298", "arXiv:2212.09748", "arXiv:2104.09864", "arXiv:2406.07524")
    network = "atat_zoo_images.grid_networks:GridDiTModule"

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield the problems of `dit`, and one for heads whose dimensions cannot be divided into rows and columns."""
        yield from super().check(experiment)
        _, width, heads = self.shape
        if width % (4 * heads):
            problem = f"{width} must be a multiple of 4 × heads = {4 * heads}, to divide heads into rows and columns"
            yield Problem("backbone.width", f"{problem}; change backbone.width or backbone.heads")
