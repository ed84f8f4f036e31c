"""`python -m tests.attack [KIND …]`: attack, print the table and the failures; exit code 1 if there are any."""

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path


def main():
    from tests.attack import KINDS, __doc__, driver

    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"{', '.join(KINDS)}; all when absent")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is a short run, 100 the long one")
    parser.add_argument("--only", type=int, nargs="+", help="the numbers of the cases")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases at a time")
    parser.add_argument("--keep", type=Path, help="a folder in which the files of the cases stay")
    words = parser.parse_args()
    if unknown := set(words.kinds) - set(KINDS):
        parser.error(f"there is no kind {', '.join(sorted(unknown))} (there are: {', '.join(KINDS)})")
    tallies = []
    print(driver.HEAD, flush=True)
    for name in words.kinds or KINDS:
        kind: driver.Kind = import_module(f"tests.attack.{name}").KIND
        numbers = words.only or range(max(1, round(kind.share * words.scale)))
        keep = words.keep.resolve() if words.keep else None
        tallies.append(driver.run(kind, numbers, words.seed, jobs=words.jobs, keep=keep))
        print(tallies[-1].row, flush=True)
    for tally in tallies:
        for number, why in tally.failures.items():
            print(f"\n{tally.name}: {why}\n  {driver.reproduction(tally.name, words.seed, number)}")
    return 1 if any(tally.failures for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
