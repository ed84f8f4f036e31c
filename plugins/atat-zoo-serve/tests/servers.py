"""Models that are served in these tests: tiny ones that were never trained."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager

import tomli_w
from atat_zoo_serve import Limits
from atat_zoo_serve.app import application
from atat_zoo_serve.http_server import Server
from atat_zoo_serve.service import Service
from fastapi.testclient import TestClient

from tests.generation.making import tiny_model

# One that reads its tokens in turns, and keeps what it has read.
SETS = {
    "objective": "set_causal",
    "estimator": "uniform",
    "position_sets": {"use": "strided", "stride": 4},
    "sampler": {"use": "strided", "stride": 4},
    "without": ("masking",),
}


def served(model=None, **how):
    """Return the service of a model."""
    limits = Limits(**{key: how.pop(key) for key in list(how) if key in Limits.__annotations__})
    return Service.of_model("tiny", model or tiny_model(), limits=limits, **how)


@contextmanager
def in_process(service):
    """Give a client of a service without a network."""
    with TestClient(application(service), base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


@contextmanager
def listening(service):
    """Serve at a port of this machine, from a thread; gives the address, and ends it unless it has ended."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)  # bytes that a client may leave unread
        server = Server(service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        wait_for(lambda: server.started, "the server starts")
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def wait_for(condition, what, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def chunks(client, path, **body):
    """Return the chunks of a stream, without the end that says [DONE]."""
    import json

    with client.stream("POST", path, json={"stream": True, **body}) as answer:
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    return [json.loads(line) for line in lines[:-1]], lines[-1]


def texts(answer):
    """Return the texts of an answer that is good."""
    assert answer.status_code == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]]


def write_run(path, model):
    """Write a run folder with a model."""
    path.mkdir()
    (path / "resolved.toml").write_text(tomli_w.dumps(model.experiment.to_table()))
    model.save(path / "model")
    return path
