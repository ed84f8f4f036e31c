"""Two processes of a group find what one finds: every metric that ships, and those of installed plugins."""

import multiprocessing
import traceback
from datetime import timedelta

import pytest
import torch
from torch import distributed

from atat_zoo import Zoo
from atat_zoo.system.machine import lacking
from atat_zoo.testing.conformance import example_of
from atat_zoo.testing.metrics import example, shown

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
NAMES = Zoo.load().names("metric")


def made(name, folder):
    """Return a metric, with the parameters of its example if it has one."""
    given = example_of(Zoo.load().describe("metric", name))
    return Zoo.load().spec("metric", {"use": name, **(given(folder) if given else {})})


def measured(names, folder, rank=0, ranks=1):
    """Return what each metric finds in a rank's share of 60 predictions or texts, together with the other ranks."""
    found = {}
    for name in names:
        metric = made(name, folder)
        pieces = example(metric)
        mine = torch.arange(60)[rank::ranks].split(13)
        (value,) = shown(metric, [pieces(rows) for rows in mine]).values().values()
        found[name] = value
    return found


def run_rank(rank, names, folder, answers):
    # They meet at a file: a free port may be taken by another test before they have it.
    how = {"rank": rank, "world_size": 2, "timeout": timedelta(seconds=120)}
    try:
        distributed.init_process_group("gloo", f"file://{folder}/meeting", **how)
        answers.put((rank, measured(names, folder, rank, 2)))
    except Exception:
        answers.put((rank, traceback.format_exc()))
    # The group is left as it is, and the process killed: taking a group down may wait for ever, and then holds back
    # the thread that sends the answer.
    answers.close()
    answers.join_thread()


@pytest.mark.slow
def test_two_ranks_find_what_one_finds(tmp_path):
    names = [name for name in NAMES if not lacking([made(name, tmp_path)])]
    alone = measured(names, tmp_path)  # first, so that what it imports is there in the other two
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    ranks = [fork.Process(target=run_rank, args=(rank, names, tmp_path, answers)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    try:
        found = dict(answers.get(timeout=300) for _ in ranks)
    finally:
        for rank in ranks:  # nothing is left for other tests
            rank.kill()
            rank.join()
    for of_rank in found.values():
        assert isinstance(of_rank, dict), of_rank
        for name, value in of_rank.items():
            assert value.value == pytest.approx(alone[name].value, abs=1e-6), name
            assert value.stderr == (alone[name].stderr and pytest.approx(alone[name].stderr, abs=1e-6)), name
