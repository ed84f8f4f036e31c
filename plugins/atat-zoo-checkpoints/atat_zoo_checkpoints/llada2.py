"""The backbone `llada2`: a mixture-of-experts transformer for the published weights of LLaDA 2.0 and 2.1."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from atat_zoo.registry import component, param, values_of
from atat_zoo_checkpoints.llama import LlamaBackbone

if TYPE_CHECKING:
    import torch
    from torch import nn


@component
class LLaDA2Backbone(LlamaBackbone):
    """A `llama` backbone with QK-norm, partial rotary embedding and a mixture of experts.

    LLaDA 2 is trained with the objective `block` and generates text in blocks, by default of 32 tokens. `atat import`
    reads LLaDA 2.0 and 2.1, both mini and flash. The biases that balance the load of the experts keep their published
    values, even in training.
    """

    name = "llada2"
    kinds: ClassVar[tuple[str, ...]] = ("llada2_moe", "llada21_moe")
    summary = "mixture-of-experts transformer for the published weights of LLaDA 2.0 and 2.1"
    refs = ("arXiv:2512.15745", "arXiv:2602.08676", "arXiv:2412.19437")  # type: ignore[assignment]

    head_width: int = param(128, help="width of an attention head", ge=2)
    rotated: float = param(0.5, help="fraction of each head that has rotary embedding", gt=0, le=1)
    qk_norm: bool = param(True, help="whether to normalise queries and keys (QK-norm)")
    out_bias: bool = param(False, help="whether the output projection of attention has a bias")
    experts: int = param(256, help="number of routed experts per layer", ge=2)
    chosen: int = param(8, help="number of routed experts per token", ge=1)
    groups: int = param(8, help="number of groups of routed experts", ge=1)
    chosen_groups: int = param(4, help="number of groups from which each token's experts are chosen", ge=1)
    scaling: float = param(2.5, help="factor that scales the output of the routed experts", gt=0)
    expert_inner: int = param(512, help="width of an expert's feed-forward layer", ge=1)
    shared_experts: int = param(1, help="number of shared experts, which process every token", ge=0)
    dense_layers: int = param(
        1, help="number of initial layers with a feed-forward network of width `inner` instead of experts", ge=0
    )
    form: Literal["llada2"] = param(  # type: ignore[assignment]
        "llada2", help="naming scheme of the published weights"
    )

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        of_group = self.experts // self.groups
        if (
            self.experts % self.groups
            or of_group < 2
            or not self.chosen <= self.chosen_groups * of_group <= self.experts
        ):
            raise ValueError(
                f"experts = {self.experts} cannot be split into groups = {self.groups} of at least two experts so that "
                f"chosen_groups = {self.chosen_groups} contain chosen = {self.chosen} experts; change these values"
            )

    @property
    def head_size(self) -> int:
        """Width of an attention head."""
        return self.head_width

    @property
    def matrices(self) -> int:
        """Number of weights that multiply each token, summed over the layers; only the token's experts count."""
        return self._weights(self.chosen)

    @property
    def stored(self) -> int:
        """Number of weights in all layers, including all experts."""
        return self._weights(self.experts)

    def _weights(self, experts: int) -> int:
        attention = 2 * self.width * self.head_size * (self.heads + (self.kv_heads or self.heads))
        mixture = (experts + self.shared_experts) * 3 * self.expert_inner + self.experts
        dense = min(self.dense_layers, self.layers)
        mlps = dense * 3 * self.width * self.inner + (self.layers - dense) * self.width * mixture
        return self.layers * attention + mlps

    def feed_forward(self, number: int, dtype: torch.dtype) -> nn.Module:
        """Return the network after attention in layer `number`: dense in the first `dense_layers`, else a `Mixture`."""
        from atat_zoo_checkpoints.mixture import Mixture

        return (
            super().feed_forward(number, dtype)
            if number < self.dense_layers
            else Mixture(**values_of(self) | {"dtype": dtype})
        )
