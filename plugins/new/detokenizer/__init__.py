"""A detokenizer for word pieces."""

from __future__ import annotations

import re

from atat_zoo.registry import component, hookimpl

CONTRACT = 2  # the version of atat_zoo's contracts that this package is written for
_INNER = re.compile(r"(?<=\S)@@ (?=\S)")


@component
class PlaceholderDetokenizer:
    """Joins `un@@ believ@@ able` to `unbelievable`, undoing the word pieces of subword-nmt."""

    name = "placeholder"
    summary = "undoes the @@ word pieces of subword-nmt"
    refs = ("arXiv:1508.07909",)

    def __call__(self, text: str) -> str:
        """Return a document with whole words."""
        return _INNER.sub("", text)


@hookimpl
def atat_zoo_detokenizer() -> list[type]:
    """Return the components of this package."""
    return [PlaceholderDetokenizer]
