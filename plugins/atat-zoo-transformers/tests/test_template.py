"""Chat templates: the tokens and the answers that the library has, and trainings on them, by LoRA too."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from atat_zoo_transformers.tokenizer import TransformersTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from models import byte_pairs, small

from atat_zoo.errors import UserError
from atat_zoo.experiment import load
from atat_zoo.measure.likelihood import evaluate_run
from atat_zoo.model import Model
from atat_zoo.tokenizers.dialogues import ROLES, Message
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
        model="nowhere", **{key: getattr(spec, key) for key in ("special", "sha256")}, chat_template=spec.template
    )
    return again.load(saved)


@settings(deadline=None, max_examples=60)
@given(dialogues)
def test_tokens_and_answers_are_those_of_the_library(folder, model, said):
    library = transformers.AutoTokenizer.from_pretrained(folder)
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


def test_what_cannot_be_said_is_refused(spec, model):
    with pytest.raises(
        UserError, match=r"names the special token <\|end\|>, which would change who says it; take it out"
    ):
        model.chat([Message("user", "a<|end|>b"), Message("assistant", "c")])
    for template, sentence in (
        ("{{ raise_exception('no system here') }}", "refuses a dialogue: no system here; change the one"),
        ("{{ messages | length }}{{ messages[-1].content }}", "changes what stands before message 2"),
    ):
        made = TransformersTokenizer(model=spec.model, chat_template=template).train(lambda: iter(()))
        with pytest.raises(UserError, match=sentence):
            made.chat([Message("user", "a"), Message("assistant", "c"), Message("user", "d")])


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
form = "chat"
rows = "{rows}"
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
draws = 4
samples = 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["packed", "document"])
@pytest.mark.parametrize("lora", [0, 4])
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
