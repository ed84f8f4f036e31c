"""Detokenizers, which restore ordinary text from the space-separated tokens of published benchmarks.

Perplexity depends on every space, so the rules are identical to those in the MDLM repository, which produced MDLM's
zero-shot perplexities. Each detokenizer is a function of one document.
"""

import re
from collections.abc import Sequence
from typing import Protocol

from typing_extensions import override

from atat_zoo.registry import component


class Detokenizer(Protocol):
    """The base class of detokenizers."""

    name: str

    def __call__(self, text: str) -> str:
        """Return the detokenized document; the result depends only on `text`."""


_SOURCE = "https://github.com/kuleshov-group/mdlm"
# A rule replaces a string, or the matches of a pattern, with a string; the order of rules matters.
Rule = tuple[str | re.Pattern[str], str]


def _apply(rules: Sequence[Rule], text: str) -> str:
    for old, new in rules:
        text = text.replace(old, new) if isinstance(old, str) else old.sub(new, text)
    return text


def _joined(marks: str) -> list[Rule]:
    """Return rules that join each punctuation mark to the previous word."""
    return [(f" {mark} ", f"{mark} ") for mark in marks]


_LINES = re.compile("(?<=\n)")
# The published list has one more rule, for a digit between "/' " and "/", which matches no prose.
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
    # Neighbours share a space, so the second of two is replaced in the next round.
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
    """Leaves the text unchanged, as for AG News, OpenWebText and text8."""

    name = "none"
    summary = "no detokenization"

    @override
    def __call__(self, text: str) -> str:
        return text


@component
class WikiTextDetokenizer(Detokenizer):
    """Restores contractions, punctuation, brackets, quotation marks, headings, `@-@` and `N` (a number) in WikiText."""

    name = "wikitext"
    summary = "WikiText: undoes @-@ and restores punctuation, brackets and headings"
    refs = (_SOURCE, "arXiv:1609.07843")

    @override
    def __call__(self, text: str) -> str:
        # Line by line, as MDLM reads it: a quotation mark has its partner in the same paragraph.
        return "".join(_apply(_WIKITEXT, line) for line in _LINES.split(text))


@component
class PTBDetokenizer(Detokenizer):
    """Restores contractions and slashes in Penn Treebank; writes `N` as 1 and `<unk>` as `?`; strips white space."""

    name = "ptb"
    summary = "Penn Treebank: restores contractions; N (a number) becomes 1, and <unk> a question mark"
    refs = (_SOURCE, "https://aclanthology.org/J93-2004/")

    @override
    def __call__(self, text: str) -> str:
        return _apply(_PTB, text.strip())


@component
class LM1BDetokenizer(Detokenizer):
    """Restores URLs, contractions, punctuation, quotation marks, brackets and currencies in One Billion Words."""

    name = "lm1b"
    summary = "One Billion Words: restores contractions, punctuation, quotation marks and currencies"
    refs = (_SOURCE, "arXiv:1312.3005")

    @override
    def __call__(self, text: str) -> str:
        return _apply(_LM1B, text.strip())


@component
class LambadaDetokenizer(Detokenizer):
    """Straightens double quotation marks in LAMBADA, strips white space, and adds a newline before the passage."""

    name = "lambada"
    summary = "LAMBADA: straightens quotation marks and adds a newline at the start"
    refs = (_SOURCE, "arXiv:1606.06031")

    @override
    def __call__(self, text: str) -> str:
        return "\n" + text.translate({ord(mark): '"' for mark in "“”"}).strip()


@component
class ScientificPapersDetokenizer(Detokenizer):
    """Applies the rules for WikiText and then those for One Billion Words to arXiv and PubMed articles."""

    name = "scientific_papers"
    summary = "arXiv and PubMed articles: applies wikitext, then lm1b"
    refs = (_SOURCE, "arXiv:1804.05685")

    @override
    def __call__(self, text: str) -> str:
        return _apply(_LM1B, _apply(_WIKITEXT, text))
