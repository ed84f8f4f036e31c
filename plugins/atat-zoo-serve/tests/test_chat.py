"""`/v1/chat/completions`: what `Model.sample(chat=…)` writes, as a message of the assistant."""

from __future__ import annotations

import attrs
import pytest
from calls import HI, LONGER, asked_in, talking
from servers import chunks, in_process, served

from atat_zoo.system.errors import UserError
from tests.generation.making import tiny_model


@pytest.fixture(scope="module")
def model():
    return talking()


def ask(client, messages=HI, **body):
    answer = client.post("/v1/chat/completions", json={"messages": messages, "seed": 3, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("sampler", ["left_to_right", "ancestral", "remdm_cap"])
@pytest.mark.parametrize("stop", [None, ["e", "\ufffd"]])
def test_a_stream_says_the_role_once_and_then_the_same_text(client, sampler, stop):
    body = {"n": 3, "sampler": {"use": sampler}, "stop": stop}
    whole = ask(client, **body)
    usage = {"include_usage": True, "include_obfuscation": False}
    events, end = chunks(
        client, "/v1/chat/completions", messages=HI, seed=3, stream_options=usage, unmasking=True, **body
    )
    assert end == "[DONE]"
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    *told, last = events
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    for choice in whole["choices"]:
        mine = [each for event in told for each in event["choices"] if each["index"] == choice["index"]]
        assert [each["delta"].get("role") for each in mine] == ["assistant", *[None] * (len(mine) - 1)]
        assert "".join(each["delta"]["content"] for each in mine) == choice["message"]["content"]
        assert [each["finish_reason"] for each in mine if each["finish_reason"]] == [choice["finish_reason"]]


def test_a_choice_has_the_keys_of_openais(client, model):
    (choice,) = ask(client, max_tokens=2)["choices"]
    assert choice.keys() == {"index", "message", "logprobs", "finish_reason"}
    assert choice["logprobs"] is None
    with in_process(served(model, batch_size=2)) as few:
        assert len(ask(few, n=2, max_tokens=2)["choices"]) == 2
        answer = few.post("/v1/chat/completions", json={"messages": HI, "n": 3})
        assert answer.json()["error"]["message"].startswith("3 texts are too many")


def test_as_many_tokens_as_are_asked_for(client, model):
    """A shorter row, as `length` of `Model.sample` makes one, and a longer one, block by block."""
    given = asked_in(model, HI)
    for how in ({"max_tokens": 9.0}, {"max_completion_tokens": 9}, {"max_completion_tokens": 9, "max_tokens": 2}):
        (text,) = model.sample(1, chat=HI, length=given + 9, seed=3, precision="fp32").texts
        assert ask(client, **how)["choices"][0]["message"]["content"] == text
    blocks = {"use": "semi_autoregressive", "block_size": 5, "block_sampler": {"use": "ancestral", "steps": 2}}
    (text,) = model.sample(1, chat=HI, length=given + 90, seed=3, sampler=blocks, precision="fp32").texts
    assert ask(client, max_tokens=90, sampler=blocks)["choices"][0]["message"]["content"] == text
    assert ask(client, max_tokens=0)["choices"][0]["message"]["content"] == ""


@pytest.mark.parametrize(
    ("asked", "said", "code"),
    [
        ({}, "messages: is missing", None),
        ({"messages": []}, "messages: list should have at least 1 item", None),
        ({"messages": ["hi"]}, "messages: input should be a valid dictionary", None),
        (
            {"messages": [{"role": "usr", "content": "x"}]},
            "messages: message 1 has the unknown role 'usr'; did you",
            None,
        ),
        ({"messages": [{"role": "user"}]}, "messages: message 1 has content that is not text", None),
        ({"messages": [{"role": "user", "content": "a\ud83d"}]}, "messages: contains an unpaired surrogate", None),
        (
            {"messages": [{"role": "user", "content": "x" * 99}]},
            "the dialogue takes 117 tokens",
            "context_length_exceeded",
        ),
        (
            {"messages": HI, "tools": [{"type": "function"}]},
            "tools: this model does not call tools; leave it out",
            None,
        ),
        (
            {"messages": HI, "response_format": {"type": "json_object"}},
            "response_format: this model only generates plain text",
            None,
        ),
        ({"messages": HI, "logprobs": True}, "logprobs: a masked diffusion model does", None),
        ({"messages": HI, "prompt": "a", "windows": True}, "prompt: is not a field of this request", None),
    ],
)
def test_what_is_refused_says_what_and_why(client, asked, said, code):
    import json

    # The client's own JSON has no unpaired surrogates.
    answer = client.post(
        "/v1/chat/completions", content=json.dumps(asked).encode(), headers={"content-type": "application/json"}
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (400, "invalid_request_error", code)
    assert error["param"] == (None if code else said.partition(":")[0])
    assert error["message"].startswith(said)


def test_running_text_has_no_messages():
    with in_process(served(tiny_model())) as client:
        answer = client.post("/v1/chat/completions", json={"messages": HI})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == (
        "messages: this model has not been trained on dialogues; use /v1/completions, or serve a run "
        'that was trained with data.format = "chat"'
    )


def test_messages_of_somebody_else_are_never_trusted(model):
    """A template by which a message can pass for another's is refused, also where one's own would be trusted."""

    class Forgeable(type(model.tokenizer)):
        template = "### {{ role }}"

        def check_turns(self, messages):
            raise UserError(f"{len(messages)} may be forged")

    forgeable = attrs.evolve(model, tokenizer=Forgeable())
    assert forgeable.sample(1, chat=HI, trusted=True).texts
    with in_process(served(forgeable)) as client:
        answer = client.post("/v1/chat/completions", json={"messages": LONGER})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "4 may be forged")
