"""Run the benchmarks that are named, or all those that are quick; what they measure is kept and compared."""

import importlib
import itertools
import sys

from benchmarks import pairs, record

NAMES = (
    "startup",
    "head_chunks",
    "importance_overhead",
    "composer_overhead",
    "data_build",
    "stream",
    "readers",
    "step_time",
    "ranks",
    "ranks_evaluation",
    "evaluation_overhead",
    "growth",
    "sampling_overhead",
    "page",
    "strided",
)
# These take long, or want to be told more: they run when they are named.
STUDIES = (
    "baselines",
    "components",
    "finetuning",
    "gpu",
    "guidance",
    "pictures",
    "recording",
    "revisions",
    "samplers",
    "roofline",
    "scale",
    "study_figure",
    "study_pages",
    "study_samples",
)

if __name__ == "__main__":
    # Words that begin with a dash, and what follows them, are for the benchmark.
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), sys.argv[1:]))
    missed, lines = [], []
    for name in words or NAMES:
        if name not in (*NAMES, *STUDIES):
            sys.exit(f"there is no benchmark {name!r} (there are: {', '.join((*NAMES, *STUDIES))})")
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"== {name}: {module.__doc__.splitlines()[0]}", flush=True)
        try:
            module.main()
        except SystemExit as left:  # a bar that was not met; the others are measured all the same
            if left.code:
                missed.append(name)
                print(f"  not met: {left.code}", flush=True)
        if pairs.RATIOS:
            lines += [name, *record.keep(name, pairs.RATIOS)]
            pairs.RATIOS.clear()
    if lines:
        print("\n".join(["== against the last time on this machine: median and quartiles, less is better", *lines]))
    if missed:
        sys.exit(f"not met: {', '.join(missed)}")
