"""The pictures of docs/report: of these commands, small, and of no machine in particular."""

from __future__ import annotations

import html
import re

import pytest

recording = pytest.importorskip("benchmarks.recording", reason="the benchmarks are not in a source distribution")


def test_the_terminal_has_printed_what_these_commands_print():
    svg = recording.FIGURE.read_text(encoding="utf-8")
    assert len(svg.encode()) < 60_000
    text = html.unescape(re.sub(r"<[^>]*>", "", svg)).replace("\xa0", " ")
    for command in recording.COMMANDS:
        assert command in text
    assert not re.search(r"/(home|root|tmp|Users)\b", text)
    assert re.findall(r"https?://[^\"' ]*", svg.replace("https://www.textualize.io", "")) == [
        "http://www.w3.org/2000/svg"
    ]
