"""The backbone `ddit`: the transformer of SEDD, MDLM, BD3LM, Duo and SetDLM, for weights in their published formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

from atat_zoo.modeling.backbones.lora import LoRABackbone
from atat_zoo.modeling.noise import LogLinearNoise
from atat_zoo.registry import component, param, values_of
from atat_zoo.system.errors import Problem
from atat_zoo.system.machine import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from atat_zoo.experiment import Experiment
    from atat_zoo.registry import Context

# The prefix of the weights' names in the files of each form.
PREFIX = {"sedd": "", "mdlm": "backbone.", "bd3lm": "backbone.", "setdlm": "backbone."}


@component
class DDiTBackbone(LoRABackbone):
    """Diffusion transformer from SEDD, which MDLM, BD3LM, Duo, SetDLM and their baselines, such as D3PM, also use.

    It has rotary position embeddings, layer norms with a gain, a feed-forward network with biases, and adaLN: a
    vector computed from σ = −log α, where a token is visible at time t with probability α, scales, shifts and gates
    every branch; without time conditioning, σ = 0. The zoo's `dit` normalises queries and keys and has no biases, so it
    cannot load these weights.

    `atat import` reads the safetensors of kuleshov-group/mdlm-…, bd3lm-…, owt-setdlm-… and louaaron/sedd-… on the hub,
    and checkpoints (*.ckpt) from the training code of MDLM, BD3LM and Duo. Dropout is not supported.
    """

    name = "ddit"
    summary = "diffusion transformer for the published weights of SEDD, MDLM, BD3-LM and SetDLM"
    refs = ("arXiv:2310.16834", "arXiv:2406.07524", "arXiv:2503.09573", "arXiv:2212.09748")

    layers: int = param(12, help="number of layers", ge=1, le=10_000)
    width: int = param(768, help="width of the hidden states", ge=2)
    heads: int = param(12, help="number of attention heads", ge=1)
    condition: int = param(
        128, help="width of the adaLN conditioning; 0 disables adaLN, as in autoregressive networks and SetDLM", ge=0
    )
    rows: int | None = param(None, help="number of embedding rows, with the mask; default: vocabulary size + 1", ge=1)
    mask_id: int | None = param(
        None,
        help="row of the embedding for the mask or, in an autoregressive model, for BOS; default: the last row",
        ge=0,
    )
    time_conditioning: bool = param(False, help="condition the network on time t through σ = −log(1 − (1 − ε)t)")
    eps: float = param(1e-3, help="ε of the noise `log_linear` used in training, and in σ(t)", gt=0, lt=1)
    max_length: int = param(1024, help="maximum sequence length", ge=1)
    clipped: bool = param(False, help="store the interval of training mask rates with the weights, as BD3-LM does")
    form: Literal["sedd", "mdlm", "bd3lm", "setdlm"] = param("mdlm", help="naming scheme of the published weights")

    def __attrs_post_init__(self) -> None:
        if self.width % (2 * self.heads):
            problem = f"width = {self.width} must be a multiple of 2 × heads = {2 * self.heads}"
            raise ValueError(f"{problem}, because the head dimension must be an even number; change width or heads")
        if self.time_conditioning and not self.condition:
            raise ValueError("time_conditioning requires condition > 0; set condition, or time_conditioning = false")

    @property
    @override
    def reads_time(self) -> bool:
        return self.time_conditioning

    @property
    def matrices(self) -> int:
        """Number of weights in matrices that multiply every token, summed over the layers."""
        return self.layers * 12 * self.width**2

    def flops(self, vocabulary_size: int, rows: int, length: int, positions: float) -> float:
        """Return the FLOPs of a forward pass, excluding the conditioning; masked attention is counted as full."""
        of_layers = rows * length * (self.matrices + 2 * self.layers * length * self.width)
        return 2 * of_layers + 2 * positions * vocabulary_size * self.width

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if sequences are too long, or `noise` does not have a time-conditioned network's σ(t)."""
        yield from LoRABackbone.check(self, experiment)
        if experiment.data.length > self.max_length:
            yield Problem(
                "data.length",
                f"{experiment.data.length} is longer than backbone.max_length = {self.max_length}; lower data.length",
            )
        noise = experiment.parts["noise"]
        if self.time_conditioning and not (isinstance(noise, LogLinearNoise) and noise.eps == self.eps):
            yield Problem(
                "noise",
                f'{noise.name!r} with these parameters does not have the σ(t) used in training; set use = "log_linear" '
                f"and eps = {self.eps:g}",
            )

    @override
    def build(self, context: Context) -> nn.Module:
        from atat_zoo_checkpoints.ddit_module import DDiTModule

        weights = self.matrices + 2 * self.width * (self.rows or context.vocabulary_size)
        asked = f"a backbone of {self.layers} layers and width {self.width}"
        require(4 * weights, asked, "its weights", "reduce layers or width")
        return DDiTModule(context, name=self.name, **values_of(self))

    def published(self, module: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return two dicts by published name: a network's weights, as views, and constants that files may contain."""
        from atat_zoo_checkpoints.ddit_module import published_weights, sets_mask

        prefix = PREFIX[self.form]
        constants = {f"{prefix}rotary_emb.inv_freq": module.rates}
        if self.form == "setdlm":  # SetDLM's code saves the mask when it uses dense attention masks
            constants["static_attention_mask"] = sets_mask(self.max_length, module.rates.device)
        return published_weights(module, prefix), constants

    def published_config(self, module: Any, experiment: Experiment) -> dict[str, Any]:
        """Return the content of the config.json that `atat import` needs to read a network's published weights.

        Raises:
            UserError: if no model of this form with the experiment's objective was published with a config.json.
        """
        from atat_zoo_checkpoints.ddit_forms import config_of

        return config_of(self, module.rows, experiment)

    def no_export_because(self, experiment: Experiment) -> str | None:
        """Return a clause that says why a network cannot be exported, or None if it can; see `Backbone`."""
        from atat_zoo_checkpoints.ddit_forms import unpublished

        return unpublished(self, experiment)

    def export(self, *of: Any, **how: Any) -> None:
        """Write a network and its tokenizer to a folder in the published format; `Backbone` lists the arguments."""
        from atat_zoo_checkpoints.model_export import write_as_published

        write_as_published(self, *of, **how)

    @classmethod
    def reads(cls, config: dict[str, Any]) -> bool:
        """Return whether `config`, a config.json or the settings in a checkpoint, describes this network."""
        from atat_zoo_checkpoints.ddit_forms import form_of

        return form_of(config) is not None

    @classmethod
    def import_table(cls, published: Any, said: dict[str, Any]) -> dict[str, Any]:
        """Return the tables of a model's experiment; see `Backbone`."""
        from atat_zoo_checkpoints.ddit_forms import table_of

        return table_of(published, said)

    def imported(self, module: Any, published: Any) -> DDiTBackbone:
        """Copy a model's weights into an `ObjectiveModule`, or raise a `UserError`, and return this backbone."""
        from atat_zoo_checkpoints.model_import import fill

        network = module.backbone
        fill(*self.published(network), published)
        if (of_mask := getattr(module, "mask_head", None)) is not None:  # only D3PM's module has one
            of_mask.weight.data.copy_(network.head.weight[network.mask_id])
            of_mask.bias.data.copy_(network.head.bias[network.mask_id])
        return self
