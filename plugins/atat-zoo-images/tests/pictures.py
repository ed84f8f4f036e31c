"""Small models and files of pictures, for the tests of this package."""

from importlib import resources

from PIL import Image

from atat_zoo.experiment import load
from atat_zoo.testing import untrained_models

EXPERIMENTS = resources.files("atat_zoo_images") / "experiments"
SMALL = ("backbone.layers=1", "backbone.width=16", "backbone.heads=2", "backbone.local_heads=1")


def untrained(*changes, name="digits", folder=None):
    """Return a model of a shipped experiment that has learned nothing, saved as a run in `folder` if there is one."""
    return untrained_models.untrained(
        load(str(EXPERIMENTS / f"{name}.toml"), [*SMALL, *changes]), folder, split="train"
    )


def write_pictures(folder, count=20, size=8):
    """Write pictures of two classes: red ones with a white corner and blue ones with a black corner."""
    for i in range(count):
        name, colour, corner = [("red", (200 + i, 10, 10), "white"), ("blue", (10, 10, 200 + i), "black")][i % 2]
        image = Image.new("RGB", (size, size + i % 3), colour)
        image.paste(corner, (0, 0, size // 2, size // 2))
        (folder / name).mkdir(parents=True, exist_ok=True)
        image.save(folder / name / f"{i}.{('png', 'bmp', 'gif')[i % 3]}")
    return folder
