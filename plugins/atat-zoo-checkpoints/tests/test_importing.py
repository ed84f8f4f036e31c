"""A published model becomes a run by the backbone that reads it; the plugin here reads the weights of `dit`."""

import io
import json
import random
import tempfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from atat_zoo_checkpoints import model_import
from atat_zoo_checkpoints.checkpoint_commands import import_
from atat_zoo_checkpoints.lightning import read_checkpoint
from atat_zoo_checkpoints.model_import import fill, import_model
from atat_zoo_checkpoints.published_model import Published, fetched, refuse_links_out
from click.testing import CliRunner
from huggingface_hub import save_torch_state_dict
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from atat_zoo import Model
from atat_zoo.cli import atat
from atat_zoo.evaluation.held_out_text import held_out_text, text_of
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.modeling.backbones.dit import DiTBackbone
from atat_zoo.registry import Context
from atat_zoo.reports.live_dashboard import frame
from atat_zoo.system.errors import UserError
from tests.attack.damage import CHANGES
from tests.installing import READER, alone, install
from tests.limited import full_disk

__all__ = ["alone", "install"]


@pytest.fixture
def model(install, tmp_path):
    """A model in a folder, and a plugin that reads it."""
    install("reader", READER.format(name="reader"))
    network = DiTBackbone(layers=1, width=16, heads=2).build(Context(vocabulary_size=258, length=16))
    folder = tmp_path / "model"
    folder.mkdir()
    weights = {name: torch.linspace(-1, 1, w.numel()).view(w.shape) for name, w in network.named_parameters()}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "small", "layers": 1}))
    return folder


def test_the_backbone_that_reads_a_model_makes_its_run(model, tmp_path):
    run = tmp_path / "run"
    done = CliRunner().invoke(import_, [str(model), str(run), "data.length=8"])
    assert done.exit_code == 0, done.output
    assert "length 8, objective mdlm" in done.output
    made, weights = Model.from_run(run), Published(str(model)).weights
    assert (made.step, made.experiment.parts["backbone"].name) == (0, "reader")
    assert all(torch.equal(weight, weights[name]) for name, weight in made.module.backbone.named_parameters())
    assert RunFolder(run).imported() == {"model": str(model), "revision": None, "corpus": None}
    shown = CliRunner().invoke(atat, ["ls", str(tmp_path)]).output.splitlines()[-1].split()
    assert (shown[0], shown[-1], "0/1000" in shown) == ("run", "imported", False)
    text, finished = frame(RunFolder(run), 80, 20)
    assert finished
    assert ("imported" in text, "step" in text) == (True, False)
    with pytest.raises(UserError, match="already contains a run; pass --overwrite"):
        import_model(str(model), run)
    again = import_model(str(model), run, overwrite=True)
    assert again.context.length == 16
    assert again.context.counts.tolist() == [1] * 258  # no text of its own says that a token is likelier


def test_an_imported_run_is_evaluated_on_text_that_is_named(model, tmp_path):
    """The addresses, which an experiment has by default, say nothing of it."""
    made = import_model(str(model), tmp_path / "run")
    for ask in (text_of, lambda *of: held_out_text(of[0], of[1], "validation", 4)):
        with pytest.raises(UserError, match=r"was imported without a corpus; pass --corpus, or im"):
            ask(made, tmp_path / "run", made.experiment.evaluation)
    (tmp_path / "text.txt").write_text("".join(f"text {number}\n" for number in range(900)))
    text = json.dumps([str(tmp_path / "text.txt")])
    named = ["corpus.use=files", f"corpus.train={text}", "corpus.document=line", f"data.root={tmp_path / 'data'}"]
    made = import_model(str(model), tmp_path / "named", named)
    assert len(held_out_text(made, tmp_path / "named", "validation", 4).tokens)


def test_an_objective_of_the_user_takes_what_it_does_not_use_away(model, tmp_path):
    asked = ["objective=autoregressive", "sampler.use=left_to_right"]
    assert import_model(str(model), tmp_path / "run", asked).experiment.parts["objective"].name == "autoregressive"
    with pytest.raises(UserError, match="noise: objective 'autoregressive' does not use the kind noise"):
        import_model(str(model), tmp_path / "other", [*asked, "noise.use=linear"])


def test_two_backbones_that_read_a_model_are_told_apart_by_the_user(model, install, tmp_path):
    install("another", READER.format(name="another"))
    with pytest.raises(UserError, match=r"several backbones recognise .*\(model_type 'small'\): another, reader"):
        import_model(str(model), tmp_path / "run")
    made = import_model(str(model), tmp_path / "run", ["backbone.use=another"])
    assert made.experiment.parts["backbone"].name == "another"
    with pytest.raises(UserError, match=r"backbone\.use: 'dit' cannot read published models"):
        import_model(str(model), tmp_path / "other", ["backbone=dit"])
    (model / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"no backbone recognises .*\(backbones that read models: another, reader\)"):
        import_model(str(model), tmp_path / "other")


def test_where_no_backbone_reads_models_it_says_so(monkeypatch):
    none = SimpleNamespace(names=lambda kind: [])
    monkeypatch.setattr(model_import, "Zoo", SimpleNamespace(load=lambda: none))
    with pytest.raises(UserError, match=r"^no backbone recognises m \(.* models: none is installed\);"):
        model_import._reader(SimpleNamespace(config={}, model="m"), {})


def test_a_run_is_as_it_was_when_the_new_one_does_not_fit_or_cannot_be_written(model, tmp_path):
    run = tmp_path / "run"
    import_model(str(model), run, ["data.length=8"])
    config, before = (model / "config.json").read_text(), files_of(run)
    (model / "config.json").write_text(config.replace("1", "2"))
    with pytest.raises(UserError, match=r"blocks\.1\.scale is missing; .* and \d more; download the model again"):
        import_model(str(model), run, overwrite=True)
    (model / "config.json").write_text(config)
    for room in (100, 20_000):
        with full_disk(room), pytest.raises(UserError, match=r"run.* cannot be written: File too large; free some"):
            import_model(str(model), run, overwrite=True)
        assert files_of(run) == before
    weights = Published(str(model)).weights
    name = next(iter(weights))
    save_file({**weights, name: torch.full_like(weights[name], torch.nan)}, model / "model.safetensors")
    for place in (run, tmp_path / "runs" / "new"):
        with pytest.raises(UserError, match="finite"):
            import_model(str(model), place, overwrite=True)
    assert files_of(run) == before
    assert {path.name for path in run.iterdir()} == {".lock", "environment.json", "model", "resolved.toml"}
    assert not (tmp_path / "runs").exists()
    with pytest.raises(UserError, match="the name is not UTF-8; choose a different name"):
        import_model(str(model), tmp_path / "\udcff")


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Given:
    """A model of some weights."""

    model = "a model"

    def __init__(self, **weights):
        self.weights = weights


ONE, TWO = torch.ones(2), torch.ones(2, 1)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "settings: one is missing; two is missing; download"),
        ({"one": ONE, "two": TWO, "three": ONE}, "settings: three is unknown; download"),
        ({"one": torch.ones(3), "two": TWO}, r"one has the shape \[3\] instead of \[2\]; download"),
        ({"one": ONE.to(torch.int8), "two": TWO}, r"one has the unsupported type torch\.int8"),
        ({"one": ONE.to(torch.complex64), "two": TWO}, "has the unsupported type"),
        ({"one": ONE.to(torch.float8_e4m3fn), "two": TWO}, "has the unsupported type"),
        ({"one": torch.tensor([1.0, torch.nan]), "two": TWO}, "one has 1 value that is not finite; d"),
        ({"one": ONE, "two": 1e300 * TWO.double()}, "two has 2 values that are not finite; download"),
        ({"one": ONE, "two": TWO, "angles": torch.ones(2)}, "angles differs from its computed value"),
        ({"one": ONE, "two": TWO, "angles": torch.ones(1)}, "angles differs from its computed value"),
    ],
)
def test_weights_that_do_not_fit_are_named(weights, message):
    own = {"one": torch.zeros(2), "two": torch.zeros(2, 1)}
    with pytest.raises(UserError, match=message):
        fill(own, {"angles": torch.tensor([1.0, 0.5])}, Given(**weights))


def test_views_are_filled_constants_may_be_absent_or_equal_and_half_precision_is_named():
    whole = torch.zeros(3, 2)
    own, constants = {"a": whole[:1], "b": whole[1:]}, {"angles": torch.tensor([1.0, 0.5])}
    given = {"a": torch.ones(1, 2).half(), "b": torch.full((2, 2), 2.0)}
    fill(own, constants, Given(**given, angles=torch.tensor([1.0, 0.5]).double()))
    assert whole.tolist() == [[1, 1], [2, 2], [2, 2]]
    fill(own, constants, Given(**given))
    large = Given(one=torch.tensor([2e5, 1.0]))
    with pytest.raises(UserError, match=r'1 value that is not finite in float16; set backbone.dtype="bfloat16"'):
        fill({"one": torch.zeros(2).half()}, {}, large)
    fill({"one": torch.zeros(2).bfloat16()}, {}, large)


def test_weights_are_compared_before_memory_is_taken(model, tmp_path, monkeypatch):
    built, build = [], DiTBackbone.build

    def building(spec, context):
        made = build(spec, context)
        built.append({parameter.device.type for parameter in made.parameters()})
        return made

    monkeypatch.setattr(DiTBackbone, "build", building)
    with pytest.raises(UserError, match=r"has the shape \[\d+, 16\] instead of \[\d+, 160\]"):
        import_model(str(model), tmp_path / "run", ["backbone.width=160"])
    assert built == [{"meta"}]
    import_model(str(model), tmp_path / "run")
    assert built == [{"meta"}, {"meta"}, {"cpu"}]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_no_link_of_a_model_is_followed_out_of_its_folder(name, model, tmp_path):
    (model / name).rename(tmp_path / "elsewhere")
    (model / name).symlink_to("../elsewhere")
    with pytest.raises(UserError, match=f"{name} is a link to a file outside its folder; replace the link with the"):
        import_model(str(model), tmp_path / "run")
    (model / name).unlink()
    (tmp_path / "elsewhere").rename(model / "within")
    (model / name).symlink_to(model / "within")
    import_model(str(model), tmp_path / "run")


def test_links_of_the_cache_of_the_hub_are_followed_to_its_blobs(model, tmp_path):
    cache = tmp_path / "models--a--b"
    snapshot, blobs = cache / "snapshots" / "0123", cache / "blobs"
    for folder in (blobs, snapshot / "more"):
        folder.mkdir(parents=True)
    for number, file in enumerate(model.iterdir()):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    import_model(str(snapshot), tmp_path / "run")
    refuse_links_out(snapshot)
    (cache / "refs").write_text("")
    (blobs / "0").unlink()
    for where in (snapshot / "more" / "x", snapshot / "x", blobs / "0"):
        where.symlink_to(cache / "refs")
        with pytest.raises(UserError, match="is a link to a file outside its folder"):
            refuse_links_out(snapshot)
        if where.parent != blobs:
            where.unlink()


A, B = "1.safetensors", "2.safetensors"


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"a": A, "b": B}, ""),
        ({"b": B}, ""),
        ({"a": B, "b": B}, f"{B} lacks a, which .* names; download the model again"),
        ({"a": B, "b": A}, f"{A} contains a, but .* places it in '{B}'; d"),
        ({"a": A, "b": B, "c": A}, f"{A} lacks c, which .* names"),
        ({"a": A, "b": "../" + B}, rf"refers to the file '\.\./{B}' outside its folder"),
        ({"a": A, "b": 2}, "has no weight_map from names to files"),
        ({"a": A, "b": "3.safetensors"}, r"lacks 3\.safetensors, which .* names"),
        ({"a": A, "both": A, "b": B}, f"{B} contains both, but .* places it in"),
        ({"a": A, "b": B, "_": A}, "does not list it|lacks _"),
    ],
)
def test_each_weight_is_that_of_the_file_that_the_index_names(where, message, tmp_path):
    both = {"both": torch.ones(1)} if "both" in where else {}
    save_file({"a": torch.ones(1), **both}, tmp_path / A)
    save_file({"b": torch.ones(1), **both}, tmp_path / B)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    if message:
        with pytest.raises(UserError, match=message):
            _ = Published(str(tmp_path)).weights
    else:
        found = Published(str(tmp_path)).weights
        assert {name: weight.tolist() for name, weight in found.items()} == {name: [1.0] for name in where}


def test_a_weight_that_is_left_out_as_it_is_another_s_is_that_one(model):
    weights = dict(Published(str(model)).weights)
    one, other, *_ = (name for name, weight in weights.items() if weight.ndim == 2)
    weights[other] = weights[one]
    save_torch_state_dict(dict(weights), model)  # as `save_pretrained` writes it
    found = Published(str(model)).weights
    assert (found.keys(), len(found.places)) == (weights.keys(), len(weights) - 1)
    assert all(torch.equal(found[name], weight) for name, weight in weights.items())


class Code:
    def __reduce__(self):
        return print, ("ran",)


ITSELF: list = []
ITSELF.append(ITSELF)
ITS_KEY: dict = {}
ITS_KEY["a"] = ITS_KEY
DOUBLED: list = [1]
for _ in range(40):
    DOUBLED = [DOUBLED, DOUBLED]
PLAIN = "has a weight that is sparse, quantized or without"
LIST = "the EMA is not a list of weights; pass an unmodified"


@pytest.mark.parametrize(
    ("of", "protocol", "message"),
    [
        ({"state_dict": {}, "x": Code()}, 2, r"contains code, builtins\.print, which atat does not run"),
        (
            {"state_dict": {}},
            4,
            "the pickle is damaged, or uses protocol 4 or 5, which torch cannot read without running code",
        ),
        ([1], 2, "has no state_dict"),
        ({"state_dict": [1]}, 2, "has no state_dict and is not a Lightning checkpoint; pass the .ckpt file"),
        ({"state_dict": {"a": torch.ones(2).to_sparse()}}, 2, PLAIN),
        ({"state_dict": {"a": torch.empty(2, device="meta")}}, 2, PLAIN),
        ({"state_dict": {}, "ema": torch.ones(2)}, 2, LIST),
        ({"state_dict": {}, "ema": {"shadow_params": [1]}}, 2, LIST),
        ({"state_dict": {"backbone.a": ONE}, "ema": [torch.ones(3)]}, 2, "the 1 EMA weights do not match the 1 param"),
        ({"state_dict": {"backbone.a": ONE}, "ema": [ONE.view(1, 2)]}, 2, "the 1 EMA weights do not match the 1 param"),
        (
            {"state_dict": {}, "hyper_parameters": ITSELF},
            2,
            "the settings are nested more than 128 levels deep; pass an",
        ),
        (
            {"state_dict": {}, "hyper_parameters": ITS_KEY},
            2,
            "the settings are nested more than 128 levels deep; pass an",
        ),
        ({"state_dict": {}, "hyper_parameters": DOUBLED}, 2, "the settings have more than 100,000 values; pass an"),
    ],
)
def test_what_is_no_checkpoint_is_said_and_no_code_runs(of, protocol, message, tmp_path, capsys):
    torch.save(of, tmp_path / "last.ckpt", pickle_protocol=protocol)
    with pytest.raises(UserError, match=message):
        read_checkpoint(tmp_path / "last.ckpt")
    assert capsys.readouterr().out == ""


def test_a_checkpoint_has_plain_settings_or_none_and_weights_of_which_the_average_counts(tmp_path):
    path = tmp_path / "last.ckpt"
    state = {"backbone.a": torch.zeros(2), "backbone.rotary.inv_freq": torch.ones(1), "other": torch.ones(3)}
    torch.save({"state_dict": state, "hyper_parameters": {"a": [1, {"b": None}], "c": torch.ones(1)}}, path)
    settings, weights = read_checkpoint(path)
    assert (settings, weights.keys()) == ({"a": [1, {"b": None}], "c": None}, state.keys())
    torch.save({"state_dict": state, "ema": {"shadow_params": [torch.full((2,), 7.0), torch.ones(1)]}}, path)
    assert read_checkpoint(path)[1]["backbone.a"].tolist() == [7, 7]
    for settings in ({}, {"hyper_parameters": None}, {"hyper_parameters": [1]}):
        torch.save({"state_dict": {}, "ema": None, **settings}, path)
        assert read_checkpoint(path) == ({}, {})
    with zipfile.ZipFile(path) as stored:
        entries = {name: stored.read(name) for name in stored.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    with pytest.raises(UserError, match=r"the file is compressed, which torch\.save does not do; check the path"):
        read_checkpoint(path)


@given(seed=st.integers(0, 2**32))
def test_a_damaged_checkpoint_is_read_or_refused_in_a_sentence(seed):
    """Of the whole file, or of the pickle in it, whose bytes are instructions."""
    draw, saved = random.Random(seed), io.BytesIO()
    state = {"backbone.a": torch.zeros(2, 3), "backbone.inv_freq": torch.ones(1)}
    settings = {"config": {"a": [1, {"b": None}], "c": "x"}}
    torch.save({"state_dict": state, "hyper_parameters": settings, "ema": {"shadow_params": [torch.ones(2, 3)]}}, saved)
    data = saved.getvalue()
    if draw.random() < 0.5:
        with zipfile.ZipFile(saved) as archive:
            pickled = next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))
        data = data.replace(pickled, draw.choice(CHANGES)(draw, pickled).ljust(len(pickled), b".")[: len(pickled)])
    else:
        data = draw.choice(CHANGES)(draw, data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "last.ckpt"
        path.write_bytes(data)
        said, read, weights = "", {}, {}
        try:
            read, weights = read_checkpoint(path)
        except UserError as error:
            said = str(error)
        assert said.isprintable()
        assert not said or said.startswith(str(path))
        assert isinstance(read, dict)
        assert all(isinstance(weight, torch.Tensor) for weight in weights.values())


def test_a_model_of_the_hub_is_fetched_or_said_to_be_absent(tmp_path, monkeypatch):
    asked = []

    def download(model, name, revision=None):
        asked.append((model, name, revision))
        if name in raised:
            raise raised[name]
        (tmp_path / name).write_text('{"model_type": "of the hub"}')
        return str(tmp_path / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    raised = {"model.safetensors": EntryNotFoundError("none"), "model.safetensors.index.json": EntryNotFoundError("no")}
    model = Published("author/model", "v1")
    assert model.config == {"model_type": "of the hub"}
    assert asked == [("author/model", "config.json", "v1")]
    with pytest.raises(UserError, match=r"author/model does not have model\.safetensors or"):
        _ = model.weights
    raised["x"] = LocalEntryNotFoundError("offline")
    with pytest.raises(UserError, match="x is not in the cache, and the hub cannot be reached"):
        fetched("author/model", "x")
    raised["x"] = ValueError("bad name\nand more")
    with pytest.raises(UserError, match=r"cannot download 'author/model' \(bad name\); pass a model"):
        fetched("author/model", "x")
    raised["x"] = ValueError(" ")  # the library raises errors without a message, too
    with pytest.raises(UserError, match=r"cannot download 'author/model' \(ValueError\); pass a model"):
        fetched("author/model", "x")
    (tmp_path / "config.json").write_text("[1")
    with pytest.raises(UserError, match=r"config\.json is not a JSON object"):
        _ = Published(str(tmp_path)).config
