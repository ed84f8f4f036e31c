"""GLUE as the task `glue` of atat_zoo."""

from atat_zoo.registry import hookimpl

CONTRACT = 2


@hookimpl
def atat_zoo_task() -> list[type]:
    """Return the tasks that this package provides."""
    from atat_zoo_glue.task import GlueTask

    return [GlueTask]
