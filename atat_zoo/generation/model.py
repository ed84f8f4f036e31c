"""A trained model: loading, saving (safetensors and JSON, no pickle), scoring and generation.

Shapes: n texts, L tokens of a text, width D of the hidden states.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.diffusion.loss_by_mask_rate import LossByMaskRate
from atat_zoo.diffusion.precision import Precision, computes_in_bf16
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.experiment import Experiment, conflicts_with, from_table
from atat_zoo.experiment.runs import RunFolder, sha256_of, write_json
from atat_zoo.experiment.runs.model_files import DESCRIPTION, TOKENIZER, WEIGHTS, check, described, unreadable
from atat_zoo.generation.layout import frame_tokens, parse
from atat_zoo.generation.samplers import Sampler
from atat_zoo.generation.spreading import is_spread, spread, without_weights
from atat_zoo.generation.text_generator import Generation, Infilling, TextGenerator
from atat_zoo.generation.token_scores import LogProbs, NLLBound, TextScores, TokenScore, TokenScores, Unmasking, table
from atat_zoo.modeling.backbones.lora import merge, of_base, with_base
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context, Zoo
from atat_zoo.registry.spec import fields_of
from atat_zoo.system.atomic_files import making_folder
from atat_zoo.system.devices import SPREAD, exact_device, torch_device
from atat_zoo.system.errors import UnsavedNote, UserError, nearest
from atat_zoo.system.parsing import refuse_halves

if TYPE_CHECKING:
    from atat_zoo.generation.guidance import Guidance
    from atat_zoo.modeling.bounds import Bound
    from atat_zoo.modeling.uncertainty import Uncertainty

FORMAT = 1
_GIVEN = ("number", "weigher")  # by `Model` itself
Named = str | Mapping[str, Any]


@attrs.frozen(kw_only=True, eq=False)
class Model:
    """A trained model with its experiment and tokenizer.

    Texts get BOS and EOS as in training.

    >>> model = Model.from_run("runs/quickstart")  # doctest: +SKIP
    """

    experiment: Experiment  # the experiment that trained the model
    context: Context  # the sizes that the model was built for
    tokenizer: TokenizerModel
    module: Any  # the objective with its components, in evaluation mode
    step: int  # optimizer steps in training
    base: Mapping[str, Any] | None = None  # for LoRA: the run whose weights the matrices modify
    folder: Path | None = None  # from which the model was loaded

    @classmethod
    def from_run(
        cls,
        run: str | Path,
        device: str = "cpu",
        step: int | str | None = None,
        *,
        experiment: Experiment | None = None,
        tokenizer: TokenizerModel | None = None,
    ) -> Model:
        """Return the final model of a run folder, or the model at `step`: a number, `newest` or `best`.

        `device` is `auto`, `cpu`, `gpu`, or a torch device name such as `mps`; use `spread` for a model that is larger
        than one device, see `atat_zoo.generation.spreading`. Pass `experiment`, possibly with a different sampler or
        guidance, and `tokenizer` if you have already loaded them.

        Raises:
            UserError: if the folder has no readable model for this step, or the device does not exist.
        """
        folder, spreads = RunFolder(Path(run)).model_at(step), device == SPREAD
        return cls.load(folder, torch_device(device), spreads=spreads, experiment=experiment, tokenizer=tokenizer)

    @classmethod
    def load(
        cls,
        folder: Path,
        device: str | torch.device = "cpu",
        *,
        spreads: bool = False,
        experiment: Experiment | None = None,
        tokenizer: TokenizerModel | None = None,
    ) -> Model:
        """Return the model in a folder (see `from_run`); `spreads` spreads its layers over devices of the same type."""
        description = described(folder)
        try:
            if (version := description["format"]) != FORMAT:
                raise UserError(
                    f"{folder} has format {version}, but this atat-zoo reads format {FORMAT}; update atat-zoo"
                )
            step = int(description["step"])
            context = Context(**description["context"], device=str(exact_device(device)))
            table = description.get("loss_by_mask_rate")
            curve = None if table is None else LossByMaskRate(**table)
        except (ValueError, KeyError, TypeError, OverflowError) as error:  # valid JSON with a different structure
            raise unreadable(folder / DESCRIPTION, error) from error
        where = "cpu" if spreads else context.device
        weights, base = weights_of(folder, description, where), description.get("base")
        experiment = experiment or from_table(description["experiment"], where=str(folder / DESCRIPTION))
        tokenizer = tokenizer or experiment.parts["tokenizer"].load(folder)
        if context.vocabulary_size != tokenizer.vocabulary_size:
            said = f"{DESCRIPTION} has a vocabulary of {context.vocabulary_size} tokens"
            has = f"{TOKENIZER} has {tokenizer.vocabulary_size}"
            raise UserError(f"{folder}: {said}, but {has}; copy both files again, or retrain the model")
        context = attrs.evolve(context, tokenizer=tokenizer)
        bare = spreads and not experiment.parts["backbone"].built_with_weights
        with without_weights() if bare else nullcontext():
            module: Any = assemble(experiment, context)
        if not spreads:
            module.to(device)
        try:
            if base is not None:
                weights = with_base(weights, base_weights(folder, base, where), module.state_dict())
            module.load_state_dict(weights, assign=bare)
        except RuntimeError as error:
            first = str(error).splitlines()[1:2] or [str(error)]
            problem = f"{WEIGHTS} and {DESCRIPTION} belong to different models: {first[0].strip()}"
            raise UserError(f"{folder}: {problem}; copy both files again, or retrain the model") from error
        if spreads:
            spread(module, str(device))
        module.eval()
        module.loss_by_mask_rate = curve
        return cls(
            experiment=experiment,
            context=context,
            tokenizer=tokenizer,
            module=module,
            step=step,
            base=base,
            folder=folder,
        )

    @property
    def device(self) -> torch.device:
        """The device of the weights; computations outside the network run on `context.device`."""
        return self.module.backbone.embedding.weight.device

    @property
    def placement(self) -> str:
        """The `device` argument that loads another model to the same place: its device, or `spread`."""
        return SPREAD if is_spread(self.module) else str(self.device)

    def __repr__(self) -> str:
        said = ", ".join(f"{value} {name}" if name != "objective" else value for name, value in self._facts().items())
        return f"<Model {self.experiment.name!r}: {said}>"

    def _repr_html_(self) -> str:
        return table({"model": self.experiment.name, **self._facts()})

    def _facts(self) -> dict[str, str]:
        weights, steps = sum(p.numel() for p in self.module.parameters()), self.step
        facts = {"objective": self.experiment.parts["objective"].name, "parameters": f"{weights:,}"}
        return facts | {"tokens in a text": f"{self.context.length:,}", "steps": f"{steps:,}"}

    def text_generator(self, precision: Precision = "auto", compile: bool = False) -> TextGenerator:
        """Return a text generator with this model's weights.

        `precision` is the network's, as in `train.precision`; log-probabilities are float32, and sampling uses float64.
        Compiling the backbone with `compile` takes a minute and is useful only for many texts.
        """
        module: Any = compiled(self.module) if compile else self.module
        denoiser, parts = module.denoiser(), self.experiment.parts
        # The time is that of the fraction of masked tokens, which padding would change.
        attends = not (parts["backbone"].both_ways_only or getattr(parts["backbone"], "shift", False))
        apart = parts["objective"].separates_documents and denoiser.block_size in (None, 1) and not denoiser.reads_time
        denoiser.supports_padding = attends and (denoiser.supports_padding or apart)
        return TextGenerator(
            denoiser=denoiser,
            tokenizer=self.tokenizer,
            length=self.context.length,
            special=self.experiment.data.special_tokens,
            form=self.experiment.data.format,
            device=self.context.device,
            network=self.device,
            bf16=computes_in_bf16(precision, self.device),
        )

    def sample(
        self,
        number: int = 1,
        *,
        sampler: Sampler | Named | None = None,
        guidance: Guidance | Named | None = None,
        precision: Precision = "auto",
        compile: bool = False,
        **options: Any,
    ) -> Generation:
        """Return a `Generation` with `number` texts.

        `sampler` and `guidance` are each a name, a dict {"use": …} or a component; the defaults are those of the
        experiment. See `text_generator` for `precision` and `compile`, `TextForm.request` for `length`, `seed`,
        `prompt`, `suffix`, `chat`, `trusted`, `windows` and `batch_size`, and `TextGenerator.generate` for `rows` and
        `observe`.

        Raises:
            UserError: if an option is unknown, or the sampler, guidance, length, prompt or suffix does not fit.
        """
        parts = self._parts(named := {"sampler": sampler, "guidance": guidance})
        check_options(options, (TextGenerator.request, TextGenerator.generate), parts, named)
        text_generator: TextGenerator = parts["guidance"].guide(self.text_generator(precision, compile))
        return text_generator.write(parts["sampler"], number=number, **options)

    def infill(
        self,
        texts: str | Sequence[str],
        number: int = 1,
        *,
        sampler: Sampler | Named | None = None,
        guidance: Guidance | Named | None = None,
        precision: Precision = "auto",
        **options: Any,
    ) -> Infilling:
        """Return an `Infilling`: `number` copies of each text, with sampled tokens in its gaps and the rest unchanged.

        Gaps are `[MASK]` (one token), `[MASK:n]` (n tokens) or `[MASK:a-b]` (a to b tokens). `sampler`, `guidance` and
        `precision` are as for `sample`; the other options are `seed` and `batch_size`.

        Raises:
            UserError: if an option is unknown, a gap is malformed, or a text has no gap or does not fit.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        parts = self._parts(named := {"sampler": sampler, "guidance": guidance})
        check_options(options, (TextGenerator.infill,), parts, named)
        text_generator = self.text_generator(precision)
        layouts = text_generator.layouts(texts)
        guided: TextGenerator = parts["guidance"].guide(text_generator)
        return guided.infill(parts["sampler"], layouts, number=number, weigher=text_generator, **options)

    def unmask(self, *, sampler: Sampler | Named | None = None, **options: Any) -> Unmasking:
        """Return an `Unmasking`, which a notebook displays: one text before and after each decoding step.

        The options are those of `sample`, such as `prompt`, `suffix`, `length` and `seed`.

        Raises:
            UserError: as for `sample`.
        """
        steps: list[dict[str, Any]] = []
        made = self.sample(1, sampler=sampler, observe=steps.append, **options)
        written = made.sample.tokens[0].tolist()
        drawn = {position for step in steps for position in step.get("positions", ())}
        start = [self.context.mask_id if i in drawn else token for i, token in enumerate(written)]
        return Unmasking.of(start, steps, self.tokenizer, text=made.texts[0])

    def importance(self, text: str) -> TokenScores:
        """Return the importance of each token of a text, in [0, 1], from the model's estimator.

        An estimator that reads z is evaluated once per token, with that token masked. A time-conditioned estimator is
        evaluated at t = 0.5, as in `atat eval`.

        Raises:
            UserError: if the model has no estimator, or the text is too long.
        """
        module = self.module
        if not module.denoiser().estimates_importance:
            problem = f"objective {self.experiment.parts['objective'].name!r} does not estimate importance"
            raise UserError(f'{problem}; train with objective.use = "mdlm" or "adaptive" and an estimator')
        row, inner = self._row(text)
        whole = torch.zeros_like(row[None], dtype=torch.bool)
        whole[:, inner] = True
        reads_x = module.denoiser().importance_reads == "x"
        values = []
        with torch.no_grad():
            for tokens, where in [(row[None], whole)] if reads_x else self._each_masked(row, inner):
                t = torch.full((len(tokens),), 0.5, device=row.device)
                values.append(module.importance(tokens, torch.ones_like(where), t)[where])
        return self._scores(row[inner], torch.cat(values))

    def uncertainty(self, text: str, metric: str | Uncertainty = "entropy", *, batch_size: int = 64) -> TokenScores:
        """Return the uncertainty of each token of a text, in [0, 1], given all other tokens.

        `metric` is a component of the kind `uncertainty`, or its name. Each token is masked in its own copy of the
        text, and a forward pass evaluates `batch_size` copies.

        Raises:
            UserError: if the text is too long, or the metric is unknown.
        """
        measure = Zoo.load().spec("uncertainty", metric) if isinstance(metric, str) else metric
        row, inner = self._row(text)
        denoiser = self.text_generator().denoiser
        with torch.no_grad():
            values = [measure(denoiser(z, None, where)) for z, where in self._each_masked(row, inner, batch_size)]
        return self._scores(row[inner], torch.cat(values))

    def log_probs(self, text: str, masked: Sequence[int] | None = None) -> LogProbs:
        """Return the log-probability of every token of the vocabulary at each masked position of a text, in nats.

        Args:
            text: a text with gaps of known lengths, `[MASK]` or `[MASK:3]`, or without gaps. If the tokenizer has
                tokens that begin with a space, only these can fill a gap after a space.
            masked: indices of the tokens to mask in a text without gaps, not counting BOS and EOS.

        Raises:
            UserError: if a gap is malformed or has no fixed length, `masked` is empty or out of range, the text is too
                long, or a token follows a gap and the model reads from left to right.
        """
        text_generator, mask_id = self.text_generator(), self.context.mask_id
        if masked is None:
            layout = text_generator.lay_out(parse(text))
            if len(layout.choices) > 1:
                raise UserError("the text has a gap of variable length; fix its number of tokens, as in [MASK:3]")
            text_generator = text_generator.opening(layout.opening(layout.choices[0]), layout.words)
            z = torch.tensor(layout.row(layout.choices[0]), device=self.context.device)
        else:
            row, inner = self._row(text)
            n = inner.stop - inner.start
            if not masked or not all(0 <= i < n for i in masked):
                raise UserError(f"masked: the text has {n} tokens; pass one or more indices from 0 to {n - 1}")
            z = row.clone()
            z[torch.tensor(sorted(set(masked)), device=z.device) + inner.start] = mask_id
        where = z == mask_id
        with torch.no_grad():
            values = text_generator.denoiser(z[None], None, where[None])
        return LogProbs(values=values.float(), positions=where.nonzero()[:, 0].tolist(), tokenizer=self.tokenizer)

    def score(
        self,
        texts: str | Sequence[str],
        *,
        draws: int | None = None,
        seed: int | None = None,
        bound: Bound | Named | None = None,
        batch_size: int = 64,
    ) -> TextScores:
        """Return `TextScores`: bounds on −log p of texts, in nats, or −log p itself if the objective yields it exactly.

        With the same draws, seed and text, the results equal those of `atat eval`; text n has the masks of sequence n.
        A text may be shorter than the training length. With `data.packing = "document"`, it is padded to the training
        length, as in training; otherwise, only to a multiple of the model's block size.

        Args:
            texts: one text or several.
            draws: number of masks per text, by default `evaluation.mask_samples`. More masks lower the error of the
                estimate.
            seed: seed of the masks, by default the experiment's.
            bound: estimator of the bound, a component of the kind `bound`; by default `evaluation.bound`.
            batch_size: number of texts in a forward pass.

        Raises:
            UserError: if a text is empty or too long, or the bound does not apply to the objective.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        if not texts:
            raise UserError("texts is empty; pass at least one text")
        spec = self.experiment.evaluation
        draws, seed = draws or spec.mask_samples, self.experiment.seed if seed is None else seed
        method: Any = spec.bound if bound is None else bound
        method = Zoo.load().spec("bound", method) if isinstance(method, str | Mapping) else method
        found: dict[str, dict[int, Tensor]] = {}
        lists = [
            self._framed(text, f"text {i + 1}" if len(texts) > 1 else "the text")[0] for i, text in enumerate(texts)
        ]
        device = exact_device(next(self.module.parameters()).device)
        with torch.no_grad():
            for rows, tokens, maskable in self._together(lists, batch_size):
                keys = sequence_keys(seed, "evaluation", rows.to(device))
                estimates = self.module.bound(tokens.to(device), maskable.to(device), keys, draws, method)
                for name, estimate in estimates.items():
                    pairs = zip(rows.tolist(), estimate.contribution.cpu(), strict=True)
                    found.setdefault(name, {}).update((i, nats[: len(lists[i])]) for i, nats in pairs)
        n = torch.tensor([len(ids) for ids in lists])
        bounds = {
            name: NLLBound(nats=torch.stack([each[i].sum() for i in range(len(lists))]), tokens=n)
            for name, each in found.items()
        }
        first = next(iter(found.values()))
        shares = [self._scores(torch.tensor(ids), first[i]) for i, ids in enumerate(lists)]
        exact = self.experiment.parts["objective"].exact
        return TextScores(bounds=bounds, texts=shares, draws=0 if exact else draws)

    def embed(self, texts: str | Sequence[str], *, batch_size: int = 64) -> Tensor:
        """Return the last hidden states averaged over the tokens of each text, float32 [n, D] on the CPU.

        No token is masked, and t = 0 for a time-conditioned network. The network reads BOS and EOS as in training, but
        the mean excludes them.

        Raises:
            UserError: if a text is empty or too long.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        framed = [self._framed(text, f"text {i + 1}" if len(texts) > 1 else "the text") for i, text in enumerate(texts)]
        made = torch.zeros(len(texts), self.context.width or self.module.backbone.embedding.embedding_dim)
        with torch.no_grad():
            for rows, tokens, _ in self._together([ids for ids, _ in framed], batch_size, padded=False):
                hidden = self.module.embed(tokens.to(self.context.device)).float().cpu()
                for i, states in zip(rows.tolist(), hidden, strict=True):
                    made[i] = states[framed[i][1]].mean(0)
        return made

    def fill(self, text: str, *, evaluations: int = 8, sampler: Sampler | Named | None = None) -> str:
        """Return a text with its gaps filled greedily by the most probable tokens, the most confident positions first.

        In general, the result is not the most probable text. `infill` samples instead, and can return several texts.

        Args:
            text: a text with gaps, `[MASK]`, `[MASK:3]` or `[MASK:2-4]`.
            evaluations: maximum number of decoding steps; ignored with `sampler`, or if the model fixes its own order.
            sampler: sampler to use instead of the greedy one.

        Raises:
            UserError: if a gap is malformed, or the text has no gap or is too long.
        """
        return self.infill(text, 1, sampler=sampler or self._greedy(evaluations)).texts[0]

    def _greedy(self, evaluations: int) -> Any:
        """Return the first greedy sampler that fits the model."""
        zoo, own, draw = Zoo.load(), self.experiment.parts["sampler"], {"use": "categorical", "temperature": 0.0}
        sure = {"use": "uncertainty", "uncertainty": "confidence"}
        tokens_per_step = {"use": "fixed", "steps": evaluations}
        tables: list[dict[str, Any]] = [
            {"use": "combination", "order": sure, "tokens_per_step": tokens_per_step, "token_sampling": draw},
            {"use": "left_to_right", "token_sampling": draw},
        ]
        for spec in (zoo.spec("sampler", each) for each in tables):
            if not conflicts_with(self.experiment, {"sampler": spec}):
                return spec
        names = {field.name for field in attrs.fields(type(own))}
        change = (
            {"temperature": 0.0} if "temperature" in names else {"token_sampling": zoo.spec("token_sampling", draw)}
        )
        return attrs.evolve(own, **change) if names & change.keys() else own

    def _each_masked(self, row: Tensor, inner: slice, batch_size: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield copies of a row, int64 [b, L], each with a different inner token masked, and the masks, bool [b, L]."""
        position = torch.arange(len(row), device=row.device)
        for places in position[inner].split(batch_size):
            where = position == places[:, None]
            yield row.expand(len(where), -1).masked_fill(where, self.context.mask_id), where

    def _row(self, text: str) -> tuple[Tensor, slice]:
        """Return the token ids of a text, int64 [L], and the slice that excludes BOS and EOS."""
        row, inner = self._framed(text)
        return torch.tensor(row, device=self.context.device), inner

    def _framed(self, text: str, where: str = "the text") -> tuple[list[int], slice]:
        """Return the tokens of a text, with BOS and EOS as in training, and the slice that excludes BOS and EOS."""
        first, last = frame_tokens(self.tokenizer, self.experiment.data.special_tokens)
        refuse_halves(text, where)
        ids = self.tokenizer.encode(text)
        row = [*first, *ids, *last]
        if not ids:
            raise UserError(f"{where} is empty; pass at least one word")
        if len(row) > self.context.length:
            problem = f"{where} takes {len(row)} tokens, including special tokens"
            raise UserError(f"{problem}, but the model's maximum length is {self.context.length}; shorten it")
        return row, slice(len(first), len(first) + len(ids))

    def _together(
        self, lists: Sequence[list[int]], batch_size: int, padded: bool = True
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield batches of texts: indices [b], tokens [b, L], and masks [b, L] that are false at padding."""
        whole, block = self.experiment.data.packing == "document", self.module.denoiser().block_size or 1
        by_length: dict[int, list[int]] = defaultdict(list)
        for number, ids in enumerate(lists):
            length = self.context.length if whole else -(-len(ids) // block) * block
            by_length[length if padded else len(ids)].append(number)
        for length, numbers in by_length.items():
            for some in torch.tensor(numbers).split(batch_size):
                texts = [lists[i] for i in some.tolist()]
                n = torch.tensor([len(ids) for ids in texts])
                tokens = torch.tensor([[*ids, *[0] * (length - len(ids))] for ids in texts])
                yield some, tokens, torch.arange(length) < n[:, None]

    def _scores(self, ids: Tensor, values: Tensor) -> TokenScores:
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        return TokenScores(TokenScore(self.tokenizer.decode([i]), value) for i, value in pairs)

    def _parts(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the experiment's components by kind, with its own replaced by the `named` ones if these fit."""
        zoo = Zoo.load()
        given = {}
        for kind, value in named.items():
            if value is not None:
                given[kind] = zoo.spec(kind, value) if isinstance(value, str | Mapping) else value
        if problems := conflicts_with(self.experiment, given):
            raise UserError(problems[0])
        return {**self.experiment.parts, **given}

    def keep_loss_by_mask_rate(self, curve: LossByMaskRate | None) -> None:
        """Use `curve` from now on, and save it with the model, or warn that it cannot be saved."""
        self.module.loss_by_mask_rate = curve
        if curve is None or self.folder is None:
            return
        try:
            description = described(self.folder) | {"loss_by_mask_rate": attrs.asdict(curve)}
            write_json(self.folder / DESCRIPTION, description)
        except UserError as error:
            reason = str(error).partition(";")[0]
            warnings.warn(f"the loss by mask rate is not saved with the model: {reason}", UnsavedNote, stacklevel=2)

    def save(self, folder: Path) -> None:
        """Save the model in a folder; an earlier model there is replaced only after all files are written.

        Other files in the folder are kept.

        Raises:
            UserError: if a weight is not finite, or a file cannot be written.
        """
        state = self.module.state_dict()
        if self.base is not None:  # the base run has these weights
            theirs = of_base(self.module)
            state = {name: tensor for name, tensor in state.items() if name not in theirs}
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        if (name := not_finite(weights)) is not None:
            raise UserError(
                f"{folder} was not saved: after step {self.step} the weights {name} are not finite; start a new run "
                "with a smaller optimizer.learning_rate, more schedule.warmup_steps, or train.precision=fp32"
            )
        left_out = {"counts", "ngram_prior", "device", "tokenizer", "width_read", "batch_size"}
        left_out |= {"shifted", "given_between", "compiled", "sharded"}
        complete, curve = folder / ".new", self.module.loss_by_mask_rate
        with making_folder(complete, replace=True, shown=folder) as beside:
            self.tokenizer.save(beside)
            save_file(weights, beside / WEIGHTS)
            description = {
                "format": FORMAT,
                "step": self.step,
                "parameters": sum(p.numel() for p in self.module.parameters()),
                "sha256": {name: sha256_of(beside / name) for name in (WEIGHTS, TOKENIZER)},
                "context": attrs.asdict(self.context, filter=lambda field, _: field.name not in left_out),
                **({} if self.base is None else {"base": self.base}),
                **({} if curve is None or curve.step != self.step else {"loss_by_mask_rate": attrs.asdict(curve)}),
                "experiment": self.experiment.to_table(),
            }
            write_json(beside / DESCRIPTION, description)
        # An earlier model's description does not fit these files, because its hashes differ.
        for name in (TOKENIZER, WEIGHTS, DESCRIPTION):
            (complete / name).replace(folder / name)
        complete.rmdir()


def check_options(
    options: Mapping[str, Any],
    methods: Iterable[Callable[..., Any]],
    parts: Mapping[str, Any],
    named: Mapping[str, Any],
) -> None:
    """Raise a `UserError` that says where an option belongs if the methods do not take it.

    Args:
        options: a dict from name to option.
        methods: the methods that take the options as keyword arguments.
        parts: a dict from kind to component.
        named: a dict from kind to how the component was given: None, a name, a table or a component.

    Raises:
        UserError: if an option is unknown.
    """
    arguments = (each for method in methods for each in inspect.signature(method).parameters.values())
    known = [each.name for each in arguments if each.default is not each.empty and each.name not in _GIVEN]
    for name, value in options.items():
        if name in known:
            continue
        for kind, how in named.items():
            if table := _placed(parts[kind], how, name, value):
                raise UserError(f"{name} is a parameter of the {kind}; pass {kind}={table}")
        takes = (f"{kind} {parts[kind].name!r} takes {', '.join(_fields(parts[kind])) or 'none'}" for kind in named)
        there = f"the options are {', '.join(known)}; {'; '.join(takes)}"
        raise UserError(f"unknown option {name!r}{nearest(name, known)} ({there})")


def _fields(part: Any) -> list[str]:
    return [field.name for field in fields_of(type(part))]


def _placed(part: Any, named: Any, name: str, value: Any) -> dict[str, Any] | None:
    """Return the component's table with the parameter set, on it or on a nested component, or None if unknown."""
    own = dict(named) if isinstance(named, Mapping) else {"use": part.name}
    if name in _fields(part):
        return own | {name: value}
    for field in _fields(part):
        inner = getattr(part, field)
        if attrs.has(type(inner)) and (table := _placed(inner, own.get(field), name, value)):
            return own | {field: table}
    return None


def weights_of(folder: Path, description: dict[str, Any], device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """Return a model folder's weights by name; raise a `UserError` if not finite or not as in `description`."""
    path = folder / WEIGHTS
    check(folder, description, WEIGHTS)
    try:
        weights: dict[str, Tensor] = load_file(path, device=str(device))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise unreadable(path, error) from error
    if (name := not_finite(weights)) is not None:
        raise UserError(f"{path}: the weights {name} are not finite; copy the run again, or retrain the model")
    return weights


def plain_weights(folder: Path, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """Return the weights in a model folder by name, with LoRA matrices merged into the base weights."""
    description = described(folder)
    if not description["experiment"].get("backbone", {}).get("lora_rank"):
        return weights_of(folder, description, device)
    module = Model.load(folder, device).module
    merge(module)
    return module.state_dict()


def base_weights(folder: Path, base: Any, device: str | torch.device) -> dict[str, Tensor]:
    """Return the weights of a LoRA model's base run, named by `base`; raise a `UserError` if missing or changed."""
    try:
        places, digest = [RunFolder(Path(base[key])).model for key in ("run", "path")], base["sha256"]
    except (KeyError, TypeError) as error:
        raise unreadable(folder / DESCRIPTION, error) from error
    holds = f"{folder} contains only LoRA matrices for the weights of {base['run']}"
    found = [place for place in places if (place / WEIGHTS).is_file()]
    if not found:
        raise UserError(f"{holds}, which no longer exists; restore that run at {base['path']}")
    for place in found:
        if sha256_of(place / WEIGHTS) == digest:
            return plain_weights(place, device)
    raise UserError(f"{holds}, whose weights have changed; restore them, or retrain the model")


def not_finite(weights: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor with a non-finite value, or None."""
    return next((name for name, tensor in weights.items() if not bool(tensor.isfinite().all())), None)


def compiled(module: nn.Module) -> nn.Module:
    """Return a copy of an objective's module that shares its weights and compiles the backbone on its first call."""
    # Shallow copies share weights; `compile` sets an attribute of the copy.
    twin: Any = copy.copy(module)
    twin._modules = dict(module._modules)
    twin.backbone = copy.copy(twin.backbone)
    twin.backbone.compile()
    return twin
