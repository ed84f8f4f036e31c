"""The assembled model: parts joined by their objective, saved without pickle, used from Python."""

from atat_zoo.model.model import Model, weights_of
from atat_zoo.model.shown import TokenScore

__all__ = ["Model", "TokenScore", "weights_of"]
