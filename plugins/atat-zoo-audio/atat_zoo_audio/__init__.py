"""Components for short sounds: two corpora, and a tokenizer with a token per sample."""

from atat_zoo.registry import hookimpl

CONTRACT = 2


@hookimpl
def atat_zoo_corpus() -> list[type]:
    """Return the corpus classes in this package."""
    from atat_zoo_audio.melodies import MelodiesCorpus
    from atat_zoo_audio.recordings import RecordingsCorpus

    return [MelodiesCorpus, RecordingsCorpus]


@hookimpl
def atat_zoo_tokenizer() -> list[type]:
    """Return the tokenizer classes in this package."""
    from atat_zoo_audio.mu_law import MuLawTokenizer

    return [MuLawTokenizer]
