"""Speculative sampling: fewer forward passes than decoding steps, from exactly the distribution of plain decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from atat_zoo.generation.samplers import Observer, Sample, Sampler
from atat_zoo.modeling.position_sets import PositionSets
from atat_zoo.registry import component, component_param, param
from atat_zoo.system.errors import Problem, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from atat_zoo.diffusion.contracts import Denoiser
    from atat_zoo.experiment import Experiment

_NEEDS = "the sampler 'speculative' needs a model that learns position sets"


@component
class SpeculativeSampler(Sampler):
    """Drafts the tokens of several decoding steps, and verifies the drafts together in the next forward pass.

    The texts have exactly the distribution of decoding one set per step, in as many forward passes or fewer: x_i of
    step j is drawn from p_i = p_θ(x_i | x_k, c_k < j), whatever was drafted. A pass reads the drafts x̃ of the next m
    steps, each in its own step, and predicts them (verification) and, for each step at which it may stop, the m steps
    after that one, given only the tokens before (drafting). Let x̃_i be drawn from q_i, which depends on tokens of
    earlier steps only. Step by step, while no token is refused, x̃_i is accepted with probability min(1, p_i/q_i);
    otherwise x_i is drawn from the positive part of p_i − q_i, normalised, so that x_i has probability

        q_i(x) min(1, p_i(x)/q_i(x)) + Σ_y (q_i(y) − p_i(y))₊ · (p_i(x) − q_i(x))₊ / Σ_y (p_i(y) − q_i(y))₊ = p_i(x)

    (Leviathan et al., arXiv:2211.17192). The tokens of a step are accepted or refused independently, because p_θ draws
    them independently. After the first step with a refused token, later drafts are discarded, since p_θ of their
    positions has changed; if none is refused, the pass also yields the step after the drafts. Each position has one
    random-number key for its draft, one for acceptance and one for its token. A discarded draft has not affected any
    other token, so that its key can be used again.

    A pass has up to (m + 1)² inputs for each position of a set: a larger m saves passes, but each one takes longer, so
    drafts save time for few texts at once, not for large batches. Few drafts are accepted unless the model has learned
    to predict positions several steps ahead: train it on a `mixture` of an order and its `blocks`. With an n-gram
    prior, a draft also uses the drafts that precede it.

    Relatives are blockwise parallel decoding (Stern et al., arXiv:1811.03115) and speculative decoding by any-subset
    models (arXiv:2504.20456) and by masked diffusion (arXiv:2510.03929).
    """

    name = "speculative"
    summary = "speculative: drafts and verifies several position sets per forward pass, exactly; for set-causal models"
    refs = ("arXiv:2211.17192", "arXiv:1811.03115", "arXiv:2504.20456", "arXiv:2510.03929")
    no_policy_bound_because = (
        "it has the distribution of decoding one position set per step, so its likelihood is that of the sampler "
        '"left_to_right" or "strided" in the same order'
    )

    draft_length: int = param(3, help="m, number of decoding steps drafted per forward pass", ge=1)
    temperature: float = param(1.0, help="sampling temperature; 0 is greedy", ge=0)
    position_sets: PositionSets = component_param(
        "position_sets", "left_to_right", help="the order of decoding; its sets are those of one step without drafts"
    )

    def __attrs_post_init__(self) -> None:
        if self.position_sets.reads_importance:
            raise ValueError(
                f"position_sets {self.position_sets.name!r} reads the clean text; choose a different order"
            )

    @override
    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the objective does not learn position sets."""
        objective = experiment.parts["objective"]
        if "position_sets" not in objective.uses:
            yield Problem(
                "sampler",
                f"{_NEEDS}, which objective {objective.name!r} does not; "
                'set objective.use = "set_causal", or choose a different sampler',
            )

    @override
    def sample(self, denoiser: Denoiser, tokens: Tensor, seeds: Tensor, *, observe: Observer | None = None) -> Sample:
        import numpy as np
        import torch

        from atat_zoo.diffusion.categorical import draw_by_weight, probabilities
        from atat_zoo.diffusion.positions import to_host
        from atat_zoo.diffusion.randomness import fold, stream

        if not denoiser.predicts_ahead:
            raise UserError(f"{_NEEDS}, with a backbone that caches keys and values; choose a different sampler")

        def found(begin: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
            """Return rows and positions, [N] each, of the steps begin … end − 1."""
            return ((order >= begin[:, None]) & (order < end[:, None])).nonzero()

        def on_device(*columns: NDArray[np.int64]) -> tuple[Tensor, ...]:
            """Return the columns on the device, in one copy."""
            return torch.from_numpy(np.concatenate(columns)).to(device, non_blocking=True).split([*map(len, columns)])

        z, mask_id, device = tokens.clone(), denoiser.mask_id, tokens.device
        steps = self.position_sets.step_indices(z == mask_id, fold(seeds, stream(0, "order")), torch.zeros_like)
        denoiser, position = denoiser.begin_generation(tokens), torch.arange(z.shape[1], device=device)
        of_draft, of_acceptance, of_token = (
            fold(fold(seeds, stream(0, purpose))[:, None], position) for purpose in ("draft", "accept", "draw")
        )
        # Indices are computed on the host with NumPy, whose overhead for small arrays is a fraction of torch's: the
        # step of each position, the last step of each row and its first one that is not final.
        order = to_host(steps).numpy()
        last, first, drafted = order.max(1), np.zeros(len(order), dtype=np.int64), 0
        nfe = np.zeros_like(first)
        # The distributions of the drafts, and the index of each position's own; 0 where nothing was ever drafted.
        q, number = torch.zeros(1, mask_id, dtype=torch.float64, device=device), np.zeros_like(order)
        with torch.no_grad():
            while (open_ := first <= last).any():
                nfe += open_
                among = open_.cumsum() - 1
                row, where = found(first, first + drafted + 1)
                step = order[row, where]
                columns = open_.nonzero()[0], first[open_], row, among[row], where, step, number[row, where]
                rows, begin, own, local, position, before, drawn = on_device(*columns)
                predict = denoiser.select(rows).predict_ahead(z[rows], steps[rows], begin, self.draft_length)
                # Verification of the drafts, and the step after them.
                p = probabilities(predict(z[rows], local, position, before), self.temperature)
                here = own, position
                accepted, new = verified(p, q[drawn], z[here], of_acceptance[here], of_token[here])
                stop, refused = last + 1, ~to_host(accepted).numpy()
                np.minimum.at(stop, row[refused], step[refused])
                # Tokens after the step `stop` are drafted again.
                z[here], first, drafted = new, stop + 1, self.draft_length
                if observe is not None:
                    kept = step <= stop[row]
                    filled = {"rows": row, "positions": where, "tokens": to_host(new).numpy()}
                    record = {"step": int(nfe.max()) - 1} | {name: each[kept].tolist() for name, each in filled.items()}
                    # Of several batches, it may name rows of another one.
                    gone = [each for each in observe(record) or () if 0 <= each < len(z)]
                    z[gone] = torch.where(z[gone] == mask_id, 0, z[gone])
                    first[gone] = last[gone] + 1
                # Drafts of the next steps, given the tokens of all steps before `stop`.
                each = [found(first + ahead, first + ahead + 1) for ahead in range(self.draft_length)]
                there = iter(on_device(*(of for row, where in each for of in (row, among[row], where, stop[row]))))
                new_q = [q[:1]]
                for (row, where), own, local, position, before in zip(each, there, there, there, there, strict=True):
                    new_q.append(probabilities(predict(z[rows], local, position, before), self.temperature))
                    number[row, where] = sum(map(len, new_q[:-1])) + np.arange(len(row))
                    z[own, position] = draw_by_weight(new_q[-1], of_draft[own, position])
                q = torch.cat(new_q)
        passes = torch.from_numpy(nfe).to(device, non_blocking=True)
        return Sample(tokens=z, nfe=passes, max_nfe=int(last.max()) + 1 if len(z) else 0)


def verified(p: Tensor, q: Tensor, drafts: Tensor, accept: Tensor, draw: Tensor) -> tuple[Tensor, Tensor]:
    """Return which drafts are accepted, bool [N], and the tokens, int64 [N]: the draft, or one drawn from (p − q)₊.

    Args:
        p: the distribution of the tokens, float64 [N, V].
        q: the distribution from which the draft was drawn, float64 [N, V]; 0 everywhere if there is no draft.
        drafts: int64 [N]; any number where there is no draft.
        accept: random-number keys that decide whether drafts are accepted, int64 [N].
        draw: random-number keys for other tokens, int64 [N].
    """
    import torch

    from atat_zoo.diffusion.categorical import draw_by_weight

    rest, draft = (p - q).clamp(min=0), drafts.clamp(max=p.shape[1] - 1)[:, None]
    own = q.gather(1, draft)[:, 0]  # positive if there is a draft
    # Where p and q differ by rounding errors only, nothing may be left to draw from.
    accepted = (own > 0) & (happens(p.gather(1, draft)[:, 0] / own, accept) | ~rest.any(1))
    return accepted, torch.where(accepted, drafts, draw_by_weight(rest, draw))


def happens(probability: Tensor, keys: Tensor) -> Tensor:
    """Return random events, bool [N], with probabilities, float64 [N]; above 1 they are certain."""
    import torch

    from atat_zoo.diffusion.randomness import to_unit

    return to_unit(keys, torch.float64) < probability
