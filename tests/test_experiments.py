"""Every experiment that ships validates, and those that fit a CPU train."""

from __future__ import annotations

from pathlib import Path

import pytest

from atat_zoo.experiment import from_table, load

ROOT = Path(__file__).parents[1] / "experiments"
ALL = sorted(p for p in ROOT.rglob("*.toml") if "base" not in p.relative_to(ROOT).parts)
CPU = [p for p in ALL if p.parent == ROOT]
# The source documents' table.
TABLE = {"mdlm", "atat", "importance_only", "no_importance", "no_curriculum", "curriculum_only"}


def test_the_table_is_there_at_every_size() -> None:
    for folder in (ROOT, *(ROOT / size for size in ("owt-small", "lm1b", "wikitext103", "text8"))):
        assert {p.stem for p in folder.glob("*.toml")} >= TABLE, folder


@pytest.mark.parametrize("path", ALL, ids=lambda p: str(p.relative_to(ROOT)))
def test_it_validates_and_resolves_to_itself(path: Path) -> None:
    made = load(str(path))
    assert made.name == "-".join(path.relative_to(ROOT).with_suffix("").parts)
    assert from_table(made.to_table()) == made


def test_the_variants_differ_in_what_their_names_say() -> None:
    used = {
        name: tuple(load(name).parts[kind].name for kind in ("estimator", "masking", "curriculum", "sampler"))
        for name in TABLE
    }
    assert used == {
        "mdlm": ("uniform", "uniform", "none", "ancestral"),
        "atat": ("transformer", "importance", "three_stage", "uncertainty_guided"),
        "importance_only": ("transformer", "importance", "none", "ancestral"),
        "no_importance": ("frequency", "uniform", "three_stage", "uncertainty_guided"),
        "no_curriculum": ("transformer", "importance", "none", "uncertainty_guided"),
        "curriculum_only": ("transformer", "uniform", "three_stage", "ancestral"),
    }


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shards")


@pytest.mark.slow
@pytest.mark.parametrize("path", CPU, ids=lambda p: p.stem)
def test_the_cpu_sized_train(path: Path, shards: Path, tmp_path: Path) -> None:
    from atat_zoo.training import train

    small = ["train.steps=3", "train.batch_size=8", "evaluation.sequences=8", "evaluation.draws=1", "train.log_every=1"]
    experiment = load(str(path), [*small, f'data.root="{shards}"'])
    result = train(experiment, tmp_path / "run")
    assert result.finished
    assert len(result.folder.read_metrics()) == 3
    assert result.evaluation is not None
    assert 1 < result.evaluation.nelbo.value < 2 * (result.evaluation.unigram_perplexity or 0)
