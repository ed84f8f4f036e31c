"""Beginning with the weights of another run: `init_from`."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import attrs
import torch

from atat_zoo.diffusion.contracts import StatefulPart
from atat_zoo.errors import UserError
from atat_zoo.experiment.inheritance import Source, misfits
from atat_zoo.registry import Zoo

if TYPE_CHECKING:
    from torch import Tensor, nn

    from atat_zoo.experiment import Experiment


@attrs.frozen(kw_only=True)
class Beginning:
    """The final weights of another run, of which a training takes what it has itself.

    Attributes:
        source: the run.
        sha256: of its weights' file.
    """

    source: Source
    sha256: str

    @classmethod
    def of(cls, experiment: Experiment) -> Beginning | None:
        """Look at the run that an experiment continues from, before anything is built; None where it names none.

        Raises:
            UserError: when the run is not there, not finished, or has another tokenizer or backbone.
        """
        if experiment.init_from is None:
            return None
        try:
            source = Source.read(experiment.init_from)
        except UserError as error:
            raise UserError(f"init_from: {error}") from None
        problems = misfits(experiment, source, Zoo.load())
        if problems:
            raise UserError("\n".join(problems))
        with (source.folder.model / "model.safetensors").open("rb") as file:
            return cls(source=source, sha256=hashlib.file_digest(file, "sha256").hexdigest())

    def record(self) -> dict[str, Any]:
        """Return what environment.json says of it."""
        return {"run": self.source.path, "step": self.source.step, "sha256": self.sha256}

    def give(self, objective: nn.Module) -> str:
        """Copy the weights of the backbone, and of every part that both models have; returns what was done, in words.

        A part is taken completely or not at all. What a part remembers of its corpus (a running loss, token
        frequencies) are buffers, not weights, and begins anew.

        Raises:
            UserError: when the file cannot be read, or its backbone is another one after all.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.source.folder.model / "model.safetensors"
        try:
            theirs = load_file(path)
        except (OSError, SafetensorError) as error:
            raise UserError(f"init_from: {path} cannot be read: {error}; copy the run again") from None
        ours = parts_of(objective)
        taken, fresh = [], []
        for part, weights in ours.items():
            problem = _misfit(part, weights, theirs)
            if not problem:
                with torch.no_grad():
                    for name, weight in weights.items():
                        weight.copy_(theirs[name])
                taken.append(part)
            elif part == "backbone":
                raise UserError(f"init_from: {path} does not fit [backbone]: {problem}; copy the run again")
            else:
                fresh.append(f"{part} ({problem})")
        remembering = [name for name, part in objective.named_children() if isinstance(part, StatefulPart)]
        fresh += [f"what {part} remembers" for part in remembering]
        return (
            f"beginning with {self.source.path} (objective {self.source.objective}, step {self.source.step}): "
            f"{' and '.join(taken)} from there" + (f"; fresh: {', '.join(fresh)}" if fresh else "")
        )


def parts_of(objective: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Return the tensors that make up each part of a model, by the name that the objective has for the part.

    Of the backbone all that is saved, of the others what is trained.
    """
    state = objective.state_dict()
    backbone = {name: tensor for name, tensor in state.items() if name.startswith("backbone.")}
    parts: dict[str, dict[str, Tensor]] = {"backbone": backbone}
    for name, parameter in objective.named_parameters():
        part = name.partition(".")[0]
        if part != "backbone" and parameter.requires_grad:
            parts.setdefault(part, {})[name] = parameter
    return parts


def _misfit(part: str, ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> str:
    """Say in words why a part's weights cannot be taken; empty when they can."""
    if not any(name.partition(".")[0] == part for name in theirs):
        return "the run has none"
    for name, tensor in ours.items():
        if name not in theirs:
            return f"the run has another one, without {name}"
        if theirs[name].shape != tensor.shape:
            return f"{name} is {list(theirs[name].shape)} there and {list(tensor.shape)} here"
    return ""
