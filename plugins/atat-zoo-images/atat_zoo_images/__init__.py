"""Components for small pictures: corpora, a tokenizer, and two-dimensional positions, position sets and orders."""

from atat_zoo.registry import hookimpl

CONTRACT = 2


@hookimpl
def atat_zoo_corpus() -> list[type]:
    """Return the corpus classes in this package."""
    from atat_zoo_images.picture_corpora import DigitsCorpus, PicturesCorpus

    return [DigitsCorpus, PicturesCorpus]


@hookimpl
def atat_zoo_tokenizer() -> list[type]:
    """Return the tokenizer classes in this package."""
    from atat_zoo_images.pixel_tokenizer import PixelsTokenizer

    return [PixelsTokenizer]


@hookimpl
def atat_zoo_backbone() -> list[type]:
    """Return the backbone classes in this package."""
    from atat_zoo_images.grid_backbone import GridDiTBackbone

    return [GridDiTBackbone]


@hookimpl
def atat_zoo_position_sets() -> list[type]:
    """Return the classes of position sets in this package."""
    from atat_zoo_images.grid_orders import SpreadPositionSets, TilesPositionSets

    return [SpreadPositionSets, TilesPositionSets]


@hookimpl
def atat_zoo_guidance() -> list[type]:
    """Return the guidance classes in this package."""
    from atat_zoo_images.picture_guidance import PixelsGuidance

    return [PixelsGuidance]


@hookimpl
def atat_zoo_order() -> list[type]:
    """Return the classes of decoding orders in this package."""
    from atat_zoo_images.grid_orders import SpreadOrder

    return [SpreadOrder]
