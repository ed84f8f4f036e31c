"""What `atat export` writes, what it refuses before any work, and what it gives to the hub."""

import json

import huggingface_hub
import pytest
import torch
from atat_zoo_checkpoints import model_export
from atat_zoo_checkpoints.hub.modeling_atat_zoo import AtatZooForMaskedLM
from atat_zoo_checkpoints.model_export import export_run
from making import FORMS, network_of, wanted_of
from safetensors.torch import load_file

from atat_zoo import UserError
from atat_zoo.modeling.noise import CosineNoise, LinearNoise
from tests.cli.terminal import refused
from tests.generation.forms import V, model_of, run_of
from tests.limited import full_disk

CHAT = {"format": "chat", "packing": "document"}


@pytest.fixture
def run(tmp_path):
    return run_of(model_of("counted"), tmp_path / "runs" / "mine")


def test_the_folder_is_whole(run, tmp_path, atat):
    code, out, err = atat("export", str(run.path), str(tmp_path / "out"), "--max-shard-size", "20KB")
    assert (code, err) == (0, "")
    assert out.startswith(f"{tmp_path / 'out'}: step 0, ")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"README.md", "config.json", "experiment.toml", "modeling_atat_zoo.py", "configuration_atat_zoo.py"}
    assert names >= {
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "model.safetensors.index.json",
    }
    generate = tmp_path / "out" / "custom_generate" / "generate.py"
    assert generate.read_text() == (tmp_path / "out" / "generation_atat_zoo.py").read_text()
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    assert list(tmp_path.glob(".*")) == [], "nothing unfinished is left"


@pytest.mark.parametrize(
    "data",
    [{"special_tokens": special} for special in ("none", "document", "sequence", "both")] + [CHAT],
    ids=lambda data: "-".join(data.values()),
)
def test_an_export_ends_what_it_writes_where_the_run_does(data, tmp_path):
    corpus = {"use": "files", "train": ["dialogues.jsonl"]} if data == CHAT else "sotu"
    run = run_of(model := model_of("mdlm", data=data, corpus=corpus), tmp_path / "run")
    export_run(run.path, tmp_path / "out")
    says = json.loads((tmp_path / "out" / "config.json").read_text())["has_eos"]
    assert says == (model.text_generator().end() is not None) == (data.get("special_tokens") != "none")


def test_weights_are_in_the_type_that_is_asked_for_and_counts_stay_whole(run, tmp_path):
    export_run(run.path, tmp_path / "out", dtype="bfloat16")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    counts = {name for name in weights if name.startswith(("prior.apart", "prior.tokens"))}
    assert {weights[name].dtype for name in counts} == {torch.int32, torch.int64}
    assert {value.dtype for name, value in weights.items() if name not in counts} == {torch.bfloat16}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def test_an_export_that_finds_no_room_is_a_sentence_and_nothing_is_left(run, tmp_path, atat):
    with full_disk(3_000):
        code, out, err = atat("export", str(run.path), str(tmp_path / "out"))
    assert (code, out) == (2, "")
    assert "cannot be written: File too large; free some space" in err
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}


SIZE, NAME = "is not a size; use a size like 5GB or 200MB", "is not a model name; use OWNER/NAME"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-shard-size", "big"], f"--max-shard-size big {SIZE}"),
        (["--max-shard-size", "00MB"], f"--max-shard-size 00MB {SIZE}"),
        (["--public"], "--public only works with --push"),
        (["--push", "", "--public"], f"--push '' {NAME}"),
        (["--push", "mine"], f"--push mine {NAME}"),
        (["--push", "me/mine"], "--push requires an access token; log in with `hf auth login`, or set HF_TOKEN"),
    ],
)
def test_a_mistake_is_a_sentence_and_nothing_is_written(words, said, run, tmp_path, atat, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    err = refused(atat, "export", str(run.path), str(tmp_path / "out"), *words)
    assert err.startswith(f"error: {said}")
    assert not (tmp_path / "out").exists()


def test_a_run_that_is_no_such_model_is_refused_before_it_is_loaded(run, tmp_path, atat, monkeypatch):
    other = run_of(model_of("block"), tmp_path / "block")
    other.model.joinpath("model.safetensors").write_bytes(b"")
    sentences = [
        ((str(other.path), "out"), "objective 'block' controls what each token attends to"),
        ((str(run.path), str(run.path)), "already exists and is not an empty folder; choose a new folder"),
        ((str(run.path), "\udcff"), r"'\udcff': the name is not UTF-8; choose a different name"),
        ((str(tmp_path / "none"), "out"), "is not a run folder"),
    ]
    for words, said in sentences:
        assert said in refused(atat, "export", *words)
    monkeypatch.setattr(model_export, "_writer", lambda backbone: None)
    assert "backbone 'dit' cannot be exported" in refused(atat, "export", str(run.path), "out")


@pytest.mark.parametrize("public", [False, True])
def test_it_is_pushed_privately_unless_said_and_a_refusal_of_the_hub_keeps_the_export(
    public, run, tmp_path, atat, monkeypatch
):
    asked, out = [], tmp_path / "out"
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_secret")
    monkeypatch.setattr(huggingface_hub, "create_repo", lambda *of, **how: asked.append((of, how)) or f"hub/{of[0]}")
    monkeypatch.setattr(huggingface_hub, "upload_folder", lambda **how: asked.append(how))
    code, said, err = atat("export", str(run.path), str(out), "--push", "me/mine", *(["--public"] if public else []))
    assert (code, err) == (0, "")
    assert said.endswith("hub/me/mine\n")
    assert "hf_secret" not in said
    created, uploaded = asked
    assert created == (("me/mine",), {"private": not public, "exist_ok": True})
    assert (uploaded["repo_id"], uploaded["folder_path"]) == ("me/mine", out)
    assert 'from_pretrained("me/mine", trust_remote_code=True)' in (out / "README.md").read_text()

    def forbidden(**how):
        raise OSError("403 Forbidden\nmore")

    monkeypatch.setattr(huggingface_hub, "upload_folder", forbidden)
    with pytest.raises(
        UserError, match=r"--push me/mine: the upload failed: 403 Forbidden; .*out is complete; .* retry with"
    ) as one:
        model_export.push(out, "me/mine")
    assert "\n" not in str(one.value)


@pytest.fixture(scope="module", params=["mdlm", "sets"])
def loaded(request, tmp_path_factory):
    """A model, and its export in full and in bf16, by the classes that are here: no code of a folder runs."""
    model, root = model_of(request.param), tmp_path_factory.mktemp(request.param)
    run = run_of(model, root / "run").path
    found = {}
    for name, dtype in (("full", None), ("half", "bfloat16")):
        export_run(run, root / name, dtype=dtype)
        found[name] = AtatZooForMaskedLM.from_pretrained(root / name)
    return model, found["full"], found["half"]


def test_it_writes_what_the_run_writes_with_its_losses_and_nearly_so_in_half_precision(loaded):
    model, full, half = loaded
    own = {"use": "strided", "stride": 5, "token_sampling": {"use": "categorical", "temperature": 0.0}}
    for prompt in ("", "We the "):
        ours = model.sample(1, sampler=own, prompt=prompt).sample.tokens
        start = torch.tensor([[256, *prompt.encode(), 257]])
        assert torch.equal(full.generate(start, max_length=24, sampler="strided", steps=5, temperature=0), ours)
    ids = torch.randint(0, 256, (2, 24), generator=torch.Generator().manual_seed(0))
    where = torch.arange(24).expand(2, 24) % 3 == 0
    z, labels = ids.masked_fill(where, 258), ids.masked_fill(~where, -100)
    with torch.no_grad():
        found, rough = full(z, labels=labels), half(z, labels=labels)
        expected = model.module.cross_entropy(z, None, where, ids)
    assert float(found.loss) == pytest.approx(float(expected.mean()), rel=1e-5)
    assert rough.logits.dtype is torch.float32
    assert float(rough.loss) == pytest.approx(float(found.loss), rel=0.05)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_logits_of_the_run(form):
    network = network_of(form)
    wanted = wanted_of(model_of(form), network.config.form)
    turns = {"turns": wanted["turns"]} if "turns" in wanted else {}
    with torch.no_grad():
        found = network(wanted["ids"], **turns).logits[wanted["where"]]
    torch.testing.assert_close(found[:, :V], wanted["logits"], rtol=1e-5, atol=1e-5)
    assert found[:, V:].exp().sum() == 0


@pytest.mark.parametrize(("form", "noise", "error"), [("timed", CosineNoise(), 1e-5), ("linear", LinearNoise(), 0)])
def test_the_time_is_that_of_the_noise(form, noise, error):
    network, shares = network_of(form), torch.arange(25) / 24
    assert torch.equal(network.time_at(shares), noise.time_at(shares)), "of a text of the training, to the bit"
    between = torch.tensor([0.0, 2e-4, 1e-3, 0.1, 0.456, 0.9])
    torch.testing.assert_close(network.time_at(between), noise.time_at(between), rtol=0, atol=error)


def test_the_pipeline_of_diffusers_fills_the_masks_of_an_export():
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    network, ids = network_of("counted"), torch.tensor([[72, 105], [66, 121]])
    pipeline = diffusers.LLaDA2Pipeline(model=network, scheduler=diffusers.BlockRefinementScheduler())
    pipeline.set_progress_bar_config(disable=True)
    how = {"gen_length": 14, "block_length": 8, "num_inference_steps": 4, "editing_threshold": None}
    made = pipeline(input_ids=ids, mask_token_id=V, temperature=0.0, **how).sequences
    assert made.shape == (2, 14)
    assert ((made >= 0) & (made < V)).all()
