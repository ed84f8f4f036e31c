"""The cost of each component of the ATAT report's system, and of progressive unmasking, relative to MDLM.

It uses the small preset with GPT-2's vocabulary, as in `owt-small/documented`, on this machine. The table is that of
docs/results/efficiency.md; `--only` prints one of its rows.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.experiment import load
from atat_zoo.system.environment import machine
from atat_zoo.training.memory import keep_freed_memory
from benchmarks.importance_overhead import VOCABULARY, peak, stepper
from benchmarks.pairs import alone, interleave, note, quartiles

if TYPE_CHECKING:
    from collections.abc import Callable

WHOLE, PLAIN = "owt-small/documented", "owt-small/mdlm objective.weight=simple"
# Each row and the experiment that it compares with MDLM. Masking and curriculum need the estimator.
COMPONENTS = {
    "estimator": f"{WHOLE} masking.use=uniform curriculum.use=none",
    "estimator, masking": f"{WHOLE} curriculum.use=none",
    "estimator, curriculum": f"{WHOLE} masking.use=uniform",
    "all": WHOLE,
    "progressive unmasking": f"{PLAIN} masking.use=progressive",
}

INTRODUCTION = """\
# Cost of each component

How much do the components of the ATAT report's system add to masked diffusion?

The report promises +2 % parameters and +6 % compute. Most of the added parameters belong to the embedding of its
importance estimator.

"""

METHOD = """\

## Method

`python -m benchmarks components --markdown docs/results/efficiency.md` writes this page. Every row is a ratio to MDLM;
the first rows add one component of the ATAT report's system, `owt-small/documented`; 12 layers of width 768, 50,257
tokens. Time is processor time of a training step over {rows} sequences of {length} tokens: median and quartiles of
{pairs} pairs (a quarter as many for sampling), {machine}, {threads}, torch {torch}. Torch counts the FLOPs of matrix
products. Memory is the peak of a process over {steps} steps. The last column is the time of a decoding step of the
report's sampler relative to a step of ancestral sampling.

## Limits

- One CPU, untrained models, a small batch.
- The ratio of a decoding step does not say how many steps a text takes; see [the study of
masks](study-of-masks.md#samplers).
"""


def of_sampling(name: str, sampler: Any, length: int) -> tuple[Callable[[], None], list[int]]:
    """Return a function that generates texts with an untrained model and returns the forward passes per text."""
    module, _ = stepper(name, VOCABULARY, length, 1)
    denoiser, taken = module.eval().denoiser(), list[int]()
    tokens, texts = torch.full((1, length), denoiser.mask_id), itertools.count()

    @torch.inference_mode()
    def write() -> None:
        seeds = sequence_keys(0, "sample", torch.tensor([next(texts)]))
        taken.append(int(sampler.sample(denoiser, tokens, seeds).nfe[0]))

    return write, taken


def spread(ratios: list[float]) -> str:
    """Return the median and quartiles of the ratios as text."""
    return "{:.3f} [{:.3f}, {:.3f}]".format(*quartiles(ratios))


def main() -> None:
    """Print the table, or write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=3, help="number of steps in which memory is measured")
    parser.add_argument("--only", choices=(*COMPONENTS, "sampler"), help="row to print")
    parser.add_argument("--markdown", type=Path, help="Markdown page to write")
    given, _ = parser.parse_known_args()
    sizes = (VOCABULARY, given.length, given.rows)
    rows = {title: name for title, name in COMPONENTS.items() if given.only in (None, title)}
    peaks = {name: alone(peak, name, *sizes, given.steps) for name in (PLAIN, *rows.values())}
    keep_freed_memory()
    lines = [
        "| relative to MDLM | parameters | FLOPs per step | time per step | peak memory | time per decoding step |"
    ]
    lines.append("| --- " * 6 + "|")
    for title, name in rows.items():
        # Both start from step 0, and use the same rates and masks at the same step.
        (plain, plain_step), (module, step) = stepper(PLAIN, *sizes), stepper(name, *sizes)
        more_flops = flops(step) / flops(plain_step)
        ratios = [more / base for more, base in interleave(step, plain_step, given.pairs, 1, time.process_time)]
        note(f"{title}, a step / MDLM", ratios)
        cells = [f"{weights(module) / weights(plain):.3f}", f"{more_flops:.3f}", spread(ratios)]
        lines.append(f"| {' | '.join([title, *cells, f'{peaks[name] / peaks[PLAIN]:.3f}', ''])} |")
        print(lines[-1], flush=True)
        del module, step, plain, plain_step
    if given.only in (None, "sampler"):
        lines.append(f"| estimator, sampler | | | | | {decoding_step(given)} |")
        print(lines[-1], flush=True)
    if given.markdown:
        said = {key: getattr(given, key) for key in ("pairs", "rows", "length", "steps")}
        threads = "one thread" if torch.get_num_threads() == 1 else f"{torch.get_num_threads()} threads"
        of = {"machine": machine()["processor"], "threads": threads, "torch": torch.__version__.split("+")[0]}
        text = INTRODUCTION + "\n".join(lines) + "\n" + METHOD.format(**said, **of)
        given.markdown.write_text(text, encoding="utf-8")


def decoding_step(given: argparse.Namespace) -> str:
    """Return the time of a decoding step of the report's sampler relative to ancestral sampling, as text."""
    ours, theirs = (load(name).parts["sampler"] for name in (WHOLE, PLAIN.split()[0]))
    write, taken = of_sampling(COMPONENTS["estimator"], ours, given.length)
    base, of_base = of_sampling(PLAIN, theirs, given.length)
    timed = interleave(write, base, max(2, given.pairs // 4), 0, time.process_time)
    # In pairs, both sides have generated the same number of texts.
    ratios = [(a / n) / (b / m) for (a, b), n, m in zip(timed, taken, of_base, strict=True)]
    note("the report's sampler, a decoding step / ancestral", ratios)
    return spread(ratios)


def weights(module: Any) -> int:
    """Return the number of parameters."""
    return sum(each.numel() for each in module.parameters())


def flops(step: Callable[[], None]) -> int:
    """Return the FLOPs of a training step."""
    with FlopCounterMode(display=False) as counted:
        step()
    return int(counted.get_total_flops())


if __name__ == "__main__":
    main()
