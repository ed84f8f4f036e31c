"""A compiled backbone: compiled once, and the same training."""

from functools import partial, partialmethod

import pytest
import torch

from atat_zoo.experiment import load
from atat_zoo.system.errors import UserError
from atat_zoo.training import resume, train, trainer
from atat_zoo.training.memory import compiles
from tests.training.test_resume import unfinished

SMALL = ["backbone.width=16", "train.precision=fp32", "train.steps=4", "train.save_every=2", "train.evaluate_every=3"]


@pytest.fixture
def quickly(monkeypatch):
    """Trace and differentiate what would be compiled, and run it without the minutes that a C++ compiler takes."""
    compile = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(compile, backend="aot_eager"))
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


@pytest.mark.slow
@pytest.mark.usefixtures("quickly")
def test_it_is_compiled_once_and_trains_the_same(tiny, monkeypatch):
    """Whatever number of positions is masked; an evaluation on the way compiles nothing else, and a resume the same."""
    from torch._dynamo.utils import counters

    from atat_zoo.diffusion import chunks

    monkeypatch.setattr(chunks, "LOGITS", 1 << 12)
    curves = {}
    with torch._dynamo.config.patch(error_on_recompile=True):
        for compiled in ("false", "true"):
            torch._dynamo.reset()
            counters.clear()
            words = [*SMALL, f"train.compile={compiled}", "backbone.checkpoint_activations=true"]
            assert train(load(str(tiny.path), words), tiny.root / f"compiled-{compiled}").finished
            curves[compiled] = [line["loss"] for line in tiny.losses(f"compiled-{compiled}").values()]
            # The backbone, and the losses of a chunk.
            assert counters["stats"]["unique_graphs"] == 2 * (compiled == "true")
            assert not counters["graph_break"]
        assert curves["true"] == pytest.approx(curves["false"], rel=1e-4)
        torch._dynamo.reset()
        folder = unfinished(tiny, tiny.root / "compiled-true", "compiled-resumed", step=2)
        assert resume(folder).finished
    assert tiny.losses(folder) == tiny.losses("compiled-true")
    assert tiny.weights(folder) == tiny.weights("compiled-true")


def test_without_a_compiler_it_is_refused_before_anything_is_built(tiny, tmp_path):
    from torch._inductor import config, cpp_builder

    wanted = load(str(tiny.path), ["train.compile=true", f"data.root={tmp_path / 'no'}"])
    cpp_builder.cpp_compiler_search.cache_clear()
    try:
        with (
            config.patch({"cpp.cxx": (str(tmp_path / "g++"),)}),
            pytest.raises(UserError, match=r"train.compile needs a C\+\+ compiler, but none was found; install"),
        ):
            train(wanted, tmp_path / "run")
    finally:
        cpp_builder.cpp_compiler_search.cache_clear()
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
def test_auto_compiles_on_a_gpu_and_the_recipes_for_one_say_so(tiny, monkeypatch):
    assert compiles("auto", "cuda:0")
    assert not compiles("auto", "cpu")
    assert compiles(True, "cpu")
    assert not compiles(False, "cuda:0")
    recipes = [load(f"{folder}/mdlm").train.compile for folder in ("owt-small", "lm1b", "text8", "wikitext103")]
    assert recipes == ["auto"] * 4
    monkeypatch.setattr(trainer, "compile_objective", lambda _: pytest.fail("it was compiled"))
    words = [*SMALL, "train.compile=auto", "train.device=cpu", "train.steps=1"]
    assert train(load(str(tiny.path), words), tiny.root / "auto-on-a-cpu").finished
