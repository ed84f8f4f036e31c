"""Memory and time of one long sequence, with dilated convolutions and with the transformer, by sequence length.

Each row is measured in a process of its own, which may take at most half of the free memory: the peak memory that a
training step or a forward pass with the loss adds to the weights and optimizer states, and its processor time. The
networks have about as many weights. A row is skipped if it should take longer than `--seconds`: the time of the next
shorter one grows with the length for convolutions, and with its square for the transformer. Rows that are already in
docs/results/long-sequences.json are not measured again. This needs `pip install -e plugins/atat-zoo-genomics`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from atat_zoo.diffusion.precision import computes_in_bf16
from atat_zoo.experiment import load
from atat_zoo.experiment.runs import write_json
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from atat_zoo.system.environment import machine
from atat_zoo.system.machine import free_memory
from atat_zoo.training.memory import keep_freed_memory
from benchmarks.pairs import forget_peak, release_freed_memory, resident, seconds
from tests.drawn import drawn_batch

PAGE = Path(__file__).parents[1] / "docs" / "results" / "long-sequences.md"
RESULT, FIGURE = PAGE.with_suffix(".json"), PAGE.with_suffix(".svg")
LENGTHS = (1024, 4096, 8192, 16_384, 32_768, 131_072)
VOCABULARY = 258  # of bytes
REPEATED = 8192  # a shorter sequence is repeated up to so many tokens, and the fastest counts
# 17 dilations of kernel 3 read 2¹⁷ − 1 tokens on each side, the longest sequence.
BACKBONES = {
    "gated_convolution": "layers=17 width=64 kernel=3 cycle=17",
    "dit": f"layers=4 width=96 heads=4 max_length={LENGTHS[-1]} output_bias=none local_heads=0 ngram_prior=0",
}
GROWTH = {"gated_convolution": 1, "dit": 2}  # exponent of the length, of the time
WORK = {True: "training step", False: "forward pass"}


def measure(backbone: str, length: int, training: bool) -> dict[str, Any]:
    """Return the peak memory in bytes and the processor seconds of one sequence, and the number of weights."""
    changes = [f"backbone.{change}" for change in BACKBONES[backbone].split()]
    experiment = load("mdlm", [f"backbone.use={backbone}", *changes, f"data.length={length}", "tokenizer.use=bytes"])
    module: Any = assemble(experiment, Context(vocabulary_size=VOCABULARY, length=length)).train(training)
    optimizer = torch.optim.AdamW(module.parameters())
    bf16 = computes_in_bf16(experiment.train.precision, "cpu")

    def work(tokens: int) -> None:
        with torch.set_grad_enabled(training), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = module.loss(drawn_batch(VOCABULARY, 1, tokens))["loss"]
        if training:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    work(64)  # loads what every step needs
    before = resident()
    forget_peak()
    times = [seconds(lambda: work(length), time.process_time) for _ in range(max(1, REPEATED // length))]
    weights = sum(each.numel() for each in module.parameters())
    return {"bytes": resident(peak=True) - before, "seconds": min(times), "weights": weights}


def apart(*row: Any) -> dict[str, Any]:
    """Return what `measure` does, in a process of its own, forked because importing takes longer than most rows."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(limited, *row).result()


def limited(*row: Any) -> dict[str, Any]:
    """Return what `measure` does; this process may take half of the free memory, beyond which torch raises an error."""
    torch.set_num_threads(1)
    release_freed_memory()  # of the parent, which would hide the memory of the row
    keep_freed_memory()  # as in training
    resource.setrlimit(resource.RLIMIT_DATA, (resident() + free_memory() // 2,) * 2)
    return measure(*row)


def expected(rows: list[dict[str, Any]], backbone: str, length: int, training: bool) -> float:
    """Return the seconds that a row should take by the longest shorter one, or 0 without one."""
    same = [row for row in rows if (row["backbone"], row["training"]) == (backbone, training)]
    last = max((row for row in same if row["length"] < length), key=lambda row: row["length"], default=None)
    return last["seconds"] * (length / last["length"]) ** GROWTH[backbone] if last else 0.0


def table_of(found: dict[str, Any]) -> str:
    """Return the table: MiB, and the time per token relative to the shortest sequence."""
    kinds = [(backbone, training) for training in WORK for backbone in BACKBONES]
    lines = [f"| tokens | {' | '.join(f'`{backbone}`, {WORK[training]}' for backbone, training in kinds)} |"]
    lines.append("| --- " * (1 + len(kinds)) + "|")
    known = {(row["backbone"], row["training"], row["length"]): row for row in found["rows"]}
    for length in sorted({row["length"] for row in found["rows"]}):
        cells = [f"{length:,}"]
        for kind in kinds:
            row, first = known.get((*kind, length)), known.get((*kind, LENGTHS[0]))
            if row and first:
                ratio = row["seconds"] / length / (first["seconds"] / LENGTHS[0])
                cells.append(f"{row['bytes'] / 2**20:,.0f} MiB, {ratio:.2f}")
            else:
                cells.append(f"not measured, about {expected(found['rows'], kind[0], length, kind[1]):,.0f} s")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def digest(found: dict[str, Any]) -> str:
    """Return the SHA-256 of the results; the figure contains it."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def draw(found: dict[str, Any]) -> None:
    """Write the curves of memory and of time per token by length; needs `pip install -e plugins/atat-zoo-paper`."""
    import altair as alt
    from atat_zoo_paper.style import chart, files

    rows = [
        {
            "tokens": row["length"],
            "of": f"{row['backbone']}, {WORK[row['training']]}",
            "MiB": row["bytes"] / 2**20,
            "µs": 1e6 * row["seconds"] / row["length"],
        }
        for row in found["rows"]
    ]
    scale = alt.Scale(type="log", base=2, domain=[LENGTHS[0], LENGTHS[-1]])
    x = alt.X("tokens:Q", title="tokens in the sequence", scale=scale, axis=alt.Axis(values=LENGTHS, format=","))
    color = alt.Color("of:N", sort=None, legend=alt.Legend(columns=2, labelLimit=300))
    panels = []
    for name, title in (("MiB", "peak memory, MiB"), ("µs", "processor time per token, µs")):
        curves = chart(rows, 150).properties(width=230)
        curves = curves.encode(x=x, y=alt.Y(f"{name}:Q", title=title, scale=alt.Scale(type="log")), color=color)
        panels.append(curves.mark_line() + curves.mark_point())
    FIGURE.write_bytes(files(alt.concat(*panels), digest(found))["svg"])


def main() -> None:
    """Measure the missing rows, save each, print the table, and with `--draw` write the curves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--seconds", type=float, default=15, help="limit of the expected processor time of a row")
    parser.add_argument("--draw", action="store_true", help="write the curves")
    given, _ = parser.parse_known_args()
    found = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else {"machine": machine(), "rows": []}
    done = {(row["backbone"], row["length"], row["training"]) for row in found["rows"]}
    for backbone, training in ((backbone, training) for backbone in BACKBONES for training in WORK):
        for length in sorted(given.lengths):
            row = (backbone, length, training)
            if row in done or expected(found["rows"], backbone, length, training) > given.seconds:
                continue
            measured = apart(*row)
            found["rows"].append({"backbone": backbone, "length": length, "training": training, **measured})
            write_json(RESULT, found)
            print(f"  {row}: {measured}", flush=True)
    print(table_of(found))
    if given.draw:
        draw(found)


if __name__ == "__main__":
    main()
