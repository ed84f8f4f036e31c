"""Evaluation: the one place that computes, and names, a perplexity."""

from atat_zoo.evaluation.perplexity import Evaluation, Measured, measure, summarise

__all__ = ["Evaluation", "Measured", "measure", "summarise"]
