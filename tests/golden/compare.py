"""Hold a golden record against another one, and say where they differ.

    python -m tests.golden.compare OLD.json NEW.json

On the machine and with the torch that a record names, numbers are equal to the bit; elsewhere to 1e-4, and texts, which
one last bit may change, are not compared.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from tests.golden.renamed import complete, renamed

TOLERANCE = 1e-4


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return a line for each difference of two records; keys of the old one are read by their new names."""
    exact = old["machine"] == new["machine"]
    found = list(_walk({"shards": old["shards"]}, {"shards": new["shards"]}, exact=True))
    found += _walk(renamed(old["resolved"]), complete(new["resolved"]), exact=True, path="resolved")
    for part in ("training", "texts", "bounds"):
        if exact:
            found += _walk(old[part], new[part], exact=True, path=part)
        elif part != "texts":
            found += _walk(old[part], new[part], exact=False, path=part)
    return found


def _walk(old: Any, new: Any, *, exact: bool, path: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        found = [f"{path}.{key} is gone" for key in old if key not in new]
        found += [f"{path}.{key} is new" for key in new if key not in old]
        for key in old:
            if key in new and (exact or not key.endswith("sha256")):
                found += _walk(old[key], new[key], exact=exact, path=f"{path}.{key}")
        return found
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line
            for i, (a, b) in enumerate(zip(old, new, strict=True))
            for line in _walk(a, b, exact=exact, path=f"{path}[{i}]")
        ]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (old, new))
    if not exact and numbers and math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
        return []
    return [] if old == new else [f"{path}: {old!r} is now {new!r}"]


if __name__ == "__main__":
    records = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:3]]
    lines = differences(*records)
    exact = records[0]["machine"] == records[1]["machine"]
    print("\n".join(lines) or f"no difference, {'to the bit' if exact else f'to {TOLERANCE:g}'}")
    sys.exit(1 if lines else 0)
