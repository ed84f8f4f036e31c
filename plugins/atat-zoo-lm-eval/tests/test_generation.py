"""Texts by any sampler, in the positions after a context."""

from types import SimpleNamespace

import attrs
import pytest
from atat_zoo_lm_eval import RunLM
from atat_zoo_lm_eval.run_lm import greedy
from conftest import made
from lm_eval.api.instance import Instance

from atat_zoo import Zoo
from atat_zoo.system.errors import UserError

# These follow what was trained with a model.
NEEDY = ("learned_order", "policy", "speculative")
SAMPLERS = [each for each in Zoo.load().names("sampler") if each not in NEEDY]


def texts(lm, *requests):
    instances = [Instance("generate_until", {}, each, i) for i, each in enumerate(requests)]
    return lm.generate_until(instances, disable_tqdm=True)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_is_made_greedy_and_writes_the_circle(sampler, run):
    lm = RunLM(run, sampler=sampler)
    assert texts(lm, ("abcd", {"until": [], "max_gen_toks": 6})) == ["efabcd"]
    one, other = (texts(RunLM(run, sampler=sampler, seed=seed), ("zz", {"max_gen_toks": 4})) for seed in (0, 0))
    assert one == other


def test_texts_end_before_what_the_task_says(run):
    lm = RunLM(run, batch_size=2)
    settings = [{"until": ["b", "f"]}, {"until": "b", "max_gen_toks": 6}, {"until": ["z"], "max_gen_toks": 3}]
    assert texts(lm, *(("abcd", each) for each in settings)) == ["e", "efa", "efa"]
    for until in (None, [None], "", []):
        assert texts(lm, ("abcd", {"until": until, "max_gen_toks": 6})) == ["efabcd"]
    for setting, message in (
        ({"do_sample": "yes"}, "gen_kwargs: do_sample = 'yes' is not a boolean"),
        ({"max_gen_toks": 0}, "gen_kwargs: max_gen_toks = 0 is not an integer of at least 1"),
        ({"temperature": "x"}, "gen_kwargs: .*'x'; correct the task, or override the setting with --gen_kwargs"),
        ({"max_gen_toks": 256}, r"has 256 tokens after its context.* reduce max_gen_toks with --gen_kwargs"),
    ):
        with pytest.raises(UserError, match=message):
            texts(lm, ("abcd", setting))
    lm = RunLM(made())  # where the model writes EOS the text is over, whatever stands behind it
    written = [[5, 6, lm.model.tokenizer.eos, 7]]
    lm._filled = lambda pairs, *_: written[: len(pairs)]
    assert texts(lm, ("the", {"until": []})) == [lm.model.tokenizer.decode([5, 6])]


def test_a_draw_is_a_function_of_the_seed_and_the_context():
    model = made()
    drawn = {"until": [], "do_sample": True, "temperature": 1.0, "max_gen_toks": 5}
    pairs = [("the", drawn), ("dog", drawn), ("cat", {**drawn, "max_gen_toks": 3})]
    many = texts(RunLM(model, batch_size=8), *pairs)
    assert many == [texts(RunLM(model), each)[0] for each in pairs]
    assert many != texts(RunLM(model, seed=1), *pairs)
    calm = [(context, {**each, "do_sample": False}) for context, each in pairs]
    assert texts(RunLM(model), *calm) == texts(RunLM(model), *calm) != many


def test_a_request_that_is_repeated_is_drawn_anew():
    drawn = {"until": [], "do_sample": True, "temperature": 1.0, "max_gen_toks": 8}
    request, other = (Instance("generate_until", {}, ("the", drawn), i) for i in range(2))
    lm = RunLM(made())
    first, *more = lm.generate_until([request] * 4, disable_tqdm=True)
    assert len({first, *more}) == 4
    assert lm.generate_until([request, request, request, request], disable_tqdm=True) == [first, *more]
    # Another request of the same context and settings is the same one.
    assert lm.generate_until([other], disable_tqdm=True) == [first]


def test_a_greedy_sampler_is_the_same_but_for_the_draw():
    for name in Zoo.load().names("sampler"):
        sampler = Zoo.load().spec("sampler", name)
        if not hasattr(sampler, "parts"):
            continue
        before, after = sampler.parts(), greedy(sampler).parts()
        assert after.token_sampling.temperature == 0.0, name
        for part in ("order", "tokens_per_step", "remasking", "stopping_rule"):
            assert getattr(before, part) == getattr(after, part), name


@attrs.frozen
class Own:
    """A sampler of somebody else's, which is not composed of the zoo's parts."""

    token_sampling: object = None


def test_a_sampler_of_its_own_kind_is_greedy_if_it_says_how_it_draws():
    assert greedy(Own()).token_sampling.temperature == 0.0
    with pytest.raises(UserError, match="sampler 'still' does not support greedy token sampling"):
        greedy(SimpleNamespace(name="still"))
