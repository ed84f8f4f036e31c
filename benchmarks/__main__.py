"""Run the benchmarks that are named, or all those that train nothing."""

import importlib
import itertools
import sys

NAMES = (
    "startup",
    "head_chunks",
    "importance_overhead",
    "counts_overhead",
    "composer_overhead",
    "data_build",
    "evaluation_overhead",
    "evaluation_memory",
    "growth",
    "sampling_overhead",
    "strided",
    "stream",
)
# These take long, or want to be told more: they run when they are named.
STUDIES = (
    "baselines",
    "finetuning",
    "guidance",
    "importance_targets",
    "revisions",
    "samplers",
    "study_figure",
    "study_samples",
)

if __name__ == "__main__":
    # Words that begin with a dash, and what follows them, are for the benchmark.
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), sys.argv[1:]))
    for name in words or NAMES:
        if name not in (*NAMES, *STUDIES):
            sys.exit(f"there is no benchmark {name!r} (there are: {', '.join((*NAMES, *STUDIES))})")
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"== {name}: {module.__doc__.splitlines()[0]}", flush=True)
        module.main()
