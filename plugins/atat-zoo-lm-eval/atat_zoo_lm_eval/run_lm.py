"""The harness's model `atat_zoo`, which evaluates a run. Shapes: R rows, L tokens per row, n per continuation."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from tqdm import tqdm

from atat_zoo import Model, Zoo
from atat_zoo.diffusion.likelihood_bounds import all_masks, average
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.evaluation.results.quantity_names import NELBO, PERPLEXITY
from atat_zoo.experiment.experiment_file import conflicts_with
from atat_zoo.generation.layout import SpaceAwareTokenizer, frame_tokens
from atat_zoo.generation.samplers.composite import CompositeSampler, TemperedSampler
from atat_zoo.generation.samplers.published_samplers import CombinationSampler
from atat_zoo.generation.samplers.token_sampling import CategoricalTokenSampling
from atat_zoo.modeling.bounds import ExactKBound
from atat_zoo.system.errors import UserError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from lm_eval.api.instance import Instance
    from torch import Tensor

    from atat_zoo.diffusion.likelihood_bounds import WeightedMask
    from atat_zoo.generation.samplers import Sampler

    Pair = tuple[list[int], list[int]]  # a context and a continuation

log = logging.getLogger(__name__)


@register_model("atat_zoo")
class RunLM(LM):
    """A model of the lm-evaluation-harness that computes log-likelihoods with a run's bound and samples texts.

    A row is a sequence of BOS, context, continuation and EOS, without BOS or EOS if the run's data have none. Only the
    continuation is scored, so the bound is an upper bound on −log p(continuation | context, length of the row). It
    is exact for a continuation of one token and for an objective with an exact likelihood. If a continuation has at
    most `mask_samples` possible masks, all of them are used instead of a sample.

    Masks and texts depend only on the seed and the request. Choices of equal length for a question share masks, because
    they share its context. Other requests and the batch size affect only the network's rounding.
    """

    # Notes on the numbers of all models created so far, which the command line prints at the end.
    notes: ClassVar[dict[str, None]] = {}

    def __init__(
        self,
        run: str | Path | Model = "",
        *,
        sampler: str | Mapping[str, Any] | None = None,
        mask_samples: int = 32,
        seed: int = 0,
        after: int = 0,
        step: int | None = None,
        max_gen_toks: int | None = None,
        device: str = "auto",
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        **unknown: Any,
    ) -> None:
        """Load a run; raise a `UserError` for an invalid argument.

        Args:
            run: run folder or loaded model.
            sampler: name or table of a sampler; None selects the run's own sampler.
            mask_samples: maximum number of masks per continuation.
            seed: seed of masks and texts.
            after: number of masks after the continuation that are not scored and stand for the rest of the text.
            step: training step of the checkpoint; None selects the final model.
            max_gen_toks: length in tokens of a generated text if the task does not set it; None means half of what
                fits into a row.
            device: `auto`, `cpu`, `gpu`, or the name of a torch device. The harness's default, `cuda:0`, means the CPU
                if there is no GPU.
            batch_size: number of requests per batch.
            max_batch_size: ignored; the harness passes it to every model.
            unknown: any other argument, which raises a `UserError`.
        """
        super().__init__()
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise UserError(
                "WORLD_SIZE is above 1, but only one process can evaluate a run; start the command without torchrun or "
                "accelerate"
            )
        for name in unknown:
            known = ("run", "sampler", "mask_samples", "seed", "after", "step", "max_gen_toks", "device", "batch_size")
            raise UserError(f"model_args: unknown argument {name!r}{nearest(name, known)} (known: {', '.join(known)})")
        if not run:
            raise UserError("model_args: run is missing; pass a run folder, as in --model_args run=runs/mine")
        self.mask_samples, self.seed = _whole("mask_samples", mask_samples, 1), _whole("seed", seed, 0)
        self.batch_size, after = _whole("batch_size", batch_size, 1), _whole("after", after, 0)
        if device == "cuda:0" and not torch.cuda.is_available():
            device = "auto"
        self.model = run if isinstance(run, Model) else Model.from_run(run, device, step)
        self.module: Any = self.model.module
        self.text_generator = self.model.text_generator("fp32")
        self.mask_id, self.words = self.model.context.mask_id, SpaceAwareTokenizer(self.model.tokenizer)
        experiment, denoiser = self.model.experiment, self.text_generator.denoiser
        objective = experiment.parts["objective"]
        self.sampler: Sampler = experiment.parts["sampler"] if sampler is None else Zoo.load().spec("sampler", sampler)
        for problem in conflicts_with(experiment, {"sampler": self.sampler}):
            raise UserError(problem)
        self.greedy = greedy(self.sampler)
        self.first, self.last = frame_tokens(self.model.tokenizer, experiment.data.special_tokens)
        self.after, self.block, self.exact = after, denoiser.block_size, objective.exact
        self.room = self.model.context.length - len(self.first) - len(self.last) - after
        if self.room < 2:
            raise UserError(
                f"after = {after} leaves fewer than 2 of the model's {self.model.context.length} tokens for context "
                "and continuation; reduce after"
            )
        self.max_gen_toks = self.room // 2 if max_gen_toks is None else _whole("max_gen_toks", max_gen_toks, 1)
        if self.max_gen_toks > self.room:
            raise UserError(
                f"model_args: max_gen_toks = {max_gen_toks} is more than the {self.room} tokens that fit; reduce it"
            )
        self.title, self.note = "atat_zoo" if isinstance(run, Model) else f"atat_zoo, {run}", ""
        self._say(
            "log-likelihoods are exact"
            if objective.exact
            else f"log-likelihoods are lower bounds, estimated with up to {self.mask_samples} masks (seed {self.seed})"
            f", and exact for continuations of one token; {PERPLEXITY} here is exp of an upper bound on the NLL"
        )

    def _say(self, sentence: str) -> None:
        """Log a note about the numbers; the command line also prints it below its table."""
        self.note = "; ".join(filter(None, (self.note, sentence)))
        RunLM.notes[f"{self.title}: {sentence}"] = None
        log.warning("%s: %s", self.title, sentence)

    def get_model_info(self) -> dict[str, Any]:
        """Return a dict with the notes on the numbers, the step and `after`, which the harness adds to its results."""
        return {"atat_zoo": {"note": self.note, "step": self.model.step, "after": self.after}}

    @property
    def tokenizer_name(self) -> str:
        """Always raises a `UserError`: the harness reads this name for chat templates, which are not supported here."""
        raise UserError("atat_zoo_lm_eval does not support chat templates; leave out --apply_chat_template")

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return, for each continuation, minus the bound on its NLL in nats, and whether greedy decoding generates it.

        A context that is too long is truncated from the left; a continuation that is too long raises a `UserError`.
        """
        pairs = self._fitting(self._pair(*request.args) for request in requests)
        nats = self._nats(pairs, [context for context, _ in pairs], disable_tqdm)
        hidden = [(context, [self.mask_id] * len(continuation)) for context, continuation in pairs]
        written = self._filled(hidden, [context for context, _ in pairs], self.greedy, disable_tqdm)
        return [(-n, ids == pair[1]) for n, ids, pair in zip(nats, written, pairs, strict=True)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return, for each text, minus the sum of the bounds on the NLL of its pieces, in nats.

        The text is split into pieces that each fill a row; the last piece may be shorter, and context fills its row.
        """
        pieces, owner, changed = [], [], 0
        for i, request in enumerate(requests):
            ids = self.model.tokenizer.encode(request.args[0])
            changed += self.model.tokenizer.decode(ids) != request.args[0]
            for start in range(0, len(ids), self.room):
                end = min(start + self.room, len(ids))
                pieces.append((ids[max(0, end - self.room) : start], ids[start:end]))
                owner.append(i)
        if changed:
            self._say(
                f"the tokenizer does not reproduce {changed} of {len(requests)} texts: what it drops, such as case or "
                "unknown words, is not scored, but counts as words and bytes in the scores per word and per byte"
            )
        total = [0.0] * len(requests)
        found = self._nats(pieces, [[*context, *piece] for context, piece in pieces], disable_tqdm)
        for i, nats in zip(owner, found, strict=True):
            total[i] -= nats
        return total

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return, for each (context, settings), the text that the sampler generates after the context.

        As many positions as the task's `max_gen_toks` are masked, and the text ends before EOS and before the first
        string in `until`. Decoding is greedy unless the task sets `do_sample`, in which case the sampler draws the
        tokens and repeated requests give different texts.

        Raises:
            UserError: if a setting is invalid or `max_gen_toks` is too large.
        """
        made, eos = [""] * len(requests), self.model.tokenizer.eos
        settings = [_settings(request.args[1], self.max_gen_toks) for request in requests]
        # The harness repeats a request as the same object; a negative number, which is no token, tells them apart.
        turns: Counter[int] = Counter()
        named = []
        for request in requests:
            turn, turns[id(request)] = turns[id(request)], turns[id(request)] + 1
            named.append([*self.model.tokenizer.encode(request.args[0]), *([-turn] if turn else [])])
        pairs = self._fitting(
            (self.model.tokenizer.encode(request.args[0]), [self.mask_id] * each["max_gen_toks"])
            for request, each in zip(requests, settings, strict=True)
        )
        for drawn, sampler in ((False, self.greedy), (True, self.sampler)):
            some = [i for i, each in enumerate(settings) if each["do_sample"] == drawn]
            written = self._filled([pairs[i] for i in some], [named[i] for i in some], sampler, disable_tqdm)
            for i, ids in zip(some, written, strict=True):
                text = self.words.text_of(ids[: ids.index(eos)] if eos in ids else ids)
                made[i] = postprocess_generated_text(text, settings[i]["until"], None)
        return made

    def _pair(self, context: str, continuation: str) -> Pair:
        """Return the tokens of context and continuation, split before the first token that contains continuation text.

        Spaces between the two belong to the continuation, as elsewhere in the harness. So does a token that contains
        text from both, because the row is the tokenization of the whole text.
        """
        encode = self.model.tokenizer.encode
        before, whole = encode(context.rstrip()), encode(context + continuation)
        same = (i for i, (one, other) in enumerate(zip(before, whole, strict=False)) if one != other)
        start = next(same, min(len(before), len(whole)))
        if continuation and start == len(whole):  # the continuation does not get a token of its own
            start = max(0, start - 1)
        return whole[:start], whole[start:]

    def _fitting(self, pairs: Iterable[Pair]) -> list[Pair]:
        """Return pairs that fit into a row, after truncating contexts from the left."""
        fitting, cut = [], 0
        for context, continuation in pairs:
            if len(continuation) > self.room:
                raise UserError(
                    f"a request has {len(continuation)} tokens after its context, more than the {self.room} that fit; "
                    "leave the task out, or, if it generates text, reduce max_gen_toks with --gen_kwargs"
                )
            over = max(0, len(context) + len(continuation) - self.room)
            fitting.append((context[over:], continuation))
            cut += over > 0
        if cut:
            log.warning(
                "truncated %s of %s contexts from the left, because they are too long for the model", cut, len(fitting)
            )
        return fitting

    def _rows(self, pairs: Sequence[Pair], quiet: bool) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Yield batches of one shape: pair indices, rows, int64 [R, L], and continuation masks, bool [R, L].

        Pairs without a continuation are skipped.
        """
        shapes = defaultdict(list)
        for i, (context, continuation) in enumerate(pairs):
            if continuation:
                shapes[len(context), len(continuation)].append(i)
        with tqdm(total=sum(map(len, shapes.values())), disable=quiet) as bar:
            for (start, n), members in shapes.items():
                start += len(self.first)
                masks = self.after + -(start + n + self.after + len(self.last)) % (self.block or 1)
                end = [self.mask_id] * masks + self.last
                for first in range(0, len(members), self.batch_size):
                    some = members[first : first + self.batch_size]
                    rows = [[*self.first, *pairs[i][0], *pairs[i][1], *end] for i in some]
                    x = torch.tensor(rows, device=self.model.context.device)
                    scored = torch.zeros_like(x, dtype=torch.bool)
                    scored[:, start : start + n] = True
                    yield some, x, scored
                    bar.update(len(some))

    @torch.no_grad()
    def _nats(self, pairs: Sequence[Pair], named: Sequence[list[int]], quiet: bool) -> list[float]:
        """Return the bound on −log p(continuation | context) in nats for each pair; `named` determines the masks."""

        def at_masked(z: Tensor, _: Tensor | None, masked: Tensor, x: Tensor) -> dict[str, Tensor]:
            # The time follows from the fraction of masks in the whole row, as it does in sampling.
            return {NELBO: self.module.cross_entropy(z, None, masked, x)}

        found = [0.0] * len(pairs)
        for some, x, scored in self._rows(pairs, quiet):
            masks = self._masks(scored, self._keys([named[i] for i in some]))
            nats = average(at_masked, x, masks, self.mask_id)[NELBO].nelbo
            for i, value in zip(some, nats.tolist(), strict=True):
                found[i] = value
        return found

    def _masks(self, scored: Tensor, keys: Tensor) -> Iterable[WeightedMask]:
        """Return masks, bool [R, L], over the n tokens of each continuation; if few masks exist, return all of them."""
        n = int(scored[0].sum())
        if self.exact or self.block is not None or 2**n - 1 > self.mask_samples:
            return self.module.masks(scored, keys, self.mask_samples, ExactKBound())
        return [
            attrs.evolve(mask, masked=torch.zeros_like(scored).masked_scatter(scored, mask.masked))
            for mask in all_masks(torch.zeros(len(scored), n, dtype=torch.int64, device=scored.device))
        ]

    def _filled(
        self, pairs: Sequence[Pair], named: Sequence[list[int]], sampler: Sampler, quiet: bool
    ) -> list[list[int]]:
        """Return the tokens that a sampler generates for masked continuations; `named` determines the draws."""
        written: list[list[int]] = [[] for _ in pairs]
        for some, x, scored in self._rows(pairs, quiet):
            rows = self._keys([named[i] for i in some])
            tokens = self.text_generator.fill(sampler, x, rows=rows, seed=self.seed, batch_size=len(some)).tokens
            for i, ids in zip(some, tokens[scored].view(len(some), -1).tolist(), strict=True):
                written[i] = ids
        return written

    def _keys(self, named: Sequence[list[int]]) -> Tensor:
        """Return a key for each list of tokens, int64 [R]."""
        digests = [hashlib.sha256(repr(ids).encode()).digest() for ids in named]
        numbers = [int.from_bytes(digest[:8], "little", signed=True) for digest in digests]
        return sequence_keys(self.seed, "lm_eval", torch.tensor(numbers, device=self.model.context.device))


def greedy(sampler: Sampler) -> Sampler:
    """Return a copy of the sampler that always takes the most probable token.

    Raises:
        UserError: if the sampler does not support greedy token sampling.
    """
    given: Any = sampler  # different samplers have different fields
    made: Sampler
    draw = CategoricalTokenSampling(temperature=0.0)
    if isinstance(sampler, TemperedSampler):
        made = attrs.evolve(given, temperature=0.0)
    elif hasattr(sampler, "block_sampler"):
        made = attrs.evolve(given, block_sampler=greedy(given.block_sampler))
    elif isinstance(sampler, CompositeSampler):
        made = CombinationSampler(**{**attrs.asdict(sampler.parts(), recurse=False), "token_sampling": draw})
    elif hasattr(sampler, "token_sampling"):
        made = attrs.evolve(given, token_sampling=draw)
    else:
        raise UserError(f"sampler {sampler.name!r} does not support greedy token sampling; choose another sampler")
    return made


def _whole(name: str, value: Any, least: int, where: str = "model_args") -> int:
    """Return an argument as an integer; the harness passes some arguments as strings."""
    if not str(value).isdecimal() or int(value) < least:
        raise UserError(f"{where}: {name} = {value!r} is not an integer of at least {least}; correct the value")
    return int(value)


def _settings(given: Mapping[str, Any], max_gen_toks: int) -> dict[str, Any]:
    """Return a task's generation settings `max_gen_toks`, `do_sample` and `until`, which may be empty.

    Raises:
        UserError: if a setting is invalid.
    """
    try:
        made: dict[str, Any] = dict(normalize_gen_kwargs(dict(given), max_gen_toks))
    except (ValueError, TypeError) as error:
        raise UserError(f"gen_kwargs: {error}; correct the task, or override the setting with --gen_kwargs") from None
    made["max_gen_toks"] = _whole("max_gen_toks", made["max_gen_toks"], 1, "gen_kwargs")
    if not isinstance(made["do_sample"], bool):
        raise UserError(f"gen_kwargs: do_sample = {made['do_sample']!r} is not a boolean; use true or false")
    made["until"] = [stop for stop in made["until"] or () if stop]
    return made
