"""The NLL of held-out text under a sampler, by teacher forcing of its decoding steps (docs/explanation/mathematics.md).

    −log p(x) ≤ E_{S~π} Σ_t Σ_{i∈S_t} −log p_θ(x_i | z_t)

if the choice of positions reads only z and its own random numbers; with equality if the choice is deterministic. The
bound holds for any number of tokens per step, so it evaluates parallel decoding without a judge model. n texts of L
tokens, K decoding orders per text.
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
    """The policy bound of n texts; with one order, `nats` are the sums of the contributions."""

    nats: Tensor  # −log of the mean probability over the orders, float64 [n]; ∞ for a text that it cannot write
    lower: Tensor  # the lower end of the bracket, float64 [n]; NaN unless the orders are random and even in number
    effective: Tensor  # the effective number of orders, float64 [n]; NaN likewise
    contribution: Tensor  # the price of each token, averaged over the orders, float64 [n, L]
    nfe: Tensor  # network evaluations, averaged over the orders, float64 [n]
    max_nfe: int  # the largest number that the sampler's settings allow

    @property
    def ends(self) -> Bracket:
        """The bracket of each text."""
        return Bracket(self.nats, self.lower, self.effective)


def policy_nats(
    denoiser: Denoiser, sampler: Sampler, tokens: Tensor, maskable: Tensor, seeds: Tensor, *, orders: int = 1
) -> PolicyNats:
    """Return the policy bound on −log p(maskable tokens | other tokens) under a sampler.

    Orders are averaged inside the logarithm, −log 1/K Σ_k exp(−nats_k), which is a bound in expectation for any K and
    tighter for larger K (Burda et al., arXiv:1509.00519). A deterministic sampler has one order. Tokens are int64 and
    maskable bool, both [n, L]; the sampler's seeds are int64 [n].
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
    """Return the policy bound under a text generator, including guidance and precision, batch by batch.

    The orders of text n are a function of (seed, n), so results of two samplers or two models are paired.
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
    """The lower limit of the NLL below a policy bound. Errors are standard errors over sequences."""

    nats_per_token: float  # of the lower end
    stderr: float  # of that
    value: float  # the exponential of nats per token
    width: float  # from it to the bound, nats per token
    width_stderr: float  # of that
    effective_orders: float  # of a sequence, on average


@attrs.frozen(kw_only=True)
class PolicyValue(RunResult):
    """The policy bound of a sampler on held-out text. Errors are standard errors over sequences."""

    quantity: str  # `policy likelihood` where the choices of positions are deterministic, otherwise `policy bound`
    sampler: dict[str, Any]  # the specification
    guidance: dict[str, Any]  # likewise; p_θ is the guided distribution
    corpus: str  # the source of the text; empty for the experiment's own
    split: str  # which held-out split
    step: int  # optimizer steps of the weights
    ema: bool  # whether they are EMA weights
    sequences: int  # their number
    orders: int  # K, averaged inside the logarithm
    seed: int  # of the orders
    tokens: int  # maskable tokens, special ones included
    nats_per_token: float  # Σ bound / Σ n; infinite if the sampler cannot write one of the texts
    nats_per_token_stderr: float  # of that
    nats_per_token_of_one_order: float  # the same with K = 1, averaged over the orders
    value: float  # the exponential of nats per token
    stderr: float  # of the value
    bits_per_byte: float  # in bits, over the UTF-8 bytes
    bits_per_byte_stderr: float  # of that
    nfe: float  # network evaluations per text, on average
    max_nfe: int  # the maximum that the settings allow
    bracket: BracketValue | None  # of an even number of random orders, unless its error is wider than it is

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
    """Return the policy bound of a measurement on a text, with the measurement's settings."""
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
    """Return the lower limit over sequences of n tokens, [n]; None if it was not measured, or is too uncertain.

    It is too uncertain if its standard error exceeds the bracket's width, or if it is below zero nats.
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
