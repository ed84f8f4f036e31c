"""What the zoo computes is what it computed when the record was made."""

import json
from pathlib import Path

import pytest

from tests.golden import make
from tests.golden.compare import differences

HERE = Path(__file__).parent
RECORD = json.loads((HERE / "golden.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_nothing_that_is_computed_has_changed():
    made = make.record()
    found = differences(RECORD, made)
    assert not found, "\n".join(found[:40])
    assert made["drawn"] == RECORD["drawn"]  # also of a new sampler


def test_a_difference_is_seen():
    other = json.loads(json.dumps(RECORD))
    other["texts"]["mdlm"]["a new sampler"] = [[[1]]]
    other["resolved"]["each"]["a/new experiment"] = {"seed": 1}
    assert differences(RECORD, other) == []
    text = other["texts"]["mdlm"].pop("ancestral")
    rows = [f"texts.mdlm.ancestral{row} is gone" for row in ("", "[0][0]", "[0][1]", "[1][0]", "[1][1]")]
    assert differences(RECORD, other) == rows
    other["texts"]["mdlm"]["ancestral"] = text
    other["texts"]["mdlm"]["ancestral"][1][0][3] += 1
    assert [line.partition(":")[0] for line in differences(RECORD, other)] == ["texts.mdlm.ancestral[1][0]"]
    other["texts"]["mdlm"]["ancestral"][1][0][3] -= 1
    other["training"]["mdlm"]["metrics"][-1]["loss"] *= 1 + 1e-3
    assert differences(RECORD, other) != []
    other["machine"]["torch"] = "another"
    assert [line.partition(":")[0] for line in differences(RECORD, other)] == ["training.mdlm.metrics[2].loss"]


def test_on_another_processor_most_texts_are_the_same_and_all_that_are_drawn_from_given_logits():
    other = json.loads(json.dumps(RECORD))
    other["machine"]["processor"] = "another"
    names = list(other["texts"]["mdlm"])
    for name in names[:10]:
        other["texts"]["mdlm"][name][0][0][0] += 1
    assert differences(RECORD, other) == []
    other["drawn"]["ancestral"][1][3] += 1
    assert [line.partition(":")[0] for line in differences(RECORD, other)] == ["drawn.ancestral[1][3]"]
    other["drawn"]["ancestral"][1][3] -= 1
    for name in names:
        other["texts"]["mdlm"][name] = [[[0]]]
    assert len(differences(RECORD, other)) > len(names)
