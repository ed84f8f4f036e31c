"""The arguments and options that commands share, each declared once, and the parsing of their values."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from atat_zoo.errors import UserError, nearest
from atat_zoo.parsing import Dropped, value_of
from atat_zoo.registry import Zoo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atat_zoo.experiment import EvaluationSpec, Experiment
    from atat_zoo.tokenizers import TokenizerModel

_Command = TypeVar("_Command", bound="Callable[..., object]")

NONE = "—"
_LARGEST = 64 << 20  # bytes of a file of texts with gaps
CHANGED = ("sampler", "guidance")
ZERO_SHOT = "zero-shot"  # a value of `--corpus`
HELD_OUT = ("split", "bound", "sequences", "draws", "sequences_at_once", "mask_seed")
_OPTIONS = {
    "run": click.argument("run", type=click.Path(path_type=Path)),
    "overrides": click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]..."),
    "step": click.option(
        "--step", type=click.IntRange(1), help="Take the weights of this checkpoint, also of an unfinished run."
    ),
    "text": click.option(
        "--corpus", "text", help="Other text: files, the name of a corpus, zero-shot, or a table {use = …}."
    ),
    "split": click.option(
        "--split", type=click.Choice(["validation", "test"]), help="Held-out text; the experiment's when absent."
    ),
    "bound": click.option("--bound", help="exact_k, continuous_t, or a table like {use = 'discrete_t', steps = 8}."),
    "orders": click.option(
        "--orders",
        type=click.IntRange(1),
        help="Orders averaged inside the policy bound; 1 when absent, 64 for claims.",
    ),
    "sequences": click.option("--sequences", type=click.IntRange(0), help="Maximum number of sequences; 0 for all."),
    "draws": click.option("--draws", type=click.IntRange(1), help="Masks drawn for every sequence."),
    "sequences_at_once": click.option("--batch-size", type=click.IntRange(1), help="Sequences in a batch."),
    "mask_seed": click.option(
        "--seed", type=click.IntRange(0), help="Seed of the masks; the experiment's when absent."
    ),
    "seed": click.option(
        "--seed", default=0, show_default=True, type=click.IntRange(0), help="The same seed gives the same text."
    ),
    "length": click.option("--length", type=click.IntRange(1), help="Tokens in a text; as in training when absent."),
    "sampler": click.option(
        "--sampler", help="A sampler, or a table like {use = 'ancestral', steps = 32}; the run's when absent."
    ),
    "batch_size": click.option(
        "--batch-size", default=64, show_default=True, type=click.IntRange(1), help="Texts in a batch."
    ),
    "device": click.option(
        "--device",
        type=click.Choice(["auto", "cpu", "gpu"]),
        default="auto",
        show_default=True,
        help="auto: a GPU if there is one.",
    ),
    "precision": click.option(
        "--precision",
        type=click.Choice(["auto", "fp32", "bf16"]),
        default="auto",
        show_default=True,
        help="Precision of the network; draws are float64.",
    ),
    "markdown": click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown."),
    "json": click.option("--json", "as_json", is_flag=True, help="Print JSON."),
}


def options(*names: str) -> Callable[[_Command], _Command]:
    """Return a decorator that gives a command the shared arguments and options of these names."""

    def decorate(command: _Command) -> _Command:
        for name in reversed(names):
            command = _OPTIONS[name](command)
        return command

    return decorate


def number_option(default: int, least: int, help: str) -> Callable[[_Command], _Command]:
    """Return the option `--number`."""
    return click.option("--number", default=default, show_default=True, type=click.IntRange(least), help=help)


def with_bound(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options with `bound` as a specification, before torch is imported.

    Raises:
        UserError: when there is no such bound.
    """
    return given | ({"bound": named("bound", given["bound"])} if given.get("bound") else {})


def with_options(own: EvaluationSpec, given: dict[str, Any]) -> EvaluationSpec:
    """Return an experiment's own [evaluation], changed by the options of the command line."""
    plain: Any = own
    evolved: EvaluationSpec = attrs.evolve(plain, **{k: value for k, value in given.items() if value is not None})
    return evolved


def with_sampler(overrides: Sequence[str], sampler: str | None) -> list[str]:
    """Return the overrides, preceded by the value of `--sampler`.

    Raises:
        UserError: when it is a table that TOML cannot read, or one without `use`.
    """
    if sampler is None:
        return list(overrides)
    _value("sampler", sampler)
    return [f"sampler={sampler}", *overrides]


def chosen(
    run: Path, overrides: Sequence[str], sampler: str | None, step: int | None = None
) -> tuple[Experiment, TokenizerModel]:
    """Return a trained run's experiment with another sampler or guidance, and its tokenizer; imports no torch.

    Raises:
        UserError: when the run has no final model or none of `step`, or an override is invalid or changes another part.
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
    folder = RunFolder(run)
    experiment = from_overrides(folder.table(), with_sampler(overrides, sampler), f"{run}/resolved.toml")
    tokenizer: TokenizerModel = experiment.parts["tokenizer"].load(folder.model_at(step))
    return experiment, tokenizer


def check_text(text: str, where: str) -> str:
    """Return a text of the command line, or raise `UserError` when its bytes are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where} is no UTF-8; give the text in UTF-8") from None
    return text


def lines_of(path: str) -> list[str]:
    """Return the lines of a text file, or of standard input for `-`, without blank lines.

    Raises:
        UserError: when it cannot be read, is not UTF-8, or has no text.
    """
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            if sys.stdin is None:  # closed by the parent process
                raise UserError("--file -: standard input is closed; name a file, or pipe text in")
            data = sys.stdin.buffer.read(_LARGEST + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:  # some devices never end
            raise UserError(f"--file {path}: {name} is larger than {_LARGEST >> 20} MiB; give fewer texts at once")
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
    """Return a part's specification, from its name or from an inline TOML table.

    Raises:
        UserError: when there is no such part, or it has no such parameters.
    """
    return Zoo.load().spec(kind, _value(kind, text))


def corpus(text: str) -> tuple[Any, str, bool]:
    """Return the corpus for a value of `--corpus`: a part, a recipe that ships, or text files by path or pattern.

    Returns:
        The specification, its name in reports, and whether to use all of its text instead of a split.
    """
    import glob

    from atat_zoo.experiment import recipe, recipes

    path, parts, shipped = Path(text), Zoo.load().names("corpus"), recipes()
    known = sorted({*parts, *shipped})
    if text in shipped:
        spec = recipe(text)
        return spec, text, getattr(spec, "undivided", False)
    if text.startswith("{") or text in parts:
        spec = named("corpus", text)
        return spec, spec.name, False
    if not path.exists() and not glob.glob(text, recursive=True):
        raise UserError(
            f"--corpus {text}: there is no such file and no corpus of that name{nearest(text, known)} "
            f"(there are: {', '.join(known)}); name files by path or pattern, a corpus, or a table {{use = …}}"
        )
    files = {"use": "files", "train": [text], "validation_share": 0.0, "test_share": 0.0}
    return Zoo.load().spec("corpus", files), "/".join(path.parts[-2:]), True


def _value(kind: str, text: str) -> Any:
    """Return a name unchanged, and a table parsed as TOML."""
    if not text.startswith("{"):
        return text
    try:
        table = value_of(text)
    except Dropped:
        raise UserError(f"--{kind} {text!r}: is more than a table; leave out what follows it") from None
    except ValueError as error:
        raise UserError(f"--{kind} {text!r}: is not a table as TOML writes it: {error}") from None
    if not isinstance(table, dict) or not isinstance(table.get("use"), str):
        raise UserError(f'--{kind} {text!r}: expected a table with use, like {{use = "name"}}')
    return table
