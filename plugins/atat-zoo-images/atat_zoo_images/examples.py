"""Small pictures and parameters for the conformance tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def _pictures(folder: Path) -> dict[str, Any]:
    from PIL import Image

    for i in range(24):
        path = folder / ("dark", "light")[i % 2] / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        image = Image.new("RGB", (4, 4), (10 * i, 120, 255 * (i % 2)))
        image.putpixel((i % 4, i // 4 % 4), (255, 255 - 10 * i, 0))
        image.save(path)
    return {"path": str(folder), "side": 4, "palette": 8}


EXAMPLES = {
    ("corpus", "pictures"): _pictures,
    ("backbone", "grid_dit"): lambda _: {"layers": 2, "width": 32, "heads": 2, "local_heads": 2},
}
