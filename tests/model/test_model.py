"""A model folder: what is saved is what is loaded, and nothing is unpickled."""

import hashlib
import json
import pickletools
import subprocess
import sys
import textwrap
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from atat_zoo import UserError, Zoo
from atat_zoo.bounds import ExactKBound
from atat_zoo.experiment import from_table
from atat_zoo.model import Model, assemble
from atat_zoo.objectives import Batch
from atat_zoo.registry import Context

L = 12

SMALL = {
    "name": "small",
    "seed": 3,
    "tokenizer": "bytes",
    "backbone": {"use": "dit", "layers": 1, "width": 16, "heads": 2, "output_bias": "unigram"},
    "estimator": {"use": "hybrid", "learned": {"use": "transformer", "layers": 1, "width": 8, "heads": 2}},
    "rates": {"use": "adaptive", "bins": 2},
    "masking": {"use": "position", "bias": "running"},
    "curriculum": "dynamic",
    "target": {"use": "difficulty", "scale": "running"},
    "data": {"length": L},
    "train": {"batch_size": 4},
}


def small(**changes):
    experiment = from_table(SMALL | changes)
    counts = np.arange(258, dtype=np.int64)
    tokenizer = experiment.parts["tokenizer"].train(lambda: iter(()))
    context = Context(vocabulary_size=258, length=L, counts=counts, steps=50, seed=3, tokenizer=tokenizer)
    module = assemble(experiment, context)
    # Trained a little, so that no weight and no memory is what it starts as.
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(3):
        tokens = (torch.arange(4 * L).view(4, L) * 7 + step) % 258
        batch = Batch(
            tokens=tokens,
            maskable=torch.ones_like(tokens, dtype=torch.bool),
            index=torch.arange(4) + 4 * step,
            mean_maskable=torch.tensor(float(L)),
            progress=step / 50,
        )
        optimizer.zero_grad()
        module.loss(batch)["loss"].backward()
        optimizer.step()
        module.end_step(lambda total: None, step / 50)
    return Model(experiment=experiment, context=context, tokenizer=tokenizer, module=module.eval(), step=3)


@pytest.fixture
def saved(tmp_path):
    model = small()
    model.save(tmp_path / "model")
    return model, tmp_path / "model"


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
    assert all(torch.equal(a, b) for a, b in zip(outputs(again), outputs(model), strict=True))
    one, two = model.module.state_dict(), again.module.state_dict()
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert again.experiment == model.experiment
    assert (again.step, again.module.training) == (3, False)
    assert attrs.evolve(again.context, tokenizer=None) == Context(
        vocabulary_size=258, length=L, width=model.context.width, steps=50, seed=3
    )
    assert again.context.tokenizer is again.tokenizer
    assert again.tokenizer.decode(again.tokenizer.encode("häß")) == "häß"
    # Counts are needed to build, not to load: prior and bias are in the weights.
    assert again.context.counts is None


def test_it_can_be_saved_again(saved, tmp_path):
    _, folder = saved
    Model.load(folder).save(tmp_path / "again")
    assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in (tmp_path / "again").iterdir())
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def test_a_tied_head_is_saved_once(tmp_path):
    model = small(backbone={"use": "dit", "layers": 1, "width": 16, "heads": 2, "tied": True})
    model.save(tmp_path / "model")
    assert "backbone.head.weight" not in load_file(tmp_path / "model" / "model.safetensors")
    again = Model.load(tmp_path / "model")
    assert all(torch.equal(a, b) for a, b in zip(outputs(again), outputs(model), strict=True))


def test_the_description_is_for_people_and_programs(saved):
    model, folder = saved
    said = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    assert said["format"] == 1
    assert said["parameters"] == sum(p.numel() for p in model.module.parameters())
    assert said["context"] == {"vocabulary_size": 258, "length": L, "width": 0, "steps": 50, "seed": 3}
    assert from_table(said["experiment"]) == model.experiment


def test_there_is_no_pickle_in_the_folder(saved):
    _, folder = saved
    assert {path.name for path in folder.iterdir()} == {"model.json", "model.safetensors", "tokenizer.json"}
    for path in folder.iterdir():
        data = path.read_bytes()
        assert not data.startswith((b"PK", b"\x80"))  # torch.save's zip, pickle's protocol byte
        with pytest.raises(ValueError):
            list(pickletools.genops(data))


@pytest.mark.slow
def test_loading_unpickles_nothing(saved):
    _, folder = saved
    code = """
        import pickle, sys, torch
        from pathlib import Path
        def refuse(*args, **kwargs):
            raise AssertionError("something was unpickled")
        pickle.load = pickle.loads = pickle.Unpickler = torch.load = refuse
        from atat_zoo.model import Model
        Model.load(Path(sys.argv[1]))
        print("loaded")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(folder)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("loaded\n", "")


# What can be wrong


def said_of(folder):
    with pytest.raises(UserError) as caught:
        Model.load(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_said(saved, name):
    _, folder = saved
    (folder / name).unlink()
    assert name in said_of(folder)


def forget_hashes(folder):
    """Make a description as version 0.1 wrote it, and return its hashes."""
    path = folder / "model.json"
    said = json.loads(path.read_text(encoding="utf-8"))
    hashes = said.pop("sha256")
    path.write_text(json.dumps(said), encoding="utf-8")
    return hashes


def test_the_files_are_hashed_and_an_older_version_did_without(saved):
    model, folder = saved
    hashes = forget_hashes(folder)
    files = {name: (folder / name).read_bytes() for name in ("model.safetensors", "tokenizer.json")}
    assert hashes == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    assert all(torch.equal(a, b) for a, b in zip(outputs(Model.load(folder)), outputs(model), strict=True))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
@given(data=st.data())
def test_a_flipped_bit_is_said(name, data, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "flipped"
    if not folder.exists():
        small().save(folder)
    whole = (folder / name).read_bytes()
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    try:
        (folder / name).write_bytes(flipped)
        assert said_of(folder).startswith(f"{folder / name} is not the file that model.json describes")
    finally:
        (folder / name).write_bytes(whole)


@pytest.mark.parametrize("hashes", [3, None, [], "x", {}, {"tokenizer.json": "0"}, {"model.safetensors": "0"}])
def test_broken_hashes_are_said(saved, hashes):
    _, folder = saved
    path = folder / "model.json"
    said = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(said | {"sha256": hashes}), encoding="utf-8")
    said_of(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(saved, value):
    model, folder = saved
    forget_hashes(folder)
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["backbone.head.weight"][3, 2] = value
    save_file(weights, path)
    assert said_of(folder).startswith(f"{path}: the weights backbone.head.weight are not finite")
    with torch.no_grad():
        model.module.backbone.head.weight[3, 2] = value
    with pytest.raises(
        UserError, match=r"never is not written: after step 3 the weights backbone\.head\.weight are not"
    ):
        model.save(folder.parent / "never")
    assert not (folder.parent / "never").exists()


def test_a_description_of_other_sizes_than_the_tokenizer_is_said(saved):
    """Before anything of that size is made."""
    _, folder = saved
    path = folder / "model.json"
    said = json.loads(path.read_text(encoding="utf-8"))
    said["context"]["vocabulary_size"] = 2**40
    path.write_text(json.dumps(said), encoding="utf-8")
    assert "model.json says that there are 1099511627776 tokens, tokenizer.json has 258" in said_of(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_weights_are_said(saved, keep):
    _, folder = saved
    forget_hashes(folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert said_of(folder).endswith("train again")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "{}", '{"format": 1}', '{"format": 1, "experiment": {}, "step": 1, "context": {"x": 1}}'],
)
def test_a_broken_description_is_said(saved, text):
    _, folder = saved
    (folder / "model.json").write_text(text)
    assert said_of(folder).endswith("train again")


def test_a_description_that_is_no_text_is_said(saved):
    _, folder = saved
    (folder / "model.json").write_bytes(b"\xff\xfe")
    said_of(folder)


def test_another_format_is_said(saved):
    _, folder = saved
    said = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(said | {"format": 2}))
    assert said_of(folder) == f"{folder} has format 2, this version reads 1; update atat-zoo"


def test_a_part_that_is_gone_is_said(saved):
    _, folder = saved
    said = json.loads((folder / "model.json").read_text())
    said["experiment"]["masking"] = {"use": "spiral"}
    (folder / "model.json").write_text(json.dumps(said))
    assert "there is no masking named 'spiral'" in said_of(folder)


def test_weights_of_another_model_are_said(saved):
    _, folder = saved
    forget_hashes(folder)
    path = folder / "model.safetensors"
    weights = load_file(path)
    save_file({name: value for name, value in weights.items() if "head" not in name}, path)
    assert "model.safetensors is of another model than model.json: Missing key(s)" in said_of(folder)
    save_file({name: value if "head" not in name else value[..., :2].clone() for name, value in weights.items()}, path)
    assert "size mismatch" in said_of(folder)


def test_a_run_without_a_model_is_said(tmp_path, saved):
    model, _ = saved
    with pytest.raises(UserError, match=r"is no run folder: it has no resolved\.toml"):
        Model.from_run(tmp_path / "nothing")
    run = tmp_path / "run"
    run.mkdir()
    (run / "resolved.toml").write_text(model.experiment.to_toml(), encoding="utf-8")
    with pytest.raises(UserError, match="has no final model yet; finish its training with `atat train --resume"):
        Model.from_run(run)
    model.save(run / "model")
    assert Model.from_run(run).experiment == model.experiment
    assert Model.from_run(str(run)).step == 3


def test_half_a_save_is_no_model(saved, monkeypatch):
    """Saved over an earlier model and killed halfway: the old description must not stand beside new weights."""
    model, folder = saved
    monkeypatch.setattr("atat_zoo.model.model.write_json", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        model.save(folder)
    assert not (folder / "model.json").exists()


@pytest.mark.slow
def test_a_full_disk_is_said(tmp_path):
    code = """
        import resource, sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from test_model import small
        from atat_zoo import UserError
        model = small()
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        folder = Path(sys.argv[1])
        try:
            model.save(folder)
        except UserError as error:
            print(error)
        print(sorted(p.name for p in folder.iterdir()))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "model"), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    said, listing = done.stdout.splitlines()
    assert said.startswith(f"{tmp_path / 'model' / 'model.safetensors'} cannot be written: ")
    assert "free some space" in said
    assert listing == "['tokenizer.json']"


# Assembly


def test_assembling_touches_no_generator_of_the_caller_and_depends_on_the_seed_alone():
    experiment = from_table(SMALL)
    context = Context(vocabulary_size=258, length=L, seed=3)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = assemble(experiment, context)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    two = assemble(experiment, context)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    other = assemble(experiment, Context(vocabulary_size=258, length=L, seed=4))
    assert not torch.equal(one.backbone.embedding.weight, other.backbone.embedding.weight)


def test_the_backbone_starts_alike_in_every_experiment_of_a_seed():
    """So that a comparison of strategies compares nothing else."""
    context = Context(vocabulary_size=258, length=L, seed=3)
    one = assemble(from_table(SMALL), context).backbone
    other = assemble(from_table(SMALL | {"estimator": "uniform", "masking": "uniform"}), context).backbone
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_parts_are_built_for_the_width_of_the_backbone():
    module = assemble(from_table(SMALL), Context(vocabulary_size=258, length=L))
    assert module.estimator.a.project.in_features == 16
    assert module.context.width == 16


def test_every_part_of_every_kind_can_be_assembled():
    zoo = Zoo.load()
    context = Context(vocabulary_size=258, length=L)
    tokens = torch.arange(4 * L).view(4, L)
    # With the bound's own weights the bell is refused.
    simple = {"objective": {"use": "mdlm", "weight": "simple"}}
    on_z = {"estimator": {**SMALL["estimator"]["learned"], "reads": "z"}, "masking": "uniform"}
    shown = {"reveal", "planner_aware"}  # which go by the importance of what is hidden
    for kind in ("noise", "rates", "estimator", "masking", "mask_drawing", "curriculum", "target"):
        for name in zoo.names(kind):
            reads = on_z if name in shown else {}
            module = assemble(from_table(SMALL | simple | reads | {kind: name}), context)
            batch = Batch(
                tokens=tokens,
                maskable=torch.ones_like(tokens, dtype=torch.bool),
                index=torch.arange(4),
                mean_maskable=torch.tensor(float(L)),
                progress=0.5,
            )
            loss = module.loss(batch)["loss"]
            assert loss.isfinite(), (kind, name)
            loss.backward()


def test_words_of_an_estimator_are_looked_up_again_when_a_model_is_loaded(tmp_path):
    """They stand in the experiment; neither the tokenizer nor a table of theirs is among the weights."""
    words = {"use": "term_bias", "words": ["war"], "strength": 0.5, "base": "frequency"}
    model = small(estimator=words)
    model.save(tmp_path)
    assert "tokenizer" not in json.loads((tmp_path / "model.json").read_text())["context"]
    loaded = Model.load(tmp_path)
    tokens = torch.tensor([model.tokenizer.encode("in the war ")])
    maskable = torch.ones_like(tokens, dtype=torch.bool)
    for each in (model, loaded):
        found = each.module.importance(tokens, maskable, None)
        plain = each.module.estimator.base(tokens, None, None, maskable)
        there = torch.tensor([[c == "#" for c in "------####-"]])
        assert torch.equal(found[~there], plain[~there])
        assert torch.allclose(found[there], (1 + plain[there]) / 2)


def test_a_sampler_that_does_not_fit_the_model_is_refused():
    model = small(estimator="uniform", masking="uniform", curriculum="none", target="difficulty")
    assert len(model.sample(1, sampler="left_to_right").texts) == 1
    with pytest.raises(UserError, match="the order importance follows an estimator that was trained with the model"):
        model.sample(1, sampler="policy")


def test_parts_that_are_given_together_are_checked_together():
    model = small(estimator="uniform", masking="uniform", curriculum="none", target="difficulty")
    guidance = {"use": "importance_bias", "words": ["a"]}
    with pytest.raises(UserError, match="'strided' does not; set sampler"):
        model.sample(1, sampler="strided", guidance=guidance)
    assert len(model.sample(1, sampler="uncertainty_guided", guidance=guidance).texts) == 1
    with pytest.raises(UserError, match="'ancestral' does not; set sampler"):
        model.infill("a[MASK]", sampler="ancestral", guidance=guidance)
