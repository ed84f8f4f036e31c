"""A trained model: saved as safetensors and JSON, loaded without pickle; what it says of texts, and texts of its own.

n texts of L tokens, D width, V predictable tokens, N masked places.
"""

from __future__ import annotations

import copy
import inspect
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
from atat_zoo.system.errors import UserError, nearest
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
    """A model with its experiment and tokenizer; a text is framed as in training, by BOS and EOS if it was there.

    >>> model = Model.from_run("runs/quickstart")  # doctest: +SKIP
    """

    experiment: Experiment  # that it was trained with
    context: Context  # the sizes that it was built for
    tokenizer: TokenizerModel
    module: Any  # the objective with its parts, in evaluation mode
    step: int  # optimizer steps of its training
    base: Mapping[str, Any] | None = None  # of LoRA: the run with the weights beside which its matrices are

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
        """Load a model of a run folder: of a checkpoint, also if the run is not finished, or the final one.

        The device is `auto`, `cpu`, `gpu`, or torch's name of one, such as `mps`; `spread` is for a model that is
        larger than a device, see `atat_zoo.generation.spreading`. The experiment and the tokenizer are those of the
        model, read already, with another sampler or guidance if you like.

        Raises:
            UserError: when the folder has no readable model of this step, or there is no such device.
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
        """Load a model folder; see `from_run`. One that `spreads` is on others of the device's kind as well."""
        description = described(folder)
        try:
            if (version := description["format"]) != FORMAT:
                raise UserError(f"{folder} has format {version}, this version reads {FORMAT}; update atat-zoo")
            step = int(description["step"])
            context = Context(**description["context"], device=str(exact_device(device)))
        except (ValueError, KeyError, TypeError, OverflowError) as error:  # JSON of another shape
            raise unreadable(folder / DESCRIPTION, error) from error
        where = "cpu" if spreads else context.device
        weights, base = weights_of(folder, description, where), description.get("base")
        experiment = experiment or from_table(description["experiment"], where=str(folder / DESCRIPTION))
        tokenizer = tokenizer or experiment.parts["tokenizer"].load(folder)
        if context.vocabulary_size != tokenizer.vocabulary_size:
            said = f"{DESCRIPTION} says that there are {context.vocabulary_size} tokens"
            has = f"{TOKENIZER} has {tokenizer.vocabulary_size}"
            raise UserError(f"{folder}: {said}, {has}; copy both again or train again")
        context = attrs.evolve(context, tokenizer=tokenizer)
        bare = spreads and not experiment.parts["backbone"].built_with_weights
        with without_weights() if bare else nullcontext():
            module = assemble(experiment, context)
        if not spreads:
            module.to(device)
        try:
            if base is not None:
                weights = with_base(weights, base_weights(folder, base, where), module.state_dict())
            module.load_state_dict(weights, assign=bare)
        except RuntimeError as error:
            first = str(error).splitlines()[1:2] or [str(error)]
            problem = f"{WEIGHTS} is of another model than {DESCRIPTION}: {first[0].strip()}"
            raise UserError(f"{folder}: {problem}; copy both again or train again") from error
        if spreads:
            spread(module, str(device))
        module.eval()
        return cls(experiment=experiment, context=context, tokenizer=tokenizer, module=module, step=step, base=base)

    @property
    def device(self) -> torch.device:
        """The device of the weights; what is computed around the network is on that of the context."""
        return self.module.backbone.embedding.weight.device

    @property
    def placement(self) -> str:
        """The `device` with which another model is loaded to where this one is: its device, or `spread`."""
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

        The precision is the network's, as `train.precision`; log-probabilities and draws are float32 and float64. To
        compile the backbone takes a minute and pays off for many texts.
        """
        module: Any = compiled(self.module) if compile else self.module
        return TextGenerator(
            denoiser=module.denoiser(),
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
        """Write a number of texts.

        Sampler and guidance are the experiment's own if None, or go by name, as a table {use = …}, or as a
        specification; see `text_generator` for precision and compile, `TextGenerator.request` for length, seed, prompt,
        suffix, chat, trusted, windows and batch_size, and `TextGenerator.generate` for rows and observe.

        Raises:
            UserError: when there is no such option, the length exceeds the training length, or prompt and suffix do not
                fit.
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
        """Fill the gaps of one text or several, each a number of times; the rest does not change by a byte.

        Gaps are `[MASK]` (one token), `[MASK:n]` (n tokens) or `[MASK:a-b]` (a to b tokens). Sampler, guidance and
        precision are as for `sample`; the options are seed and batch_size.

        Raises:
            UserError: for an unknown option, a malformed gap, a text without a gap, or one that does not fit.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        parts = self._parts(named := {"sampler": sampler, "guidance": guidance})
        check_options(options, (TextGenerator.infill,), parts, named)
        text_generator = self.text_generator(precision)
        layouts = text_generator.layouts(texts)
        guided: TextGenerator = parts["guidance"].guide(text_generator)
        return guided.infill(parts["sampler"], layouts, number=number, weigher=text_generator, **options)

    def unmask(self, *, sampler: Sampler | Named | None = None, **options: Any) -> Unmasking:
        """Write one text, and return what it was after each evaluation of the network; a notebook shows it.

        The options are those of `sample`, prompt, suffix, length and seed among them.

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
        """Return the importance of each token of a text by the model's estimator, in [0, 1].

        An estimator that reads z is asked for each token with this one masked. One that reads the time is evaluated in
        the middle of the diffusion, as in evaluations.

        Raises:
            UserError: when the model has no estimator, or the text does not fit.
        """
        module = self.module
        if not module.denoiser().estimates_importance:
            problem = f"objective {self.experiment.parts['objective'].name!r} has no importance"
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
        """Return the uncertainty of each token of a text given all others, in [0, 1]: each is masked in turn.

        The metric is of the kind uncertainty, by name or as a specification. A token takes one network evaluation.

        Raises:
            UserError: when the text does not fit, or there is no such metric.
        """
        measure = Zoo.load().spec("uncertainty", metric) if isinstance(metric, str) else metric
        row, inner = self._row(text)
        denoiser = self.text_generator().denoiser
        with torch.no_grad():
            values = [measure(denoiser(z, None, where)) for z, where in self._each_masked(row, inner, batch_size)]
        return self._scores(row[inner], torch.cat(values))

    def log_probs(self, text: str, masked: Sequence[int] | None = None) -> LogProbs:
        """Return the log-probability of every token at the masked places of a text, given the rest, in nats.

        Args:
            text: with its masks as gaps of known lengths, `[MASK]` or `[MASK:3]`; where a gap follows a space that
                belongs to its word, only tokens that begin with one are possible. Or a text without gaps.
            masked: in a text without gaps the tokens to mask, numbered from 0, ends not counted.

        Raises:
            UserError: when a gap is malformed or has no length, there is nothing to mask, or the text does not fit; or
                when a model that reads from left to right is asked for a token behind a gap.
        """
        text_generator, mask_id = self.text_generator(), self.context.mask_id
        if masked is None:
            layout = text_generator.lay_out(parse(text))
            if len(layout.choices) > 1:
                raise UserError("the text has a gap without a length; say how many tokens it has, as in [MASK:3]")
            text_generator = text_generator.opening(layout.opening(layout.choices[0]), layout.words)
            z = torch.tensor(layout.row(layout.choices[0]), device=self.context.device)
        else:
            row, inner = self._row(text)
            n = inner.stop - inner.start
            if not masked or not all(0 <= i < n for i in masked):
                raise UserError(f"masked: the text has {n} tokens; name some of 0 to {n - 1}")
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
        """Return what texts cost: bounds on −log p in nats, or −log p itself where the objective knows it.

        It is what `atat eval` measures, on texts in hand: with the same draws, seed and text the numbers are the same.
        Text n has the masks of row n. A text may be shorter than those of the training. It is padded where those were,
        with `data.packing = "document"`, and otherwise not, but to a whole number of a model's blocks.

        Args:
            texts: one or several.
            draws: masks of each; those of [evaluation] if None. More of them make the bound's estimate surer.
            seed: of the masks; the experiment's if None.
            bound: how it is estimated, of the kind bound; that of [evaluation] if None.
            batch_size: texts at once.

        Raises:
            UserError: when a text is empty or too long, or the objective has no such bound.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        if not texts:
            raise UserError("there is no text; give one")
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
        """Return the mean of the last hidden states over the tokens of each text, float32 [n, D] on the CPU.

        Nothing is masked, and a network that reads the time is told t = 0. The ends of the training are read, and are
        not in the mean.

        Raises:
            UserError: when a text is empty or too long.
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
        """Return a text with its gaps filled: the surest places first, by the likeliest tokens.

        That is greedy, and in general not the likeliest filling. `infill` draws, and may be asked for several.

        Args:
            text: with gaps, `[MASK]`, `[MASK:3]` or `[MASK:2-4]`.
            evaluations: of the network, at most; a model that writes in an order of its own takes those that it needs.
            sampler: another one in place of this.

        Raises:
            UserError: when a gap is malformed, or the text has no gap or does not fit.
        """
        return self.infill(text, 1, sampler=sampler or self._greedy(evaluations)).texts[0]

    def _greedy(self, evaluations: int) -> Any:
        """Return the first sampler without chance that fits the model."""
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
        """Yield a row with each of its inner tokens masked in turn, int64 [b, L], and where, bool [b, L]."""
        position = torch.arange(len(row), device=row.device)
        for places in position[inner].split(batch_size):
            where = position == places[:, None]
            yield row.expand(len(where), -1).masked_fill(where, self.context.mask_id), where

    def _row(self, text: str) -> tuple[Tensor, slice]:
        """Return a text as a row of the model, int64 [L], and the slice of the text's own tokens."""
        row, inner = self._framed(text)
        return torch.tensor(row, device=self.context.device), inner

    def _framed(self, text: str, where: str = "the text") -> tuple[list[int], slice]:
        """Return the tokens of a text with the ends of the training, and the slice of the text's own."""
        first, last = frame_tokens(self.tokenizer, self.experiment.data.special_tokens)
        refuse_halves(text, where)
        ids = self.tokenizer.encode(text)
        row = [*first, *ids, *last]
        if not ids:
            raise UserError(f"{where} is empty; give at least a word")
        if len(row) > self.context.length:
            problem = f"{where} is {len(row)} tokens, special tokens included"
            raise UserError(f"{problem}, and the model has learned {self.context.length}; shorten it")
        return row, slice(len(first), len(first) + len(ids))

    def _together(
        self, lists: Sequence[list[int]], batch_size: int, padded: bool = True
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the numbers [b] of texts that are read together, tokens and where these are no padding, [b, L] both."""
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
        """Return the experiment's specifications by kind, with others in their place if they fit it and each other."""
        zoo = Zoo.load()
        given = {}
        for kind, value in named.items():
            if value is not None:
                given[kind] = zoo.spec(kind, value) if isinstance(value, str | Mapping) else value
        if problems := conflicts_with(self.experiment, given):
            raise UserError(problems[0])
        return {**self.experiment.parts, **given}

    def save(self, folder: Path) -> None:
        """Write the model folder; an earlier model stays until all is written, and so do other files in the folder.

        Raises:
            UserError: when a weight is not finite, or the file system refuses.
        """
        state = self.module.state_dict()
        if self.base is not None:  # which has these
            theirs = of_base(self.module)
            state = {name: tensor for name, tensor in state.items() if name not in theirs}
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        if (name := not_finite(weights)) is not None:
            raise UserError(
                f"{folder} is not written: after step {self.step} the weights {name} are not finite; begin a new run "
                "with a smaller optimizer.learning_rate, more schedule.warmup_steps, or train.precision=fp32"
            )
        left_out = ("counts", "ngram_prior", "device", "tokenizer", "shifted", "given_between", "compiled", "sharded")
        complete = folder / ".new"
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
                "experiment": self.experiment.to_table(),
            }
            write_json(beside / DESCRIPTION, description)
        # An earlier model's description does not fit these files: its hashes are others.
        for name in (TOKENIZER, WEIGHTS, DESCRIPTION):
            (complete / name).replace(folder / name)
        complete.rmdir()


def check_options(
    options: Mapping[str, Any],
    methods: Iterable[Callable[..., Any]],
    parts: Mapping[str, Any],
    named: Mapping[str, Any],
) -> None:
    """Check that methods take the options; say where one belongs that is a parameter of a part.

    Args:
        options: by name.
        methods: whose keyword arguments they become.
        parts: specifications by kind.
        named: by kind how one was named: None, a name, a table or a specification.

    Raises:
        UserError: when there is another option.
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
        there = f"there are: {', '.join(known)}; {'; '.join(takes)}"
        raise UserError(f"there is no option {name!r}{nearest(name, known)} ({there})")


def _fields(part: Any) -> list[str]:
    return [field.name for field in fields_of(type(part))]


def _placed(part: Any, named: Any, name: str, value: Any) -> dict[str, Any] | None:
    """Return the table of a specification in which a parameter of it, or of one within it, has a value."""
    own = dict(named) if isinstance(named, Mapping) else {"use": part.name}
    if name in _fields(part):
        return own | {name: value}
    for field in _fields(part):
        inner = getattr(part, field)
        if attrs.has(type(inner)) and (table := _placed(inner, own.get(field), name, value)):
            return own | {field: table}
    return None


def weights_of(folder: Path, description: dict[str, Any], device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """Return the tensors of a model folder by name, if they are those that its `description` (model.json) means."""
    path = folder / WEIGHTS
    check(folder, description, WEIGHTS)
    try:
        weights: dict[str, Tensor] = load_file(path, device=str(device))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise unreadable(path, error) from error
    if (name := not_finite(weights)) is not None:
        raise UserError(f"{path}: the weights {name} are not finite; copy the run again, or train again")
    return weights


def plain_weights(folder: Path, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """Return the tensors of a model folder by name as those of a model without LoRA, into which its matrices go."""
    description = described(folder)
    if not description["experiment"].get("backbone", {}).get("lora_rank"):
        return weights_of(folder, description, device)
    module = Model.load(folder, device).module
    merge(module)
    weights: dict[str, Tensor] = module.state_dict()
    return weights


def base_weights(folder: Path, base: Any, device: str | torch.device) -> dict[str, Tensor]:
    """Return the weights of the run with which a training by LoRA began, of which only its matrices are in `folder`."""
    try:
        places, digest = [RunFolder(Path(base[key])).model for key in ("run", "path")], base["sha256"]
    except (KeyError, TypeError) as error:
        raise unreadable(folder / DESCRIPTION, error) from error
    holds = f"{folder} holds LoRA's matrices only, for the weights of {base['run']}"
    found = [place for place in places if (place / WEIGHTS).is_file()]
    if not found:
        raise UserError(f"{holds}, which is not there any more; move that run back to {base['path']}")
    for place in found:
        if sha256_of(place / WEIGHTS) == digest:
            return plain_weights(place, device)
    raise UserError(
        f"{holds}, which has other weights now; put back those with which it was trained, or train it again"
    )


def not_finite(weights: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor with a number that is not finite, or None."""
    return next((name for name, tensor in weights.items() if not bool(tensor.isfinite().all())), None)


def compiled(module: nn.Module) -> nn.Module:
    """Return an objective's module with the same weights and a compiled backbone; the given one does not change."""
    # Shallow copies share weights; `compile` sets an attribute of the copy.
    twin: Any = copy.copy(module)
    twin._modules = dict(module._modules)
    twin.backbone = copy.copy(twin.backbone)
    twin.backbone.compile()
    return twin
