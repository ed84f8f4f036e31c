"""An example plugin with one hook and one masking strategy."""

from atat_zoo.registry import hookimpl

CONTRACT = 2


@hookimpl
def atat_zoo_masking() -> list[type]:
    """Return the masking-strategy classes in this package."""
    from atat_zoo_example.rank import Rank

    return [Rank]
