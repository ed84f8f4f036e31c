"""The form as a file, without a browser; test_form_in_browser.py rates texts with it."""

import base64
import hashlib
import re

from atat_zoo_human_eval.rating_form import QUESTIONS, RatedText, RatingForm
from atat_zoo_human_eval.rating_page import page

from tests.reports.run_folders import HOSTILE
from tests.reports.test_html_report import given


def form_of(texts):
    runs = [{"run": f"runs/secret-{i}", "step": 98765432100, "sampler": {"use": "sly"}} for i in range(2)]
    return RatingForm.shuffled(QUESTIONS, [RatedText(run=i % 2, text=text) for i, text in enumerate(texts)], runs, 7)


def test_the_page_has_what_the_raters_see_and_nothing_of_the_key():
    form = form_of(["one text", "another"])
    text = page(form)
    assert given(text) == form.blinded()
    assert not any(secret in text for secret in ("secret", "sly", "98765432100"))


def test_a_text_is_no_markup():
    text = page(form_of(HOSTILE))
    assert sorted(each["text"] for each in given(text)["texts"]) == sorted(HOSTILE)
    assert text.count("<script") == text.count("</script>") == 2
    assert not any(words in text for words in HOSTILE if "<" in words)
    assert "{{" not in page(form_of(["{{script}}"])).replace("{{script}}", "", 1)


def test_the_page_asks_the_network_for_nothing_and_runs_its_own_script_alone():
    text = page(form_of(["a", "b"]))
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', text)[1]
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    (digest,) = re.findall(r"'sha256-(.*?)'", policy)
    assert [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in script] == [digest]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert not re.search(r"https?:|url\(|@import|innerHTML", text)
    assert "prefers-color-scheme: dark" in text


def test_every_control_has_a_name():
    """What the script makes is looked at in the browser."""
    text = page(form_of(["a"]))
    ids = re.findall(r'<(?:input|progress)[^>]* id="(\w+)"', text)
    assert ids
    for each in ids:
        assert f'<label for="{each}">' in text or re.search(f'id="{each}"[^>]*aria-label=', text)
