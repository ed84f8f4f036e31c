"""Measurements: what runs a model and returns its numbers, `measure(model, text, …) -> RunResult`.

Imports no torch: the specifications of judges are in this package too.
"""

from collections.abc import Callable

# Gets what is done and what there is to do: sequences, texts or tokens; of a measurement in stages their name first.
Progress = Callable[[int, int], None] | None
StageProgress = Callable[[str, int, int], None] | None
