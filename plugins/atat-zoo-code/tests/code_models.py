"""Small models of code, and files of code, for the tests of this package."""

import sysconfig
from importlib import resources
from pathlib import Path

from atat_zoo.experiment import load
from atat_zoo.testing import untrained_models

EXPERIMENTS = resources.files("atat_zoo_code") / "experiments"
NAMES = ("code", "code_fill_in_the_middle", "code_autoregressive")
SMALL = ("backbone.layers=1", "backbone.width=16", "backbone.heads=2", "backbone.local_heads=1")
LIBRARY = Path(sysconfig.get_path("stdlib"))
FILES = [str(LIBRARY / name) for name in ("textwrap.py", "bisect.py", "heapq.py")]


def untrained(name, *changes, tokenizer="bytes", folder=None):
    """Return a model of a shipped experiment that has learned nothing, saved as a run in `folder` if there is one.

    Its text is a few files of the standard library, two of which are held out for testing.
    """
    estimator = () if "_" in name else ("estimator.width=16",)
    experiment = load(
        str(EXPERIMENTS / f"{name}.toml"),
        [
            *SMALL,
            *estimator,
            "corpus.use=files",
            f"corpus.train={FILES}",
            "corpus.document=file",
            "corpus.test_share=0.7",
            f"tokenizer.use={tokenizer}",
            "data.special_tokens=none",  # as the corpus of the experiments has it
            *changes,
        ],
    )
    return untrained_models.untrained(experiment, folder, split="test")
