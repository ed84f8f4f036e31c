"""A model folder: what is saved is what is loaded, and nothing is unpickled."""

import copy
import hashlib
import json
import os
import pickle
import shutil
from contextlib import suppress
from functools import partial

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from atat_zoo import UserError
from atat_zoo.experiment import from_table
from atat_zoo.generation.model import Model, base_weights
from atat_zoo.modeling.bounds import ExactKBound
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from tests.drawn import drawn_batch
from tests.generation.making import SMALL
from tests.system.dying import dies

L = SMALL["data"]["length"]


def small(**changes):
    experiment = from_table(SMALL | changes)
    counts = np.arange(258, dtype=np.int64)
    tokenizer = experiment.parts["tokenizer"].train(lambda: iter(()))
    context = Context(vocabulary_size=258, length=L, counts=counts, steps=50, seed=3, tokenizer=tokenizer)
    module = assemble(experiment, context)
    # Trained a little, so that no weight and no memory is what it starts as.
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(3):
        batch = attrs.evolve(drawn_batch(258, 4, L), index=torch.arange(4) + 4 * step, progress=step / 50)
        optimizer.zero_grad()
        module.loss(batch)["loss"].backward()
        optimizer.step()
        module.end_step(lambda total: None, step / 50)
    return Model(experiment=experiment, context=context, tokenizer=tokenizer, module=module.eval(), step=3)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    model = small()
    model.save(folder := tmp_path_factory.mktemp("first") / "model")
    return model, folder


@pytest.fixture
def saved(first, tmp_path):
    """A model, and a folder with a copy of what was saved of it."""
    return first[0], shutil.copytree(first[1], tmp_path / "model")


def outputs(model):
    tokens = (torch.arange(3 * L).view(3, L) * 5) % 258
    maskable = torch.ones_like(tokens, dtype=torch.bool)
    with torch.no_grad():
        bound = model.module.bound(tokens, maskable, torch.arange(3), 2, ExactKBound())["nelbo"].contribution
        importance = model.module.importance(tokens, maskable, None)
        z = torch.where(tokens % 2 == 0, 258, tokens)
        log_p = model.module.denoiser()(z, None, z == 258)
        p = model.module.masking.probabilities(importance, torch.full((3,), 0.4), maskable)
    return bound, importance, log_p, p


def test_what_is_loaded_answers_as_what_was_saved(saved):
    model, folder = saved
    again = Model.load(folder)
    torch.testing.assert_close(outputs(again), outputs(model), rtol=0, atol=0)
    torch.testing.assert_close(again.module.state_dict(), model.module.state_dict(), rtol=0, atol=0)
    assert again.experiment == model.experiment
    assert (again.step, again.module.training) == (3, False)
    kept = Context(vocabulary_size=258, length=L, width=model.context.width, steps=50, seed=3)
    assert attrs.evolve(again.context, tokenizer=None) == kept
    assert again.context.tokenizer is again.tokenizer
    assert again.tokenizer.decode(again.tokenizer.encode("häß")) == "häß"
    # Counts are needed to build, not to load: prior and bias are in the weights.
    assert again.context.counts is None


def test_a_tied_head_is_saved_once(tmp_path):
    model = small(backbone={"use": "dit", "layers": 1, "width": 16, "heads": 2, "tied": True})
    model.save(tmp_path / "model")
    assert "backbone.head.weight" not in load_file(tmp_path / "model" / "model.safetensors")
    torch.testing.assert_close(outputs(Model.load(tmp_path / "model")), outputs(model), rtol=0, atol=0)


def test_loading_unpickles_nothing(saved, monkeypatch):
    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, None)
    assert Model.load(saved[1]).step == 3


def said_of(folder):
    with pytest.raises(UserError) as caught:
        Model.load(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


def describe(folder, **changes):
    """Change the description; return it as it was."""
    path = folder / "model.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(description | changes), encoding="utf-8")
    return description


def rehash(folder):
    """Say of the weights what they are now, so that they are read."""
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in HASHED}
    return describe(folder, sha256=sums)["sha256"]


FILES = ("model.json", "model.safetensors", "tokenizer.json")
HASHED = FILES[1:]


def test_the_description_is_for_people_and_programs(saved):
    model, folder = saved
    assert {path.name for path in folder.iterdir()} == {*FILES}
    said = describe(folder)
    assert said["format"] == 1
    assert said["parameters"] == sum(p.numel() for p in model.module.parameters())
    assert said["context"] == {"vocabulary_size": 258, "length": L, "width": 0, "steps": 50, "seed": 3}
    assert from_table(said["experiment"]) == model.experiment
    assert rehash(folder) == said["sha256"] == describe(folder)["sha256"]


@pytest.mark.parametrize("name", HASHED)
@given(data=st.data())
def test_a_flipped_bit_is_said(name, data, first):
    folder = first[1]
    whole = (folder / name).read_bytes()
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    try:
        (folder / name).write_bytes(flipped)
        assert said_of(folder).startswith(f"{folder / name} differs from model.json")
    finally:
        (folder / name).write_bytes(whole)


def written(folder, text):
    (folder / "model.json").write_text(text, encoding="latin-1")


def truncated(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    rehash(folder)


def of_sizes(folder):
    """Of sizes that are refused before anything of that size is made."""
    describe(folder, context=describe(folder)["context"] | {"vocabulary_size": 2**40})


DAMAGED = [
    *((lambda folder, name=name: (folder / name).unlink(), f"has no {name}; copy the run") for name in FILES),
    (lambda folder: describe(folder, sha256=3), "cannot be read: TypeError"),
    (lambda folder: describe(folder, sha256={FILES[2]: "0"}), "tokenizer.json differs from model.json"),
    *((lambda folder, keep=keep: truncated(folder, keep), "cannot be read: ") for keep in (0, 100, -1)),
    *((lambda folder, text=text: written(folder, text), "cannot be read: ") for text in ("", "[]", "ÿ")),
    (lambda folder: describe(folder, experiment={}, context={"x": 1}), "cannot be read: TypeError"),
    (lambda folder: describe(folder, format=2), "has format 2, but this atat-zoo reads format 1; update atat-zoo"),
    (of_sizes, "model.json has a vocabulary of 1099511627776 tokens, but tokenizer.json has 258"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGED)
def test_what_is_damaged_is_said(saved, damage, said):
    damage(saved[1])
    assert said in said_of(saved[1])


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(saved, value):
    model, folder = copy.deepcopy(saved[0]), saved[1]
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["backbone.head.weight"][3, 2] = value
    save_file(weights, path)
    rehash(folder)
    assert said_of(folder).startswith(f"{path}: the weights backbone.head.weight are not finite")
    with torch.no_grad():
        model.module.backbone.head.weight[3, 2] = value
    with pytest.raises(UserError, match=r"never was not saved: after step 3 the weights backbone\.head\.weight are"):
        model.save(folder.parent / "never")
    assert not (folder.parent / "never").exists()


def test_weights_of_another_model_are_said(saved):
    _, folder = saved
    path = folder / "model.safetensors"
    whole = load_file(path)
    heads = {name: value for name, value in whole.items() if "head" in name}
    without = {name: value for name, value in whole.items() if name not in heads}
    smaller = whole | {name: value[..., :2].clone() for name, value in heads.items()}
    for changed, problem in ((without, "Missing key(s)"), (smaller, "size")):
        save_file(changed, path)
        rehash(folder)
        assert f"model.safetensors and model.json belong to different models: {problem}" in said_of(folder)


@pytest.mark.slow
def test_a_kill_leaves_the_earlier_model_or_none_that_is_taken_for_one(saved, monkeypatch):
    """The old description must not stand beside new weights, nor the new one beside old weights."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    model, folder = saved
    (folder / "notes.md").write_text("kept")
    new, moment, ends = attrs.evolve(small(), step=9), 0, []
    for parameter in new.module.parameters():
        parameter.data += 1
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    while dies(partial(new.save, folder), moment):
        with suppress(UserError):
            ends.append(Model.load(folder).step)
        for name, content in before.items():
            (folder / name).write_bytes(content)
        moment += 1
    assert ends == sorted(ends)
    assert {*ends} == {model.step, 9}
    assert len(ends) >= moment - 3, "between three renames there is none"
    assert {path.name for path in folder.iterdir()} == {*before}


def test_a_full_disk_is_said(saved, monkeypatch):
    model, folder = saved

    def full(weights, path):
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("atat_zoo.generation.model.save_file", full)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match=f"{folder} cannot be written: No space left on device; free some space"):
        model.save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_words_of_an_estimator_are_looked_up_again_when_a_model_is_loaded(tmp_path):
    """They stand in the experiment; neither the tokenizer nor a table of theirs is among the weights."""
    words = {"use": "term_bias", "words": ["war"], "strength": 0.5, "base": "frequency"}
    model = small(estimator=words)
    model.save(tmp_path)
    assert "tokenizer" not in json.loads((tmp_path / "model.json").read_text())["context"]
    tokens = torch.tensor([model.tokenizer.encode("in the war ")])
    maskable = torch.ones_like(tokens, dtype=torch.bool)
    for each in (model, Model.load(tmp_path)):
        found = each.module.importance(tokens, maskable, None)
        plain = each.module.estimator.base(tokens, None, None, maskable)
        there = torch.tensor([[c == "#" for c in "------####-"]])
        assert torch.equal(found[~there], plain[~there])
        assert torch.allclose(found[there], (1 + plain[there]) / 2)


def test_parts_that_do_not_fit_the_model_or_each_other_are_refused():
    model = small(estimator="uniform", masking="uniform", curriculum="none", target="difficulty")
    guidance = {"use": "importance_bias", "words": ["a"]}
    with pytest.raises(UserError, match="'strided' does not; set sampler"):
        model.sample(1, sampler="strided", guidance=guidance)
    assert len(model.sample(1, sampler="uncertainty_guided", guidance=guidance).texts) == 1
    with pytest.raises(UserError, match="'ancestral' does not; set sampler"):
        model.infill("a[MASK]", sampler="ancestral", guidance=guidance)


def test_the_weights_below_loras_are_found_where_the_run_was_moved_to(first, tmp_path):
    model, folder = first
    shutil.copytree(folder, tmp_path / "here" / "model")
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    base = {"run": str(tmp_path / "there"), "path": str(tmp_path / "here"), "sha256": digest}
    found = base_weights(tmp_path, base, "cpu")
    assert all(torch.equal(found[name], tensor) for name, tensor in model.module.state_dict().items())
    with pytest.raises(UserError, match="whose weights have changed"):
        base_weights(tmp_path, base | {"sha256": "0" * 64}, "cpu")
