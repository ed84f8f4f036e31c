"""GUE's files and metrics, a classifier that finds what is planted, and the study's figures."""

import gzip
import json
import shutil
from importlib import resources

import numpy as np
import pytest
import torch
from atat_zoo_genomics import kmer_study as study_module
from atat_zoo_genomics.__main__ import main
from atat_zoo_genomics.alphabet import DNAModel, read_bases
from atat_zoo_genomics.gue import TASKS, Recipe, by_kmers, find, fitted, read, score
from atat_zoo_genomics.kmer_likelihood import kmer_nats
from atat_zoo_genomics.kmer_study import ARMS, Arm, Figure, study, table, trained
from click.testing import CliRunner

from atat_zoo.experiment import load
from atat_zoo.system.errors import UserError
from atat_zoo.testing.untrained_models import untrained

LENGTH, SMALL = 40, ("backbone.width=16", "backbone.layers=2", "data.length=40", "train.batch_size=16")


def planted(count, seed):
    """Return sequences and labels: those of class 1 have TATAAA somewhere."""
    draw = np.random.default_rng(seed)
    texts, labels = [], draw.integers(0, 2, count)
    for label in labels:
        text = "".join(draw.choice(list("ACGT"), LENGTH)).replace("TATAAA", "TATGAA")
        place = int(draw.integers(0, LENGTH - 6))
        texts.append(text[:place] + "TATAAA" + text[place + 6 :] if label else text)
    return texts, labels


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder with the core promoters' files."""
    for seed, (split, count) in enumerate({"train": 600, "dev": 100, "test": 200}.items()):
        texts, labels = planted(count, seed)
        lines = [f"{text},{label}\n" for text, label in zip(texts, labels, strict=True)]
        (tmp_path / f"{split}.csv").write_text("sequence,label\n" + "".join(lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def saved(data, run, name="plain"):
    """Write a run of an arm that has learned nothing, and return its model."""
    files = [f"corpus.{key}={json.dumps([str(data / f'{split}.csv')])}" for key, split in SPLITS.items()]
    path = resources.files("atat_zoo_genomics") / "experiments" / "promoters.toml"
    experiment = load(path, [*files, *SMALL, *ARMS[name].changes])
    return untrained(experiment, run)


SPLITS = {"train": "train", "validation": "dev", "test": "test"}
PROM = "prom_core_all"


@pytest.mark.parametrize("task", ["H3", "splice_reconstructed", "virus_covid"])
def test_a_task_is_found_in_each_place(task, tmp_path):
    last = TASKS[task].classes - 1
    for name in (f"{TASKS[task].folder}/dev.csv", f"{task}.dev.csv", "dev.csv"):
        for folder, end in (("plain", ""), ("packed", ".gz")):
            place = tmp_path / folder / f"{name}{end}"
            place.parent.mkdir(parents=True, exist_ok=True)
            with (gzip.open if end else open)(place, "wt") as file:
                file.write(f"sequence,label\nacgtR,0\nTT,{last}\n")
            assert find(task, tmp_path / folder, "dev") == place
            found = read(task, tmp_path / folder, "dev")
            assert (found.texts, found.labels.tolist()) == (["ACGTN", "TT"], [0, last])
            place.unlink()


def test_what_is_no_task_is_refused(tmp_path):
    for name, message in (
        ("prom_core", "unknown task 'prom_core'; did you mean 'prom_core_all'"),
        (PROM, "has none of"),
    ):
        with pytest.raises(UserError, match=message):
            find(name, tmp_path, "train")
    for content, said in {
        "sequence,label\nACGT,2\n": "line 2: the label '2' is not one of 0 to 1",
        "sequence,label\n": "has no examples",
        "sequence,label\nAC,1\n,1\n": "line 3: the sequence is empty; remove the row",
        "sequence;label\nAC;1\n": "line 1 has no column 'sequence'.* separate columns with commas",
    }.items():
        (tmp_path / "train.csv").write_text(content)
        with pytest.raises(UserError, match=said):
            read(PROM, tmp_path, "train")


def test_the_metrics_are_the_published_ones():
    found, wanted = np.array([0, 0, 0, 1, 1, 1, 1, 1]), np.array([0, 0, 1, 1, 1, 1, 0, 0])
    tp, tn, fp, fn = 3, 2, 2, 1
    mcc = (tp * tn - fp * fn) / np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert score("prom_core_all", found, wanted) == pytest.approx(mcc)
    f1 = [2 * tp / (2 * tp + fp + fn), 2 * tn / (2 * tn + fp + fn)]
    assert score("virus_covid", found, wanted) == pytest.approx(sum(f1) / 2)
    assert score("prom_core_all", np.zeros(8, np.int64), wanted) == 0


def test_6_mers_find_what_is_planted(data):
    train, dev, test = (read("prom_core_all", data, split) for split in ("train", "dev", "test"))
    assert score("prom_core_all", by_kmers("prom_core_all", train, dev)(test.texts), test.labels) > 0.9


@pytest.mark.slow
def test_a_network_finds_what_is_planted(data, tmp_path):
    model = saved(data, tmp_path / "run")
    train, test = (read("prom_core_all", data, split) for split in ("train", "test"))
    recipe = Recipe(epochs=8, batch_size=32, learning_rate=1e-2)
    state = {name: weight.clone() for name, weight in model.module.state_dict().items()}
    predict = fitted("prom_core_all", model, train, 3, recipe, trained=True)
    assert score("prom_core_all", predict(test.texts), test.labels) > 0.6
    for name, weight in model.module.state_dict().items():
        assert torch.equal(weight, state[name]), "the run itself does not learn"
    with pytest.raises(UserError, match="a sequence of 41 tokens, longer than the run's 40"):
        predict(["A" * 41])


def test_the_seed_decides(data, tmp_path):
    model = saved(data, tmp_path / "run")
    train = read("prom_core_all", data, "train")
    texts = [read_bases(text[: 20 + i]) for i, text in enumerate(train.texts[:20])]
    found = []
    for seed in (3, 3, 4):
        torch.manual_seed(len(found))
        predict = fitted("prom_core_all", model, train, seed, Recipe(epochs=1), trained=False)
        found.append(predict(texts).tolist() + predict(train.texts).tolist())
    assert found[0] == found[1] != found[2]


def test_the_command_prints_a_line_for_each(data, tmp_path):
    saved(data, tmp_path / "run")
    asked = f"gue --task {PROM} --data {data} --run {tmp_path / 'run'} --epochs 1".split()
    titles = ["6-mers, logistic regression", "the run, fine-tuned", "its network trained from scratch"]

    def ask(*words):
        return CliRunner().invoke(main, [*asked, *words], catch_exceptions=False).output

    lines = ask("--scratch", "--seed", "1", "--seed", "2").splitlines()
    assert [line.split("  ")[0] for line in lines] == titles
    assert all("mcc" in line for line in lines)
    on_test, on_dev = (json.loads(ask("--seed", "1", "--json", "--split", each))["scores"] for each in ("test", "dev"))
    assert [len(each) for each in on_dev.values()] == [1, 1]
    train, dev = (read(PROM, data, split) for split in ("train", "dev"))
    assert on_dev[titles[0]] == [score(PROM, by_kmers(PROM, train, dev)(dev.texts), dev.labels)]
    assert on_dev != on_test


def test_the_study_measures_all_on_the_same_sequences(data, tmp_path):
    """The test split's, with counts of the training split."""
    saved(data, tmp_path / "runs" / "plain")
    figures = {figure.title: figure for figure in study(data, tmp_path / "runs", ["plain"])}
    others = ["n-gram model of both neighbours", "gated convolutions"]
    assert list(figures) == [*(f"{k}-mers" for k in range(1, 9)), *others]
    texts = (read(PROM, data, split).texts for split in ("train", "test"))
    train, test = (np.array([DNAModel().encode(text) for text in each]) for each in texts)
    nats = list(kmer_nats(train, test, 7, 8))
    for k, each in enumerate(nats, 1):
        figure, beside = figures[f"{k}-mers"], (each - nats[5]).sum(1)
        assert figure.nats == pytest.approx(each.mean())
        assert figure.difference == pytest.approx(beside.mean() / LENGTH, abs=1e-12)
        assert figure.error == pytest.approx(beside.std(ddof=1) / LENGTH / np.sqrt(len(test)), rel=0.02, abs=1e-12)
        assert figure.quantity == "likelihood"
    network = figures["gated convolutions"]
    # An untrained head says nothing of V = 7 tokens.
    assert (network.nats, network.quantity) == (pytest.approx(np.log(7), abs=1e-5), "bound")
    assert network.difference == pytest.approx(network.nats - figures["6-mers"].nats)


def test_an_arm_is_trained_or_continued_or_taken_as_it_is(data, tmp_path, monkeypatch):
    done, folder = [], tmp_path / "runs" / "bell"

    def train(experiment, run, *, reporter):
        corpus = experiment.parts["corpus"]
        named = (corpus.train, corpus.validation, corpus.test)
        assert named == tuple((str(data / f"{split}.csv"),) for split in ("train", "dev", "test"))
        resume(run, reporter=reporter, kind="train")

    def resume(run, *, reporter, kind="resume"):
        done.append((kind, run, reporter))
        saved(data, run, "bell")

    monkeypatch.setattr("atat_zoo.training.train", train)
    monkeypatch.setattr("atat_zoo.training.resume", resume)
    for _ in range(2):
        assert trained("bell", data, folder, "a reporter").experiment.parts["mask_rates"].name == "logit_normal"
    assert done == [("train", folder, "a reporter")]
    shutil.rmtree(folder / "model")
    assert trained("bell", data, folder, "another").context.length == LENGTH
    assert done[1:] == [("resume", folder, "another")]


def test_the_table_says_what_is_a_bound():
    figures = [Figure("6-mers", "likelihood", 1.3456, 0.0, 0.0), Figure("a network", "bound", 1.3, -0.0456, 0.001)]
    assert table(figures).splitlines()[2:] == [
        "| 6-mers | 1.3456 |  |",
        "| a network | ≤ 1.3000 | -0.0456 [-0.0476, -0.0436] |",
    ]


def test_the_command_writes_a_page_with_the_table(data, tmp_path):
    saved(data, tmp_path / "runs" / "plain")
    asked = ["study", str(data), "--out", str(tmp_path / "runs"), "--arm", "plain", "--write", str(tmp_path / "a.md")]
    printed = CliRunner().invoke(main, asked, catch_exceptions=False).output
    found = (tmp_path / "a.md").read_text()
    assert found.splitlines()[-12:] == printed.splitlines()[-12:]
    assert found.startswith("# Masked diffusion against k-mer models\n")
    done = CliRunner().invoke(main, ["study", str(data), "--arm", "plian"])
    assert "unknown arm 'plian'; did you mean 'plain'" in str(done.exception)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARMS)
def test_every_arm_trains(name, data, tmp_path, monkeypatch):
    few = (*SMALL, "train.steps=3", "schedule.warmup_steps=1", "evaluation.sequences=20")
    monkeypatch.setitem(ARMS, name, Arm(ARMS[name].title, (*ARMS[name].changes, *few)))
    model = trained(name, data, tmp_path / "runs" / name)
    assert model.step == 3
    monkeypatch.setattr(study_module, "find", None)  # what is trained is not trained again
    assert trained(name, data, tmp_path / "runs" / name).step == 3
