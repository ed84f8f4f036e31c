"""Whom a server answers, and what it does when too much is asked: limits, connections that say nothing, its end."""

from __future__ import annotations

import asyncio
import copy
import http.client
import json
import resource
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.parse import urlsplit

import httpx2
import openai
import psutil
import pytest
from atat_zoo_serve.app import _attended
from atat_zoo_serve.http_server import Server
from atat_zoo_serve.refusals import RefusedError
from attrs import evolve
from servers import in_process, listening, served, texts, wait_for

from atat_zoo.generation.guided_denoiser import GuidedDenoiser


def slow(service, seconds=0.0, gate=None):
    """Let each evaluation take some time, or wait for the gate, a semaphore; returns when each of them began."""
    calls = []

    def change(log_probs, *_):
        calls.append(time.monotonic())
        time.sleep(seconds)
        assert gate is None or gate.acquire(timeout=60)
        return log_probs

    worker = service.worker
    worker.text_generator = evolve(
        worker.text_generator, denoiser=GuidedDenoiser(worker.text_generator.denoiser, change)
    )
    return calls


def refusal(answer):
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]


@pytest.mark.parametrize(("left", "wanted"), [(False, 7), (True, 499)])
def test_what_a_client_still_sends_is_not_its_going(left, wanted):
    async def asked():
        said = asyncio.Queue()
        said.put_nowait({"type": "http.request"})
        if left:
            said.put_nowait({"type": "http.disconnect"})
        late = asyncio.get_running_loop().time() + 60
        return await _attended(SimpleNamespace(receive=said.get), late, asyncio.sleep(60 if left else 0.02, 7))

    try:
        found = asyncio.run(asked())
    except RefusedError as error:
        found = error.status
    assert found == wanted


# Limits


def test_too_long_too_many_and_too_large(model):
    with in_process(served(model, longest=20, batch_size=3, body=2000)) as client:

        def asked(**body):
            return refusal(client.post("/v1/completions", json=body))

        assert asked(max_tokens=19) == (
            413,
            "too_large",
            "a text of 21 tokens is too long: this server's limit is 20 tokens; request a shorter one",
        )
        blocks = {"use": "semi_autoregressive", "block_size": 4}
        assert asked(max_tokens=10**12, sampler=blocks)[0] == 413
        assert asked(prompt=["a", "b"], n=2, max_tokens=2)[2].startswith("4 texts are too many")
        assert asked(sampler={"use": "ancestral", "steps": 10**6}, max_tokens=2)[:2] == (413, "too_large")
        # Also if it says so in another place; that of the command line may take as many as it likes.
        assert asked(sampler=blocks | {"steps": 2**31 - 1}, max_tokens=2)[:2] == (413, "too_large")
        assert asked(prompt="a" * 2000) == (
            413,
            "too_large",
            "the request exceeds 2,000 bytes; send a shorter text",
        )
        answer = client.post("/v1/completions", json={}, headers={"content-length": "many"})
        assert refusal(answer) == (400, None, "Content-Length is not a number")
        # Sent in pieces, its length is not known before.
        pieces = (b'{"prompt": "', *[b"a" * 100] * 30, b'"}')
        answer = client.post("/v1/completions", content=iter(pieces), headers={"content-type": "application/json"})
        assert refusal(answer)[:2] == (413, "too_large")
        assert texts(client.post("/v1/completions", json={"n": 3, "max_tokens": 2}))


def test_too_many_wait_and_too_long_a_while(model):
    gate = threading.Semaphore(0)
    service = served(model, waiting=2, seconds=1.0)
    calls = slow(service, gate=gate)
    with in_process(service) as client, ThreadPoolExecutor() as pool:
        posted = [pool.submit(client.post, "/v1/completions", json={"seed": 1})]
        wait_for(lambda: calls, "the first is being written")
        posted += [pool.submit(client.post, "/v1/completions", json={"seed": 1}) for _ in range(2)]
        wait_for(lambda: service.worker.queue == 2, "two wait")
        assert client.get("/health").json() == {"status": "ok", "waiting": 2, "writing": 1}
        answer = client.post("/v1/completions", json={})
        assert refusal(answer) == (429, "rate_limit_exceeded", "the queue is full (2 requests); try again later")
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["type"] == "requests"
        late = "the request exceeded the server's time limit; request fewer steps or less text, or try again later"
        assert [refusal(each.result()) for each in posted] == [(408, "timeout", late)] * 3
        assert service.worker.queue == 0
        gate.release(99)
        assert texts(client.post("/v1/completions", json={"seed": 1}))


def test_a_stream_that_takes_too_long_ends_with_the_sentence(model):
    service = served(model, seconds=0.5)
    slow(service, seconds=0.2)
    with (
        in_process(service) as client,
        client.stream("POST", "/v1/completions", json={"stream": True, "unmasking": True}) as answer,
    ):
        lines = [line for line in answer.iter_lines() if line]
    assert answer.status_code == 200
    error = json.loads(lines[-1].removeprefix("data: "))["error"]
    assert (error["code"], error["type"]) == ("timeout", "invalid_request_error")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_lengths_of_gaps_are_weighed_in_the_precision_of_the_texts(model, precision):
    service = served(model, precision=precision)
    assert service.weigher.bf16 == service.text_generator.bf16 == (precision == "bf16")


# Whom it answers


def test_pages_of_elsewhere_are_not_answered(model):
    with in_process(served(model)) as client:
        for host, status in {
            "localhost:9000": 200,
            "[::1]:1": 200,
            "LOCALHOST": 200,
            "evil.example": 403,
            "[::1": 403,
        }.items():
            assert client.get("/v1/models", headers={"host": host}).status_code == status, host
        # What a form of another page can send without asking is no request.
        text = client.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"})
        assert text.status_code == 400
    with in_process(served(model, here=False)) as client:
        assert client.get("/v1/models", headers={"host": "models.example"}).status_code == 200


def test_a_key(model):
    with in_process(served(model, key="sesame-1")) as client:
        bad = ({}, {"authorization": "Bearer sesame"}, {"authorization": "sésame-1".encode()})
        for headers in bad:
            answer = client.get("/v1/models", headers=headers)
            assert refusal(answer)[:2] == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
        good = {"authorization": "Bearer sesame-1"}
        assert texts(client.post("/v1/completions", json={}, headers=good))
        assert client.get("/health").status_code == client.get("/").status_code == 200


PREFLIGHT = {
    "origin": "http://pages.example:3000",
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


@pytest.mark.parametrize(
    ("cors", "allowed"),
    [
        ((), None),
        (("*",), "*"),
        (("http://other.example", "http://pages.example:3000"), "http://pages.example:3000"),
        (("http://pages.example",), None),
    ],
)
def test_pages_of_other_origins_ask_if_they_are_named(model, cors, allowed):
    """Trial 8: a browser asks by OPTIONS, without the key, and shows a page what it is allowed to read."""
    with in_process(served(model, cors=cors, key="sesame-1")) as client:
        may = client.options("/v1/completions", headers=PREFLIGHT)
        assert may.status_code == (200 if allowed else 400 if cors else 401)
        assert may.headers.get("access-control-allow-origin") == allowed
        if allowed:
            named = may.headers["access-control-allow-headers"].lower().replace(" ", "").split(",")
            assert {"authorization", "content-type", "x-stainless-lang"} <= set(named)
            assert "POST" in may.headers["access-control-allow-methods"]
        for headers, status in (({}, 401), ({"authorization": "Bearer sesame-1"}, 200)):
            origin = {"origin": PREFLIGHT["origin"]}
            answer = client.post("/v1/completions", json={"max_tokens": 1}, headers={**headers, **origin})
            assert answer.status_code == status
            assert answer.headers.get("access-control-allow-origin") == allowed
    with in_process(served(model)) as client:
        assert "start the server with --cors" in refusal(client.options("/v1/completions"))[2]


# Over a socket


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_is_killed_frees_its_place_at_the_next_step(model, stream):
    service, gate, heard = served(model), threading.Semaphore(0), threading.Event()
    calls, cancel = slow(service, gate=gate), service.worker.cancel
    service.worker.cancel = lambda job: (cancel(job), heard.set())
    asked = {"n": 3, "sampler": {"use": "left_to_right"}, "stream": stream, "unmasking": True}  # a step for each token
    with listening(service) as address:
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(asked), {"content-type": "application/json"})
        wait_for(lambda: service.worker.writing == 3, "its texts are being written")
        if stream:
            gate.release()
            with connection.getresponse() as answer:
                assert answer.read(6) == b"data: "
            wait_for(lambda: len(calls) == 2, "the step after that is being computed")
        connection.close()
        assert heard.wait(30)
        gate.release(999)
        wait_for(lambda: service.worker.writing == 0, "its place is free")
        assert len(calls) == (2 if stream else 1)  # none after the one that was being computed
        with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60) as theirs:
            answer = theirs.completions.create(model="tiny", prompt="", seed=1)
        assert [choice.text for choice in answer.choices] == model.sample(1, seed=1, precision="fp32").texts


@pytest.mark.slow
def test_64_clients_at_once_lose_no_request_and_no_memory(model, caplog):
    """Waves of requests of every kind, some of whose clients go away; each answer is that of its seed."""
    process, model = psutil.Process(), evolve(model, module=copy.deepcopy(model.module).double())
    with (
        listening(served(model)) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60) as theirs,
    ):
        expected = {seed: model.sample(1, prompt="a b", seed=seed, precision="fp32").texts[0] for seed in range(8)}

        def ask(number):
            seed, asked = number % 8, {"model": "tiny", "prompt": "a b", "seed": number % 8}
            if number % 4 == 3:
                with theirs.completions.create(**asked, n=2, stream=True, max_tokens=1 + number % 7) as stream:
                    next(iter(stream))
                return seed, None
            if number % 2:
                with theirs.completions.create(**asked, stream=True) as stream:
                    return seed, "".join(chunk.choices[0].text for chunk in stream)
            return seed, theirs.completions.create(**asked).choices[0].text

        memory = []
        with ThreadPoolExecutor(64) as pool:
            for _ in range(4):
                answers = list(pool.map(ask, range(64)))
                assert len(answers) == 64
                assert {f"a b{text}" == expected[seed] for seed, text in answers if text is not None} == {True}
                memory.append(process.memory_info().rss >> 20)
    assert memory[-1] - memory[1] < 16, memory  # MiB
    assert [record.getMessage() for record in caplog.records if record.name in ("asyncio", "uvicorn.error")] == []


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
        said = "the server has too many connections; try again later"
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
        assert b"the request did not arrive within 0.2 s; send a shorter text" in said


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


def connection_of(service):
    """Return a connection in the loop that runs, and its transport, which has no socket."""
    server = Server(service)
    server.config.load()
    made = server.config.http_protocol_class
    connection = made(config=server.config, server_state=server.server_state, app_state={})
    transport = Mock(get_extra_info=lambda *_: None)
    connection.connection_made(transport)
    return connection, transport


def test_a_client_that_reads_on_in_time_is_not_cut_off(model):
    arriving = 0.03

    async def run():
        connection, transport = connection_of(served(model, arriving=arriving))
        connection.cycle = Mock(response_complete=False, more_body=False)  # it is answered
        connection.pause_writing()
        connection.resume_writing()
        await asyncio.sleep(3 * arriving)
        transport.abort.assert_not_called()
        connection.pause_writing()
        await asyncio.sleep(3 * arriving)
        transport.abort.assert_called_once()

    asyncio.run(run())


def test_a_client_that_has_gone_is_not_waited_for(model):
    arriving = 0.03

    async def run():
        connection, transport = connection_of(served(model, arriving=arriving))
        connection.pause_writing()
        connection.connection_lost(None)
        await asyncio.sleep(3 * arriving)
        transport.abort.assert_not_called()

    asyncio.run(run())


# The end


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
    error = {"message": "the server has stopped; try again after it restarts", "type": "server_error"}
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
        assert (answer.status_code, "has stopped" in answer.text) == (503, True)
