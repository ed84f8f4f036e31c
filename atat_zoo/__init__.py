"""atat_zoo: interchangeable parts for masked diffusion language models.

`Zoo` lists, describes and builds the parts, and `Model` is a trained run.
`Model` and all else that needs torch is imported when it is first asked for, so
that importing `atat_zoo` stays instant.
"""

from typing import TYPE_CHECKING, Any

from atat_zoo.registry import Zoo
from atat_zoo.system.errors import UserError

if TYPE_CHECKING:
    from atat_zoo.generation.model import Model

__all__ = ["Model", "UserError", "Zoo", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Model":
        from atat_zoo.generation.model import Model

        return Model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
