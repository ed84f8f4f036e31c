"""Short sounds and small parameters for the conformance tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def _recordings(folder: Path) -> dict[str, Any]:
    import numpy as np

    from atat_zoo_audio.recordings import write_wav

    for i in range(12):
        wave = 9000 * np.sin(np.arange(40) * (0.1 + i / 20))
        write_wav(folder / f"{i % 3}" / f"{i}.wav", wave.astype(np.int16), 2000)
    return {"train": [str(folder)], "samples": 16, "validation_share": 0.2, "test_share": 0.2}


EXAMPLES = {
    ("corpus", "melodies"): lambda _: {"sounds": 20, "held_out": 5, "samples": 16},
    ("corpus", "recordings"): _recordings,
}
