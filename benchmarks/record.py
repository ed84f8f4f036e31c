"""What `make bench` measured on this machine, in a file, and beside it what it measured there before."""

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

Ratios = dict[str, tuple[float, float, float]]  # median and quartiles of each; less is better


def compare(now: Ratios, last: Ratios) -> list[str]:
    """Return a line for each ratio, with that of the last time; it is worse when their quartiles are apart."""
    lines = []
    for name, (median, low, high) in now.items():
        line = f"  {name:<70} {median:8.4f} [{low:.4f}, {high:.4f}]"
        if name in last:
            before, least, most = last[name]
            line += f"  was {before:.4f} [{least:.4f}, {most:.4f}]" + "  WORSE" * (low > most)
        lines.append(line)
    return lines


def keep(benchmark: str, ratios: Ratios, path: Path | None = None) -> list[str]:
    """Write what a benchmark has measured in place of what it measured before, and return the comparison."""
    path = path or FOLDER / f"{platform.node()}.json"
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    lines = compare(ratios, known.get(benchmark, {}).get("ratios", {}))
    date = datetime.now(UTC).isoformat(timespec="seconds")
    known[benchmark] = {"date": date, **describe(Zoo.load().plugins), "ratios": ratios}
    path.parent.mkdir(exist_ok=True)
    write_json(path, known)
    return lines
