"""All that waits for a GPU, as a page: the step against a bare loop, utilisation, ATAT's cost, sampling, the tests.

The experiments are owt-small/mdlm, bell, atat and importance (12 × 768, length 1024, 50,257 tokens, bf16, compiled), on
words that are drawn here: nothing is downloaded. `--small` does the same with a nano network on a CPU, to see it run.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch

from atat_zoo.experiment import load
from atat_zoo.model import Model
from atat_zoo.run.environment import describe
from atat_zoo.training import train
from benchmarks.composer_overhead import BareLoop
from benchmarks.pairs import RATIOS, report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atat_zoo.training import Result

ROOT = Path(__file__).parents[1]


@attrs.frozen
class Size:
    """How large everything is."""

    vocabulary: int = 50_257
    sequences: int = 1024
    length: int = 1024
    rows: int = 32
    steps: int = 80
    warm: int = 20  # steps that are not measured: the first ones compile
    texts: int = 256
    sampling_steps: int = 64
    overrides: tuple[str, ...] = ("train.device=gpu", "train.compile=true")


SMALL = Size(
    vocabulary=200,
    sequences=64,
    length=32,
    rows=4,
    steps=8,
    warm=2,
    texts=4,
    sampling_steps=4,
    overrides=("train.device=cpu", "data.workers=0", "backbone.preset=nano", "train.peak_flops=0.1"),
)


def words_in(folder: Path, size: Size) -> list[str]:
    """Write a text of drawn words and their tokenizer, and return the overrides that name them."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(size.vocabulary)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    rng, named = np.random.default_rng(0), []
    for split, rows in (("train", size.sequences), ("validation", 16)):
        # Frequencies as in text; the length of a line is that of a sequence.
        drawn = rng.zipf(1.2, (rows, size.length)) % size.vocabulary
        (folder / f"{split}.txt").write_text("\n".join(" ".join(f"w{i}" for i in row) for row in drawn) + "\n")
        named.append(f'corpus.{split}=["{folder / split}.txt"]')
    named += ["corpus.document=line", f"tokenizer.path={folder / 'tokenizer.json'}"]
    return [*named, "tokenizer.bos=w0", "tokenizer.eos=w0"]


def trained(name: str, folder: Path, size: Size, words: Sequence[str], bare: bool = False) -> tuple[Result, list[Any]]:
    """Train a variant of owt-small; return what came of it and, with `bare`, the pairs of Composer's and bare steps."""
    settings = [f"data.root={folder / 'data'}", "data.lanes=4", "data.special=none", f"data.length={size.length}"]
    settings += [f"train.batch_size={size.rows}", f"train.microbatch_size={size.rows}", "train.ema=0.0"]
    settings += ["schedule.warmup_steps=1", "train.evaluate_every=0", "evaluation.sequences=4", "evaluation.draws=1"]
    settings += ["evaluation.samples=0", f"train.steps={size.steps}", f"train.save_every={size.steps}"]
    settings += ["train.log_every=2"]
    experiment = load(f"owt-small/{name}", [*words, *settings, *size.overrides])
    loops = [BareLoop(experiment)] if bare else []
    result = train(experiment, folder / name, callbacks=loops)
    return result, loops[0].timed[size.warm :] if loops else []


def median(result: Result, figure: str, size: Size) -> float | None:
    """Return the median of a figure over the lines of metrics after the first steps, None where there is none."""
    lines = [line for line in result.folder.read_metrics() if line["step"] > size.warm]
    values = [line[figure] for line in lines if figure in line]
    return statistics.median(values) if values else None


def share_of_network(model: Model, size: Size) -> tuple[float, float]:
    """Return the seconds that writing takes, and the share of them that backbone and head have."""
    spent, began = [0.0], [0.0]

    def start(*_: Any) -> None:
        synchronize()
        began[0] = time.perf_counter()

    def stop(*_: Any) -> None:
        synchronize()
        spent[0] += time.perf_counter() - began[0]

    backbone: Any = model.module.backbone
    handles = [part.register_forward_pre_hook(start) for part in (backbone, backbone.head)]
    handles += [part.register_forward_hook(stop) for part in (backbone, backbone.head)]
    sampler = {"use": "ancestral", "steps": size.sampling_steps}
    for number in (min(size.texts, 64), size.texts):  # the first time sets things up
        spent[0] = 0.0
        synchronize()
        whole = time.perf_counter()
        model.sample(number, sampler=sampler, seed=number)
        synchronize()
        whole = time.perf_counter() - whole
    for handle in handles:
        handle.remove()
    return whole, spent[0] / whole


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def waiting_tests(paths: Sequence[str]) -> tuple[str, bool]:
    """Run the tests that wait for a GPU, and return the last line of what they say, and whether they pass."""
    words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *paths]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    said = [f"pytest ended with {done.returncode}", *done.stdout.strip().splitlines()][-1]
    return said, done.returncode == 0 and "passed" in said  # where all are skipped, none has passed


def measured(folder: Path, size: Size, paths: Sequence[str]) -> list[tuple[str, str, str, bool | None]]:
    """Return a row for each bar: what it is of, the bar, what was seen, and whether it is met."""
    words = words_in(folder, size)
    mdlm, pairs = trained("mdlm", folder, size, words, bare=True)
    ratio = 1 / report("Composer", "bare loop", pairs)
    rows: list[tuple[str, str, str, bool | None]] = [
        ("speed of a step, of a bare compiled loop's", "≥ 0.95", f"{ratio:.3f}", ratio >= 0.95)
    ]
    used, speed = median(mdlm, "utilisation", size), median(mdlm, "tokens_per_second", size)
    assert speed is not None
    seen = "the GPU's peak is not known" if used is None else f"{used:.1%}"
    rows.append(("model-FLOP utilisation of `mdlm`", "≥ 40 %", seen, None if used is None else used >= 0.4))
    rows.append(("tokens a second of `mdlm`", "", f"{speed:,.0f}", None))
    for name in ("bell", "atat", "importance"):
        other = median(trained(name, folder, size, words)[0], "tokens_per_second", size)
        assert other is not None
        longer = speed / other
        rows.append((f"time of a step, `{name}` over `mdlm`", "≤ 1.06", f"{longer:.3f}", longer <= 1.06))
    seconds, share = share_of_network(Model.from_run(mdlm.folder.path, "auto"), size)
    what = f"{size.texts} texts in {size.sampling_steps} steps: share of the time in the network"
    rows.append((what, "≥ 60 %", f"{share:.1%} of {seconds:.1f} s", share >= 0.6))
    rows.append(("tests that wait for a GPU", "pass", *waiting_tests(paths)))
    return rows


def page(rows: Sequence[tuple[str, str, str, bool | None]], size: Size) -> str:
    """Return the page as Markdown."""
    said = describe([])
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else said["machine"]["processor"]
    versions = ", ".join(f"{name} {said['packages'][name]}" for name in ("torch", "mosaicml"))
    words = {True: "met", False: "**not met**", None: ""}
    table = [f"| {what} | {bar} | {seen} | {words[met]} |" for what, bar, seen, met in rows]
    return "\n".join(
        [
            "# On a GPU",
            "",
            f"Written by `python -m benchmarks gpu`{' --small' * (size is SMALL)} on {device} ({versions}).",
            f"Sequences of {size.length} tokens, {size.vocabulary:,} different ones; {size.rows} sequences a step,",
            f"medians over {size.steps - size.warm} steps; {', '.join(size.overrides)}.",
            "",
            "| what | bar | seen | |",
            "| --- | --- | --- | --- |",
            *table,
            "",
        ]
    )


def main(words: Sequence[str] | None = None) -> None:
    """Write the page; fails when a bar is not met on a GPU."""
    parser = argparse.ArgumentParser(prog="gpu")
    parser.add_argument("--small", action="store_true", help="nano, on a CPU, whose figures mean nothing")
    parser.add_argument("--markdown", type=Path, help="the page; docs/gpu.md, or none with --small")
    parser.add_argument("--tests", nargs="*", default=["tests"], help="where the tests are")
    given, _ = parser.parse_known_args(sys.argv[2:] if words is None else words)
    if not given.small and not torch.cuda.is_available():
        sys.exit("torch sees no GPU; --small runs the same on a CPU")
    size = SMALL if given.small else Size()
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(Path(folder), size, given.tests)
    if given.small:
        RATIOS.clear()  # no figure to remember
    text = page(rows, size)
    print(text)
    path = given.markdown or (None if given.small else ROOT / "docs" / "gpu.md")
    if path:
        path.write_text(text, encoding="utf-8")
    if not given.small and (missed := [what for what, *_, met in rows if met is False]):
        sys.exit("; ".join(missed))
