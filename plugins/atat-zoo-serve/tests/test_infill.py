"""`/v1/infill`: what fills a gap is what `Model.infill` fills it with, at once and as a stream."""

from __future__ import annotations

import pytest
from servers import chunks, in_process, served, texts

from tests.generation.making import tiny_model

TEXTS = ["a [MASK:2-4] b [MASK] c", "[MASK:3]abc", "no[MASK:1-2]"]


def test_gaps_are_filled_as_the_model_fills_them(client, model):
    answer = client.post("/v1/infill", json={"text": TEXTS, "n": 2, "seed": 7})
    own = model.infill(TEXTS, 2, seed=7, precision="fp32")
    assert texts(answer) == own.texts
    choices = answer.json()["choices"]
    filled = [each for fills in own.filled for each in fills]
    assert [(choice["fills"], tuple(choice["lengths"])) for choice in choices] == [(f.fills, f.lengths) for f in filled]
    assert answer.json()["usage"]["completion_tokens"] == sum(sum(each.lengths) for each in filled)
    assert answer.json()["evaluations"] == sum(each.nfe for each in filled)
    assert {choice["finish_reason"] for choice in choices} == {"stop"}
    assert answer.json()["object"] == "infill"


def test_a_stream_appends_the_text_from_the_left(client):
    asked = {"text": TEXTS, "seed": 7}
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
        ({"text": "no gap"}, "the text has no gap: 'no gap'; write [MASK] for a token"),
        ({"text": ["[MASK]", "[MASK:3"]}, "text 2: '[MASK:3' is no gap"),
        ({"text": "[MASK:30]"}, "the model has learned 24; shorten the text or its gaps"),
        ({}, "text: is missing"),
        ({"text": "[MASK]", "stop": "a"}, "stop: is no field of this request"),
        ({"text": "[MASK]", "sampler": {"use": "p3"}}, "there is no sampler named 'p3' (there are: "),
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
        assert "predicts nothing behind a gap; state the length, as in [MASK:3]" in answer.json()["error"]["message"]
