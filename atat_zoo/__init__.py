"""atat_zoo: interchangeable components for masked diffusion language models.

`Zoo` lists, describes and builds the components, and `Model` loads a trained run. `Model` and everything else that
needs torch are imported on first use, so importing `atat_zoo` stays fast.
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
