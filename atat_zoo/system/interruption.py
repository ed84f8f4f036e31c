"""Catch Ctrl-C and SIGTERM, so that a program can stop at a safe point."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interruption:
    """Catches Ctrl-C and SIGTERM in a `with` block of the main thread; `signal` is the first one, or None.

    `receive` is called with the number of each signal and whether an earlier signal was caught.
    """

    def __init__(self, receive: Callable[[int, bool], object]) -> None:
        self.signal: int | None = None
        self._receive = receive
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        # Python delivers signals only to the main thread; code in a different thread is stopped by its caller.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = self.signal is not None
        self.signal = self.signal or number
        self._receive(number, again)
