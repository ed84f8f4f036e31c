"""Small models and sounds, for the tests of this package."""

from importlib import resources

import numpy as np

from atat_zoo.experiment import load
from atat_zoo.testing import untrained_models

EXPERIMENTS = resources.files("atat_zoo_audio") / "experiments"
NAMES = ("melodies", "melodies_autoregressive", "melodies_sets")
NETWORK = ("backbone.layers=1", "backbone.width=16", "backbone.heads=2", "backbone.local_heads=1", "data.length=64")
SMALL = (*NETWORK, "corpus.sounds=40", "corpus.held_out=6", "corpus.samples=64", "data.lanes=2", "train.batch_size=8")


def experiment(name="melodies_sets", *changes):
    """Return a shipped experiment with a small network and sounds of 64 samples."""
    return load(str(EXPERIMENTS / f"{name}.toml"), [*SMALL, *changes])


def untrained(name="melodies_sets", *changes, folder=None):
    """Return a model of a shipped experiment that has learned nothing, saved as a run in `folder` if there is one."""
    return untrained_models.untrained(experiment(name, *changes), folder)


def tone(samples, hertz=220.0, rate=2000):
    """Return a sine wave, int16 [samples]."""
    return np.rint(12000 * np.sin(2 * np.pi * hertz * np.arange(samples) / rate)).astype(np.int16)
