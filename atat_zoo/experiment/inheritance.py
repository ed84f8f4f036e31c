"""Inherit from a run: its weights, tokenizer and backbone by `init_from`, or its tokenizer by the tokenizer `run`.

Does not import torch. A run's weights need the run's tokenizer and backbone, so an experiment with `init_from` can only
change the keys in the backbone's `adjustable`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from atat_zoo.experiment.runs import RunFolder, sha256_of
from atat_zoo.experiment.runs.model_files import DESCRIPTION, TOKENIZER, described
from atat_zoo.experiment.schema import Experiment
from atat_zoo.registry import Zoo
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.errors import Problem, UserError

Table = dict[str, Any]

# Keys of [data] that the weights depend on, taken from the run unless the experiment sets them.
_DATA = ("length", "special_tokens", "packing")


class Refused(UserError):
    """The error for a run that an experiment cannot continue from."""

    def __init__(self, key: str, text: str) -> None:
        self.problem = Problem(key, text)
        super().__init__(str(self.problem))


@attrs.frozen(kw_only=True)
class Source:
    """A finished run whose weights or tokenizer an experiment uses."""

    path: str  # the run's folder, as the experiment writes it
    folder: RunFolder
    table: Table  # the run's experiment
    objective: str  # by name
    step: int  # the number of optimizer steps
    like: Table  # the tokenizer that made the run's `tokenizer.json`
    sha256: str  # the SHA-256 of that file

    @classmethod
    def read(cls, path: str, key: str) -> Source:
        """Return the description of a run's final model, or raise `Refused`, which names the experiment's `key`."""
        folder = RunFolder(Path(path))
        try:
            metadata = described(folder.model_at())
        except UserError as error:
            raise Refused(key, str(error)) from None
        try:
            table, step = metadata["experiment"], int(metadata["step"])
            tokenizer = table["tokenizer"]
            like = dict(tokenizer["like"] if tokenizer["use"] == "run" else tokenizer)
            objective = str(table["objective"]["use"])
        except (KeyError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            problem = f"{folder.model / DESCRIPTION} does not describe a model ({reason}); the file may be damaged: "
            raise Refused(key, f"{problem}restore it, or copy the run again from its original") from None
        digest = sha256_of(folder.model / TOKENIZER)
        return cls(path=path, folder=folder, table=table, objective=objective, step=step, like=like, sha256=digest)

    @property
    def tokenizer(self) -> Table:
        """The `[tokenizer]` table with which an experiment uses this run's tokenizer."""
        return {"use": "run", "path": self.path, "sha256": self.sha256, "like": self.like}


def base_of(table: Table) -> tuple[Table, Source | None]:
    """Return what an experiment's table inherits, and the run in `init_from` or None; may raise `Refused`."""
    tokenizer = table.get("tokenizer")
    tokenizer = tokenizer if isinstance(tokenizer, dict) else {"use": tokenizer}
    by_run = tokenizer.get("use") == "run"
    path = table.get("init_from")
    if not isinstance(path, str) or not path:  # `from_table` reports a wrong type
        # A complete tokenizer table does not need the run.
        if by_run and isinstance(tokenizer.get("path"), str) and not {"sha256", "like"} <= set(tokenizer):
            return {"tokenizer": Source.read(tokenizer["path"], "tokenizer.path").tokenizer}, None
        return {}, None
    source = Source.read(path, "init_from")
    if by_run and "sha256" not in tokenizer and tokenizer.get("path", path) != path:
        raise Refused(
            "tokenizer.path",
            f"{tokenizer['path']!r} here, but init_from = {path!r} keeps that run's tokenizer; remove [tokenizer]",
        )
    base: Table = {"tokenizer": source.tokenizer if by_run else source.like}
    if "backbone" in source.table:
        base["backbone"] = source.table["backbone"]
    data, own = source.table.get("data", {}), table.get("data")
    base["data"] = {key: data[key] for key in _DATA if key in data}
    if isinstance(own, dict) and own.get("format") == "chat":  # its special tokens are those of the template
        base["data"].pop("special_tokens", None)
    return base, source


def adopt(experiment: Experiment, source: Source, zoo: Zoo) -> tuple[Experiment, list[Problem]]:
    """Return the experiment with the run's tokenizer, and a problem for each setting that does not match the run."""
    tokenizer = experiment.parts["tokenizer"]
    if tokenizer.like is None:  # not the tokenizer of a run
        problems = _differences("tokenizer", tokenizer, source.like, source, zoo)
        if problems:
            return experiment, problems + _backbone(experiment, source, zoo)
        tokenizer = zoo.spec("tokenizer", source.tokenizer)
    # The path changes for every tokenizer: the run may have been moved since the experiment was written.
    parts = {**experiment.parts, "tokenizer": attrs.evolve(tokenizer, path=source.path)}
    experiment = attrs.evolve(experiment, parts=parts)
    return experiment, incompatibilities(experiment, source, zoo)


def incompatibilities(experiment: Experiment, source: Source, zoo: Zoo) -> list[Problem]:
    """Return a problem for each parameter of the tokenizer or backbone that the run's weights do not allow."""
    tokenizer = experiment.parts["tokenizer"]
    table = {**source.tokenizer, "path": getattr(tokenizer, "path", source.path)}
    return _differences("tokenizer", tokenizer, table, source, zoo) + _backbone(experiment, source, zoo)


def _backbone(experiment: Experiment, source: Source, zoo: Zoo) -> list[Problem]:
    if "backbone" not in experiment.kinds or "backbone" not in source.table:
        text = f"{source.path} and this experiment do not both have a backbone; remove init_from"
        return [Problem("init_from", text)]
    return _differences("backbone", experiment.parts["backbone"], source.table["backbone"], source, zoo)


def _differences(kind: str, part: Any, table: Table, source: Source, zoo: Zoo) -> list[Problem]:
    """Return a problem for each parameter that differs from the run's table, or one if the component differs."""
    wanted, problems = zoo.structure(kind, table, kind)
    if problems:
        return problems
    here, there = unstructure(part), unstructure(wanted)
    if here["use"] != there["use"]:
        here, there = {"use": here["use"]}, {"use": there["use"]}
    free = getattr(wanted, "adjustable", ())  # a tokenizer has no adjustable keys
    return [
        Problem(
            f"{kind}.{key}",
            f"{_show(here, key)} here, but {_show(there, key)} in {source.path}, whose {kind} cannot be changed; "
            f"remove "
            f"{kind}.{key} or init_from",
        )
        for key in dict.fromkeys([*here, *there])
        if here.get(key) != there.get(key) and key not in free
    ]


def _show(table: Table, key: str) -> str:
    return repr(table[key]) if key in table else "nothing"
