"""The conformance suite finds what it is there to find."""

import subprocess
import sys
import unittest

import broken_parts as broken
import pytest
import torch
from hypothesis import strategies as st

from atat_zoo import testing
from atat_zoo.masking import UniformMasking
from atat_zoo.masking.mask_drawing import BernoulliMaskDrawing
from atat_zoo.registry import Zoo, component
from atat_zoo.registry.manifest import Manifest, entry_of
from atat_zoo.testing.batches import for_examples
from atat_zoo.testing.masking import PROMISES
from atat_zoo.testing.revealing import PROMISES as REVEALING


def fails(check, *args):
    try:
        check(*args)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize(
    ("strategy", "promises"),
    [
        (broken.Textbook(), {"rate", "limits"}),
        (broken.HalfPrecision(), {"rate", "limits", "symmetry"}),
        (broken.WrongWay(), {"importance", "limits"}),
        pytest.param(broken.NotNested(), {"importance", "nesting", "limits"}, marks=pytest.mark.slow),
        pytest.param(broken.Lukewarm(), {"limits"}, marks=pytest.mark.slow),
        (broken.FirstsFirst(), {"symmetry"}),
        pytest.param(broken.Crowd(), {"symmetry"}, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_broken_strategy_breaks_its_promises_and_no_others(strategy, promises):
    assert {name for name, check in PROMISES.items() if fails(check, strategy)} == promises
    with pytest.raises(AssertionError):
        testing.check_masking(strategy)


@pytest.mark.parametrize(
    ("strategy", "promises"),
    [
        (broken.Clairvoyant(), {"visible", "symmetry"}),
        (broken.Fickle(), {"visible", "symmetry"}),
        (broken.RoundingDown(), {"rate"}),
        (broken.Leftmost(), {"symmetry"}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_strategy_that_draws_masks_wrongly_breaks_its_promises_and_no_others(strategy, promises):
    assert {name for name, check in REVEALING.items() if fails(check, strategy, 10)} == promises
    with pytest.raises(AssertionError):
        testing.check_revealing(strategy, 10)


@pytest.mark.parametrize(
    ("check", "part", "said"),
    [
        (testing.check_mask_drawing, broken.Threshold(), "probability p|p = 1"),
        (testing.check_mask_drawing, broken.Batchwise(), "does not depend|no random number"),
        (testing.check_curriculum, broken.OverMaskedCurriculum(), "mean 1 over each row's maskable"),
        (testing.check_target, broken.Padding(), "only maskable tokens count"),
        (testing.check_uncertainty, broken.ProbabilityVariance(), "uncertainty is"),
        (testing.check_noise, broken.WrongWeight(), "the weight is"),
        (testing.check_rates, broken.UnweightedRates(), "weights are 1/"),
        (testing.check_rates, broken.TimelessRates(), "at its time the noise has the rate"),
        (testing.check_rates, broken.DrawnRates(), "function of u"),
        (testing.check_rates, broken.ForgetfulRates(), "all that is remembered is in state_dict"),
        (testing.check_position_bias, broken.ForgetfulBias(), "add up|state_dict"),
        (testing.check_description, ("masking", broken.Undescribed), "has no text 'name'"),
    ],
    # No addresses: every process of a parallel run must collect the same names.
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_a_broken_part_of_another_kind_is_found_and_named(check, part, said):
    with pytest.raises(AssertionError, match=said):
        check(*part) if isinstance(part, tuple) else check(part)


def test_a_strategy_that_changes_its_input_is_found():
    @component
    class Greedy(UniformMasking):
        """Overwrites importance."""

        name, summary, refs = "greedy", "overwrites importance", ()

        def probabilities(self, importance, rate, maskable):
            importance.zero_()
            return super().probabilities(importance, rate, maskable)

    with pytest.raises(AssertionError, match="left as it was"):
        testing.check_masking(Greedy())


def test_a_part_that_needs_torch_to_be_listed_is_found(tmp_path, monkeypatch):
    (tmp_path / "heavy_part.py").write_text("import torch\nclass Heavy: pass\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(AssertionError, match="importing heavy_part imports torch"):
        testing.check_imports(["heavy_part:Heavy"])


def test_cases_are_the_promises_of_every_part():
    zoo = Zoo(Manifest(entries=(entry_of("masking", UniformMasking, "atat-zoo"),)), [])
    found = testing.cases(zoo)
    assert [str(case) for case in found] == [
        f"masking-uniform-{promise}" for promise in ("description", "imports", *PROMISES)
    ]
    for case in found:
        case.run(examples=2)


def test_cases_run_what_they_name():
    zoo = Zoo(Manifest(entries=(entry_of("masking", broken.Textbook, "plugin-x"),)), [])
    (case,) = (c for c in testing.cases(zoo, distribution="plugin-x") if c.promise == "rate")
    with pytest.raises(AssertionError, match="the mean of p over maskable tokens is the rate"):
        case.run()


def test_what_fails_once_and_not_again_is_said_to_depend_on_more_than_its_input():
    fails_once = iter([True])

    def check(part):
        @for_examples(5, x=st.integers())
        def holds(x):
            assert not next(fails_once, False), "a mood"

    moody = testing.Case(kind="noise", name="moody", promise="contract", check=check, makes=lambda _: None)
    assert moody.failure().startswith(
        "noise 'moody' breaks its promise 'contract': the same input gives something else the next time; smallest "
    )


def test_a_promise_that_is_kept_or_skipped_is_no_failure():
    def skipped(part):
        raise unittest.SkipTest("needs what is not here")

    for check in (lambda part: None, skipped):
        assert testing.Case(kind="noise", name="x", promise="y", check=check, makes=lambda _: None).failure() == ""


def test_a_test_without_cases_does_not_pass():
    with pytest.raises(ValueError, match="no part of atat-zoo-nowhere"):
        testing.cases(distribution="atat-zoo-nowhere")


def test_the_core_does_not_need_the_suite():
    code = "import sys, atat_zoo.registry.builtin; sys.exit('hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_suite_draws_nothing_from_the_global_generator():
    state = torch.get_rng_state()
    testing.check_mask_drawing(BernoulliMaskDrawing(), 3)
    assert torch.equal(torch.get_rng_state(), state)
