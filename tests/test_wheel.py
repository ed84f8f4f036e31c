"""The built wheel, installed alone elsewhere, finds its menu and its experiments, and trains."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ASSETS = ("css", "html", "js")
ROOT = Path(__file__).parents[1]


def test_the_wheel_works_alone(tmp_path):
    def run(*words, **env):
        done = subprocess.run(
            words, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **env}, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    python = sys.executable
    run(python, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(ROOT))
    wheel = next((tmp_path / "dist").glob("*.whl"))
    site = tmp_path / "site"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel))
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
    small += ("data.sequences=64", "tokenizer.vocabulary_size=512", "backbone.layers=1", "backbone.width=64")
    said = run(*atat, "train", "quickstart", *small, **alone)
    assert "perplexity" in said
    assert (tmp_path / "runs" / "quickstart" / "model" / "model.json").is_file()
