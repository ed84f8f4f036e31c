"""Checks of backbones. B: batch size; L: length; D: width; V: number of predictable tokens."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from atat_zoo.diffusion.cache import Cache
from atat_zoo.testing.batches import VOCABULARY as V
from atat_zoo.testing.batches import context, holds

B, L, HALF = 3, 12, 6


def check_backbone(backbone: Any) -> None:
    """Check the contract of a backbone: independent rows, gradients, and attention masks if it accepts any.

    The check takes about a second for a small backbone and longer for a large one.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        built = backbone.build(context(length=L))
    assert isinstance(built, nn.Module), "a backbone's build must return an nn.Module"
    module = randomised(built).eval()
    tokens = torch.randint(0, V + 1, (B, L), generator=torch.Generator().manual_seed(1))
    t = torch.rand(B, generator=torch.Generator().manual_seed(2)) if module.reads_time else None
    D = module.embedding.embedding_dim
    assert module.embedding.num_embeddings == V + 1, "the embedding must have one row per token, then one for the mask"
    hidden = module(tokens, t)
    assert hidden.shape == (B, L, D), f"hidden states must be [B, L, D] = {[B, L, D]}, not {list(hidden.shape)}"
    logits = module.head(hidden)
    assert logits.shape == (B, L, V), f"the head must have V = {V} outputs, one per token without the mask"
    (logits * torch.linspace(-1, 1, V)).square().sum().backward()
    holds_gradients(module)
    with torch.no_grad():
        _holds_text(module, tokens, t, hidden, logits)
        if not getattr(backbone, "both_ways_only", False):
            _holds_attention(module, tokens, t)
            if getattr(module, "takes_cache", False):
                _holds_cache(module, tokens, t)
            else:
                assert "cache" not in inspect.signature(module.forward).parameters, (
                    "generation passes `cache` only to a network with takes_cache = True; add this line to the class "
                    "of the network, or remove `cache` from forward"
                )
        if t is None:
            _near(module(tokens, torch.rand(B)), hidden, "a backbone with reads_time = False must ignore t")
        else:
            assert not torch.allclose(module(tokens, t / 2), hidden), (
                "a backbone with reads_time = True must depend on t"
            )


def holds_gradients(module: nn.Module) -> None:
    """Check that every trained weight has a finite, nonzero gradient."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, f"every weight must have a gradient, but {name} has none"
            holds(parameter.grad.isfinite(), f"gradients must be finite, but that of {name} is not")
            assert bool(parameter.grad.any()), f"every weight must have a gradient, but that of {name} is zero"


def randomised(module: nn.Module, seed: int = 0) -> Any:
    """Perturb every weight randomly, so that none is zero, and return the module."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return module


def _near(found: Tensor, wanted: Tensor, promise: str) -> None:
    difference = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1))
    assert difference <= 1e-4, f"{promise}: the difference is {difference:.2g}"  # NaN also fails


def _holds_text(module: Any, tokens: Tensor, t: Tensor | None, hidden: Tensor, logits: Tensor) -> None:
    some = torch.arange(B * L).view(B, L) % 3 == 0
    _near(
        module.head(hidden[some]),
        logits[some],
        "the head must compute each position independently, and accept any subset of positions",
    )
    alone = module(tokens[1:2], None if t is None else t[1:2])
    _near(alone, hidden[1:2], "a row must not depend on the rest of its batch")
    _near(module(tokens, t, positions=torch.arange(L)), hidden, "positions must default to 0 … L - 1")
    changed = module(_changed(tokens), t)
    assert not torch.allclose(changed[:, 0], hidden[:, 0]), (
        "without an attention mask, every token must see every other token"
    )


def _changed(tokens: Tensor) -> Tensor:
    return torch.cat([tokens[:, :HALF], (tokens[:, HALF:] + 1) % V], dim=1)


def _holds_attention(module: Any, tokens: Tensor, t: Tensor | None) -> None:
    causal, other = (module(text, t, attention="causal") for text in (tokens, _changed(tokens)))
    _near(other[:, :HALF], causal[:, :HALF], "causal attention must not see later tokens")
    past = torch.ones(L, L).tril().bool()
    _near(
        module(tokens, t, attention=past),
        causal,
        "a causal mask must act like causal attention; set both_ways_only = True if the backbone takes no masks",
    )
    of_rows = module(tokens, t, positions=torch.arange(L).expand(B, L), attention=past.expand(B, 1, L, L))
    _near(of_rows, causal, "the backbone must accept positions and an attention mask for each row")
    if getattr(module, "returns_first", False):
        for attention in (None, "causal", past):
            first = module(tokens, t, attention=attention, first=HALF)
            promise = "with `first`, the backbone must return hidden states of only the first tokens"
            assert first.shape[1] == HALF, f"{promise}; otherwise, remove returns_first = True"
            _near(
                first,
                module(tokens, t, attention=attention)[:, :HALF],
                "`first` must not change the hidden states of the first tokens",
            )


def _holds_cache(module: Any, tokens: Tensor, t: Tensor | None) -> None:
    """Check that two passes with a cache equal a single pass in which the first half does not see the second."""
    cache, position = Cache(), torch.arange(L)
    cache.grows = True
    module(tokens[:, :HALF], t, positions=position[:HALF], cache=cache)
    second = module(tokens[:, HALF:], t, positions=position[HALF:], cache=cache)
    sees = (position[:, None] >= HALF) | (position < HALF)
    _near(second, module(tokens, t, attention=sees)[:, HALF:], "a cache must not change the hidden states")
