"""Fine-tuning: the shipped experiment at a small size, LoRA, and what may run code."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from atat_zoo_checkpoints.model_export import export_run
from atat_zoo_checkpoints.model_import import import_model
from atat_zoo_transformers.model_description import TRUST
from atat_zoo_transformers.transformers_backbone import TransformersBackbone
from atat_zoo_transformers.transformers_module import restored
from models import lines, small, word_pieces

from atat_zoo import Model
from atat_zoo.evaluation.likelihood import evaluate_run
from atat_zoo.experiment import load
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.registry import Context
from atat_zoo.system.errors import UserError
from atat_zoo.training import resume, train

EXPERIMENT = str(Path(__file__).parents[1] / "experiments" / "bert-mdlm.toml")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with text and a BERT that was trained on it as BERT is, at one mask rate."""
    root = tmp_path_factory.mktemp("bert")
    (root / "text.txt").write_text("\n".join(lines(1200)))
    small("bert", root / "untrained")
    _train(root, "mlm", root / "untrained", "objective.use=mlm", "train.steps=80", "optimizer.learning_rate=0.01")
    export_run(root / "mlm", root / "bert")
    return root


def _train(root, out, model, *overrides):
    small_size = [f'corpus.train=["{root}/text.txt"]', 'corpus.document="line"', f"data.root={root}/shards"]
    small_size += ["data.length=32", "train.batch_size=16", "train.evaluate_every=0", "train.ema_decay=0.9"]
    small_size += ["evaluation.samples=0", "evaluation.sequences=64", "schedule.warmup_steps=5"]
    small_size += [f"tokenizer.model={model}", f"backbone.model={model}"]
    return train(load(EXPERIMENT, [*small_size, *overrides]), root / out)


@pytest.mark.slow
def test_fine_tuning_lowers_the_bound_of_a_bert_and_gives_a_bert(root):
    result = _train(root, "tuned", root / "bert", "train.steps=60", "optimizer.learning_rate=0.005")
    table = [f'corpus.train=["{root}/text.txt"]', f"data.root={root}/shards", "data.length=32", 'corpus.use="files"']
    import_model(str(root / "bert"), root / "before", [*table, 'corpus.document="line"'])
    before = Model.from_run(root / "before")
    first = evaluate_run(before, root / "before", result.model.experiment.evaluation, seed=17)
    assert first.sequences == result.evaluation.sequences > 20
    assert result.evaluation.nelbo.value < 0.9 * first.nelbo.value
    export_run(root / "tuned", root / "again")
    again = transformers.AutoModelForMaskedLM.from_pretrained(root / "again").eval()
    ids = torch.randint(5, 80, (1, 20), generator=torch.Generator().manual_seed(0))
    for how in ("cpu", "spread"):
        tuned = Model.from_run(root / "tuned", how)
        backbone = tuned.module.backbone
        with torch.no_grad():
            difference = again(ids).logits - backbone.head(backbone(ids.to(tuned.device))).cpu()
        assert difference[..., [i for i in range(backbone.V) if i != backbone.mask_id]].abs().max() < 1e-5


@pytest.mark.slow
def test_a_run_that_continues_from_another_is_exported_with_the_special_tokens(root):
    import_model(str(root / "bert"), root / "imported")
    begun = [f"init_from={root}/imported", f'corpus.train=["{root}/text.txt"]', f"data.root={root}/shards"]
    small_size = ['corpus.document="line"', "train.steps=2", "train.batch_size=16", "evaluation.samples=0"]
    train(load(str(root / "imported" / "resolved.toml"), [*begun, "corpus.use=files", *small_size]), root / "continued")
    export_run(root / "continued", root / "exported")
    first, last = (transformers.AutoTokenizer.from_pretrained(root / each) for each in ("bert", "exported"))
    assert "mask_token" in first.special_tokens_map
    assert last.special_tokens_map == first.special_tokens_map


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_a_resumed_training_ends_with_the_same_weights(root, rank):
    _train(root, f"whole-{rank}", root / "bert", "train.steps=8", "train.save_every=4", f"backbone.lora_rank={rank}")
    run = root / f"whole-{rank}"
    weights = (run / "model" / "model.safetensors").read_bytes()
    newest = sorted(run.glob("checkpoints/*8*"))
    assert newest
    for path in [*newest, run / "model"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert RunFolder(run).last_checkpoint().step == 4
    resume(run)
    assert (run / "model" / "model.safetensors").read_bytes() == weights


CODE = """
import pathlib, torch, transformers
pathlib.Path(__file__).with_name("ran").touch()

class DiffConfig(transformers.PretrainedConfig):
    model_type = "mdlm_like"

class Diff(transformers.PreTrainedModel):
    config_class = DiffConfig
    def __init__(self, config):
        super().__init__(config)
        self.embedded = torch.nn.Embedding(config.vocab_size, 16)
        last = torch.nn.Linear(16, config.vocab_size)
        self.output = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), last)
        self.post_init()
    def forward(self, input_ids, timesteps=None):
        assert timesteps.shape == input_ids.shape[:1]
        hidden = self.embedded(input_ids)
        return transformers.modeling_outputs.MaskedLMOutput(logits=self.output(hidden + hidden.mean(1, keepdim=True)))
    def get_input_embeddings(self):
        return self.embedded
"""


# MDLM's checkpoints, LLaDA and Dream call themselves so; only the first is given a time.
@pytest.fixture(params=["AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModel"])
def foreign(tmp_path, request, monkeypatch):
    """A model that comes with its own code, which leaves a file where it runs."""
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / f"foreign_{request.param}"
    folder.mkdir()
    tokenizer = word_pieces()
    auto = {"AutoConfig": "diff.DiffConfig", request.param: "diff.Diff"}
    config = {"model_type": "mdlm_like", "vocab_size": tokenizer.get_vocab_size(), "auto_map": auto}
    (folder / "config.json").write_text(json.dumps(config))
    timed = request.param == "AutoModelForMaskedLM"
    code = (
        CODE
        if timed
        else CODE.replace(", timesteps=None", "").replace("assert timesteps.shape", "assert input_ids.ndim == 2 #")
    )
    (folder / "diff.py").write_text(code)
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("asked", "environment", "message"),
    [
        ([], "1", "runs its author's code.* set trust_remote_code = true"),
        (["backbone.trust_remote_code=true"], "0", f"runs code from the author.* set {TRUST}=1"),
    ],
)
def test_code_of_others_runs_only_if_both_agree(foreign, asked, environment, message, monkeypatch, tmp_path):
    monkeypatch.setenv(TRUST, environment)
    with pytest.raises(UserError, match=message):
        import_model(str(foreign), tmp_path / "run", ["backbone.use=transformers", *asked, "data.length=32"])
    assert not list(tmp_path.rglob("ran"))


def test_a_model_with_its_own_code_writes_text_once_it_is_trusted(foreign, monkeypatch, tmp_path):
    monkeypatch.setenv(TRUST, "1")
    config = transformers.AutoConfig.from_pretrained(foreign, trust_remote_code=True)
    (auto,) = config.auto_map.keys() - {"AutoConfig"}
    torch.manual_seed(0)
    own = getattr(transformers, auto).from_config(config, trust_remote_code=True).eval()
    own.save_pretrained(foreign)
    fetch, revisions = transformers.dynamic_module_utils.get_cached_module_file, []

    def fetched(*names, **options):
        revisions.append(options["revision"])
        return fetch(*names, **options)

    monkeypatch.setattr(transformers.dynamic_module_utils, "get_cached_module_file", fetched)
    asked = ["backbone.trust_remote_code=true", "backbone.head=output.2", "data.length=32"]
    with pytest.raises(UserError, match=r"choose a backbone with backbone\.use="):
        import_model(str(foreign), tmp_path / "run", asked)
    import_model(str(foreign), tmp_path / "run", ["backbone.use=transformers", *asked])
    assert list(tmp_path.rglob("ran"))
    made = Model.from_run(tmp_path / "run")
    assert set(revisions) == {made.experiment.parts["backbone"].revision}
    assert len(made.sample(2, sampler="klass", length=16).texts) == 2
    ids = torch.randint(5, 80, (2, 20), generator=torch.Generator().manual_seed(0))
    backbone = made.module.backbone
    predicted = [i for i in range(backbone.V) if i != backbone.mask_id]
    with torch.no_grad():
        wanted = own(ids, **({"timesteps": torch.zeros(2)} if auto == "AutoModelForMaskedLM" else {})).logits
        assert (backbone.head(backbone(ids)) - wanted)[..., predicted].abs().max() < 1e-5
    with pytest.raises(UserError, match="does not support custom attention masks"):
        backbone(ids, attention="causal")
    monkeypatch.delenv(TRUST)
    with pytest.raises(UserError, match=f"set {TRUST}=1"):
        Model.from_run(tmp_path / "run")
    monkeypatch.setenv(TRUST, "1")
    with (foreign / "diff.py").open("a") as code:
        code.write("pathlib.Path(__file__).with_name('other').touch()")
    with pytest.raises(UserError, match=r"does not match the code .* which has changed"):
        Model.from_run(tmp_path / "run")
    assert not list(tmp_path.rglob("other"))


def test_the_revision_of_a_model_with_code_is_its_commit(monkeypatch, tmp_path):
    monkeypatch.setenv(TRUST, "1")
    for key, value in (("HF_HUB_OFFLINE", True), ("HF_HUB_CACHE", str(tmp_path))):
        monkeypatch.setattr(huggingface_hub.constants, key, value)
    commit, repository = "c" * 40, tmp_path / "models--author--model"
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    config = json.dumps({"model_type": "mdlm_like"})
    asked = {"model": "author/model", "trust_remote_code": True, "mask_id": 1, "config": config}
    for revision in (None, "main", commit):
        assert TransformersBackbone(**asked, revision=revision).revision == commit
    with pytest.raises(UserError, match="cannot be loaded"):
        TransformersBackbone(**asked, revision="gone")


def test_a_model_is_described_at_its_revision(monkeypatch, tmp_path):
    for key, value in (("HF_HUB_OFFLINE", True), ("HF_HUB_CACHE", str(tmp_path))):
        monkeypatch.setattr(huggingface_hub.constants, key, value)
    repository = tmp_path / "models--author--model"
    (repository / "refs").mkdir(parents=True)
    for revision, commit, size in (("main", "c" * 40, 7), ("old", "d" * 40, 8)):
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "refs" / revision).write_text(commit)
        config = json.dumps({"model_type": "bert", "vocab_size": size})
        (repository / "snapshots" / commit / "config.json").write_text(config)
    for revision, size in ((None, 7), ("main", 7), ("old", 8), ("d" * 40, 8)):
        spec = TransformersBackbone(model="author/model", revision=revision, mask_id=1)
        assert spec.settings["vocab_size"] == size


def test_code_of_another_repository_does_not_run(foreign, monkeypatch):
    monkeypatch.setenv(TRUST, "1")
    path = foreign / "config.json"
    path.write_text(path.read_text().replace("diff.DiffConfig", "other/code--diff.DiffConfig"))
    with pytest.raises(UserError, match="runs code from a different repository, other/code"):
        TransformersBackbone(model=str(foreign), trust_remote_code=True)


def test_nothing_is_asked_on_the_terminal(foreign, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("builtins.input", lambda words: asked.append(words) or "n")
    path = foreign / "config.json"
    path.write_text(path.read_text().replace("mdlm_like", "t5").replace("AutoModelForMaskedLM", "AutoModelForCausalLM"))
    with pytest.raises(UserError, match="cannot be loaded"):
        import_model(str(foreign), tmp_path / "run", ["data.length=32"])
    assert not asked


def test_gradients_are_the_same_when_activations_are_computed_again(tmp_path):
    small("bert", tmp_path)
    found = []
    for checkpoint in (False, True):
        spec = TransformersBackbone(model=str(tmp_path), checkpoint_activations=checkpoint)
        context = Context(vocabulary_size=80, length=16, counts=np.ones(80, np.int64))
        module = spec.build(context).train()
        module.head(module(torch.arange(16)[None] + 5)).square().mean().backward()
        found.append([p.grad for p in module.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["bert", "modernbert", "gpt2"])
def test_nothing_in_a_training_or_an_export_is_drawn_from_the_global_generator(name, tmp_path):
    small(name, tmp_path)
    path = tmp_path / "config.json"
    said = {key: value for key, value in json.loads(path.read_text()).items() if "drop" not in key}
    path.write_text(json.dumps(said))  # the architecture's own rates, which a config.json may omit
    spec = TransformersBackbone(model=str(tmp_path), mask_id=4)
    module = spec.build(Context(vocabulary_size=80, length=16, counts=np.ones(80, np.int64))).train()
    tokens = torch.arange(16)[None] + 5
    assert torch.equal(module(tokens), module(tokens))
    state = torch.get_rng_state()
    restored(module)
    assert torch.equal(torch.get_rng_state(), state)
