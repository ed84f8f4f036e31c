"""One function counts tokens: what fills the rows of dialogues changes no number of anything that is measured."""

import math
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from atat_zoo.data.tokenizers.tokenizer_models import BytesModel
from atat_zoo.diffusion.likelihood_bounds import Estimate
from atat_zoo.evaluation.held_out_text import Text, counted_of
from atat_zoo.evaluation.importance_quality import quality
from atat_zoo.evaluation.likelihood import measure, summarise
from atat_zoo.evaluation.policy import PolicyNats, policy_value
from atat_zoo.evaluation.run_comparison import numbers_of
from atat_zoo.evaluation.tasks.held_out import BracketTask, HeldOutTask, PricesTask
from atat_zoo.evaluation.tasks.infilling import InfillingTask, place_gaps
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.generation.model import Model
from atat_zoo.registry import Zoo
from atat_zoo.studies import run_measurement
from tests.evaluation.making import make_chat

BYTES = BytesModel()
BOS, EOS, V = 256, 257, 258
METRICS = ("brier_score", "top_accuracy", "calibration_error")
ANCESTRAL, NO_GUIDANCE = (
    Zoo.load().spec(kind, name) for kind, name in (("sampler", "ancestral"), ("guidance", "none"))
)
SPEC = EvaluationSpec(metrics=METRICS, batch_size=2)


class Exact(nn.Module):
    """Each token has its own probability, an EOS after an EOS has all of it; everything is predicted once."""

    def __init__(self):
        super().__init__()
        self.weight, self.context = nn.Parameter(torch.zeros(1)), SimpleNamespace(vocabulary_size=V)
        logits = torch.randn(V, generator=torch.Generator().manual_seed(0)).double()
        self.log_probs = logits.log_softmax(0)

    def denoiser(self):
        return SimpleNamespace(estimates_importance=True, importance_reads="x")

    def importance(self, tokens, maskable, t):
        return (tokens + torch.arange(tokens.shape[1])) % 7 / 7

    def bound(self, tokens, maskable, keys, draws, method, observe=None, difficulty=False):
        row, position = maskable.nonzero(as_tuple=True)
        log_probs = self.log_probs.expand(len(row), V).clone()
        again = (tokens[row, position] == EOS) & (tokens[row, position - 1] == EOS) & (position > 0)
        log_probs[again] = torch.full((V,), -torch.inf, dtype=torch.float64).index_fill(0, torch.tensor(EOS), 0.0)
        nats = -log_probs.gather(1, tokens[row, position][:, None])[:, 0]
        weight = torch.ones_like(nats)
        if observe is not None:
            observe(log_probs=log_probs, tokens=tokens[row, position], weight=weight, row=row, position=position)
        each = torch.zeros(tokens.shape, dtype=torch.float64).masked_scatter(maskable, nats)
        found = {"weight": maskable.double(), "loss_sum": each, "loss_count": maskable.long()}
        found["each"] = each.float().masked_fill(~maskable, torch.nan)[:, None]
        return dict.fromkeys(("nelbo", "entropy"), Estimate(contribution=each, **found))


@st.composite
def dialogues(draw):
    """Rows of a dialogue each: what is asked, an answer, or none to the last question; tokens and what is maskable."""
    made = []
    for _ in range(draw(st.integers(2, 5))):
        ids, answer = [], []
        for learned in draw(st.sampled_from([(False, True), (False, True, False), (False, True, False, True)])):
            content = [BOS, *draw(st.lists(st.integers(97, 122), min_size=1, max_size=4))]
            ids += [*content, EOS]
            answer += [False, *[learned] * len(content)]
        made.append((ids, answer))
    return made


def rows_of(made, length):
    """Return dialogues in rows that are filled with EOS, as they are stored."""
    tokens = torch.tensor([ids + [EOS] * (length - len(ids)) for ids, _ in made])
    return tokens, torch.tensor([answer + [True] * (length - len(answer)) for _, answer in made])


def text_of(made, length):
    tokens, maskable = rows_of(made, length)
    counted = counted_of("chat", BYTES, tokens, maskable)
    return Text(tokens=tokens, maskable=maskable, counted=counted, data=None, split="validation")


@given(made=dialogues(), more=st.integers(1, 7))
def test_what_fills_a_row_changes_no_number(made, more):
    """None of an evaluation, of an importance, of a price, and no gap."""
    least, found = max(len(ids) for ids, _ in made) + 1, []
    nats, counts = torch.arange(1.0, len(made) + 1).double(), np.arange(V)
    train = SimpleNamespace(ema_decay=0)
    model = SimpleNamespace(tokenizer=BYTES, step=1, experiment=SimpleNamespace(train=train))
    for length in (least, least + more):
        text = text_of(made, length)
        assert text.counted.sum(1).tolist() == [sum(answer) for _, answer in made]
        measured = measure(Exact(), text.tokens, text.maskable, SPEC, seed=0, form="chat", counted=text.counted)
        about = {"split": "validation", "step": 1, "ema": False, "seed": 0, "draws": 1, "form": "chat"}
        table = summarise(measured, tokenizer=BYTES, counts=counts, **about).to_table() | {"padding": None}
        priced = priced_at(nats, nats[:, None] * (torch.arange(length) == 0))
        value = policy_value(model, priced, text, ANCESTRAL, NO_GUIDANCE, seed=0, orders=1).to_table()
        gaps = place_gaps(text.tokens, text.counted, [BOS, EOS], 1, 3).tolist()
        of_importance = attrs.astuple(quality(measured, torch.from_numpy(counts)))
        found.append(flat([table, of_importance, value, gaps]))
    assert found[0] == pytest.approx(found[1], nan_ok=True)


def priced_at(nats, contribution):
    """Return what a policy pays that is known."""
    none = torch.full_like(nats, math.nan)
    return PolicyNats(nats=nats, lower=none, effective=none, contribution=contribution, nfe=nats, max_nfe=4)


def flat(value):
    """Return the numbers in a table, in their order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [number for each in value for number in flat(each)]
    return [float(value)] if isinstance(value, int | float) else []


def test_running_text_counts_everything_but_padding():
    tokens, maskable = torch.tensor([[EOS, EOS, 97, EOS, EOS, 0]]), torch.arange(6)[None] < 5
    assert counted_of("text", BYTES, tokens, maskable) is maskable
    nobody = SimpleNamespace(eos=None)
    assert counted_of("chat", nobody, tokens, maskable) is maskable


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    run = make_chat(tmp_path_factory.mktemp("chat"))
    return Model.from_run(run), run


def test_every_task_counts_the_tokens_of_the_answers(chat, monkeypatch):
    model, run = chat

    def measured(text_generator, sampler, tokens, maskable, **how):
        return priced_at(torch.ones(len(tokens), dtype=torch.float64), maskable.double())

    monkeypatch.setattr("atat_zoo.evaluation.policy.measure_policy", measured)
    text = HeldOutTask(sequences=4).text(model, run)
    answers = []
    for ids, learned in zip(text.tokens, text.maskable, strict=True):
        answers.append(ids[learned].tolist().index(EOS) + 1)
    assert answers == text.counted.sum(1).tolist()
    few = {"sequences": 4}
    for task in (HeldOutTask(**few, mask_samples=1), BracketTask(**few, orders=2), PricesTask(**few, texts=0)):
        scores = task.measure(model, run, seed=0)
        weights = {name: [*each.weights] for name, each in scores.items() if getattr(each, "exponential", False)}
        if (without := weights.pop("without BOS and EOS", None)) is not None:
            assert [n + 1 for n in without] == answers
            spec = EvaluationSpec(mask_samples=1, metrics=("calibration_error",), batch_size=4)
            how = {"seed": 0, "form": "chat", "counted": text.counted}
            (error,) = measure(model.module, text.tokens, text.maskable, spec, **how).metrics.values()
            assert scores["calibration error"].value == error.value
            assert f"; {len(answers)} tokens are BOS or EOS" in scores["text"]
        assert weights
        assert all(n == answers for n in weights.values())
    found = numbers_of(model, None, text.tokens, text.maskable, EvaluationSpec(mask_samples=1), seed=0)
    assert found["count"].tolist() == answers


def test_a_study_counts_the_tokens_of_the_answers(chat, monkeypatch):
    model, run = chat
    text = HeldOutTask(sequences=0).text(model, run)
    monkeypatch.setattr(run_measurement.Model, "from_run", lambda *_: model)
    spec = SimpleNamespace(each=(), sequences=0, orders=1)
    held = SimpleNamespace(half="selection", seed=0, batch_size=4)
    found = run_measurement._bound(spec, held, SimpleNamespace(name="run", path=run), "cpu", print)
    assert found["count"] == text.counted.sum(1)[::2].tolist()


def test_a_gap_of_an_answer_is_within_it(chat):
    model, run = chat
    text = HeldOutTask(sequences=6).text(model, run)
    starts = place_gaps(text.tokens, text.counted, [BOS, EOS], 2, 0)
    assert all(text.counted[row, at : at + 3].all() for row, at in enumerate(starts.tolist()))
    scores = InfillingTask(gap=2, texts=3).measure(model, run, seed=0)
    assert scores["price"].weights == (2.0,) * 3
