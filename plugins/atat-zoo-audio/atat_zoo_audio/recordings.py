"""WAV files, and the corpus `recordings`, which reads them. A sound is int16 [n]: n samples of one channel."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from atat_zoo.data.corpora import held_out_share
from atat_zoo.data.corpora.text_files import NamedFiles, Search
from atat_zoo.registry import component, param
from atat_zoo.system.errors import UserError
from atat_zoo_audio.mu_law import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from atat_zoo.data import Split

SCALE = 32768  # the sample 1.0


def read_wav(path: Path, rate: int) -> NDArray[np.int16]:
    """Return the samples of a WAV file; raise a `UserError` if it is not 16-bit PCM, mono, with this sample rate."""
    remedy = f"run `ffmpeg -i {path.name} -ac 1 -ar {rate} -c:a pcm_s16le new.wav`, or remove it"
    try:
        with wave.open(str(path), "rb") as file:
            found = {"channels": file.getnchannels(), "bits": 8 * file.getsampwidth(), "Hz": file.getframerate()}
            data = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise UserError(f"{path} cannot be read as a WAV file ({str(error) or 'it ends too soon'}); {remedy}") from None
    for unit, wanted in {"channels": 1, "bits": 16, "Hz": rate}.items():
        if found[unit] != wanted:
            raise UserError(f"{path} has {found[unit]} {unit}, not {wanted}; {remedy}")
    return np.frombuffer(data[: len(data) // 2 * 2], "<i2")


def write_wav(path: Path, sound: NDArray[np.int16], rate: int) -> None:
    """Write a sound to a WAV file and create its folder; raise a `UserError` if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as handle, wave.open(handle) as file:
            file.setparams((1, 2, rate, len(sound), "NONE", "not compressed"))
            file.writeframes(sound.astype("<i2").tobytes())
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error}); pass another folder to --out") from None


@component
class RecordingsCorpus(NamedFiles):
    """WAV files, 16-bit PCM with one channel, cut into sounds of equal length; the rest of a file is left out.

    By default, sounds from the training files are held out by hash. Name other files as `validation` and `test` to hold
    out whole recordings.
    """

    name = "recordings"
    summary = "WAV files, cut into sounds of equal length"
    refs = ("https://docs.python.org/3/library/wave.html",)
    ends_documents = False

    train: tuple[str, ...] = param(("recordings",), help="WAV files, glob patterns, or folders with their subfolders")
    validation: tuple[str, ...] = param((), help="validation files; default: sounds held out from the training files")
    test: tuple[str, ...] = param((), help="test files; default: sounds held out from the training files")
    samples: int = param(256, help="samples per sound, which should be data.length", ge=1)
    rate: int = param(2000, help="samples per second of every file", ge=1)
    validation_share: float = held_out_share("validation", "validation")
    test_share: float = held_out_share("testing", "test")
    seed: int = param(0, help="seed for choosing the held-out sounds", ge=0)

    @override
    def read(self, split: Split) -> Iterator[str]:
        for path in self.expand(getattr(self, split), split):
            sound = read_wav(path, self.rate) / SCALE
            whole = sound[: len(sound) // self.samples * self.samples]
            yield from map(text_of, whole.reshape(-1, self.samples))

    @override
    def expand(self, patterns: tuple[str, ...], key: str) -> list[Path]:
        search = Search(key, (".wav", ".wave"), "paths are relative to the folder in which atat is started")
        found = dict.fromkeys(path for pattern in patterns for path in search.add(pattern))
        search.say()
        return list(found)
