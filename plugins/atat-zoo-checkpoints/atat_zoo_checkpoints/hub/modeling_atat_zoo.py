"""A language model trained with atat_zoo, for the Hugging Face hub; it only requires torch and transformers.

Shapes: B texts, L tokens, D width, H heads, V predicted tokens, S tokens in the vocabulary, T positions that the
network reads, R the reach of the n-gram prior. Token V is the mask, or the start token of a causal model. Token V and
the padding token are never predicted: their logits are −∞. Dropout is not supported.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput, MaskedLMOutput

from .configuration_atat_zoo import AtatZooConfig
from .generation_atat_zoo import generate, visible_in
from .ngram_prior_atat_zoo import AtatZooNGramPrior


class AtatZooNorm(nn.Module):
    """Layer normalisation with a learned gain, or with a scale and a shift computed from the diffusion time."""

    def __init__(self, width: int, timed: bool) -> None:
        super().__init__()
        self.layer = nn.LayerNorm(width, elementwise_affine=not timed, bias=False)
        self.modulation = nn.Linear(width, 2 * width) if timed else None

    def forward(self, h: Tensor, c: Tensor | None) -> Tensor:
        """Return h [B, T, D] normalised over D, given the embedding c [B, D] of the time."""
        if self.modulation is None or c is None:
            return self.layer(h)
        scale, shift = self.modulation(F.silu(c)).unsqueeze(1).chunk(2, dim=-1)
        return self.layer(h) * (1 + scale) + shift


class AtatZooLayer(nn.Module):
    """Attention with rotary positions and normalised queries and keys, followed by a feed-forward network."""

    def __init__(self, config: AtatZooConfig) -> None:
        super().__init__()
        width, self.heads, timed = config.hidden_size, config.num_attention_heads, bool(config.times)
        self.norm_attention, self.norm_mlp = AtatZooNorm(width, timed), AtatZooNorm(width, timed)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.scale = nn.Parameter(torch.ones(2 * width // self.heads))
        self.offset = nn.Parameter(torch.zeros(2 * width)) if config.local_heads else None
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, width, bias=False)
        self.gates = nn.Linear(width, 2 * width) if timed else None

    def forward(
        self, h: Tensor, c: Tensor | None, rotation: tuple[Tensor, Tensor], sees: Tensor | None, causal: bool
    ) -> Tensor:
        """Return the updated hidden states [B, T, D].

        `sees` is a bool attention mask that broadcasts to [B, 1, T, T], or None for full attention.
        """
        B, T, D = h.shape
        qkv = self.qkv(self.norm_attention(h, c)).view(B, T, 3, self.heads, D // self.heads)
        qk = F.layer_norm(qkv[:, :, :2], (D // self.heads,)) * self.scale.view(2, 1, -1)
        if self.offset is not None:
            qk = qk + self.offset.view(2, self.heads, -1)
        cos, sin = rotation
        a, b = qk.chunk(2, dim=-1)
        q, k = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(qkv.dtype).permute(2, 0, 3, 1, 4)
        v = qkv[:, :, 2].transpose(1, 2)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=sees, is_causal=causal)
        attended = self.out(attended.transpose(1, 2).reshape(B, T, D))
        if self.gates is None or c is None:
            h = h + attended
            return h + self.mlp(h, c)
        gate_attention, gate_mlp = self.gates(F.silu(c)).unsqueeze(1).chunk(2, dim=-1)
        h = h + gate_attention * attended
        return h + gate_mlp * self.mlp(h, c)

    def mlp(self, h: Tensor, c: Tensor | None) -> Tensor:
        """Return the output of the feed-forward network for h [B, T, D]."""
        return self.down(F.gelu(self.up(self.norm_mlp(h, c)), approximate="tanh"))


class AtatZooTime(nn.Module):
    """Embedding of a diffusion time in [0, 1]: sinusoids of 1,000·t, followed by two layers."""

    def __init__(self, width: int, frequencies: int = 256) -> None:
        super().__init__()
        self.pairs = frequencies // 2
        self.layers = nn.Sequential(nn.Linear(frequencies, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        """Return the embeddings [B, D] of times t [B]."""
        rates = torch.exp(-math.log(10_000.0) * torch.arange(self.pairs, device=t.device).float() / self.pairs)
        angles = 1000.0 * t.float()[:, None] * rates
        return self.layers(torch.cat([angles.cos(), angles.sin()], dim=-1).to(self.layers[0].weight.dtype))


class AtatZooHead(nn.Module):
    """Head that maps hidden states to logits for V tokens, with its own weight or the embedding's."""

    def __init__(self, config: AtatZooConfig) -> None:
        super().__init__()
        self.V = V = config.predictable
        self.weight = None if config.tied_head else nn.Parameter(torch.zeros(V, config.hidden_size))
        self.bias = nn.Parameter(torch.zeros(V)) if config.head_bias else None

    def forward(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        """Return logits [..., V] in float32."""
        return F.linear(hidden, embedding[: self.V] if self.weight is None else self.weight, self.bias).float()


def put_back(values: Tensor, places: Tensor | None) -> Tensor:
    """Return values [B, L, …] moved back to the original `places` [B, L] of their tokens, or unchanged if None."""
    if places is None:
        return values
    return torch.empty_like(values).scatter(1, places[..., None].expand_as(values), values)


class AtatZooPreTrainedModel(PreTrainedModel):
    """Base class of both models, with the network, its head and its n-gram prior."""

    config_class = AtatZooConfig
    _supports_sdpa = True

    def __init__(self, config: AtatZooConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.embedding = nn.Embedding(config.vocab_size, width)
        self.time = AtatZooTime(width) if config.times else None
        self.blocks = nn.ModuleList(AtatZooLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = AtatZooNorm(width, bool(config.times))
        self.head = AtatZooHead(config)
        self.prior = AtatZooNGramPrior(config) if config.ngram_prior else None
        self._no_split_modules = ["AtatZooLayer"]
        PreTrainedModel.post_init(self)

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the embedding of the S tokens."""
        return self.embedding

    def read(
        self,
        ids: Tensor,
        t: Tensor | None = None,
        positions: Tensor | None = None,
        sees: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Return hidden states [B, T, D] for ids [B, T], given positions [T], times t [B] and attention mask `sees`."""
        positions = torch.arange(ids.shape[1], device=ids.device) if positions is None else positions
        h = self.embedding(ids)
        c = None if self.time is None or t is None else self.time(t)
        width = self.config.hidden_size // self.config.num_attention_heads
        rates = 10_000.0 ** -(torch.arange(0, width, 2, device=ids.device).float() / width)
        angles = (positions.float()[:, None] * rates)[:, None, None]
        rotation = angles.cos().to(h.dtype), angles.sin().to(h.dtype)
        for layer in self.blocks:
            h = layer(h, c, rotation, sees, causal)
        return self.norm(h, c)

    def visible_first(
        self, input_ids: Tensor, attention_mask: Tensor | None, most: int
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return ids with the padding of each text moved to its end, so that its side does not change the result.

        Args:
            input_ids: int64 [B, L].
            attention_mask: [B, L], 0 at padding; by default, padding is recognised by the id of the padding token.
            most: maximum number of tokens in a text; a longer text raises a `ValueError`.

        Returns:
            The ids, with V at padding; a mask, bool [B, L], that is True where they are not padding; and the original
            place of each token, int64 [B, L]. Without padding, it returns None for the mask and the places.
        """
        visible = visible_in(self.config, input_ids, attention_mask)
        length = int(visible.sum(1).max())
        if length > most:
            raise ValueError(f"the text has {length} tokens, but this model reads at most {most}; shorten the text")
        if bool(visible.all()):
            return input_ids, None, None
        places = visible.long().argsort(dim=1, descending=True, stable=True)
        ids = input_ids.masked_fill(~visible, self.config.predictable)
        return ids.gather(1, places), visible.gather(1, places), places

    def logits(self, hidden: Tensor, near: Tensor | None) -> Tensor:
        """Return logits [B, L, S], float32, given hidden states [B, L, D] and ids of visible neighbours [B, L, 2R]."""
        logits = self.head(hidden, self.embedding.weight)
        if self.prior is not None and near is not None:
            logits = self.prior(logits.flatten(0, 1), near.flatten(0, 1)).view_as(logits)
        return F.pad(logits, (0, self.config.vocab_size - logits.shape[2]), value=-math.inf)


class AtatZooForMaskedLM(AtatZooPreTrainedModel, GenerationMixin):
    """Masked language model: p(token | visible tokens) at every position, which is only meaningful at masks."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        timesteps: Tensor | None = None,
        turns: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **unused: Any,
    ) -> MaskedLMOutput | tuple[Tensor, ...]:
        """Return logits [B, L, S], and a loss if `labels` are passed.

        Args:
            input_ids: token ids with masks, int64 [B, L].
            attention_mask: [B, L], 0 at padding; by default, padding is recognised by the id of the padding token.
            timesteps: diffusion times [B] for a time-conditioned network; by default, computed from the fraction of
                masks in each text.
            turns: decoding step of each token, int64 [B, L], or −1 for given tokens, for a network of form `turns`,
                whose predictions only read tokens from earlier steps. By default, visible tokens are given and masks
                are decoded in the next step.
            labels: true tokens [B, L], −100 at positions to ignore; the loss is the mean cross-entropy in nats.
            output_hidden_states: whether to also return the last hidden states [B, L, D].
            return_dict: whether to return a `ModelOutput` instead of a tuple.
            unused: arguments of other models, which are ignored.
        """
        config = self.config
        ids, visible, places = self.visible_first(input_ids, attention_mask, config.max_position_embeddings)
        if turns is not None and visible is not None and places is not None:
            turns = turns.gather(1, places).masked_fill(~visible, -1)
        masked = ids == config.predictable if visible is None else (ids == config.predictable) & visible
        if config.form == "turns":
            turns = masked.long() - 1 if turns is None else turns
            hidden = self.in_turns(ids, turns, visible)
        else:
            if config.times and timesteps is None:
                tokens = ids.shape[1] if visible is None else visible.sum(1).clamp(min=1)
                timesteps = self.time_at(masked.sum(1) / tokens)
            hidden = self.read(ids, timesteps, sees=None if visible is None else visible[:, None, None])
        near = None if self.prior is None else put_back(self.neighbours(ids, turns), places)
        hidden = put_back(hidden, places)
        logits = self.logits(hidden, near)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        found = MaskedLMOutput(loss=loss, logits=logits, hidden_states=(hidden,) if output_hidden_states else None)
        return found.to_tuple() if return_dict is False else found

    def time_at(self, share: Tensor) -> Tensor:
        """Return the time [B] at which the fraction `share` [B] of the tokens is masked."""
        times = torch.tensor(self.config.times, device=share.device)
        place = share.float() * (len(times) - 1)
        # Round products that should be integers, because the network multiplies t by 1,000 and reads its last digits.
        if len(times) > 2:
            place = torch.where((place - place.round()).abs() < 1e-3, place.round(), place)
        low = place.long().clamp(max=len(times) - 2)
        return torch.lerp(times[low], times[low + 1], place - low)

    def in_turns(self, ids: Tensor, turns: Tensor, visible: Tensor | None) -> Tensor:
        """Return hidden states [B, L, D] that depend only on tokens from earlier steps.

        Position i predicts token i. Its input is token i − 1, or a mask if that token is not decoded before token i. If
        token i is not decoded in the step right after, an additional position shows token i − 1 to later steps.
        """
        mask = self.config.predictable
        carried, ready = F.pad(ids, (1, 0), value=mask), F.pad(turns + 1, (1, 0))
        own = F.pad(turns, (0, 1), value=-1)
        turn = torch.where(own >= 0, own, ready)
        content = ready == turn
        again = (own >= 0) & ~content & (ready <= turns.amax(1, keepdim=True))
        tokens, positions = torch.where(ready <= turn, carried, mask), torch.arange(ids.shape[1] + 1, device=ids.device)
        there = torch.ones_like(content) if visible is None else F.pad(visible, (1, 0), value=True)
        if bool(again.any()):
            tokens, turn = torch.cat([tokens, carried], 1), torch.cat([turn, ready], 1)
            content, there, positions = torch.cat([content, again], 1), there.repeat(1, 2), positions.repeat(2)
        content = content & there
        sees = content[:, None] & (turn[:, None] <= turn[:, :, None])
        sees = sees | torch.eye(tokens.shape[1], dtype=torch.bool, device=ids.device)
        return self.read(tokens, positions=positions, sees=sees[:, None])[:, : ids.shape[1]]

    def neighbours(self, ids: Tensor, turns: Tensor | None) -> Tensor:
        """Return ids of the neighbours at −1, 1, −2, 2, …, int64 [B, L, 2R]; V where a prediction may not read them."""
        reach, absent, L = len(self.config.ngram_prior), self.config.predictable, ids.shape[1]
        offsets = [by for distance in range(1, reach + 1) for by in (-distance, distance)]

        def beside(x: Tensor, value: int) -> Tensor:
            padded = F.pad(x, (reach, reach), value=value)
            return torch.stack([padded[:, reach + by : reach + by + L] for by in offsets], dim=2)

        near = beside(ids, absent)
        return near if turns is None else near.masked_fill(beside(turns, -1) >= turns[..., None], absent)

    # The library's own `generate` has parameters for generation from left to right, which unmasking does not use.
    def generate(self, inputs: Tensor | None = None, **options: Any) -> Tensor:  # type: ignore[override]
        """Return texts generated by unmasking; `generation_atat_zoo.generate` describes `options` and the result."""
        return generate(model=self, inputs=inputs, **options)


class AtatZooForCausalLM(AtatZooPreTrainedModel, GenerationMixin):
    """Causal language model: p(token | tokens before it). A text begins with the start token V, the tokenizer's BOS."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **unused: Any,
    ) -> CausalLMOutput | tuple[Tensor, ...]:
        """Return logits [B, L, S] of the next token at each position; keys and values are not cached.

        The arguments have the same meaning as in transformers. Pass `labels` unshifted, to also get the loss in nats.
        """
        most = self.config.max_position_embeddings + 1  # including the start token
        ids, _, places = self.visible_first(input_ids, attention_mask, most)
        hidden = put_back(self.read(ids, causal=True), places)  # padding is now on the right, which is not read
        near, absent = None, self.config.predictable
        if self.prior is not None:
            # Neighbours of the next token: the current token and those before it, and none on the right.
            left = [F.pad(ids, (by, 0), value=absent)[:, : ids.shape[1]] for by in range(self.prior.reach)]
            none = torch.full_like(ids, absent)
            near = put_back(torch.stack([each for tokens in left for each in (tokens, none)], dim=2), places)
        logits, loss = self.logits(hidden, near), None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        found = CausalLMOutput(loss=loss, logits=logits, hidden_states=(hidden,) if output_hidden_states else None)
        return found.to_tuple() if return_dict is False else found

    # The library passes more arguments by keyword.
    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **unused: Any
    ) -> dict[str, Any]:
        """Return the inputs for a step: always the whole text, because keys and values are not cached."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}
