"""Run the benchmarks that are named, or all of them."""

import importlib
import sys

NAMES = ("startup", "importance_overhead", "composer_overhead")

if __name__ == "__main__":
    for name in sys.argv[1:] or NAMES:
        if name not in NAMES:
            sys.exit(f"there is no benchmark {name!r} (there are: {', '.join(NAMES)})")
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"== {name}: {module.__doc__.splitlines()[0]}", flush=True)
        module.main()
