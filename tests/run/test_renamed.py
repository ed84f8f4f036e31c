"""Keys of version 0.1 under the names of today."""

import pytest

from atat_zoo.run.renamed import RENAMED, today

OLD = {
    "drawing": {"use": "bernoulli"},
    "data": {"block": 256, "shard": 4096, "length": 64},
    "train": {
        "steps": 9,
        "optimizer": "adamw",
        "learning_rate": 0.001,
        "muon_learning_rate": 0.02,
        "schedule": "constant",
        "final_rate": 0.0,
        "warmup_steps": 100,
        "betas": [0.9, 0.999],
        "weight_decay": 0.0,
        "keep": 2,
    },
}


def test_every_key_moves_and_what_the_part_does_not_take_is_dropped():
    assert today(OLD) == {
        "mask_drawing": {"use": "bernoulli"},
        "data": {"length": 64, "sequences_per_member": 256, "sequences_per_shard": 4096},
        "train": {"steps": 9, "checkpoints_kept": 2},
        "optimizer": {"use": "adamw", "learning_rate": 0.001, "betas": [0.9, 0.999], "weight_decay": 0.0},
        "schedule": {"use": "constant", "warmup_steps": 100},
    }


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_what_the_part_takes_is_kept(schedule):
    found = today({"train": OLD["train"] | {"optimizer": "muon", "schedule": schedule, "final_rate": 0.1}})
    assert found["optimizer"]["muon_learning_rate"] == 0.02
    assert found["schedule"] == {"use": schedule, "warmup_steps": 100, "final_rate": 0.1}


def test_a_table_of_today_stays_as_it_is():
    now = today(OLD)
    assert today(now) == now
    assert not set(RENAMED) & set(RENAMED.values())
    assert "optimizer" in OLD["train"]  # what is given is not changed
