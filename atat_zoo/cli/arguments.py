"""The arguments and options that commands share, each declared once, and the parsing of their values."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
import click

from atat_zoo.registry import Zoo
from atat_zoo.system.errors import UserError, clip, nearest
from atat_zoo.system.parsing import TrailingInput, value_of

# Every command imports this module, and few read an experiment.
if TYPE_CHECKING:
    from atat_zoo.data.tokenizers import TokenizerModel
    from atat_zoo.experiment import EvaluationSpec, Experiment

_Command = TypeVar("_Command", bound=Callable[..., object])

_LARGEST = 64 << 20  # bytes of a file of texts with gaps
CHANGED = ("sampler", "guidance")
HELD_OUT = ("split", "bound", "metrics", "sequences", "mask_samples", "sequences_at_once", "mask_seed")


def _step(_: click.Context, __: click.Parameter, value: str | None) -> int | str | None:
    """Return a step of a run, or which one it is: `newest` or `best`."""
    if value is None or value in ("newest", "best"):
        return value
    if not value.isdecimal():
        raise click.BadParameter(f"{value!r} is no step; give its number, newest or best")
    return int(value)


def count(flag: str, least: int, help: str, default: int | None = None, **how: Any) -> Callable[[_Command], _Command]:
    """Return an option that takes a whole number, from `least` on; `flag` has its names, separated by spaces."""
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
        help="Checkpoint to use, also of an unfinished run (default: the final model); best requires train.keep_best.",
    ),
    "text": click.option(
        "--corpus", "text", help="Evaluate on other text: files, the name of a corpus, or a table {use = …}."
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
        "Decoding orders averaged inside the policy bound (default: 1; use 64 for results that you report).",
    ),
    "sequences": count("--sequences", 0, "Maximum number of sequences; 0 means all."),
    "mask_samples": count("--mask-samples", 1, "Masks sampled per sequence."),
    "sequences_at_once": count("--batch-size", 1, "Sequences per batch."),
    "batch_size": count("--batch-size", 1, "Texts per batch.", 64),
    "mask_seed": count("--seed", 0, "Seed of the masks (default: the experiment's)."),
    "seed": count("--seed", 0, "Random seed; the same seed gives the same text.", 0),
    "length": count("--length", 1, "Tokens per text (default: the training length)."),
    "sampler": click.option(
        "--sampler", help="Sampler: a name, or a table such as {use = 'ancestral', steps = 32} (default: the run's)."
    ),
    "device": click.option(
        "--device",
        default="auto",
        show_default=True,
        help="cpu, gpu, or a torch device type such as mps; auto: a GPU if there is one; spread: split a large "
        "model over all GPUs.",
    ),
    "precision": _choice(
        "--precision", ["auto", "fp32", "bf16"], "Precision of the network; token sampling uses float64.", "auto"
    ),
    # Whose texts are the same in any batch.
    "same_precision": _choice(
        "--precision",
        ["auto", "fp32", "bf16"],
        "Precision of the network; in bf16 a text may depend on the other texts in its batch.",
        "fp32",
    ),
    "markdown": click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown."),
    "json": click.option("--json", "as_json", is_flag=True, help="Print JSON."),
}


class Output(click.Path):
    """A path that a command writes."""


def output(*names: str, **how: Any) -> Callable[[_Command], _Command]:
    """Return an option for a path that the command writes, or an argument if its name has no dashes.

    It is refused before anything is done where it names a file that the command reads, or one of a run.
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
    """Raise a `UserError` when a path that will be written is a file that is read, or belongs to a run.

    Of what is read, everything that is no path of a file is left out.
    """
    if path is None:
        return
    for each in reads:
        if isinstance(each, tuple):
            check_output(path, named, each)
        elif isinstance(each, str | Path) and str(each) and _is_same(path, Path(each)):
            raise UserError(f"{named} {clip(path)}: the command reads {clip(each)}; name another one to write")
    from atat_zoo.experiment.runs import RunFolder

    for folder in Path(os.path.realpath(path)).parents:
        if RunFolder(folder).keeps(path):
            raise UserError(f"{named} {clip(path)}: belongs to the run {clip(folder)}; name another one to write")


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.is_file() and one.samefile(other)
    except (OSError, ValueError):  # one of them is not there, or has a name that none can have
        return False


def even(orders: int) -> int:
    """Return a number of `--orders` of a bracket, or raise `UserError` when it is odd."""
    if orders % 2:
        raise UserError(
            f"--orders {orders}: a bracket holds half of its orders against the others; name an even number"
        )
    return orders


def options(*names: str) -> Callable[[_Command], _Command]:
    """Return a decorator that gives a command the shared arguments and options of these names."""

    def decorate(command: _Command) -> _Command:
        for name in reversed(names):
            command = _OPTIONS[name](command)
        return command

    return decorate


def with_parts(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options with `bound` and `metrics` as specifications, before torch is imported."""
    metrics = tuple(named("metric", each) for each in given.pop("metrics", ())) or None
    return given | {"metrics": metrics} | ({"bound": named("bound", given["bound"])} if given.get("bound") else {})


def with_options(own: EvaluationSpec, given: dict[str, Any], corpus: Any = None) -> EvaluationSpec:
    """Return an experiment's own [evaluation], changed by the options of the command line.

    On another corpus the split is one that it has, unless an option names one.
    """
    plain: Any = own
    changes = {key: value for key, value in given.items() if value is not None}
    if corpus is not None and "split" not in changes:
        changes["split"] = corpus.held_out_split(plain.split)
    try:
        evolved: EvaluationSpec = attrs.evolve(plain, **changes)
    except ValueError as error:
        raise UserError(f"--metric: {error}") from None
    return evolved


def with_sampler(overrides: Sequence[str], sampler: str | None) -> list[str]:
    """Return the overrides, preceded by the value of `--sampler`."""
    if sampler is None:
        return list(overrides)
    _value("sampler", sampler)
    return [f"sampler={sampler}", *overrides]


def chosen(
    run: Path, overrides: Sequence[str], sampler: str | None, step: int | str | None = None
) -> tuple[Experiment, TokenizerModel]:
    """Return a trained run's experiment with another sampler or guidance, and its tokenizer; imports no torch."""
    from atat_zoo.experiment import from_overrides
    from atat_zoo.experiment.runs import RunFolder
    from atat_zoo.experiment.runs.model_files import DESCRIPTION, described

    for text in overrides:
        key, equals, _ = text.partition("=")
        if equals and key.split(".")[0].strip() not in CHANGED:
            raise UserError(
                f"{text!r} on the command line: a run is trained already, and takes another sampler or guidance only, "
                "like sampler.steps=32"
            )
    model = RunFolder(run).model_at(step)
    table = described(model)["experiment"]
    experiment = from_overrides(table, with_sampler(overrides, sampler), str(model / DESCRIPTION))
    tokenizer: TokenizerModel = experiment.parts["tokenizer"].load(model)
    return experiment, tokenizer


def check_text(text: str, where: str) -> str:
    """Return a text of the command line, or raise `UserError` when its bytes are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where} is no UTF-8; give the text in UTF-8") from None
    return text


def lines_of(path: str) -> list[str]:
    """Return the lines of a text file, or of standard input for `-`, without blank lines."""
    name = "standard input" if path == "-" else path
    try:
        if path == "-" and sys.stdin is None:  # closed by the parent process
            raise UserError("--file -: standard input is closed; name a file, or pipe text in")
        with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:  # some devices never end
            raise UserError(f"--file {path}: {name} is larger than {_LARGEST >> 20} MiB; give fewer texts at once")
        text = data.decode("utf-8")
    except OSError as error:
        raise UserError(f"--file {path}: {name} cannot be read: {error.strerror}; name a text file") from None
    except UnicodeDecodeError:
        raise UserError(f"--file {path}: {name} is no UTF-8; give the text in UTF-8") from None
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n") if line.strip()]
    if not lines:
        raise UserError(f"--file {path}: {name} is empty; write a text with gaps on each line")
    return lines


def named(kind: str, text: str) -> Any:
    """Return a part's specification, from its name or from an inline TOML table."""
    return Zoo.load().spec(kind, _value(kind, text))


def other_text(text: str | None) -> dict[str, Any]:
    """Return the keywords of `text_of` for a value of `--corpus`: a part, a recipe that ships, or files by pattern."""
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
            f"--corpus {text}: there is no such file and no corpus of that name{nearest(text, known)} "
            f"(there are: {', '.join(known)}); name files by path or pattern, a corpus, or a table {{use = …}}"
        )
    files = {"use": "files", "train": [text], "validation_share": 0.0, "test_share": 0.0}
    spec = Zoo.load().spec("corpus", files)
    return {"corpus": spec, "corpus_name": "/".join(path.parts[-2:]), "all_of_corpus": True}


def _value(kind: str, text: str) -> Any:
    """Return a name unchanged, and a table parsed as TOML."""
    if not text.startswith("{"):
        return text
    try:
        table = value_of(text)
    except TrailingInput:
        raise UserError(f"--{kind} {text!r}: is more than a table; leave out what follows it") from None
    except ValueError as error:
        raise UserError(f"--{kind} {text!r}: is not a table as TOML writes it: {error}") from None
    if not isinstance(table, dict) or not isinstance(table.get("use"), str):
        raise UserError(f'--{kind} {text!r}: expected a table with use, like {{use = "name"}}')
    return table
