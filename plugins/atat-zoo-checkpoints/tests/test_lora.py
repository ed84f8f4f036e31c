"""LoRA from a run of published weights, and the published form of what comes of it."""

import pytest
import torch
from atat_zoo_checkpoints.model_export import export_run
from atat_zoo_checkpoints.model_import import import_model
from models import CONFIGS, small
from safetensors.torch import load_file

from atat_zoo import Model
from atat_zoo.experiment import load
from atat_zoo.training import train

pytest.importorskip("peft")

TUNE = [
    *("init_from={folder}/imported", "backbone.lora_rank=2", "optimizer.learning_rate=0.05", "data.lanes=4"),
    'corpus={{use="files", document="line", train=["{folder}/text.txt"], validation_share=0.1}}',
    *("data.root={folder}/shards", "evaluation.sequences=8", "evaluation.samples=0"),
    *("train.steps=3", "train.batch_size=8", "train.precision=fp32"),
]


@pytest.mark.slow
@pytest.mark.parametrize("form", CONFIGS)
def test_published_weights_are_tuned_by_lora_and_given_back_merged(form, tmp_path):
    published = small(form, tmp_path / "model")
    import_model(str(tmp_path / "model"), tmp_path / "imported")
    (tmp_path / "text.txt").write_text("\n".join(f"{i} ships sail to {i % 7} harbours" for i in range(200)))
    asked = [each.format(folder=tmp_path) for each in TUNE]
    result = train(load(str(tmp_path / "imported" / "resolved.toml"), asked), tmp_path / "tuned")
    saved = load_file(tmp_path / "tuned" / "model" / "model.safetensors")
    matrices = {name: weight for name, weight in saved.items() if ".lora_" in name}
    assert matrices
    assert all(weight.dtype == torch.float32 for weight in matrices.values())
    assert saved.keys() - matrices.keys() <= {name for name, _ in result.model.module.named_buffers()}
    tokens, t = torch.arange(2 * 8).view(2, 8) + 60, torch.tensor([0.2, 0.7])
    before, model = (Model.from_run(tmp_path / run).module.backbone for run in ("imported", "tuned"))
    with torch.no_grad():
        found = model(tokens, t)
        assert torch.equal(found, result.model.module.backbone(tokens, t))
        assert not torch.equal(found, before(tokens, t))
    export_run(tmp_path / "tuned", tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == published.keys()
    changed = {name for name in back if not torch.equal(back[name], published[name])}
    assert changed
    assert not any("norm" in name or "embed" in name for name in changed)
    again = import_model(str(tmp_path / "back"), tmp_path / "again").module.backbone
    with torch.no_grad():
        near = 0.1 if again.table.weight.dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(again(tokens, t).float(), found.float(), rtol=near, atol=near)
