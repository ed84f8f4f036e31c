"""Checks of samplers and their components (docs/explanation/mathematics.md), using a `Hashed` denoiser."""

import itertools
from collections.abc import Callable
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from atat_zoo.diffusion.decoding_step import Step
from atat_zoo.diffusion.randomness import fold, uniform
from atat_zoo.evaluation.policy import policy_nats
from atat_zoo.generation.samplers import Sample, Sampler
from atat_zoo.generation.samplers.composite import CompositeSampler
from atat_zoo.generation.samplers.order import Order
from atat_zoo.generation.samplers.published_samplers import AncestralSampler
from atat_zoo.generation.samplers.remasking import Remasking
from atat_zoo.generation.samplers.sampler_choices import SamplerChoices
from atat_zoo.generation.samplers.stopping_rule import StoppingRule
from atat_zoo.generation.samplers.teacher_forcing import TeacherForcing
from atat_zoo.generation.samplers.token_sampling import TokenSampling
from atat_zoo.generation.samplers.tokens_per_step import TokensPerStep
from atat_zoo.testing.batches import for_examples, is_tensor
from atat_zoo.testing.toys import Hashed, hashed_importance

# Every check draws the seed, the sharpness of the denoiser's distributions, and whether it has an importance.
_DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "seed": st.integers(-(2**63), 2**63 - 1),
    "sharpness": st.sampled_from([0.0, 3.0, 20.0]),
    "weighed": st.booleans(),
}


@attrs.frozen(kw_only=True)
class Assembled(CompositeSampler):
    """A sampler composed of components, which need not be registered."""

    name = "assembled"
    _parts: SamplerChoices

    def parts(self) -> SamplerChoices:
        """Return the given components."""
        return self._parts


def assemble(**parts: Any) -> Assembled:
    """Return a sampler with the given fields of `SamplerChoices`; all other fields are taken from `ancestral`."""
    return Assembled(parts=attrs.evolve(AncestralSampler(steps=6).parts(), **parts))


def noisy(rows: int, length: int, vocabulary_size: int, seed: int) -> Tensor:
    """Return z, int64 [B, L], in which the first row is fully masked, the second has no mask, and others have some."""
    keys = fold(torch.arange(rows), seed)
    tokens = (uniform(fold(keys, 1), length, torch.float64) * vocabulary_size).long()
    share = torch.tensor([1.0, 0.0, *[(i + 0.5) / max(rows - 2, 1) for i in range(rows)]])[:rows, None]
    return tokens.masked_fill(uniform(fold(keys, 2), length) < share, vocabulary_size)


def traced(sampler: Sampler, *arguments: Any, **options: Any) -> tuple[Sample, list[dict[str, Any]]]:
    """Return the result of `Sampler.sample` and the records that it passes to `observe`."""
    trace: list[dict[str, Any]] = []
    return sampler.sample(*arguments, observe=trace.append, **options), trace


def check_sampler(sampler: Sampler, examples: int = 20) -> None:
    """Check the contract of a sampler: unchanged prompts, no masks left, the NFE, seeds, and independent rows."""

    @for_examples(examples, rows=st.integers(0, 5), length=st.integers(1, 12), v=st.integers(1, 6), **_DRAWN)
    def holds(rows: int, length: int, v: int, seed: int, sharpness: float, weighed: bool) -> None:
        importance = hashed_importance if weighed else None
        z, seeds = noisy(rows, length, v, seed), fold(torch.arange(rows), seed)
        check_sample(sampler, lambda: Hashed(v, sharpness=sharpness, importance=importance), z, seeds)


def check_policy(sampler: Sampler, examples: int = 20) -> None:
    """Check the policy bound of a sampler; samplers without a policy bound pass.

    For a given seed, the choice of positions is a function of z, so the probabilities of all texts sum to 1. They do
    not if the choice reads more than z, or if the bound and sampling use different probabilities.
    """
    if sampler.no_policy_bound_because:
        return

    texts_of = {"free": st.lists(st.booleans(), min_size=1, max_size=4), "v": st.integers(1, 3)}

    @for_examples(examples, **texts_of, orders=st.integers(1, 2), **_DRAWN)
    def holds(free: list[bool], v: int, seed: int, sharpness: float, weighed: bool, orders: int) -> None:
        denoiser = Hashed(v, sharpness=sharpness, importance=hashed_importance if weighed else None)
        texts = torch.tensor(list(itertools.product(*(range(v) if may else [0] for may in free))))
        maskable = torch.tensor(free).expand(texts.shape)
        seeds = torch.full_like(texts[:, 0], seed)
        scored = policy_nats(denoiser, sampler, texts, maskable, seeds, orders=orders)
        total = scored.nats.neg().exp().sum()
        assert abs(float(total) - 1) < 1e-9, (
            "the probabilities of all texts must sum to 1; if the policy bound cannot cover this sampler, set "
            "no_policy_bound_because to the reason"
        )
        assert not bool(scored.contribution[~maskable].any()), "given tokens must not add to the policy bound"
        if sampler.deterministic:
            other = policy_nats(denoiser, sampler, texts, maskable, seeds + 1)
            assert torch.equal(other.nats, scored.nats), (
                "a deterministic choice of positions must not depend on the seed; remove deterministic = True"
            )


def check_sample(sampler: Sampler, make: Callable[[], Any], z: Tensor, seeds: Tensor, *, alone: bool = True) -> None:
    """Check the contract of samplers on a batch z, int64 [B, L], with seeds, int64 [B].

    `make` returns a new denoiser that counts the rows it has `evaluated`. Pass `alone=False` for a float32 network,
    whose sums depend on the batch; otherwise, each row must give the same text on its own as in the batch.
    """
    denoiser, kept = make(), z.clone()
    made, trace = traced(sampler, denoiser, z, seeds)
    v, masked = denoiser.mask_id, kept == denoiser.mask_id
    assert torch.equal(z, kept), "the sampler must not change the caller's tokens"
    assert torch.equal(made.tokens[~masked], kept[~masked]), "given tokens must not be changed"
    assert bool((made.tokens >= 0).all()), "tokens must not be negative"
    assert bool((made.tokens < v).all()), "the sampler must fill every mask with a token"
    assert torch.equal(made.nfe > 0, masked.any(1)), "nfe must be 0 for a row without masks, and above 0 otherwise"
    assert int(made.nfe.max() if len(z) else 0) <= made.max_nfe, (
        "the sampler must not make more forward passes than max_nfe"
    )
    assert denoiser.evaluated == int(made.nfe.sum()), "nfe must be the number of forward passes"
    assert torch.equal(_replayed(kept, trace, v), made.tokens), "replaying the records of `observe` must give the text"

    if not sampler.no_policy_bound_because:
        forced, steps = TeacherForcing(made.tokens), list[dict[str, Any]]()
        along = sampler.score_text(make(), z, seeds, forced, observe=steps.append)
        assert steps == trace, "score_text() must take the same decoding steps as sample()"
        assert torch.equal(along.nfe, made.nfe), "score_text() must have the same nfe as sample()"
        assert bool(forced.nats.isfinite().all()), (
            "the sampler must not sample a token to which it assigns probability 0"
        )

    again = sampler.sample(make(), z, seeds)
    assert torch.equal(again.tokens, made.tokens), "the same seed must give the same text"
    for row in range(len(z) if alone else 0):
        cut = slice(row, row + 1)
        single = sampler.sample(make(), z[cut], seeds[cut])
        assert torch.equal(single.tokens, made.tokens[cut]), (
            "the result for a row must not depend on the rest of the batch"
        )
        assert torch.equal(single.nfe, made.nfe[cut]), "the nfe of a row must not depend on the rest of the batch"
    if alone and sampler.accepts_padding:
        padded = sampler.sample(make().with_padding(), F.pad(z, (0, 5), value=v + 1), seeds)
        assert torch.equal(padded.tokens[:, : z.shape[1]], made.tokens), (
            "padding must not change a text; leave out accepts_padding if a component depends on the length"
        )
        assert torch.equal(padded.nfe, made.nfe), "padding must not change the nfe"


def _replayed(tokens: Tensor, trace: list[dict[str, Any]], mask_id: int) -> Tensor:
    tokens = tokens.clone()
    for record in trace:
        if "hidden" in record:
            tokens[record["hidden"]["rows"], record["hidden"]["positions"]] = mask_id
        else:
            assert bool((tokens[record["rows"], record["positions"]] == mask_id).all()), (
                "the sampler must fill only masked positions"
            )
            tokens[record["rows"], record["positions"]] = torch.tensor(record["tokens"], dtype=torch.int64)
    return tokens


def example_step(
    needs: frozenset[str], *, rows: int = 4, length: int = 9, vocabulary_size: int = 5, seed: int = 0
) -> Step:
    """Return a decoding step from the middle of sampling, with the fields in `needs`, for rows with open positions."""
    z = noisy(rows + 1, length, vocabulary_size, seed)[[0, *range(2, rows + 1)]]
    z[:, 0] = vocabulary_size
    keys, open_, denoiser = fold(torch.arange(rows), seed), z == vocabulary_size, Hashed(vocabulary_size)
    step = Step(
        number=2,
        final=False,
        batch=rows,
        rows=torch.arange(rows),
        tokens=z,
        open=open_,
        free=torch.ones_like(open_),
        total=torch.full((rows,), length),
        remaining=open_.sum(1),
        closed=torch.zeros(rows, dtype=torch.int64),
        max_steps=torch.full((rows,), 6),
        seeds=keys,
        host_seeds=keys,
        memory={},
        denoiser=denoiser,
        rates=(0.6, 0.4),
    )
    step.log_probs = denoiser(z, None, open_)
    if "importance" in needs:
        step.importance = hashed_importance(z.masked_fill(open_, 0), open_)
    if "order_weights" in needs:
        step.order_weights = denoiser.predict_with_order(z, None, open_)[1]
    if "drawn" in needs:
        step.drawn = step.log_probs.argmax(-1)
        step.drawn_log_probs = step.log_probs.amax(-1)
    if "history" in needs:
        step.history = torch.cat([torch.full((rows, 2), torch.nan).double(), uniform(keys, 3, torch.float64)], 1)
    if "confidence" in needs:
        step.confidence = torch.where(open_, 1.0, uniform(keys, length))
    return step


def check_order(order: Order, examples: int = 20) -> None:
    """Check the contract of a decoding order, and of a sampler that uses it."""
    step = example_step(order.needs)
    score = order(step)
    assert score.dtype.is_floating_point, "an order must return floating-point scores"
    is_tensor(score, "scores, one per position", score.dtype, step.open.shape)
    assert not bool(score[step.open].isnan().any()), "an order must not return NaN as a score"
    assert torch.equal(order(step), score), "an order must return the same scores for the same step"
    available = {"log_probs", "importance", "no_draft", "order_weights", "drawn", "history"}
    _holds_in_a_sampler(order.needs, available, examples, order=order)


def check_tokens_per_step(tokens_per_step: TokensPerStep, examples: int = 20) -> None:
    """Check the contract of `tokens_per_step`, and of a sampler that uses it."""
    most = [tokens_per_step.max_steps_for(n) for n in range(1, 200)]
    assert most[0] >= 1, "max_steps_for() must return at least 1"
    assert most == sorted(most), "max_steps_for() must not decrease as the length grows"
    rates = tokens_per_step.rates(0)
    assert rates is None or 0 <= rates[1] <= rates[0] <= 1, "rates must be in [0, 1] and must not rise"
    step = example_step(tokens_per_step.needs)
    step.ranking = step.open.double().sort(dim=1, descending=True, stable=True).indices
    step.rates = tokens_per_step.rates(step.number % most[0])
    if (taken := tokens_per_step.num_to_unmask(step)).dtype == torch.bool:
        is_tensor(taken, "positions to unmask", torch.bool, step.open.shape)
    else:
        is_tensor(taken, "number of tokens to unmask, one per row", torch.int64, step.rows.shape)
    number = (taken & step.open).sum(1) if taken.dtype == torch.bool else taken
    known = tokens_per_step.needs <= {"log_probs", "history"}
    assert not (tokens_per_step.needs and known) or bool((number >= 1).all()), (
        "with nonempty `needs`, num_to_unmask() must unmask at least one token per row; "
        "set needs = frozenset() if it reads none of their fields"
    )
    _holds_in_a_sampler(tokens_per_step.needs, {"log_probs", "history"}, examples, tokens_per_step=tokens_per_step)


def check_remasking(remasking: Remasking, examples: int = 20) -> None:
    """Check the contract of remasking, and of a sampler that uses it."""
    step = example_step(remasking.needs)
    step.fresh = torch.zeros_like(step.open)
    rate = torch.as_tensor(remasking.rate(step))
    assert bool(((rate >= 0) & (rate <= 1)).all()), "rate() must return a rate in [0, 1]"
    is_tensor(remasking(step), "positions to mask again", torch.bool, step.open.shape)
    _holds_in_a_sampler(remasking.needs, {"confidence", "rescored"}, examples, remasking=remasking)


def check_stopping_rule(stop: StoppingRule, examples: int = 20) -> None:
    """Check the contract of a stopping rule, and of a sampler that uses it."""
    step = example_step(stop.needs)
    stopped = stop(step)
    is_tensor(stopped, "finished rows", torch.bool, step.rows.shape)
    assert stop.active or not bool(stopped.any()), (
        "a stopping rule with active = False must not stop; set active = True"
    )
    _holds_in_a_sampler(stop.needs, {"log_probs", "history"}, examples, stopping_rule=stop)


def check_token_sampling(draw: TokenSampling, examples: int = 20) -> None:
    """Check the contract of `token_sampling`, a function of key and distribution, and of a sampler that uses it."""
    step = example_step(draw.needs)
    rows = step.open.nonzero()[:, 0]

    @for_examples(examples, v=st.integers(1, 40), seed=st.integers(0, 2**63 - 1))
    def holds(v: int, seed: int) -> None:
        keys = fold(torch.arange(len(rows)), seed)
        # Both ends of the uniform distribution as well.
        keys[:2] = torch.tensor([0, -1])
        logits = uniform(fold(keys, 1), v, torch.float64) * 30
        excluded = uniform(fold(keys, 2), v) < 0.5
        excluded[:, seed % v] = False
        log_probs = logits.masked_fill(excluded, -torch.inf).log_softmax(-1)
        drawn = draw(log_probs, keys, step, rows)
        is_tensor(drawn, "one token per distribution", torch.int64, keys.shape)
        assert not bool(excluded.gather(1, drawn[:, None]).any()), "a token with probability 0 must not be sampled"
        assert torch.equal(draw(log_probs[1:], keys[1:], step, rows[1:]), drawn[1:]), (
            "a sampled token must not depend on the rest of the batch"
        )
        _holds_frequencies(draw, log_probs[0], step, seed)

    _holds_in_a_sampler(draw.needs, {"history"}, examples, token_sampling=draw)


def _holds_frequencies(draw: TokenSampling, log_probs: Tensor, step: Step, seed: int) -> None:
    """Check that counts of sampled tokens match `log_prob` for a distribution [V] within six standard errors plus 6."""
    V, number = len(log_probs), torch.arange(512)
    counts = draw(log_probs.expand(512, V), fold(number, seed), step, 0 * number).bincount(minlength=V)
    said = draw.log_prob(number[:V], log_probs.expand(V, V), step, 0 * number[:V]).exp()
    assert abs(float(said.sum()) - 1) < 1e-9, "the probabilities of log_prob() must sum to 1"
    spread = (512 * said * (1 - said)).clamp(min=0).sqrt()
    assert bool(((counts - 512 * said).abs() <= 6 * spread + 6).all()), (
        "sampled tokens must follow the distribution of log_prob()"
    )


def _holds_in_a_sampler(needs: frozenset[str], available: set[str], examples: int, **part: Any) -> None:
    """Check that `needs` contains only fields that a step provides for this kind, and the contract of a sampler."""
    assert needs <= available, f"`needs` has fields that this kind does not get: {', '.join(sorted(needs - available))}"
    check_sampler(assemble(**part), examples)
    check_policy(assemble(**part), examples)
