"""Word classes by spelling, from lists of English function words, capitals and digits, without torch.

A name is a capitalised word that does not begin a sentence. Names at the beginning of a sentence, and all names in a
text without capitals, are treated as content words. The full stop of an abbreviation or an initial does not end a
sentence.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files

from atat_zoo.system.parsing import from_toml

FUNCTION, CONTENT, NAME, NUMBER, PUNCTUATION = range(5)
CLASSES = ("function words", "content words", "names", "numbers", "punctuation")

# U+FFFD, which stands for a part of a character, counts as a letter.
_PIECE = re.compile(
    r"(?P<word>[^\W\d_\ufffd]|\ufffd)(?:[^\W_]|\ufffd|['’](?=\w))*|(?P<number>\d(?:[\d.,]*\d)?[^\W_]*)|(?P<mark>\S)"
)
_ENDS, _THROUGH = ".!?:", "\"'“”‘’()[]-–—"  # ends of a sentence, and marks that may precede the next one


@cache
def _lists() -> dict[str, frozenset[str]]:
    table = from_toml((files("atat_zoo_paper") / "words.toml").read_text(encoding="utf-8"))
    return {name: frozenset(words.split()) for name, words in table.items()}


def word_classes(tokens: Sequence[str]) -> list[int | None]:
    """Return the word class of each token, as an index into `CLASSES`: that of the first word or mark that it overlaps.

    `tokens` are the texts of tokens decoded one by one. A token without visible characters has the class None.
    """
    at = [None if character.isspace() else PUNCTUATION for character in "".join(tokens)]
    for begin, end, number in _pieces("".join(tokens)):
        at[begin:end] = [number] * (end - begin)
    spans, begin = [], 0
    for token in tokens:
        spans.append(at[begin : begin + len(token)])
        begin += len(token)
    return [_first(span) for span in spans]


def _first(span: Iterable[int | None]) -> int | None:
    return next((number for number in span if number is not None), None)


def _pieces(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield the start, end and class of each word, number and punctuation mark."""
    begins, last, before = True, 0, ""  # whether a sentence begins, and what stands before
    for found in _PIECE.finditer(text):
        begin, end = found.span()
        begins |= "\n" in text[last:begin]
        last = end
        if found["mark"]:
            yield begin, end, PUNCTUATION
            ends = found["mark"] in _ENDS and not (found["mark"] == "." and _abbreviated(before))
            begins = ends or (begins and found["mark"] in _THROUGH)
        else:
            yield begin, end, NUMBER if found["number"] else _of_word(found[0], begins)
            begins = False
        before = found[0]


def _abbreviated(word: str) -> bool:
    initial = len(word) == 1 and word.isupper() and word != "I"  # which is a pronoun, as a rule
    return initial or word.lower() in _lists()["abbreviations"]


def _of_word(word: str, begins: bool) -> int:
    lists, lower = _lists(), word.lower().replace("’", "'")
    if lower in lists["numbers"]:
        return NUMBER
    if not lists["function"].isdisjoint((lower, lower.partition("'")[0])) or lower.endswith("n't"):
        return FUNCTION
    return NAME if word[0].isupper() and not begins else CONTENT
