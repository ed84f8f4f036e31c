"""The assembled model: parts joined by their objective, saved without pickle, used from Python."""

from atat_zoo.model.model import Model, TokenScore, weights_of

__all__ = ["Model", "TokenScore", "weights_of"]
