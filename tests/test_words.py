"""README, CONTRIBUTING, the pages written by hand and the READMEs of packages use the words of the field."""

import re

import pytest

from tests import bad_input
from tests.pages import ROOT

SHELVES = ("docs", "docs/tutorials", "docs/how-to", "docs/explanation", "docs/results")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "plugins").glob("*.md"), bad_input.PAGE]
PAGES += [*(page for shelf in SHELVES for page in (ROOT / shelf).glob("*.md")), *(ROOT / "plugins").glob("*/*.md")]
# A word that nobody of the field uses so, and what is said in its place.
WORDS = {
    r"(?<!there )(is|are|was|were) (no|none)\b(?! longer)": "is not, does not",
    r"count tables?": "n-gram prior",
    r"e to the nats": "perplexity (…)",
    r"moving average": "EMA",
    r"(from a|the) bell": "logit-normal",
    r"continues where": "resumes",
    r"half for claims": "claim half",
    r"surely": "significantly",
    r"is had|said of|stood? beside": "a sentence with a subject and a verb",
    r"in (\d+|its|these|as many) turns": "decoding steps",
    r"pays? for": "NLL",
    r"priced": "scored, evaluated",
    r"beside": "next to, with",
    r"menu": "registry file",
}


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_says_the_words_of_the_field(page):
    text = page.read_text(encoding="utf-8")
    for of_code in (r"```.*?```", r"`[^`]*`", r"<!--.*?-->"):
        text = re.sub(of_code, "", text, flags=re.DOTALL)
    found = {word: re.findall(rf"(?i).{{0,40}}\b(?:{word})\b", text) for word in WORDS}
    assert {word: (WORDS[word], lines) for word, lines in found.items() if lines} == {}
