"""The objective `set_diffusion` of SetDLM, which is `set_causal` with inputs that also contain a mask per token."""

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
    """SetDLM's form of `set_causal` (Arriola & Kuleshov), with a stream of masks and a stream of tokens.

    The mask stream makes the predictions: each mask sees itself and the tokens from earlier steps. In the token stream,
    which begins with a start token, each token sees itself and the tokens before it, where tokens from the same step
    are ordered from left to right. One forward pass over 2L + 1 inputs thus predicts all L tokens, in any order.
    The start token is at position −1, so a backbone with learned position embeddings is refused.

    Steps, given tokens, loss weights and bounds are those of `set_causal`. Generation reads the whole text in each
    decoding step, without cached keys and values.
    """

    name = "set_diffusion"
    summary = "SetDLM's set-causal objective: a mask token predicts each position from earlier sets"
    refs = ("arXiv:2607.01775",)  # type: ignore[assignment]
    network = "atat_zoo_checkpoints.set_diffusion_module:SetDiffusionModule"
    shifted = False
    hub_form = ""  # type: ignore[assignment]
    start: int = param(0, help="id of the start token before each text, such as the published model's BOS", ge=0)

    @override
    def network_input(self, experiment: Experiment) -> tuple[int, int]:
        return experiment.train.batch_size, 2 * experiment.data.length + 1

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield the problems of `set_causal`, and one if a text and the start token are too long for the backbone."""
        yield from super().check(experiment)
        longest = getattr(experiment.parts["backbone"], "max_length", None)
        if experiment.data.length == longest:  # the backbone refuses a longer text
            yield Problem(
                "data.length",
                f"{experiment.data.length} tokens and the start token exceed the maximum {longest}; set {longest - 1}",
            )
