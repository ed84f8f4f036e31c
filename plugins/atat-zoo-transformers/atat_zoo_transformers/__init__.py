"""Models from the Hugging Face hub: the backbone `transformers` and the tokenizer `transformers`."""

from atat_zoo.registry import hookimpl


@hookimpl
def atat_zoo_backbone() -> list[type]:
    """Return the backbone classes in this package."""
    from atat_zoo_transformers.transformers_backbone import TransformersBackbone

    return [TransformersBackbone]


@hookimpl
def atat_zoo_tokenizer() -> list[type]:
    """Return the tokenizer classes in this package."""
    from atat_zoo_transformers.transformers_tokenizer import TransformersTokenizer

    return [TransformersTokenizer]
