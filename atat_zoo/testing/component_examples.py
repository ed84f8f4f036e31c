"""A small example of each component that requires parameters or files or is large by default."""

import io
import json
import random
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atat_zoo.data.tokenizers.components import BPETokenizer, BytesTokenizer
from atat_zoo.evaluation.metrics import GenerativeMetric

# Writes a component's files to a folder and returns its parameters.
Example = Callable[[Path], dict[str, Any]]

_WORDS = ("the", "people", "of", "this", "nation", "keep", "a", "just", "peace", "with", "all", "states")


def written(path: Path, lines: int = 80, end: str = "\n") -> str:
    """Write a text of random words to a file, and return its path."""
    draw = random.Random(0)
    path.parent.mkdir(exist_ok=True)
    path.write_text(end.join(" ".join(draw.choices(_WORDS, k=12)) for _ in range(lines)), encoding="utf-8")
    return str(path)


def _files(folder: Path) -> dict[str, Any]:
    return {"train": [written(folder / "text.txt")], "document": "line"}


def _huggingface(folder: Path) -> dict[str, Any]:
    written(folder / "set" / "train.txt")
    return {"path": str(folder / "set"), "cache": str(folder / "cache")}


def _mixture(folder: Path) -> dict[str, Any]:
    return {
        "components": [{"use": "sotu", "first_year": 2010}, {"use": "files", **_files(folder)}],
        "weights": [3.0, 1.0],
    }


def _webdataset(folder: Path) -> dict[str, Any]:
    lines = Path(written(folder / "text.txt")).read_text(encoding="utf-8").splitlines()
    with tarfile.open(folder / "made.tar.gz", "w:gz") as tar:
        for number, line in enumerate(lines):
            member = tarfile.TarInfo(f"{number:06d}.txt")
            member.size = len(line)
            tar.addfile(member, io.BytesIO(line.encode()))
    return {"train": [str(folder / "made.tar.gz")]}


def _shards(folder: Path) -> dict[str, Any]:
    from atat_zoo.data.build import build
    from atat_zoo.experiment import from_table

    data = {"root": str(folder / "shards"), "length": 16, "lanes": 2}
    data |= {"sequences_per_member": 4, "sequences_per_shard": 8}
    corpus = {"use": "files", **_files(folder)}
    return {"path": str(build(from_table({"name": "x", "corpus": corpus, "tokenizer": "bytes", "data": data})))}


def _pretrained(folder: Path) -> dict[str, Any]:
    text = Path(written(folder / "text.txt", 20)).read_text(encoding="utf-8").splitlines()
    BPETokenizer(vocabulary_size=300).train(lambda: iter(text)).save(folder)
    return {"path": str(folder / "tokenizer.json"), "bos": "<bos>", "eos": "<eos>"}


def _run(folder: Path) -> dict[str, Any]:
    (folder / "model").mkdir()
    BytesTokenizer().train(lambda: iter(())).save(folder / "model")
    return {"path": str(folder), "like": "bytes"}


def _zero_shot(folder: Path) -> dict[str, Any]:
    passages = Path(written(folder / "text.txt", 6)).read_text(encoding="utf-8").splitlines()
    path = folder / "corpora" / "lambada" / "lambada_test.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps({"text": passage}) + "\n" for passage in passages), encoding="utf-8")
    return {"corpora": ["lambada"], "root": str(folder), "sequences": 8, "mask_samples": 1}


def _controlled(folder: Path) -> dict[str, Any]:
    topic = {"use": "naive_bayes", "words": ["peace"], "corpus": {"use": "files", **_files(folder)}}
    return {"guidance": {"use": "token_bias", "words": ["peace"]}, "classifier": topic, "texts": 5}


_WITH_STEPS = [f"remdm_{each}" for each in ("cap", "conf", "loop", "rescale")]
_WITH_STEPS += ["ancestral", "confidence_history", "entropy", "margin", "maskgit", "p2"]

# By kind and name.
EXAMPLES: Mapping[tuple[str, str], Example] = {
    ("corpus", "files"): _files,
    ("corpus", "huggingface"): _huggingface,
    ("corpus", "mixture"): _mixture,
    ("corpus", "text8"): lambda folder: {"path": written(folder / "text8", end=" ")},
    ("corpus", "shards"): _shards,
    ("corpus", "webdataset"): _webdataset,
    ("tokenizer", "pretrained"): _pretrained,
    ("tokenizer", "run"): _run,
    ("backbone", "dit"): lambda _: {"layers": 2, "width": 16, "heads": 2, "local_heads": 1, "time_conditioning": True},
    ("transform", "minimum_length"): lambda _: {"min_tokens": 5},
    # Few bins, so that a few steps cover them all.
    ("mask_rates", "adaptive"): lambda _: {"bins": 3},
    ("objective", "block"): lambda _: {"block_size": 3},
    ("objective", "strided_causal"): lambda _: {"stride": 2},
    ("position_sets", "mixture"): lambda _: {"components": [{"use": "strided", "stride": 3}, {"use": "random"}]},
    ("task", "zero_shot"): _zero_shot,
    ("task", "held_out"): lambda _: {"sequences": 6, "mask_samples": 1},
    ("task", "bracket"): lambda _: {"sequences": 4, "orders": 2},
    ("task", "prices"): lambda _: {"sequences": 4, "texts": 5, "samplers": [{"use": "ancestral", "steps": 2}]},
    ("task", "protocol"): lambda _: {"sequences": 20, "mask_samples": 1},
    ("task", "controlled"): _controlled,
    ("task", "long_text"): lambda _: {
        "length": 48,
        "texts": 5,
        "sampler": {"use": "semi_autoregressive", "block_size": 8, "block_sampler": {"use": "ancestral", "steps": 2}},
    },
    ("task", "context_probe"): lambda _: {
        "pairs": {"ab": ["a [cab] is", "no [bad] aa"], "b": ["ab [a] ba", "ba [bb] ab"]}
    },
    ("guidance", "token_bias"): lambda _: {"words": ["cab", "a"], "ban": ["z"]},
    ("metric", GenerativeMetric.name): lambda _: {"judge": {"use": "huggingface", "model": "gpt2"}},
    ("metric", "mauve"): lambda _: {"judge": {"use": "huggingface", "model": "gpt2"}},
    ("guidance", "importance_bias"): lambda _: {"words": ["cab", "a"]},
    # Fewer steps than the texts of the checks have tokens, so that a step fills several.
    **dict.fromkeys((("sampler", name) for name in _WITH_STEPS), lambda _: {"steps": 8}),
}
