"""SetDLM's objective: `sets` with a network that also reads a mask for each token."""

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
    """SetDLM's form of `sets` (Arriola & Kuleshov): two streams of a text after a start token.

    The mask stream predicts: each mask sees itself and the tokens of earlier steps. In the token stream, which includes
    the start token, each token sees itself and those that come no later, from left to right within a step. One forward
    pass thus reads the text twice and predicts every position in any order. The start token is at position −1, so a
    backbone with position embeddings is refused.

    Steps, given tokens, weights and bounds are those of `sets`. Generation reads the text anew in each decoding step,
    without cached keys and values.
    """

    name = "set_diffusion"
    summary = "SetDLM's set-causal objective: a mask token predicts each position from earlier sets"
    refs = ("arXiv:2607.01775",)  # type: ignore[assignment]
    network = "atat_zoo_checkpoints.set_diffusion_module:SetDiffusionModule"
    shifted = False
    hub_form = ""  # type: ignore[assignment]
    start: int = param(0, help="id of the token before each text: the published model's BOS", ge=0)

    @override
    def network_input(self, experiment: Experiment) -> tuple[int, int]:
        return experiment.train.batch_size, 2 * experiment.data.length + 1

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield the problems of `sets`, and a text that is too long together with the start token."""
        yield from super().check(experiment)
        longest = getattr(experiment.parts["backbone"], "max_length", None)
        if experiment.data.length == longest:  # a longer one is refused by the backbone
            yield Problem(
                "data.length", f"{experiment.data.length} and the start token exceed {longest}; set {longest - 1}"
            )
