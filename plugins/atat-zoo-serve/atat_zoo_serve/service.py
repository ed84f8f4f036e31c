"""Service for a model: checks requests against limits, and plans each one with a sampler and tokenized texts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from atat_zoo.diffusion.precision import Precision
from atat_zoo.experiment import Experiment, conflicts_with
from atat_zoo.generation.layout import Gap, Layout, Template, prompt_ids, refuse_gaps
from atat_zoo.generation.model import Model
from atat_zoo.generation.samplers import Sampler
from atat_zoo.generation.samplers.composite import CompositeSampler
from atat_zoo.generation.samplers.published_samplers import CombinationSampler
from atat_zoo.generation.samplers.sampler_choices import SamplerChoices
from atat_zoo.generation.samplers.semi_autoregressive import SemiAutoregressiveSampler
from atat_zoo.generation.samplers.token_sampling import CategoricalTokenSampling, NucleusTokenSampling
from atat_zoo.generation.text_generator import TextGenerator, draw_lengths, length_posterior, row_numbers
from atat_zoo.registry import Zoo
from atat_zoo.registry.spec import fields_of, unstructure
from atat_zoo.system.errors import UserError
from atat_zoo_serve import Limits
from atat_zoo_serve.batching import Job, WantedText, Worker
from atat_zoo_serve.request_fields import ChatRequest, CompletionRequest, InfillRequest, TextRequest

# A sampler in a request may take at most _STEPS + _EACH · (masked tokens) steps, because every step takes time.
_STEPS, _EACH = 1000, 16


class TooLargeError(UserError):
    """Error for a request that exceeds a limit of the server."""


@attrs.frozen(kw_only=True, eq=False)
class Plan:
    """Plan for a request: generate `number` texts for each layout with a sampler."""

    layouts: Sequence[Layout]
    number: int
    sampler: Sampler
    seed: int
    end: int | None = None  # the token that ends the generated text

    @property
    def weighs(self) -> bool:
        """Whether the model chooses the length of any gap."""
        return any(len(layout.choices) > 1 for layout in self.layouts)

    @property
    def given(self) -> int:
        """Number of given tokens in all layouts."""
        return sum(len(piece) for layout in self.layouts for piece in layout.pieces)


@attrs.frozen(kw_only=True, eq=False)
class Service:
    """Service for a named model, which plans requests and prepares their texts.

    `text_generator` generates texts, and `weigher`, the same without guidance, scores gap lengths. `key` is the API
    key. `here` is set if only this machine may send requests. `cors` contains the origins of web pages that may do so.
    """

    name: str
    about: dict[str, Any]  # JSON
    experiment: Experiment
    text_generator: TextGenerator
    weigher: TextGenerator
    worker: Worker
    limits: Limits
    key: str | None = None
    here: bool = True
    cors: tuple[str, ...] = ()

    @classmethod
    def of_model(
        cls,
        name: str,
        model: Model,
        *,
        limits: Limits | None = None,
        precision: Precision = "fp32",
        compile: bool = False,
        key: str | None = None,
        here: bool = True,
        cors: tuple[str, ...] = (),
    ) -> Service:
        """Return a service for a model, with the sampler and guidance from its experiment.

        With `compile`, compile the network first. Below fp32, rounding can make a text depend on its batch.
        """
        limits, parts = limits or Limits(), model.experiment.parts
        weigher = model.text_generator(precision, compile)
        text_generator = parts["guidance"].guide(weigher)
        for number in (1, 2) if compile else ():  # compile before the first request: for one text, then for any number
            text_generator.write(parts["sampler"], number=number)
        about = {
            **{"id": name, "object": "model", "created": int(time.time()), "owned_by": "atat_zoo"},
            **{"step": model.step, "length": text_generator.length, "objective": parts["objective"].name},
            **{kind: unstructure(parts[kind]) for kind in ("sampler", "guidance")},
            "mixed_lengths": text_generator.accepts_padding(parts["sampler"]),
            "limits": attrs.asdict(limits),
        }
        return cls(
            name=name,
            about=about,
            experiment=model.experiment,
            text_generator=text_generator,
            weigher=weigher,
            worker=Worker(text_generator, batch_size=limits.batch_size, waiting=limits.waiting),
            limits=limits,
            key=key,
            here=here,
            cors=cors,
        )

    def completion(self, request: CompletionRequest) -> Plan:
        """Return a plan for texts with a gap between prompt and suffix, or raise a `UserError` if there can be none."""
        texts = [(prompt, request.suffix or "") for prompt in request.prompt or [""]]
        for where, text in (("suffix", request.suffix or ""), *(("prompt", prompt) for prompt, _ in texts)):
            refuse_gaps(text, where, "send a text with gaps to /v1/infill")
        number, end = request.max_tokens, self.text_generator.end(windows=bool(request.windows))
        return self._plan(request, len(texts), lambda how: [self._around(how, each, number) for each in texts], end)

    def chat(self, request: ChatRequest) -> Plan:
        """Return a plan for a reply to an untrusted client's dialogue, or raise a `UserError` if there can be none."""
        tokenizer = self.text_generator.tokenizer
        if self.text_generator.form == "text" and tokenizer.template is None:
            said = "messages: this model has not been trained on dialogues"
            raise UserError(f'{said}; use /v1/completions, or serve a run that was trained with data.format = "chat"')
        before = prompt_ids(tokenizer, request.messages, where="messages")
        number = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
        end = self.text_generator.end(chat=True)
        return self._plan(request, 1, lambda how: [self._around(how, ("", ""), number, before)], end)

    def infill(self, request: InfillRequest) -> Plan:
        """Return a plan for texts with gaps, or raise a `UserError`, for example if a text is too long."""
        return self._plan(request, len(request.text), lambda _: self.text_generator.layouts(request.text))

    def _plan(
        self, asked: TextRequest, texts: int, lay: Callable[[Sampler], list[Layout]], end: int | None = None
    ) -> Plan:
        number = asked.n or 1
        if texts * number > self.limits.batch_size:
            most = f"this server generates at most {self.limits.batch_size} per request"
            raise TooLargeError(f"{texts * number} texts are too many: {most}; request fewer")
        sampler = self.sampler(asked)
        layouts = lay(sampler)
        for layout in layouts:
            masked = max(map(sum, layout.choices))
            length = masked + sum(map(len, layout.pieces))
            if length > self.limits.longest:
                most = f"this server's limit is {self.limits.longest}"
                raise TooLargeError(f"a text of {length} tokens is too long: {most} tokens; request a shorter one")
            # The sampler from the command line may take any number of steps.
            steps = _most_steps(sampler, masked) if asked.sampler is not None else 0
            if steps > _STEPS + _EACH * masked:
                raise TooLargeError(
                    f"the sampler would take {steps:,} steps for {masked:,} tokens; request fewer steps"
                )
        seed = secrets.randbelow(2**31) if asked.seed in (None, -1) else asked.seed
        return Plan(layouts=layouts, number=number, sampler=sampler, seed=seed, end=end)

    def sampler(self, asked: TextRequest) -> Sampler:
        """Return the sampler for a request, or raise a `UserError` if it is unknown or incompatible with the model."""
        sampler: Any = self.experiment.parts["sampler"]
        if asked.sampler is not None:
            sampler = Zoo.load().spec("sampler", asked.sampler)
        if asked.temperature is not None or asked.top_p is not None:
            temperature = 1.0 if asked.temperature is None else asked.temperature
            # With a cumulative probability of 0, only the most probable token remains.
            sampler = _drawing(sampler, *((0.0, None) if asked.top_p == 0 else (temperature, asked.top_p)))
        if problems := conflicts_with(self.experiment, {"sampler": sampler}):
            raise UserError(str(problems[0]))
        return sampler

    def _around(
        self, sampler: Sampler, texts: tuple[str, str], number: int | None, before: Sequence[int] = ()
    ) -> Layout:
        """Return the layout of a prompt and a suffix around a gap of `number` tokens, or of as many as fit.

        `before` contains the tokens of earlier messages. A text that is longer than the model's input or has no
        generated tokens does not have BOS and EOS, and keeps a space at the end of its prompt.
        """
        text_generator = self.text_generator
        if number == 0 or (sampler.blockwise and number is not None):
            first, last = (tuple(text_generator.tokenizer.encode(text)) for text in texts)
            pieces = ((*before, *first), last)
            if number == 0 or number + sum(map(len, pieces)) > text_generator.length:
                template = Template(texts, (Gap(number, number),))
                return Layout(
                    template=template,
                    words=self.text_generator.words,
                    pieces=pieces,
                    opens=(False,),
                    choices=((number,),),
                )

        remedy = 'shorten it, lower max_tokens, or set both max_tokens and the sampler "semi_autoregressive"'

        def fitting(tokens: int) -> Layout:
            where = "the dialogue" if before else "the prompt with its suffix"
            template = Template(texts, (Gap(tokens, tokens),))
            return text_generator.lay_out(template, where, before, remedy)

        return fitting(number or text_generator.length - sum(map(len, fitting(1).pieces)))

    def begin(self, plan: Plan, job: Job) -> list[WantedText]:
        """Return a plan's texts; the model chooses variable gap lengths. Raise `GoneError` if the job is cancelled."""
        numbers = row_numbers(len(plan.layouts), plan.number)
        texts: list[WantedText] = []
        for layout, row in zip(plan.layouts, numbers, strict=True):
            weighed = length_posterior(_interruptible(self.weigher, job), layout, self.limits.batch_size)
            chosen = draw_lengths(weighed, plan.seed, row)
            for number, lengths in zip(row.tolist(), chosen, strict=True):
                texts.append(WantedText(index=len(texts), number=number, layout=layout, lengths=lengths))
        return texts


def parts_of(sampler: Sampler) -> SamplerChoices | None:
    """Return the five components of a sampler or of its block sampler; None if it is not a `CompositeSampler`."""
    within = sampler.block_sampler if isinstance(sampler, SemiAutoregressiveSampler) else sampler
    return within.parts() if isinstance(within, CompositeSampler) else None


def rewrites(sampler: Sampler) -> bool:
    """Return whether a sampler may remask tokens; True if unknown."""
    parts = parts_of(sampler)
    return parts is None or parts.remasking.active


def _most_steps(sampler: Sampler, masked: int) -> int:
    """Return the maximum number of steps for `masked` tokens; 0 if unknown."""
    parts = parts_of(sampler)
    own = sampler.steps if isinstance(sampler, SemiAutoregressiveSampler) else None
    return max(own or 0, parts.tokens_per_step.max_steps_for(masked) if parts else 0)


def _drawing(sampler: Any, temperature: float, p: float | None) -> Any:
    """Return a sampler with a different token sampling: nucleus sampling if `p` is not None, otherwise categorical."""
    spec: Any = sampler  # an attrs class, which the protocol does not tell mypy
    if isinstance(sampler, SemiAutoregressiveSampler):
        return attrs.evolve(spec, block_sampler=_drawing(sampler.block_sampler, temperature, p))
    draw = (
        CategoricalTokenSampling(temperature=temperature)
        if p is None
        else NucleusTokenSampling(top_p=p, temperature=temperature)
    )
    if not isinstance(sampler, CompositeSampler):
        raise UserError(f"the sampler {sampler.name!r} does not support temperature and top_p; leave them out")
    if "token_sampling" in {field.name for field in fields_of(type(sampler))}:
        return attrs.evolve(spec, token_sampling=draw)
    parts = sampler.parts()
    return CombinationSampler(
        order=parts.order,
        tokens_per_step=parts.tokens_per_step,
        remasking=parts.remasking,
        stopping_rule=parts.stopping_rule,
        token_sampling=draw,
    )


def _interruptible(text_generator: TextGenerator, job: Job) -> TextGenerator:
    """Return a text generator that stops once its job is cancelled."""
    from atat_zoo.generation.guided_denoiser import GuidedDenoiser

    def change(log_probs: Any, *_: Any) -> Any:
        job.check()
        return log_probs

    return attrs.evolve(text_generator, denoiser=GuidedDenoiser(text_generator.denoiser, change))
