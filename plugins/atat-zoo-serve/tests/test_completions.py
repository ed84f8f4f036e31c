"""`/v1/completions` and `/v1/models`, in this process; test_clients.py asks by OpenAI's client over a socket."""

from __future__ import annotations

import pytest
from servers import chunks, texts


def test_a_model_that_is_not_there_has_openais_code(client):
    for answer in (client.post("/v1/completions", json={"model": "gpt"}), client.get("/v1/models/gpt")):
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (404, "invalid_request_error")
        assert (error["param"], error["code"]) == ("model", "model_not_found")
    error = client.get("/v1/nothing").json()["error"]
    assert (error["param"], error["code"]) == (None, None)


def test_a_seed_of_minus_one_is_drawn(client):
    """Trial 8, as when it is absent: it is told, and writes the same again."""
    told = [client.post("/v1/completions", json={"seed": -1}).json() for _ in range(2)]
    seeds = [answer["seed"] for answer in told]
    assert min(seeds) >= 0
    assert seeds[0] != seeds[1]
    assert texts(client.post("/v1/completions", json={"seed": seeds[0]})) == [told[0]["choices"][0]["text"]]


@pytest.mark.parametrize("echo", [None, False, True])
@pytest.mark.parametrize("prompt", ["", "a b", "a "])
def test_nothing_is_written_of_no_tokens(client, prompt, echo):
    """Trial 8: whole and as a stream, without an evaluation of the network."""
    asked = {"prompt": prompt, "max_tokens": 0, "echo": echo}
    answer = client.post("/v1/completions", json=asked)
    assert texts(answer) == [prompt if echo else ""]
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert (answer.json()["usage"]["completion_tokens"], answer.json()["evaluations"]) == (0, 0)
    (event,), _ = chunks(client, "/v1/completions", **asked)
    assert (event["choices"][0]["text"], event["choices"][0]["finish_reason"]) == (prompt if echo else "", "length")


def test_what_a_completion_takes(client, model):
    def ask(**body):
        return texts(client.post("/v1/completions", json={"seed": 3, **body}))

    (plain,) = ask(prompt="a b")
    assert [f"a b{plain}"] == model.sample(1, prompt="a b", seed=3, precision="fp32").texts
    assert ask(prompt="a b", echo=True) == [f"a b{plain}"]
    # The first prompt's texts come first, and are those that it has alone.
    assert ask(prompt=["a b", "c"], n=2)[:2] == ask(prompt="a b", n=2)
    assert len(set(ask(prompt=["c", "c"], n=2))) == 4
    assert (
        client.post("/v1/completions", json={}).json()["seed"] != client.post("/v1/completions", json={}).json()["seed"]
    )
    cut = plain[4:6]
    answer = client.post("/v1/completions", json={"prompt": "a b", "seed": 3, "stop": ["no such text", cut]})
    assert texts(answer) == [plain[: plain.index(cut)]]
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    sampler = {"use": "entropy", "steps": 3}
    assert [f"a b{text}" for text in ask(prompt="a b", sampler=sampler)] == model.sample(
        1, prompt="a b", seed=3, sampler=sampler, precision="fp32"
    ).texts


@pytest.mark.parametrize(
    ("asked", "draw"),
    [
        ({"temperature": 0}, {"use": "categorical", "temperature": 0.0}),
        ({"top_p": 0}, {"use": "categorical", "temperature": 0.0}),
        ({"top_p": 0, "temperature": 0.5}, {"use": "categorical", "temperature": 0.0}),
        ({"temperature": 0.5, "top_p": 0.8}, {"use": "nucleus", "temperature": 0.5, "p": 0.8}),
        ({"top_p": 0.8}, {"use": "nucleus", "p": 0.8}),
    ],
)
def test_temperature_and_top_p_are_those_of_the_draw(client, model, asked, draw):
    combination = {"use": "combination", "pace": {"use": "binomial", "steps": 6}, "draw": draw}
    own = texts(client.post("/v1/completions", json={"seed": 1, "n": 2, **asked}))
    assert own == model.sample(2, seed=1, sampler=combination, precision="fp32").texts
    blocks = {"use": "semi_autoregressive", "size": 4, "within": {"use": "ancestral", "steps": 6}}
    asked = {"seed": 1, "max_tokens": 40, "sampler": blocks, **asked}
    own = texts(client.post("/v1/completions", json=asked))
    assert own == model.sample(1, seed=1, length=40, sampler=blocks | {"within": combination}, precision="fp32").texts


def test_a_text_longer_than_those_of_the_training(client, model):
    sampler = {"use": "semi_autoregressive", "size": 5, "within": {"use": "ancestral", "steps": 2}}
    (text,) = texts(
        client.post("/v1/completions", json={"prompt": "ab ", "max_tokens": 60, "seed": 2, "sampler": sampler})
    )
    assert [f"ab {text}"] == model.sample(1, prompt="ab ", length=63, seed=2, sampler=sampler, precision="fp32").texts
    answer = client.post("/v1/completions", json={"max_tokens": 60})
    assert answer.status_code == 400
    assert "the model has learned 24" in answer.json()["error"]["message"]


@pytest.mark.parametrize("sampler", ["ancestral", "left_to_right", "remdm_cap"])
@pytest.mark.parametrize("stop", [None, ["\ufffd", "h"]])
def test_a_stream_appends_what_is_final_and_shows_the_whole(client, sampler, stop):
    asked = {"prompt": "a b", "suffix": "z", "seed": 4, "n": 2, "stop": stop, "sampler": {"use": sampler}}
    whole = client.post("/v1/completions", json=asked).json()["choices"]
    events, end = chunks(client, "/v1/completions", unmasking=True, **asked)
    assert end == "[DONE]"
    states = {0: [], 1: []}
    added = {0: "", 1: ""}
    for event in events:
        (choice,) = event["choices"]
        added[choice["index"]] += choice["text"]
        states[choice["index"]].append(choice["unmasking"])
        if choice["finish_reason"]:
            assert choice["finish_reason"] == whole[choice["index"]]["finish_reason"]
    assert added == {choice["index"]: choice["text"] for choice in whole}
    for index, shown in states.items():
        assert all(state[0] == {"given": "a b"} and state[-1] == {"given": "z"} for state in shown)
        masked = [sum(segment.get("masked", 0) for segment in state) for state in shown]
        assert masked[0] < 18
        assert masked[-1] == 0
        assert any("new" in segment for segment in shown[0])
        if sampler != "remdm_cap":
            assert masked == sorted(masked, reverse=True)
        if not stop:
            assert "".join(text for segment in shown[-1] for text in segment.values()) == f"a b{added[index]}z"


def test_health_and_what_may_be_asked_for(client):
    schema = client.get("/openapi.json").json()
    assert schema["components"]["schemas"]["CompletionRequest"]["properties"].keys() >= {"prompt", "suffix", "sampler"}
    assert client.get("/health").json() == {"status": "ok", "waiting": 0, "writing": 0}
