"""Evaluation: the one place that computes, and names, a perplexity.

What needs torch is imported when it is first asked for: the specifications of judges stand in this package too.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atat_zoo.evaluation.measuring import Measurement, measure
    from atat_zoo.evaluation.perplexity import Evaluation, summarise
    from atat_zoo.evaluation.run import evaluate_run

__all__ = ["Evaluation", "Measurement", "evaluate_run", "measure", "summarise"]

_PLACES = {
    "Evaluation": "atat_zoo.evaluation.perplexity",
    "Measurement": "atat_zoo.evaluation.measuring",
    "evaluate_run": "atat_zoo.evaluation.run",
    "measure": "atat_zoo.evaluation.measuring",
    "summarise": "atat_zoo.evaluation.perplexity",
}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
