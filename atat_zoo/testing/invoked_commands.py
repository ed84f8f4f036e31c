"""A package's own commands, called in the process of a test."""

from click import Command
from click.testing import CliRunner

from atat_zoo.system.errors import UserError


def invoke(command: Command, *words: object) -> str:
    """Return what a command prints for these words; raise its `UserError`, or an `AssertionError` if it fails."""
    found = CliRunner().invoke(command, [*map(str, words)])
    if isinstance(found.exception, UserError):
        raise found.exception
    assert found.exit_code == 0, found.output
    return found.output
