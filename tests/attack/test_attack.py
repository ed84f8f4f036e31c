"""A short attack of each kind, from a fixed seed; `make attack` is the long one."""

from functools import partial
from importlib import import_module

import pytest

from tests.attack import driver

pytestmark = pytest.mark.slow

# kind -> cases in the suite; a case of `endurance` alone takes two minutes, and atat-zoo-checkpoints tries `received`
CASES = {
    "kills": (0, 5),  # 5 over HTTP; tests/training/test_resume.py kills two ranks, and loader workers
    "replacements": (0, 1, 4, 14),  # train, paper, and a trace twice, of which no stop reaches one
    "experiments": range(80),
    "command_lines": range(10),
    "artefacts": range(4),
    "corpora": range(2),
    "archives": (0, 1, 2, 3, 8, 16),
    "connections": range(1),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_lost_and_nothing_trusted(name):
    kind = import_module(f"tests.attack.{name}").KIND
    if name == "kills":
        kind = kind._replace(prepare=partial(kind.prepare, variants=("one", "foreign")))
    tally = driver.run(kind, CASES[name], seed=17)
    # What was stopped, and then continued to its end, counts as refused.
    assert tally.count(driver.FINE) > 0 or name == "kills"
    said = [f"{why}\n{driver.reproduction(name, 17, number)}" for number, why in tally.failures.items()]
    assert not said, "\n\n".join(said)


def test_a_case_follows_from_its_seed_and_number(tmp_path):
    from tests.attack import command_lines, experiments

    for number in range(6):
        one, other = (driver.source("experiments", 3, number) for _ in range(2))
        places = tmp_path / f"{number}-one", tmp_path / f"{number}-other"
        assert experiments.compose(one, places[0]) == experiments.compose(other, places[1])
        files = [{p.name: p.read_bytes() for p in place.glob("*.toml") if p.is_file()} for place in places]
        assert files[0] == files[1]
        one, other = (driver.source("command_lines", 3, number) for _ in range(2))
        assert command_lines.command_line(one) == command_lines.command_line(other)


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        (driver.Ended(1, "", "Traceback (most recent call last):\n  x\nKeyError: 'device'\n", 0), "KeyError: 'device'"),
        (driver.Ended(-6, "", "memory allocation of 9 bytes failed", 0), "exit code -6"),
        (driver.Ended(None, "", "", 0), "does not end"),
        (driver.Ended(0, "", "", driver.MEMORY + 1), "MiB of memory"),
        (driver.Ended(2, "", "", 0), "refused without a word"),
        (driver.Ended(2, "", "error: x\x1b[31m\n", 0), "a message with"),
        (driver.Ended(0, "fine", "", 0), ""),
        (driver.Ended(2, "", "error: no such file\n", 0), ""),
    ],
)
def test_how_an_end_is_judged(ended, why):
    found = driver.judge(ended).why
    assert why in found
    assert bool(found) == bool(why)
