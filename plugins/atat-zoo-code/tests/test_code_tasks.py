"""The tasks: which lines are removed, what a model is given, and what the scores are."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from atat_zoo_code import code_tasks
from atat_zoo_code.code_tasks import LineInfillingTask, TokenClassesTask, band, greedy, row_of, sides_of
from atat_zoo_code.source_tokens import CLASSES, character_classes, parses
from code_models import FILES, NAMES, untrained
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.generation.text_generator import TextGenerator
from atat_zoo.registry import Zoo, problems_of
from atat_zoo.registry.spec import evolve, unstructure
from atat_zoo.system.errors import UserError

BOTH, LEFT = "both sides", "left side"
WINDOW, BEFORE = 126, 63
TASK = LineInfillingTask(lines=24)
NEEDS = {"combination": {"use": "combination", "order": {"use": "left_to_right"}}}


@pytest.fixture(scope="module", params=NAMES)
def model(request):
    return untrained(request.param)


@pytest.fixture(scope="module")
def gaps():
    return TASK.gaps(untrained("code"))


class Oracle:
    """A stand-in for `TextGenerator.fill` that fills each gap with `answer(gap)`, and records what it was given."""

    def __init__(self, gaps, answer):
        self.gaps, self.answer, self.given = gaps, answer, {}

    def __call__(self, sampler, tokens, *, rows, seed, batch_size):
        filled = tokens.clone()
        for row, number in zip(filled, rows.tolist(), strict=True):
            self.given.setdefault(number, []).append(row.tolist())
            true = self.answer(self.gaps[number])
            row[(row == 258).nonzero()[: len(true), 0]] = torch.tensor(true)
            row[row == 258] = 0
        return SimpleNamespace(tokens=filled)


def scored(model, gaps, answer, monkeypatch, task=TASK):
    oracle = Oracle(gaps, answer)
    monkeypatch.setattr(TextGenerator, "fill", lambda self, *args, **options: oracle(*args, **options))
    return task.measure(model, Path("run"), seed=0), oracle


def test_a_gap_is_a_line_in_the_middle_of_a_window(gaps):
    files = [Path(path).read_text(encoding="utf-8") for path in FILES]
    assert len(gaps) == 24
    assert len({(gap.text, gap.line) for gap in gaps}) == 24
    for gap in gaps:
        assert gap.text in files
        begin, end = gap.line  # which are bytes, too: the files are ASCII
        assert bytes(gap.true).decode() == gap.text[begin:end]
        assert len(gap.true) <= 32
        assert gap.text[begin - BEFORE : begin - BEFORE + WINDOW] == bytes(gap.left + gap.true + gap.right).decode()
        assert len(gap.left) == BEFORE


def test_gaps_are_all_lines_that_fit_evenly_spaced(gaps):
    model = untrained("code")
    every = LineInfillingTask(lines=0).gaps(model)
    assert gaps == [every[i * len(every) // 24] for i in range(24)]
    short = LineInfillingTask(lines=0, max_tokens=20).gaps(model)
    assert short == [gap for gap in every if len(gap.true) <= 20]
    assert {len(gap.true) for gap in every} >= {20, 32}
    text = every[0].text
    inside = [gap.line for gap in every if gap.text == text]
    assert inside[0].begin >= BEFORE
    assert len(text) - inside[-1].begin >= WINDOW - BEFORE


def test_a_line_is_given_its_tokens_by_a_learned_tokenizer():
    model = untrained("code", "tokenizer.vocabulary_size=500", tokenizer="bpe")
    found = LineInfillingTask(lines=0).gaps(model)
    words = model.text_generator().words
    assert len(found) > 100
    assert sum(len(gap.true) for gap in found) < 0.7 * sum(gap.line.end - gap.line.begin for gap in found)
    for gap in found:
        assert words.text_of(gap.true) == gap.text[slice(*gap.line)]


@pytest.mark.parametrize("name", NAMES)
def test_a_perfect_model_scores_100_percent(name, gaps, monkeypatch):
    scores, _ = scored(untrained(name), gaps, lambda gap: gap.true, monkeypatch)
    sides = {key.split(", ")[1] for key in scores}
    assert sides == ({LEFT} if name == "code_autoregressive" else {BOTH, LEFT})
    assert {score.value for score in scores.values()} == {1.0}
    assert all(score.quantity == "share of texts" for score in scores.values())


def test_lines_that_do_not_parse_or_only_parse_are_counted(gaps, monkeypatch):
    model = untrained("code_autoregressive")

    def answer(gap):
        number = gaps.index(gap)
        wrong = b"\n" + b" " * (len(gap.true) - 2) + b"("
        blank = b"\n" + b" " * (len(gap.true) - 1)
        return [gap.true, list(wrong), list(blank)][number % 3]

    scores, _ = scored(model, gaps, answer, monkeypatch)
    assert scores[f"exact match, {LEFT}"].sums == (1.0, 0.0, 0.0) * 8
    accepted = []
    for gap in gaps:
        fill = bytes(answer(gap)).decode()
        accepted.append(float(parses(gap.text[: gap.line.begin] + fill + gap.text[gap.line.end :])))
    assert scores[f"parses, {LEFT}"].sums == tuple(accepted)
    assert accepted[::3] == [1.0] * 8
    assert accepted[1::3] == [0.0] * 8


def test_scores_by_length_are_those_of_the_lines_of_this_length(gaps, monkeypatch):
    model = untrained("code_autoregressive")
    scores, _ = scored(model, gaps, lambda gap: gap.true if len(gap.true) % 2 else [0] * len(gap.true), monkeypatch)
    bands = [key for key in scores if key.startswith(f"exact match, {LEFT}, ")]
    assert [key.split(", ")[2] for key in bands] == ["9-16 tokens", "17-32 tokens"]
    assert scores[f"exact match, {LEFT}"].items == sum(scores[key].items for key in bands) == 24
    for key in bands:
        low, high = map(int, key.split(", ")[2].split()[0].split("-"))
        inside = [len(gap.true) % 2 for gap in gaps if low <= len(gap.true) <= high]
        assert scores[key].sums == tuple(map(float, inside))
    assert len({score.of for score in scores.values()}) == 3


def test_what_a_model_is_given(gaps, monkeypatch):
    asked = {}
    for name in NAMES:
        _, oracle = scored(untrained(name), gaps, lambda gap: gap.true, monkeypatch)
        asked[name] = oracle.given
    for number, gap in enumerate(gaps):
        masks = [258] * len(gap.true)
        assert asked["code"][number] == [gap.left + masks + gap.right, gap.left + masks + [258] * len(gap.right)]
        middle = [*gap.left, 256, *gap.right, 257, *masks]
        assert asked["code_fill_in_the_middle"][number] == [middle, gap.left + masks]
        assert asked["code_autoregressive"][number] == [gap.left + masks]
        assert len(middle) == 128


def test_given_tokens_stay_and_the_gap_is_filled(model, gaps, monkeypatch):
    fill, seen = TextGenerator.fill, []

    def spy(self, sampler, tokens, **options):
        made = fill(self, sampler, tokens, **options)
        seen.append((tokens, made.tokens))
        return made

    monkeypatch.setattr(TextGenerator, "fill", spy)
    for side in sides_of(model):
        rows = [row_of(gap, side, model) for gap in gaps]
        fills = TASK.fill(model, rows, seed=1)
        assert [len(each) for each in fills] == [len(gap.true) for gap in gaps]
        assert TASK.fill(model, rows[:3], seed=1) == fills[:3]
    for asked, made in seen:
        assert torch.equal(made[asked != 258], asked[asked != 258])
        assert (made < 258).all()


def test_progress_and_the_order_of_lines_of_different_lengths(gaps):
    model = untrained("code_autoregressive", "evaluation.batch_size=2")
    rows, told = [row_of(gap, LEFT, model) for gap in gaps], []
    filled = TASK.fill(model, rows, seed=3, progress=lambda *done: told.append(done))
    assert told == sorted(told)
    assert told[-1] == (24, 24)
    assert {total for _, total in told} == {24}
    for number in (0, 7, 23):
        (alone,) = TASK.fill(model, [rows[number]], seed=3)
        assert alone == filled[number]  # with temperature 0, and in float32


def test_the_sampler_is_greedy_unless_another_is_given(model, gaps):
    rows = [row_of(gap, LEFT, model) for gap in gaps]
    assert TASK.fill(model, rows, seed=1) == TASK.fill(model, rows, seed=2)
    drawn = LineInfillingTask(sampler=model.experiment.parts["sampler"])
    assert drawn.fill(model, rows, seed=1) != drawn.fill(model, rows, seed=2)


@pytest.mark.parametrize("name", Zoo.load().names("sampler"))
def test_greedy_changes_the_temperature_only(name):
    sampler = Zoo.load().spec("sampler", NEEDS.get(name, name))
    before, after = unstructure(sampler), unstructure(greedy(sampler))
    if "token_sampling" in before:
        assert after.pop("token_sampling") == {"use": "categorical", "temperature": 0.0}
        del before["token_sampling"]
    elif "temperature" in before:
        assert after.pop("temperature") == 0
        del before["temperature"]
    assert after == before


@given(st.integers(1, 5000))
def test_bands_double(tokens):
    low, high = map(int, band(tokens).split("-"))
    assert low <= tokens <= high
    assert high == 2 * (low - 1) or (low, high) == (1, 4)


def test_bands_follow_one_another():
    edges = [tuple(map(int, band(n).split("-"))) for n in (1, 5, 9, 17, 33)]
    assert edges[0] == (1, 4)
    assert all(high + 1 == low for (_, high), (low, _) in pairwise(edges))


def test_the_loss_and_importance_of_each_class_are_means_over_its_tokens(monkeypatch):
    model = untrained("code")
    asked = []

    def measure(module, tokens, maskable, spec, *, seed, progress):
        asked.append((tokens, spec, seed))
        assert maskable.all()
        loss = tokens.double().sqrt()
        loss[:, ::3] = torch.nan
        return SimpleNamespace(token_loss=loss, importance=(tokens.double() / 256).where(~loss.isnan(), torch.nan))

    monkeypatch.setattr("atat_zoo.evaluation.likelihood.measure", measure)
    scores = TokenClassesTask(sequences=0).measure(model, Path("run"), seed=5)
    ((tokens, spec, seed),) = asked
    assert (spec.metrics, spec.bound, seed) == ((), model.experiment.evaluation.bound, 5)
    texts = [text for text in model.experiment.parts["corpus"].documents("test") if parses(text)]
    rows = [text.encode()[at : at + 128] for text in texts for at in range(0, len(text) - 127, 128)]
    assert tokens.tolist() == [list(row) for row in rows]
    cut = [character_classes(text)[: len(text) // 128 * 128].reshape(-1, 128) for text in texts]
    classes = np.concatenate(cut)
    seen = np.arange(128) % 3 > 0
    for kind, name in enumerate(CLASSES):
        inside = (classes == kind) & seen
        values = tokens.numpy()[inside]
        assert scores[f"{name}, loss"].value == pytest.approx(np.sqrt(values).mean())
        assert scores[f"{name}, importance"].value == pytest.approx(values.mean() / 256)
        assert scores[f"{name}, share"].value == pytest.approx((classes == kind).mean())
    assert len(scores) == 3 * len(CLASSES)


def test_a_model_without_an_estimator_has_losses_only():
    model = untrained("code_autoregressive")
    scores = TokenClassesTask(sequences=8).measure(model, Path("run"), seed=0)
    assert {key.split(", ")[1] for key in scores} == {"share", "loss"}
    assert all(score.value > 0 for score in scores.values())


def test_mistakes(tmp_path):
    (tmp_path / "a.txt").write_text("no code at all")
    (tmp_path / "b.py").write_text("if x:\n    y = 1\n")

    model = untrained("code")
    for name, task, message in (
        ("a.txt", LineInfillingTask, r"corpus 'files' has no file in its test split that is Python code"),
        ("b.py", LineInfillingTask, r"no line of the held-out files has at most 32 tokens and 63 tokens before it"),
        ("b.py", TokenClassesTask, r"no held-out file has 128 tokens; set the task's corpus to longer files"),
    ):
        files = {"use": "files", "train": [FILES[0]], "test": [str(tmp_path / name)]}
        with pytest.raises(UserError, match=message):
            task(corpus=Zoo.load().spec("corpus", files)).measure(model, Path("run"), seed=0)
    assert [each.text for each in problems_of(LineInfillingTask(max_tokens=63), model.experiment)] == [
        "a line of 63 tokens leaves no right side in a window of 126; set max_tokens to less than 63"
    ]
    assert not list(problems_of(LineInfillingTask(max_tokens=62), model.experiment))
    ancestral = LineInfillingTask(sampler=Zoo.load().spec("sampler", "ancestral"))
    assert not list(problems_of(ancestral, model.experiment))
    assert list(problems_of(ancestral, untrained("code_autoregressive").experiment))


def test_a_file_that_the_tokenizer_does_not_restore_is_skipped(monkeypatch):
    model = untrained("code")
    decode = type(model.tokenizer).decode
    monkeypatch.setattr(type(model.tokenizer), "decode", lambda self, ids: decode(self, ids).replace("heap", "HEAP"))
    found = TASK.documents(model)
    assert found
    assert not any("heap" in document.text for document in found)


def test_only_the_first_files_are_read(monkeypatch):
    model = untrained("code")
    every = TASK.documents(model)
    monkeypatch.setattr(code_tasks, "FILES", 1)
    assert [each.text for each in TASK.documents(model)] == [every[0].text]
    assert len(every) > 1


def test_saved_scores_depend_on_the_settings():
    experiment = untrained("code").experiment
    library = Zoo.load().spec("corpus", "python_library")
    for task in (LineInfillingTask(), TokenClassesTask()):
        assert task.inputs(experiment) == task.inputs(experiment)
        assert evolve(task, corpus=library).inputs(experiment) != task.inputs(experiment)
    other = untrained("code", "evaluation.mask_samples=2").experiment
    assert TokenClassesTask().inputs(other) != TokenClassesTask().inputs(experiment)
