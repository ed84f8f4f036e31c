"""Dialogues: what is one, and the plain template."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.errors import UserError
from atat_zoo.tokenizers.dialogues import ROLES, Message, from_text, messages_of, to_text
from atat_zoo.tokenizers.tables import BytesModel, CharactersModel

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
messages = st.lists(st.builds(Message, st.sampled_from(ROLES), texts), min_size=1, max_size=5)


@given(messages)
def test_a_message_stands_between_bos_and_eos_and_answers_are_those_of_the_assistant(said):
    parts = BytesModel().chat(said)
    written = [(role, content.encode()) for role, content in said]
    expected = [[256, *role.encode(), 10, *content, 257] for role, content in written]
    assert [i for part in parts for i in part.ids] == [i for ids in expected for i in ids]
    answers = [part.ids for part in parts if part.answer]
    assert answers == [[*content, 257] for role, content in written if role == "assistant"]
    asked = BytesModel().chat(said, answering=True)
    assert asked[: len(parts)] == parts
    assert asked[len(parts) :] == [([256, *b"assistant\n"], False)]


@given(messages)
def test_a_dialogue_is_a_text_and_back(said):
    assert from_text(to_text(said)) == said
    assert from_text(to_text(said).encode().decode()) == said


@given(texts, texts.filter(str.strip), st.sampled_from(["response", "completion"]))
def test_both_forms_mean_the_same(asked, answer, key):
    pair = {"prompt": asked, key: answer, "reward": 1.0, "messages": None}
    turns = {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer, "name": "x"}]}
    assert messages_of(pair) == messages_of(json.loads(json.dumps(turns)))


SAYS = {"role": "assistant", "content": "yes"}


def test_what_follows_the_last_answer_is_left_out():
    more = [SAYS, {"role": "user", "content": "thanks"}, {"role": "tool", "content": ""}]
    assert messages_of({"messages": more}) == [("assistant", "yes")]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("hello", "is no dialogue: 'hello'"),
        ([SAYS], "is no dialogue"),
        ({"text": "x"}, "has no messages"),
        ({"prompt": "x"}, "has 'prompt'"),
        ({"prompt": "x", "response": "y", "completion": "z"}, "has 'prompt' and 'response' and 'completion'"),
        ({"messages": []}, "has no list of messages: []"),
        ({"messages": "hello"}, "has no list of messages"),
        ({"messages": ["hello"]}, "message 1 is none: 'hello'"),
        ({"messages": [SAYS, {"role": "usr", "content": "x"}]}, "message 2 has the role 'usr'; did you mean 'user'?"),
        ({"messages": [{"content": "x"}]}, "message 1 has the role None (there are: system, user, assistant, tool)"),
        ({"messages": [{"role": "user", "content": ["x"]}, SAYS]}, "message 1 has no text as its content"),
        ({"messages": [{"role": "assistant", "content": " "}]}, "message 1 is an answer without a word"),
        ({"messages": [{"role": "user", "content": "x"}]}, "has no answer: no message has the role 'assistant'"),
        ({"prompt": "x", "response": 3}, "message 2 has no text as its content: 3"),
    ],
)
def test_what_is_no_dialogue_is_said(value, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)) as error:
        messages_of(value)
    assert "\n" not in str(error.value)


def test_half_a_surrogate_pair_is_replaced():
    assert messages_of({"prompt": "\ud800", "response": "x"})[0].content == "\ufffd"


def test_the_plain_template_needs_both_ends():
    model = CharactersModel(special=False, unknown="space")
    with pytest.raises(UserError, match=r"set tokenizer.special = true \(characters\)"):
        model.chat([Message("user", "a")])
    for end in ("bos", "eos"):
        model = BytesModel()
        setattr(model, end, None)
        with pytest.raises(UserError, match="dialogues need a tokenizer with BOS and EOS"):
            model.chat([Message("user", "a")])
    assert CharactersModel(special=True, unknown="space").chat([Message("assistant", "a")])[1] == ([1, 28], True)
