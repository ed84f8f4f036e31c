"""The assembled model: parts joined by their objective, saved without pickles, used from Python."""

from atat_zoo.model.assembly import assemble
from atat_zoo.model.model import Model

__all__ = ["Model", "assemble"]
