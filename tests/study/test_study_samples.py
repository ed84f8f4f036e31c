"""The benchmark of what the samplers of the study write."""

import json
import math

import pytest

from benchmarks import study_samples
from tests.measure.making import make_run


@pytest.mark.slow
def test_texts_of_runs_are_judged(tmp_path, monkeypatch, capsys):
    pytest.importorskip("mauve", reason="the extra atat-zoo[mauve] is not installed")
    make_run(tmp_path, "judge")
    make_run(tmp_path, "writer", "mdlm")
    monkeypatch.setattr(study_samples, "RUNS", {"writer": study_samples.RUNS["bell-seed17"]})
    monkeypatch.setattr(study_samples, "RESULT", tmp_path / "study-samples.json")
    words = ["--runs", str(tmp_path), "--by", "judge", "--number", "20", "--write"]
    monkeypatch.setattr("sys.argv", ["benchmarks", "study_samples", *words])
    study_samples.main()
    rows = json.loads(study_samples.RESULT.read_text(encoding="utf-8"))
    assert [row["sampler"] for row in rows] == study_samples.RUNS["writer"]
    assert all(0 < row["mauve"] <= 1 and row["generative_perplexity"] > 1 for row in rows)
    assert capsys.readouterr().out.endswith(study_samples.table_of(rows) + "\n")


def written(use, entropy, perplexity, **settings):
    row = {"run": "a-seed17", "sampler": {"use": use, **settings}, "nfe": 16, "mauve": 0.5, "unigram_entropy": entropy}
    row |= {"nats_per_token": math.log(perplexity), "generative_perplexity": perplexity}
    return row | {"data": {"generative_perplexity": 30.0, "unigram_entropy": 4.1}}


def test_the_reference_is_as_diverse():
    ancestral = [written("ancestral", 3.9, 100.0), written("ancestral", 3.7, 25.0, temperature=0.8)]
    assert study_samples.at_entropy(ancestral, 3.8) == pytest.approx(50.0)
    assert study_samples.at_entropy(ancestral, 3.95) is None
    table = study_samples.table_of([*ancestral, written("strided", 3.8, 40.0, stride=16)])
    assert "| `a` | strided, stride = 16 | 16.0 | 40.0 | 3.80 | 50 (-20%) | 0.50 |" in table
    assert "| `a` | ancestral | 16.0 | 100.0 | 3.90 |  | 0.50 |" in table
