"""Requests of different lengths to `atat serve`: their time over that of requests of one length, and its memory.

A process serves a model with random weights (bytes as tokens). The clients send requests as fast as they are answered:
in a round of the one kind, every text has 80 tokens; in a round of the other kind, texts have 32 to 128 tokens, 80 on
average, with prompts of 0 to 24. Rounds of the two kinds alternate. The processor time is that of the server, which
other programs on the machine change less than its wall-clock time. `--objective set_causal --sampler strided` serves a
set-causal model instead of MDLM with ancestral sampling.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import torch
from atat_zoo_serve.batching import Batch, Job, WantedText, Worker
from atat_zoo_serve.http_server import Server
from atat_zoo_serve.service import Service

from atat_zoo.experiment import from_table
from atat_zoo.generation.model import Model
from atat_zoo.testing.untrained_models import untrained
from benchmarks.pairs import hold, note, options, report, resident

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LENGTH, SHORTEST = 128, 32  # the longest and the shortest text, in tokens
LIMIT = 1 / 0.7  # of the processor time of requests of different lengths over that of requests of one length
GROWTH = 1.02  # of the server's memory


def random_model(objective: str, sampler: str, layers: int, width: int) -> Model:
    """Return a model with random weights for an objective, with a sampler, so many layers and this width."""
    table = {
        "name": "random",
        "tokenizer": "bytes",
        "backbone": {"use": "dit", "layers": layers, "width": width, "heads": width // 32},
        "objective": objective,
        "estimator": "uniform",
        "data": {"length": LENGTH, "special_tokens": "none"},
        "sampler": {"use": sampler} | ({"steps": 32} if sampler == "ancestral" else {}),
    }
    model, generator = untrained(from_table(table)), torch.Generator().manual_seed(0)
    for parameter in model.module.parameters():
        if parameter.ndim > 1:
            parameter.data = 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


class Usage(NamedTuple):
    """What a server has used so far: processor time in seconds, memory in bytes, and the use of its batches.

    A batch has a place for each of its texts until its last step. `places` is the processor time times the number of
    places, and `complete` the part of it after a place's text was complete.
    """

    seconds: float
    memory: int
    batches: int
    texts: int
    places: float
    complete: float


class TimedWorker(Worker):
    """A worker that adds up the use of its batches, with the fields of `Usage`."""

    batches = texts = 0
    places = complete = 0.0

    def _write(self, batch: Batch) -> None:
        self.ends: list[float] = []
        start = time.thread_time()
        super()._write(batch)
        end = time.thread_time()
        self.batches += 1
        self.texts += len(batch)
        self.places += len(batch) * (end - start)
        self.complete += sum(end - each for each in self.ends)

    def _leave(self, job: Job, text: WantedText) -> None:
        self.ends.append(time.thread_time())
        super()._leave(job, text)


def serve(bound: socket.socket, pipe: Connection, *model: Any) -> None:
    """Serve a random model at a port; answer each message in the pipe with the `Usage` of this process."""
    torch.set_num_threads(1)
    service = Service.of_model("random", random_model(*model))
    worker = TimedWorker(service.text_generator, batch_size=service.limits.batch_size, waiting=service.limits.waiting)
    server = Server(attrs.evolve(service, worker=worker))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    while pipe.recv():
        of_batches = worker.batches, worker.texts, worker.places, worker.complete
        pipe.send(Usage(time.process_time(), resident(), *of_batches))
    server.should_exit = True
    thread.join()


class Clients:
    """Clients of a server, each with one connection, that send one request after another."""

    def __init__(self, port: int, pipe: Connection, number: int) -> None:
        self.port, self.pipe, self.number = port, pipe, number
        self.latencies: dict[str, list[float]] = {"equal": [], "mixed": []}
        self.used: dict[str, list[list[float]]] = {"equal": [], "mixed": []}  # by each round, as in `Usage`

    def server(self) -> Usage:
        """Return the server's `Usage`."""
        self.pipe.send(True)
        found: Usage = self.pipe.recv()
        return found

    def send(self, kind: str, seeds: range, clients: int = 0) -> list[str]:
        """Return the texts of requests with these seeds, sent by all clients at once, or by some of them."""
        clients = clients or self.number

        def one(client: int) -> dict[int, str]:
            connection, found = HTTPConnection("127.0.0.1", self.port, timeout=300), {}
            for seed in seeds[client::clients]:
                body = json.dumps(request(kind, seed))
                start = time.perf_counter()
                connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                answer = json.loads(connection.getresponse().read())
                self.latencies[kind].append(time.perf_counter() - start)
                found[seed] = answer["choices"][0]["text"]
            connection.close()
            return found

        texts: dict[int, str] = {}
        with ThreadPoolExecutor(clients) as pool:
            for some in pool.map(one, range(clients)):
                texts |= some
        return [texts[seed] for seed in seeds]

    def round(self, kind: str, seeds: range) -> tuple[float, float]:
        """Return the seconds and the server's processor seconds of a round of requests."""
        start, before = time.perf_counter(), self.server()
        self.send(kind, seeds)
        wall, after = time.perf_counter() - start, self.server()
        used = [b - a for a, b in zip(before, after, strict=True)]
        self.used[kind].append(used)
        return wall, used[0]


def request(kind: str, seed: int) -> dict[str, Any]:
    """Return the request with a seed, which also determines the lengths if these are mixed."""
    spread = LENGTH - SHORTEST
    length = SHORTEST + (37 * seed % (spread + 1) if kind == "mixed" else spread // 2)
    prompt = 13 * seed % 25 if kind == "mixed" else 12
    return {"prompt": "a" * prompt, "max_tokens": length - prompt, "seed": seed, "windows": True}


def main() -> None:
    """Print the ratios of time and of latency, how many texts depend on their batch, and the growth of the memory."""
    own = {"objective": "mdlm", "sampler": "ancestral", "layers": 2, "width": 64}
    given = options(clients=32, rounds=4, requests=128, memory=2000, **own)
    spawn = multiprocessing.get_context("spawn")
    pipe, other = spawn.Pipe()
    with socket.create_server(("127.0.0.1", 0), backlog=256) as bound:
        model = (getattr(given, name) for name in own)
        process = spawn.Process(target=serve, args=(bound, other, *model), daemon=True)
        process.start()
        clients = Clients(bound.getsockname()[1], pipe, given.clients)
        clients.server()
        try:
            measure(clients, given.rounds, given.requests, given.memory)
        finally:
            pipe.send(False)
            process.join()


def measure(clients: Clients, rounds: int, requests: int, memory: int) -> None:
    """Measure as described in `main`, in pairs of rounds of some requests, and then with as many as `memory`."""
    for kind in clients.latencies:
        clients.send(kind, range(clients.number))
        clients.latencies[kind].clear()
    pairs = []
    for number in range(rounds):
        seeds = range(number * requests, (number + 1) * requests)
        order = ("mixed", "equal") if number % 2 else ("equal", "mixed")
        found = {kind: clients.round(kind, seeds) for kind in order}
        pairs.append((found["mixed"], found["equal"]))
    for place, clock in enumerate(("time", "processor time")):
        timed = [(mixed[place] / requests, equal[place] / requests) for mixed, equal in pairs]
        ratio = report(f"{clock} a request, mixed lengths", f"{clock} a request, equal lengths", timed)
        print(f"  throughput of mixed over equal lengths, by {clock}: {1 / ratio:.2f}")
    for kind, rows in clients.used.items():
        _, _, batches, texts, places, complete = map(sum, zip(*rows, strict=True))
        said = f"{texts / batches:.1f} texts in a batch, whose places are occupied by complete texts"
        print(f"  {kind} lengths: {said} {complete / places:.1%} of the processor time")
    late = {kind: statistics.quantiles(each, n=20)[-1] for kind, each in clients.latencies.items()}
    print("  95th percentile of the latency: " + ", ".join(f"{kind} {each:.2f} s" for kind, each in late.items()))
    note("latency (95th percentile), mixed / equal lengths", [late["mixed"] / late["equal"]])

    seeds = range(clients.number)
    together, alone = clients.send("mixed", seeds), clients.send("mixed", seeds, clients=1)
    same = sum(a == b for a, b in zip(together, alone, strict=True))
    print(f"  texts of mixed lengths that equal those generated alone (float32): {same} of {len(seeds)}")

    first, warm = clients.server().memory, memory // 4
    clients.send("mixed", range(warm))
    before = clients.server().memory
    clients.send("mixed", range(warm, warm + memory))
    after = clients.server().memory
    sizes = ", ".join(f"{size / 2**20:.0f}" for size in (first, before, after))
    print(f"  MiB of memory at the start, after {warm:,} more requests, and after another {memory:,}: {sizes}")
    note(f"memory after {memory} more requests", [after / before])
    hold([("processor time of mixed over equal lengths", ratio, LIMIT), ("memory", after / before, GROWTH)])


if __name__ == "__main__":
    main()
