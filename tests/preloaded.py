"""What the forks of `tests/forked.py` share: all that the commands import only when they need it, imported once.

Nothing of it is garbage, so no fork looks for some in it, which would take a second and a copy of its memory.
"""

import gc
import os
from importlib import import_module

from atat_zoo.data import corpora
from atat_zoo.registry import registry_file

os.fsync = lambda descriptor: None  # as in tests/conftest.py
for module in ("cli", "training.trainer", "generation.model", "evaluation.likelihood", "evaluation.sample_quality"):
    import_module(f"atat_zoo.{module}")
for entry in registry_file.read(registry_file.shipped()).entries:
    entry.load()
every = corpora._speeches()
few = every[:-40:4] + every[-40:]  # trainings learn a tokenizer of all; some tests read those since 1990
corpora._speeches = lambda: few
gc.collect()
gc.freeze()
