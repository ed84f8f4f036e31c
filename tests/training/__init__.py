"""Trainings in a process of their own, in which one function of the zoo or of Composer is another."""

from textwrap import dedent, indent

KILL = "os.kill(os.getpid(), signal.SIGKILL)"
_CODE = """
import functools, importlib, os, signal
module, _, path = {place!r}.partition(":")
*outer, last = path.split(".")
owner = functools.reduce(getattr, outer, importlib.import_module(module))
original, calls = getattr(owner, last), []
def changed(*words):
    calls.append(words)
{body}
setattr(owner, last, changed)
from atat_zoo.cli import main
main()
"""


def with_changed(place, body):
    """Return code in place of `atat`, with the `original` at `module:Class.method` replaced by a body.

    That knows its arguments as `words`, and all of its `calls` until now, this one included.
    """
    return _CODE.format(place=place, body=indent(dedent(body).strip(), "    "))


def die_at(step):
    """Return code that kills its own process when so many steps have been made."""
    place = "atat_zoo.training.composer_model:Progress.before_train_batch"
    return with_changed(place, f"if words[1].timestamp.batch == {step}: {KILL}\noriginal(*words)")
