"""Malformed requests: each is refused by a sentence in OpenAI's form with its status, and none breaks anything."""

from __future__ import annotations

import json
import math
import random

import pytest
from atat_zoo_serve.batching import StoppedError
from atat_zoo_serve.refusals import RefusedError, refusal
from atat_zoo_serve.request_fields import ChatRequest, CompletionRequest
from atat_zoo_serve.service import TooLargeError
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError
from servers import in_process, served, texts
from starlette.exceptions import HTTPException

from atat_zoo.system.errors import UserError

NUMBER = 1000
NUMBERS = (0, -1, 1, 3, 65, 10**9, 2**63, 10**400, 0.5, -0.5, 1e308, 1e-320, float("nan"), float("inf"))
STRINGS = ("", "a", "a" * 30, "[MASK:2-", "[MASK:0]", "[MASK:9-1]", "\ud800", "\0", "é" * 9, "9" * 50, "ancestral")
LISTS = ([], [1, 2], ["a"], ["a", 1], [[]])
TABLES = (
    *({}, {"use": 1}, {"use": ["a"]}, {"include_usage": 1}, {"\ud800": "\ud800"}, {"use": "p2", "eta": -1}),
    *({"use": "ancestral", "steps": 10**9}, {"use": "uncertainty_guided", "window": 2**40}),
    *(
        {"use": "combination", "order": {"use": "blockwise", "block_size": 0}},
        {"use": "semi_autoregressive", "block_sampler": {}},
    ),
)
VALUES = [None, True, False, *NUMBERS, *STRINGS, *LISTS, *TABLES]
FIELDS = (
    "model prompt suffix max_tokens n seed stop stream stream_options echo temperature top_p user sampler unmasking "
)
FIELDS += "messages windows max_completion_tokens tools response_format store "
FIELDS += "best_of logprobs logit_bias frequency_penalty presence_penalty text guidance use \ud800 prompts"


NEUTRAL = {
    **{"best_of": [1], "logprobs": [False, 0], "top_logprobs": [False, 0], "logit_bias": [{}]},
    **{"frequency_penalty": [0], "presence_penalty": [0]},
    **{field: [[], "none", "auto"] for field in ("tools", "tool_choice", "functions", "function_call")},
    **{field: [{"type": "text"}, ["text"]] for field in ("response_format", "modalities")},
}

SENT = [{}, {"5": 1}, [], [1], "none", "auto", "required", "a", {"type": "text"}, {"type": "x"}, ["text"]]


def nested(draw):
    value = draw.choice(VALUES)
    for _ in range(draw.choice((1, 3, 20, 2000))):
        value = [value] if draw.random() < 0.5 else {draw.choice(("use", "order", "within", "a")): value}
    return value


def body(draw):
    """Return the bytes of a request; some of what is drawn is a good one."""
    kind = draw.random()
    asked = {name: draw.choice(VALUES) for name in draw.sample(FIELDS.split(" "), draw.randint(1, 4))}
    if kind < 0.1:
        asked = draw.choice(VALUES)
    elif kind < 0.2:
        asked[draw.choice(FIELDS.split(" "))] = nested(draw)
    try:
        text = json.dumps(asked).encode()
    except RecursionError:
        text = b"[" * 5000
    if kind > 0.9:  # cut off, or a byte is another
        at = draw.randrange(len(text))
        text = text[:at] if kind > 0.95 else text[:at] + bytes([draw.randrange(256)]) + text[at + 1 :]
    return text


@given(
    field=st.sampled_from(list(NEUTRAL)),
    value=st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-1, 1) | st.sampled_from(SENT),
)
@example(field="best_of", value=True)
@example(field="frequency_penalty", value=False)
@example(field="logprobs", value=False)
@example(field="logprobs", value=0)
def test_what_a_client_always_sends_is_taken_and_what_has_no_effect_is_refused(field, value):
    kind, given = (CompletionRequest, {}) if field == "best_of" else (ChatRequest, {"messages": [{}]})
    if value is None or any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in NEUTRAL[field]
    ):
        assert kind.model_validate(given | {field: value}).model_dump()[field] == value
    else:
        with pytest.raises(ValidationError, match="leave it out"):
            kind.model_validate(given | {field: value})


@given(
    field=st.sampled_from(["n", "max_tokens", "seed"]),
    value=st.integers(-3, 2**63) | st.floats(allow_nan=True) | st.integers(-3, 99).map(float) | st.booleans(),
)
def test_a_number_without_a_fraction_is_an_integer(field, value):
    least, most = {"n": (1, math.inf), "max_tokens": (0, math.inf), "seed": (-1, 2**63 - 1)}[field]
    whole = not isinstance(value, bool) and math.isfinite(value) and value == int(value) and least <= value <= most
    if whole:
        read = getattr(CompletionRequest.model_validate({field: value}), field)
        assert (read, type(read)) == (int(value), int)
    else:
        with pytest.raises(ValidationError):
            CompletionRequest.model_validate({field: value})


@pytest.mark.slow
def test_a_thousand_malformed_requests():
    draw = random.Random(17)
    headers = [{"content-type": kind} for kind in ("application/json",) * 20 + ("text/plain", "a/json")] + [{}]
    paths = ["/v1/completions", "/v1/infill"] * 20 + ["/v1/chat/completions", "/v1/models", "/v1/completions/x"]
    refused, good, statuses = 0, 0, set()
    with in_process(served(seconds=20.0)) as client:
        while refused < NUMBER:
            path, content, header = draw.choice(paths), body(draw), draw.choice(headers)
            answer = client.post(path, content=content, headers=header)
            where = f"{path} {content!r} {header}: {answer.status_code} {answer.text[:500]}"
            if answer.status_code == 200:
                good += 1
                continue
            refused += 1
            statuses.add(answer.status_code)
            assert 400 <= answer.status_code < 500, where
            error = answer.json()["error"]
            assert error.keys() == {"message", "type", "param", "code"}, where
            assert len(error["message"].split()) >= 3, where
            assert len(error["message"]) < 4000, where
        # It still writes what it wrote before.
        assert texts(client.post("/v1/completions", json={"seed": 1})) == texts(
            client.post("/v1/completions", json={"seed": 1})
        )
    assert statuses >= {400, 404, 405}
    assert good < NUMBER / 4


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"promt": "a"}, "promt: is not a field of this request; did you mean 'prompt'?"),
        ({"prompt": [1, 2]}, "prompt: expected a string or a list of strings; token ids are not supported"),
        (
            {"prompt": ["a", "b [MASK]"]},
            "prompt: '[MASK]' would be read as plain text, not as a gap; send a text with ",
        ),
        ({"suffix": "[MASK:3] c"}, "suffix: '[MASK:3]' would be read as plain text"),
        ({"n": "3"}, "n: input should be a valid integer"),
        ({"n": 0}, "n: input should be greater than or equal to 1"),
        ({"stop": list("abcde")}, "stop: contains 5 strings; use at most 4"),
        ({"stop": ""}, "stop: contains an empty string, which matches everywhere; remove it"),
        ({"sampler": 3}, 'sampler: expected a name or an object, such as {"use": "ancestral", "steps": 32}'),
        (
            {"sampler": {"use": "ancestral", "steps": 2**31}},
            "sampler: contains a number whose magnitude exceeds 2,147,483,647",
        ),
        (
            {"frequency_penalty": 1},
            "frequency_penalty: a masked diffusion model does not generate from left to right",
        ),
        ({"n": 0, "seed": -2}, "n: input should be greater than or equal to 1\nseed: input should be"),
        # Trial 7, and others like it: the inner field is named.
        (
            {"stream_options": {"include_usag": True}},
            "stream_options.include_usag: is not a field of this request; did ",
        ),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage: input should be a valid boolean"),
        ({"stream_options": 1}, "stream_options: input should be"),
        ([], "the request is not a JSON object; send one with the header Content-Type: application/json"),
    ],
)
def test_a_sentence_names_the_field_and_the_remedy(asked, words):
    with in_process(served()) as client:
        answer = client.post("/v1/completions", json=asked)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("within", [lambda inner: {"within": inner}, lambda inner: [inner]])
def test_a_sampler_is_nested_sixteen_deep_at_most(within):
    deep = "ancestral"
    for _ in range(15):
        deep = within(deep)
    deepest = {"within": deep}  # of sixteen
    assert CompletionRequest(sampler=deepest).sampler == deepest
    with pytest.raises(ValidationError, match="is nested more than 16 levels deep; use a simpler object"):
        CompletionRequest(sampler={"within": deepest})


def test_the_largest_number_in_a_sampler():
    table = {"use": "ancestral", "steps": 2**31 - 1, "eta": [-(2**31) + 1, 0.5, True]}
    assert CompletionRequest(sampler=table).sampler == table
    with pytest.raises(
        ValidationError, match="contains a number whose magnitude exceeds 2,147,483,647; use a smaller one"
    ):
        CompletionRequest(sampler={"use": "ancestral", "order": {"block_size": -(2**31)}})


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (RefusedError(418, "tea"), 418, "tea"),
        (HTTPException(404), 404, ""),
        (UserError("a is no b; write c"), 400, "a is no b; write c"),
        (TooLargeError("too much; ask for less"), 413, "too much; ask for less"),
        (StoppedError(), 503, "the server has stopped"),
        (MemoryError(), 413, "the server ran out of memory"),
        (KeyError("a"), 500, "internal error"),
    ],
)
def test_an_error_has_its_status_and_a_sentence(error, status, said):
    found = refusal(error)
    assert (found.status, found.sentence.startswith(said)) == (status, True)
