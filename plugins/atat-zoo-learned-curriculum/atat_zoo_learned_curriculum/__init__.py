"""A curriculum whose loss weights are learned from held-out text, and the algorithm that learns them."""

from atat_zoo.registry import hookimpl

CONTRACT = 2


@hookimpl
def atat_zoo_curriculum() -> list[type]:
    """Return the curriculum classes in this package."""
    from atat_zoo_learned_curriculum.learned_curriculum import LearnedCurriculum

    return [LearnedCurriculum]


@hookimpl
def atat_zoo_algorithm() -> list[type]:
    """Return the algorithm classes in this package."""
    from atat_zoo_learned_curriculum.learned_curriculum import LookAheadAlgorithm

    return [LookAheadAlgorithm]
