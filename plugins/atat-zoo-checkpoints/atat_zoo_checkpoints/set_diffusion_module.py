"""The module of the objective `set_diffusion`, and its denoisers.

Shapes: B sequences, L positions, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from typing_extensions import override

from atat_zoo.diffusion.attention import attention_mask
from atat_zoo.modeling.objectives.denoising import HeadInputs, Predictor
from atat_zoo.modeling.objectives.set_causal_module import PositionSetsModule
from atat_zoo.system.devices import move_to
from atat_zoo.system.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from atat_zoo.diffusion.contracts import Denoiser
    from atat_zoo.registry import Context


class SetDiffusionModule(PositionSetsModule):
    """Module of `set_diffusion`, which trains like that of `set_causal`, with a separate stream of masks."""

    def __init__(
        self, context: Context, parts: Mapping[str, Any], batch_size: int, *, start: int, **parameters: float
    ) -> None:
        super().__init__(context, parts, batch_size, **parameters)
        self.start = start
        if start >= (V := context.vocabulary_size):
            raise UserError(
                f"objective.start = {start} is not a token; use an id from 0 to {V - 1}, such as that of BOS"
            )
        if any(name.endswith("position_embeddings") for name, _ in self.backbone.named_modules()):
            raise UserError(
                "objective 'set_diffusion' has its start token at position −1, which learned position embeddings lack; "
                "choose a backbone with rotary positions, such as ddit"
            )

    @override
    def hidden_in_steps(self, x: Tensor, steps: Tensor, ascending: bool) -> Tensor:
        """Return the hidden states [B, L, D] of the masks, which the network reads before the text."""
        (B, L), device = x.shape, x.device
        position = torch.arange(-1, L, device=device).expand(B, -1)
        text = F.pad(x, (1, 0), value=self.start)
        # The start token comes before given tokens. Within a step, tokens are ordered from left to right.
        of_tokens = F.pad(steps, (1, 0), value=-2)
        step, rank = torch.cat([steps, of_tokens], 1), F.pad((of_tokens + 2) * (L + 1) + position, (L, 0))

        def sees(row: Any, head: Any, query: Any, key: Any) -> Tensor:
            earlier, no_later = step[row, key] < step[row, query], rank[row, key] <= rank[row, query]
            return (key >= L) & torch.where(query < L, earlier, no_later) | (query == key)

        tokens = torch.cat([torch.full_like(x, self.context.mask_id), text], 1)
        positions = torch.cat([position[:, 1:], position], 1)
        return self.read(tokens, positions=positions, attention=attention_mask(sees, B, 2 * L + 1, device), first=L)

    @override
    def embed(self, tokens: Tensor) -> Tensor:
        text = F.pad(tokens, (1, 0), value=self.start)
        positions = torch.arange(-1, tokens.shape[1], device=text.device)
        return move_to(self.read(text, positions=positions, attention="causal")[:, 1:], tokens.device)

    @override
    def denoiser(self) -> Denoiser:
        return SetDiffusionPredictor(self)


class SetDiffusionPredictor(Predictor):
    """Predictor of p_θ(x_i | z) that treats visible tokens as the prompt; `begin_generation` returns one with steps."""

    scores_visible_tokens = False
    module: SetDiffusionModule

    @override
    def begin_generation(self, tokens: Tensor) -> Denoiser:
        return IncrementalSetDiffusionPredictor(self.module, torch.full_like(tokens, -1))


class IncrementalSetDiffusionPredictor(SetDiffusionPredictor):
    """Predictor during generation: the first call's visible tokens are the prompt; new ones in a call share a step."""

    def __init__(self, module: SetDiffusionModule, came: Tensor, rows: Tensor | None = None) -> None:
        super().__init__(module)
        self.came, self.rows = came, rows  # step of each token, int64 [B, L]; −1 at masks

    @override
    def begin_generation(self, tokens: Tensor) -> Denoiser:
        return self

    @override
    def select(self, rows: Tensor) -> Denoiser:
        return IncrementalSetDiffusionPredictor(self.module, self.came, rows if self.rows is None else self.rows[rows])

    @override
    def head_inputs(self, tokens: Tensor, t: Tensor | None) -> HeadInputs:
        rows = torch.arange(len(tokens), device=tokens.device) if self.rows is None else self.rows
        masked, came = tokens == self.mask_id, self.came[rows]
        now = came.amax(1, keepdim=True) + 1
        came = torch.where(~masked & (came < 0), now, came)
        self.came[rows] = came
        # Only the order of steps matters, so the prompt may have step 0 instead of −1.
        return self.module.inputs_in_steps(tokens, torch.where(masked, now + 1, came))
