"""Judges: a run, which says the objective's own likelihood, and a model of the Hugging Face library."""

import math
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing

from atat_zoo import UserError
from atat_zoo.evaluation.judges import HuggingFaceJudge, RunJudge
from atat_zoo.generation.model import Model
from atat_zoo.modeling.bounds import ExactKBound
from atat_zoo.testing import check_judge
from tests.evaluation.making import make_gpt2, make_run

transformers = pytest.importorskip("transformers", reason="the extra atat-zoo[judge] is not installed")

TEXT = "the old man saw a sea of green and gold under no sky at night"
SHORT = "the old man saw a sea"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("judges")


@pytest.fixture(scope="module")
def folder(root):
    return make_gpt2(root / "tiny")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No test may ask the network, whatever is installed."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def built(folder, **options):
    return HuggingFaceJudge(model=str(folder), **options).build("cpu")


@pytest.fixture(scope="module")
def parts(folder):
    """Return tokenizer and model as the library loads them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    return transformers.AutoTokenizer.from_pretrained(folder), model


# Runs


def likelihood(run, rows):
    """Return −log p of rows of equal length, asked of the objective itself."""
    x, keys = torch.tensor(rows), torch.zeros(len(rows), dtype=torch.int64)
    with torch.no_grad():
        bounds = Model.from_run(run).module.bound(x, torch.ones_like(x, dtype=torch.bool), keys, 1, ExactKBound())
    return bounds["nelbo"].contribution


@pytest.mark.parametrize(
    ("name", "data", "size", "start"),
    [
        ("plain", {}, 16, []),
        ("both", {"special_tokens": "both"}, 14, [256]),
        ("rows", {"special_tokens": "document", "packing": "document"}, 15, []),
    ],
)
def test_a_full_chunk_has_room_for_what_stood_around_the_sequences(root, name, data, size, start):
    """At the place of EOS the judge has never seen text; before it there was BOS, which is not counted."""
    run = make_run(root, f"framed-{name}", data=data)
    check_judge(RunJudge(path=str(run)))
    nats, tokens = RunJudge(path=str(run)).build("cpu").nats([SHORT])
    assert tokens.tolist() == [21]
    chunks = [likelihood(run, [[*start, *part.encode()]])[0, len(start) :] for part in (SHORT[:size], SHORT[size:])]
    assert nats.item() == pytest.approx(float(torch.cat(chunks).sum()), rel=1e-5)


@pytest.mark.parametrize("objective", ["autoregressive", {"use": "strided_causal", "stride": 4}])
def test_the_features_of_a_run_are_what_predicts_the_tokens(tmp_path, objective):
    """Under the attention that its network has learned: the head makes of them what the judge says of the tokens."""
    changes = {} if objective == "autoregressive" else {"sampler": {"use": "strided", "stride": 4}}
    run = make_run(tmp_path, "judge", objective, data={"special_tokens": "both"}, **changes)
    scorer, texts = RunJudge(path=str(run)).build("cpu"), ["the old man", "sea"]
    (_, tokens, counted), *_ = scorer._batches(scorer.encode(texts), 1)
    with torch.no_grad():
        hidden = scorer.hidden(tokens, counted)
        logits = scorer.module.backbone.head(hidden)
    nats = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")
    torch.testing.assert_close(nats[counted].double(), scorer.losses(tokens, counted)[counted], rtol=1e-4, atol=1e-5)
    mean = torch.stack([each[where].mean(0) for each, where in zip(hidden, counted, strict=True)])
    torch.testing.assert_close(scorer.features(texts), mean)


def test_what_a_run_cannot_judge_is_refused_in_a_sentence(root):
    judge = RunJudge(path=str(make_run(root, "letters", tokenizer="characters"))).build("cpu")
    assert judge.nats(["the sea"])[1].tolist() == [7]
    with pytest.raises(
        UserError, match=r"judge letters .* cannot read the text: .*; choose a judge whose tokenizer can"
    ):
        judge.nats(["the sea", "7 seas"])
    for ask in (judge.nats, judge.features):
        with pytest.raises(UserError, match="no text to judge"):
            ask([])
    with pytest.raises(UserError, match="text 2 of 2 is empty"):
        judge.features(["a", ""])
    with pytest.raises(UserError, match=r"not a run folder"):
        RunJudge(path=str(root / "nothing")).build("cpu")


# The Hugging Face library


@pytest.mark.parametrize("options", [{"begin": "none", "batch_size": 2}, {"length": 5, "pooling": "last"}])
def test_it_keeps_the_contract(folder, options, capfd):
    level = transformers.utils.logging.get_verbosity()
    check_judge(HuggingFaceJudge(model=str(folder), **options), (SHORT, "gold and green", TEXT * 3))
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.get_verbosity() == level


@pytest.mark.parametrize("begin", ["bos", "none"])
def test_its_nats_are_those_of_the_library(folder, parts, begin):
    """The library's own loss is the mean over all tokens but the first."""
    tokenizer, model = parts
    ids = tokenizer(TEXT)["input_ids"]
    row = torch.tensor([[*([tokenizer.bos_token_id] if begin == "bos" else []), *ids]])
    n = row.shape[1] - 1
    with torch.no_grad():
        loss = model(input_ids=row, labels=row).loss.item()
    nats, tokens = built(folder, begin=begin).nats([TEXT, "gold", ""])
    assert (tokens[0], tokens[2], nats[2]) == (n, 0, 0)
    assert nats[0].item() == pytest.approx(loss * n, rel=1e-5)
    assert nats[0].item() != pytest.approx(math.log(300) * n, rel=0.01)
    _, tokens = built(folder, begin=begin, length=6).nats([TEXT])
    assert tokens == (len(ids) if begin == "bos" else len(ids) - math.ceil(len(ids) / 6))  # one less in every chunk


def test_long_texts_are_cut_into_chunks_that_are_scored_by_themselves(folder):
    judge = built(folder, length=5)
    assert judge.length == 4  # BOS is one of the five
    ids = judge.encode([TEXT])[0]
    pieces = [judge.tokenizer.decode(ids[i : i + 4]) for i in range(0, len(ids), 4)]
    assert [t for p in pieces for t in judge.encode([p])[0]] == ids
    assert judge.nats([TEXT])[0].item() == pytest.approx(judge.nats(pieces)[0].sum().item(), rel=1e-5)
    assert judge.tokenizer.bos_token_id not in judge.encode(["<|endoftext|>"])[0]  # what looks like one is text
    # A tokenizer that adds special tokens by itself adds none to a text that is judged.
    adds = [("<|endoftext|>", judge.tokenizer.bos_token_id)]
    judge.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=adds
    )
    assert len(judge.tokenizer(TEXT)["input_ids"]) == len(ids) + 1
    assert judge.encode([TEXT])[0] == ids


def test_features_are_the_mean_of_the_hidden_states_or_the_last_one(folder, parts):
    tokenizer, model = parts
    row = torch.tensor([[tokenizer.bos_token_id, *tokenizer(TEXT)["input_ids"]]])
    with torch.no_grad():
        states = model(input_ids=row, output_hidden_states=True).hidden_states[-1][0]
    for options, expected in (
        ({}, states[1:].mean(0)),
        ({"pooling": "last"}, states[-1]),
        ({"pooling": "last", "length": 5}, states[4]),
    ):
        # Beside a shorter one: padding is no part of the feature.
        assert torch.allclose(built(folder, **options).features(["gold", TEXT])[1], expected, atol=1e-5)


def test_what_is_missing_is_said_in_a_sentence(folder, monkeypatch):
    for name in ("/no/such/folder", "nobody/no-such-model-of-atat"):
        with pytest.raises(UserError, match=f"^judge.model: '{name}' cannot be loaded [^\n]*$"):
            built(name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"needs the package transformers; .*pip install 'atat-zoo\[judge\]'"):
        built(folder)


def test_weights_that_are_missing_are_not_made_up(tmp_path):
    other = make_gpt2(tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    weights.pop("transformer.ln_f.weight")
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks weights \(transformer\.ln_f\.weight"):
        built(other)
    (other / "model.safetensors").unlink()
    torch.save(weights, other / "pytorch_model.bin")  # a pickle, which may hold code
    with pytest.raises(UserError, match="safetensors"):
        built(other)


def test_lengths_bos_and_characters_that_the_model_does_not_have(folder, tmp_path):
    with pytest.raises(UserError, match="reads at most 24 tokens"):
        built(folder, length=25)
    without = make_gpt2(tmp_path / "without", bos=False)
    with pytest.raises(UserError, match=r'has no BOS token; set begin = "none"'):
        built(without)
    assert built(without, begin="none").length == 24
    judge = built(make_gpt2(tmp_path / "words", unknown=True))
    assert judge.nats(["the sea the sea"])[1].tolist() == [4]
    with pytest.raises(UserError, match="no token for some characters"):
        judge.nats(["the sea", "the moon"])
    with pytest.raises(UserError, match="returns nothing for text 2"):
        judge.nats(["the sea", "  "])
