"""The backbone `transformers`: a language model from the `transformers` library."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import attrs

from atat_zoo.modeling.backbones.lora import LoRABackbone
from atat_zoo.registry import Zoo, component, param, values_of
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from atat_zoo_checkpoints.published_model import Published
    from torch import nn

    from atat_zoo.data.tokenizers import TokenizerModel
    from atat_zoo.experiment import Experiment
    from atat_zoo.registry import Context

_LENGTH = 512  # maximum sequence length of an imported run


@component
class TransformersBackbone(LoRABackbone):
    """Masked or causal language model from the Hugging Face hub or a folder: BERT, RoBERTa, ModernBERT, GPT-2, ….

    A masked language model is a denoiser without changes: p_θ(x_i | z) is its prediction at a mask, and the mask token
    is never predicted. A causal model gets bidirectional attention unless the objective restricts it, and learns during
    training to read masks (Gong et al., arXiv:2410.17891). If `shift` is set, it still predicts each token at the
    position before it. A causal model does not have a mask, so `mask_id` names a token that does not occur in text.
    With an autoregressive objective, the mask is only the start token, so it may be BOS or EOS, which are predicted
    like other tokens.

    The network is split before its last layer, so that logits are only computed where they are needed. A model whose
    logits are not the output of that layer is refused. Dropout is not supported, because the library draws it from a
    global random generator. With attention masks or cached tokens, a sliding window is ignored.

    Weights are only read from safetensors. If the library does not include code for a model, such as LLaDA, Dream and
    MDLM's checkpoints, the model can run its author's code, with its own attention. To allow this, set both
    `trust_remote_code` and ATAT_ZOO_TRUST_REMOTE_CODE=1 in the environment. `revision` pins the code, as a commit or as
    a hash of the *.py files in a folder; code from a different repository is refused.

    `config` and `mask_id` are filled in from the model, so that a run no longer needs it, except for its author's code.
    """

    name = "transformers"
    summary = "masked or causal language model from the Hugging Face hub or a local folder"
    refs = ("https://huggingface.co/docs/transformers", "arXiv:1810.04805", "arXiv:2410.17891", "arXiv:2106.09685")
    adjustable = (*LoRABackbone.adjustable, "model", "revision", "pretrained", "checkpoint_activations")
    built_with_weights = True  # the constructor runs the network on tokens

    prefix: ClassVar[str | None] = "network."

    model: str = param(help="model name on the hub, or local folder")
    revision: str | None = param(
        None, help="commit, tag or branch on the hub, or hash of the code in a folder; default: the newest commit"
    )
    pretrained: bool = param(True, help="whether to start from the model's weights instead of random weights")
    mask_id: int | None = param(None, help="id of the mask token; default: the mask of the model's tokenizer", ge=0)
    shift: bool = param(
        False, help="whether logits at a position predict the next token, as in a causal model used as a denoiser"
    )
    head: str = param(
        "", help="name of the output layer, such as `backbone.output_layer.linear`, if the model does not declare it"
    )
    dtype: Literal["float32", "bfloat16", "float16"] = param("float32", help="data type of the weights")
    checkpoint_activations: bool = param(
        False, help="whether to recompute each layer in the backward pass to save memory (activation checkpointing)"
    )
    trust_remote_code: bool = param(
        False, help="run the code of the model's author, if ATAT_ZOO_TRUST_REMOTE_CODE=1 is also set"
    )
    config: str | None = param(
        None, help="content of the model's config.json as a string; default: filled in from the model"
    )

    def __attrs_post_init__(self) -> None:
        from atat_zoo_transformers.model_description import (
            Unreadable,
            config_of,
            is_foreign,
            pinned,
            refuse_untrusted,
            tokenizer_of,
        )

        if self.config is None:
            config = config_of(self.model, self.revision)
            object.__setattr__(self, "config", json.dumps(config, sort_keys=True))
        try:
            foreign = is_foreign(self.settings)
        except (ValueError, KeyError, TypeError) as error:  # JSON with unexpected content, or no JSON
            raise Unreadable(f"config is not the content of a config.json: {error}; leave config out") from None
        if foreign:
            refuse_untrusted(self.model, self.trust_remote_code, self.settings)
            object.__setattr__(self, "revision", pinned(self.model, self.revision))
        if self.mask_id is None:
            library, special, _ = tokenizer_of(self.model, self.revision)
            mask = library.token_to_id(special["mask_token"]) if "mask_token" in special else None
            if mask is None:
                raise Unreadable(
                    f"the tokenizer of {self.model!r} has no mask; set mask_id to the id of an unused token"
                )
            object.__setattr__(self, "mask_id", mask)

    @property
    def settings(self) -> dict[str, Any]:
        """Content of the model's config.json."""
        return json.loads(self.config or "")

    @property
    def reads_time(self) -> bool:
        """Always False: the network does not read the diffusion time t."""
        return False

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if sequences are too long, the mask occurs in text, or `shift` does not fit the objective."""
        from atat_zoo_transformers.model_description import ends_of, longest_of

        yield from LoRABackbone.check(self, experiment)
        objective, special = experiment.parts["objective"], experiment.data.special_tokens
        denoises = not getattr(objective, "shifted", False)
        if self.shift and getattr(objective, "masks_attention", False):
            yield Problem(
                "backbone.shift",
                f"objective {objective.name!r} does not denoise a text as a whole, so the previous position cannot "
                "predict a token; set shift = false",
            )
        if denoises and special != "none" and self.mask_id in ends_of(self.settings):
            yield Problem(
                "backbone.mask_id",
                f"{self.mask_id} is BOS or EOS of {self.model}, which data.special_tokens = {special!r} "
                'adds to the text; choose a different token, or set data.special_tokens = "none"',
            )
        longest = longest_of(self.settings)
        if longest is not None and longest < experiment.data.length:
            yield Problem(
                "data.length",
                f"{experiment.data.length} is longer than {self.model}'s maximum of {longest} tokens; lower it",
            )

    def no_export_because(self, experiment: Experiment) -> str | None:
        """Return None, because every such network can be exported; see `Backbone`."""
        return None

    def export(
        self,
        module: nn.Module,
        tokenizer: TokenizerModel,
        experiment: Experiment,
        folder: Path,
        *,
        dtype: str | None,
        max_shard_size: str,
    ) -> None:
        """Write the model with the module's weights, and the tokenizer; the module becomes unusable. See `Backbone`."""
        import torch
        from atat_zoo_checkpoints.hub.hub_tokenizer import padding_of
        from transformers import PreTrainedTokenizerFast

        from atat_zoo_transformers.model_description import SPECIAL, reading
        from atat_zoo_transformers.transformers_module import restored

        network = restored(cast("Any", module))
        with reading(str(folder)):
            network.to(dtype and getattr(torch, dtype)).save_pretrained(folder, max_shard_size=max_shard_size)
            if tokenizer.library is not None:
                spec = experiment.parts["tokenizer"]
                special = (
                    getattr(spec.like or spec, "special_tokens", None) or {}
                )  # `like`: the tokenizer that a run started from
                names = {key: name for key, name in special.items() if key in SPECIAL}
                if padding := names.get("pad_token") or padding_of(tokenizer.library, names.get("eos_token")):
                    names["pad_token"] = padding
                written = PreTrainedTokenizerFast(tokenizer_object=tokenizer.library, **names)
                written.chat_template = tokenizer.template
                written.save_pretrained(folder)

    def build(self, context: Context) -> nn.Module:
        """Return a `TransformersModule`; see `Backbone`.

        Raises:
            UserError: if the model's weights are missing or incomplete, or do not match the tokenizer.
        """
        from atat_zoo_transformers.transformers_module import built

        return built(context, settings=self.settings, **values_of(self))

    @classmethod
    def reads(cls, config: dict[str, Any]) -> bool:
        """Return whether the library supports a model; a model with its own code must be chosen with `backbone.use`."""
        from atat_zoo_transformers.model_description import is_foreign

        return "model_type" in config and not is_foreign(config)

    @classmethod
    def import_table(cls, published: Published, said: dict[str, Any]) -> dict[str, Any]:
        """Return the tables of a model's experiment; see `Backbone`."""
        from atat_zoo_transformers.model_description import config_of, longest_of

        model, revision = published.model, published.revision
        # A power of 2, because RoBERTa has 514 positions for 512 tokens.
        longest = 1 << ((longest_of(config_of(model, revision)) or _LENGTH).bit_length() - 1)
        of = {"use": cls.name, "model": model} | ({"revision": revision} if revision else {})
        # The revision does not apply to a different model that only provides the tokenizer.
        own = said.get("tokenizer", {})
        text = {"use": "transformers"} if "model" in own else of
        table = {"backbone": of, "tokenizer": text, "data": {"length": min(longest, _LENGTH)}}
        tokenizer = Zoo.load().spec("tokenizer", own if "use" in own else text | own).train(lambda: iter(()))
        mask = Zoo.load().spec("backbone", of | said.get("backbone", {})).mask_id
        ends = (tokenizer.bos, tokenizer.eos)
        if None not in ends and mask not in ends:
            table["data"]["special_tokens"] = "sequence"
        return table

    def imported(self, module: Any, published: Published) -> TransformersBackbone:
        """Return this backbone with `pretrained` false, because the run saves the weights that `build` has loaded."""
        return attrs.evolve(self, pretrained=False)
