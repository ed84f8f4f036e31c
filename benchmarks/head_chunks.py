"""Head and cross-entropy in chunks at 50,257 tokens: peak memory against all logits, time against no chunks."""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import torch
from torch.nn import functional as F

from atat_zoo.objectives import chunks

VOCABULARY, WIDTH = 50_257, 768
# `all` has logits at every place, twice as many as are masked; `masked` at the masked alone, none in chunks.
KINDS = ("all", "masked", "chunks")


def measured(kind: str, places: int, repeat: int) -> dict[str, float]:
    """Return seconds of forward and backward, the fastest, and the bytes that they add at most."""
    torch.manual_seed(0)
    weight = (torch.randn(VOCABULARY, WIDTH) / WIDTH**0.5).requires_grad_()
    rows = places * (2 if kind == "all" else 1)
    hidden = torch.randn(rows, WIDTH, requires_grad=True)
    x = torch.randint(0, VOCABULARY, (rows,))
    most = chunks.rows_for(VOCABULARY) if kind == "chunks" else rows
    bf16 = torch.cpu._is_avx512_bf16_supported()

    def whole(hidden: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(hidden, weight).float(), x, reduction="none")

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            if kind == "chunks":
                loss = chunks.linear_cross_entropy(hidden, weight, None, x, most).mean()
            else:
                loss = whole(hidden, x).mean()
        loss.backward()
        weight.grad = hidden.grad = None

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return {"seconds": min(times), "bytes": added}


def main() -> None:
    """Print both ratios; every measurement is a process, so that its memory is its own, and they take turns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--places", type=int, default=2048, help="masked places")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kind", choices=KINDS)
    given, _ = parser.parse_known_args()
    if given.kind:
        print(json.dumps(measured(given.kind, given.places, given.repeat)))
        return
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for _ in range(given.rounds):
        for kind in KINDS:
            words = ["--kind", kind, "--places", str(given.places), "--repeat", str(given.repeat)]
            code = "from benchmarks.head_chunks import main; main()"
            done = subprocess.run([sys.executable, "-c", code, *words], check=True, stdout=subprocess.PIPE, text=True)
            found[kind].append(json.loads(done.stdout))
    for kind in KINDS:
        seconds = statistics.median(each["seconds"] for each in found[kind])
        most = statistics.median(each["bytes"] for each in found[kind])
        print(f"{kind:<8} {1000 * seconds:8.0f} ms  {most / 2**20:8.0f} MiB more at most")
    pairs = list(zip(*found.values(), strict=True))
    memory = statistics.median(cut["bytes"] / full["bytes"] for full, _, cut in pairs)
    times = sorted(cut["seconds"] / whole["seconds"] for _, whole, cut in pairs)
    print(f"peak memory, chunks / all logits: {memory:.2f}")
    print(f"time of the head, chunks / masked: {statistics.median(times):.2f} ({times[0]:.2f} to {times[-1]:.2f})")
