"""The assembled model: parts joined by their objective, saved without pickles, used from Python."""

from atat_zoo.model.assembly import assemble
from atat_zoo.model.model import Model
from atat_zoo.model.token_scores import TokenScore

__all__ = ["Model", "TokenScore", "assemble"]
