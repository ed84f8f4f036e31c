"""The network of the backbone `transformers`.

Shapes: B sequences, L tokens, D width, V predictable tokens.
"""

from __future__ import annotations

import inspect
import itertools
import re
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
import transformers
from atat_zoo_checkpoints.model_import import FLOATS, refuse_not_finite, refuse_other, refuse_without_row
from atat_zoo_checkpoints.published_model import INDEX, WEIGHTS, Published
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

from atat_zoo.system.errors import UserError
from atat_zoo_transformers.model_description import is_foreign, longest_of, reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from atat_zoo.diffusion.cache import Cache
    from atat_zoo.registry import Context

# Logit of a token that is never predicted: its probability is 0 in every precision, and products with it are finite.
_NEVER = -1e4
_AUTO = ("AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModel")
_PROBED = 8  # number of tokens with which the split is checked
_LOUDER = 128  # factor on the last layer's input in this check, because a soft cap hardly changes small logits
_REFUSES = "model = {model!r} cannot compute logits as a denoiser ({first}); choose a different model"

_joined: ContextVar[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None] = ContextVar("joined", default=None)


def _attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
    """Return torch's attention over the layer's keys and values and cached ones, restricted only by the mask."""
    if (join := _joined.get()) is not None:
        key, value = join(key, value)
    return sdpa_attention_forward(module, query, key, value, mask, **{**options, "is_causal": False})


def _mask(*args: Any, **options: Any) -> Any:
    """Return a layer's attention mask even if it is causal, because `_attend` treats no mask as full attention."""
    return sdpa_mask(*args, **{**options, "allow_is_causal_skip": False})


ATTENTION = "atat_zoo"
AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, _mask)


@contextmanager
def _with(cache: Cache | None) -> Iterator[None]:
    """Join the keys and values of each layer with those in a cache during a forward pass."""
    if cache is None:
        yield
        return
    layer = itertools.count()
    token = _joined.set(lambda keys, values: cache.join(next(layer), keys, values))
    try:
        yield
    finally:
        _joined.reset(token)


def built(
    context: Context,
    *,
    settings: dict[str, Any],
    model: str,
    revision: str | None,
    pretrained: bool,
    mask_id: int,
    shift: bool,
    head: str,
    dtype: str,
    checkpoint_activations: bool,
    **others: Any,  # parameters that the network does not use
) -> TransformersModule:
    """Return the module, with the model's weights if `pretrained` and `context.counts` are set, and else random ones.

    Raises:
        UserError: see `TransformersBackbone.build`.
    """
    foreign = is_foreign(settings)
    with reading(model):
        options: dict[str, Any] = {"dtype": getattr(torch, dtype)}
        if foreign:
            pinned: dict[str, Any] = {"revision": revision, "trust_remote_code": True}
            config = transformers.AutoConfig.from_pretrained(model, **pinned)
            names: Any = settings.get("auto_map", {})
            auto = next((name for name in _AUTO if name in names), _AUTO[-1])
            # Load the code from the same revision as the weights, which is the code that the user reviewed.
            kind: Any = get_class_from_dynamic_module(names[auto], model, revision=revision)
            fresh = kind._from_config
        else:
            config = transformers.AutoConfig.for_model(**settings)
            kind = getattr(transformers, _AUTO[0] if config.model_type in MASKED else _AUTO[1])
            fresh = kind.from_config
            # Otherwise the library prompts on the terminal if the model has its own code for a class that it lacks.
            options |= {"attn_implementation": ATTENTION, "trust_remote_code": False}
        rates = dropouts(config.to_dict())
        for key in rates:
            setattr(config, key, 0.0)
        if pretrained and context.counts is not None:
            published = Published(model, revision)
            files = published.weights if published.file(WEIGHTS) or published.file(INDEX) else {}
            layers = getattr(config, "num_hidden_layers", 0)
            if files and isinstance(layers, int) and layers > len(files):  # refuse before building them one by one
                raise UserError(
                    f"{model} has {len(files)} weights, too few for the {layers} layers in its config.json; "
                    "download the model again"
                )
            network, report = kind.from_pretrained(
                model,
                revision=revision,
                config=config,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below
                **options,
            )
            _refuse_strange(network, report, files, model)
        else:
            network = fresh(config, **options)
    for each in network.modules():
        if isinstance(each, nn.Dropout):  # rates that are set in code or in a nested configuration
            each.p = 0.0
    return TransformersModule(
        network.eval(),
        context,
        rates,
        model=model,
        mask_id=mask_id,
        shift=shift,
        head=head,
        longest=longest_of(settings),
        checkpoint_activations=checkpoint_activations,
        foreign=foreign,
    )


def _refuse_strange(network: Any, report: Any, files: Mapping[str, Tensor], model: str) -> None:
    """Raise a `UserError` if weights do not match the configuration or have an unsupported type."""
    prefix = f"{network.base_model_prefix}."
    named = dict(network.named_parameters())
    # The library would silently initialise these at random.
    if missing := sorted(report["missing_keys"]):
        if any(name.startswith(prefix) for name in missing):
            why = "; download the model again, or correct its config.json"
        else:
            why = ", so it has no language-model head; choose a model that predicts tokens"
            if [named.get(name) for name in missing] == [network.get_output_embeddings().weight]:
                why += ", or set tie_word_embeddings to true in its config.json if the embedding is its head"
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(f"backbone.model: {model!r} lacks the weight {missing[0]}{more}{why}")
    shapes = [
        f"{name} has the shape {list(found)} instead of {list(own)}"
        for name, found, own in sorted(report["mismatched_keys"])
    ]
    layers = {re.sub(r"\d+", "0", name) for name in named}
    shapes += [f"{name} is unknown" for name in report["unexpected_keys"] if re.sub(r"\d+", "0", name) in layers]
    refuse_other(sorted(shapes), model)
    first, last = network.get_input_embeddings(), network.get_output_embeddings()
    if getattr(network.config, "tie_word_embeddings", False) and last is not None and first.weight is not last.weight:
        pair = " and ".join(name for name, weight in named.items() if weight is first.weight or weight is last.weight)
        raise UserError(
            f"{model}: config.json has tie_word_embeddings = true, but {pair} differ; set tie_word_embeddings = false"
        )
    for name, weight in files.items():
        if named.keys() & {name, prefix + name, name.removeprefix(prefix)} and weight.dtype not in FLOATS:
            raise UserError(f"{model}: {name} has the unsupported type {weight.dtype}; use float weights")
    for name, weight in named.items():
        refuse_not_finite(name, weight, model)


def dropouts(settings: dict[str, Any]) -> dict[str, float]:
    """Return a dict from key (`hidden_dropout_prob`, `attn_pdrop`, …) to dropout rate for a model's configuration."""
    named = {key: value for key, value in settings.items() if re.search("dropout|pdrop|layerdrop", key)}
    return {key: value for key, value in named.items() if isinstance(value, float)}


def first_position(network: nn.Module) -> int:
    """Return the position id of the first token: 0, or padding_idx + 1 for networks like RoBERTa."""
    tables = [m for name, m in network.named_modules() if name.endswith("position_embeddings")]
    return next((m.padding_idx + 1 for m in tables if isinstance(getattr(m, "padding_idx", None), int)), 0)


class TransformersModule(nn.Module):
    """Network that maps tokens [B, L] to the input [B, L, D] of a model's last layer, which is `head`."""

    reads_time = False
    takes_cache = True

    def __init__(
        self,
        network: Any,
        context: Context,
        rates: dict[str, float],
        *,
        model: str,
        mask_id: int,
        shift: bool,
        head: str,
        longest: int | None,
        checkpoint_activations: bool,
        foreign: bool,
    ) -> None:
        super().__init__()
        self.rates = rates  # the model's dropout rates
        V, length = context.vocabulary_size, context.length
        size = int(getattr(network.config, "vocab_size", 0))
        refuse_without_row(context, size, model)
        if mask_id >= size:
            raise UserError(f"backbone.mask_id = {mask_id}, but {model} has {size} tokens; use an id below {size}")
        self.model, self.V, self.mask_id, self.shift = model, V, mask_id, shift
        self.causal = not foreign and network.config.model_type not in MASKED
        self.first = first_position(network)
        if longest is not None and length > longest - self.first:
            raise UserError(f"data.length = {length} exceeds {model}'s maximum {longest - self.first}; lower it")
        self.asks: dict[str, Any] = {}
        if self.causal:
            self.asks = {"use_cache": False}
        elif (
            "timesteps" in inspect.signature(network.forward).parameters
        ):  # MDLM's code requires a time that it ignores
            self.asks = {"timesteps": None}
        if checkpoint_activations:
            network.activation_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})

        self.network = network
        with reading(model, _REFUSES), torch.no_grad():
            self._split(network, head)
            # If the mask only starts a text, its column is the model's prediction of that token, such as GPT-2's EOS.
            self.head.never = None if context.shifted or self.mask_id >= V else self.mask_id
            # Older code in the library and code from other authors may ignore the attention mask.
            self.attends = self._obeys()
        if self.causal and not self.attends:
            raise UserError(
                f"{model} reads from left to right, and its code in this version of transformers does not accept a "
                "different attention mask; choose a different model"
            )
        self.register_state_dict_post_hook(_once)
        self.register_load_state_dict_pre_hook(_again)

    def _split(self, network: Any, head: str) -> None:
        """Split the last layer off a network, and raise a `UserError` unless its output is the logits."""
        probe = torch.arange(min(_PROBED, self.V))[None]
        self.layer, decoder = _last_layer(network, self.model, head)
        louder = decoder.register_forward_pre_hook(lambda _, hidden: _LOUDER * hidden[0])
        whole = self.ask(probe)
        louder.remove()
        parent, _, name = self.layer.rpartition(".")
        network.get_submodule(parent).register_module(name, nn.Identity())
        self.head = Head(decoder, self.V)
        try:
            same = torch.allclose(decoder(_LOUDER * self.ask(probe)), whole, rtol=1e-3, atol=1e-4 * _LOUDER)
        except (RuntimeError, AttributeError):  # different shapes, or code that uses the layer's weights directly
            same = False
        if not same:
            raise UserError(
                f"backbone.head: the logits of {self.model} are not the output of its layer {self.layer!r}; name the "
                "layer that computes the logits, or choose a different model"
            )

    def _obeys(self) -> bool:
        """Return whether a mask controls attention: the last token affects others under a full, not a causal, mask."""
        probe = torch.arange(min(_PROBED, self.V))
        texts = torch.stack([probe, torch.cat([probe[:-1], probe[:1]])])
        full = torch.ones(1, 1, len(probe), len(probe), dtype=torch.bool)
        seen = []
        for mask in (full, full.tril()):
            try:
                one, other = self.ask(texts, attention_mask=mask)[:, :-1]
            except (RuntimeError, ValueError, TypeError, AttributeError):
                return False
            seen.append(not torch.allclose(one, other, rtol=1e-5, atol=1e-6))
        return seen == [True, False]

    @property
    def embedding(self) -> Embedding:
        """Embedding of the zoo's tokens; see `BackboneModule`."""
        return Embedding(self)

    def own(self, tokens: Tensor) -> Tensor:
        """Return tokens with the model's id for the mask in place of the zoo's."""
        return torch.where(tokens == self.V, self.mask_id, tokens)

    @property
    def twice(self) -> dict[str, str]:
        """Dict from the second name of each tied weight to the first name, under which safetensors saves it."""
        named: dict[Tensor, str] = {}
        pairs = [(named.setdefault(p, name), name) for name, p in self.named_parameters(remove_duplicate=False)]
        return {name: first for first, name in pairs if name != first}

    def ask(self, tokens: Tensor, **options: Any) -> Tensor:
        """Return the network's `logits`, for tokens [B, L]: without its last layer, that layer's input, [B, L, D]."""
        asks = dict(self.asks)
        if "timesteps" in asks:
            asks["timesteps"] = torch.zeros(len(tokens), device=tokens.device)
        return self.network(input_ids=self.own(tokens), **asks, **options).logits

    def forward(
        self,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        attention: Any = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the last layer's input [B, L, D]; see `BackboneModule`. An unsupported mask raises a `UserError`."""
        if cache is not None and (positions is None or isinstance(attention, str)):
            raise ValueError("with a cache, pass positions, and attention as a mask")
        if self.shift and (
            attention is not None or cache is not None
        ):  # the previous position is not the previous token of the text
            raise UserError(
                f"backbone.shift: this objective passes {self.model} an attention mask or a cache; set shift = false"
            )
        if not self.attends and (attention is not None or cache is not None):
            raise UserError(f'{self.model} does not support custom attention masks; set objective.use = "mdlm"')
        options: dict[str, Any] = {}
        B, L = tokens.shape
        if positions is not None or self.first:
            given = torch.arange(L, device=tokens.device) if positions is None else positions
            options["position_ids"] = (given + self.first).expand(B, L)
        if attention is None and (self.causal or cache is not None):
            attention = torch.ones(L, L + (0 if cache is None else len(cache)), dtype=torch.bool, device=tokens.device)
        elif isinstance(attention, str):
            attention = torch.ones(L, L, dtype=torch.bool, device=tokens.device).tril()
        if attention is not None:
            options["attention_mask"] = attention if attention.ndim == 4 else attention[None, None]
        with _with(cache):
            hidden = self.ask(tokens, **options)
        return torch.cat([hidden[:, :1], hidden[:, :-1]], dim=1) if self.shift else hidden


class Head(nn.Module):
    """Last layer of a model, which maps its input [..., D] to logits [..., V] and never predicts the token `never`.

    The class is not an `nn.Linear`, because optimizers could treat its weights like those of an inner layer.
    """

    never: int | None = None  # the model's own mask

    def __init__(self, layer: nn.Linear, V: int) -> None:
        super().__init__()
        self.weight, self.bias, self.V = layer.weight, layer.bias, V

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] for inputs [..., D]."""
        logits = F.linear(hidden, self.weight, self.bias)[..., : self.V]
        if self.never is not None:
            logits[..., self.never] = _NEVER  # in place, because the logits are large
        return logits

    def layer(self) -> nn.Linear:
        """Return the layer as the `nn.Linear` of the original model."""
        layer = nn.Linear(self.weight.shape[1], self.weight.shape[0], bias=False, device="meta")
        layer.weight, layer.bias = self.weight, self.bias
        return layer


class Embedding(nn.Module):
    """Embedding of a model for the zoo's ids 0 … V, which shares the network's weights without saving them twice."""

    def __init__(self, module: TransformersModule) -> None:
        super().__init__()
        self.of = [module]  # in a list, so that the module is not a submodule
        self.num_embeddings = module.V + 1
        self.weight = module.head.weight
        self.embedding_dim = self.weight.shape[1]

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [B, L, D] of tokens [B, L]."""
        return self.of[0].network.get_input_embeddings()(self.of[0].own(tokens))


def _last_layer(network: Any, model: str, head: str) -> tuple[str, nn.Linear]:
    """Return the name of the linear layer that computes the logits, and the layer, or raise a `UserError`."""
    layer = dict(network.named_modules()).get(head) if head else network.get_output_embeddings()
    name = next((name for name, module in network.named_modules() if module is layer and name), None)
    if name is None or not isinstance(layer, nn.Linear):
        known = ", ".join(name for name, module in network.named_modules() if isinstance(module, nn.Linear))
        raise UserError(
            f"backbone.head: {model} has no linear layer {head!r}; name the linear layer that computes the logits, "
            f"such as {known[-200:]}"
        )
    return name, layer


def _once(module: TransformersModule, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name in module.twice:
        del state[prefix + name]


def _again(module: TransformersModule, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, first in module.twice.items():
        if prefix + first in state:
            state[prefix + name] = state[prefix + first]


def restored(module: TransformersModule) -> Any:
    """Return the original model with the module's weights; the module cannot be used afterwards."""
    network = module.network
    parent, _, name = module.layer.rpartition(".")
    network.get_submodule(parent).register_module(name, module.head.layer())
    for key, rate in module.rates.items():
        setattr(network.config, key, rate)
    return network
