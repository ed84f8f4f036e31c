"""The command `python -m atat_zoo_audio`, which generates, inpaints and evaluates sounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from atat_zoo.cli import run as run_command

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
PATH = click.Path(path_type=Path)
_seed: Decorator = click.option("--seed", default=17, show_default=True, type=click.IntRange(0), help="Random seed.")
_step: Decorator = click.option(
    "--step", help="Training step of the model: a number, newest or best (default: the final model)."
)


def _out(default: str) -> Decorator:
    text = "Folder for the WAV files and spectrograms.png."
    return click.option("--out", type=PATH, default=default, show_default=True, help=text)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Generate, inpaint and evaluate sounds with a run whose tokenizer is `mu_law`."""


@main.command()
@click.argument("run", type=PATH)
@click.option("--num-samples", default=8, show_default=True, type=click.IntRange(1), help="Number of sounds.")
@_step
@_seed
@_out("sounds")
def generate(run: Path, num_samples: int, step: str | None, seed: int, out: Path) -> None:
    """Write generated sounds as WAV files, and their spectrograms."""
    from atat_zoo_audio.sound_models import load_run, sounds_of

    model, rate = load_run(run, step)
    made = sounds_of(model, model.sample(num_samples, seed=seed).sample.tokens)
    write(out, {f"{i + 1}": sound for i, sound in enumerate(made)}, rate)


@main.command()
@click.argument("run", type=PATH)
@click.argument("sound")
@click.option(
    "--gap",
    nargs=2,
    required=True,
    type=int,
    metavar="START END",
    help="First sample to generate, and the next given one.",
)
@click.option("--num-samples", default=4, show_default=True, type=click.IntRange(1), help="Number of fills.")
@_step
@_seed
@_out("inpainted")
def inpaint(
    run: Path, sound: str, gap: tuple[int, int], num_samples: int, step: str | None, seed: int, out: Path
) -> None:
    """Generate a gap of SOUND, a WAV file or the number of a sound in the test split.

    The folder has the sound as original.wav, with silence in its gap as gap.wav, and the fills. Samples outside the
    gap do not change.
    """
    from atat_zoo_audio.sound_models import inpainted, load_run, sound_at

    model, rate = load_run(run, step)
    original = sound_at(model, run, sound, rate)
    fills = inpainted(model, original, gap, num_samples, seed=seed)
    silent = original.copy()
    silent[slice(*gap)] = 0
    named = {"original": original, "gap": silent, **{f"{i + 1}": fill for i, fill in enumerate(fills)}}
    write(out, named, rate, gap)


def write(folder: Path, sounds: Mapping[str, NDArray[np.int16]], rate: int, gap: tuple[int, int] | None = None) -> None:
    """Write each sound to NAME.wav and their spectrograms to spectrograms.png, and print what was written."""
    from atat_zoo_audio.recordings import SCALE, write_wav
    from atat_zoo_audio.spectrogram import drawn, write

    for name, sound in sounds.items():
        write_wav(folder / f"{name}.wav", sound, rate)
    write(folder / "spectrograms.png", drawn([sound / SCALE for sound in sounds.values()], gap))
    click.echo(f"wrote {folder}: {', '.join(f'{name}.wav' for name in sounds)} and spectrograms.png")


@main.command()
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option("--split", default="test", show_default=True, type=click.Choice(["validation", "test"]), help="Split.")
@click.option("--mask-samples", default=16, show_default=True, type=click.IntRange(1), help="Masks per sound.")
@_step
@_seed
def evaluate(runs: tuple[Path, ...], step: str | None, **settings: Any) -> None:
    """Print the bits per sample of RUNS on held-out sounds, and of a gap in the middle, with standard errors.

    Runs are compared with the first one, sound by sound.
    """
    from atat_zoo_audio.sound_models import bits_per_sample, load_run

    found: dict[tuple[str, str], tuple[Tensor, Tensor | None]] = {}
    for run in runs:
        model, _ = load_run(run, step)
        whole, gap = (bits_per_sample(model, run, gap=each, **settings) for each in (False, True))
        found |= {(str(run), name): (each, gap.get(name)) for name, each in whole.items()}
    click.echo(table(found))
    corpus, levels = model.experiment.parts["corpus"], model.tokenizer.vocabulary_size
    if hasattr(corpus, "noise_bits"):
        noise = corpus.noise_bits(settings["split"], levels).mean()
        click.echo(f"\nThe noise has {noise:.3f} bits per sample, less than any model of these sounds can reach.")


def table(found: Mapping[tuple[str, str], tuple[Tensor, Tensor | None]]) -> str:
    """Return a Markdown table of the bits per sample by run and factorisation: of whole sounds, and of their gaps."""
    import torch

    from atat_zoo.evaluation.results.intervals import paired

    (first, _), (base, _) = next(iter(found.items()))
    lines = [f"| run | factorisation | bits per sample | against {first} | in a gap |", "| --- " * 5 + "|"]
    for (run, factorisation), (whole, gap) in found.items():
        against = ""
        if whole is not base:
            difference = paired(whole, base, torch.ones(len(whole)))
            against = f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
        lines.append(f"| {run} | {factorisation} | {_mean(whole)} | {against} | {_mean(gap)} |")
    return "\n".join(lines)


def _mean(values: Tensor | None) -> str:
    """Return the mean of values [n] with its standard error, or a dash without values."""
    return "—" if values is None else f"{values.mean():.3f} ± {values.std() / len(values) ** 0.5:.3f}"


if __name__ == "__main__":
    run_command(main, "python -m atat_zoo_audio")
