"""The generated pages of the reference: experiment keys, commands, the Python API, and an index."""

from __future__ import annotations

import inspect
import pkgutil
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click
import kinds
from kinds import cell, code, joined, parameters, table

import atat_zoo.diffusion
from atat_zoo.cli import COMMANDS, atat
from atat_zoo.experiment.schema import SECTIONS, TOP_LEVEL
from atat_zoo.registry import KINDS, TABLES, Zoo

if TYPE_CHECKING:
    from collections.abc import Iterator

PLUGINS = Path(__file__).parents[1] / "plugins"


def write(folder: Path) -> None:
    """Write all pages of the reference except error-messages.md, which is part of the repository."""
    kinds.write(folder / "components")
    for name, text in {"index": _INDEX, "keys": keys(), "commands": commands(), "python-api": python_api()}.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


_INDEX = """\
# Reference

| page | contents |
| --- | --- |
| [Components](components/index.md) | every component by kind: parameters, types, defaults, references |
| [Keys of an experiment](keys.md) | every key of an experiment file: type, default, meaning |
| [Commands](commands.md) | every command of `atat`, with its options |
| [Python API](python-api.md) | the classes and functions that programs and plugins can rely on |
| [Error messages](error-messages.md) | messages that `atat` prints for bad input |

```{toctree}
:hidden:

components/index
keys
commands
python-api
error-messages
```
"""


def keys() -> str:
    """Return the page of all keys of an experiment, in Markdown."""
    zoo = Zoo.load()
    top = [[f"`{name}`", code(key.type_name), cell(key.default), cell(key.help)] for name, key in TOP_LEVEL.items()]
    chosen = [
        [f"[`[{kind}]`](components/{kind}.md)", f"`{default}`", KINDS[kind].summary, ", ".join(zoo.names(kind))]
        for kind, default in TABLES.items()
    ]
    sections = [
        text
        for name, spec in SECTIONS.items()
        for text in (f"## `[{name}]`", spec.__doc__ or "", parameters(spec))
    ]  # fmt: skip
    return joined(
        "# Keys of an experiment",
        "An experiment is a TOML file. Set any key on the command line as `KEY=VALUE`, for example "
        "`atat train quickstart train.steps=200`. `atat resolve EXPERIMENT` prints every key with its value, and "
        "`atat check EXPERIMENT` reports every mistake.",
        "## Top level",
        table(["key", "type", "default", "meaning"], top),
        *sections,
        "## Tables of components",
        'Each table selects a component with `use = "NAME"`; its other keys are the component\'s parameters. `KIND = '
        '"NAME"` is short for a table that contains only `use`. A missing table selects the default component.',
        table(["table", "default", "meaning", "components"], chosen),
    )


def commands() -> str:
    """Return the page of all commands with their arguments and options, in Markdown."""
    core = [(name, getattr(import_module(f"atat_zoo.cli.{m}"), f)) for name, (m, f, _) in COMMANDS.items()]
    options = [param.get_help_record(click.Context(atat)) for param in atat.params]
    packages = [
        text
        for package, offered in _packages()
        for text in (f"## Commands of {package}", *(part for each in offered for part in _command(*each, level=3)))
    ]
    return joined(
        "# Commands",
        "`atat COMMAND --help` prints the same text. `EXPERIMENT` is a TOML file or the name of an experiment that "
        "ships with atat_zoo, `RUN` is a run folder such as `runs/quickstart`, and `KEY=VALUE` changes a "
        "[key of the experiment](keys.md).",
        table(
            ["option of `atat`", "meaning"], [[code(flag), cell(meaning)] for flag, meaning in filter(None, options)]
        ),
        *(text for each in core for text in _command(*each, level=2)),
        *packages,
    )


def _packages() -> Iterator[tuple[str, list[tuple[str, click.Command | str]]]]:
    """Yield each package in plugins/ with its commands, or with the summary of a command that cannot be imported."""
    for project in sorted(PLUGINS.glob("atat-zoo-*/pyproject.toml")):
        folder, points = project.parent, tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        points = points.get("entry-points", {}).get("atat_zoo.commands", {})
        offered: list[tuple[str, click.Command | str]] = []
        for name, place in sorted(points.items()):
            module, _, function = place.partition(":")
            sys.path.insert(0, str(folder))
            try:
                offered.append((name, getattr(import_module(module), function)))
            except ImportError:
                listed = tomllib.loads((folder / module.split(".")[0] / "registry.toml").read_text(encoding="utf-8"))
                offered.append((name, listed["command"][name]["summary"]))
            finally:
                sys.path.remove(str(folder))
        if offered:
            yield folder.name, offered


def _command(name: str, command: click.Command | str, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} `atat {name}`"
    if isinstance(command, str):
        yield command
        return
    context = click.Context(command, info_name=f"atat {name}")
    usage = command.collect_usage_pieces(context)
    yield f"```text\natat {name} {' '.join(usage)}\n```"
    yield inspect.cleandoc(command.help or "")
    options = [param.get_help_record(context) for param in command.params if isinstance(param, click.Option)]
    yield table(["option", "meaning"], [[code(flag), cell(meaning)] for flag, meaning in filter(None, options)])
    if isinstance(command, click.Group):
        inner = {each: command.get_command(context, each) for each in command.list_commands(context)}
        if {*KINDS} <= {*inner}:  # all kinds have the same options
            yield f"KIND is one of {', '.join(KINDS)}."
            inner = {"KIND": inner["masking"]} | {each: inner[each] for each in inner if each not in KINDS}
        for each, its in inner.items():
            if its is not None:
                yield from _command(f"{name} {each}", its, level=level + 1)


def python_api() -> str:
    """Return the page of the Python API, in Markdown, with directives that print the docstrings."""
    mathematics = [f"atat_zoo.diffusion.{module.name}" for module in pkgutil.iter_modules(atat_zoo.diffusion.__path__)]
    return joined(
        "# Python API",
        "Programs and plugins can rely on the names on this page; everything else may change between releases. The "
        "contract of each kind is on the [page of that kind](components/index.md). For examples, see "
        "[use atat_zoo from Python](../how-to/python.md).",
        *(text for title, about, made in _API for text in (f"## {title}", about, _rest(made))),
        "## `atat_zoo.diffusion`",
        "The mathematics, as pure functions of tensors.",
        _rest([("automodule", name, _SELECTED.get(name, "")) for name in mathematics]),
        _rest([("autodata", "atat_zoo.diffusion.positions.Where", None)]),
    )


def _rest(made: list[tuple[str, str, str | None]]) -> str:
    """Return directives, given as name, object and members: "" for all members, None for none, or a list or text."""
    text = []
    for directive, name, rest in made:
        text.append(f".. {directive}:: {name}\n")
        if directive.startswith("py:"):
            text.append(f"   {rest}\n")
        elif rest is not None:
            text[-1] += f"   :members: {rest}".rstrip() + "\n   :special-members: __call__\n"
        if name == "atat_zoo.Model":
            text[-1] += "   :inherited-members:\n"
    return "```{eval-rst}\n" + "\n".join(text) + "```"


_SELECTED = {"atat_zoo.diffusion.attention": "attend, attention_mask, document_rule"}
_API: list[tuple[str, str, list[tuple[str, str, str | None]]]] = [
    ("`atat_zoo`", "Load a model, evaluate it and generate text; look up and build components.", [
        ("autoclass", "atat_zoo.Model", ""),
        ("autoclass", "atat_zoo.Zoo", ""),
        ("autoclass", "atat_zoo.UserError", ""),
        ("py:data", "atat_zoo.__version__", "The version of this release."),
    ]),
    ("Scores of given texts", "The objects in which `Model` returns scores; a notebook displays them as heat maps.", [
        ("automodule", "atat_zoo.generation.token_scores",
         "TokenScore, TokenScores, LogProbs, TextScores, NLLBound, Unmasking"),
    ]),
    ("`atat_zoo.registry`", "Declare components, and add them to the zoo from a plugin.", [
        ("automodule", "atat_zoo.registry",
         "Context, component, component_base, network_of, param, component_param, components_param, problems_of, "
         "values_of"),
        ("py:class", "Zoo", "The same as :class:`atat_zoo.Zoo`."),
        ("py:decorator", "hookimpl", "Marks a function `atat_zoo_KIND` that returns the component classes of a kind."),
        ("py:data", "CONTRACT", "The version of the contracts. A plugin written for a later version is not loaded."),
        ("py:data", "KINDS", "A dict from the name of each kind to its `Kind`."),
        ("py:data", "TABLES", "A dict from each kind with a table in an experiment to its default component."),
        ("py:data", "PROJECT", "The name of the entry point group and the prefix of the hooks."),
        ("automodule", "atat_zoo.registry.hookspecs", "Kind"),
    ]),
    ("`atat_zoo.system.errors`", "Messages for the user, which `atat` prints without a traceback.", [
        ("automodule", "atat_zoo.system.errors", "Problem, nearest, clip, OmissionNote, UnsavedNote, Note"),
    ]),
    ("Building blocks", "Classes and functions imported by the packages that `atat new` writes.", [
        ("autoclass", "atat_zoo.generation.samplers.sampler_choices.SamplerChoices", ""),
        ("autoclass", "atat_zoo.generation.samplers.composite.CompositeSampler", ""),
        ("autoclass", "atat_zoo.generation.samplers.order.LeftToRightOrder", None),
        ("autoclass", "atat_zoo.generation.samplers.tokens_per_step.CosineTokensPerStep", None),
        ("autoclass", "atat_zoo.modeling.objectives.Batch", ""),
        ("automodule", "atat_zoo.modeling.objectives.denoising", "DenoisingModule, metrics, normalised"),
        ("autoclass", "atat_zoo.evaluation.metric_states.SequenceMean", None),
        ("autoclass", "atat_zoo.evaluation.results.task_results.Score", ""),
        ("automodule", "atat_zoo.evaluation.held_out_text", "held_out_text, digest"),
        ("autoclass", "atat_zoo.generation.text_generator.TextGenerator", ""),
        ("automodule", "atat_zoo.generation.guided_denoiser", "GuidedDenoiser, normalised"),
        ("autofunction", "atat_zoo.data.sample_order.uniforms", None),
        ("autodata", "atat_zoo.data.Split", None),
        ("autodata", "atat_zoo.evaluation.Progress", None),
    ]),
    ("`atat_zoo.testing`", "Conformance tests for components, to use in the tests of a plugin.", [
        ("automodule", "atat_zoo.testing", ""),
        ("py:data", "CHECKS", "A mapping from each kind to its conformance tests, a dict from test name to function."),
        ("py:data", "EXAMPLES",
         "A mapping from (kind, name) to a function that writes the files of that component and returns its parameters "
         "for the tests."),
        ("automodule", "atat_zoo.testing.toys", "Joint, toy, FunctionDenoiser, ExactBackbone"),
    ]),
]  # fmt: skip
