"""Dialogues: what is one, and the plain template."""

import json
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data.dialogues import ROLES, Message, from_text, messages_of, to_text
from atat_zoo.data.tokenizers.tokenizer_models import BytesModel, CharactersModel
from atat_zoo.system.errors import UserError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
messages = st.lists(st.builds(Message, st.sampled_from(ROLES), texts), min_size=1, max_size=5)


@given(messages)
def test_a_message_stands_between_bos_and_eos_and_answers_are_those_of_the_assistant(said):
    parts = BytesModel().chat(said)
    written = [(role, content.encode()) for role, content in said]
    expected = [[256, *role.encode(), 10, *content, 257] for role, content in written]
    assert [i for part in parts for i in part.ids] == [i for ids in expected for i in ids]
    answers = [part.ids for part in parts if part.answer]
    says = [role == "assistant" and bool(content.strip()) for role, content in said]
    assert answers == [[*content, 257] for answered, (_, content) in zip(says, written, strict=True) if answered]
    asked = BytesModel().chat(said, answering=True)
    assert asked[: len(parts)] == parts
    assert asked[len(parts) :] == [([256, *b"assistant\n"], False)]


@given(messages)
def test_a_dialogue_is_a_text_and_back(said):
    assert from_text(to_text(said)) == said
    assert from_text(to_text(said).encode().decode()) == said


def turn(role, content):
    return {"role": role, "content": content}


FORMS = {
    "prompt and response": lambda q, a: {"prompt": q, "response": a, "reward": 1.0, "messages": None},
    "prompt and completion": lambda q, a: {"prompt": q, "completion": a},
    "lists of TRL": lambda q, a: {"prompt": [turn("user", q)], "completion": [turn("assistant", a)]},
    "a list and a text": lambda q, a: {"prompt": [turn("user", q)], "completion": a},
    "ShareGPT": lambda q, a: {"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]},
    "LMSYS": lambda q, a: {"conversation": [turn("user", q), turn("assistant", a)], "model": "x"},
    "UltraChat": lambda q, a: {"messages": [turn("user", q), turn("assistant", a)], "prompt": q, "prompt_id": "1"},
    "Alpaca": lambda q, a: {"instruction": q, "input": "", "output": a},
    "Alpaca, null": lambda q, a: {"instruction": q, "input": None, "output": a, "history": [], "system": ""},
    "no instruction": lambda q, a: {"instruction": "", "input": q, "output": a},
    "parts": lambda q, a: {
        "messages": [
            turn("user", [{"type": "text", "text": q[:3]}, {"type": "text", "text": q[3:], "image": None}]),
            turn("assistant", [{"type": "text", "text": a}]),
        ]
    },
}


@pytest.mark.parametrize("form", FORMS)
@given(texts, texts.filter(str.strip))
def test_the_usual_forms_mean_the_same(form, asked, answer):
    turns = {"messages": [turn("user", asked), {**turn("assistant", answer), "name": "x"}], "tools": []}
    same = messages_of(json.loads(json.dumps(FORMS[form](asked, answer))))
    assert same == messages_of(json.loads(json.dumps(turns))) == [("user", asked), ("assistant", answer)]
    assert to_text(same, "a line") == to_text(messages_of(turns)) == json.dumps(same, ensure_ascii=False)


def test_what_stands_around_a_question_and_its_answer():
    alpaca = {"instruction": "Add.", "input": "1, 2", "output": "3", "system": "Be brief."}
    assert messages_of(alpaca) == [("system", "Be brief."), ("user", "Add.\n\n1, 2"), ("assistant", "3")]
    shared = {"system": "Be brief.", "conversations": [{"from": "gpt", "value": "3"}]}
    assert messages_of(shared) == [("system", "Be brief."), ("assistant", "3")]
    other = [("developer", "developer"), ("observation", "tool"), ("function", "tool"), ("tool", "tool")]
    for named, role in other:
        assert messages_of({"messages": [turn(named, "x"), SAYS]})[0] == (role, "x")


CALL = {"type": "function", "function": {"name": "weather", "arguments": "{}"}}


def test_a_call_of_a_tool_is_an_answer_and_is_kept():
    asks = {**turn("assistant", None), "tool_calls": [CALL], "id": 3}
    rain = {**turn("tool", "rain"), "tool_call_id": "7"}
    every = [turn("user", "?"), asks, rain, turn("assistant", "It rains."), turn("assistant", None)]
    found = from_text(to_text(messages_of({"messages": every})))
    assert found == [("user", "?"), ("assistant", ""), ("tool", "rain"), ("assistant", "It rains.")]
    assert [message.more for message in found] == [{}, {"tool_calls": [CALL]}, {"tool_call_id": "7"}, {}]
    assert [message.answers for message in found] == [False, True, False, True]
    written = [BytesModel().decode(part.ids) for part in BytesModel().chat(found) if part.answer]
    assert written == [json.dumps({"tool_calls": [CALL]}), "It rains."]
    assert found[1].saying("x") == ("assistant", "x")
    assert found[1].saying("x").more == found[1].more


@pytest.mark.parametrize(
    "value",
    [
        {"messages": []},
        {"messages": [turn("system", "Be brief.")]},
        {"messages": [turn("user", "x"), turn("assistant", "")]},
        {"messages": [turn("user", "x"), turn("assistant", " \n"), turn("user", "y")]},
        {"conversations": [{"from": "human", "value": "x"}]},
        {"prompt": "x", "response": ""},
    ],
)
def test_where_nothing_is_answered_all_stays(value):
    """So that these are different documents, which are held out apart and counted."""
    found = messages_of(value)
    assert len(found) == len(value.get("messages", value.get("conversations", value)))
    assert not any(message.answers for message in found)


SAYS = turn("assistant", "yes")


def test_a_dialogue_knows_where_it_was_read_in_another_process_too():
    text = pickle.loads(pickle.dumps(to_text(messages_of({"messages": [SAYS]}), "a.jsonl, line 3")))
    assert (text.place, from_text(text)) == ("a.jsonl, line 3", [("assistant", "yes")])


def test_what_follows_the_last_answer_is_left_out():
    more = [SAYS, {"role": "user", "content": "thanks"}, {"role": "tool", "content": ""}]
    assert messages_of({"messages": more}) == [("assistant", "yes")]


def test_what_is_no_dialogue_is_said():
    for value, sentence in NONE:
        with pytest.raises(ValueError, match=re.escape(sentence)) as error:
            messages_of(value)
        assert "\n" not in str(error.value)


def test_half_a_surrogate_pair_is_replaced():
    assert messages_of({"prompt": "\ud800", "response": "x"})[0].content == "\ufffd"


def test_the_plain_template_needs_both_ends():
    model = CharactersModel(special=False, unknown="space")
    with pytest.raises(UserError, match=r"set tokenizer.special_tokens = true \(characters\)"):
        model.chat([Message("user", "a")])
    for end in ("bos", "eos"):
        model = BytesModel()
        setattr(model, end, None)
        with pytest.raises(UserError, match="dialogues need a tokenizer with BOS and EOS"):
            model.chat([Message("user", "a")])
    assert CharactersModel(special=True, unknown="space").chat([Message("assistant", "a")])[1] == ([1, 28], True)


NONE = [
    ("hello", "is not a dialogue: 'hello'"),
    ([SAYS], "is not a dialogue"),
    ({"text": "x"}, "has no messages"),
    ({"prompt": "x"}, "has 'prompt'"),
    ({"prompt": "x", "response": "y", "completion": "z"}, "has 'prompt' and 'response' and 'completion'"),
    ({"messages": "hello"}, "has no list of messages"),
    ({"messages": ["hello"]}, "message 1 is not a message: 'hello'"),
    (
        {"messages": [SAYS, {"role": "usr", "content": "x"}]},
        "message 2 has the unknown role 'usr'; did you mean 'user'?",
    ),
    (
        {"messages": [{"content": "x"}]},
        "message 1 has the unknown role None (available: system, user, assistant, tool)",
    ),
    ({"messages": [turn("user", ["x"]), SAYS]}, "message 1 has content that is not text"),
    ({"messages": [turn("user", None), SAYS]}, "message 1 has content that is not text: None"),
    ({"messages": [turn("user", [{"type": "image", "text": "x"}]), SAYS]}, "message 1 has content that is not text"),
    ({"messages": [turn("user", [{"type": "text"}]), SAYS]}, "message 1 has content that is not text"),
    ({"messages": [{"from": "Bob", "value": "x"}]}, "message 1 has the unknown role 'Bob' (available: system, user,"),
    ({"messages": [SAYS], "response": "x"}, "has 'messages' and 'response'; write"),
    ({"messages": [SAYS], "conversations": [SAYS]}, "has 'messages' and 'conversations'; write"),
    ({"messages": [SAYS], "prompt": "x"}, "has both 'prompt' and 'messages'; remove one"),
    ({"messages": [SAYS], "tools": [{}]}, "has 'tools', which is not supported; move it into a message, or"),
    ({"output": "y"}, "has 'output'; write"),
    ({"prompt": "x", "response": 3}, "message 2 has content that is not text: 3"),
]
