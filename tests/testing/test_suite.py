"""The conformance suite lists the promises of every part, runs what it names, and says what is broken."""

import unittest

import pytest
import torch
from hypothesis import strategies as st

from atat_zoo import testing
from atat_zoo.modeling.masking import UniformMasking
from atat_zoo.modeling.masking.mask_drawing import BernoulliMaskDrawing
from atat_zoo.registry import Zoo
from atat_zoo.registry.registry_file import RegistryFile, entry_of
from atat_zoo.testing.batches import for_examples
from atat_zoo.testing.masking_checks import PROMISES


def test_a_part_that_needs_torch_to_be_listed_is_found(tmp_path, monkeypatch):
    (tmp_path / "torch.py").touch()  # in place of the one that takes seconds
    (tmp_path / "heavy_part.py").write_text("import torch\nclass Heavy: pass\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(AssertionError, match="importing heavy_part imports torch"):
        testing.check_imports(["heavy_part:Heavy"])


def test_cases_are_the_promises_of_every_part():
    zoo = Zoo(RegistryFile(entries=(entry_of("masking", UniformMasking, "plugin-x"),)), [])
    found = testing.cases(zoo, distribution="plugin-x")
    assert list(map(str, found)) == [f"masking-uniform-{name}" for name in ("description", "imports", *PROMISES)]
    for case in found:
        case.run(examples=2)
    with pytest.raises(ValueError, match="atat-zoo-nowhere has no component"):
        testing.cases(distribution="atat-zoo-nowhere")


def test_a_failure_is_a_sentence_and_a_promise_that_is_kept_or_skipped_is_none():
    def skipped(part):
        raise unittest.SkipTest("needs what is not here")

    fails_once = iter([True])

    def moody(part):
        @for_examples(5, x=st.integers())
        def holds(x):
            assert not next(fails_once, False), "a mood"

    kept, left_out, broken = (
        testing.Case(kind="noise", name="x", promise="contract", check=check, makes=lambda _: None).failure()
        for check in (lambda part: None, skipped, moody)
    )
    assert (kept, left_out) == ("", "")
    said = "noise 'x' fails the check 'contract': the same input must give the same result; smallest "
    assert broken.startswith(said)


def test_the_suite_draws_nothing_from_the_global_generator():
    state = torch.get_rng_state()
    testing.check_mask_drawing(BernoulliMaskDrawing(), 3)
    assert torch.equal(torch.get_rng_state(), state)
