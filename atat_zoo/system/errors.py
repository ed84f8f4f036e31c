"""The exception for mistakes that the user can correct, and helpers for messages."""

from collections.abc import Sequence

import attrs


class UserError(Exception):
    """A mistake that the user can correct; its text has one line, a readable sentence, for each problem.

    The text names the file, the key and the remedy. The command line prints the text without a traceback and exits with
    code 2; Python code can catch the exception.
    """


@attrs.frozen
class Problem:
    """A mistake in a table: the path of its key, which may be empty, and a sentence with the remedy."""

    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.key else self.text


class Note(UserWarning):
    """A warning about a result that is nevertheless returned; its text is one readable sentence."""


class UnsavedNote(Note):
    """A warning that a result could not be saved."""


class OmissionNote(Note):
    """A warning that a value is missing from a result."""


def clip(text: object, most: int = 300) -> str:
    """Return a text for a message, cut if longer than `most` characters and quoted if not printable on one line."""
    text = str(text) if str(text).isprintable() else repr(str(text))
    return text if len(text) <= most else f"{text[: most * 2 // 3]}…"


def nearest(word: str, known: Sequence[str]) -> str:
    """Return `; did you mean 'x'?` for the closest known word, or an empty string."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
