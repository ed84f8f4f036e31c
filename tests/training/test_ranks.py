"""Whatever ranks, nodes and micro-batches share a batch, whoever starts them: the same training to rounding."""

import pytest

from tests import forked
from tests.training.test_resume import unfinished

pytestmark = pytest.mark.slow

# Eight rows in a step, and no importance, whose rounding might change a mask now and then.
WORDS = ("train.steps=6", "train.save_every=2", "train.precision=fp32", 'masking={use="uniform"}')
# What torchrun tells a process that it starts, and what it runs.
TORCHRUN = """
import os, runpy
os.environ["GROUP_RANK"] = os.environ.pop("NODE_RANK")
if {nodes} > 1:
    os.environ |= {{"GROUP_RANK": os.environ["RANK"], "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}}
runpy.run_module("atat_zoo.train", run_name="__main__")
"""


def torchrun(tiny, *words, nodes=1):
    """Train on two ranks, which are on one node or on two; returns what all print."""
    ranks = forked.ranks(2, words, tiny.root, code=TORCHRUN.format(nodes=nodes))
    said = "".join(rank.communicate()[0] for rank in ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return said


def test_ranks_nodes_and_micro_batches_share_a_batch(tiny):
    """Eight rows at once on one rank; one at a time on each of two; three and one on each of two nodes, which go on."""
    alone = tiny.losses(tiny.train("alone", *WORDS, "train.microbatch_size=8"))
    torchrun(tiny, str(tiny.path), "--out", "by-torchrun", *WORDS, "train.microbatch_size=1")
    torchrun(tiny, str(tiny.path), "--out", "on-nodes", *WORDS, "train.microbatch_size=3", nodes=2)
    on_nodes = unfinished(tiny, tiny.root / "on-nodes", "on-nodes-resumed", step=4)
    assert "continuing on-nodes-resumed after step 4" in torchrun(tiny, "--resume", on_nodes.name, nodes=2)
    assert tiny.losses(on_nodes) == tiny.losses("on-nodes")
    assert tiny.weights(on_nodes) == tiny.weights("on-nodes")
    for run in ("by-torchrun", "on-nodes"):
        shared = tiny.losses(run)
        assert list(shared) == list(alone) == [1, 2, 3, 4, 5, 6]
        for step, line in alone.items():
            assert shared[step]["loss"] == pytest.approx(line["loss"], rel=1e-4), (run, step)
            assert shared[step]["mask_rates"] == line["mask_rates"], (run, step)
            assert shared[step]["mask_rate"] == pytest.approx(line["mask_rate"], abs=1e-6), (run, step)
