"""A trained model: saved as safetensors and JSON, loaded without unpickling anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo.errors import UserError
from atat_zoo.experiment import from_table
from atat_zoo.generation import Generation, Infilling, Writer, infill
from atat_zoo.model.assembly import assemble
from atat_zoo.model.token_scores import TokenScore, importance_of, uncertainty_of
from atat_zoo.registry import Context, Zoo
from atat_zoo.run import RunFolder, write_json
from atat_zoo.run.atomic import replacing
from atat_zoo.run.renamed import today

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

    from atat_zoo.diffusion.precision import Precision
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.guidance import Guidance
    from atat_zoo.samplers import Sampler
    from atat_zoo.tokenizers import TokenizerModel
    from atat_zoo.uncertainty import Uncertainty

FORMAT = 1
# A part by its name, or as a table with its parameters.
Named = str | Mapping[str, Any]


@attrs.frozen(kw_only=True, eq=False)
class Model:
    """A model and what is needed to use it.

    >>> model = Model.from_run("runs/quickstart")  # doctest: +SKIP

    Attributes:
        experiment: what it was trained with.
        context: the sizes it was built for.
        tokenizer: text to ids and back.
        module: the objective with its parts, in evaluation mode.
        step: optimizer steps behind its weights.
    """

    experiment: Experiment
    context: Context
    tokenizer: TokenizerModel
    module: nn.Module
    step: int

    @classmethod
    def from_run(cls, run: str | Path, device: str = "cpu") -> Model:
        """Load the final model of a run folder.

        Args:
            run: the run folder.
            device: `cpu`, `gpu`, or as torch writes it.

        Raises:
            UserError: when the folder has no final model, or it cannot be read, or there is no such device.
        """
        folder = RunFolder(Path(run))
        folder.final()
        return cls.load(folder.model, torch_device(device))

    @classmethod
    def load(cls, folder: Path, device: str | torch.device = "cpu") -> Model:
        """Load a model folder; see `from_run`."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
            if description["format"] != FORMAT:
                version = description["format"]
                raise UserError(f"{folder} has format {version}, this version reads {FORMAT}; update atat-zoo")
            table, step = today(description["experiment"]), int(description["step"])
            context = Context(**description["context"], device=str(device))
            weights = load_file(folder / "model.safetensors", device=str(device))
        # ValueError: no JSON, no UTF-8; KeyError and TypeError: JSON of another shape.
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise UserError(
                f"{folder} cannot be read: {type(error).__name__}: {error}; copy it again or train again"
            ) from error
        experiment = from_table(table, where=str(folder / "model.json"))
        tokenizer = experiment.parts["tokenizer"].load(folder)
        context = attrs.evolve(context, tokenizer=tokenizer)
        module = assemble(experiment, context).to(device)
        try:
            module.load_state_dict(weights)
        except RuntimeError as error:
            first = str(error).splitlines()[1:2] or [str(error)]
            raise UserError(
                f"{folder}: model.safetensors is of another model than model.json: {first[0].strip()}; "
                "copy both again or train again"
            ) from error
        module.eval()
        return cls(experiment=experiment, context=context, tokenizer=tokenizer, module=module, step=step)

    def writer(self, precision: Precision = "auto", compile: bool = False) -> Writer:
        """Return what writes with this model's weights.

        Args:
            precision: of the network, as `train.precision`; log-probabilities and draws are float32 and float64.
            compile: whether the backbone is compiled by `torch.compile`, which takes a minute and pays when many texts
                are written.
        """
        from atat_zoo.diffusion.precision import computes_in_bf16

        module: Any = compiled(self.module) if compile else self.module
        return Writer(
            denoiser=module.denoiser(),
            tokenizer=self.tokenizer,
            length=self.context.length,
            special=self.experiment.data.special,
            device=self.context.device,
            bf16=computes_in_bf16(precision, self.context.device),
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
        """Write texts.

        Args:
            number: how many.
            sampler: by name, as a table {use = …}, or a specification; the experiment's own if None.
            guidance: in the same ways.
            precision: see `writer`.
            compile: see `writer`.
            options: length, seed, prompt, suffix, batch_size, observe; see `Writer.write`.

        Raises:
            UserError: when the length is more than the model has learned, or prompt and suffix do not fit.
        """
        writer: Writer = self._part("guidance", guidance).guide(self.writer(precision, compile))
        return writer.write(self._part("sampler", sampler), number=number, **options)

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
        """Fill the gaps of one text or several; outside the gaps they stay as they are, byte for byte.

        Args:
            texts: with gaps `[MASK]` (one token), `[MASK:n]` (n tokens) or `[MASK:a-b]` (a to b tokens).
            number: fills of each.
            sampler: by name, as a table {use = …}, or a specification; the experiment's own if None.
            guidance: in the same ways.
            precision: see `writer`.
            options: seed, batch_size; see `generation.infill`.

        Raises:
            UserError: when a gap is malformed, there is none, or a text does not fit.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        writer = self.writer(precision)
        guided: Writer = self._part("guidance", guidance).guide(writer)
        return infill(guided, self._part("sampler", sampler), texts, number=number, weigher=writer, **options)

    def importance(self, text: str) -> list[TokenScore]:
        """Return how important the model's estimator finds each token of a text, in [0, 1].

        Raises:
            UserError: when the model has no estimator, or the text does not fit.
        """
        return importance_of(self, text)

    def uncertainty(
        self, text: str, metric: str | Uncertainty = "entropy", *, batch_size: int = 64
    ) -> list[TokenScore]:
        """Return how unsure the model is of each token of a text given all others, in [0, 1]: each is masked in turn.

        Args:
            text: to read.
            metric: of the kind uncertainty, by name or as a specification.
            batch_size: masked tokens at once; the network is asked once for each.

        Raises:
            UserError: when the text does not fit, or there is no such metric.
        """
        return uncertainty_of(self, text, metric, batch_size)

    def _part(self, kind: str, named: Any) -> Any:
        """Return the specification of a part that is named or given, or the experiment's own."""
        if isinstance(named, str | Mapping):
            return Zoo.load().spec(kind, named)
        return self.experiment.parts[kind] if named is None else named

    def save(self, folder: Path) -> None:
        """Write the model folder; `model.json` comes last, so a folder that has it is complete."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        try:
            folder.mkdir(parents=True, exist_ok=True)
            # An earlier model's description must not stand beside this one's weights.
            (folder / "model.json").unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {error.strerror}; choose another folder") from error
        self.tokenizer.save(folder)
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.module.state_dict().items()}
        with replacing(folder / "model.safetensors") as beside:
            try:
                save_file(weights, beside)
            except SafetensorError as error:  # as which a full disk comes
                raise OSError(str(error)) from error
        write_json(folder / "model.json", self.describe())

    def describe(self) -> dict[str, Any]:
        """Return what `model.json` says."""
        context = attrs.asdict(self.context, filter=lambda a, _: a.name not in ("counts", "device", "tokenizer"))
        return {
            "format": FORMAT,
            "step": self.step,
            "parameters": sum(p.numel() for p in self.module.parameters()),
            "context": context,
            "experiment": self.experiment.to_table(),
        }


def compiled(module: nn.Module) -> nn.Module:
    """Return an objective's module with the same weights and a compiled backbone; the given one stays as it is."""
    import copy

    # Shallow copies share weights; what `compile` sets is an attribute of the copy.
    twin: Any = copy.copy(module)
    twin._modules = dict(module._modules)
    twin.backbone = copy.copy(twin.backbone)
    twin.backbone.compile()
    result: nn.Module = twin
    return result


def torch_device(name: str) -> str:
    """Return a device as torch writes it.

    Raises:
        UserError: when there is none of that name.
    """
    import torch

    device = "cuda" if name == "gpu" else name
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device {name!r}: torch sees no GPU; use cpu")
    return device
