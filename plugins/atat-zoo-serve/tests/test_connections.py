"""Connections that say nothing, half of something, or do not listen; and the end of the server while it answers."""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import signal
import socket
import threading
import time
from contextlib import ExitStack, closing, suppress
from unittest.mock import Mock
from urllib.parse import urlsplit

import httpx2
import pytest
from atat_zoo_serve.server import Server
from servers import listening, served, wait_for
from test_limits import slow

STEPS = {"use": "left_to_right"}  # a step for each token
ASKED = json.dumps({"stream": True, "unmasking": True, "sampler": STEPS, "n": 3}).encode()


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """Whatever a client does, the terminal stays silent."""
    yield
    named = ("asyncio", "uvicorn.error")
    assert [record.getMessage() for record in caplog.get_records("call") if record.name in named] == []


def connected(address):
    netloc = urlsplit(address)
    return socket.create_connection((netloc.hostname, netloc.port), timeout=30)


def post(body, length=None, path="/v1/completions"):
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def rest(connection):
    """Return what still comes until the server closes a connection."""
    said = b""
    try:
        while piece := connection.recv(1 << 16):
            said += piece
    except ConnectionResetError:
        pass
    return said


def test_connections_are_held_where_files_have_no_limit(model, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with listening(served(model)) as address, closing(connected(address)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert rest(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("limit", ["connections", "files"])
@pytest.mark.parametrize("said", [b"", b"GET /health HT", post(b"{", 100)], ids=["idle", "header", "body"])
def test_idle_connections_make_room(model, monkeypatch, limit, said):
    if limit == "files":
        monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 40))
    service = served(model, **({"connections": 20} if limit == "connections" else {}))
    with listening(service) as address, ExitStack() as stack:
        waiting = []
        for _ in range(50):
            waiting.append(stack.enter_context(connected(address)))
            waiting[-1].sendall(said)
        assert rest(waiting[0]) == rest(waiting[28]) == b""
        assert httpx2.get(f"{address}/health", trust_env=False, timeout=30).status_code == 200
        waiting[-1].settimeout(0.05)
        with pytest.raises(TimeoutError):
            waiting[-1].recv(1)


def test_too_many_that_are_answered(model):
    gate = threading.Semaphore(0)
    service = served(model, connections=3)
    slow(service, gate=gate)
    with listening(service) as address, ExitStack() as stack:
        busy = [stack.enter_context(connected(address)) for _ in range(3)]
        for connection in busy:
            connection.sendall(post(ASKED))
        wait_for(lambda: service.worker.writing + service.worker.queue >= 3, "all are being answered")
        answer = httpx2.get(f"{address}/health", trust_env=False, timeout=30)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        said = "this server has too many connections; ask again in a while"
        assert answer.json()["error"]["message"] == said
        gate.release(999)
        assert all(b"200 OK" in connection.recv(1 << 16) for connection in busy)


@pytest.mark.parametrize("sent", [b"", b"POST /v1/comp", post(b"{}")[:-9]])
def test_half_a_header_is_given_up(model, sent):
    with listening(served(model, arriving=0.2)) as address, connected(address) as connection:
        connection.sendall(sent)
        began = time.monotonic()
        assert rest(connection) == b""
        assert 0.1 < time.monotonic() - began < 10


def test_half_a_body_is_answered_and_given_up(model):
    with listening(served(model, arriving=0.2)) as address, connected(address) as connection:
        for byte in post(b'{"seed": 1', 1000):
            connection.sendall(bytes([byte]))
        said = rest(connection)
        assert said.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert b"a request has to be sent within 0.2 s here; send a shorter text" in said


def test_a_body_that_trickles_on_after_the_answer_is_given_up(model):
    with listening(served(model, arriving=0.2)) as address, connected(address) as connection:
        connection.sendall(post(b"", 10**9))
        began = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - began < 10:
                connection.sendall(b"x")
                time.sleep(0.02)
        assert time.monotonic() - began < 10


def test_a_request_that_takes_longer_than_it_may_arrive_is_answered(model):
    service = served(model, arriving=0.1)
    slow(service, seconds=0.1)
    with listening(service) as address:
        answer = httpx2.post(f"{address}/v1/completions", json={"sampler": STEPS}, trust_env=False, timeout=30)
        assert answer.status_code == 200


def test_a_client_that_does_not_read_is_cut_off(model):
    service = served(model, arriving=0.2)
    with listening(service) as address, connected(address) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asked = json.loads(ASKED) | {"n": 16}  # more than the system holds for it
        connection.sendall(post(json.dumps(asked).encode()))
        wait_for(lambda: service.worker.writing, "it is answered")
        wait_for(lambda: service.worker.writing == service.worker.queue == 0, "nothing is written for it")
        assert b"[DONE]" not in rest(connection)[-20:]


def test_a_client_that_reads_on_in_time_is_not_cut_off(model):
    arriving = 0.03

    async def run():
        server = Server(served(model, arriving=arriving))
        server.config.load()
        made = server.config.http_protocol_class
        connection = made(config=server.config, server_state=server.server_state, app_state={})
        transport = Mock(get_extra_info=lambda *_: None)
        connection.connection_made(transport)
        connection.cycle = Mock(response_complete=False, more_body=False)  # it is answered
        connection.pause_writing()
        connection.resume_writing()
        await asyncio.sleep(3 * arriving)
        transport.abort.assert_not_called()
        connection.pause_writing()
        await asyncio.sleep(3 * arriving)
        transport.abort.assert_called_once()

    asyncio.run(run())


# The end


def test_it_says_errors_alone_takes_few_connections_at_once_and_waits_at_its_end(model):
    config = Server(served(model)).config
    assert (config.log_level, config.access_log, config.timeout_graceful_shutdown) == ("error", False, 2)
    assert 1 <= config.backlog <= 64


def test_a_signal_ends_the_server_and_a_second_one_changes_nothing(model):
    server, before = Server(served(model)), [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with server.capture_signals():
        assert not server.should_exit
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(each)
            assert server.should_exit
            assert not server.force_exit  # answers in progress end with an error
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("stream", [True, False])
def test_at_the_end_an_answer_in_progress_is_an_error(model, stream):
    gate, service = threading.Semaphore(1), served(model, batch_size=3)
    calls = slow(service, gate=gate)
    asked = json.loads(ASKED) | {"stream": stream}
    answers = []

    def ask(netloc):
        connection = http.client.HTTPConnection(netloc, timeout=60)
        with closing(connection):
            connection.request("POST", "/v1/completions", json.dumps(asked), {"content-type": "application/json"})
            answer = connection.getresponse()
            answers.append((answer.status, answer.read().decode()))

    with listening(service) as address:
        # One is written, and the other waits for its turn.
        threads = [threading.Thread(target=ask, args=(urlsplit(address).netloc,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(calls) == 2 and service.worker.queue == 1, "a step is done")
        threading.Timer(0.3, gate.release, (999,)).start()
    for thread in threads:
        thread.join(30)
    bodies = [body.rstrip("\n").split("\n")[-1].removeprefix("data: ") for _, body in answers]
    error = {"message": "the server has been stopped; ask again once it runs", "type": "server_error"}
    assert [json.loads(body)["error"] for body in bodies] == [error | {"param": None, "code": None}] * 2
    assert sorted(status for status, _ in answers) == ([200, 503] if stream else [503, 503])


def test_at_the_end_nobody_is_waited_for(model):
    service = served(model)
    with ExitStack() as stack:
        with listening(service) as address:
            for said in (b"", post(b"{", 100), post(json.dumps(json.loads(ASKED) | {"n": 64}).encode()) * 9):
                stack.enter_context(connected(address)).sendall(said)
            wait_for(lambda: service.worker.writing, "a text is written")
            began = time.monotonic()
        assert time.monotonic() - began < 8
    assert not service.worker.alive


@pytest.mark.parametrize("stream", [True, False])
def test_nothing_is_taken_after_the_end(model, stream):
    service = served(model)
    with listening(service) as address:
        service.worker.stop()
        answer = httpx2.post(f"{address}/v1/completions", json={"stream": stream}, trust_env=False, timeout=30)
        assert (answer.status_code, "has been stopped" in answer.text) == (503, True)
