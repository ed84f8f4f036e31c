"""An export answers and writes where there is no atat_zoo as the run does here, and again after it is saved there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from atat_zoo_checkpoints.model_export import export_run
from making import wanted_of
from safetensors.torch import save_file

from tests.generation.forms import V, model_of, run_of

pytestmark = pytest.mark.slow  # the logits of every form are compared in test_exported_models.py, in this process
PROMPT = [256, 87, 101, 32]
FORMS = ("mdlm", "timed", "sets", "strided", "autoregressive")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What a process that cannot import atat_zoo found in the export of each form."""
    root = tmp_path_factory.mktemp("outside")
    for name in FORMS:
        model = model_of(name)
        export_run(run_of(model, root / f"run-{name}").path, root / name)
        wanted = wanted_of(model, model.experiment.parts["objective"].hub_form)
        start = [V] if name == "autoregressive" else []
        wanted["prompt"] = torch.tensor([start + PROMPT])
        save_file(wanted, root / f"{name}.safetensors")
    script = Path(__file__).with_name("outside.py")
    env = {"PATH": os.environ["PATH"], "HF_HOME": str(root / "hub"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-I", str(script), *(str(root / name) for name in FORMS)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", FORMS)
def test_the_logits_are_the_same_and_it_writes_and_keeps_what_is_given(name, found):
    for when in ("first", "again"):
        assert found[name][when]["apart"] < 1e-5
        assert found[name][when]["mask"] == 0
        assert found[name][when]["alone"] < 1e-5, "a row does not depend on its batch"
        (written,) = found[name][when]["written"]
        given = [V, *PROMPT] if name == "autoregressive" else PROMPT
        assert written[: len(given)] == given
        assert all(0 <= token < V for token in written[len(given) :])
        assert name == "autoregressive" or len(written) == len(given) + 4
    assert found[name]["first"]["written"] == found[name]["again"]["written"], "the sampler goes along"
    assert found[name]["text"] == "We häß you"
    assert found[name]["files"] > 1
    assert found[name]["card"].startswith("torch.Size([1, "), "the code of the card runs"
