"""The objective of SetDLM: `sets`, by a network that reads a mask beside each token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from atat_zoo.modeling.objectives.set_causal import SetCausalObjective
from atat_zoo.registry import component, param
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atat_zoo.experiment import Experiment


@component
class SetDiffusionObjective(SetCausalObjective):
    """`sets` as SetDLM computes it (Arriola & Kuleshov): two streams of the text, which is read after a start.

    The masks, one at each position, predict; each sees itself and the tokens of earlier steps. The tokens, the start
    among them, see themselves and those that come no later, within a step from left to right. So a pass reads twice
    the text, and every position has its prediction in any order. The start is at position −1, so a backbone with a
    table of positions is refused.

    Steps, given tokens, weights and bounds are those of `sets`. A text that is written is read anew in each
    evaluation: no keys and values are kept.
    """

    name = "set_diffusion"
    summary = "SetDLM's set-causal objective: a mask token predicts each position from earlier sets"
    refs = ("arXiv:2607.01775",)  # type: ignore[assignment]
    network = "atat_zoo_checkpoints.set_diffusion_module:SetDiffusionModule"
    shifted = False
    hub_form = ""  # type: ignore[assignment]
    start: int = param(0, help="token before each text that is given: the published model's BOS", ge=0)

    @override
    def network_input(self, experiment: Experiment) -> tuple[int, int]:
        return experiment.train.batch_size, 2 * experiment.data.length + 1

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield the problems of `sets`, and a text for which the network is too short with the start."""
        yield from super().check(experiment)
        longest = getattr(experiment.parts["backbone"], "max_length", None)
        if experiment.data.length == longest:  # a longer one is refused by the backbone
            yield Problem(
                "data.length", f"{experiment.data.length} and the start are longer than {longest}; set {longest - 1}"
            )
