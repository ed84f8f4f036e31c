"""Signals that a training or a study receives itself."""

import os
import signal
import threading

import pytest

from atat_zoo.system.interruption import Interruption


def test_each_signal_is_received_and_the_first_is_kept():
    received = []
    interruption = Interruption(lambda number, again: received.append((number, again)))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with interruption as entered:
        assert entered is interruption
        assert interruption.signal is None
        assert not {signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} & {*before}
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
    assert received == [(signal.SIGTERM, False), (signal.SIGINT, True)]
    assert interruption.signal == signal.SIGTERM
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_in_another_thread_signals_stay_with_its_caller():
    before, within = signal.getsignal(signal.SIGINT), []

    def run():
        with Interruption(pytest.fail):
            within.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert within == [before]
