"""Samplers, guidance, bounds, metrics and judges on a virtual GPU: on one device, and few waits, all of them listed."""

from types import SimpleNamespace

import attrs
import pytest
import torch
from torch import nn

from atat_zoo import Zoo
from atat_zoo.evaluation import judge_models
from atat_zoo.evaluation.judges import HuggingFaceJudge
from atat_zoo.evaluation.likelihood import measure
from atat_zoo.evaluation.metrics import reading
from atat_zoo.evaluation.policy import policy_nats
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.generation.classifiers import BagOfTokens
from atat_zoo.generation.guidance import ClassifierGuidance
from atat_zoo.generation.text_generator import TextGenerator
from atat_zoo.system.devices import exact_device, move_to
from atat_zoo.testing.toys import Hashed
from tests.generation.samplers.test_loop import DECIDES
from tests.modeling.objectives.small_objectives import BASELINES, L, batch, build
from tests.virtual_gpu.context import CONTEXT, TOKENIZER, V
from tests.virtual_gpu.device import VirtualGPU, on_cpu, to_gpu

pytestmark = pytest.mark.slow

ROWS, STEPS = 4, 3
ASKED = ("copy to the host", "diffusion/positions.py to_host")
MODELS = {**BASELINES, "mdlm": {"use": "mdlm"}, "adaptive": {"use": "adaptive", "bias": "left_to_right"}}
KINDS = ("order", "tokens_per_step", "remasking", "stopping_rule", "token_sampling")
READS_Z = {"estimator": {"use": "transformer", "reads": "z", "layers": 1, "width": 8, "heads": 2}}


def names(kind):
    zoo = Zoo.load()
    return [name for name in zoo.names(kind) if zoo.describe(kind, name).distribution == "atat-zoo"]


def network(name):
    module = build(MODELS[name], context=CONTEXT, **(READS_Z if name == "sets" else {})).eval()
    module.loss_by_mask_rate = Hashed.loss_by_mask_rate
    return module


def given():
    """Return texts in which all, some and none of the tokens are masked."""
    z = torch.full((ROWS, L), V)
    z[1, :3] = 1
    z[2] = 2
    return z


def sampler_of(table):
    """Return a sampler of few steps."""
    if table["use"] == "semi_autoregressive":
        table = table | {"block_sampler": {"use": "ancestral", "steps": 2}}
    spec = Zoo.load().spec("sampler", table)
    if "tokens_per_step" in attrs.fields_dict(type(spec)) and hasattr(spec.tokens_per_step, "steps"):
        return attrs.evolve(spec, tokens_per_step=attrs.evolve(spec.tokens_per_step, steps=STEPS))
    return attrs.evolve(spec, steps=STEPS) if hasattr(spec, "steps") and not hasattr(spec, "within") else spec


def on_both(task, *arguments, narrow=True):
    """Return the GPU after a task, which is a function of how things are moved, and its results on both devices.

    A GPU without float64 must give the same, if it is tried.
    """
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = task(lambda value: value, *arguments)
    if narrow:
        with VirtualGPU(narrow=True):
            found = on_cpu(task(to_gpu, *arguments))
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7, equal_nan=True, msg=name)
    with VirtualGPU() as gpu:
        return gpu, expected, on_cpu(task(to_gpu, *arguments))


def written(move, model, sampler, guidance=None):
    """Return what is written, and how often the network was asked."""
    module, calls = move(network(model)), []
    module.backbone.register_forward_hook(lambda *_: calls.append(1))
    at = {"device": exact_device(module.device), "network": module.device}
    text_generator = TextGenerator(denoiser=module.denoiser(), tokenizer=TOKENIZER, length=L, **at)
    if guidance is not None:
        guidance = Zoo.load().spec("guidance", guidance) if isinstance(guidance, dict) else guidance
        text_generator = guidance.guide(text_generator)
    made = text_generator.fill(sampler, move(given()), rows=move(torch.arange(ROWS)))
    return {"tokens": made.tokens, "nfe": made.nfe, "calls": len(calls)}


def samplers():
    """Yield a network and a sampler: every named one, one with each part that these leave, and those of an order."""
    own, taken = {"learned_order": "adaptive", "learned": "adaptive", "speculative": "sets"}, set()
    for name in names("sampler"):
        yield own.get(name, "mdlm"), {"use": name}
        parts = getattr(Zoo.load().spec("sampler", name), "parts", lambda: None)()
        taken |= {getattr(parts, kind).name for kind in KINDS if parts}
    for kind in KINDS:
        for name in names(kind):
            if name not in taken:
                yield own.get(name, "mdlm"), {"use": "combination", kind: name}
    yield from ((model, {"use": "left_to_right"}) for model in ("autoregressive", "block"))
    yield from (("strided", {"use": name}) for name in ("strided", "semi_autoregressive"))
    yield from (("sets", {"use": name}) for name in ("ancestral", "uncertainty_guided", "remdm_conf"))


def same(found, expected):
    """Check that a text is whole, and that of the CPU."""
    assert torch.equal(found["tokens"], expected["tokens"])
    assert torch.equal(found["nfe"], expected["nfe"])
    assert not (found["tokens"] == V).any()


@pytest.mark.parametrize(("model", "table"), [*samplers()], ids=str)
def test_a_sampler_asks_at_most_twice_a_step_and_writes_what_it_writes_on_the_cpu(model, table):
    # On a GPU without float64 a sampler is on the CPU: there is a case for each thing that it asks of a network.
    narrow = model != "mdlm" or table["use"] in ("ancestral", "p2", "policy", "semi_autoregressive")
    gpu, expected, found = on_both(written, model, sampler_of(table), narrow=narrow)
    same(found, expected)
    steps = max(found["calls"], STEPS)
    # How much there is to fill; then what tokens per step or a stop decides, how much is masked again, how much a
    # network that caches its turns has to read.
    assert gpu.waits.keys() == {ASKED}
    assert gpu.waits[ASKED] <= 2 * steps + 1
    if model in ("mdlm", "adaptive") and table["use"] not in (*DECIDES, "combination"):
        assert gpu.waits[ASKED] == 1
    # Which rows take part, how many tokens each of them gets, and what an order, remasking or a cache knows of them.
    # The network reads a finished token once, and predicts without reading.
    assert sum(gpu.uploads.values()) <= 6 * steps


# By what each guidance asks, besides a sampler, in a text of `STEPS` steps.
CLASSIFY = "generation/classifiers.py FunctionClassifier.build.<locals>.classify"
GUIDANCE = {
    "none": ({}, {}),
    "token_bias": ({"words": ["cab", "a"], "ban": ["z"]}, {}),
    "importance_bias": ({"words": ["cab", "a"]}, {}),
    "classifier_free": (
        {"condition": "a"},
        {
            ("_local_scalar_dense", "generation/guided_denoiser.py Contrast.__call__")
        },  # whether a text begins with it, once
    ),
    "classifier": (
        {"classifier": {"use": "function", "path": f"{__name__}:likes_short_words"}, "candidates": 2},
        # A function reads texts, and returns numbers, which are checked.
        {(wait, CLASSIFY) for wait in ("tolist", "upload", "_local_scalar_dense")},
    ),
    "combined": ({"first": {"use": "token_bias", "words": ["cab"]}, "second": {"use": "none"}}, {}),
}


def likes_short_words(texts):
    return [-float(len(text)) for text in texts]


class Naive:
    """A classifier with an embedding, as that of counts, whose corpus would take seconds."""

    def build(self, tokenizer, length):
        return BagOfTokens(torch.linspace(-1, 1, V), 0.1)


@pytest.mark.parametrize(
    ("name", "sampler"), [*((name, "uncertainty_guided") for name in names("guidance")), ("token_bias", "ancestral")]
)
def test_guidance_asks_what_is_listed(name, sampler, monkeypatch):
    monkeypatch.setenv("ATAT_ZOO_FUNCTIONS", f"{__name__}:likes_short_words")
    table, more = GUIDANCE[name]
    guided = {"use": name, **table}
    # On a GPU without float64 guidance is on the CPU, and this one alone asks the network of more.
    narrow = name == "classifier_free"
    gpu, expected, found = on_both(written, "mdlm", sampler_of({"use": sampler}), guided, narrow=narrow)
    same(found, expected)
    # What it knows of words and conditions is moved there once.
    once = {wait: count for wait, count in gpu.waits.items() if wait[0] == "upload" and wait not in more}
    assert sum(once.values()) <= 32
    assert gpu.waits.keys() - once.keys() == {ASKED, *more}


@pytest.mark.parametrize("method", ["exact", "first_order"])
def test_guidance_by_a_classifier_with_an_embedding_asks_nothing(method):
    guidance = ClassifierGuidance(classifier=Naive(), method=method)
    gpu, expected, found = on_both(written, "mdlm", sampler_of({"use": "ancestral"}), guidance)
    same(found, expected)
    del gpu.waits[ASKED]
    assert sum(gpu.waits.values()) <= 2  # its table is moved there


# Bounds


def measured(move, model, bound, metrics):
    of = batch(2, context=CONTEXT)
    spec = EvaluationSpec(sequences=8, mask_samples=2, batch_size=4, bound=bound, metrics=metrics)
    made = measure(move(network(model)), of.tokens, of.maskable, spec, seed=1)
    return {**made.contribution, "loss": made.token_loss, **{name: each.value for name, each in made.metrics.items()}}


@pytest.mark.parametrize(
    ("model", "bound"),
    [*((model, "exact_k") for model in MODELS), *(("d3pm", name) for name in names("bound") if name != "exact_k")],
)
def test_a_bound_counts_the_masked_tokens_of_each_mask_and_sends_its_figures(model, bound):
    spec = Zoo.load().spec("bound", {"use": bound, **({"steps": 4} if bound == "discrete_t" else {})})
    gpu, expected, found = on_both(measured, model, spec, ())
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0, equal_nan=True, msg=name)
    batches, draws, likelihood = 2, 2, "evaluation/likelihood.py"
    most = {
        ("nonzero", "diffusion/positions.py pairs"): 3 * draws,
        # Two bounds, the losses of the tokens and of the masks, and three values under the masks.
        ("copy to the host", f"{likelihood} measure"): 7,
        ("upload", f"{likelihood} measure"): 3,
        ("index by mask", f"{likelihood} _importance_when_hidden.<locals>.at_masked"): draws,
        ASKED: 1,  # how many carriers of tokens alone the rows need
    }
    assert {wait: count for wait, count in gpu.waits.items() if count > batches * most.get(wait, 0)} == {}


def test_metrics_of_predictions_are_on_one_device():
    zoo = Zoo.load()
    named = [zoo.spec("metric", name) for name in ("brier_score", "calibration_error", "top_accuracy")]
    gpu, expected, found = on_both(measured, "mdlm", zoo.spec("bound", "exact_k"), tuple(reading(named, "predictions")))
    numbers = {name: value for name, value in expected.items() if isinstance(value, float)}
    assert len(numbers) >= 3
    assert {name: found[name] for name in numbers} == numbers
    assert sum(gpu.waits.values()) <= 80


@pytest.mark.parametrize(
    "table", [{"use": name} for name in ("ancestral", "uncertainty_guided", "strided", "semi_autoregressive")], ids=str
)
def test_neither_does_a_policy_bound_ask_more(table):
    def priced(move):
        of, module = move(batch(3, padded=False, context=CONTEXT)), move(network("mdlm"))
        given = move_to((of.tokens, of.maskable, of.index), exact_device(module.device))
        made = policy_nats(module.denoiser(), sampler_of(table), *given, orders=2)
        return {"nats": made.nats, "contribution": made.contribution}

    gpu, expected, found = on_both(priced)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert gpu.waits.keys() == {ASKED}


# Judges


def run_judge(move):
    module = move(network("autoregressive"))
    data, evaluation = SimpleNamespace(special_tokens="none", packing="packed"), SimpleNamespace(batch_size=2)
    experiment = SimpleNamespace(data=data, evaluation=evaluation, parts={"objective": SimpleNamespace(name="mine")})
    context = attrs.evolve(CONTEXT, device=str(exact_device(module.device)))
    model = SimpleNamespace(tokenizer=TOKENIZER, module=module, context=context, experiment=experiment, step=1)
    return judge_models.RunScorer(model, "mine")


class Causal(nn.Module):
    """What a causal model of the Hugging Face library is to a judge."""

    config = SimpleNamespace(n_positions=L)

    def __init__(self, move):
        super().__init__()
        torch.manual_seed(1)
        self.embedding, self.head, self.move = nn.Embedding(V, 4), nn.Linear(4, V), move

    def to(self, device):
        return self.move(self)

    def forward(self, input_ids, attention_mask, use_cache, output_hidden_states=False):
        h = self.embedding(input_ids).cumsum(1) * attention_mask[..., None]
        return SimpleNamespace(logits=self.head(h), hidden_states=[h])


def hugging_face_judge(move):
    class Tokenizer(SimpleNamespace):
        def __call__(self, texts, **_):
            return {"input_ids": TOKENIZER.encode_batch(texts)}

    with pytest.MonkeyPatch.context() as patch:
        there = move(torch.zeros(1)).device
        tokenizer = Tokenizer(bos_token_id=0, unk_token_id=None)
        patch.setattr(judge_models, "_load", lambda *_: (tokenizer, Causal(move)))
        patch.setattr(judge_models, "torch_device", lambda _: there)
        return HuggingFaceJudge(model="mine", batch_size=2).build("auto")


@pytest.mark.parametrize("judge", [run_judge, hugging_face_judge])
def test_a_judge_sends_texts_and_gets_numbers(judge):
    texts = ["a cab", "a bad day", "no", "cab"]

    def judged(move):
        made = judge(move)
        nats, count = made.nats(texts)
        return {"nats": nats, "count": count, "features": made.features(texts)}

    gpu, expected, found = on_both(judged)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    # For each batch of chunks, of which each text has two at most: two tensors there, two back, and one bound's mask.
    assert sum(gpu.waits.values()) <= 2 * len(texts) * 5
