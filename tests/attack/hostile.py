"""Values that nobody should give, for experiments and for command lines."""

import functools
from typing import Any

from atat_zoo import Zoo
from atat_zoo.registry import KINDS

# Overrides with more than one value: whatever is accepted must be the whole of it.
DOUBLE = ("train.steps=7 # no, 9", "train.steps=7\nseed=9")
# As TOML writes them.
NUMBERS = (
    *("-1", "0", "1", "2", "3", "7", "0.5", "-0.0", "1e-320", "1e308", "1e999", "nan", "inf", "-inf", "true", "false"),
    *(str(2**bits) for bits in (31, 32, 40, 53, 62, 63, 64)),
    *("-9223372036854775808", "1" * 30, "9" * 5000, "0x" + "f" * 5000, "1_000", "0o17"),
)
STRINGS = (
    *('""', '"x"', '"."', '".."', '"~"', '"~nouser/x"', '"/dev/null"', '"/dev/null/x"', '"/dev/zero"', '"/proc/nope"'),
    *('"*"', '"**/*"', '"["', '"{x}"', '"ünï"', '"\\u0000"', '"a\\u0000b"', '"a\\nb"', '"\\u202e"', '"\\u001b[31m"'),
    *('"' + "x" * 300 + '"', '"' + "x" * 5000 + '"', '"' + "a/" * 3000 + '"', '"' + "../" * 1500 + 'x"', "'''x'''"),
)
SHAPES = (
    *("[]", "{}", "[[]]", '[""]', "[1]", '[1, "a", {}]', "[[[[]]]]", "{a = 1}", "{use = 1}", '{use = "x"}', "{use=[]}"),
    *("1970-01-01", "07:32:00", "1979-05-27T07:32:00Z", "[" * 200 + "]" * 200, "[" * 3000 + "]" * 3000),
    *("{a=" * 100 + "1" + "}" * 100, "{a=" * 1500 + "1" + "}" * 1500, "[" + "0," * 5000 + "]"),
)
TEXTS = (
    *("", " ", "-", "--", "-x", "--x", "=", "=1", "a=", "a.b.c=1", ".=1", "..=1", "train=1", "x", "{", "[", "{use=1}"),
    *DOUBLE,
    *("seed=9\n", "seed= 9 \n\n", "init_from=" + "x" * 5000),
    *("a.b=" + "[" * 3000, "." * 3000 + "=1", "a." * 1500 + "a=1", "\udcff", "\udcff=1", "seed=\udcff", "ünï", "\n"),
    "\x1b[31m",
    *("~nouser/x", "/dev/null", "/dev/null/x", ".", "..", "x" * 300, "x" * 5000, "a/" * 3000, "*", "**/*", "{a}", "%s"),
    *("-1", "0", "1", "1.5", "nan", "inf", "1e999", "1099511627776", "9" * 30, "9" * 5000, "True", "null", "0x10"),
)


def snippet(draw):
    choices: Any = draw.choice((NUMBERS, NUMBERS, STRINGS, SHAPES, part_names()))
    chosen: str = draw.choice(choices)
    return chosen


@functools.cache
def part_names():
    names = [name for kind in KINDS for name in Zoo.load().names(kind)]
    return tuple(f'"{name}"' for name in names) + tuple(f'{{use = "{name}"}}' for name in names)
