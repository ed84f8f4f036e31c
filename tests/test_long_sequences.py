"""docs/results/long-sequences.md against the results of its command, and what the command measures."""

import json

import pytest
import torch

from atat_zoo.training.memory import keep_freed_memory
from benchmarks import long_sequences
from benchmarks.long_sequences import apart, expected, table_of

ROWS = [
    {"backbone": backbone, "training": training, "length": length, "bytes": size << 20, "seconds": seconds}
    for backbone, training, length, size, seconds in [
        ("gated_convolution", True, 4096, 4096, 4.0),
        ("gated_convolution", True, 1024, 1024, 2.0),
        ("gated_convolution", False, 1024, 8, 1.0),
        ("dit", True, 1024, 7, 3.0),
        ("dit", False, 1024, 6, 0.5),
        ("dit", False, 4096, 5, 7.0),
    ]
]


def test_the_page_and_the_curves_say_what_was_measured():
    found = json.loads(long_sequences.RESULT.read_text(encoding="utf-8"))
    assert f"long_sequences -->\n\n{table_of(found)}" in long_sequences.PAGE.read_text(encoding="utf-8")
    assert long_sequences.digest(found) in long_sequences.FIGURE.read_text(encoding="utf-8")
    assert all(row["bytes"] < 1 << 33 and row["seconds"] > 0 for row in found["rows"])


def test_a_cell_has_the_memory_and_the_time_of_a_token_or_the_time_that_it_would_take():
    assert table_of({"rows": ROWS}).splitlines()[2:] == [
        "| 1,024 | 1,024 MiB, 1.00 | 7 MiB, 1.00 | 8 MiB, 1.00 | 6 MiB, 1.00 |",
        "| 4,096 | 4,096 MiB, 0.50 | not measured, about 48 s | not measured, about 4 s | 5 MiB, 3.50 |",
    ]


def test_the_time_of_a_row_follows_from_the_next_shorter_one():
    assert expected(ROWS, "gated_convolution", 16_384, True) == 16.0
    assert expected(ROWS, "dit", 16_384, False) == 7.0 * 16
    assert expected(ROWS, "dit", 1024, True) == 0.0


def test_a_training_step_keeps_more_in_memory_than_a_forward_pass(monkeypatch):
    monkeypatch.setattr(long_sequences, "REPEATED", 1)
    keep_freed_memory()  # as a test before this one may have done
    del [torch.ones(1 << 20) for _ in range(64)][:]
    step, read = (apart("dit", 1024, training) for training in (True, False))
    assert step["bytes"] > 1.5 * read["bytes"] > 2**20
    assert step["weights"] == read["weights"] == pytest.approx(5e5, rel=0.1)
