"""A judge that does not use a network: an adaptive compression code."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from .model import Code

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderJudge:
    """NLL of each byte under a first-order Markov model that adapts to the text as it reads.

    The model does not know any language: it only distinguishes repetitive text from other text.
    """

    name = "placeholder"
    summary = "adaptive byte-level compression, which assigns a low NLL to repetitive text"
    refs = ("doi:10.1109/TIT.1981.1056331",)
    folder: ClassVar[str | None] = None

    smoothing: float = param(0.5, help="constant added to every count (additive smoothing)", gt=0)

    def build(self, device: str) -> Code:
        """Return a `JudgeModel`."""
        from .model import Code

        return Code(self.smoothing)


@hookimpl
def atat_zoo_judge() -> list[type]:
    """Return the components in this package."""
    return [PlaceholderJudge]
