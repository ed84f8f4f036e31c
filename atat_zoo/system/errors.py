"""The one exception for mistakes that the person at the keyboard can mend, and the words of messages."""

from collections.abc import Sequence

import attrs


class UserError(Exception):
    """A mistake of the user: its text is one readable sentence per problem.

    The text names the file, the key and the remedy. The command line prints it
    without a traceback and exits with code 2; Python code may catch it.
    """


@attrs.frozen
class Problem:
    """A mistake in a table: the path of its key, empty if it is in none, and a sentence with the remedy."""

    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.key else self.text


class Note(UserWarning):
    """What the user should know of a result that is returned all the same; its text is one readable sentence."""


class UnsavedNote(Note):
    """A result that could not be saved."""


class OmissionNote(Note):
    """A figure that is left out of a result."""


def clip(text: object, most: int = 300) -> str:
    """Return a text for a message: at most `most` characters of it, quoted when it would not print as one line."""
    text = str(text) if str(text).isprintable() else repr(str(text))
    return text if len(text) <= most else f"{text[: most * 2 // 3]}…"


def nearest(word: str, known: Sequence[str]) -> str:
    """Return `; did you mean 'x'?` for the closest known word, or an empty string."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
