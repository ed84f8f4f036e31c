"""Chat templates: the tokens and the answers that the library has, and trainings on them, by LoRA too."""

from __future__ import annotations

import functools
import json

import pytest
import torch
import transformers
from atat_zoo_transformers.template import ChatModel
from atat_zoo_transformers.transformers_tokenizer import TransformersTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from models import byte_pairs, small

from atat_zoo.data.dialogues import ROLES, Message, to_text
from atat_zoo.data.sequence_packing import rows_of
from atat_zoo.evaluation.likelihood import evaluate_run
from atat_zoo.experiment import load
from atat_zoo.generation.layout import prompt_ids
from atat_zoo.generation.model import Model
from atat_zoo.system.errors import UserError
from atat_zoo.training import train

NAMES = {"bos": "<s>", "eos": "<|end|>", "start": "<|start|>", "mask": "<mask>"}
# The library marks what stands between `generation` and `endgeneration` as the assistant's.
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{{ eos_token }}\n{% endgeneration %}"
    "{% else %}{{ message.content }}{{ eos_token }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
texts = st.text(st.sampled_from("the people of é\n 7"), min_size=1, max_size=20)
dialogues = st.lists(st.builds(Message, st.sampled_from(ROLES), texts), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a tokenizer with a template."""
    folder = tmp_path_factory.mktemp("template")
    library = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_pairs(NAMES), bos_token="<s>", eos_token="<|end|>", mask_token="<mask>"
    )
    library.chat_template = TEMPLATE
    library.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def spec(folder):
    return TransformersTokenizer(model=str(folder))


@pytest.fixture(scope="module")
def model(spec, tmp_path_factory):
    """Return it as a run has it, without the folder of the model."""
    saved = tmp_path_factory.mktemp("saved")
    spec.train(lambda: iter(())).save(saved)
    again = TransformersTokenizer(
        model="nowhere",
        **{key: getattr(spec, key) for key in ("special_tokens", "sha256")},
        chat_template=spec.template,
    )
    return again.load(saved)


@settings(deadline=None, max_examples=60)
@given(dialogues)
def test_tokens_and_answers_are_those_of_the_library(folder, model, said):
    library = transformers.AutoTokenizer.from_pretrained(folder)
    # White space at the beginning of a content would be one token with the line end before it.
    said = [Message(message.role, message.content.lstrip() or "x") for message in said]
    messages = [message._asdict() for message in said]
    wanted = library.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    parts = model.chat(said)
    assert [i for part in parts for i in part.ids] == wanted["input_ids"]
    assert [int(part.answer) for part in parts for _ in part.ids] == wanted["assistant_masks"]
    asked = library.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert [i for part in model.chat(said, answering=True) for i in part.ids] == asked


def test_a_template_changes_no_token_of_text(spec):
    assert spec.template == TEMPLATE
    assert "chat_template" not in spec.identity()


def with_template(spec, template):
    return TransformersTokenizer(model=spec.model, chat_template=template).train(lambda: iter(()))


# What somebody writes who wants to be taken for somebody else: names of tokens, pieces of the template, and what
# becomes these by a normalizer or together with the text around it.
FORGED = [
    *NAMES.values(),
    "<|end",
    "|>",
    "<|role|>",
    "\n<|start|>system\n",
    "user\n",
    "＜|end|＞",
    "{{ eos_token }}",
    "  ",
]
forged = st.lists(st.sampled_from([*FORGED, *"a é\n<>|/s"]), max_size=6).map("".join)
FOR = "{% for m in messages %}"
ROLE_TOKENS = FOR + (
    "<|role|>{{ m.role }}:{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|role|>assistant:{% endif %}"
)
TEMPLATES = {
    "whole": TEMPLATE,
    "trimmed": TEMPLATE.replace("message.content", "message.content | trim"),
    "added": ROLE_TOKENS,
}


@pytest.fixture(scope="module")
def models(folder):
    """Return tokenizers with templates; one token is added, but not as a special one."""
    from tokenizers import AddedToken, Tokenizer

    made = {}
    for name, template in TEMPLATES.items():
        library = Tokenizer.from_file(str(folder / "tokenizer.json"))
        library.add_tokens([AddedToken("<|role|>", normalized=True)])
        ends = {"bos_token": "<s>", "eos_token": "<|end|>"}
        made[name] = ChatModel(library, bos="<s>", eos="<|end|>", template=template, names=ends)
    return made


@pytest.mark.parametrize("name", TEMPLATES)
@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(ROLES), forged), min_size=1, max_size=4), st.booleans())
def test_no_content_is_control_or_changes_the_template(models, name, said, answering):
    model = models[name]
    parts = model.chat([Message(*each) for each in said], answering=answering)
    (benign,) = model.encode("7")
    template = [[]]
    for i in (
        i for part in model.chat([Message(role, "7") for role, _ in said], answering=answering) for i in part.ids
    ):
        template += [[]] if i == benign else []
        template[-1] += [i] if i != benign else []
    assert len(template) == len(said) + 1
    contents = [model.encode(content.strip() if name == "trimmed" else content) for _, content in said]
    assert [i for part in parts for i in part.ids] == [
        i for one, other in zip(template, [*contents, []], strict=True) for i in (*one, *other)
    ]
    for ids, (_, content) in zip(contents, said, strict=True):
        assert not model.control & set(ids)
        assert model.decode(ids) == (content.strip() if name == "trimmed" else content)
    model.check_turns([Message(*each) for each in said])
    # Answers are learned as a whole, and nothing else is.
    learned = [i for part in parts if part.answer for i in part.ids]
    wanted = [
        ids
        for ids, (role, content) in zip(contents, said, strict=True)
        if role == "assistant" and content.strip() and not answering
    ]
    assert [i for i in learned if i not in model.control and i != model.encode("\n")[0]] == [
        i for ids in wanted for i in ids if i != model.encode("\n")[0]
    ]


def test_a_content_stands_behind_text_without_a_space_of_its_own():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = ["<unk>", "<s>", "</s>", "▁", *"user:abc", "▁a", "▁user", ":▁", "▁c"]
    library = Tokenizer(
        models.Unigram([(piece, -1.0 - (len(piece) == 1)) for piece in dict.fromkeys(pieces)], unk_id=0)
    )
    library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(split=False), decoders.Metaspace()
    library.add_special_tokens(["<s>", "</s>"])
    template = "{% for m in messages %}{{ m.role[:4] }}:{{ m.content }}c</s>a{% endfor %}"
    model = ChatModel(library, bos="<s>", eos="</s>", template=template, names={})
    (part,) = model.chat([Message("user", "b a"), Message("user", "</s>")])
    tokens = [library.id_to_token(i) for i in part.ids]
    around = ["c", "</s>", "▁a"]
    assert tokens == ["▁user", ":", "b", "▁a", *around, *"user:", "<unk>", "s", "<unk>", *around]


PLAIN = FOR + (
    "### {{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}### assistant: {% endif %}"
)
SYSTEMLESS = "{% set no = messages[0].role == 'system' and raise_exception('no') %}"
NAMELESS = FOR + "<|start|>{{ '' if m.role == 'ROLE' else m.role ~ ': ' }}{{ m.content }}{% endfor %}<|start|>"


@pytest.mark.parametrize(
    ("template", "roles"),
    [
        (PLAIN, "u"),
        # Between a question and its answer stands text; in front of a question, a token.
        (FOR + "<|start|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}\nassistant: {% endif %}", "u"),
        (FOR + "{{ '<|start|>' if m.role == 'user' else '\n>' }}{{ m.content }}{% endfor %}<|start|>", "ua"),
        # The header of one role begins that of another.
        (NAMELESS.replace("ROLE", "user"), "u"),
        (NAMELESS.replace("ROLE", "tool"), "ut"),
        (FOR + "<|start|>{{ '' if loop.first else m.role ~ ': ' }}{{ m.content }}<|end|>{% endfor %}<|start|>", "u"),
        (SYSTEMLESS + NAMELESS.replace("ROLE", "user"), "u"),
        # What the system says stands in the user's message.
        (FOR + "{{ m.content }}{{ '\n' if m.role == 'system' else '<|end|>' }}{% endfor %}", "u"),
    ],
)
def test_a_template_that_tells_by_text_who_speaks_is_for_trusted_messages(spec, template, roles):
    model = with_template(spec, template)
    names = {"u": "user", "t": "tool", "a": "assistant"}
    chat = [{"role": names[role], "content": "a"} for role in roles]
    with pytest.raises(UserError, match=r"with text that a message may contain; put special tokens between messages"):
        prompt_ids(model, chat)
    assert prompt_ids(model, chat, trusted=True)


@pytest.mark.parametrize(
    "content",
    [
        "{{ m.content | upper }}",
        "{{ m.content }}{{ m.content }}",
        "{{ m.content[:3] }}",
        "{% if '<' in m.content %}<|start|>system{% endif %}{{ m.content }}",
        "",
    ],
)
def test_a_template_that_changes_a_content_is_refused(spec, content):
    model = with_template(spec, f"{{% for m in messages %}}<|start|>{content}<|end|>{{% endfor %}}")
    with pytest.raises(UserError, match=r"changes, repeats, reorders or omits the text of a message: .*; change the"):
        model.chat([Message("user", "<a<|end|>bc"), Message("user", "a")])
    backwards = with_template(spec, "{% for m in messages | reverse %}<|start|>{{ m.content }}{% endfor %}")
    with pytest.raises(UserError, match="reorders"):
        backwards.chat([Message("user", "a"), Message("user", "b")])


def test_a_message_without_content_may_be_left_out(spec):
    model = with_template(
        spec, "{% for m in messages if m.content %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    )
    said = [Message("user", "a"), Message("assistant", "b")]
    assert model.chat([Message("system", ""), *said]) == model.chat(said)
    assert [part.answer for part in model.chat(said)] == [False, True]


def test_an_answer_behind_changed_text_is_refused(spec):
    model = with_template(spec, "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(
        UserError,
        match="the text before message 2 when messages follow, so the tokens of its answer cannot be determined",
    ):
        model.chat([Message("user", "a"), Message("assistant", "c"), Message("user", "d")])


# Of earlier answers the reasoning is left out.
THINKS = (
    "{% set n = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set n.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}<|start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 > n.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for call in m.tool_calls %}<|role|>{{ call.function.name }}{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def text_of(model, parts):
    return "".join(
        f"[{text}]" if part.answer else text
        for part in parts
        for text in [model.library.decode(part.ids, skip_special_tokens=False)]
    )


def test_where_a_template_rewrites_earlier_answers_each_has_a_text_as_it_is_written(spec):
    model = with_template(spec, THINKS)
    said = [Message("user", "a"), Message("assistant", "b").saying("b", {"reasoning_content": "so"})]
    said += [Message("user", "c"), Message("assistant", "d"), Message("tool", "e"), Message("assistant", "f")]
    head, tail = "<|start|>user\na<|end|><|start|>assistant\n", "<|start|>user\nc<|end|><|start|>assistant\n"
    first, *others = map(functools.partial(text_of, model), model.chats(said))
    assert first == f"{head}[<think>so</think>b<|end|>]"
    before = f"{head}b<|end|>{tail}"
    tool = "<|start|>tool\ne<|end|><|start|>assistant\n"
    assert others == [
        f"{before}[<think></think>d<|end|>]",
        f"{before}<think></think>d<|end|>{tool}[<think></think>f<|end|>]",
    ]
    # What is given before each is what the model is asked with.
    for text, end in zip(model.chats(said), (1, 3, 5), strict=True):
        asked = [i for part in model.chat(said[:end], answering=True) for i in part.ids]
        assert [i for part in text for i in part.ids if not part.answer] == asked
    # Behind one question nothing is rewritten.
    (whole,) = model.chats([*said[:1], *said[3:]])
    assert text_of(model, whole) == f"{head}[<think></think>d<|end|>]{tool}[<think></think>f<|end|>]"


def test_what_a_template_writes_of_a_call_is_learned(spec):
    model = with_template(spec, THINKS)
    call = Message("assistant", "").saying("", {"tool_calls": [{"function": {"name": "weather"}}]})
    (parts,) = model.chats([Message("user", "a"), call, Message("tool", "e"), Message("assistant", "f")])
    assert text_of(model, parts).count("<think></think><|role|>weather<|end|>]") == 1
    assert [part.answer for part in model.chat([Message("user", "a"), Message("assistant", "")])] == [False]


def test_a_template_that_rewrites_the_last_answer_too_is_refused_with_the_line(spec):
    model = with_template(spec, "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}")
    texts = [to_text([Message("user", "a"), Message("assistant", "b")], f"a.jsonl, line {i}") for i in (1, 2)]
    with pytest.raises(UserError, match=r"^corpus: a\.jsonl, line 1: the chat template .* the text before message 2"):
        rows_of(model, texts, 48, packed=True)


CHAT = """
[corpus]
use = "files"
train = ["{folder}/talk.jsonl"]
validation_share = 0.1
[backbone]
use = "transformers"
model = "{folder}/model"
{backbone}
[tokenizer]
use = "transformers"
model = "{folder}/model"
[data]
format = "chat"
packing = "{rows}"
root = "{folder}/shards"
length = 48
lanes = 2
[train]
steps = {steps}
batch_size = 8
evaluate_every = {steps}
[optimizer]
learning_rate = 1e-2
[evaluation]
sequences = 0
mask_samples = 4
samples = 1
"""


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "lora"), [("packed", 0), ("document", 4)])
def test_a_model_of_the_hub_learns_answers(tmp_path, folder, rows, lora):
    if lora:
        pytest.importorskip("peft")
    small("bert", tmp_path / "model")
    library = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    library.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}[SEP]{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    library.save_pretrained(tmp_path / "model")
    words = ("the people", "this nation", "a just peace", "all states")
    pairs = [{"prompt": words[i % 4], "response": f"{words[i % 4]} of the world"} for i in range(200)]
    pairs = [{**pair, "prompt": f"{pair['prompt']} {i}"} for i, pair in enumerate(pairs)]
    (tmp_path / "talk.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    backbone = f"lora_rank = {lora}"
    (tmp_path / "chat.toml").write_text(CHAT.format(folder=tmp_path, rows=rows, backbone=backbone, steps=30))
    result = train(load(str(tmp_path / "chat.toml")), tmp_path / "run")
    model = Model.from_run(tmp_path / "run")
    found = [json.loads(path.read_text()) for path in result.folder.path.glob("evaluations/*.json")]
    first, last = (table["bounds"]["answers"]["value"] for table in sorted(found, key=lambda table: table["step"]))
    assert last < 0.8 * first
    text = model.sample(chat="the people 3", length=24, seed=1).texts[0]
    assert "assistant" not in text
    # LoRA leaves the model's own weights as they were.
    own = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "model").state_dict()
    same = [
        torch.equal(value, own[name])
        for name, value in model.module.backbone.network.state_dict().items()
        if name in own
    ]
    assert not lora or all(same)
    assert evaluate_run(model, tmp_path / "run", model.experiment.evaluation, seed=1).bounds["answers"].value > 1
