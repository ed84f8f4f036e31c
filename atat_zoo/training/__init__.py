"""Training: Composer's Trainer over an assembled model and the stream. The only package that imports composer."""

from atat_zoo.training.trainer import Reporter, Result, resume, train

__all__ = ["Reporter", "Result", "resume", "train"]
