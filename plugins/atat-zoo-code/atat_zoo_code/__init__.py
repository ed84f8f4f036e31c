"""Python code: a corpus, a transform for autoregressive infilling, and tasks on lines and on token classes."""

from atat_zoo.registry import hookimpl

CONTRACT = 2


@hookimpl
def atat_zoo_corpus() -> list[type]:
    """Return the corpus classes in this package."""
    from atat_zoo_code.python_library import PythonLibraryCorpus

    return [PythonLibraryCorpus]


@hookimpl
def atat_zoo_transform() -> list[type]:
    """Return the transform classes in this package."""
    from atat_zoo_code.fill_in_the_middle import FillInTheMiddleTransform

    return [FillInTheMiddleTransform]


@hookimpl
def atat_zoo_task() -> list[type]:
    """Return the task classes in this package."""
    from atat_zoo_code.code_tasks import LineInfillingTask, TokenClassesTask

    return [LineInfillingTask, TokenClassesTask]
