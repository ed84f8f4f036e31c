"""Generated texts: their numbers by hand, what guidance does to them, windows, and what cannot be measured."""

import hashlib
import math
from collections import Counter

import pytest
import torch

from atat_zoo.data.tokenizers.components import BytesTokenizer
from atat_zoo.evaluation.judges import RunJudge
from atat_zoo.evaluation.sample_quality import judge_run
from atat_zoo.evaluation.tasks import measure_tasks
from atat_zoo.evaluation.tasks.generated_text import ControlledTask, LongTextTask
from atat_zoo.evaluation.tasks.held_out import PricesTask
from atat_zoo.evaluation.tasks.infilling import InfillingTask
from atat_zoo.evaluation.text_scores import measure_texts
from atat_zoo.experiment import EvaluationSpec, load
from atat_zoo.experiment.runs.model_files import WEIGHTS
from atat_zoo.generation.model import Model
from atat_zoo.generation.samplers.published_samplers import AncestralSampler
from atat_zoo.registry import Zoo
from atat_zoo.system.errors import UserError
from atat_zoo.system.machine import lacking
from tests.evaluation.making import runs

BLOCKS = {"use": "semi_autoregressive", "block_size": 4, "block_sampler": {"use": "ancestral", "steps": 2}}
FEW = {"length": 40, "texts": 3, "sampler": BLOCKS}
root = runs(judge={}, run={"objective": "mdlm"}, ends={"objective": "mdlm", "data": {"special_tokens": "both"}})


@pytest.fixture
def judge(root):
    return {"use": "run", "path": str(root / "judge")}


def perplexity(judge, texts):
    nats, counted = RunJudge(path=judge["path"]).build("cpu").nats(texts)
    return pytest.approx(math.exp(float(nats.sum() / counted.sum())))


def controlled(root, strength=8.0, **more):
    """Return a task that is guided towards a letter, and looks for a word."""
    corpus = {"use": "files", "train": [str(root / "texts" / "train.txt")], "document": "line"}
    topic = {"use": "naive_bayes", "words": ["gold"], "corpus": corpus, "prior": 0.5}
    letter = BytesTokenizer().train(lambda: iter(())).encode("g")
    bias = {"use": "token_bias", "words": ["gold"], "tokens": letter, "strength": strength}
    return ControlledTask(guidance=bias, classifier=topic, texts=6, **more)


@pytest.mark.slow
def test_the_numbers_are_those_of_guided_texts_and_of_others(root, judge):
    model, task, told = Model.from_run(root / "run"), controlled(root, judge=judge), []
    scores = task.measure(model, root / "run", seed=2, progress=lambda *done: told.append(done))
    names = ("accuracy", "entropy", "generative perplexity")
    assert list(scores) == [f"{whose}{name}" for whose in ("", "unguided ") for name in names]
    assert told == [(0, 12), (6, 12), (12, 12)]
    finds = task.classifier.build(model.tokenizer, model.experiment.data.length)
    for whose, guidance in (("", task.guidance), ("unguided ", "none")):
        written = model.sample(6, guidance=guidance, seed=2, precision="fp32")
        likely = [float(value.exp() > 0.5) for value in finds(written.sample.tokens)]
        assert scores[f"{whose}accuracy"].sums == tuple(likely)
        assert scores[f"{whose}generative perplexity"].value == perplexity(judge, written.texts)


@pytest.mark.slow
def test_guidance_moves_the_guided_texts_alone(root):
    """So strong a bias leaves one letter: no entropy, and texts of no other kind; at strength 0 both are alike."""
    model = Model.from_run(root / "run")
    strong, none = (controlled(root, strength).measure(model, root / "run", seed=2) for strength in (60.0, 0.0))
    assert strong["entropy"].value < 0.3 < none["entropy"].value
    for name in ("accuracy", "entropy"):
        assert none[name] == none[f"unguided {name}"] == strong[f"unguided {name}"]


def test_accuracy_is_what_the_classifier_finds(root, monkeypatch):
    task = controlled(root)
    halves = iter((torch.tensor([0.9, 0.9, 0.9, 0.2, 0.2, 0.5]).log(), torch.full((6,), 0.1).log()))
    monkeypatch.setattr(type(task.classifier), "build", lambda *_: lambda tokens: next(halves))
    scores = task.measure(Model.from_run(root / "run"), root / "run", seed=2)
    assert scores["accuracy"].value == 0.5  # as probable as not is not found
    assert scores["unguided accuracy"].value == 0


@pytest.mark.parametrize("n", [2, 3])
def test_the_numbers_are_those_of_texts_longer_than_learned(root, judge, n):
    model, task = Model.from_run(root / "run"), LongTextTask(**FEW, n=n, judge=judge)
    (result,) = measure_tasks([task], model, root / "run", seed=2)
    written = model.sample(3, sampler=BLOCKS, length=40, seed=2, precision="fp32")
    special = {model.tokenizer.bos, model.tokenizer.eos}
    entropies, distinct, every = [], [], []
    for ids in written.sample.tokens.tolist():
        plain = [i for i in ids if i not in special]
        entropies.append(-sum(times / len(plain) * math.log(times / len(plain)) for times in Counter(plain).values()))
        grams = [gram for gram in zip(*(ids[i:] for i in range(n)), strict=False) if not special & set(gram)]
        distinct.append(len(set(grams)))
        every.append(len(grams))
    scores = result.scores
    assert list(scores) == ["entropy", f"distinct-{n}", "generative perplexity"]
    assert scores["entropy"].sums == pytest.approx(entropies)
    assert (scores[f"distinct-{n}"].sums, scores[f"distinct-{n}"].weights) == (tuple(distinct), tuple(every))
    assert scores["generative perplexity"].value == perplexity(judge, written.texts)
    assert "tokens per second" in result.notes[0]  # how fast it writes is no score


def test_a_sampler_that_the_model_cannot_serve_is_refused():
    """By what the objective says of it, as for a run's own."""
    causal, diffusion = load("baselines/autoregressive"), load("baselines/mdlm")
    length = causal.data.length
    for task, experiment, keys in (
        (LongTextTask(length=8, sampler="ancestral"), causal, ["sampler"]),
        (InfillingTask(sampler="ancestral"), causal, ["sampler"]),
        (LongTextTask(length=8, sampler="left_to_right"), causal, []),
        (LongTextTask(length=length + 1, sampler="first_hitting"), diffusion, ["evaluation.tasks"]),
        (LongTextTask(length=length, sampler="first_hitting"), diffusion, []),
    ):
        assert [problem.key for problem in task.check(experiment)] == keys


def test_a_judge_without_its_package_is_missed_beforehand(monkeypatch):
    judge = {"use": "huggingface", "model": "gpt2"}
    assert list(LongTextTask(judge=judge).absent()) == lacking([Zoo.load().spec("judge", judge)])
    monkeypatch.setattr("atat_zoo.system.machine.find_spec", lambda module: None)
    (sentence,) = LongTextTask(judge=judge).absent()
    assert "huggingface needs the package transformers" in sentence


BIAS, BAYES = ("{use = 'token_bias', words = ['gold']}", "{use = 'naive_bayes', words = ['gold']}")
NOWHERE = "judge = {use = 'run', path = 'nowhere'}"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (f"'controlled', guidance = {BIAS}", "classifier"),
        (f"'controlled', classifier = {BAYES}", "guidance"),
        (f"'controlled', guidance = {BIAS}, classifier = {BAYES}, {NOWHERE}", "nowhere is not a finished run"),
        ("'long_text', length = 40, sampler = 'ancestral'", "'ancestral' generates at most 16 tokens"),
        (f"'long_text', {NOWHERE}", "judge: nowhere is not a finished run"),
        ("'long_text', length = 2, n = 3", "n = 3 is larger than length = 2"),
    ],
)
def test_what_cannot_be_measured_is_refused(root, atat, table, said):
    code, _, err = atat("eval", str(root / "run"), "--task", f"{{use = {table}}}")
    assert (code, said in err) == (2, True), err


def test_no_run_judges_its_own_text(root, judge):
    model = Model.from_run(root / "judge")
    for task in (controlled(root, judge=judge), LongTextTask(**FEW, judge=judge), PricesTask(judge=judge)):
        with pytest.raises(UserError, match="is the evaluated run, which cannot judge its own text"):
            task.measure(model, root / "judge", seed=0)


def test_the_scores_depend_on_the_sampler_and_the_judge(root, judge):
    experiment = Model.from_run(root / "run").experiment
    sampler, none = controlled(root).inputs(experiment)
    assert (sampler["use"], none) == (experiment.parts["sampler"].name, None)
    weights = hashlib.sha256((root / "judge" / "model" / WEIGHTS).read_bytes()).hexdigest()
    assert controlled(root, judge=judge).inputs(experiment) == [sampler, weights]


class AskedError(Exception):
    """What a model was asked to write."""


TOKENS, SPEC = torch.full((5, 16), 97), EvaluationSpec(metrics=("unigram_entropy",))
TWO = AncestralSampler(steps=2)
MEASURES = {
    "metrics": lambda *of: measure_texts(of[0], TOKENS, TOKENS > 0, SPEC, seed=3),
    "judge": lambda *of: judge_run(*of, None, None, sampler=TWO, spec=EvaluationSpec(), number=2),
    "controlled": lambda *of: controlled(of[1].parent).measure(*of, seed=2),
    "long_text": lambda *of: LongTextTask(**FEW).measure(*of, seed=2),
    "prices": lambda *of: PricesTask(samplers=[TWO], texts=2, sequences=2).measure(*of, seed=2),
}


@pytest.mark.parametrize("measure", MEASURES)
def test_a_measure_reads_windows_of_running_text(measure, root, monkeypatch):
    """Also where a text ends inside one; that they are other texts, `tests/generation/test_sample.py` says."""
    model = Model.from_run(root / "ends")

    def sample(*_, windows=False, **__):
        raise AskedError(windows)

    monkeypatch.setattr(Model, "sample", sample)
    with pytest.raises(AskedError) as asked:
        MEASURES[measure](model, root / "ends")
    assert asked.value.args == (True,)
