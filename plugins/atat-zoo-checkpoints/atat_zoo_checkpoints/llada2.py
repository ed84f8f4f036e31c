"""The mixture of experts of LLaDA 2.0 and 2.1, as its weights are published."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from atat_zoo.registry import component, param, values_of
from atat_zoo_checkpoints.llama import LlamaBackbone

if TYPE_CHECKING:
    import torch
    from torch import nn


@component
class LLaDA2Backbone(LlamaBackbone):
    """A `llama` with normalised queries and keys, a part of each head turned, and a mixture of experts.

    LLaDA 2 writes in blocks, of 32 tokens in its own code: objective `block`. `atat import` reads LLaDA2.0 and 2.1,
    mini and flash. The balance of the experts is as it was published, and a training does not change it.
    """

    name = "llada2"
    kinds: ClassVar[tuple[str, ...]] = ("llada2_moe", "llada21_moe")
    summary = "the mixture of experts of LLaDA 2.0 and 2.1, for their published weights"
    refs = ("arXiv:2512.15745", "arXiv:2602.08676", "arXiv:2412.19437")  # type: ignore[assignment]

    head_width: int = param(128, help="width of a head", ge=2)
    rotated: float = param(0.5, help="share of a head that is turned by its position", gt=0, le=1)  # type: ignore[misc]
    qk_norm: bool = param(True, help="whether queries and keys are normalised")  # type: ignore[misc]
    out_bias: bool = param(False, help="whether the last layer of the attention has a bias")  # type: ignore[misc]
    experts: int = param(256, help="E, experts of a layer", ge=2)
    chosen: int = param(8, help="k, experts of a token", ge=1)
    groups: int = param(8, help="G, groups of experts", ge=1)
    chosen_groups: int = param(4, help="groups from which a token has its experts", ge=1)
    scaling: float = param(2.5, help="what all experts of a token count together", gt=0)
    expert_inner: int = param(512, help="width of an expert's feed-forward layer", ge=1)
    shared_experts: int = param(1, help="experts that every token has", ge=0)
    dense_layers: int = param(1, help="layers at the start without experts, of width `inner`", ge=0)
    form: Literal["llada2"] = param(  # type: ignore[assignment]
        "llada2", help="whose published names the weights have"
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
                f"experts = {self.experts} do not divide into groups = {self.groups} of two and more, from "
                f"{self.chosen_groups} of which {self.chosen} are chosen; change them"
            )

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.head_width

    @property
    def matrices(self) -> int:
        """Weights of all layers that multiply a token: of the experts, those that it has."""
        return self._weights(self.chosen)

    @property
    def stored(self) -> int:
        """Weights of all layers."""
        return self._weights(self.experts)

    def _weights(self, experts: int) -> int:
        attention = 2 * self.width * self.head_size * (self.heads + (self.kv_heads or self.heads))
        mixture = (experts + self.shared_experts) * 3 * self.expert_inner + self.experts
        dense = min(self.dense_layers, self.layers)
        mlps = dense * 3 * self.width * self.inner + (self.layers - dense) * self.width * mixture
        return self.layers * attention + mlps

    def feed_forward(self, number: int, dtype: torch.dtype) -> nn.Module:
        """Return the feed-forward network of a layer."""
        from atat_zoo_checkpoints.mixture import Mixture

        return (
            super().feed_forward(number, dtype)
            if number < self.dense_layers
            else Mixture(**values_of(self) | {"dtype": dtype})
        )
