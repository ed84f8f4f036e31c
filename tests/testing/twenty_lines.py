"""A package of twenty lines with a part `vowels`, beside an experiment and a study that use it."""

import os

from tests import forked
from tests.installing import described
from tests.study import quick
from tests.tiny import Tiny

STUDY = """
folder = "study"
baseline = "one"
seeds = [1]
overrides = ["train.steps=1", "evaluation.sequences=4"]
[arms.one]
experiment = "tiny.toml"
[arms.two]
experiment = "tiny.toml"
overrides = ["optimizer.learning_rate=1e-4"]
[evaluation]
sequences = 4
{key} = ["vowels"]
"""


def installed(folder, code, key):
    """Write the package, `tiny.toml` and `study.toml`, whose [evaluation] has the part under a key.

    Return the experiment, and `atat`, which runs in the folder with the package, succeeds, and returns what it prints.
    """
    site = folder / "site"
    site.mkdir()
    (site / "made_up_vowels.py").write_text(code)
    described(site, "atat-zoo-vowels", "1.0", "[atat_zoo]\nvowels = made_up_vowels\n")
    (folder / "study.toml").write_text(STUDY.format(key=key))
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])

    def atat(*words):
        code = quick.CODE if words[0] == "study" else None
        done = forked.run(words, folder, code=code, env={"PYTHONPATH": path})
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return Tiny(folder), atat
