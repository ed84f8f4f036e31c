"""The gain from a second process in an evaluation with metrics and texts: its seconds on 2 ranks against 1."""

from __future__ import annotations

import socket
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from atat_zoo.data import shard_manifest
from atat_zoo.data.build import build
from atat_zoo.experiment import load
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from benchmarks.pairs import hold, options, report

BAR = 0.65
METRICS = '["brier_score", "calibration_error", "coherence", "distinct"]'


def evaluated(rank: int, ranks: int, port: int, sequences: int, times: Any) -> None:
    """Evaluate an untrained model of the quickstart's size with one thread, after a warm-up evaluation."""
    from atat_zoo.training.checkpoints import CurrentModel
    from atat_zoo.training.evaluator import Evaluator

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    more = [f"evaluation.sequences={sequences}", f"evaluation.metrics={METRICS}", "evaluation.texts=32"]
    experiment = load("quickstart", [*more, "train.evaluate_sequences=16"])
    data = build(experiment)
    counts, tokenizer = shard_manifest.load_counts(data), experiment.parts["tokenizer"].load(data)
    length = experiment.data.length
    context = Context(vocabulary_size=len(counts), length=length, counts=counts, tokenizer=tokenizer)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        current = CurrentModel(experiment, context, assemble(experiment, context), None)
        evaluate = Evaluator(current, data, RunFolder(Path(folder)), "cpu")
        evaluate(0, final=False)
        evaluate.table(torch.arange(len(evaluate.tokens)))  # of the n-gram model, which training evaluates once
        distributed.barrier()
        start, busy = time.perf_counter(), time.process_time()
        evaluate(1)
        used = time.process_time() - busy
        distributed.barrier()
    times.put((time.perf_counter() - start, used))
    # The process group is not destroyed, because that may block forever, and with it the thread that sends the times.
    times.close()
    times.join_thread()


def seconds(ranks: int, sequences: int) -> tuple[float, float]:
    """Return the seconds of an evaluation on a number of processes, and the processor seconds of the busiest one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn = get_context("spawn")
    times = spawn.Queue()
    processes = [spawn.Process(target=evaluated, args=(r, ranks, port, sequences, times)) for r in range(ranks)]
    for process in processes:
        process.start()
    found = [times.get(timeout=600) for _ in processes]
    for process in processes:
        process.kill()
        process.join()
    wall, computed = zip(*found, strict=True)
    return max(wall), max(computed)


def main() -> None:
    """Print the ratio; one half is the best ratio that two idle cores can reach."""
    given = options(pairs=3, sequences=512)
    timed = [(seconds(2, given.sequences), seconds(1, given.sequences)) for _ in range(given.pairs)]
    report("2 ranks", "1 rank", [(two[0], one[0]) for two, one in timed])
    # The ratio if no other program uses the cores.
    computing = report("2 ranks, computing", "1 rank, computing", [(two[1], one[1]) for two, one in timed])
    hold([("2 ranks / 1 rank, computing", computing, BAR)])
