"""GLUE: its files as they ship, its metrics, and a classification that beats the majority class."""

import json
import random
from pathlib import Path

import numpy as np
import pandas
import pytest
import transformers
from atat_zoo_transformers.__main__ import main
from atat_zoo_transformers.convert import import_model
from atat_zoo_transformers.glue import TASKS, Recipe, glue, read, scores
from click.testing import CliRunner
from models import small
from scipy.stats import pearsonr, spearmanr

from atat_zoo.errors import UserError

# The first line and a line of each table, as GLUE ships it, and what it says.
TABLES = {
    "cola": (None, 'gj04\t1\t\tThe "people keep.', ('The "people keep.',), 1),
    "sst2": ("sentence\tlabel", "a just peace \t1", ("a just peace ",), 1),
    "mrpc": ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t7\t8\tone\tother", ("one", "other"), 1),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tmain\tMSR\t2012\t1\tnone\tnone\tA plane\tAn air plane\t4.25",
        ("A plane", "An air plane"),
        4.25,
    ),
    "qqp": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "1\t2\t3\tNA\tWhy?\t0", ("NA", "Why?"), 0),
    "mnli": (
        "index\tpromptID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label",
        "0\t1\tfiction\tone\tother\tneutral\tcontradiction",
        ("one", "other"),
        2,
    ),
    "qnli": ("index\tquestion\tsentence\tlabel", "0\tWhy?\tSo.\tnot_entailment", ("Why?", "So."), 1),
    "rte": ("index\tsentence1\tsentence2\tlabel", "0\tone\tother\tentailment", ("one", "other"), 0),
    "wnli": ("index\tsentence1\tsentence2\tlabel", "0\tone\tother\t1", ("one", "other"), 1),
}
HUB = {"mnli": {"premise": "one", "hypothesis": "other", "label": 2, "idx": 0}}


@pytest.mark.parametrize("task", TASKS)
def test_tables_are_read_as_they_ship(task, tmp_path):
    first, line, texts, label = TABLES[task]
    for ending in ("train", *(f"dev{ending}" for ending in TASKS[task].held_out)):
        (tmp_path / f"{ending}.tsv").write_text("".join(f"{each}\n" for each in (first, line, line) if each))
        found = read(task, tmp_path, ending)
        assert found.texts == [texts, texts]
        assert found.labels.tolist() == [label, label]


@pytest.mark.parametrize("task", TASKS)
def test_the_hub_s_files_are_read(task, tmp_path):
    _, _, texts, label = TABLES[task]
    row = HUB.get(task, {**dict(zip(TASKS[task].texts, texts, strict=True)), "label": label, "idx": 0})
    for number in range(2):
        pandas.DataFrame([row] * 3).to_parquet(tmp_path / f"train-0000{number}-of-00002.parquet")
    found = read(task, tmp_path, "train")
    assert found.texts == [texts] * 6
    assert found.labels.tolist() == [label] * 6


def test_metrics_are_those_of_their_definitions():
    draw = np.random.default_rng(0)
    wanted, found = draw.integers(0, 2, 100).astype(float), draw.integers(0, 2, 100).astype(float)
    (tp, fp), (fn, tn) = [[((found == f) & (wanted == w)).sum() for w in (1, 0)] for f in (1, 0)]
    assert scores("mrpc", found, wanted) == pytest.approx(
        {"accuracy": (tp + tn) / 100, "f1": 2 * tp / (2 * tp + fp + fn)}
    )
    matthews = (tp * tn - fp * fn) / np.sqrt(float((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))
    assert scores("cola", found, wanted) == pytest.approx({"matthews": matthews})
    numbers, others = draw.normal(size=50), draw.normal(size=50).round(1)
    expected = {"pearson": pearsonr(numbers, others).statistic, "spearman": spearmanr(numbers, others).statistic}
    assert scores("stsb", numbers, others) == pytest.approx(expected)


@pytest.fixture
def reviews(tmp_path):
    """Data in the form of SST-2: a review is good by one word in ten, and three in five are."""
    draw = random.Random(0)
    for split, count in (("train", 400), ("dev", 200)):
        lines = ["sentence\tlabel"]
        for _ in range(count):
            good = draw.random() < 0.6
            words = draw.choices(("the", "nation", "of", "this", "all", "states", "with", "a", "people"), k=9)
            words.insert(draw.randrange(10), "peace" if good else "world")
            lines.append(f"{' '.join(words)}\t{int(good)}")
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.slow
def test_a_model_and_its_run_beat_the_majority_class_by_a_fifth(reviews):
    model, run = str(reviews / "model"), str(reviews / "run")
    small("bert", model)
    import_model(model, reviews / "run")
    found = glue("sst2", reviews, [model, run], Recipe(epochs=6, learning_rate=5e-3, length=32))
    assert 0.5 < found["majority"]["accuracy"] < 0.7
    assert found[model]["accuracy"] > found["majority"]["accuracy"] + 0.2
    # Without a training the run is the model.
    assert found[run] == found[model]


def test_pairs_numbers_and_two_held_out_files(tmp_path):
    model = str(tmp_path / "model")
    small("bert", model)
    for task, splits in (("stsb", ("train", "dev")), ("mnli", ("train", "dev_matched", "dev_mismatched"))):
        (tmp_path / task).mkdir()
        first, line, _, _ = TABLES[task]
        for split in splits:
            (tmp_path / task / f"{split}.tsv").write_text("\n".join([first, *[line] * 4]))
        found = glue(task, tmp_path / task, [model], Recipe(epochs=1, length=16))
        metrics = [name + ending for ending in TASKS[task].held_out for name in TASKS[task].metrics]
        assert list(found[model]) == metrics
    words = ["glue", "mnli", str(tmp_path / "mnli"), model, "--epochs", "1", "--length", "16", "--json"]
    done = CliRunner().invoke(main, words)
    assert json.loads(done.output)["majority"] == {"accuracy_matched": 1.0, "accuracy_mismatched": 1.0}


def test_texts_are_cut_to_what_a_model_reads_and_a_causal_model_is_padded(tmp_path):
    for split in ("train", "dev"):
        rows = "\n".join(f"{'the people of this nation ' * n}\t{n % 2}" for n in (40, 1, 30, 2))
        (tmp_path / f"{split}.tsv").write_text(f"sentence\tlabel\n{rows}")
    models = [str(tmp_path / name) for name in ("roberta", "gpt2")]
    for model in models:
        small(Path(model).name, model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(models[1])
    tokenizer.add_special_tokens({"pad_token": "<|other|>"})
    tokenizer.save_pretrained(models[1])
    found = glue("sst2", tmp_path, models, Recipe(epochs=1, length=128))
    assert [*found] == ["majority", *models]


def test_a_learning_rate_that_is_none_is_refused(tmp_path):
    done = CliRunner().invoke(main, ["glue", "sst2", str(tmp_path), "model", "--learning-rate", "-1"])
    assert done.exit_code == 2
    assert "-1" in done.output


@pytest.mark.parametrize(
    ("task", "table", "message"),
    [
        ("sts2", "", "there is no task 'sts2'; did you mean 'stsb'"),
        ("sst2", None, "has none of train.tsv"),
        ("sst2", "text\tlabel\na\t1\n", "is no table of sst2"),
        ("sst2", "sentence\tlabel\na\t7\n", "the label '7' is none of sst2's"),
        ("sst2", "sentence\tlabel\n", "has no examples"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(task, table, message, tmp_path):
    if table is not None:
        (tmp_path / "train.tsv").write_text(table)
    with pytest.raises(UserError, match=message):
        glue(task, tmp_path, ["model"], Recipe())
