"""README, CONTRIBUTING, the pages written by hand, and the texts of the code use the words of the field."""

import ast
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


ANY = re.compile(rf"(?i)\b({'|'.join(WORDS)})\b")


def found(text):
    if not ANY.search(text):
        return {}
    for of_code in (r"```.*?```", r"`[^`]*`", r"<!--.*?-->"):
        text = re.sub(of_code, "", text, flags=re.DOTALL)
    lines = {word: re.findall(rf"(?i).{{0,40}}\b(?:{word})\b", text) for word in WORDS}
    return {word: (WORDS[word], each) for word, each in lines.items() if each}


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_says_the_words_of_the_field(page):
    assert found(page.read_text(encoding="utf-8")) == {}


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["atat_zoo", "plugins"])
def test_messages_help_texts_and_docstrings_say_them_too(folder):
    for path in (ROOT / folder).rglob("*.py"):
        if "tests" in path.relative_to(ROOT).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 1:
                assert found(node.value) == {}, f"{path.relative_to(ROOT)}:{node.lineno}"
