"""A judge without a network: an adaptive compression code."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from .model import Code

CONTRACT = 2  # the version of atat_zoo's contracts that this package is written for


@component
class PlaceholderJudge:
    """NLL of each byte under a first-order Markov code that adapts to the text as it reads it.

    The code knows no language: it only separates repetitive text from other text.
    """

    name = "placeholder"
    summary = "adaptive byte-level compression; low for repetitive text"
    refs = ("doi:10.1109/TIT.1981.1056331",)
    folder: ClassVar[str | None] = None

    smoothing: float = param(0.5, help="additive smoothing: added to every count", gt=0)

    def build(self, device: str) -> Code:
        """Return a `JudgeModel`."""
        from .model import Code

        return Code(self.smoothing)


@hookimpl
def atat_zoo_judge() -> list[type]:
    """Return the components of this package."""
    return [PlaceholderJudge]
