"""The fields of a step that parts name in their `needs`: computed only for a part that reads them.

Legend: A rows of a step, L positions, N open positions, M predicted positions, V predictable tokens.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from atat_zoo.errors import UserError
from atat_zoo.modeling.diffusion.contracts import Denoiser
from atat_zoo.modeling.diffusion.positions import Where, positions
from atat_zoo.modeling.diffusion.steps import Step


class Provider:
    """Provides the needs of the parts in one run; "log_probs" is provided whenever a part needs anything.

    The loop calls its methods in their order; in the last step, which fills everything, only `provide` and `written`.
    """

    def __init__(self, needs: frozenset[str], denoiser: Denoiser, tokens: Tensor, max_nfe: int) -> None:
        self.needs = needs
        self.remembers = not needs.isdisjoint({"confidence", "rescored"})
        self.weighs = "importance" in needs and denoiser.estimates_importance
        # An estimator of complete texts needs a draft of all masks, also of those that are not to be filled.
        self.drafts = self.weighs and denoiser.importance_reads == "x"
        # The probability that each token had when it was drawn; 1 elsewhere.
        self.confidence = torch.ones(tokens.shape, device=tokens.device)
        # The mean of max p_θ over open positions, for each evaluation.
        evaluations = max_nfe if "history" in needs else 0
        self.history = torch.full((len(tokens), evaluations), torch.nan, dtype=torch.float64, device=tokens.device)

    def ahead(self, step: Step) -> None:
        """Provide what follows from z alone, before the network is evaluated."""
        if self.weighs and not self.drafts:
            step.importance = step.denoiser.importance(step.tokens, step.tokens == step.mask_id)

    def ask(self, step: Step, t: Tensor | None, where: Where, among: Tensor | slice) -> Tensor:
        """Evaluate the network for its log-probabilities [M, V]; `among` are the N open positions among the M."""
        if "order_weights" in self.needs:
            if not step.denoiser.gives_order_weights:
                raise UserError(
                    "the order learned takes its order from the model's own reverse weights, and this model has none; "
                    'train it with objective.use = "adaptive", or choose another sampler'
                )
            log_probs, weights = step.denoiser.ordered(step.tokens, t, where)
            step.order_weights = weights[among]
            return log_probs
        if "rescored" in self.needs:
            if not step.denoiser.scores_visible_tokens:
                raise UserError(
                    "this sampler's remask asks the model for its probability of tokens that are already there, which "
                    "this model, or its guidance, cannot tell; choose another sampler, such as remdm_conf"
                )
            row, position = positions(step.free & ~step.open, step.total - step.remaining)
            log_probs, own = step.denoiser.everywhere(step.tokens, t, where, (row, position))
            self.confidence[step.rows[row], position] = own.exp().float()
            return log_probs
        return step.denoiser(step.tokens, t, where)

    def draft(self, step: Step, log_probs: Tensor, masked: Tensor) -> None:
        """Provide the importance of z with the most probable token at `masked`, bool [A, L], by the M predictions."""
        if self.drafts:
            step.importance = step.denoiser.importance(step.tokens.masked_scatter(masked, log_probs.argmax(-1)), masked)

    def provide(self, step: Step, draw: Callable[[], Tensor]) -> None:
        """Provide from `step.log_probs`; `draw` returns a token for each open position, before the order chooses."""
        if "history" in self.needs:
            confidence = step.mean_open(step.spread(step.distributions().amax(-1).double().exp())).unsqueeze(1)
            step.history = torch.cat([self.history[step.rows, 1:], confidence], dim=1)
            self.history[step.rows] = step.history
        if "drawn" in self.needs and not step.final:
            step.drawn = draw()
            step.drawn_log_probs = step.distributions().gather(1, step.drawn.unsqueeze(1)).squeeze(1)

    def written(self, step: Step, log_probs: Tensor, drawn: Tensor, where: tuple[Tensor, Tensor]) -> None:
        """Read the drawn tokens and the log-probabilities that they were drawn from."""
        if self.remembers:
            own = log_probs.gather(1, drawn.unsqueeze(1)).squeeze(1)
            self.confidence[step.rows[where[0]], where[1]] = own.exp().float()

    def remasked(self, remasked: Tensor) -> None:
        """Read which positions the remask has masked again, bool [B, L]."""
        self.confidence = self.confidence.masked_fill(remasked, 1.0)
