"""The NLL of held-out text under a sampler, by teacher forcing of its decoding steps (docs/explanation/mathematics.md).

    −log p(x) ≤ E_{S~π} Σ_t Σ_{i∈S_t} −log p_θ(x_i | z_t)

In step t, the sampler π chooses the positions S_t to unmask in the masked text z_t. This policy bound holds if the
choice reads only z_t and its own random numbers, with equality if it is deterministic. Steps may unmask several tokens,
so it evaluates parallel decoding without a judge model. There are n texts of L tokens, and K decoding orders per text.
"""

import math
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor
from typing_extensions import override

from atat_zoo.diffusion.bracket import Bracket, bracket
from atat_zoo.diffusion.contracts import Denoiser
from atat_zoo.diffusion.randomness import fold, sequence_keys
from atat_zoo.diffusion.statistics import ratio
from atat_zoo.evaluation import Progress, batches
from atat_zoo.evaluation.held_out_text import Text, byte_counts
from atat_zoo.evaluation.likelihood import bound_value
from atat_zoo.evaluation.results.quantity_names import POLICY, POLICY_BOUND, POLICY_LIKELIHOOD, exponential
from atat_zoo.evaluation.results.store import RunResult
from atat_zoo.generation.guidance import Guidance
from atat_zoo.generation.model import Model
from atat_zoo.generation.samplers import Sampler
from atat_zoo.generation.samplers.teacher_forcing import TeacherForcing
from atat_zoo.generation.text_generator import TextGenerator
from atat_zoo.registry.spec import unstructure


@attrs.frozen(kw_only=True, eq=False)
class PolicyNats:
    """The policy bound of n texts. With one order, `nats` are the sums of the contributions."""

    nats: Tensor  # −log of the mean probability over the orders, float64 [n]; ∞ if the sampler cannot generate the text
    lower: Tensor  # the lower end of the bracket, float64 [n]; NaN unless the number of random orders is even
    effective: Tensor  # the effective number of orders, float64 [n]; NaN as for `lower`
    contribution: Tensor  # the NLL of each token, averaged over the orders, float64 [n, L]
    nfe: Tensor  # network evaluations, averaged over the orders, float64 [n]
    max_nfe: int  # the largest NFE that the sampler's settings allow

    @property
    def ends(self) -> Bracket:
        """The upper bound, the lower bound and the effective number of orders of each text."""
        return Bracket(self.nats, self.lower, self.effective)


def policy_nats(
    denoiser: Denoiser, sampler: Sampler, tokens: Tensor, maskable: Tensor, seeds: Tensor, *, orders: int = 1
) -> PolicyNats:
    """Return the policy bound on −log p(maskable tokens | other tokens) under a sampler.

    Orders are averaged inside the logarithm, −log 1/K Σ_k exp(−nats_k), which is a bound in expectation for any K and
    tighter for larger K (Burda et al., arXiv:1509.00519); K is 1 for a deterministic sampler. `tokens` is int64 [n, L],
    `maskable` is bool [n, L], and `seeds` are int64 [n]. Raises `UserError` for a sampler without a policy bound.
    """
    orders = 1 if sampler.deterministic else orders
    z = torch.where(maskable, denoiser.mask_id, tokens)
    contribution = torch.zeros(tokens.shape, dtype=torch.float64, device=tokens.device)
    nats, nfe, most = [], contribution.new_zeros(len(tokens)), 0
    for k in range(orders):
        forced = TeacherForcing(tokens)
        scored = sampler.score_text(denoiser, z, fold(seeds, k), forced)
        nats.append(forced.nats.sum(1))
        contribution += forced.nats / orders
        nfe, most = nfe + scored.nfe.double() / orders, max(most, scored.max_nfe)
    each, none = torch.stack(nats, 1), torch.full_like(nats[0], torch.nan)
    ends = Bracket(math.log(orders) - (-each).logsumexp(1), none, none) if orders % 2 else bracket(each)
    return PolicyNats(
        nats=ends.upper, lower=ends.lower, effective=ends.effective, contribution=contribution, nfe=nfe, max_nfe=most
    )


def measure_policy(
    text_generator: TextGenerator,
    sampler: Sampler,
    tokens: Tensor,
    maskable: Tensor,
    *,
    seed: int,
    orders: int = 1,
    batch_size: int = 64,
    progress: Progress = None,
) -> PolicyNats:
    """Return the policy bound of a sampler with the guidance and precision of a text generator; see `policy_nats`.

    The orders of text i are a function of (seed, i), so the results of two samplers or two models are paired.
    """
    seeds = sequence_keys(seed, "policy", torch.arange(len(tokens)))
    parts = []
    with text_generator.autocast():
        for some in batches(len(tokens), batch_size, progress):
            batch = (each[some].to(text_generator.device) for each in (tokens, maskable, seeds))
            parts.append(policy_nats(text_generator.denoiser, sampler, *batch, orders=orders))
    return PolicyNats(
        nats=torch.cat([part.nats for part in parts]).cpu(),
        lower=torch.cat([part.lower for part in parts]).cpu(),
        effective=torch.cat([part.effective for part in parts]).cpu(),
        contribution=torch.cat([part.contribution for part in parts]).cpu(),
        nfe=torch.cat([part.nfe for part in parts]).cpu() * text_generator.cost,
        max_nfe=max(part.max_nfe for part in parts) * text_generator.cost,
    )


@attrs.frozen(kw_only=True)
class BracketValue:
    """The lower limit of the NLL whose upper limit is a policy bound. Errors are standard errors over sequences."""

    nats_per_token: float  # of the lower limit

    stderr: float  # of nats_per_token
    value: float  # the exponential of nats_per_token
    width: float  # the bound minus the lower limit, in nats per token
    width_stderr: float  # of the width
    effective_orders: float  # per sequence, on average


@attrs.frozen(kw_only=True)
class PolicyValue(RunResult):
    """The policy bound of a sampler on held-out text. Errors are standard errors over sequences."""

    quantity: str  # `policy likelihood` if the choices of positions are deterministic, otherwise `policy bound`
    sampler: dict[str, Any]  # the sampler's parameters
    guidance: dict[str, Any]  # the guidance's parameters; p_θ is the guided distribution
    corpus: str  # the source of the text; empty for the experiment's own
    split: str  # name of the held-out split

    step: int  # optimizer steps of the weights
    ema: bool  # whether the weights are EMA weights
    sequences: int  # number of sequences
    orders: int  # K, the number of orders averaged inside the logarithm
    seed: int  # of the orders
    tokens: int  # number of maskable tokens, including special tokens
    nats_per_token: float  # Σ bound / Σ tokens; infinite if the sampler cannot generate one of the texts
    nats_per_token_stderr: float  # of nats_per_token
    nats_per_token_of_one_order: float  # nats per token with K = 1, averaged over the orders
    value: float  # the exponential of nats_per_token
    stderr: float  # of the value
    bits_per_byte: float  # Σ bound in bits, divided by the number of UTF-8 bytes
    bits_per_byte_stderr: float  # of bits_per_byte
    nfe: float  # network evaluations per text, on average
    max_nfe: int  # the maximum NFE that the sampler's settings allow
    bracket: BracketValue | None  # for an even number of random orders; None if too uncertain (see `bracket_value`)

    @property
    @override
    def key(self) -> str:
        what = "-".join(word for word in (POLICY, self.corpus, self.split, str(self.sampler["use"])) if word)
        return f"{what}-{self.sequences}x{self.orders}"

    @property
    @override
    def settings(self) -> tuple[Any, ...]:
        return self.sampler, self.guidance


def policy_value(
    model: Model, measured: PolicyNats, text: Text, sampler: Sampler, guidance: Guidance, *, seed: int, orders: int
) -> PolicyValue:
    """Return the policy bound per token of a text, given `measured`, and the settings with which it was computed."""
    n = text.counted.sum(1)
    bound = bound_value(measured.nats, n, byte_counts(model.tokenizer, text.tokens, text.maskable))
    return PolicyValue(
        quantity=POLICY_LIKELIHOOD if sampler.deterministic else POLICY_BOUND,
        sampler=unstructure(sampler),
        guidance=unstructure(guidance),
        corpus=text.corpus,
        split=text.split,
        step=model.step,
        ema=model.experiment.train.ema_decay > 0,
        sequences=len(n),
        orders=1 if sampler.deterministic else orders,
        seed=seed,
        tokens=int(n.sum()),
        nats_per_token_stderr=bound.stderr / bound.value,
        nats_per_token_of_one_order=float(measured.contribution.sum() / n.sum()),
        nfe=float(measured.nfe.mean()),
        max_nfe=measured.max_nfe,
        bracket=bracket_value(measured.ends, n),
        **attrs.asdict(bound, filter=lambda field, _: field.name != "factorisation"),
    )


def bracket_value(measured: Bracket, n: Tensor) -> BracketValue | None:
    """Return the lower limit of the NLL, given the tokens `n` of each text, or None if it is unknown or too uncertain.

    It is too uncertain if it is below zero nats, or if the bracket's width is smaller than the width's standard error.
    """
    (lower, error), (width, width_error) = ratio(measured.lower, n), ratio(measured.upper - measured.lower, n)
    if not (lower >= 0 and width_error <= width < math.inf):  # NaN where there is no bracket, or one text only
        return None
    return BracketValue(
        nats_per_token=lower,
        stderr=error,
        value=exponential(lower),
        width=width,
        width_stderr=width_error,
        effective_orders=float(measured.effective.mean()),
    )


def policy_of_run(
    model: Model,
    run: str | Path,
    text: Text,
    sampler: Sampler,
    guidance: Guidance,
    *,
    seed: int,
    orders: int = 1,
    batch_size: int = 64,
    progress: Progress = None,
) -> PolicyValue:
    """Return the policy bound of a sampler on a text, computed in float32, and save it in the run folder.

    `model` comes from `Model.from_run(run)` and `text` from `text_of`.
    """
    text_generator, x = guidance.guide(model.text_generator("fp32")), (text.tokens, text.maskable)
    measured = measure_policy(
        text_generator, sampler, *x, seed=seed, orders=orders, batch_size=batch_size, progress=progress
    )
    value = policy_value(model, measured, text, sampler, guidance, seed=seed, orders=orders)
    value.record(run)
    return value
