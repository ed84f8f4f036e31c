"""Providers fill in the fields of a step that parts name in their `needs`; a new need is one more class and field.

Legend: A rows of a step, L positions, N open positions, M predicted positions, V predictable tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from typing_extensions import override

from atat_zoo.diffusion.positions import positions
from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from atat_zoo.diffusion.contracts import Denoiser
    from atat_zoo.diffusion.positions import Where
    from atat_zoo.diffusion.steps import Step


class Provider:
    """Provides one need. The loop calls its methods in the order of this class; by default they do nothing."""

    final = False  # whether it also provides in the last step, which fills everything
    asks = False  # whether it evaluates the network itself, in `ask`
    everywhere = False  # whether it needs predictions at all masks, including those that are not to be filled

    def __init__(self, denoiser: Denoiser, tokens: Tensor, max_nfe: int) -> None:
        """Begin a run on int64 [B, L], in which a row takes part in at most `max_nfe` evaluations."""

    def ahead(self, step: Step) -> None:
        """Provide what follows from z alone, before the network is evaluated; not in the last step."""

    def ask(self, step: Step, t: Tensor | None, where: Where, among: Tensor | slice) -> Tensor:
        """Return the log-probabilities [M, V]; `among` are the N open positions among the M."""
        return step.denoiser(step.tokens, t, where)

    def draft(self, step: Step, log_probs: Tensor, masked: Tensor) -> None:
        """Provide from the predictions [M, V] at `masked`, bool [A, L]."""

    def provide(self, step: Step, draw: Callable[[], Tensor]) -> None:
        """Provide from `step.log_probs`; `draw` returns a token for each open position."""

    def written(self, step: Step, log_probs: Tensor, drawn: Tensor, where: tuple[Tensor, Tensor]) -> None:
        """Read the drawn tokens and the log-probabilities that they were drawn from."""

    def after(self, step: Step) -> None:
        """Provide for the remask, in a step of the complete batch."""

    def remasked(self, remasked: Tensor) -> None:
        """Read which positions the remask has masked again, bool [B, L]."""


class OrderWeights(Provider):
    """Evaluates the network for the predictions and log ŵ."""

    asks = True

    @override
    def ask(self, step: Step, t: Tensor | None, where: Where, among: Tensor | slice) -> Tensor:
        if not step.denoiser.gives_order_weights:
            raise UserError(
                "the order learned takes its order from the model's own reverse weights, and this model has none; "
                'train it with objective.use = "adaptive", or choose another sampler'
            )
        log_probs, weights = step.denoiser.ordered(step.tokens, t, where)
        step.order_weights = weights[among]
        return log_probs


class Confidence(Provider):
    """Remembers the probability that each token had when it was drawn; 1 elsewhere."""

    def __init__(self, denoiser: Denoiser, tokens: Tensor, max_nfe: int) -> None:
        self.confidence = torch.ones(tokens.shape, device=tokens.device)

    @override
    def written(self, step: Step, log_probs: Tensor, drawn: Tensor, where: tuple[Tensor, Tensor]) -> None:
        row, position = where
        own = log_probs.gather(1, drawn.unsqueeze(1)).squeeze(1)
        self.confidence[step.rows[row], position] = own.exp().float()

    @override
    def after(self, step: Step) -> None:
        step.confidence = self.confidence

    @override
    def remasked(self, remasked: Tensor) -> None:
        self.confidence = self.confidence.masked_fill(remasked, 1.0)


class Rescored(Confidence):
    """The same, updated for visible tokens in each evaluation of the network."""

    asks = True

    @override
    def ask(self, step: Step, t: Tensor | None, where: Where, among: Tensor | slice) -> Tensor:
        if not step.denoiser.scores_visible_tokens:
            raise UserError(
                "this sampler's remask asks the model for its probability of tokens that are already there, which this "
                "model, or its guidance, cannot tell; choose another sampler, such as remdm_conf"
            )
        row, position = positions(step.free & ~step.open, step.total - step.remaining)
        log_probs, own = step.denoiser.everywhere(step.tokens, t, where, (row, position))
        self.confidence[step.rows[row], position] = own.exp().float()
        return log_probs


class Importance(Provider):
    """Evaluates the model's estimator: on z, or on a draft, z with the most probable token at every mask."""

    def __init__(self, denoiser: Denoiser, tokens: Tensor, max_nfe: int) -> None:
        self.estimates, self.drafts = denoiser.estimates_importance, denoiser.importance_reads == "x"
        # An estimator of complete texts needs a draft of the masks that are not to be filled, too.
        self.everywhere = self.estimates and self.drafts

    @override
    def ahead(self, step: Step) -> None:
        if self.estimates and not self.drafts:
            step.importance = step.denoiser.importance(step.tokens, step.tokens == step.mask_id)

    @override
    def draft(self, step: Step, log_probs: Tensor, masked: Tensor) -> None:
        if self.everywhere:
            step.importance = step.denoiser.importance(step.tokens.masked_scatter(masked, log_probs.argmax(-1)), masked)


class ConfidenceHistory(Provider):
    """Remembers the mean of max p_θ over open positions for each evaluation."""

    final = True

    def __init__(self, denoiser: Denoiser, tokens: Tensor, max_nfe: int) -> None:
        self.history = torch.full((len(tokens), max_nfe), torch.nan, dtype=torch.float64, device=tokens.device)

    @override
    def provide(self, step: Step, draw: Callable[[], Tensor]) -> None:
        confidence = step.mean_open(step.spread(step.distributions().amax(-1).double().exp())).unsqueeze(1)
        step.history = torch.cat([self.history[step.rows, 1:], confidence], dim=1)
        self.history[step.rows] = step.history


class Drawn(Provider):
    """Draws a token for every open position before the order chooses among them."""

    @override
    def provide(self, step: Step, draw: Callable[[], Tensor]) -> None:
        step.drawn = draw()
        step.drawn_log_probs = step.distributions().gather(1, step.drawn.unsqueeze(1)).squeeze(1)


# In the order of the calls. The loop itself provides "log_probs" whenever a part needs anything.
PROVIDERS: dict[str, Callable[[Denoiser, Tensor, int], Provider]] = {
    "order_weights": OrderWeights,
    "rescored": Rescored,
    "confidence": Confidence,
    "importance": Importance,
    "history": ConfidenceHistory,
    "drawn": Drawn,
}


def providers(needs: frozenset[str], denoiser: Denoiser, tokens: Tensor, max_nfe: int) -> list[Provider]:
    """Return a provider for each need, for one run."""
    if "rescored" in needs:
        needs -= {"confidence"}  # which `Rescored` provides as well
    return [provider(denoiser, tokens, max_nfe) for need, provider in PROVIDERS.items() if need in needs]
