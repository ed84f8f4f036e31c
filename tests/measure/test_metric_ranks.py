"""Two processes of a group find what one finds: every metric that ships, and those of installed plugins."""

import multiprocessing
import socket

import pytest
import torch
from torch import distributed

from atat_zoo import Zoo
from atat_zoo.machine import lacking
from atat_zoo.testing.conformance import example_of
from atat_zoo.testing.metrics import example, shown

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


def run_rank(rank, port, names, folder, answers):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    answers.put((rank, measured(names, folder, rank, 2)))
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory):
    """Return what each of two processes finds together with the other, by metric."""
    folder = tmp_path_factory.mktemp("ranks")
    names = [name for name in NAMES if not lacking([made(name, folder)])]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("spawn")
    answers = fork.Queue()
    ranks = [fork.Process(target=run_rank, args=(rank, port, names, folder, answers)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    found = dict(answers.get(timeout=300) for _ in ranks)
    for rank in ranks:
        rank.join(60)
    return found, measured(names, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_find_what_one_finds(of_two_ranks, name, tmp_path):
    found, alone = of_two_ranks
    for problem in lacking([made(name, tmp_path)]):  # a package that is not installed
        pytest.skip(str(problem))
    for rank in (0, 1):
        assert found[rank][name].value == pytest.approx(alone[name].value, abs=1e-6)
        assert found[rank][name].stderr == (alone[name].stderr and pytest.approx(alone[name].stderr, abs=1e-6))
