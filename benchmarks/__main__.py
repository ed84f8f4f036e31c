"""Run the named benchmarks, or all quick ones; record their results and compare them with the previous results."""

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
    "sequence_length",
    "ranks",
    "ranks_evaluation",
    "evaluation_overhead",
    "growth",
    "sampling_overhead",
    "page",
    "strided",
)
# These take long or need arguments, so they run only when they are named.
STUDIES = (
    "baselines",
    "components",
    "finetuning",
    "gpu",
    "guidance",
    "long_sequences",
    "pictures",
    "recording",
    "repeats",
    "revisions",
    "samplers",
    "roofline",
    "scale",
    "serving",
    "speculative",
    "paces",
    "streams",
    "joints",
    "study_figure",
    "study_pages",
    "study_samples",
)

if __name__ == "__main__":
    # The first word that begins with a dash and all words after it are for the benchmark.
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), sys.argv[1:]))
    missed, lines = [], []
    for name in words or NAMES:
        if name not in (*NAMES, *STUDIES):
            sys.exit(f"unknown benchmark {name!r}; pass one of {', '.join((*NAMES, *STUDIES))}")
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"== {name}: {module.__doc__.splitlines()[0]}", flush=True)
        try:
            module.main()
        except SystemExit as left:  # a limit was exceeded; run the other benchmarks anyway
            if left.code:
                missed.append(name)
                print(f"  not met: {left.code}", flush=True)
        if pairs.RATIOS:
            lines += [name, *record.keep(name, pairs.RATIOS)]
            pairs.RATIOS.clear()
    if lines:
        print("\n".join(["== against the last run on this machine: median and quartiles, lower is better", *lines]))
    if missed:
        sys.exit(f"not met: {', '.join(missed)}")
