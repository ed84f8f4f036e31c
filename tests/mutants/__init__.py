"""Changes one expression of the package at a time, and asks whether a test of its room fails.

`make mutants` (or `python -m tests.mutants`) draws mutants from five rooms, has mutmut test them, and prints how many
were killed, and a difference for each that was not. A room is held by its own tests only, `tests/ROOM`, fast part;
of those mutmut runs the ones that call the changed function, the fastest first.

The mutants are mutmut's own: an operator, a number, a comparison or a condition is another, an argument is None or
absent, a value is None. They are of the bodies of functions and methods. By rule there are none in docstrings,
annotations, values of a class (parameters and their help), decorated functions (properties) and what is raised or
yielded as a sentence (`SENTENCES`), for the wording of a message is not computed. Those that only change the device of
a tensor, a type for the type checker, or the False of a buffer that is not saved to None (`UNCOMPUTED`), count as
equivalent.

The sample follows from the seed and holds as many mutants of every room; the rate in all weighs the rooms by their
mutants. Mutants that compute the same are in `equivalent.toml`, each with its reason, and do not count. All is written
to `build/mutants/ROOM`, where mutmut mutates a copy, so a run that is interrupted leaves the tree as it was; begun
again, it tests what was not tested, and what survived.
"""

ROOMS = ("diffusion", "rates", "masking", "objectives", "samplers")
# A line on which a message begins or goes on: an expression that begins there is left as it is.
SENTENCES = (r"\braise \w+\(", r"\byield (\(|f?\")$", r"\byield f?\"", r"^\s*f?['\"].*['\"],?$")
UNCOMPUTED = (
    r"\bpersistent=(False|None)|\b(device|non_blocking)=[\w.\[\]]*(\([^()]*\))?"
    r"|\.to\(([\w.]+\.device|None)\)|\bcast\((None|\"\w+\")"
)
