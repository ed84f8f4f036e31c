"""Hold a golden record against another one, and say where they differ.

    python -m tests.golden.compare OLD.json NEW.json

On the machine and with the torch that a record names, numbers are equal to the bit; elsewhere to 1e-4. What samplers
draw from hashed logits in float64 is the same everywhere. In the texts of trained models one last bit may decide, where
places are equally uncertain, and all that follows: elsewhere three of four must be the same (of 220, 196 are with
AVX2 in place of AVX-512, and 199 without either). Muon orthogonalises in bfloat16, which every processor rounds in its
own way: elsewhere its run is compared to a hundredth, and its weights by their norms, for their sums cancel.
"""

import json
import math
import sys
from pathlib import Path

TOLERANCE = 1e-4
SAME_TEXTS = 0.75
IN_BF16 = {"training.everything": 1e-2}


def differences(old, new):
    """Return a line for each difference of two records."""
    found = list(_walk(old["shards"], new["shards"], "shards"))
    # By name, each with what it shares with the others.
    then, now = (
        {name: part["common"] | paths for name, paths in part["each"].items()}
        for part in (old["resolved"], new["resolved"])
    )
    # An experiment that is new has nothing to differ from.
    found += _walk(then, {name: paths for name, paths in now.items() if name in then}, "resolved")
    same = same_machine(old["machine"], new["machine"])
    for part in ("training", "bounds"):
        found += _walk(old[part], new[part], part, 0 if same else TOLERANCE)
    # A part that is new has no text to differ from.
    then, now = dict(_texts(old["texts"])), dict(_texts(new["texts"]))
    gone = [f"{path} is gone" for path in then if path not in now]
    others = [f"{path}: {text} is now {now[path]}" for path, text in then.items() if now.get(path, text) != text]
    found += gone + others if same or len(others) > (1 - SAME_TEXTS) * len(then) else gone
    drawn = {part: text for part, text in new.get("drawn", {}).items() if part in old.get("drawn", {})}
    return found + list(_walk(old.get("drawn", {}), drawn, "drawn"))


def _texts(texts):
    """Yield each text by model, sampler, seed and row, and how many seeds a sampler has."""
    for model, each in texts.items():
        for part, seeds in each.items():
            yield f"texts.{model}.{part}", [len(seeds)]
            for i, rows in enumerate(seeds):
                yield from ((f"texts.{model}.{part}[{i}][{j}]", row) for j, row in enumerate(rows))


def same_machine(old, new):
    """Return whether numbers of the two must be equal to the bit; what a record does not say is not compared."""
    return all(old[key] == new[key] for key in old.keys() & new.keys())


def _walk(old, new, path, tolerance=0):
    tolerance = tolerance and IN_BF16.get(path, tolerance)
    if isinstance(old, dict) and isinstance(new, dict):
        found = [f"{path}.{key} is gone" for key in old if key not in new]
        found += [f"{path}.{key} is new" for key in new if key not in old]
        for key in old:
            if key in new and not (tolerance and key.endswith("sha256")):
                found += _walk(old[key], new[key], f"{path}.{key}", tolerance)
        return found
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        if tolerance > TOLERANCE and ".weights." in path:
            old, new = old[1:], new[1:]
        pairs = enumerate(zip(old, new, strict=True))
        return [line for i, (a, b) in pairs for line in _walk(a, b, f"{path}[{i}]", tolerance)]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (old, new))
    if tolerance and numbers and math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance):
        return []
    return [] if old == new else [f"{path}: {old!r} is now {new!r}"]


if __name__ == "__main__":
    records = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:3]]
    lines = differences(*records)
    exact = same_machine(records[0]["machine"], records[1]["machine"])
    print("\n".join(lines) or f"no difference, {'to the bit' if exact else f'to {TOLERANCE:g}'}")
    sys.exit(1 if lines else 0)
