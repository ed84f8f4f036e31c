"""atat_zoo: interchangeable parts for masked diffusion language models.

`Zoo` lists, describes and builds the parts. Everything that needs torch is
imported from its own package (`atat_zoo.model`, `atat_zoo.generation`, …), so
that importing `atat_zoo` stays instant.
"""

from atat_zoo.errors import UserError
from atat_zoo.registry import Zoo

__all__ = ["UserError", "Zoo", "__version__"]
__version__ = "0.1.0"
