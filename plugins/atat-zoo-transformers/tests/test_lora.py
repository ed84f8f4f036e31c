"""LoRA from an imported run: each architecture, and the merged model that an export writes."""

import warnings

import pytest
import torch
import transformers
from atat_zoo_checkpoints.model_export import export_run
from atat_zoo_checkpoints.model_import import import_model
from models import ARCHITECTURES, CAUSAL, lines, small
from safetensors.torch import load_file

from atat_zoo import Model
from atat_zoo.experiment import load
from atat_zoo.system.errors import UserError
from atat_zoo.training import train

pytest.importorskip("peft")

TUNE = """
init_from = "{folder}/imported"
backbone.lora_rank = 2
corpus = {{ use = "files", document = "line", train = ["{folder}/text.txt"], validation_share = 0.1 }}
evaluation = {{ sequences = 8, samples = 0 }}
optimizer.learning_rate = 0.01
[data]
root = "{folder}/shards"
length = 16
lanes = 4
[train]
steps = 3
batch_size = 8
precision = "fp32"
"""


def imported(name, folder):
    """Import a small model of an architecture, and write an experiment that trains it by LoRA; returns its path."""
    small(name, folder / "model")
    (folder / "text.txt").write_text("\n".join(lines(300)))
    asked = ["data.length=16", *(["backbone.mask_id=1"] if name in CAUSAL else [])]
    import_model(str(folder / "model"), folder / "imported", asked)
    (folder / "tune.toml").write_text(TUNE.format(folder=folder))
    return str(folder / "tune.toml")


def check_adapter(base, folder, backbone, ids):
    """Check that peft loads an adapter beside the published model, and that it predicts what the run does."""
    import peft

    kind = transformers.AutoModelForCausalLM if backbone.causal else transformers.AutoModelForMaskedLM
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what peft asks transformers by older names
        model = peft.PeftModel.from_pretrained(kind.from_pretrained(base), str(folder)).eval()
    assert model.peft_config["default"].base_model_name_or_path == str(base)
    mask = {"attention": "causal"} if backbone.causal else {}
    predicted = torch.arange(backbone.V) != backbone.mask_id
    with torch.no_grad():
        found, wanted = model(input_ids=ids).logits[..., : backbone.V], backbone.head(backbone(ids, **mask))
    torch.testing.assert_close(found[..., predicted], wanted[..., predicted], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_imported_model_is_trained_by_lora_and_exported_merged(name, tmp_path):
    result = train(load(imported(name, tmp_path)), tmp_path / "tuned")
    saved = load_file(tmp_path / "tuned" / "model" / "model.safetensors")
    assert saved
    assert all(".lora_" in each and weight.any() for each, weight in saved.items())
    model = Model.from_run(tmp_path / "tuned")
    backbone, trained = model.module.backbone, result.model.module.backbone
    ids = torch.randint(5, 80, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = backbone.head(backbone(ids))
        assert torch.equal(found, trained.head(trained(ids)))
    export_run(tmp_path / "tuned", tmp_path / "adapter", adapter=True)
    check_adapter(tmp_path / "model", tmp_path / "adapter", backbone, ids)
    export_run(tmp_path / "tuned", tmp_path / "merged")
    import_model(
        str(tmp_path / "merged"), tmp_path / "again", ["data.length=16", f"backbone.mask_id={backbone.mask_id}"]
    )
    again, before = (Model.from_run(tmp_path / run).module.backbone for run in ("again", "imported"))
    with torch.no_grad():
        torch.testing.assert_close(again.head(again(ids)), found, rtol=1e-4, atol=1e-4)
        assert (before.head(before(ids)) - found).abs().max() > 1e-2
    own = transformers.AutoModel.from_pretrained(tmp_path / "model").state_dict()
    merged = transformers.AutoModel.from_pretrained(tmp_path / "merged").state_dict()
    assert merged.keys() == own.keys()
    assert any(not torch.equal(merged[each], own[each]) for each in own)


def test_an_import_itself_is_not_by_lora(tmp_path):
    small("bert", tmp_path / "model")
    with pytest.raises(
        UserError,
        match=r"backbone\.lora_rank: an import does not train LoRA matrices; leave lora_rank out, and set it in a",
    ):
        import_model(str(tmp_path / "model"), tmp_path / "run", ["data.length=16", "backbone.lora_rank=4"])
    assert not (tmp_path / "run").exists()
