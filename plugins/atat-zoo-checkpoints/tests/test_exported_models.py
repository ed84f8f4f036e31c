"""What `atat export` writes, what it refuses before any work, and what it gives to the hub."""

import json

import huggingface_hub
import pytest
import torch
from atat_zoo_checkpoints import exporting, hub
from atat_zoo_checkpoints.exporting import export_run, push
from atat_zoo_checkpoints.hub.modeling_atat_zoo import AtatZooForMaskedLM
from making import FORMS, network_of, wanted_of
from safetensors.torch import load_file

from atat_zoo import UserError
from atat_zoo.modeling.noise import CosineNoise, LinearNoise
from tests.generation.forms import V, model_of, run_of
from tests.limited import full_disk

CHAT = {"form": "chat", "rows": "document"}


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
    [{"special": special} for special in ("none", "document", "sequence", "both")] + [CHAT],
    ids=lambda data: "-".join(data.values()),
)
def test_an_export_ends_what_it_writes_where_the_run_does(data, tmp_path):
    corpus = {"use": "files", "train": ["dialogues.jsonl"]} if data == CHAT else "sotu"
    run = run_of(model := model_of("mdlm", data=data, corpus=corpus), tmp_path / "run")
    export_run(run.path, tmp_path / "out")
    says = json.loads((tmp_path / "out" / "config.json").read_text())["has_eos"]
    assert says == (model.writer().end() is not None) == (data.get("special") != "none")


def test_weights_are_in_the_type_that_is_asked_for_and_counts_stay_whole(run, tmp_path):
    export_run(run.path, tmp_path / "out", dtype="bfloat16")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    counts = {name for name in weights if name.startswith(("prior.apart", "prior.tokens"))}
    assert {weights[name].dtype for name in counts} == {torch.int32, torch.int64}
    assert {value.dtype for name, value in weights.items() if name not in counts} == {torch.bfloat16}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def test_nothing_is_left_of_an_export_that_fails(run, tmp_path, monkeypatch):
    def full(module, tokenizer, experiment, folder, **how):
        (folder / "config.json").write_text("{}")
        raise UserError("the disk is full")

    monkeypatch.setattr(hub, "export", full)
    with pytest.raises(UserError, match="the disk is full"):
        export_run(run.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}


def test_the_files_have_the_mode_of_any_other(run, tmp_path):
    (tmp_path / "plain").touch()
    export_run(run.path, tmp_path / "out")
    modes = {path.stat().st_mode for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert modes == {(tmp_path / "plain").stat().st_mode}


def test_files_that_are_put_there_meanwhile_stay(run, tmp_path, monkeypatch):
    export = hub.export

    def meanwhile(*of, **how):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.tex").write_text("work")
        export(*of, **how)

    monkeypatch.setattr(hub, "export", meanwhile)
    with pytest.raises(UserError, match="out is not empty any more, and is left as it is; name a new folder"):
        export_run(run.path, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "out"}


def test_one_export_into_a_folder_at_a_time(run, tmp_path, monkeypatch):
    export, refused = hub.export, []

    def twice(*of, **how):
        monkeypatch.undo()
        with pytest.raises(
            UserError, match=r"out is being written by another process \(process \d+ on .*\); wait for it"
        ) as caught:
            export_run(run.path, tmp_path / "out")
        refused.append(caught)
        export(*of, **how)

    monkeypatch.setattr(hub, "export", twice)
    export_run(run.path, tmp_path / "out")
    assert refused
    assert (tmp_path / "out" / "README.md").is_file()


@pytest.mark.parametrize("room", [0, 3_000, 30_000])
def test_an_export_that_finds_no_room_is_a_sentence_and_nothing_is_left(run, tmp_path, atat, room):
    with full_disk(room):
        code, out, err = atat("export", str(run.path), str(tmp_path / "out"))
    assert (code, out) == (2, "")
    assert "cannot be written: File too large; free some space" in err
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-shard-size", "big"], "--max-shard-size big: is no size; write one like 5GB or 200MB"),
        (["--public"], "--public: belongs to --push; add that, or leave it out"),
        (["--max-shard-size", "00MB"], "--max-shard-size 00MB: is no size; write one like 5GB or 200MB"),
        (["--push", ""], "--push '': is no name on the hub; write OWNER/NAME"),
        (["--push", "", "--public"], "--push '': is no name on the hub; write OWNER/NAME"),
        (["--push", "mine"], "--push mine: is no name on the hub; write OWNER/NAME"),
        (["--push", "me/mine"], "--push: there is no token for the hub; log in with `hf auth login`, or set HF_TOKEN"),
    ],
)
def test_a_mistake_is_a_sentence_and_nothing_is_written(words, said, run, tmp_path, atat, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    code, out, err = atat("export", str(run.path), str(tmp_path / "out"), *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {said}")
    assert not (tmp_path / "out").exists()


def test_a_run_that_is_no_such_model_is_refused_before_it_is_loaded(run, tmp_path, atat, monkeypatch):
    other = run_of(model_of("block"), tmp_path / "block")
    other.model.joinpath("model.safetensors").write_bytes(b"")
    refused = [
        ((str(other.path), "out"), "objective 'block' predicts the first block that has masks alone"),
        ((str(run.path), str(run.path)), "is not empty; name a new folder"),
        ((str(run.path), "\udcff"), r"'\udcff': the name of a folder is UTF-8; choose another one"),
        ((str(tmp_path / "none"), "out"), "is no run folder"),
    ]
    for words, said in refused:
        code, _, err = atat("export", *words)
        assert code == 2
        assert said in err
    monkeypatch.setattr(exporting, "_writer", lambda backbone: None)
    assert "backbone 'dit' does not write itself for the hub" in atat("export", str(run.path), "out")[2]


class Hub:
    """The hub, as far as it is asked."""

    def __init__(self, monkeypatch, error=None):
        self.asked, self.error = [], error
        monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_secret")
        monkeypatch.setattr(huggingface_hub, "create_repo", self.create_repo)
        monkeypatch.setattr(huggingface_hub, "upload_folder", self.upload_folder)

    def create_repo(self, name, *, private, exist_ok):
        self.asked.append(("create", name, private, exist_ok))
        return f"https://huggingface.co/{name}"

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        if self.error:
            raise self.error
        self.asked.append(("upload", repo_id, (folder_path / "README.md").read_text(encoding="utf-8")))


@pytest.mark.parametrize("public", [False, True])
def test_it_is_pushed_privately_unless_said(public, run, tmp_path, atat, monkeypatch):
    hub = Hub(monkeypatch)
    words = ["--push", "me/mine", *(["--public"] if public else [])]
    code, out, err = atat("export", str(run.path), str(tmp_path / "out"), *words)
    assert (code, err) == (0, "")
    assert out.endswith("https://huggingface.co/me/mine\n")
    assert "hf_secret" not in out
    (created, uploaded) = hub.asked
    assert created == ("create", "me/mine", not public, True)
    assert uploaded[:2] == ("upload", "me/mine")
    assert 'from_pretrained("me/mine", trust_remote_code=True)' in uploaded[2]


def test_what_the_hub_refuses_is_a_sentence_and_the_export_is_kept(run, tmp_path, monkeypatch):
    Hub(monkeypatch, error=OSError("403 Forbidden\nmore"))
    export_run(run.path, tmp_path / "out")
    with pytest.raises(
        UserError, match=r"--push me/mine: 403 Forbidden; the export is in .*out: push it again"
    ) as said:
        push(tmp_path / "out", "me/mine")
    assert "\n" not in str(said.value)
    assert (tmp_path / "out" / "README.md").exists()


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


def test_without_chance_it_writes_what_the_run_writes(loaded):
    model, full, _ = loaded
    own = {"use": "strided", "stride": 5, "draw": {"use": "categorical", "temperature": 0.0}}
    for prompt in ("", "We the "):
        ours = model.sample(1, sampler=own, prompt=prompt).sample.tokens
        start = torch.tensor([[256, *prompt.encode(), 257]])
        assert torch.equal(full.generate(start, max_length=24, sampler="strided", steps=5, temperature=0), ours)


def test_losses_and_half_precision(loaded):
    model, full, half = loaded
    ids = torch.randint(0, 256, (2, 24), generator=torch.Generator().manual_seed(0))
    where = torch.arange(24).expand(2, 24) % 3 == 0
    z, labels = ids.masked_fill(where, 258), ids.masked_fill(~where, -100)
    with torch.no_grad():
        found = full(z, labels=labels)
        expected = model.module.cross_entropy(z, None, where, ids)
        rough = half(z, labels=labels)
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
