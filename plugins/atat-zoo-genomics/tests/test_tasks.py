"""GUE and the Genomic Benchmarks as tasks: what they find, of which files, and what is said where these are absent."""

import numpy as np
import pytest
import torch
from atat_zoo_genomics import genomic_tasks, gue
from atat_zoo_genomics.genomic_tasks import BENCHMARKS, GenomicBenchmarksTask, GueTask
from atat_zoo_genomics.gue import TASKS
from test_measured import planted, saved

from atat_zoo.system.errors import UserError

FAST = {"epochs": 6, "batch_size": 32, "learning_rate": 1e-2}


def benchmarks(root, name, train=300, test=120, **options):
    """Write a data set, and return the task that has it alone."""
    write_benchmarks(root, name, train, test)
    return GenomicBenchmarksTask(path=str(root), only=(name,), **options)


@pytest.fixture
def model(tmp_path):
    (tmp_path / "run").mkdir()
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.csv").write_text("sequence,label\nACGT,0\n")
    return saved(tmp_path, tmp_path / "run")


def gue_files(root, name):
    for seed, (split, count) in enumerate({"train": 300, "test": 120}.items()):
        path = root / TASKS[name].folder / f"{split}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [f"{text},{label}\n" for text, label in zip(*planted(count, seed), strict=True)]
        path.write_text("sequence,label\n" + "".join(rows))


@pytest.mark.slow
def test_what_is_planted_is_found_in_five_folds(model, tmp_path):
    name = "human_nontata_promoters"
    found = benchmarks(tmp_path / "data", name, **FAST).measure(model, tmp_path / "run", seed=3)
    assert list(found) == [f"{name} test", f"{name} left out", "average"]
    assert found["average"].value == found[f"{name} test"].value > 0.75
    assert found[f"{name} left out"].value > 0.75
    assert all(each.items == 5 for each in found.values())


def test_each_training_sequence_is_left_out_once_and_no_fold_trains_on_it(model, tmp_path, monkeypatch):
    """The 26 sequences divide into folds of 6, 5, 5, 5 and 5; labels tell them apart."""
    name = "human_enhancers_cohn"
    task = benchmarks(tmp_path / "data", name, train=26, test=7, epochs=7, batch_size=5, learning_rate=0.5)
    trained, asked, how, calls = [], [], [], []

    def fine_tuned(of, rows, labels, recipe, *, outputs, seed, attends):
        assert of is model
        trained.append([tuple(row) for row in rows])
        how.append((recipe.epochs, recipe.batch_size, recipe.learning_rate, outputs, seed, attends))
        # The places of a binding site tell the classes apart, so a label is of its own sequence.
        assert labels.tolist() == [int("TATAAA" in model.tokenizer.decode(row)) for row in rows]
        return lambda rows: asked.append([tuple(row) for row in rows]) or torch.zeros(len(rows), outputs)

    monkeypatch.setattr("atat_zoo.evaluation.tasks.fine_tuning.fine_tuned", fine_tuned)
    found = task.measure(model, tmp_path / "run", seed=3, progress=lambda *done: calls.append(done))
    assert how == [(7, 5, 0.5, 2, 3 + fold, False) for fold in range(5)]
    assert calls == [(fold, 5) for fold in range(1, 6)]
    left_out, tests = asked[::2], asked[1::2]
    everything = sorted(row for fold in left_out for row in fold)
    assert len(everything) == len(set(everything)) == 26
    assert sorted(map(len, left_out)) == [5, 5, 5, 5, 6]
    assert all(sorted(rest + fold) == everything for rest, fold in zip(trained, left_out, strict=True))
    assert all(test == tests[0] for test in tests)
    share = np.mean([not label for label in planted(7, 1)[1]])
    assert found[f"{name} test"].value == pytest.approx(share)  # class 0 is the folder `negative`
    left = [np.mean(["TATAAA" not in model.tokenizer.decode(row) for row in fold]) for fold in left_out]
    assert found[f"{name} left out"].value == pytest.approx(np.mean(left))
    assert {found[key].quantity for key in found} == {"accuracy", "mean of the datasets' scores"}
    assert task.measure(model, tmp_path / "run", seed=3) == found
    assert trained[5:] == trained[:5]
    task.measure(model, tmp_path / "run", seed=4)
    assert trained[10:] != trained[:5]


def test_gue_trains_a_head_for_each_seed_by_the_recipe(model, tmp_path, monkeypatch):
    names, how, calls = ("tf_0", "virus_covid"), [], []
    for name in names:
        gue_files(tmp_path / "GUE", name)

    def fitted(name, of, train, seed, recipe, *, trained):
        how.append((name, of is model, len(train.texts), seed, tuple(recipe), trained))
        return lambda texts: (np.arange(len(texts)) + seed) % 2

    monkeypatch.setattr(gue, "fitted", fitted)
    task = GueTask(path=str(tmp_path / "GUE"), only=names, seeds=2, epochs=7, batch_size=5, learning_rate=0.5)
    assert list(task.absent()) == []
    assert set(task.inputs(None)) == {f"{name}.{split}" for name in names for split in ("train", "test")}
    found = task.measure(model, tmp_path / "run", seed=3, progress=lambda *done: calls.append(done))
    assert how == [(name, True, 300, seed, (7, 5, 0.5), True) for seed in (3, 4) for name in names]
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    labels, every = planted(120, 1)[1], []
    for name, metric in zip(names, ("mcc", "f1"), strict=True):
        every.append(np.mean([gue.score(name, (np.arange(120) + seed) % 2, labels) for seed in (3, 4)]))
        assert found[f"{name} {metric}"].value == pytest.approx(every[-1])
    assert found["average"].value == pytest.approx(np.mean(every))
    quantities = ["Matthews' correlation", "F1, mean over classes", "mean of the datasets' scores"]
    assert [each.quantity for each in found.values()] == quantities
    assert all(each.items == 2 for each in found.values())


def test_what_is_absent_is_said_with_where_it_is_had(tmp_path, monkeypatch):
    (said,) = GenomicBenchmarksTask(path=str(tmp_path)).absent()
    assert all(
        f"{tmp_path}/{name}/{split} has 0 class folders" in said for name in BENCHMARKS for split in ("train", "test")
    )
    assert "download the datasets with the package genomic-benchmarks" in said
    one, other = GueTask(path=str(tmp_path), only=("H3",)).absent()
    assert "has none of EMP/H3/train.csv" in one
    assert "download GUE from github.com/MAGICS-LAB/DNABERT_2" in other
    monkeypatch.setattr(genomic_tasks, "find_spec", lambda name: None)
    assert "scikit-learn" in next(iter(GueTask(path=str(tmp_path), only=("H3",)).absent()))


def test_mistakes(model, tmp_path):
    with pytest.raises(ValueError, match="unknown dataset 'tf_9'; did you mean 'tf_"):
        GueTask(only=("tf_9",))
    name = "demo_human_or_worm"
    task = benchmarks(tmp_path, name, train=4, test=3)
    with pytest.raises(UserError, match="has 4 sequences for folds = 5"):
        task.measure(model, tmp_path / "run", seed=0)
    (tmp_path / name / "train" / "negative" / "x.txt").touch()
    with pytest.raises(UserError, match=r"x\.txt contains no sequence"):
        task.measure(model, tmp_path / "run", seed=0)
    (tmp_path / name / "train" / "negative" / "x.txt").write_text("AC-T")
    with pytest.raises(UserError, match=r"x\.txt, line 1: '-' is not a base or"):
        task.measure(model, tmp_path / "run", seed=0)


def write_benchmarks(root, name, train=300, test=120):
    """Write a data set as the package genomic-benchmarks does: a folder for each class, a file for each sequence."""
    for seed, (split, count) in enumerate({"train": train, "test": test}.items()):
        for number, (text, label) in enumerate(zip(*planted(count, seed), strict=True)):
            kind = ("negative", "positive", "third")[number % 3 if BENCHMARKS[name] == 3 else label]
            file = root / name / split / kind / f"{number}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


def test_three_classes_are_numbered_by_their_names_and_scores_are_of_the_files(model, tmp_path):
    name = "human_ensembl_regulatory"
    task = benchmarks(tmp_path, name, train=30, test=9, epochs=1)
    assert list(task.absent()) == []
    rows, labels = task._read(model, name, "test")
    assert labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert all(len(row) == 40 for row in rows)
    before = task.inputs(None)
    assert task.inputs(None) == before
    next(iter((tmp_path / name / "test").glob("*/*.txt"))).write_text("ACGT")
    assert task.inputs(None) != before
