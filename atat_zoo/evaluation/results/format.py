"""Formatting of numbers, either rounded according to their errors or with a fixed number of digits."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

NONE = "—"
_FORMULAS = tuple("=+-@")  # the characters with which a spreadsheet formula begins


def place(error: float) -> int:
    """Return the decimal place to which a number with this error is rounded: 1 for tenths, −1 for tens.

    By the Particle Data Group's rule, the error keeps two digits if its leading digits are below 3.55, and otherwise
    one.
    """
    exponent = math.floor(math.log10(error))
    return (1 if error / 10**exponent < 3.55 else 0) - exponent


def rounded(value: float, at: int, sign: str = "") -> str:
    """Return a number rounded to a decimal place, with thousands separators."""
    return f"{round(value, at) + 0.0:{sign},.{max(0, at)}f}"


def uncertain(value: float | None, error: float | None) -> str:
    """Return `58.2 ± 1.2`, rounded according to the error, or to three digits without an error."""
    if value is None or not math.isfinite(value):
        return "not finite"
    if not error or not math.isfinite(error):
        return rounded(value, 2 - math.floor(math.log10(abs(value)))) if value else "0"
    at = place(error)
    return f"{rounded(value, at)} ± {rounded(error, at)}"


def interval(value: float | None, low: float | None, high: float | None, *, unit: str = " %", sign: str = "+") -> str:
    """Return `−2.2 % [−2.7, −1.7]`, rounded according to half the interval's width."""
    if value is None or low is None or high is None or not all(map(math.isfinite, (value, low, high))):
        return "not finite"
    at = place((high - low) / 2) if high > low else 2
    value_, low_, high_ = (rounded(each, at, sign).replace("-", "−") for each in (value, low, high))
    return f"{value_}{unit} [{low_}, {high_}]"


def settings(table: Mapping[str, Any]) -> str:
    """Return a component's parameters as `steps = 16, temperature = 1.0`, with only the names of nested components."""
    return ", ".join(
        f"{key} = {[*map(_short, value)] if isinstance(value, list) else _short(value)}"
        for key, value in table.items()
        if key not in ("use", "name")
    )


def _short(value: Any) -> Any:
    return value.get("use", value) if isinstance(value, dict) else value


def told_apart(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return each component's parameters as text, with nested parameters only where they distinguish equal texts."""
    said = [settings(table) for table in tables]
    inner = [{key: value for key, value in leaves(table) if "." in key} for table in tables]
    found = []
    for words, mine in zip(said, inner, strict=True):
        alike = [other for text, other in zip(said, inner, strict=True) if text == words]
        differ = [f"{key} = {value}" for key, value in mine.items() if any(other.get(key) != value for other in alike)]
        found.append(", ".join(filter(None, [words, *differ])))
    return found


def leaves(table: Mapping[str, Any], between: str = ".", path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each entry of a nested table that is not a table itself."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, between, f"{path}{key}{between}")
        else:
            yield path + key, value


def number(count: int, what: str) -> str:
    """Return `1 step` or `1,234 steps`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def size(sequences: int, draws: int, of: int = 0) -> str:
    """Return the size of an evaluation: `64 of 768 sequences, 4 masks each`; `draws` is 0 for a likelihood."""
    text = f"{sequences:,} of {number(of, 'sequence')}" if of > sequences else number(sequences, "sequence")
    return f"{text}, {number(draws, 'mask')} each" if draws else f"{text}, exact"


def lasting(seconds: float) -> str:
    """Return a duration rounded down to its largest unit, such as `3 h`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def joined(words: list[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# With a fixed number of digits, as in tables


def cell(value: float | None, digits: str, unit: str = "") -> str:
    """Return a number in the format `digits`, such as `.2f`, or a dash for None."""
    return NONE if value is None else f"{value:{digits}}{unit}"


def with_error(value: float | None, error: float | None, digits: str, sign: str = "") -> str:
    """Return `58.21 ± 1.23` in the format `digits`, or only the value if the error is missing or not finite."""
    there = error is not None and math.isfinite(error)
    return f"{value:{sign}{digits}}" + (f" ± {error:{digits}}" if there else "")


def errors_over(errors: Iterable[float | None], what: str, count: int) -> str:
    """Return the meaning of `±` for errors over `count` items, or the reason why no error is shown."""
    if count == 1:
        return f"no standard errors, because there is only one {what}"
    return f"± one standard error over {what}s" if any(errors) else f"± 0, because the {what}s do not differ"


def change(difference: Mapping[str, Any], digits: int = 2) -> str:
    """Return a change and its interval in percent: `-2.20 % [-2.71, -1.72]`."""
    numbers = [difference[key] for key in ("percent", "percent_low", "percent_high")]
    if None in numbers:
        return "not finite"
    value, low, high = (f"{number:+.{digits}f}" for number in numbers)
    return f"{value} % [{low}, {high}]"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table, with `|` escaped in cells."""
    for row in [columns, ["---"] * len(columns), *rows]:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def as_text(value: Any) -> Any:
    """Return the value for a CSV cell; text that a spreadsheet would read as a formula gets a leading apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.lstrip()[:1] in _FORMULAS else value


def csv_of(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows as UTF-8 CSV with the union of their columns, in which None is an empty cell; see also `as_text`."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(as_text(key) for row in rows for key in row)))
    writer.writeheader()
    writer.writerows({as_text(key): as_text(value) for key, value in row.items()} for row in rows)
    return file.getvalue().encode()


def aligned(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return indented lines of names and values with aligned values."""
    width = max(len(name) for name, _ in pairs)
    return [f"  {name.ljust(width)}  {value}" for name, value in pairs]
