"""The command-line interface `atat`. It imports a command's module only when the command is used."""

import os
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from atat_zoo.cli import packages
from atat_zoo.system import old_names
from atat_zoo.system.atomic_files import FULL
from atat_zoo.system.errors import Note, UserError, clip

# command -> (module, function, one line of help). The help is here so that `atat --help` imports nothing. Packages add
# more commands, which packages.py finds.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "zoo": ("zoo_command", "zoo", "List, show and check components and plugins."),
    "check": ("experiment_command", "check", "Report every mistake in an experiment file."),
    "resolve": ("experiment_command", "resolve", "Print an experiment with all its parameters."),
    "new": ("new_command", "new", "Create a plugin package, or an experiment file."),
    "data": ("data_command", "data", "Download text, build token shards, inspect them."),
    "ls": ("runs_command", "ls", "List runs with their objective, step, bound, age and state."),
    "diff": ("runs_command", "diff", "Show the differences between two runs."),
    "watch": ("report_command", "watch", "Open a live dashboard of a run."),
    "train": ("train_command", "train", "Train an experiment, or resume a run."),
    "study": ("study_command", "study", "Run a study: train arms × seeds and compare the arms."),
    "eval": ("evaluate_command", "evaluate", "Evaluate a run on held-out text."),
    "compare": ("compare_command", "compare", "Compare runs on the same sequences and masks."),
    "audit": ("audit_command", "audit", "Evaluate models with several estimators and published protocols."),
    "importance": ("evaluate_command", "importance", "Measure how well importance predicts the per-token loss."),
    "judge": ("judge_command", "judge", "Generate text with a run and score it with a judge model."),
    "sample": ("sample_command", "sample", "Generate text."),
    "infill": ("sample_command", "infill", "Fill the gaps of a text."),
    "report": ("report_command", "report", "Write an HTML report of runs or of a study."),
    "bench": ("bench_command", "bench", "Benchmark the samplers of a run."),
}


class _Lazy(click.Group):
    """A click group that imports each command on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *(name for name in packages.offers() if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command:
        if name not in COMMANDS:
            return packages.command(name, list(COMMANDS))
        module, function, _ = COMMANDS[name]
        return getattr(import_module(f"atat_zoo.cli.{module}"), function)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])
        for package, commands in packages.sections(list(COMMANDS)).items():
            with formatter.section(f"Commands of {package}"):
                formatter.write_dl(commands)


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="atat-zoo", prog_name="atat")
@click.option(
    "--allow-pipe", is_flag=True, help="Allow an experiment to run shell commands that fetch shards (`pipe:` URLs)."
)
def atat(allow_pipe: bool) -> None:
    """Train, sample and evaluate masked diffusion language models built from components."""
    if allow_pipe:
        from atat_zoo.data.downloads import ALLOW

        os.environ[ALLOW] = "1"  # also for workers


def run(command: click.Command, name: str) -> None:
    """Run a command and exit the process; a `UserError`, an `OSError` or a lack of memory exits with code 2.

    Each prints a message without a traceback. Ctrl-C exits with 130, and an output pipe closed by `head` with 1.
    """
    # torch reads this variable when it is imported: its threads sleep while they wait. Threads that spin starve each
    # other on a shared CPU, where a command then takes several times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", Note)  # print each sentence once, however often a file is read
            warnings.showwarning = _show
            result = command.main(standalone_mode=False, prog_name=name)
        code = result if isinstance(result, int) else 0
    except UserError as error:
        for line in str(error).splitlines():
            _say(f"error: {clip(line, 2000)}")
        code = 2
    except click.NoSuchOption as error:
        if advice := _instead(error):
            _say(f"error: {advice}")
        else:
            error.show()
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _say("stopped")
        code = 130
    except OSError as error:
        if error.errno in FULL:
            problem = f"{error.filename or 'the output'} cannot be written: {error.strerror}; free some space"
            _say(f"error: {problem}, then run the command again")
        else:  # name too long, circular links, no permission, or a folder instead of a file
            what = clip(error.filename or "a file or connection")
            reason = clip(error.strerror or str(error) or type(error).__name__)
            _say(f"error: {what}: {reason}; pass a different path, URL or port, or fix this one")
        code = 2
    except Exception as error:
        from atat_zoo.system.machine import ran_out

        if not ran_out(error):
            raise
        _say("error: out of memory; reduce the batch size, sequence length, number of texts or model size")
        code = 2
    _forget_unwritten()
    sys.exit(code)


def _instead(error: click.NoSuchOption) -> str:
    """Return a hint for an option that was renamed or that is a key of the experiment."""
    flag, command = error.option_name, error.ctx.command if error.ctx else None
    if command is None:
        return ""
    now = old_names.FLAGS.get(flag, "")
    if any(now in parameter.opts for parameter in command.params):
        return f"{flag} was renamed to {now}"
    if not (key := old_names.SETTINGS.get(command.name or "", {}).get(flag)):
        return ""
    after = " ".join(sys.argv[1:]).partition(flag)[2]
    value = after.lstrip(" =").split(" ")[0] if after else ""
    return f"atat {command.name} has no option {flag}; pass the key {key}={value or '…'} without dashes"


def _say(text: str) -> None:
    """Print a line to standard error if possible."""
    with suppress(OSError):
        click.echo(text, err=True)


def _forget_unwritten() -> None:
    """Discard output that a full disk rejected; Python would try to write it at exit and change the exit code."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except (OSError, AttributeError):  # full, or closed by the parent process
            setattr(sys, name, None)


_show_others = warnings.showwarning


def _show(message: Warning | str, category: type[Warning], *place: Any, **how: Any) -> None:
    """Print a `Note` as one sentence, and other warnings as Python does."""
    if issubclass(category, Note):
        from atat_zoo.cli.console import printable

        _say(printable(f"note: {message}"))
    else:
        _show_others(message, category, *place, **how)


def main() -> None:
    """Run the command `atat` and exit."""
    run(atat, "atat")
