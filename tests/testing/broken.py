"""Parts with one mistake: working ones with one method replaced, so that nothing else can be what the suite finds."""

import functools

import pytest


class Changed:
    """A part of which some attributes are replaced: methods by functions of the original and its arguments."""

    def __init__(self, good, **changes):
        self.good, self.changes = good, changes

    @property
    def __class__(self):
        return self.good.__class__

    def __getattr__(self, name):
        if name == "build" and name not in self.changes and not self.good.network:
            return lambda context: self  # as the component without a network is what it builds
        original = getattr(self.good, name)
        change = self.changes.get(name, original)
        return functools.partial(change, original) if callable(change) and name in self.changes else change

    def __call__(self, *arguments):
        return self.changes["call"](self.good, *arguments) if "call" in self.changes else self.good(*arguments)


def having_built(good, breaks):
    """Return a part that hands the module that it builds to a function that breaks it."""

    def build(original, *arguments):
        module = original(*arguments)
        breaks(module)
        return module

    return Changed(good, build=build)


def building(good, **changes):
    """Return a part that builds a module with some methods replaced, by functions of the original and its arguments."""

    def breaks(module):
        for name, change in changes.items():
            method = getattr(module, name)
            # A module's own attributes come before those of its class.
            module.__dict__[name] = functools.wraps(method)(functools.partial(change, method))

    return having_built(good, breaks)


def parameters(check, broken):
    """Return test cases, a check, a part and what is said of it, from parts by what is said of them."""
    return [pytest.param(check, part, said, id=said[:50].replace("|", " or ")) for said, part in broken.items()]
