"""Text from an assembled model, untrained and tiny; also in bf16, and with a compiled backbone."""

import ast
from functools import partialmethod

import pytest
import torch
from torch._dynamo.utils import counters

from atat_zoo.diffusion.precision import computes_in_bf16
from atat_zoo.generation.model import Model, check_options
from atat_zoo.generation.samplers.published_samplers import AncestralSampler, UncertaintyGuidedSampler
from atat_zoo.registry import Zoo
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.errors import UserError
from atat_zoo.testing.toys import FunctionDenoiser
from tests.generation.making import ESTIMATOR, TABLE, tiny_model


@pytest.fixture(scope="module", params=[False, True], ids=["timeless", "timed"])
def model(request):
    timed = {"time_conditioning": request.param}
    return tiny_model(backbone=TABLE["backbone"] | timed, estimator=ESTIMATOR | timed)


def test_the_experiment_says_how_unless_another_part_is_named(model):
    made = model.sample(number=3, prompt="We", seed=1)
    assert (made.sample.tokens.shape, made.sample.max_nfe) == ((3, 24), 6)
    assert all(text.startswith("We") for text in made.texts)
    assert (made.sample.tokens[:, 0] == model.tokenizer.bos).all()
    assert (made.sample.tokens[:, -1] == model.tokenizer.eos).all()
    assert model.sample(number=3, prompt="We", seed=1, batch_size=2).texts == made.texts
    table, spec = {"use": "ancestral", "steps": 3}, AncestralSampler(steps=3)
    made = model.sample(2, sampler=table, seed=4, length=10)
    assert (made.sample.tokens.shape, made.sample.max_nfe) == ((2, 10), 3)
    assert made.texts == model.sample(2, sampler=spec, seed=4, length=10).texts
    assert model.sample(1, sampler="klass", guidance="none").sample.max_nfe > 3
    assert model.infill("a [MASK:2] c", sampler=table).texts
    with pytest.raises(UserError, match="did you mean 'klass'"):
        model.sample(sampler="klas")


def test_the_importance_of_the_model_is_what_the_order_reads(model):
    """Most uncertain × important first, in two steps: not the same halves as without importance."""
    first = []
    for importance in (True, False):
        sampler = UncertaintyGuidedSampler(min_steps=2, max_steps=2, threshold=0.0, importance=importance)
        model.sample(8, sampler=sampler, observe=(trace := []).append)
        first.append(trace[0]["positions"])
    assert len(first[0]) == len(first[1])
    assert first[0] != first[1]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"sampler": "klass", "steps": 8},
            "steps is a parameter of the sampler; pass sampler={'use': 'klass', 'steps': 8}",
        ),
        (
            {"temperature": 0.5},
            "temperature is a parameter of the sampler; pass sampler={'use': 'ancestral', 'temperature': 0.5}",
        ),
        (
            {
                "sampler": {"use": "combination", "tokens_per_step": {"use": "fixed"}, "order": "uncertainty"},
                "steps": 3,
            },
            "steps is a parameter of the sampler; pass sampler={'use': 'combination', 'tokens_per_step': {'use': "
            "'fixed', "
            "'steps': 3}, 'order': 'uncertainty'}",
        ),
        ({"guidance": {"use": "token_bias", "words": ["a"]}, "ban": True}, "ban is a parameter of the guidance"),
        ({"sede": 3}, "unknown option 'sede'; did you mean 'seed'? (the options are "),
        ({"sampler": "left_to_right", "weigher": None}, "unknown option 'weigher' (the options are "),
    ],
)
def test_a_parameter_among_the_options_is_a_sentence_that_says_where_it_goes(how, said, model):
    for ask in (model.sample, lambda **how: model.infill("a [MASK:2] c", **how), model.unmask):
        with pytest.raises(UserError) as caught:
            ask(**how)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", Zoo.load().names("sampler"))
def test_the_table_that_is_named_for_a_sampler_is_one_that_it_takes(name, model):
    zoo = Zoo.load()
    spec = zoo.spec("sampler", name)
    for key, value in unstructure(spec).items():
        if key != "use":
            with pytest.raises(UserError) as caught:
                check_options({key: value}, (model.infill,), {"sampler": spec}, {"sampler": name})
            table = ast.literal_eval(str(caught.value).partition("pass sampler=")[2])
            assert zoo.spec("sampler", table) == spec


def test_what_is_written_prints_its_texts_and_counts_and_no_tensors(model):
    made = model.sample(9, seed=2, length=10)
    first, *lines = repr(made).splitlines()
    mean = sum(made.sample.nfe.tolist()) / 9
    counts = f"<Sample of 9 texts of 10 tokens, {mean:.1f} network evaluations on average, 6 at most>"
    assert repr(made.sample) == counts
    assert first == f"<Generation in {made.seconds:.2f} s: {counts}"
    assert lines == [*(f"  {text!r}" for text in made.texts[:8]), "  and 1 more>"]
    assert "of 1 text of 24 tokens" in repr(model.sample(1))
    assert "of 0 texts of 24 tokens, 0.0 network" in repr(model.sample(0))


@pytest.fixture(scope="module")
def wide():
    return tiny_model(scale=0.2, backbone={"use": "dit", "layers": 2, "width": 32, "heads": 2})


class Seen(AncestralSampler):
    """Keeps the log-probabilities that the draws see, and whether a product is in bf16 there."""

    def sample(self, denoiser, tokens, seeds, **options):
        def look(z, t, where):
            found = denoiser(z, t, where)
            seen.append((found, (torch.ones(2, 2) @ torch.ones(2, 2)).dtype))
            return found

        return super().sample(FunctionDenoiser(look, denoiser.mask_id), tokens, seeds, **options)


seen = []


@pytest.mark.parametrize("precision", ["fp32", "bf16", "auto"])
def test_the_network_computes_in_it_and_the_probabilities_do_not(wide, precision):
    seen.clear()
    made = wide.sample(2, sampler=Seen(steps=3), precision=precision)
    assert len(made.texts) == 2
    bf16 = computes_in_bf16(precision, "cpu")
    assert {log_probs.dtype for log_probs, _ in seen} == {torch.float32}
    assert {dtype for _, dtype in seen} == {torch.bfloat16 if bf16 else torch.float32}
    for log_probs, _ in seen:
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(len(log_probs)), rtol=1e-5, atol=1e-5)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.slow
def test_a_compiled_backbone_writes_the_same_text(wide, monkeypatch):
    # Traced as it would be, and run without the time that a C++ compiler takes.
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend="aot_eager"))
    plain = wide.sample(3, seed=4, precision="fp32")
    counters.clear()
    compiled = wide.sample(3, seed=4, precision="fp32", compile=True)
    assert compiled.texts == plain.texts
    # It was compiled, and what was compiled has run.
    assert counters["frames"]["ok"] > 0
    # The model itself stays as it is.
    assert wide.module.backbone._compiled_call_impl is None
    assert wide.text_generator(compile=True).denoiser.module.backbone.embedding is wide.module.backbone.embedding


def test_the_precision_is_chosen_unless_one_is_named(model, monkeypatch):
    taken, text_generator = [], Model.text_generator
    monkeypatch.setattr(Model, "text_generator", lambda self, *how: taken.append(how[0]) or text_generator(self, *how))
    model.sample(1, length=4)
    model.infill("a[MASK]")
    model.sample(1, length=4, precision="fp32")
    assert taken == ["auto", "auto", "fp32"]
