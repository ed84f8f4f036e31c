"""GLUE: its files as they ship, how texts are framed, and all nine tasks by a tiny native network."""

import json
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from atat_zoo_glue.glue_files import PROBLEMS, Examples, absent, files_of, folder_of, read
from atat_zoo_glue.miniature import TABLES, TELLING, _line, write
from atat_zoo_glue.task import MAJORITY, NOTE, GlueTask, _averaged, _cut, _most_frequent, framed, splits_of
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo import Model, Zoo
from atat_zoo.evaluation.tasks import fine_tuning, require
from atat_zoo.system.errors import UserError
from atat_zoo.testing import cases
from tests.cli.terminal import printed
from tests.evaluation.making import make_run

# A line of each table, as GLUE ships it, and what it says.
LINES = {
    "cola": ('gj04\t1\t\tThe "people keep.', ('The "people keep.',), 1),
    "sst2": ("a just peace \t1", ("a just peace ",), 1),
    "mrpc": ("1\t7\t8\tone\tother", ("one", "other"), 1),
    "stsb": ("0\tmain\tMSR\t2012\t1\tnone\tnone\tA plane\tAn air plane\t4.25", ("A plane", "An air plane"), 4.25),
    "qqp": ("1\t2\t3\tNA\tWhy?\t0", ("NA", "Why?"), 0),
    "mnli": ("0\t1\tfiction\tone\tother\tneutral\tcontradiction", ("one", "other"), 2),
    "qnli": ("0\tWhy?\tSo.\tnot_entailment", ("Why?", "So."), 1),
    "rte": ("0\tone\tother\tentailment", ("one", "other"), 0),
    "wnli": ("0\tone\tother\t1", ("one", "other"), 1),
}
HUB = {"mnli": {"premise": "one", "hypothesis": "other", "label": 2, "idx": 0}}
FAST = {"epochs": 12, "learning_rate": 2e-2, "batch_size": 16, "length": 64}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    made = tmp_path_factory.mktemp("glue")
    make_run(made, "dit", "mdlm", length=64)
    write(made / "glue")
    return made


@pytest.fixture(scope="module")
def model(root):
    return Model.from_run(root / "dit", "cpu")


# Files


def test_what_is_absent_is_said_with_where_it_is_had(root, tmp_path):
    assert list(GlueTask(path=str(root / "glue")).absent()) == []
    (said,) = GlueTask(path=str(tmp_path)).absent()
    for problem in PROBLEMS:
        assert f"{tmp_path}/{problem}/train.tsv" in said
    assert "download GLUE from https://gluebenchmark.com/tasks or the dataset nyu-mll/glue" in said
    (tmp_path / "SST-2").mkdir()
    (tmp_path / "SST-2" / "train.tsv").touch()
    (said,) = absent(["sst2"], tmp_path)
    assert said.startswith(f"cannot find {tmp_path}/SST-2/dev.tsv, or Parquet files in their place; download")
    with pytest.raises(UserError, match=r"task glue .*: cannot find "):
        require([GlueTask(path=str(tmp_path))], SimpleNamespace())


def test_what_is_wrong_is_said_in_a_sentence(root, tmp_path):
    (tmp_path / "sst2").mkdir()
    for table, message in (
        (b"text\tlabel\na\t1\n", "is not a table of sst2"),
        (b"\xff", "is not a table of sst2"),
        (b"sentence\tlabel\na\t7\n", "the label '7' is not one of sst2's .*0, 1"),
        (b"sentence\tlabel\n", "does not contain any examples"),
    ):
        (tmp_path / "sst2" / "train.tsv").write_bytes(table)
        with pytest.raises(UserError, match=message):
            read("sst2", tmp_path, "train")
    for tasks, message in ((["sts2"], r"did you mean 'stsb'"), ([], "tasks is empty")):
        with pytest.raises(UserError, match=message):
            Zoo.load().spec("task", {"use": "glue", "tasks": tasks})
    assert folder_of("stsb", root / "glue").name == "STS-B"


def test_a_task_without_files_has_none(tmp_path):
    assert files_of("rte", tmp_path, "train") == []


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_texts_of_the_miniature_are_words(problem, root):
    words = {"the", "people", "of", "this", "a", "just", "with", "all", "states", *TELLING}
    for split in splits_of(problem):
        assert all({*text.split()} <= words for texts in read(problem, root / "glue", split).texts for text in texts)


def test_the_labels_of_the_miniature_come_three_two_and_one_times():
    for task, shares in (("rte", (3 / 5, 2 / 5)), ("mnli", (1 / 2, 1 / 3, 1 / 6))):
        _, head, labels = TABLES[task]
        drawn = Counter(_line(draw, head, labels, 0).rpartition("\t")[2] for draw in [random.Random(5)] * 3000)
        assert [drawn[label] / 3000 for label in labels] == pytest.approx(shares, abs=0.04)  # more than 4 deviations


def test_the_sentences_of_the_miniature_have_three_to_six_words():
    _, head, labels = TABLES["wnli"]
    rows = [_line(draw, head, labels, 0).split("\t") for draw in [random.Random(5)] * 300]
    assert {len(row[1].split()) for row in rows} == {3, 4, 5, 6}
    assert {len(row[2].split()) for row in rows} == {4, 5, 6, 7}  # and one that tells the label


# The contract of a task


@pytest.mark.parametrize("case", cases(distribution="atat-zoo-glue"), ids=str)
def test_conformance(case):
    case.run()


# Texts to tokens

words = st.text("abc", max_size=30)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=4), st.integers(8, 40), st.booleans())
def test_texts_are_framed_and_cut_at_their_ends(pairs, length, pair):
    tokenizer = SimpleNamespace(
        bos=7, eos=8, encode_batch=lambda texts: [[ord(c) - 97 for c in text] for text in texts]
    )
    fake = SimpleNamespace(tokenizer=tokenizer, context=SimpleNamespace(length=32, mask_id=9))
    texts = pairs if pair else [(a,) for a, _ in pairs]
    for row, given_ in zip(framed(fake, texts, length), texts, strict=True):
        assert len(row) <= min(length, 32)
        assert (row[0], row[-1]) == (7, 8)
        parts, uncut = _split(row[1:-1], 8), [[ord(c) - 97 for c in text] for text in given_]
        assert len(parts) == len(given_)
        assert all(part == whole[: len(part)] for part, whole in zip(parts, uncut, strict=True))
        short = [len(whole) - len(part) for part, whole in zip(parts, uncut, strict=True)]
        if any(short):
            assert len(row) == min(length, 32), "no more is cut than needed"
        if pair and any(short):  # the longer one is cut first
            cut = [len(part) for part, less in zip(parts, short, strict=True) if less]
            assert all(max(len(part) for part in parts) - n <= 1 for n in cut)


def _split(row, at):
    where = row.index(at) if at in row else None
    return [row] if where is None else [row[:where], row[where + 1 :]]


def test_without_ends_a_mask_stands_between_two_texts():
    tokenizer = SimpleNamespace(bos=None, eos=None, encode_batch=lambda texts: [[1] * len(text) for text in texts])
    fake = SimpleNamespace(tokenizer=tokenizer, context=SimpleNamespace(length=32, mask_id=9))
    assert framed(fake, [("ab", "c"), ("", "")], 16) == [[1, 1, 9, 1], [9]]
    assert framed(fake, [("ab",), ("",)], 16) == [[1, 1], [9]]


def test_trainings_are_from_the_seed_and_the_next_ones(root, model, monkeypatch):
    seeds = []

    def predicts(*_, seed, outputs, **how):
        seeds.append(seed)
        return lambda rows: torch.zeros(len(rows), outputs)

    monkeypatch.setattr(fine_tuning, "fine_tuned", predicts)
    task = GlueTask(path=str(root / "glue"), tasks=("rte", "mnli"), seeds=3)
    found = task.measure(model, root / "dit", seed=7)
    assert seeds == [7, 7, 8, 8, 9, 9]
    majority = found.pop(MAJORITY)
    names = ["rte accuracy", "mnli accuracy_matched", "mnli accuracy_mismatched", "average"]
    assert list(found) == names
    assert [score.quantity for score in found.values()] == ["accuracy"] * 3 + ["mean of the tasks' scores"]
    assert {(score.items, score.of) for score in found.values()} == {(3, "trainings from seed 7")}
    one = GlueTask(path=str(root / "glue"), tasks=("mnli",)).measure(model, root / "dit", seed=7)
    assert {(score.items, score.of, score.stderr) for score in one.values()} == {(1, "", None)}
    train, *held_out = (read("mnli", root / "glue", split).labels for split in splits_of("mnli"))
    usual = max(set(train), key=train.count)
    wanted = np.mean([np.equal(labels, usual).mean() for labels in held_out])
    assert one[MAJORITY].value == pytest.approx(wanted) != majority.value


def test_the_majority_is_the_most_frequent_class_or_the_mean():
    def of(problem, *labels):
        train, held_out = (Examples([("x",)] * len(each), list(each)) for each in (labels, (0.0, 1.0, 1.0)))
        (found,) = _most_frequent(problem, [train, held_out])
        return found.tolist()

    assert of("rte", 0.0, 1.0, 0.0) == [0.0] * 3
    assert of("rte", 0.0, 1.0) == [0.0] * 3  # of classes alike the first
    assert of("stsb", 1.0, 2.0, 2.0, 5.0) == [2.5] * 3


def test_the_average_is_over_tasks_and_the_longer_text_keeps_the_odd_token():
    assert _averaged({"mrpc": {"a": 1.0, "b": 0.5}, "rte": {"c": 0.25}})["average"] == 0.5
    assert [_cut([9, 9], 5), _cut([9, 1], 5), _cut([1, 9], 5), _cut([9], 5)] == [[3, 2], [4, 1], [1, 4], [5]]


# All nine


@pytest.mark.slow
def test_all_nine_tasks_are_measured_with_their_average_over_seeds(root, model):
    task = GlueTask(path=str(root / "glue"), seeds=2, **FAST)
    calls = []
    found = task.measure(model, root / "dit", seed=3, progress=lambda *done: calls.append(done))
    names = [f"{p} {m}{e}" for p, spec in PROBLEMS.items() for e in spec.held_out for m in spec.metrics]
    assert list(found) == [*names, "average", MAJORITY]
    assert calls[-1] == (2 * 9 * 12 * 4,) * 2
    assert [done for done, _ in calls] == list(range(1, len(calls) + 1))
    for each in list(found.values())[:-1]:
        assert each.items == 2
        assert each.stderr == pytest.approx(np.std(each.sums, ddof=1) / 2**0.5)
    by_task = [[found[name].value for name in names if name.split()[0] == problem] for problem in PROBLEMS]
    assert found["average"].value == pytest.approx(np.mean([np.mean(values) for values in by_task]))
    assert found["average"].value > found[MAJORITY].value + 0.15
    assert json.dumps({name: each.to_table() for name, each in found.items()})
    one = GlueTask(path=str(root / "glue"), tasks=("rte",), **FAST).measure(model, root / "dit", seed=3)
    assert one["average"].value == one["rte accuracy"].value == found["rte accuracy"].sums[0]


def test_what_the_scores_depend_on(root, tmp_path):
    write(tmp_path)
    one, other = GlueTask(path=str(root / "glue")).inputs(None), GlueTask(path=str(tmp_path)).inputs(None)
    assert one == other
    assert len(one) == 19
    (Path(tmp_path) / "RTE" / "dev.tsv").write_text("changed")
    assert {name for name in one if one[name] != GlueTask(path=str(tmp_path)).inputs(None)[name]} == {"RTE/dev.tsv"}


def test_the_command_prints_the_scores_and_what_published_ones_differ_in(root, atat, monkeypatch):
    monkeypatch.chdir(root)
    task = "{use = 'glue', tasks = ['rte'], epochs = 1}"
    out = printed(atat, "eval", "dit", "--task", task)
    assert all(said in " ".join(out.split()) for said in ("rte accuracy", MAJORITY, NOTE))
    assert out.endswith(printed(atat, "eval", "dit", "--task", task)), "what was measured is read"


@pytest.mark.parametrize("problem", PROBLEMS)
def test_tables_are_read_as_they_ship_and_as_the_hub_has_them(problem, tmp_path):
    (folder, first, _), (line, texts, label) = TABLES[problem], LINES[problem]
    (tmp_path / folder).mkdir()
    for split in splits_of(problem):
        (tmp_path / folder / f"{split}.tsv").write_text("".join(f"{each}\r\n" for each in (first, line, line) if each))
        assert read(problem, tmp_path, split) == Examples([texts, texts], [label, label])
    row = HUB.get(problem, {**dict(zip(PROBLEMS[problem].texts, texts, strict=True)), "label": label, "idx": 0})
    (tmp_path / "hub" / problem).mkdir(parents=True)
    for number in range(2):
        pandas.DataFrame([row] * 3).to_parquet(tmp_path / "hub" / problem / f"train-0000{number}-of-00002.parquet")
    assert read(problem, tmp_path / "hub", "train") == Examples([texts] * 6, [label] * 6)


def test_lines_that_are_left_out_and_signs_that_end_none(tmp_path):
    """A line that lacks a column, or has a tab too many; a carriage return in a text; a byte order mark."""
    (tmp_path / "QQP").mkdir()
    right = LINES["qqp"][0]
    lines = [TABLES["qqp"][1], f"{right}\t7", "1\t2\t3\tone", "1\t2\t3\ta\rb\t\t1", right, ""]
    (tmp_path / "QQP" / "train.tsv").write_text("\r\n".join(lines), encoding="utf-8-sig", newline="")
    assert read("qqp", tmp_path, "train") == Examples([("a\rb", ""), ("NA", "Why?")], [1, 0])
