"""`/v1/completions`, `/v1/infill` and `/v1/models`: what the model writes, where it ends, and what it costs."""

from __future__ import annotations

import json
import re
import time

import pytest
from atat_zoo_serve import Limits
from servers import chunks, in_process, served, texts

from atat_zoo.data.tokenizers.components import BytesTokenizer
from tests.generation.making import tiny_model


def test_a_model_that_is_not_there_has_openais_code(client):
    for answer in (client.post("/v1/completions", json={"model": "gpt"}), client.get("/v1/models/gpt")):
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (404, "invalid_request_error")
        assert (error["param"], error["code"]) == ("model", "model_not_found")
    error = client.get("/v1/nothing").json()["error"]
    assert (error["param"], error["code"]) == (None, None)


def test_a_model_says_what_it_is(client):
    (about,) = client.get("/v1/models").json()["data"]
    assert abs(about.pop("created") - time.time()) < 3600
    assert about.pop("limits")["batch_size"] == Limits().batch_size
    own = {"id": "tiny", "object": "model", "owned_by": "atat_zoo", "step": 0, "length": 24, "objective": "mdlm"}
    own["mixed_lengths"] = True
    assert about.keys() - own.keys() == {"sampler", "guidance"}
    assert own.items() <= about.items()
    assert about["sampler"]["use"] == "ancestral"


@pytest.mark.parametrize("key", [None, "sesame-1"])
def test_the_page_holds_what_the_model_is_and_asks_this_server_alone(model, key):
    service = served(model, key=key)
    with in_process(service) as client:
        page = client.get("/")
    (given,) = re.findall(r'id="given">(.*)</script>', page.text)
    assert json.loads(given) == {"about": service.about, "keyed": key is not None}
    assert "; connect-src 'self';" in page.headers["content-security-policy"]


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


def test_an_echo_begins_with_the_prompt_and_each_prompt_has_the_texts_that_it_has_alone(client, model):
    def ask(**body):
        return texts(client.post("/v1/completions", json={"seed": 3, **body}))

    whole = model.sample(1, prompt="a b", seed=3, precision="fp32").texts
    assert ask(prompt="a b", echo=True) == whole == [f"a b{text}" for text in ask(prompt="a b")]
    assert ask(prompt=["a b", "c"], n=2)[:2] == ask(prompt="a b", n=2)
    assert len(set(ask(prompt=["c", "c"], n=2))) == 4


@pytest.mark.parametrize(
    ("asked", "draw"),
    [
        ({"temperature": 0}, {"use": "categorical", "temperature": 0.0}),
        ({"top_p": 0}, {"use": "categorical", "temperature": 0.0}),
        ({"top_p": 0, "temperature": 0.5}, {"use": "categorical", "temperature": 0.0}),
        ({"temperature": 0.5, "top_p": 0.8}, {"use": "nucleus", "temperature": 0.5, "top_p": 0.8}),
        ({"top_p": 0.8}, {"use": "nucleus", "top_p": 0.8}),
    ],
)
def test_temperature_and_top_p_are_those_of_the_draw(client, model, asked, draw):
    combination = {"use": "combination", "tokens_per_step": {"use": "binomial", "steps": 6}, "token_sampling": draw}
    own = texts(client.post("/v1/completions", json={"seed": 1, "n": 2, **asked}))
    assert own == model.sample(2, seed=1, sampler=combination, precision="fp32").texts
    blocks = {"use": "semi_autoregressive", "block_size": 4, "block_sampler": {"use": "ancestral", "steps": 6}}
    asked = {"seed": 1, "max_tokens": 40, "sampler": blocks, **asked}
    own = texts(client.post("/v1/completions", json=asked))
    blocks = blocks | {"block_sampler": combination}
    assert own == model.sample(1, seed=1, length=40, sampler=blocks, precision="fp32").texts


def test_a_text_longer_than_those_of_the_training(client, model):
    sampler = {"use": "semi_autoregressive", "block_size": 5, "block_sampler": {"use": "ancestral", "steps": 2}}
    (text,) = texts(
        client.post("/v1/completions", json={"prompt": "ab ", "max_tokens": 60, "seed": 2, "sampler": sampler})
    )
    assert [f"ab {text}"] == model.sample(1, prompt="ab ", length=63, seed=2, sampler=sampler, precision="fp32").texts
    answer = client.post("/v1/completions", json={"max_tokens": 60})
    assert answer.status_code == 400
    said = "maximum length is 24; shorten it, lower max_tokens, or set both max_tokens and the sampler "
    assert f'{said}"semi_autoregressive"' in answer.json()["error"]["message"]


def test_health_and_what_may_be_asked_for(client):
    schema = client.get("/openapi.json").json()
    assert schema["components"]["schemas"]["CompletionRequest"]["properties"].keys() >= {"prompt", "suffix", "sampler"}
    assert client.get("/health").json() == {"status": "ok", "waiting": 0, "writing": 0}


BYTES = BytesTokenizer().train(lambda: iter(()))
EOS = BYTES.eos
NUMBER = 8
OFTEN = {"guidance": {"use": "token_bias", "words": ["x"], "tokens": [EOS], "strength": 2.5}}


@pytest.fixture(scope="module", params=["document", "both"])
def ending(request):
    return tiny_model(data={"special_tokens": request.param}, **OFTEN)


def written(model, how, prompt, suffix=""):
    """Return of each text the tokens between prompt and suffix."""
    rows = model.sample(NUMBER, prompt=prompt, suffix=suffix, precision="fp32", **how).sample.tokens.tolist()
    framed = model.experiment.data.special_tokens == "both"
    return [row[len(prompt) + framed : len(row) - len(suffix) - framed] for row in rows]


@pytest.mark.parametrize("sampler", [{"use": "ancestral"}, {"use": "left_to_right"}, {"use": "remdm_cap", "steps": 8}])
@pytest.mark.parametrize("suffix", ["", "z"])
def test_a_completion_ends_at_the_first_eos(ending, sampler, suffix):
    """Trial 5: whole, streamed, with a suffix, and by a sampler that masks tokens again."""
    how = {"sampler": sampler, "seed": 4}
    rows = written(ending, how, "We", suffix)
    asked = {"prompt": "We", "suffix": suffix, "n": NUMBER, **how}
    with in_process(served(ending)) as client:
        answer = client.post("/v1/completions", json=asked).json()
        events, _ = chunks(client, "/v1/completions", unmasking=True, stream_options={"include_usage": True}, **asked)
        windows = client.post("/v1/completions", json={"windows": True, **asked}).json()
    inside = [EOS in row for row in rows]
    assert 0 < sum(inside) < NUMBER
    ids = [row[: row.index(EOS)] if EOS in row else row for row in rows]
    texts = [BYTES.decode(each) for each in ids]
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert [f"We{text}{suffix}" for text in texts] == ending.sample(
        NUMBER, prompt="We", suffix=suffix, precision="fp32", **how
    ).texts
    assert [choice["finish_reason"] == "stop" for choice in answer["choices"]] == inside
    assert answer["usage"]["completion_tokens"] == sum(map(len, ids)) + sum(inside)  # an EOS counts
    assert events[-1]["usage"] == answer["usage"]
    added, reasons, states = [""] * NUMBER, [[] for _ in rows], {}
    for choice in (choice for event in events for choice in event["choices"]):
        added[choice["index"]] += choice["text"]
        reasons[choice["index"]] += [choice["finish_reason"]] if choice["finish_reason"] else []
        states[choice["index"]] = choice["unmasking"]
    assert added == texts
    assert reasons == [["stop" if ended else "length"] for ended in inside]
    for index, state in states.items():
        assert "".join(text for segment in state for text in segment.values()) == f"We{texts[index]}{suffix}"
    assert [choice["text"] for choice in windows["choices"]] == [BYTES.decode(row) for row in rows]
    assert {choice["finish_reason"] for choice in windows["choices"]} == {"length"}
    assert windows["usage"]["completion_tokens"] == sum(map(len, rows))


def test_where_the_rows_have_no_eos_nothing_ends():
    model = tiny_model(data={"special_tokens": "none"}, **OFTEN)
    rows = written(model, {"seed": 4}, "We")
    assert any(EOS in row for row in rows)
    with in_process(served(model)) as client:
        answer = client.post("/v1/completions", json={"prompt": "We", "n": NUMBER, "seed": 4}).json()
    assert [choice["text"] for choice in answer["choices"]] == [BYTES.decode(row) for row in rows]
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}


def test_usage_counts_to_the_first_stop(ending):
    rows = written(ending, {"seed": 4}, "We")
    stop = BYTES.decode(next(row for row in rows if EOS not in row[:9] and row[7] < 128 and row[8] < 128)[7:9])
    counted, reasons = 0, []
    for row in rows:
        ids = row[: row.index(EOS)] if EOS in row else row
        ends = [n for n in range(len(ids) + 1) if stop in BYTES.decode(ids[:n])]
        counted += ends[0] if ends else len(ids) + (EOS in row)
        reasons.append("stop" if ends or EOS in row else "length")
    assert set(reasons) == {"stop", "length"}
    with in_process(served(ending)) as client:
        answer = client.post("/v1/completions", json={"prompt": "We", "n": NUMBER, "seed": 4, "stop": stop}).json()
    assert [choice["finish_reason"] for choice in answer["choices"]] == reasons
    assert answer["usage"]["completion_tokens"] == counted


GAPS = ["a [MASK:2-4] b [MASK] c", "[MASK:3]abc", "no[MASK:1-2]"]


def test_gaps_are_filled_as_the_model_fills_them(client, model):
    answer = client.post("/v1/infill", json={"text": GAPS, "n": 2, "seed": 7})
    own = model.infill(GAPS, 2, seed=7, precision="fp32")
    assert texts(answer) == own.texts
    choices = answer.json()["choices"]
    filled = [each for fills in own.filled for each in fills]
    assert [(choice["fills"], tuple(choice["lengths"])) for choice in choices] == [(f.fills, f.lengths) for f in filled]
    assert answer.json()["usage"]["completion_tokens"] == sum(sum(each.lengths) for each in filled)
    assert answer.json()["evaluations"] == sum(each.nfe for each in filled)
    assert {choice["finish_reason"] for choice in choices} == {"stop"}
    assert answer.json()["object"] == "infill"


def test_a_stream_appends_the_text_from_the_left(client):
    asked = {"text": GAPS, "seed": 7}
    whole = client.post("/v1/infill", json=asked).json()["choices"]
    events, end = chunks(client, "/v1/infill", unmasking=True, **asked)
    added, ends = ["", "", ""], {}
    for event in events:
        (choice,) = event["choices"]
        added[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            ends[choice["index"]] = (choice["fills"], choice["lengths"])
    assert added == [choice["text"] for choice in whole]
    assert ends == {i: (choice["fills"], choice["lengths"]) for i, choice in enumerate(whole)}
    assert end == "[DONE]"
    first = next(event["choices"][0]["unmasking"] for event in events if event["choices"][0]["index"] == 1)
    assert first[-1] == {"given": "abc"}
    assert sum(segment.get("masked", 0) for segment in first) <= 3


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"text": "no gap"}, "the text has no gap: 'no gap'; write [MASK] for one token"),
        ({"text": ["[MASK]", "[MASK:3"]}, "text 2: '[MASK:3' is not a gap"),
        ({"text": "[MASK:30]"}, "the model's maximum length is 24; shorten the text or its gaps"),
        ({}, "text: is missing"),
        ({"text": "[MASK]", "stop": "a"}, "stop: is not a field of this request"),
        ({"text": "[MASK]", "sampler": {"use": "p3"}}, "sampler.use: unknown sampler 'p3' (available: "),
        ({"text": "[MASK]", "sampler": {"use": "learned_order"}}, "adaptive"),
    ],
)
def test_what_cannot_be_filled_is_a_sentence(client, asked, words):
    answer = client.post("/v1/infill", json=asked)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    # A stream that does not begin has the same answer.
    again = client.post("/v1/infill", json={"stream": True, **asked})
    assert (again.status_code, again.json()) == (400, answer.json())


def test_a_model_that_reads_from_left_to_right_says_what_it_cannot_do():
    model = tiny_model(objective="autoregressive", sampler={"use": "left_to_right"}, without=("masking", "estimator"))
    with in_process(served(model)) as client:
        assert texts(client.post("/v1/completions", json={"prompt": "a", "seed": 1})) == [
            text.removeprefix("a") for text in model.sample(1, prompt="a", seed=1, precision="fp32").texts
        ]
        answer = client.post("/v1/infill", json={"text": "a[MASK:2]b[MASK:2-3]c"})
        assert answer.status_code == 400
        assert "reads from left to right; fix the length, as in [MASK:3]" in answer.json()["error"]["message"]
