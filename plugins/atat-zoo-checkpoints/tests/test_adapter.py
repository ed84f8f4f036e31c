"""The adapter of a LoRA run, as peft loads it beside the exported model of the run that it began with."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from atat_zoo_checkpoints.model_export import base_of, export_run
from making import wanted_of
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

from atat_zoo.experiment.runs import RunFolder, sha256_of, write_json
from atat_zoo.generation.model import Model
from atat_zoo.modeling.backbones.lora import without_lora
from atat_zoo.system.errors import UserError
from tests.generation.forms import V, model_of, run_of

peft = pytest.importorskip("peft", reason="the extra atat-zoo[lora] is not installed")

FORM = "timed"
# peft asks for a property that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with a run, its export, and a run that was trained from it by LoRA."""
    folder = tmp_path_factory.mktemp("adapter")
    base = run_of(model_of(FORM), folder / "base")
    export_run(base.path, folder / "exported")
    backbone = model_of(FORM).experiment.to_table()["backbone"]
    tuned = model_of(FORM, backbone=backbone | {"lora_rank": 3, "lora_alpha": 5.0}, init_from=str(base.path))
    own = load_file(base.model / "model.safetensors")
    state = tuned.module.state_dict()
    tuned.module.load_state_dict({name: own.get(without_lora(name), tensor) for name, tensor in state.items()})
    said = {"run": str(base.path), "path": str(base.path), "sha256": sha256_of(base.model / "model.safetensors")}
    object.__setattr__(tuned, "base", said)
    run_of(tuned, folder / "tuned")
    return folder


def logits_beside(base, adapter):
    """Return what peft's model predicts where a run is asked, and what the run predicts."""
    wanted = wanted_of(Model.from_run(adapter.parent / "tuned"), "masked")
    network = AutoModelForMaskedLM.from_pretrained(base, trust_remote_code=True)
    model = peft.PeftModel.from_pretrained(network, str(adapter)).eval()
    with torch.no_grad():
        return model(input_ids=wanted["ids"]).logits[wanted["where"]][:, :V], wanted["logits"]


def test_peft_loads_the_adapter_beside_the_exported_base(root, atat):
    words = ["export", str(root / "tuned"), str(root / "adapter"), "--adapter", "--base", str(root / "exported")]
    code, out, err = atat(*words)
    assert (code, err) == (0, "")
    names = {path.name for path in (root / "adapter").iterdir()}
    assert names == {"README.md", "adapter_config.json", "adapter_model.safetensors", "experiment.toml"}
    weights = load_file(root / "adapter" / "adapter_model.safetensors")
    number = sum(weight.numel() for weight in weights.values())
    assert f"step 0, an adapter of {number:,} parameters; the model card is README.md" in out
    saved = load_file(root / "tuned" / "model" / "model.safetensors")
    assert number == sum(weight.numel() for name, weight in saved.items() if ".lora_" in name)
    said = json.loads((root / "adapter" / "adapter_config.json").read_text())
    assert (said["base_model_name_or_path"], said["r"], said["lora_alpha"]) == (str(root / "exported"), 3, 5.0)
    found, wanted = logits_beside(root / "exported", root / "adapter")
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    card = (root / "adapter" / "README.md").read_text()
    said = ["library_name: peft", f"A LoRA adapter for `{root / 'exported'}`", 'from_pretrained(base, "adapter")']
    assert all(each in card for each in said)


def test_without_an_adapter_the_matrices_are_merged(root):
    export_run(root / "tuned", root / "merged")
    wanted = wanted_of(Model.from_run(root / "tuned"), "masked")
    network = AutoModelForMaskedLM.from_pretrained(root / "merged", trust_remote_code=True)
    with torch.no_grad():
        found = network(input_ids=wanted["ids"]).logits[wanted["where"]][:, :V]
    torch.testing.assert_close(found, wanted["logits"], rtol=1e-4, atol=1e-4)  # the sum was rounded in another order


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "tuned --adapter",
            r"the base model of \S+tuned is the run \S+base, which peft cannot read; export that run to a",
        ),
        ("base --adapter --base exported", r"base was not trained with LoRA \(backbone.lora_rank is 0\)"),
        ("tuned --base exported", "--base only works with --adapter"),
        ("tuned --adapter --base tuned", "--base tuned is neither a folder with config.json nor a name on the hub"),
        ("tuned --adapter --base=", "--base '' is neither a folder"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(words, said, root, atat, monkeypatch):
    monkeypatch.chdir(root)
    run, *options = words.split()
    code, _, err = atat("export", str(root / run), "out", *options)
    assert (code, len(err.splitlines())) == (2, 1)
    assert re.search(said, err)
    assert not (root / "out").exists()


def test_the_base_is_the_model_that_the_backbone_names_or_there_is_no_adapter(tmp_path):
    named = SimpleNamespace(name="own", lora_rank=2, prefix="", model="somebody/model", revision="abc")
    experiment = SimpleNamespace(parts={"backbone": named}, init_from=None)
    assert base_of(tmp_path, experiment, None) == ("somebody/model", "abc")
    assert base_of(tmp_path, experiment, "other/model") == ("other/model", None)
    named.prefix = None
    with pytest.raises(UserError, match="the layers of backbone 'own' have different names in its published model"):
        base_of(tmp_path, experiment, "other/model")


@pytest.mark.parametrize("name", ["somebody/model", "folder"])
def test_the_base_of_an_import_is_the_published_model(name, root, tmp_path):
    for run in ("base", "tuned"):
        shutil.copytree(root / run, tmp_path / run)
    if name == "folder":
        name = str(tmp_path / name)
        shutil.copytree(root / "exported", name)
    write_json(RunFolder(tmp_path / "base").environment, {"imported": {"model": name, "revision": "abc"}})
    path = tmp_path / "tuned" / "resolved.toml"
    path.write_text(path.read_text().replace(str(root / "base"), str(tmp_path / "base")))
    export_run(tmp_path / "tuned", tmp_path / "adapter", adapter=True, dtype="bfloat16")
    weights = load_file(tmp_path / "adapter" / "adapter_model.safetensors").values()
    assert {weight.dtype for weight in weights} == {torch.bfloat16}
    said = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (said["base_model_name_or_path"], said["revision"]) == (name, "abc")
    card = (tmp_path / "adapter" / "README.md").read_text()
    assert ("base_model: somebody/model" in card) == (name == "somebody/model")
    assert 'revision="abc"' in card
