"""Every experiment that ships validates, and those that fit a CPU train."""

import functools
import gzip
import math
import tomllib
from pathlib import Path

import pytest
from safetensors.torch import load_file

from atat_zoo import UserError
from atat_zoo import studies as study
from atat_zoo.cli.experiment_command import missing
from atat_zoo.data import corpora as corpora_module
from atat_zoo.data.build import build
from atat_zoo.data.shard_manifest import load as load_manifest
from atat_zoo.experiment import from_table, load, names
from atat_zoo.generation.model import Model
from atat_zoo.registry import Context
from atat_zoo.training import train
from benchmarks import paces, repeats, speculative
from tests import fixtures, talk

ROOT = Path(__file__).parents[1] / "experiments"
NAMES = [name for name in names() if not name.startswith(("base/", "corpora/", "studies/"))]
VARIANTS = sorted(path.stem for path in (ROOT / "base" / "variants").glob("*.toml"))
SIZES = ("owt-small", "lm1b", "wikitext103", "text8")
# What trains in its shape but for width and vocabulary: every variant on one text, and every text.
LARGE = [*(f"text8/{variant}" for variant in VARIANTS), *(f"{size}/atat" for size in SIZES[:3])]
BASELINES = sorted(path.stem for path in (ROOT / "baselines").glob("*.toml"))
CPU = [name for name in NAMES if "/" not in name and name not in (*BASELINES, "documented") and "_short" not in name]
CPU += [*(name for name in NAMES if name.startswith("documented/")), *(f"baselines/{name}" for name in BASELINES)]
VOCABULARIES = (50_257, 300)  # of GPT-2, and a small one where lm1b has that of BERT
STUDIES = sorted((ROOT / "studies").glob("*.toml"))
shipped = functools.cache(load)  # as it is in its file
SMALL = ["backbone.layers=1", "backbone.width=64", "tokenizer.vocabulary_size=512", "data.sequences=64"]
SMALL += [
    "train.steps=3",
    "train.batch_size=4",
    "evaluation.sequences=4",
    "evaluation.mask_samples=1",
    "train.log_every=1",
]
# A learned importance with and without its parts.
IMPORTANCE = {"importance", "importance_only", "no_importance", "no_curriculum", "curriculum_only"}


@pytest.mark.slow
def test_every_name_is_an_experiment_that_resolves_to_itself():
    assert {f"{size}/{variant}" for size in (*SIZES, "owt-8x256", "cpu") for variant in VARIANTS} | {*VARIANTS} < {
        *NAMES
    }
    for name in NAMES:
        made = shipped(name)
        assert made.name == name.replace("/", "-")
        assert from_table(made.to_table()) == made


def test_a_pair_is_its_variant_over_its_size_and_a_file_of_its_name_comes_first(tmp_path, monkeypatch):
    short, plain = (load(name, ["name=same"]) for name in ("lm1b/mdlm_short.toml", "lm1b/mdlm"))
    assert (short.train.batch_size, plain.train.batch_size, plain.data.packing) == (64, 512, "document")
    assert (short.parts["sampler"].name, load("lm1b/d3pm").parts["objective"].name) == ("ancestral", "d3pm")
    table = plain.to_table() | {key: short.to_table()[key] for key in ("train", "optimizer", "schedule")}
    assert from_table(table) == short
    assert load("mdlm", ["name=same"]) == load("cpu/mdlm", ["name=same"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('extends = "lm1b/mdlm"\n[train]\nsteps = 5')
    assert load("mine.toml", ["train.steps=1000000", "name=same"]) == plain
    (tmp_path / "lm1b").mkdir()
    (tmp_path / "lm1b" / "mdlm").write_text("seed = 3")
    assert load("lm1b/mdlm").seed == 3
    assert load("baselines/mdlm").parts["objective"].weight == "simple"


@pytest.mark.parametrize("wrong", ["lm1b/mdml", "lm1/mdlm", "mdml", "lm1b/", "base/lm1b/mdlm"])
def test_a_wrong_pair_is_told_the_sizes_and_the_variants(wrong):
    with pytest.raises(UserError) as caught:
        load(wrong)
    said = str(caught.value)
    assert said.startswith(f"unknown experiment {wrong!r}: no such file; did you mean ")
    assert "with the sizes baselines, cpu, " in said
    assert f"and the variants {', '.join(VARIANTS)}; more in baselines, documented, finetuning, guidance)" in said


@pytest.mark.parametrize("size", ["cpu", *SIZES])
def test_at_every_size_atat_writes_in_the_turns_it_learns_and_masks_by_importance_are_corrected(size):
    for name in sorted(IMPORTANCE):
        made = shipped(f"{size}/{name}")
        assert made.parts["objective"].correction == "horvitz_thompson", name
        assert getattr(made.parts["curriculum"], "sharpness", 0) <= 0.5, name
    atat, sets = (shipped(f"{size}/{name}").parts for name in ("atat", "sets"))
    assert atat["estimator"].reads == "z"
    assert atat["curriculum"].sharpness <= 0.5
    for made in (atat, sets):
        assert made["position_sets"].stride == made["sampler"].stride == shipped(f"{size}/atat").data.length / 4
    assert {key for key in atat if atat[key] != sets[key]} == {"estimator", "curriculum"}


@pytest.mark.parametrize("size", ["owt-small", "lm1b"])
def test_no_training_text_is_held_out_where_there_is_a_published_set(size):
    corpus = shipped(f"{size}/mdlm").parts["corpus"]
    assert corpus.validation
    assert corpus.test_share == 0


# Values of the ATAT report's system, on which its report, slides and reference card agree if none is named.
DOCUMENTED = """
estimator.layers = 2
estimator.width = 256
estimator.heads = 4
estimator.own_embedding = true
estimator.time_conditioning = true
masking.temperature = 1.0
target.use = "was_masked"
objective.importance_loss_weight = 0.1
curriculum.boundaries = [0.2, 0.8]  # the formula; elsewhere easy_fraction = hard_fraction = 0.3
curriculum.progress = "step"
curriculum.warmup_steps = 1000
sampler.order.uncertainty = {use = "entropy"}
sampler.order.first = "most_uncertain"
sampler.order.importance = true
sampler.tokens_per_step.min_steps = 10
sampler.tokens_per_step.added_steps = 10  # at every step: slides and reference card
sampler.tokens_per_step.max_steps = 100
sampler.tokens_per_step.threshold = 0.3  # as a fraction of log V; elsewhere in nats
sampler.stopping_rule.threshold = 0.3
optimizer.use = "adamw"
optimizer.learning_rate = 1e-4
schedule.warmup_steps = 1000
train.batch_size = 64
train.steps = 100_000
"""


def test_the_documented_system_has_the_values_of_its_documents():
    made = shipped("lm1b/documented_short").to_table()
    for kind, table in tomllib.loads(DOCUMENTED).items():
        assert contains(made[kind], table), kind


def contains(made, table):
    """Whether all entries of a nested table are in `made`."""
    return all(
        contains(made[key], each) if isinstance(each, dict) else made[key] == each for key, each in table.items()
    )


def test_the_documented_ones_are_as_the_report_has_them():
    found = {path.stem: shipped(f"documented/{path.stem}") for path in sorted((ROOT / "documented").glob("*.toml"))}
    assert all(made.parts["target"].name == "was_masked" for made in found.values())
    assert all(made.parts["estimator"].own_embedding for made in found.values())
    assert [name for name, made in found.items() if not made.parts["estimator"].reads_time] == ["without_time"]
    curricula = {name: made.parts["curriculum"] for name, made in found.items()}
    staged = {name: curriculum for name, curriculum in curricula.items() if curriculum.name == "three_stage"}
    assert [name for name, curriculum in staged.items() if curriculum.thresholds == (0.3, 0.7)] == ["thresholds"]
    # The easy stage has the full strength, at this number of steps; as a weight of the loss it is there throughout.
    for name, curriculum in staged.items():
        schedule = curriculum.build(Context(vocabulary_size=4, length=4, steps=450))
        strengths = [1, 1, 1, 1] if name == "loss_weight" else [0, -1, -1, 0]
        assert [schedule.strength(at) / curriculum.sharpness for at in (0.0, 0.04, 0.199, 0.201)] == strengths


def test_the_easy_stage_of_the_finetuning_has_the_full_strength():
    made = shipped("finetuning/importance")
    curriculum, steps = made.parts["curriculum"], made.train.steps
    schedule = curriculum.build(Context(vocabulary_size=4, length=4, steps=steps))
    strengths = [schedule.strength(step / steps) for step in range(steps)]
    assert strengths == [0, *[-0.5] * 19, *[0] * 60, *[0.5] * 20]


@pytest.fixture(scope="module", autouse=True)
def few_addresses():
    """A quarter of the addresses: a tokenizer is learned of them for every shape of shards."""
    few = corpora_module._speeches()[::4]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpora_module, "_speeches", lambda: few)
        yield


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return tmp_path_factory.mktemp("shards")


@pytest.mark.slow
@pytest.mark.parametrize("name", CPU)
def test_the_cpu_sized_train(name, shards, tmp_path):
    experiment = load(name, [*SMALL, f'data.root="{shards}"'])
    result = train(experiment, tmp_path / "run")
    assert result.finished
    assert len(result.folder.read_metrics()) == 3
    assert 1 < result.evaluation.nelbo.value < 2 * (result.evaluation.unigram_perplexity or 0)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    fixtures.write_all(folder, fixtures.paragraphs)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_the_large_train_on_real_text_in_their_shape_but_for_width_and_vocabulary(name, corpora, tmp_path, monkeypatch):
    monkeypatch.chdir(corpora)
    experiment = load(name, fixtures.NARROW)
    assert missing(experiment) == []
    contents = two_steps(experiment, tmp_path)
    assert (contents.length, contents.special) == (experiment.data.length, experiment.data.special_tokens)


@pytest.mark.slow
def test_one_trains_with_the_vocabulary_of_gpt2(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fixtures.write_all(tmp_path, fixtures.paragraphs, VOCABULARIES)
    # Its length is that of the large ones above; as many logits here would take ten seconds.
    contents = two_steps(load("owt-small/mdlm", [*fixtures.NARROW, "backbone.layers=1", "data.length=128"]), tmp_path)
    assert (contents.special, contents.vocabulary_size) == ("both", VOCABULARIES[0])


def two_steps(experiment, folder):
    """Train and return the shards' manifest."""
    contents = load_manifest(build(experiment))
    result = train(experiment, folder / "run")
    assert result.finished
    # The head starts at zero, where every token is as probable as any other; two steps lower that, and not by much.
    assert contents.vocabulary_size / 2 < result.evaluation.nelbo.value < contents.vocabulary_size
    return contents


@pytest.mark.slow
@pytest.mark.parametrize("streams", speculative.STREAMS)
def test_the_models_of_the_speculative_benchmark_train_and_draft(streams, shards, tmp_path):
    few = [*speculative.settings(streams), *SMALL, "evaluation.samples=0", f'data.root="{shards}"']
    assert train(load("sets", few), tmp_path / "run").finished
    model = Model.from_run(tmp_path / "run")
    passes, ratios = speculative.measure(model, streams, draft_length=3, texts=2, pairs=2)
    steps = model.sample(2, sampler=speculative.order(streams)).sample.nfe.double().mean()
    assert 1 <= passes < steps  # hardly trained, it predicts almost the same whatever it reads, so drafts are accepted
    assert [len(each) for each in ratios] == [2, 2]
    assert min(map(min, ratios)) > 0


@pytest.mark.slow
def test_the_paces_of_a_model_are_compared_with_the_same_number_of_tokens_in_each_step(shards, tmp_path):
    few = [*paces.SETTINGS, *SMALL, f'data.root="{shards}"']
    assert train(load(paces.EXPERIMENT, few), tmp_path / "run").finished
    nats, count = paces.measure(tmp_path / "run", steps=2, sequences=2, orders=1)
    assert nats.keys() == set(paces.PACES)
    assert len({float(each.sum()) for each in nats.values()}) == len(paces.PACES)  # with few steps, all differ
    assert paces.row([nats], count, "fixed") == [f"{math.exp(float(nats['fixed'].sum() / count.sum())):.1f}", ""]
    more = nats | {"cosine": nats["fixed"] + count * math.log(1.25)}
    assert paces.row([more, more], count, "cosine")[1] == "+25.0 % [+25.0, +25.0]"


@pytest.mark.slow
def test_the_models_of_the_repeated_text_read_it_so_often_and_train(shards, tmp_path):
    for arm, (name, *_) in repeats.ARMS.items():
        few = load(name, repeats.settings(arm, 16, 3))
        assert few.data.sequences * 16 == repeats.STEPS * few.train.batch_size
        assert few.train.steps == repeats.STEPS // (3 if arm == "autoregressive-short" else 1)
    name, own = repeats.ARMS["autoregressive-regular"][0], repeats.settings("autoregressive-regular", 16, 3)
    assert train(load(name, [*own, *SMALL, f'data.root="{shards}"']), tmp_path / "run").finished
    nats, count = repeats.measure(Model.from_run(tmp_path / "run"))
    assert 100 < math.exp(nats.sum() / count.sum()) < 512  # hardly more than the frequencies of tokens


@pytest.mark.slow
def test_the_finetunings_and_the_guidance_train(shards, tmp_path):
    few = [*SMALL, "evaluation.samples=0", f'data.root="{shards}"']
    source = train(load("finetuning/source", few), tmp_path / "source")
    assert source.finished
    for name in ("importance", "mdlm"):
        given = [*few, f'init_from="{tmp_path / "source"}"']
        assert train(load(f"finetuning/{name}", given), tmp_path / name).finished
    talk.write(tmp_path / "talk.jsonl")
    given = [*few, f'corpus.train=["{tmp_path / "talk.jsonl"}"]', f'init_from="{tmp_path / "source"}"']
    tuned = train(load("finetuning/chat", given), tmp_path / "chat")
    assert list(tuned.evaluation.bounds) == ["answers"]
    assert [found.task for found in tuned.tasks] == ["answers"]
    few += ["tokenizer.vocabulary_size=2048"]  # in which the words of its estimator have pieces
    assert train(load("guidance/war_and_peace", few), tmp_path / "guidance").finished


@pytest.mark.slow
def test_importance_that_nothing_reads_changes_no_weight_of_the_denoiser(shards, tmp_path):
    # So small a norm that every step is clipped.
    together, apart = (
        "train.max_grad_norm=0.01",
        "train.algorithms=[{use='gradient_clipping', clipping_type='per_module', clipping_threshold=0.01}]",
    )
    runs = {
        "mdlm": ["mdlm", together],
        "importance": ["documented/importance_only", apart],
        "coupled": ["documented/importance_only", "train.algorithms=[]", together],
    }
    weights = {}
    for name, (path, *clipping) in runs.items():
        experiment = load(path, [*SMALL, *clipping, f'data.root="{shards}"'])
        train(experiment, tmp_path / name)
        weights[name] = load_file(tmp_path / name / "model" / "model.safetensors")
    assert {key.partition(".")[0] for key in weights["importance"]} == {"backbone", "estimator"}
    assert {key.partition(".")[0] for key in weights["mdlm"]} == {"backbone"}
    assert weights["importance"]["estimator.out.weight"].any(), "it starts at zero, and is trained"
    differing = {name: [k for k, w in weights["mdlm"].items() if not w.equal(weights[name][k])] for name in runs}
    assert differing["importance"] == []
    # One norm of all gradients is what would couple them.
    assert differing["coupled"] != []


TRAINED = set()


@pytest.mark.slow
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_arms_of_a_study_train(path, shards, tmp_path, monkeypatch):
    """All validate, and of those with the same classes of parts or of text, in any study, one is trained."""
    # The second corpus, small.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpora/wikitext-2").mkdir(parents=True)
    for split in ("train", "valid", "test"):
        text = "\n".join(f" = {split} {i} = \n The {i * i} men @-@ at @-@ arms of {split} . " for i in range(200))
        with gzip.open(tmp_path / f"corpora/wikitext-2/wiki.{split}.tokens.gz", "wt") as file:
            file.write(text)
    made = study.load(path)
    for arm in made.arms:
        run = made.run(arm, made.seeds[arm][0])
        # Until the small text of a mixture ends; until all have, it would be repeated for each of the other.
        mixed = load(run.file, run.overrides).parts["corpus"].name == "mixture"
        short = ["corpus.stopping_strategy=first_exhausted"] if mixed else []
        # Without samples, as a study trains.
        more = [*SMALL, *short, "evaluation.samples=0", f'data.root="{shards}"']
        experiment = load(run.file, [*run.overrides, *more])
        classes = {kind: type(part) for kind, part in experiment.parts.items()}
        # What reads a text knows nothing of the parts that learn it.
        text = frozenset((kind, classes.pop(kind)) for kind in ("corpus", "tokenizer"))
        if not {text, learnt := frozenset(classes.items())} <= TRAINED:
            TRAINED.update({text, learnt})
            assert train(experiment, tmp_path / "runs" / arm).finished
