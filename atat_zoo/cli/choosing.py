"""What commands choose by their arguments: parts, and a trained run with the parts that it writes with."""

from __future__ import annotations

import glob
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atat_zoo.errors import UserError, nearest
from atat_zoo.registry import Zoo

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def named(kind: str, text: str) -> Any:
    """Return the specification that a text names.

    Args:
        kind: of the part.
        text: a name, or an inline table as TOML writes it.

    Raises:
        UserError: when there is no such part, or it has no such parameters.
    """
    return Zoo.load().spec(kind, value(kind, text))


def corpus(text: str) -> tuple[Any, str, bool]:
    """Return the corpus that a text names: a part, or text files by path or pattern.

    Returns:
        The specification, what to call it, and whether all of its text is meant and not a split of it.
    """
    path, known = Path(text), Zoo.load().names("corpus")
    if text.startswith("{") or text in known:
        made = named("corpus", text)
        return made, made.name, False
    if path.is_dir():
        raise UserError(f"--corpus {text} is a folder; name the text files in it, as in '{text}/*.txt'")
    if not path.is_file() and not glob.glob(text, recursive=True):
        raise UserError(
            f"--corpus {text}: there is no such file and no corpus of that name{nearest(text, known)} "
            f"(there are: {', '.join(known)}); name files by path or pattern, a corpus, or a table {{use = …}}"
        )
    files = {"use": "files", "train": [text], "validation_share": 0.0, "test_share": 0.0}
    return Zoo.load().spec("corpus", files), "/".join(path.parts[-2:]), True


def value(kind: str, text: str) -> Any:
    """Return the name, or the table, that a text is.

    Raises:
        UserError: when it is a table that TOML cannot read, or one without `use`.
    """
    if not text.startswith("{"):
        return text
    try:
        table = tomllib.loads(f"x = {text}")["x"]
    except (ValueError, RecursionError) as error:
        raise UserError(f"--{kind} {text!r}: is not a table as TOML writes it: {error}") from None
    if not isinstance(table, dict) or not isinstance(table.get("use"), str):
        raise UserError(f'--{kind} {text!r}: expected a table with use, like {{use = "name"}}')
    return table
