"""Arguments and options that commands share, and functions that parse their values."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from atat_zoo.registry import Zoo
from atat_zoo.registry.spec import evolve
from atat_zoo.system.errors import UserError, clip, nearest
from atat_zoo.system.parsing import TrailingInput, value_of

# Every command imports this module, but few read an experiment.
if TYPE_CHECKING:
    from atat_zoo.data.tokenizers import TokenizerModel
    from atat_zoo.experiment import EvaluationSpec, Experiment

_Command = TypeVar("_Command", bound=Callable[..., object])

_LARGEST = 64 << 20  # bytes of a file of texts with gaps
CHANGED = ("sampler", "guidance")
HELD_OUT = ("split", "bound", "metrics", "sequences", "mask_samples", "sequences_at_once", "mask_seed")


def _step(_: click.Context, __: click.Parameter, value: str | None) -> int | str | None:
    """Return a step number, `newest` or `best`."""
    if value is None or value in ("newest", "best"):
        return value
    if not value.isdecimal():
        raise click.BadParameter(f"{value!r} is not a step; pass a number, newest or best")
    return int(value)


def count(flag: str, least: int, help: str, default: int | None = None, **how: Any) -> Callable[[_Command], _Command]:
    """Return an option for an integer of at least `least`; `flag` holds the option's names, separated by spaces."""
    how |= {"default": default, "show_default": default is not None, "help": help}
    return click.option(*flag.split(), type=click.IntRange(least), **how)


def _choice(flag: str, values: Sequence[str], help: str, default: str | None = None) -> Callable[[_Command], _Command]:
    shown = default is not None
    return click.option(flag, type=click.Choice(values), default=default, show_default=shown, help=help)


_OPTIONS = {
    "run": click.argument("run", type=click.Path(path_type=Path)),
    "overrides": click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]..."),
    "step": click.option(
        "--step",
        callback=_step,
        metavar="N|newest|best",
        help="Checkpoint to use, even from an unfinished run (default: the final model); best needs train.keep_best.",
    ),
    "text": click.option(
        "--corpus", "text", help="Evaluate on different text: files, the name of a corpus, or a table {use = …}."
    ),
    "split": _choice("--split", ["validation", "test"], "Held-out split (default: the experiment's)."),
    "bound": click.option(
        "--bound", help="Bound estimator: exact_k, continuous_t, or a table such as {use = 'discrete_t', steps = 8}."
    ),
    "metrics": click.option(
        "--metric", "metrics", multiple=True, help="Metric: a name or a table {use = …}. Repeatable."
    ),
    "tasks": click.option(
        "--task",
        "tasks",
        multiple=True,
        help="Task: a name such as zero_shot or infilling, or a table {use = …}. Repeatable.",
    ),
    "orders": count(
        "--orders",
        1,
        "Decoding orders that the policy bound averages over (default: 1; bracket: 16; for reported results: 64).",
    ),
    "sequences": count("--sequences", 0, "Maximum number of sequences; 0 means all."),
    "mask_samples": count("--mask-samples", 1, "Number of masks sampled per sequence."),
    "sequences_at_once": count("--batch-size", 1, "Sequences per batch."),
    "batch_size": count("--batch-size", 1, "Texts per batch.", 64),
    "mask_seed": count("--seed", 0, "Seed of the masks (default: the experiment's)."),
    "seed": count("--seed", 0, "Random seed; the same seed gives the same text.", 0),
    "length": count("--length", 1, "Tokens per text (default: the run's data.length)."),
    "sampler": click.option(
        "--sampler", help="Sampler: a name, or a table such as {use = 'ancestral', steps = 32} (default: the run's)."
    ),
    "device": click.option(
        "--device",
        default="auto",
        show_default=True,
        help="Device: cpu, gpu or a torch device type such as mps; auto uses a GPU if available, and spread splits a "
        "large model across all GPUs.",
    ),
    "precision": _choice(
        "--precision", ["auto", "fp32", "bf16"], "Precision of the network (token sampling uses float64).", "auto"
    ),
    # For commands whose texts must not depend on the batch.
    "same_precision": _choice(
        "--precision",
        ["auto", "fp32", "bf16"],
        "Precision of the network; with bf16, a text may depend on the other texts in its batch.",
        "fp32",
    ),
    "markdown": click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown."),
    "json": click.option("--json", "as_json", is_flag=True, help="Print JSON."),
}


class Output(click.Path):
    """A path that a command writes to."""


def output(*names: str, **how: Any) -> Callable[[_Command], _Command]:
    """Return an option for a path that the command writes to, or an argument if the name has no dashes.

    The command raises a `UserError` before it starts if it also reads the file at this path, or if the file belongs to
    a run.
    """
    how |= {"type": Output(path_type=Path)}
    option, declared = (click.option, click.Option) if names[0].startswith("-") else (click.argument, click.Argument)
    name = declared(list(names)).name or ""

    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def guarded(**given: Any) -> Any:
            reads = [value for key, value in given.items() if key != name]
            check_output(given[name], names[0] if names[0].startswith("-") else name.upper(), reads)
            return command(**given)

        return cast(_Command, option(*names, **how)(guarded))

    return decorate


def check_output(path: Path | None, named: str, reads: Iterable[Any]) -> None:
    """Raise a `UserError` if the command also reads the file at an output path, or if the file belongs to a run.

    Values in `reads` that are not file paths are ignored.
    """
    if path is None:
        return
    for each in reads:
        if isinstance(each, tuple):
            check_output(path, named, each)
        elif isinstance(each, str | Path) and str(each) and _is_same(path, Path(each)):
            raise UserError(f"{named} {clip(path)}: the command reads {clip(each)}; pass another path to write to")
    from atat_zoo.experiment.runs import RunFolder

    for folder in Path(os.path.realpath(path)).parents:
        if RunFolder(folder).keeps(path):
            raise UserError(f"{named} {clip(path)} belongs to the run {clip(folder)}; pass another path to write to")


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.is_file() and one.samefile(other)
    except (OSError, ValueError):  # a path does not exist or is not a valid name
        return False


def even(orders: int) -> int:
    """Return `orders`, or raise a `UserError` if it is odd: a likelihood bracket compares two halves of the orders."""
    if orders % 2:
        raise UserError(
            f"--orders {orders}: a likelihood bracket compares two halves of the orders; pass an even number"
        )
    return orders


def options(*names: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds the shared arguments and options with these names to a command."""

    def decorate(command: _Command) -> _Command:
        for name in reversed(names):
            command = _OPTIONS[name](command)
        return command

    return decorate


def with_parts(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options with components for the texts of `bound` and `metrics`, and remove `metrics` from `given`."""
    metrics = tuple(named("metric", each) for each in given.pop("metrics", ())) or None
    return given | {"metrics": metrics} | ({"bound": named("bound", given["bound"])} if given.get("bound") else {})


def with_options(own: EvaluationSpec, given: dict[str, Any], corpus: Any = None) -> EvaluationSpec:
    """Return an experiment's `[evaluation]` section with the command-line options applied.

    For a different `corpus`, the split defaults to one that it has. A metric given twice raises a `UserError`.
    """
    changes = {key: value for key, value in given.items() if value is not None}
    if corpus is not None and "split" not in changes:
        changes["split"] = corpus.held_out_split(own.split)
    try:
        return evolve(own, **changes)
    except ValueError as error:
        raise UserError(f"--metric: {error}") from None


def with_sampler(overrides: Sequence[str], sampler: str | None) -> list[str]:
    """Return the overrides, preceded by `sampler=…` if one is given; raise a `UserError` for an invalid table."""
    if sampler is None:
        return list(overrides)
    _value("sampler", sampler)
    return [f"sampler={sampler}", *overrides]


def chosen(
    run: Path, overrides: Sequence[str], sampler: str | None, step: int | str | None = None
) -> tuple[Experiment, TokenizerModel]:
    """Return a run's experiment with sampler and guidance changed, and its tokenizer; other keys raise `UserError`."""
    from atat_zoo.experiment import from_overrides
    from atat_zoo.experiment.runs import RunFolder
    from atat_zoo.experiment.runs.model_files import DESCRIPTION, described

    for text in overrides:
        key, equals, _ = text.partition("=")
        if equals and key.split(".")[0].strip() not in CHANGED:
            raise UserError(
                f"{text!r} on the command line: only the sampler and the guidance of a trained run can be changed; "
                "pass a key such as sampler.steps=32"
            )
    model = RunFolder(run).model_at(step)
    table = described(model)["experiment"]
    experiment = from_overrides(table, with_sampler(overrides, sampler), str(model / DESCRIPTION))
    tokenizer: TokenizerModel = experiment.parts["tokenizer"].load(model)
    return experiment, tokenizer


def check_text(text: str, where: str) -> str:
    """Return a text from the command line unchanged; raise a `UserError`, which names `where`, if it is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where} is not UTF-8; encode the text as UTF-8") from None
    return text


def lines_of(path: str) -> list[str]:
    """Return the non-blank lines of a UTF-8 file (`-`: standard input); raise a `UserError` if unreadable or empty."""
    name = "standard input" if path == "-" else path
    try:
        if path == "-" and sys.stdin is None:  # closed by the parent process
            raise UserError("--file -: standard input is closed; pass a file, or pipe text in")
        with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:  # some devices never end
            raise UserError(f"--file {path}: {name} is larger than {_LARGEST >> 20} MiB; split it into smaller files")
        text = data.decode("utf-8")
    except OSError as error:
        raise UserError(f"--file {path}: {name} cannot be read: {error.strerror}; pass a text file") from None
    except UnicodeDecodeError:
        raise UserError(f"--file {path}: {name} is not UTF-8; convert it to UTF-8") from None
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n") if line.strip()]
    if not lines:
        raise UserError(f"--file {path}: {name} is empty; write a text with gaps on each line")
    return lines


def named(kind: str, text: str) -> Any:
    """Return the component for a name or an inline TOML table; raise a `UserError` if it is unknown or invalid."""
    return Zoo.load().spec(kind, _value(kind, text))


def other_text(text: str | None) -> dict[str, Any]:
    """Return the arguments of `held_out_text.text_of` for a value of `--corpus`: a corpus name, a table or files."""
    from atat_zoo.data.corpora.text_files import glob_paths
    from atat_zoo.experiment import recipe, recipes

    if not text:
        return {}
    path, parts, shipped = Path(text), Zoo.load().names("corpus"), recipes()
    if text in shipped:
        spec = recipe(text)
        return {"corpus": spec, "corpus_name": text, "all_of_corpus": spec.undivided}
    if text.startswith("{") or text in parts:
        spec = named("corpus", text)
        return {"corpus": spec, "corpus_name": spec.name}
    if not path.exists() and not glob_paths(path):
        known = sorted({*parts, *shipped})
        raise UserError(
            f"--corpus {text}: no file or corpus has this name{nearest(text, known)} "
            f"(corpora: {', '.join(known)}); pass a file path or pattern, a corpus name, or a table {{use = …}}"
        )
    files = {"use": "files", "train": [text], "validation_share": 0.0, "test_share": 0.0}
    spec = Zoo.load().spec("corpus", files)
    return {"corpus": spec, "corpus_name": "/".join(path.parts[-2:]), "all_of_corpus": True}


def _value(kind: str, text: str) -> Any:
    """Return a name unchanged, or the parsed value of a TOML table."""
    if not text.startswith("{"):
        return text
    try:
        table = value_of(text)
    except TrailingInput:
        raise UserError(f"--{kind} {text!r}: there is text after the table; remove it") from None
    except ValueError as error:
        raise UserError(f"--{kind} {text!r}: {error}; pass a TOML table such as {{use = 'name'}}") from None
    if not isinstance(table, dict) or not isinstance(table.get("use"), str):
        raise UserError(f'--{kind} {text!r}: expected a table with the key use, such as {{use = "name"}}')
    return table
