"""What a training leaves behind, and what it does not depend on."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from atat_zoo.data.neighbours import CountTable
from atat_zoo.errors import UserError
from atat_zoo.experiment import load
from atat_zoo.model import Model, assemble
from atat_zoo.objectives import chunks
from atat_zoo.registry import Context
from atat_zoo.run import RunFolder
from atat_zoo.training import resume, train
from atat_zoo.training.composer_model import ZooModel

if TYPE_CHECKING:
    from pathlib import Path

    from tests.tiny import Tiny

pytestmark = pytest.mark.slow


def test_a_run_leaves_everything_behind(tiny: Tiny, uninterrupted: Path) -> None:
    folder = RunFolder(uninterrupted)
    assert {p.name for p in uninterrupted.iterdir()} == {
        ".lock",
        "resolved.toml",
        "environment.json",
        "metrics.jsonl",
        "checkpoints",
        "model",
        "evaluations",
        "samples.txt",
    }
    environment = json.loads(folder.environment.read_text())
    assert environment["seed"] == 5
    assert environment["packages"]["mosaicml"]
    assert environment["computes"]["device"] == "cpu"
    (evaluation,) = (json.loads(p.read_text()) for p in folder.evaluations.iterdir())
    assert evaluation["ema"]
    assert evaluation["step"] == 24
    assert evaluation["perplexity"] == pytest.approx(math.exp(evaluation["nats_per_token"]))
    assert evaluation["perplexity_stderr"] > 0
    line = folder.read_metrics()[-1]
    assert {
        "step",
        "loss",
        "importance_loss",
        "importance_spearman",
        "mask_rate",
        "mask_rate_target",
        "stage",
        "tokens_per_second",
        "learning_rate",
    } <= set(line)
    assert line["mask_rate"] == pytest.approx(line["mask_rate_target"], abs=0.2)
    assert len(sorted(folder.checkpoints.glob("*.pt"))) == 2
    assert folder.samples.read_text().strip()
    assert not list(uninterrupted.rglob("*.part"))


def test_all_files_have_the_same_mode(tiny: Tiny, uninterrupted: Path) -> None:
    modes = {path.name: oct(path.stat().st_mode) for path in uninterrupted.rglob("*") if path.is_file()}
    assert set(modes.values()) == {modes["resolved.toml"]}, modes


@pytest.mark.parametrize("name", ["a{b", "a}b", "\udcff"])
def test_a_name_in_which_nothing_could_be_saved_is_refused_before_anything(tiny: Tiny, name: str) -> None:
    folder = tiny.root / name
    for begin in (lambda: train(load(str(tiny.path)), folder), lambda: resume(folder)):
        with pytest.raises(UserError, match="choose another one") as caught:
            begin()
        assert not folder.exists()
        str(caught.value).encode()


def test_every_trainable_parameter_has_changed(tiny: Tiny, uninterrupted: Path) -> None:
    model = Model.from_run(uninterrupted)
    fresh = assemble(model.experiment, model.context)
    trained = dict(model.module.named_parameters())
    same = [name for name, p in fresh.named_parameters() if p.requires_grad and torch.equal(p, trained[name])]
    assert not same


def test_the_parts_with_a_memory_have_learned(tiny: Tiny, uninterrupted: Path) -> None:
    model = Model.from_run(uninterrupted)
    fresh = dict(assemble(model.experiment, model.context).named_buffers())
    changed = {name for name, b in model.module.named_buffers() if not torch.equal(b, fresh[name])}
    assert "rates.sums" in changed
    assert {"masking", "curriculum", "target"} <= {name.partition(".")[0] for name in changed}


@pytest.mark.parametrize("change", ["train.microbatch_size=8", "train.microbatch_size=1"])
def test_micro_batches_do_not_matter(tiny: Tiny, uninterrupted: Path, change: str, tmp_path: Path) -> None:
    from atat_zoo.training import train

    one, two = (
        train(
            load(str(tiny.path), ["train.steps=4", "train.precision=fp32", extra]), tmp_path / name
        ).folder.read_metrics()
        for name, extra in (("one", "train.microbatch_size=2"), ("two", change))
    )
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], rel=2e-3)


def test_it_evaluates_on_the_way(tiny: Tiny, tmp_path: Path) -> None:
    from atat_zoo.training import train

    said: list[str] = []

    class Listener:
        def building(self, stage: str, done: int, total: int | None) -> None:
            pass

        def training(self, step: int, steps: int, line: dict[str, object]) -> None:
            pass

        def message(self, text: str) -> None:
            said.append(text)

    result = train(
        load(str(tiny.path), ["train.steps=6", "train.evaluate_every=2"]),
        tmp_path / "run",
        reporter=Listener(),
    )
    steps = sorted(json.loads(p.read_text())["step"] for p in result.folder.evaluations.iterdir())
    assert steps == [2, 4, 6]
    assert [text.partition(":")[0] for text in said] == ["step 2", "step 4"]
    assert all("validation perplexity" in text and "(8 sequences × 2 draws)" in text for text in said)
    tables = [json.loads(p.read_text())["count_table"] for p in result.folder.evaluations.iterdir()]
    assert len({table["value"] for table in tables}) == 1
    assert len({table["difference"] for table in tables}) == 3


def test_a_run_that_is_there_is_not_overwritten(tiny: Tiny, uninterrupted: Path) -> None:
    from atat_zoo.training import train

    with pytest.raises(UserError, match="--overwrite"):
        train(load(str(tiny.path)), uninterrupted)


def test_evaluating_again_gives_the_same_numbers(tiny: Tiny, uninterrupted: Path) -> None:
    """In another process, with another batch size: the masks are a function of the seed and the sequence."""
    (file,) = (uninterrupted / "evaluations").glob("*seed5*")
    first = json.loads(file.read_text())
    said = json.loads(tiny.atat("eval", str(uninterrupted), "--batch-size", "3", "--json").stdout)
    assert said["perplexity"] == pytest.approx(first["perplexity"], rel=1e-5)
    other = json.loads(tiny.atat("eval", str(uninterrupted), "--seed", "6", "--json").stdout)
    assert other["perplexity"] != first["perplexity"]


def test_the_same_seed_writes_the_same_text(tiny: Tiny, uninterrupted: Path) -> None:
    words = ("sample", str(uninterrupted), "--number", "2", "--prompt", "the", "--seed", "4", "--json")
    one, two = (json.loads(tiny.atat(*words).stdout) for _ in range(2))
    assert one["texts"] == two["texts"]
    assert all(text.startswith("the") for text in one["texts"])
    other = json.loads(tiny.atat(*words[:-2], "5", "--json").stdout)
    assert other["texts"] != one["texts"]


def test_counts_are_not_broadcast_at_every_forward(tiny: Tiny) -> None:
    """DDP does not with those buffers whose names this attribute has."""
    table = CountTable.count([np.arange(48).reshape(3, 16) % 7], 256)
    context = Context(vocabulary_size=256, length=16, steps=2, seed=0, count_table=lambda: table)
    model = ZooModel(assemble(load(str(tiny.path), ["backbone.neighbours=2"]), context), 2, False)
    counts = {name for name, _ in model.named_buffers() if ".prior." in name}
    assert len(counts) == 3
    assert set(model._ddp_params_and_buffers_to_ignore) == counts


@pytest.mark.parametrize("logits", [chunks.LOGITS, 5 * 256])
def test_bf16_is_for_the_network_alone(tiny: Tiny, logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses, importance, gradients, weights and the optimizer's state are in float32, or wider; in chunks, too."""
    monkeypatch.setattr(chunks, "LOGITS", logits)
    experiment = load(str(tiny.path))
    context = Context(vocabulary_size=256, length=16, steps=2, seed=0)
    model = ZooModel(assemble(experiment, context), 2, bf16=True)
    optimizer = experiment.parts["optimizer"].build(model)
    computed: list[torch.dtype] = []
    model.objective.backbone.blocks[0].qkv.register_forward_hook(lambda *seen: computed.append(seen[-1].dtype))
    rows = torch.arange(8)
    tokens = (rows[:, None] * 31 + torch.arange(16) * 7) % 256
    everything = {"maskable": torch.ones(8, 16, dtype=torch.bool), "mean_maskable": torch.full((8,), 16.0)}
    figures = model({"tokens": tokens, "index": rows, **everything})
    figures["loss"].backward()
    optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert computed == [torch.bfloat16]
    assert states
    assert len(gradients) == sum(p.requires_grad for p in model.parameters())
    for value in (*figures.values(), *gradients, *states, *model.state_dict().values()):
        assert not value.is_floating_point() or value.dtype in (torch.float32, torch.float64)
