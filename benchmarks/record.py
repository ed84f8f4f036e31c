"""The results of `make bench` on this machine, saved in a file and compared with the previous results."""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atat_zoo.experiment.runs import write_json
from atat_zoo.registry import Zoo
from atat_zoo.system.environment import describe

FOLDER = Path(__file__).parent / "results"

Ratios = dict[str, tuple[float, float, float]]  # median and quartiles of each ratio; lower is better


def compare(now: Ratios, last: Ratios) -> list[str]:
    """Return a line for each ratio with its previous value; a ratio is worse if the quartile ranges do not overlap."""
    lines = []
    for name, (median, low, high) in now.items():
        line = f"  {name:<70} {median:8.4f} [{low:.4f}, {high:.4f}]"
        if name in last:
            before, least, most = last[name]
            line += f"  was {before:.4f} [{least:.4f}, {most:.4f}]" + "  WORSE" * (low > most)
        lines.append(line)
    return lines


def keep(benchmark: str, ratios: Ratios, path: Path | None = None) -> list[str]:
    """Replace the saved results of a benchmark with new ones, and return their comparison."""
    path = path or FOLDER / f"{platform.node()}.json"
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    lines = compare(ratios, known.get(benchmark, {}).get("ratios", {}))
    date = datetime.now(UTC).isoformat(timespec="seconds")
    known[benchmark] = {"date": date, **describe(Zoo.load().plugins), "ratios": ratios}
    path.parent.mkdir(exist_ok=True)
    write_json(path, known)
    return lines
