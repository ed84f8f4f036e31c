"""The page of a served model in a real browser: a text goes on, gaps are filled, and it unmasks before one's eyes."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from servers import listening, served

from tests.reports.browser import chromium

pytestmark = pytest.mark.slow
MASKS = "document.querySelectorAll('#texts .mask').length"
SEEN = f"""window.seen = [];
new MutationObserver(() => seen.push({MASKS})).observe(texts, {{ childList: true, subtree: true }})"""
# What the browser itself says of a request that was refused.
REFUSED = {
    f"Failed to load resource: the server responded with a status of {status}"
    for status in ("400 (Bad Request)", "401 (Unauthorized)")
}


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def axe():
    found = pytest.importorskip("axe_playwright_python.sync_playwright", reason="make test-browser installs it")
    return found.Axe()


@pytest.fixture
def opened(browser, model):
    """Return a function that opens the page; nothing is wrong on it, and it asks no other server."""
    wrong, asked = [], []
    with ExitStack() as stack:

        def open_page(key=None, **options):
            address = stack.enter_context(listening(served(model, key=key)))
            context = stack.enter_context(browser.new_context(**options))
            page = context.new_page()
            page.set_default_timeout(60_000)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
            page.on("request", lambda request: asked.append(request.url.startswith((address, "data:"))))
            page.goto(address)
            return page

        yield open_page
    assert set(wrong) <= REFUSED
    assert set(asked) == {True}


def shown(page):
    return page.locator("#texts .tokens").all_text_contents()


def written(page):
    page.locator("#status", has_text="tokens generated").wait_for()
    return shown(page)


def test_a_text_unmasks_and_gaps_are_filled(opened, model):
    page = opened()
    assert page.title() == "tiny · atat serve"
    assert not page.locator("#key").is_visible()
    page.locator("#text").fill("a <b>")
    for name, value in {"number": "2", "seed": "5", "pause": "100"}.items():
        page.locator(f"#{name}").fill(value)
    # What is masked is seen, and less and less of it.
    page.evaluate(SEEN)
    page.locator("#write").click()
    assert written(page) == model.sample(2, prompt="a <b>", seed=5, precision="fp32").texts
    seen = page.evaluate("window.seen")
    assert len(set(seen)) > 3
    assert (max(seen) > 17, seen[-1]) == (True, 0)
    assert page.locator("#status").inner_text() == "34 tokens generated; use seed 5 to generate the same text again"
    # By keys alone: a gap is put where the cursor is.
    page.locator("#text").fill("ab cd")
    page.locator("#number").fill("1")
    page.locator("#text").focus()
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    page.locator("#size").fill("2-3")
    page.locator("#gap").press("Enter")
    assert page.locator("#text").input_value() == "ab [MASK:2-3]cd"
    page.locator("#text").press("Control+Enter")
    page.locator("#texts .given", has_text="cd").wait_for()
    assert written(page) == model.infill("ab [MASK:2-3]cd", seed=5, precision="fp32").texts
    assert [each.text_content() for each in page.locator("#texts .given").all()] == ["ab ", "cd"]
    command = page.locator("#command").text_content()
    assert command.startswith(f"curl {page.url}v1/infill -H 'Content-Type: application/json' -d '")


def test_what_is_refused_is_said_and_what_takes_long_is_stopped(opened):
    page = opened(key="sesame-1")
    page.locator("#text").fill("a [MASK:99]")
    page.locator("#write").click()
    page.locator("#status.wrong", has_text="the API key is missing or wrong").wait_for()
    page.locator("#key").fill("sesame-1")
    with page.expect_response("**/v1/infill") as answer:
        page.locator("#write").click()
    assert answer.value.status == 400
    page.wait_for_selector("#status.wrong")
    assert "the model's maximum length is 24; shorten the text or its gaps" in page.locator("#status").inner_text()
    page.locator("#text").fill("a")
    page.locator("#pause").fill("500")
    page.locator("#write").click()
    page.wait_for_selector("#texts .mask")
    page.locator("#stop").click()
    page.locator("#status", has_text="stopped").wait_for()
    assert page.evaluate(MASKS) > 0
    assert page.locator("#stop").get_attribute("aria-disabled") == "true"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible(axe, opened, scheme):
    page = opened(color_scheme=scheme, viewport={"width": 390, "height": 800}, reduced_motion="reduce")
    page.locator("#text").fill("a [MASK:3] b")
    page.locator("#write").click()
    written(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert axe.run(page).response["violations"] == []
