"""Components for DNA: a tokenizer, corpora, a convolutional backbone, k-mer importance and masks, and tasks."""

from atat_zoo.registry import hookimpl

CONTRACT = 2


@hookimpl
def atat_zoo_tokenizer() -> list[type]:
    """Return the tokenizer classes in this package."""
    from atat_zoo_genomics.alphabet import DNATokenizer

    return [DNATokenizer]


@hookimpl
def atat_zoo_corpus() -> list[type]:
    """Return the corpus classes in this package."""
    from atat_zoo_genomics.corpora import DNACSVCorpus, FASTACorpus, FASTQCorpus

    return [FASTACorpus, FASTQCorpus, DNACSVCorpus]


@hookimpl
def atat_zoo_backbone() -> list[type]:
    """Return the backbone classes in this package."""
    from atat_zoo_genomics.convolution_backbone import ConvolutionBackbone

    return [ConvolutionBackbone]


@hookimpl
def atat_zoo_estimator() -> list[type]:
    """Return the estimator classes in this package."""
    from atat_zoo_genomics.kmers import KmerEstimator

    return [KmerEstimator]


@hookimpl
def atat_zoo_task() -> list[type]:
    """Return the task classes in this package."""
    from atat_zoo_genomics.genomic_tasks import GenomicBenchmarksTask, GueTask

    return [GueTask, GenomicBenchmarksTask]


@hookimpl
def atat_zoo_mask_drawing() -> list[type]:
    """Return the mask-drawing classes in this package."""
    from atat_zoo_genomics.kmers import KmerMaskDrawing

    return [KmerMaskDrawing]
