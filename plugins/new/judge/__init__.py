"""A judge without a neural network: an adaptive model of bytes, as used for compression."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from atat_zoo.registry import component, hookimpl, param

if TYPE_CHECKING:
    from .model import Code

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written


@component
class PlaceholderJudge:
    """Scores text with a first-order Markov model of bytes that starts empty and learns from each text as it reads it.

    The model does not know any language: it only distinguishes repetitive text, to which it gives a low NLL.
    """

    name = "placeholder"
    summary = "adaptive first-order Markov model of bytes, which gives repetitive text a low NLL"
    refs = ("doi:10.1109/TIT.1981.1056331",)
    folder: ClassVar[str | None] = None

    smoothing: float = param(0.5, help="constant added to every count (additive smoothing)", gt=0)

    def build(self, device: str) -> Code:
        """Return the model, which implements `atat_zoo.evaluation.judges.JudgeModel`; it does not use `device`."""
        from .model import Code

        return Code(self.smoothing)


@hookimpl
def atat_zoo_judge() -> list[type]:
    """Return the judges in this package."""
    return [PlaceholderJudge]
