"""Detokenizers: restore ordinary text from the space-separated tokens of published benchmarks.

Perplexity depends on every space, so the rules equal those of the MDLM repository, which produced the field's
zero-shot table. Each detokenizer is a function of one document.
"""

import re
from collections.abc import Sequence
from typing import Protocol

from typing_extensions import override

from atat_zoo.registry import component


class Detokenizer(Protocol):
    """A component of the kind detokenizer."""

    name: str

    def __call__(self, text: str) -> str:
        """Return the detokenized document, a function of the text only."""


_SOURCE = "https://github.com/kuleshov-group/mdlm"
# A rule replaces one text, or what a pattern matches, by another; the order counts.
Rule = tuple[str | re.Pattern[str], str]


def _apply(rules: Sequence[Rule], text: str) -> str:
    for old, new in rules:
        text = text.replace(old, new) if isinstance(old, str) else old.sub(new, text)
    return text


def _joined(marks: str) -> list[Rule]:
    """Return rules that join each punctuation mark to the word before it."""
    return [(f" {mark} ", f"{mark} ") for mark in marks]


_LINES = re.compile("(?<=\n)")
# The published list has one rule more, for a digit between "/' " and "/": it matches no prose.
_WIKITEXT: tuple[Rule, ...] = (
    ("s '", "s'"),
    *((f" @{mark}@ ", mark) for mark in "-,."),
    *_joined(":;.!?,"),
    *(
        (re.compile(rf"{left}\s*([^{right}]*?)\s*{right}"), pair)
        for left, right, pair in (
            (r"\(", r"\)", r"(\1)"),
            (r"\[", r"\]", r"[\1]"),
            ("{", "}", r"{\1}"),
            ('"', '"', r'"\1"'),
            ("'", "'", r"'\1'"),
        )
    ),
    ("= = = =", "===="),
    ("= = =", "==="),
    ("= =", "=="),
    (" ° ", "°"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
)
_PTB: tuple[Rule, ...] = (
    (" 's", "'s"),
    ("s ' ", "s' "),
    (" n't", "n't"),
    (" \n ", "\n"),
    ("\\/", "/"),
    # Neighbours share a space: the second of two is found in the next round.
    *[(" N ", " 1 ")] * 10,
    ("$ 1", "$1"),
    ("# 1", "#1"),
    ("<unk>", "?"),
)
_LM1B: tuple[Rule, ...] = (
    ("http : / / ", "http://"),
    ("https : / / ", "https://"),
    (re.compile(r" '(\w+)"), r"'\1"),
    (re.compile(r" (\w+) \. "), r" \1. "),
    (re.compile(r" (\w+) \.$"), r" \1."),
    *(rule for mark in "?!" for rule in ((f" {mark} ", f"{mark} "), (re.compile(rf" \{mark}$"), mark))),
    *_joined(",:;"),
    (" / ", "/"),
    (re.compile(r'" ([^"]+) "'), r'"\1"'),
    (re.compile(r"' ([^']+) '"), r"'\1'"),
    (re.compile(r"\( ([^\(\)]+) \)"), r"(\1)"),
    (re.compile(r"\[ ([^\[\]]+) \]"), r"[\1]"),
    ("$ ", "$"),
    ("£ ", "£"),
)


@component
class NoDetokenizer(Detokenizer):
    """The text unchanged, as for AG News, OpenWebText and text8."""

    name = "none"
    summary = "no detokenization"

    @override
    def __call__(self, text: str) -> str:
        return text


@component
class WikiTextDetokenizer(Detokenizer):
    """WikiText: contractions, `@-@`, punctuation, brackets, quotation marks, headings, `N` for a number."""

    name = "wikitext"
    summary = "WikiText: undoes @-@, spaces before punctuation and inside brackets, headings"
    refs = (_SOURCE, "arXiv:1609.07843")

    @override
    def __call__(self, text: str) -> str:
        # Line by line, as MDLM reads it: a quotation mark has its partner in the same paragraph.
        return "".join(_apply(_WIKITEXT, line) for line in _LINES.split(text))


@component
class PTBDetokenizer(Detokenizer):
    """Penn Treebank: contractions, slashes, `N` for a number, `<unk>` as a question mark; strips white space."""

    name = "ptb"
    summary = "Penn Treebank: undoes split contractions, N for a number; <unk> becomes a question mark"
    refs = (_SOURCE, "https://aclanthology.org/J93-2004/")

    @override
    def __call__(self, text: str) -> str:
        return _apply(_PTB, text.strip())


@component
class LM1BDetokenizer(Detokenizer):
    """One Billion Words: URLs, contractions, punctuation, quotation marks, brackets, currencies."""

    name = "lm1b"
    summary = "One Billion Words: undoes split contractions, punctuation, quotation marks, currencies"
    refs = (_SOURCE, "arXiv:1312.3005")

    @override
    def __call__(self, text: str) -> str:
        return _apply(_LM1B, text.strip())


@component
class LambadaDetokenizer(Detokenizer):
    """LAMBADA: straight double quotation marks, stripped white space, and a newline before the passage."""

    name = "lambada"
    summary = "LAMBADA: straight quotation marks, a newline at the start"
    refs = (_SOURCE, "arXiv:1606.06031")

    @override
    def __call__(self, text: str) -> str:
        return "\n" + text.translate({ord(mark): '"' for mark in "“”"}).strip()


@component
class ScientificPapersDetokenizer(Detokenizer):
    """arXiv and PubMed: the rules of WikiText, then those of One Billion Words."""

    name = "scientific_papers"
    summary = "arXiv and PubMed articles: applies wikitext, then lm1b"
    refs = (_SOURCE, "arXiv:1804.05685")

    @override
    def __call__(self, text: str) -> str:
        return _apply(_LM1B, _apply(_WIKITEXT, text))
