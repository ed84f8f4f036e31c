"""Run the tests of packages, two packages at a time: `python -m tests.packages NAME...`.

Torch, Composer and the zoo are imported once, and each package is tested in a fork. Its output is printed when it ends.
"""

import os
import sys
import tempfile
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Properties are tried on as many examples as in the tests of the zoo. What is imported already is not rewritten.
OPTIONS = ["-q", "--durations=3", "-p", "tests.conftest", "-W", "ignore::pytest.PytestAssertRewriteWarning"]


def begin(name, output):
    """Return the process that tests a package, and prints to a file."""
    if pid := os.fork():
        return pid
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    os.chdir(ROOT / "plugins" / name)
    sys.exit(pytest.main(OPTIONS))


def main():
    # For the processes that the tests start elsewhere, and the server that forks them.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    import_module("tests.preloaded")
    waiting, running, failed = sys.argv[1:], {}, []
    with ExitStack() as outputs:
        while waiting or running:
            while waiting and len(running) < 2:
                name, output = waiting.pop(0), outputs.enter_context(tempfile.TemporaryFile())
                running[begin(name, output)] = name, output
            pid, status = os.wait()
            name, output = running.pop(pid)
            output.seek(0)
            print(name, output.read().decode(errors="replace"), sep="\n", flush=True)
            failed += [name] if status else []
    sys.exit(f"tests failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
