"""A model of the Hugging Face library as a judge: a tiny one, with random weights, made here."""

import math
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from atat_zoo import UserError
from atat_zoo.evaluation.judges import HuggingFaceJudge
from atat_zoo.testing import check_judge
from tests.evaluation.making import make_gpt2

transformers = pytest.importorskip("transformers", reason="the extra atat-zoo[judge] is not installed")

TEXT = "the old man saw a sea of green and gold under no sky at night"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_gpt2(tmp_path_factory.mktemp("gpt2") / "tiny")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No test may ask the network, whatever is installed."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def parts(folder):
    """Return tokenizer and model as the library loads them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    return transformers.AutoTokenizer.from_pretrained(folder), model


@pytest.mark.parametrize("options", [{}, {"begin": "none", "batch_size": 2}, {"length": 5, "pooling": "last"}])
def test_it_keeps_the_contract(folder, options):
    texts = ("the old man saw a sea", "gold and green", TEXT * 3)
    check_judge(HuggingFaceJudge(model=str(folder), **options), texts)


def test_a_text_without_characters_has_no_tokens_and_the_first_of_a_chunk_counts_only_after_bos(folder):
    n = len(parts(folder)[0](TEXT)["input_ids"])
    for options, count in (({}, n), ({"begin": "none", "length": 6}, n - math.ceil(n / 6))):
        nats, tokens = HuggingFaceJudge(model=str(folder), **options).build("cpu").nats([TEXT, ""])
        assert (tokens.tolist(), nats[1].item()) == ([count, 0], 0.0)


@pytest.mark.parametrize("begin", ["bos", "none"])
def test_its_nats_are_those_of_the_library(folder, begin):
    """The library's own loss is the mean over all tokens but the first."""
    tokenizer, model = parts(folder)
    ids = tokenizer(TEXT)["input_ids"]
    start = [tokenizer.bos_token_id] if begin == "bos" else []
    size = 24 - len(start)
    assert len(ids) < size
    row = torch.tensor([[*start, *ids]])
    with torch.no_grad():
        loss = model(input_ids=row, labels=row).loss.item()
    nats, tokens = HuggingFaceJudge(model=str(folder), begin=begin).build("cpu").nats([TEXT, "gold"])
    assert tokens[0] == row.shape[1] - 1
    assert nats[0].item() == pytest.approx(loss * (row.shape[1] - 1), rel=1e-5)
    assert nats[0].item() != pytest.approx(math.log(300) * (row.shape[1] - 1), rel=0.01)


def test_long_texts_are_cut_into_chunks_that_are_scored_by_themselves(folder):
    judge = HuggingFaceJudge(model=str(folder), length=5).build("cpu")
    assert judge.length == 4  # BOS is one of the five
    ids = judge.encode([TEXT])[0]
    pieces = [judge.tokenizer.decode(ids[i : i + 4]) for i in range(0, len(ids), 4)]
    assert [t for p in pieces for t in judge.encode([p])[0]] == ids
    assert judge.nats([TEXT])[0].item() == pytest.approx(judge.nats(pieces)[0].sum().item(), rel=1e-5)


def test_features_are_the_mean_of_the_hidden_states_or_the_last_one(folder):
    tokenizer, model = parts(folder)
    ids = tokenizer(TEXT)["input_ids"]
    with torch.no_grad():
        row = torch.tensor([[tokenizer.bos_token_id, *ids]])
        states = model(input_ids=row, output_hidden_states=True).hidden_states[-1][0]
    for options, expected in (
        ({}, states[1:].mean(0)),
        ({"pooling": "last"}, states[-1]),
        ({"pooling": "last", "length": 5}, states[4]),
    ):
        # Beside a shorter one: padding is no part of the feature.
        found = HuggingFaceJudge(model=str(folder), **options).build("cpu").features(["gold", TEXT])
        assert torch.allclose(found[1], expected, atol=1e-5)


def test_what_looks_like_a_special_token_is_text(folder):
    judge = HuggingFaceJudge(model=str(folder)).build("cpu")
    assert judge.tokenizer.bos_token_id not in judge.encode(["<|endoftext|>"])[0]


def test_a_missing_package_is_said_with_its_remedy(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"needs the package transformers; .*pip install 'atat-zoo\[judge\]'"):
        HuggingFaceJudge(model=str(folder)).build("cpu")


@pytest.mark.parametrize("name", ["/no/such/folder", "nobody/no-such-model-of-atat"])
def test_a_missing_model_is_said_in_a_sentence(name):
    with pytest.raises(UserError, match=f"^judge.model: '{name}' cannot be loaded [^\n]*$"):
        HuggingFaceJudge(model=name).build("cpu")


def test_weights_that_are_missing_are_not_made_up(folder, tmp_path):
    other = make_gpt2(tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    weights.pop("transformer.ln_f.weight")
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks the weights transformer\.ln_f\.weight"):
        HuggingFaceJudge(model=str(other)).build("cpu")
    (other / "model.safetensors").unlink()
    with pytest.raises(UserError, match="safetensors"):
        HuggingFaceJudge(model=str(other)).build("cpu")


def test_lengths_and_bos_that_the_model_does_not_have(folder, tmp_path):
    with pytest.raises(UserError, match="reads 24 tokens at most"):
        HuggingFaceJudge(model=str(folder), length=25).build("cpu")
    without = make_gpt2(tmp_path / "without", bos=False)
    with pytest.raises(UserError, match=r'has no BOS token; set begin = "none"'):
        HuggingFaceJudge(model=str(without)).build("cpu")
    assert HuggingFaceJudge(model=str(without), begin="none").build("cpu").length == 24


def test_characters_that_the_tokenizer_does_not_know(tmp_path):
    judge = HuggingFaceJudge(model=str(make_gpt2(tmp_path / "words", unknown=True))).build("cpu")
    assert judge.nats(["the sea the sea"])[1].tolist() == [4]
    with pytest.raises(UserError, match="no token for some characters"):
        judge.nats(["the sea", "the moon"])
    with pytest.raises(UserError, match="makes no token of text 2"):
        judge.nats(["the sea", "  "])


def test_the_output_of_a_command_stays_clean(folder, capfd):
    level = transformers.utils.logging.get_verbosity()
    HuggingFaceJudge(model=str(folder)).build("cpu").nats([TEXT * 30])
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.get_verbosity() == level
