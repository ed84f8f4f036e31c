"""`atat` in this process: for what needs no process of its own, which costs as much as a small training."""

import io
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from unittest import mock


def ended(words, out, err):
    """Run `atat …`, which prints to two files; returns its exit code."""
    from atat_zoo.cli import main

    with mock.patch.object(sys, "argv", ["atat", *words]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as left:
            return left.code or 0
    return 0


def run(words, folder):
    """Run `atat …` in a folder; returns what `subprocess.run` does."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(folder):
        code = ended(words, out, err)
    return subprocess.CompletedProcess(["atat", *words], code, out.getvalue(), err.getvalue())
