"""What `sample` and `infill` share: a trained run, and the parts that it writes with."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from atat_zoo.cli.parts import value
from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from atat_zoo.experiment import Experiment
    from atat_zoo.tokenizers import TokenizerModel

CHANGED = ("sampler", "guidance")
precision_option = click.option(
    "--precision",
    type=click.Choice(["auto", "fp32", "bf16"]),
    default="auto",
    show_default=True,
    help="Of the network; draws are float64.",
)


def chosen(run: Path, overrides: Sequence[str], sampler: str | None) -> tuple[Experiment, TokenizerModel]:
    """Return a trained run's experiment with another sampler or guidance, and its tokenizer; imports no torch.

    Args:
        run: the run folder.
        overrides: `sampler.steps=32` and the like.
        sampler: a sampler by name or as a table, or None.

    Raises:
        UserError: when the run has no final model, or it cannot be written with so.
    """
    from atat_zoo.experiment import from_overrides
    from atat_zoo.run import RunFolder

    for text in overrides:
        key, equals, _ = text.partition("=")
        if equals and key.split(".")[0].strip() not in CHANGED:
            raise UserError(
                f"{text!r} on the command line: a run is trained already, and takes another sampler or guidance only, "
                "like sampler.steps=32"
            )
    if sampler is not None:
        value("sampler", sampler)
        overrides = [f"sampler={sampler}", *overrides]
    folder = RunFolder(run)
    experiment = from_overrides(folder.table(), overrides, f"{run}/resolved.toml")
    folder.final()
    tokenizer: TokenizerModel = experiment.parts["tokenizer"].load(folder.model)
    return experiment, tokenizer


def check_text(text: str, where: str) -> str:
    """Return a text that came with the command line, which may be no text at all.

    Raises:
        UserError: when its bytes were no UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where} is no UTF-8; give the text in UTF-8") from None
    return text


def lines_of(path: str) -> list[str]:
    """Return the lines of a text file, or of standard input for `-`, without blank ones.

    Raises:
        UserError: when it cannot be read, is no UTF-8, or holds no text.
    """
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            if sys.stdin is None:  # closed by whoever started this
                raise UserError("--file -: standard input is closed; name a file, or pipe text in")
            data = sys.stdin.buffer.read()
        else:
            with open(path, "rb") as file:
                data = file.read()
        text = data.decode("utf-8")
    except OSError as error:
        raise UserError(f"--file {path}: {name} cannot be read: {error.strerror}; name a text file") from None
    except UnicodeDecodeError:
        raise UserError(f"--file {path}: {name} is no UTF-8; give the text in UTF-8") from None
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise UserError(f"--file {path}: {name} is empty; write a text with gaps on each line")
    return lines
