"""A process that dies at a moment, as the file system sees it: from then on nothing is done to any file."""

import os

import pytest

# What changes the file system, or makes a change of it durable.
CALLS = ("fsync", "ftruncate", "mkdir", "open", "pwrite", "rename", "replace", "rmdir", "unlink")


class Death(BaseException):
    """What each of these calls raises from a moment on."""


def dies(do, at):
    """Do something until this call, counted from 0, and nothing after; return whether it came so far."""
    calls = 0

    def counted(call):
        def counting(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > at:
                raise Death
            return call(*args, **kwargs)

        return counting

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, counted(getattr(os, name)))
        try:
            do()
        except Death:
            return True
    return False
