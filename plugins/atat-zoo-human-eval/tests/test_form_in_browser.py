"""The form in a real browser: rated by keys and by mouse, kept over a reload, saved, and imported."""

from __future__ import annotations

import pytest
from atat_zoo_human_eval.rating_form import QUESTIONS, RatedText, RatingForm
from atat_zoo_human_eval.rating_page import page as write_page
from atat_zoo_human_eval.ratings import ratings_of, unblinded

from tests.reports.browser import chromium
from tests.reports.run_folders import HOSTILE

pytestmark = pytest.mark.slow
TEXTS = [*HOSTILE, "a prompt and more"]


@pytest.fixture(scope="module")
def form():
    texts = [RatedText(run=i % 2, text=text, prompt="a prompt") for i, text in enumerate(TEXTS)]
    return RatingForm.shuffled(QUESTIONS, texts, [{"run": "a"}, {"run": "b"}], 3)


@pytest.fixture(scope="module")
def address(form, tmp_path_factory):
    path = tmp_path_factory.mktemp("form") / "form.html"
    path.write_text(write_page(form), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def opened(address):
    with chromium() as browser:
        page = browser.new_context(accept_downloads=True).new_page()
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.goto(address)
        yield page
        assert wrong == []
        assert page.title() == "Rate these texts"


def test_rated_by_keys_saved_and_imported(opened, form, tmp_path):
    assert opened.locator("#json").get_attribute("aria-disabled") == "true"
    for number in range(len(TEXTS)):
        shown = opened.locator("#text").inner_text()
        assert shown.split() == form.texts[number].text.split()
        for rating in (1 + number % 5, 2, 5):
            opened.keyboard.press(str(rating))
        opened.keyboard.press("Enter")
    opened.reload()  # what was rated is kept
    opened.locator("#rater").fill("Ann, 2nd")
    assert opened.locator("#status").inner_text() == "You have answered all questions. Save your answers as a file."
    for kind in ("json", "csv"):
        with opened.expect_download() as saved:
            opened.locator(f"#{kind}").click()
        path = tmp_path / f"saved.{kind}"
        saved.value.save_as(path)
        assert saved.value.suggested_filename == f"ratings-Ann-2nd.{kind}"
        (ratings,) = ratings_of(form, [path])
        assert ratings.rater == "Ann, 2nd"
        assert ratings.values["fluency"].tolist() == [1 + i % 5 for i in range(len(TEXTS))]
        assert set(ratings.values["coherence"]) == {2}
        assert unblinded(form, [ratings]).answers["overall"].means == (5.0, 5.0)


def test_what_is_not_complete_is_not_saved(opened, form):
    opened.get_by_label("3", exact=True).first.check()
    opened.locator("#rater").fill("Ann")
    opened.locator("#json").click(force=True)  # it says that it is disabled, and where an answer lacks
    assert opened.locator("#number").inner_text() == f"Text 2 of {len(TEXTS)}"
    assert f"0 of {len(TEXTS)} texts are complete" in opened.locator("#status").inner_text()
    opened.get_by_role("button", name="← Previous text").click()
    assert opened.get_by_label("3", exact=True).first.is_checked()
    assert opened.locator("fieldset.current").get_attribute("data-question") == "coherence"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible(address, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="make test-browser installs it")
    with chromium() as browser:
        page = browser.new_context(color_scheme=scheme, viewport={"width": 390, "height": 800}).new_page()
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert axe.Axe().run(page).response["violations"] == []
