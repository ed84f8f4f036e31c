"""What a build will take of the disk and of time, from the first megabyte of its text."""

import shutil
import time
from itertools import islice

import attrs

from atat_zoo.data import Progress
from atat_zoo.data.build import Build
from atat_zoo.data.pack import batches
from atat_zoo.errors import UserError
from atat_zoo.experiment.schema import Experiment


@attrs.frozen(kw_only=True)
class BuildEstimate:
    """Roughly what a build takes."""

    text: int  # bytes
    shards: int  # bytes
    seconds: float  # to encode, after a tokenizer is trained
    free: int  # bytes on the disk of `data.root`


def estimate(
    experiment: Experiment, *, processes: int = 1, share: float = 1.0, progress: Progress | None = None
) -> BuildEstimate | None:
    """Return what a build will take; None where the text's size is not known, as of dialogues, or the shards are there.

    So many processes will encode a share of the text: all shards are estimated, and this share has to fit on the disk.
    """
    corpus, spec = experiment.parts["corpus"], experiment.data
    if spec.form == "chat" or not (size := corpus.size()):
        return None
    with Build.of(experiment, progress) as wanted:
        batched = batches(corpus.documents("train"), spec.rows)
        if wanted.is_built() or not (batch := next(batched, None)):
            return None
        # One that has to be trained is trained on the sample alone.
        packer = wanted.packer(experiment.parts["tokenizer"].train(lambda: (p.text for p in batch)), "train")
        start = time.process_time()
        sample = packer.encode(batch)
        seconds = time.process_time() - start
    if not sample.bytes:
        return None
    read = sample.bytes
    if spec.rows == "document":  # with what is cut away of them
        read = sum(len(text.encode()) for text in islice(corpus.documents("train"), sample.documents))
    scale = size / read
    sequences = scale * len(sample.tokens) / packer.body
    if spec.sequences is not None and spec.sequences < sequences:  # the held-out text is small beside it
        scale, sequences = scale * spec.sequences / sequences, spec.sequences
    root = next(path for path in wanted.folder.absolute().parents if path.is_dir())
    likely = BuildEstimate(
        text=round(scale * read),
        shards=round(sequences * spec.length * packer.dtype.itemsize),
        seconds=share * scale * seconds / processes,
        free=shutil.disk_usage(root).free,
    )
    there = sum(path.stat().st_size for path in wanted.beside("partial").glob("*.tar"))
    if share * likely.shards - there > likely.free:
        raise UserError(
            f"data.root: the shards will take about {share * likely.shards / 1e9:,.1f} GB, and {spec.root} has "
            f"{likely.free / 1e9:,.1f} GB free; free some space, or set data.root to a folder on a larger disk"
        )
    return likely
