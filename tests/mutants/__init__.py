"""Changes one expression of the package at a time, and asks whether a test of its room fails.

`make mutants` (or `python -m tests.mutants`) draws mutants from every room that computes or decides, has mutmut test
them, and prints how many were killed, and a difference for each that was not. A room is a package or a module of the
zoo, by its path below `atat_zoo`, or a plugin. Its own tests hold it, and no others: `tests/ROOM`, or what `TESTS`
names; of those mutmut runs the ones that call the changed function, the fastest first.

The mutants are mutmut's own: an operator, a number, a comparison or a condition is another, an argument is None or
absent, a value is None. They are of the bodies of functions and methods. By rule there are none in docstrings,
annotations, values of a class (parameters and their help), decorated functions (properties) and what is raised or
yielded as a sentence (`SENTENCES`), for the wording of a message is not computed. Those that only change the device of
a tensor, a type for the type checker, the False of a buffer that is not saved, or the check of equal lengths by `zip`
(`UNCOMPUTED`), count as equivalent.

Small rooms are grouped (`GROUPS`), so that every group is tested at once and has enough mutants to say something. The
sample follows from the seed and holds as many mutants of every group; the rate in all weighs the groups by their
mutants. A single room can be named, too, and then is a group of its own. A plugin is left out where it is not
installed. Mutants that compute the same are in `equivalent.toml`, each with its reason, and do not count. All is
written to `build/mutants/GROUP`, where mutmut mutates a copy, so a run that is interrupted leaves the tree as it was;
begun again, it tests what was not tested, and what survived.
"""

from pathlib import Path

ROOT = Path(__file__).parents[2]
GROUPS = (
    ("diffusion",),
    ("modeling/mask_rates", "modeling/masking", "modeling/curricula"),
    ("modeling/position_sets", "modeling/bounds", "modeling/noise", "modeling/uncertainty"),
    ("modeling/estimators", "modeling/targets", "modeling/backbones"),
    ("modeling/objectives",),
    ("generation/samplers",),
    ("generation",),
    ("data/corpora", "data/tokenizers"),
    ("data",),
    ("evaluation",),
    ("evaluation/tasks",),
    ("evaluation/results", "studies"),
    ("training",),
    ("experiment", "registry", "system"),
    ("atat-zoo-audio",),
    ("atat-zoo-checkpoints",),
    ("atat-zoo-code",),
    ("atat-zoo-genomics",),
    ("atat-zoo-glue",),
    ("atat-zoo-human-eval",),
    ("atat-zoo-images",),
    ("atat-zoo-learned-curriculum",),
    ("atat-zoo-lm-eval",),
    ("atat-zoo-paper",),
    ("atat-zoo-serve",),
    ("atat-zoo-transformers",),
)
ROOMS = tuple(room for group in GROUPS for room in group)
# Of rooms whose tests are not tests/ROOM or tests/test_ROOM.py.
TESTS = {
    "modeling/bounds": ("tests/modeling/test_bound_parts.py",),
    "modeling/position_sets": ("tests/modeling/test_position_sets.py", "tests/modeling/objectives/test_set_causal.py"),
}
# A line on which a message begins or goes on: an expression that begins there is left as it is.
SENTENCES = (r"\braise \w+\(", r"^\s*problem = f?\"", r"\byield (\(|f?\")$", r"\byield f?\"", r"^\s*f?['\"].*['\"],?$")
UNCOMPUTED = (
    r"\bpersistent=(False|None)|\bstrict=(True|False|None)|encoding=\"(utf|UTF)-8\"|\b(device|non_blocking)=[\w.\[\]]*(\([^()]*\))?"
    r"|\.to\(([\w.]+\.device|None)\)|\bcast\((None|\"\w+\")"
)


def held_by(room):
    """Return the paths of the tests that hold a room of the zoo."""
    folder, _, name = f"tests/{room}".rpartition("/")
    return TESTS.get(room) or (f"{folder}/{name}" if (ROOT / folder / name).is_dir() else f"{folder}/test_{name}.py",)


def files_of(room):
    """Return the files of a room: a module, or all of a package but for those of a room inside."""
    plugin = room.startswith("atat-zoo-")
    source = ROOT / "plugins" / room / room.replace("-", "_") if plugin else ROOT / "atat_zoo" / room
    inside = [ROOT / "atat_zoo" / other for other in ROOMS if other.startswith(f"{room}/")]
    files = source.rglob("*.py") if source.is_dir() else [source.with_suffix(".py")]
    return [file for file in files if not any(file.is_relative_to(folder) for folder in inside)]
