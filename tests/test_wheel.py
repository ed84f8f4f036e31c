"""The built wheel, installed alone elsewhere, finds its menu and its experiments, and trains."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

pytestmark = pytest.mark.slow
ASSETS = ("css", "html", "js")
ROOT = Path(__file__).parents[1]
# Prints what a trainer imports, too, which takes as long as the training.
TRAIN = """
import sys, atat_zoo.training.trainer
print(*sys.modules)
from atat_zoo.cli import main
main()
"""
WRITE_TEXTS = {
    "atat_zoo.generation.guided_denoiser",
    "atat_zoo.evaluation.tasks.infilling",
    "atat_zoo.evaluation.sample_quality",
}


def test_the_wheel_works_alone(tmp_path):
    def run(*words, **env):
        done = subprocess.run(
            words, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **env}, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    python = sys.executable
    run(python, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(ROOT))
    wheel, site = next((tmp_path / "dist").glob("*.whl")), tmp_path / "site"
    ZipFile(wheel).extractall(site)  # as pip would
    assert {path.name for path in (site / "atat_zoo" / "reports").glob("page.*")} == {f"page.{e}" for e in ASSETS}
    alone = {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    where = run(python, "-c", "import atat_zoo.registry.registry_file as m; print(m.shipped())", **alone)
    assert Path(where.strip()) == site / "atat_zoo" / "registry.toml"
    atat = (python, "-c", "from atat_zoo.cli import main; main()")
    assert "three_stage" in run(*atat, "zoo", "list", **alone)
    assert "wrote atat-zoo-mine" in run(*atat, "new", "backbone", "mine", **alone)
    package = tmp_path / "atat-zoo-mine"
    assert (package / "atat_zoo_mine" / "network.py").is_file()
    assert (package / ".github" / "workflows" / "test.yml").is_file()
    small = (
        "train.steps=3",
        "train.batch_size=8",
        "evaluation.sequences=8",
        "evaluation.mask_samples=1",
        "data.length=32",
    )
    small += (
        "corpus.first_year=1990",
        "data.sequences=64",
        "tokenizer.vocabulary_size=512",
        "backbone.layers=1",
        "backbone.width=64",
    )
    modules, _, said = run(python, "-c", TRAIN, "train", "quickstart", *small, **alone).partition("\n")
    assert "atat_zoo.modeling.objectives" in modules.split()
    assert not {*modules.split()} & WRITE_TEXTS, "a trainer does not import them"
    assert "perplexity" in said
    assert (tmp_path / "runs" / "quickstart" / "model" / "model.json").is_file()
