"""A detokenizer for word pieces."""

from __future__ import annotations

import re

from atat_zoo.registry import component, hookimpl

CONTRACT = 2  # version of atat_zoo's contracts for which this package is written
_INNER = re.compile(r"(?<=\S)@@ (?=\S)")


@component
class PlaceholderDetokenizer:
    """Joins word pieces from subword-nmt, such as `un@@ believ@@ able` to `unbelievable`."""

    name = "placeholder"
    summary = "joins word pieces that subword-nmt marks with @@"
    refs = ("arXiv:1508.07909",)

    def __call__(self, text: str) -> str:
        """Return a document with its word pieces joined."""
        return _INNER.sub("", text)


@hookimpl
def atat_zoo_detokenizer() -> list[type]:
    """Return the detokenizers in this package."""
    return [PlaceholderDetokenizer]
