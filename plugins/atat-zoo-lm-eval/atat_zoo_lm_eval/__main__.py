"""The command `lm_eval` with the model `atat_zoo`, run as `python -m atat_zoo_lm_eval …`."""

import click
from lm_eval.__main__ import cli_evaluate

from atat_zoo.cli import run as run_command
from atat_zoo_lm_eval import RunLM


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, add_help_option=False)
def main() -> None:
    """Run the harness's command line, and print notes on the numbers below its table."""
    cli_evaluate()
    for note in RunLM.notes:
        click.echo(note)


if __name__ == "__main__":
    run_command(main, "python -m atat_zoo_lm_eval")
