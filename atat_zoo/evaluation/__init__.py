"""Evaluation: the one place that computes, and names, a perplexity.

`evaluate_run` is imported on first use: it needs torch, but the specifications of judges are in this package too.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atat_zoo.evaluation.run import evaluate_run

__all__ = ["evaluate_run"]


def __getattr__(name: str) -> Any:
    if name == "evaluate_run":
        from atat_zoo.evaluation.run import evaluate_run

        return evaluate_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
