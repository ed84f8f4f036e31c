"""How many examples a property has whose examples are costly."""

from hypothesis import settings


def at_most(number):
    """Return settings with this number of examples, or with the usual one if that is less."""
    return settings(max_examples=min(number, settings.default.max_examples))
