"""Whom a server answers, and what it does when too much is asked: limits, clients that go away, 64 at once."""

from __future__ import annotations

import copy
import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import openai
import psutil
import pytest
from attrs import evolve
from servers import in_process, listening, served, texts, wait_for

from atat_zoo.generation.guided import Guided


def slow(service, seconds=0.0, gate=None):
    """Let each evaluation take some time, or wait for the gate, a semaphore; returns when each of them began."""
    calls = []

    def change(log_probs, *_):
        calls.append(time.monotonic())
        time.sleep(seconds)
        assert gate is None or gate.acquire(timeout=60)
        return log_probs

    worker = service.worker
    worker.writer = evolve(worker.writer, denoiser=Guided(worker.writer.denoiser, change))
    return calls


def refusal(answer):
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]


# Limits


def test_too_long_too_many_and_too_large(model):
    with in_process(served(model, longest=20, batch_size=3, body=2000)) as client:

        def asked(**body):
            return refusal(client.post("/v1/completions", json=body))

        assert asked(max_tokens=19) == (
            413,
            "too_large",
            "a text of 21 tokens is asked for, and this server writes texts of at most 20; ask for a shorter one",
        )
        blocks = {"use": "semi_autoregressive", "size": 4}
        assert asked(max_tokens=10**12, sampler=blocks)[0] == 413
        assert asked(prompt=["a", "b"], n=2, max_tokens=2)[2].startswith("4 texts are asked for")
        assert asked(sampler={"use": "ancestral", "steps": 10**6}, max_tokens=2)[:2] == (413, "too_large")
        # Also if it says so in another place; that of the command line may take as many as it likes.
        assert asked(sampler=blocks | {"steps": 2**31 - 1}, max_tokens=2)[:2] == (413, "too_large")
        assert asked(prompt="a" * 2000) == (
            413,
            "too_large",
            "a request has at most 2,000 bytes here; send a shorter text",
        )
        answer = client.post("/v1/completions", json={}, headers={"content-length": "many"})
        assert refusal(answer) == (400, None, "content-length is no number")
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
        assert refusal(answer) == (429, "rate_limit_exceeded", "2 requests wait, and no more may; ask again in a while")
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["type"] == "requests"
        late = "this takes longer than a request may here; ask for fewer or shorter texts, or for fewer steps"
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
    assert service.weigher.bf16 == service.writer.bf16 == (precision == "bf16")


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
        assert "if --cors names it" in refusal(client.options("/v1/completions"))[2]


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
