"""Components for DNA: tokenizer, corpora, convolutional backbone, k-mer importance and masks, and tasks."""

from atat_zoo.registry import hookimpl

CONTRACT = 2


@hookimpl
def atat_zoo_tokenizer() -> list[type]:
    """Return the tokenizers in this package."""
    from atat_zoo_genomics.alphabet import DNATokenizer

    return [DNATokenizer]


@hookimpl
def atat_zoo_corpus() -> list[type]:
    """Return the corpora in this package."""
    from atat_zoo_genomics.corpora import DNACSVCorpus, FASTACorpus, FASTQCorpus

    return [FASTACorpus, FASTQCorpus, DNACSVCorpus]


@hookimpl
def atat_zoo_backbone() -> list[type]:
    """Return the backbones in this package."""
    from atat_zoo_genomics.convolution_backbone import ConvolutionBackbone

    return [ConvolutionBackbone]


@hookimpl
def atat_zoo_estimator() -> list[type]:
    """Return the estimators in this package."""
    from atat_zoo_genomics.kmers import KmerEstimator

    return [KmerEstimator]


@hookimpl
def atat_zoo_task() -> list[type]:
    """Return the tasks in this package."""
    from atat_zoo_genomics.genomic_tasks import GenomicBenchmarksTask, GueTask

    return [GueTask, GenomicBenchmarksTask]


@hookimpl
def atat_zoo_mask_drawing() -> list[type]:
    """Return the mask drawings in this package."""
    from atat_zoo_genomics.kmers import KmerMaskDrawing

    return [KmerMaskDrawing]
