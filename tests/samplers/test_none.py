"""The remask that does nothing."""

from atat_zoo.samplers.remask import NoRemask
from atat_zoo.testing import check_remask
from atat_zoo.testing.sampling import example_step


def test_none_hides_nothing():
    check_remask(NoRemask())
    step = example_step(frozenset())
    assert not NoRemask()(step).any()
    assert NoRemask().rate(step) == 0
