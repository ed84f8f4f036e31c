"""A trained model: saved as safetensors and JSON, loaded without pickle. L tokens in a text."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from typing_extensions import override

from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.errors import UserError, nearest
from atat_zoo.experiment import Experiment, conflicts_with, from_table
from atat_zoo.experiment.runs import RunFolder, sha256_of, write_json
from atat_zoo.experiment.runs.model_files import DESCRIPTION, TOKENIZER, WEIGHTS, check, described, unreadable
from atat_zoo.generation.reading import Named, TextReader
from atat_zoo.generation.samplers import Sampler
from atat_zoo.generation.shown import Unmasking, table
from atat_zoo.generation.spreading import is_spread, spread, without_weights
from atat_zoo.modeling.backbones.lora import merge, of_base, with_base
from atat_zoo.modeling.diffusion.precision import Precision, computes_in_bf16
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context, Zoo
from atat_zoo.registry.spec import fields_of
from atat_zoo.system.atomic import making_folder
from atat_zoo.system.devices import SPREAD, exact_device, torch_device

if TYPE_CHECKING:  # a training does not write texts before its end
    from atat_zoo.generation.guidance import Guidance
    from atat_zoo.generation.writer import Generation, Infilling, Writer

FORMAT = 1
_GIVEN = ("number", "weigher")  # by `Model` itself


@attrs.frozen(kw_only=True, eq=False)
class Model(TextReader):
    """A model with its experiment and tokenizer.

    >>> model = Model.from_run("runs/quickstart")  # doctest: +SKIP
    """

    experiment: Experiment  # that it was trained with
    context: Context  # the sizes that it was built for
    tokenizer: TokenizerModel
    module: Any  # the objective with its parts, in evaluation mode
    step: int  # optimizer steps of its training
    base: Mapping[str, Any] | None = None  # of LoRA: the run with the weights beside which its matrices are

    @classmethod
    def from_run(cls, run: str | Path, device: str = "cpu", step: int | str | None = None) -> Model:
        """Load a model of a run folder: of a checkpoint, also if the run is not finished, or the final one.

        The device is `auto`, `cpu`, `gpu`, or torch's name of one, such as `mps`; `spread` is for a model that is
        larger than a device, see `atat_zoo.generation.spreading`.

        Raises:
            UserError: when the folder has no readable model of this step, or there is no such device.
        """
        return cls.load(RunFolder(Path(run)).model_at(step), torch_device(device), spreads=device == SPREAD)

    @classmethod
    def load(cls, folder: Path, device: str | torch.device = "cpu", *, spreads: bool = False) -> Model:
        """Load a model folder; see `from_run`. One that `spreads` is on others of the device's kind as well."""
        description = described(folder)
        try:
            if (version := description["format"]) != FORMAT:
                raise UserError(f"{folder} has format {version}, this version reads {FORMAT}; update atat-zoo")
            table, step = description["experiment"], int(description["step"])
            context = Context(**description["context"], device=str(exact_device(device)))
        except (ValueError, KeyError, TypeError, OverflowError) as error:  # JSON of another shape
            raise unreadable(folder / DESCRIPTION, error) from error
        where = "cpu" if spreads else context.device
        weights, base = weights_of(folder, description, where), description.get("base")
        experiment = from_table(table, where=str(folder / DESCRIPTION))
        tokenizer = experiment.parts["tokenizer"].load(folder)
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

    @override
    def writer(self, precision: Precision = "auto", compile: bool = False) -> Writer:
        """Return a writer with this model's weights.

        The precision is the network's, as `train.precision`; log-probabilities and draws are float32 and float64. To
        compile the backbone takes a minute and pays off for many texts.
        """
        from atat_zoo.generation.writer import Writer

        module: Any = compiled(self.module) if compile else self.module
        return Writer(
            denoiser=module.denoiser(),
            tokenizer=self.tokenizer,
            length=self.context.length,
            special=self.experiment.data.special,
            form=self.experiment.data.form,
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
        specification; see `writer` for precision and compile, and `Writer.write` for the options: length, seed, prompt,
        suffix, chat, trusted, windows, batch_size, rows, observe.

        Raises:
            UserError: when there is no such option, the length exceeds the training length, or prompt and suffix do not
                fit.
        """
        from atat_zoo.generation.writer import Writer

        parts = self._parts(**(named := {"sampler": sampler, "guidance": guidance}))
        check_options(options, Writer.write, parts, named)
        writer: Writer = parts["guidance"].guide(self.writer(precision, compile))
        return writer.write(parts["sampler"], number=number, **options)

    @override
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
        from atat_zoo.generation.writer import infill

        texts = [texts] if isinstance(texts, str) else list(texts)
        parts = self._parts(**(named := {"sampler": sampler, "guidance": guidance}))
        check_options(options, infill, parts, named)
        writer = self.writer(precision)
        guided = parts["guidance"].guide(writer)
        return infill(guided, parts["sampler"], texts, number=number, weigher=writer, **options)

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

    def _parts(self, **named: Any) -> dict[str, Any]:
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
        left_out = ("counts", "count_table", "device", "tokenizer", "shifted", "given_between", "compiled", "sharded")
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
    options: Mapping[str, Any], method: Callable[..., Any], parts: Mapping[str, Any], named: Mapping[str, Any]
) -> None:
    """Check that a method takes the options; say where one belongs that is a parameter of a part.

    Args:
        options: by name.
        method: whose keyword arguments they become.
        parts: specifications by kind.
        named: by kind how one was named: None, a name, a table or a specification.

    Raises:
        UserError: when there is another option.
    """
    arguments = inspect.signature(method).parameters.values()
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
