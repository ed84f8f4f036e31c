"""Templates that are wrong or do not end: a sentence, soon; and all others render as in the library."""

import json
import threading
import time
import tracemalloc

import pytest
import transformers
from atat_zoo_transformers import rendering
from atat_zoo_transformers.model_description import Unreadable
from atat_zoo_transformers.template import ChatModel
from atat_zoo_transformers.transformers_tokenizer import TransformersTokenizer
from models import byte_pairs
from transformers.utils.chat_template_utils import render_jinja_template

from atat_zoo.data.dialogues import Message
from atat_zoo.system.errors import UserError

SAID = [Message("system", "Be  "), Message("user", "hé 'x'"), Message("assistant", " yes\n")]
AS_DICTS = [message._asdict() for message in SAID]


@pytest.mark.parametrize(
    "template",
    [
        "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}{{ loop.length }}{{ loop.last }}\n"
        "{{ loop.cycle('a', 'b') }}{% endfor %}{% for m in messages[::-1] if m.role != 'user' %}{{ m }}{% endfor %}",
        "{% for m in messages %}\n    {% if m.role == 'user' %}\n  {{ m.content }}\n\t {% else %} x\n    {% endif %}\n"
        "{% endfor %}",
        "{% set ns = namespace(x=[], n=0) %}{% for m in messages[1:] %}{% set ns.x = ns.x + [m] %}"
        "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.x | tojson(indent=2) }}{{ ns.n ** 2 }} "
        "{{ 'a' ~ 3 ~ ns.n }}{{ ns }}",
        "{% macro f(a, b='z') %}[{{ a | upper }}{{ b }}{{ caller() if caller }}]{% endmacro %}{{ f('q') }}"
        "{% call f('x', b='y') %}in{% endcall %}{{ messages | map(attribute='role') | join(', ') }}"
        "{% if messages | selectattr('role', 'equalto', 'nobody') %}an iterator is true{% endif %}",
        "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% if loop.first %}{% continue %}{% endif %}{% endfor %}"
        "{{ '%s-%05d' % ('a', 7) }}{{ '{:>5}|{x}'.format(3, x='y') }}{{ 100000000 % 3 }}{{ 7 // 2 }}{{ 'ab' * 3 }}",
        "{{ range(3) | list }}{% set x %}b{{ 1 }}{% endset %}{{ x }}{% generation %}g{% endgeneration %}"
        "{% filter upper %}abc{% endfilter %}{{ messages[0].content.strip().split('e') }}{{ [1] * 3 }}",
        "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}"
        "{% endfor %}{{ {'a': 1, 'b': (1, 2)} }}{{ dict(a=1) }}{{ nothing }}"
        "{{ 'abc' | replace('b', 'xx') | indent(2) }}",
        "{{ messages | groupby('role') | list | length }}{{ [3, 1] | sort | first }}{{ 'x' | center(5) }}{{ tools }}"
        "{{ [3, 1] | select('gt', 1) | list }}{{ strftime_now('%Y') }}{{ '%(a)s' | format(a=1) }}{{ -(2 ** 10) }}",
    ],
)
def test_a_template_renders_as_in_the_library(template):
    given = {"bos_token": "<s>", "add_generation_prompt": True}
    ((wanted,), _) = render_jinja_template([AS_DICTS], chat_template=template, **given)
    assert rendering.rendered(template, AS_DICTS, tools=None, documents=None, **given) == wanted


def test_a_number_of_ten_digits_in_a_format_counts_as_too_large_and_is_not_read():
    assert rendering._largest("%7d and {:999999999}") == 999_999_999
    assert {rendering._largest(f"%7d and %{digits}d") for digits in ("9" * 10, "9" * 9999)} == {1 << 30}


def doubled(step, start="{% set x = 'aaaaaaaaaa' %}"):
    return start + step * 60


ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops without a body": "{% for i in range(99999) %}{% set x = range(99999) | list %}{% endfor %}",
    "filters": "{% for i in range(9999) %}{% set x = range(9999) | select('gt', 5) | list | length %}{% endfor %}",
    "much": "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
    "much text of its own": "{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}",
    "a text again": "{% set x = 'a' * 9999 %}{% for i in range(900) %}{{ x }}{% endfor %}",
    "a list again": "{% set x = ['a' * 9999] %}{% for i in range(900) %}{{ x }}{% endfor %}",
    "times": "{{ 'a' * 10 ** 9 }}",
    "times a list": "{% set x = 10 ** 9 * [1] %}",
    "a power": "{{ 9 ** (9 ** 9) }}",
    "joined": doubled("{% set x = x ~ x %}"),
    "pairs": doubled("{% set x = (x, x) %}") + "{{ x }}",
    "tables": doubled("{% set x = {'a': x, 'b': x} %}") + "{{ x | tojson }}",
    "compared": doubled("{% set x = [x, x] %}{% set y = [y, y] %}", "{% set x = [1] %}{% set y = [1] %}")
    + "{{ x == y }}",
    "itself": "{% set x = namespace() %}{% set x.a = x %}{{ x }}",
    "blocks": doubled("{% set x %}{{ x }}{{ x }}{% endset %}"),
    "macros that write": "{% macro f() %}{% for i in range(9999) %}{{ 'a' * 9999 }}{% endfor %}{% endmacro %}{{ f() }}",
    "center": "{{ 'a' | center(10 ** 9) }}",
    "%": "{{ '%1000000000d' % 1 }}",
    "% of a list": "{{ '%*d' % (1000000000, 1) }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "format as a filter": "{{ '%999999999d' | format(1) }}",
    "replace": "{{ ('a' * 99999) | replace('a', 'b' * 99999) }}",
    "translate": "{{ ('a' * 9999).translate({97: 'b' * 99999}) }}",
    "join": "{{ range(99999) | join('b' * 99999) }}",
    "map": "{{ range(99999) | map('string') | map('center', 99999) | join }}",
    "batch": "{{ [1] | batch(10 ** 9, 'x') | list }}",
    "tojson": "{{ [[1]] * 1000 | tojson(indent=10 ** 8) }}",
    "int": "{{ ('f' * 999999) | int(0, 16) }}",
    "a long template": "{{ a }}" * 60_000,
}
_WRONG = {
    "{{ 1 + }}": "is not a Jinja template: line 1: unexpected 'end of print statement'",
    "{% for m in messages %}": "is not a Jinja template: line 1: Unexpected end of template",
    "{{ messages | what }}": "is not a Jinja template: line 1: No filter named 'what'",
    "{% break %}": "refuses a dialogue: SyntaxError: 'break' outside loop",
    "{{ messages[9].content }}": "refuses a dialogue: UndefinedError: ",
    "{{ 1 / 0 }}": "refuses a dialogue: ZeroDivisionError: division by zero",
    "{{ 'a'.encode('x') }}": "refuses a dialogue: LookupError: unknown encoding: x",
    "{{ messages.append(1) }}": "refuses a dialogue: SecurityError: ",
    "{{ ''.__class__.__mro__ }}": "refuses a dialogue: SecurityError: ",
    "{% include 'x' %}": "refuses a dialogue: TypeError: no loader for this environment specified",
    "{{ raise_exception('no system here') }}": "refuses a dialogue: no system here; change the dialogue, or pass",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "refuses a dialogue: RecursionError: ",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}": "refuses a dialogue: RecursionError: ",
    "{% for a in 'b' %}" * 40
    + "{% endfor %}" * 40: "refuses a dialogue: SyntaxError: too many statically nested blocks",
    "{{ '\ud800' }}": "refuses a dialogue: UnicodeEncodeError: ",
    "": "changes, repeats, reorders or omits the text of a message",
    **dict.fromkeys(ENDLESS.values(), "does not end, is too long or creates too much text; pass a different"),
}


def model(template):
    ends = {"bos": "<s>", "eos": "</s>"}
    return ChatModel(byte_pairs(ends), **ends, template=template, names={})


@pytest.mark.parametrize("template", _WRONG, ids=lambda template: repr(template[:30]))
def test_a_wrong_template_is_a_sentence_in_any_thread(monkeypatch, template):
    monkeypatch.setattr(rendering, "CHARACTERS", 1 << 18)  # the same, but sooner
    found = []

    def ask():
        try:
            found.append(model(template).chat(SAID))
        except BaseException as error:
            found.append(error)

    tracemalloc.start()
    try:
        thread = threading.Thread(target=ask)
        started = time.thread_time()
        thread.start()
        thread.join()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    (error,) = found
    assert isinstance(error, UserError), error
    assert str(error).startswith("the chat template of the tokenizer " + _WRONG[template])
    assert "\n" not in str(error)
    assert str(error).endswith("pass a different template with tokenizer.chat_template")
    assert most < 64 << 20
    assert time.thread_time() - started < 5


def test_a_long_dialogue_has_room():
    said = [Message("user" if i % 2 else "assistant", "word " * 200) for i in range(1000)]
    template = (
        "{% for m in messages %}{{ m.role | upper }}: {{ m.content | trim }}\n{{ messages | length }}{% endfor %}"
    )
    assert len(rendering.rendered(template, [m._asdict() for m in said])) > 1_000_000


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (7, "has an invalid chat template, 7; correct chat_template in its tokenizer_config"),
        (True, "has an invalid chat template, True; correct"),
        ({"default": 7}, "has an invalid chat template, 7; correct"),
        ("\ud800", "has an invalid chat template, '.ud800'; correct"),
        (
            {"rag": "a", "tool_use": "b"},
            "has the chat templates 'rag', 'tool_use', but none is named 'default'; pass one",
        ),
    ],
)
def test_a_template_that_cannot_be_taken_is_refused(tmp_path, template, message):
    names = {"bos": "<s>", "eos": "</s>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=byte_pairs(names), bos_token="<s>").save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    with pytest.raises(Unreadable, match=message):
        TransformersTokenizer(model=str(tmp_path))
    # One that is written in the experiment takes its place.
    assert TransformersTokenizer(model=str(tmp_path), chat_template="x").chat_template == "x"
