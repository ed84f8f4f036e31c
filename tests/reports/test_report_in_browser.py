"""The page in a real browser: quiet, safe, quick, and usable by keyboard and mouse, on a phone and in print."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest

from atat_zoo.reports import study_data
from atat_zoo.reports.html_report import page as write_page
from atat_zoo.reports.report_data import collect
from tests.reports.run_folders import CONFIRM, HOSTILE, PNG, make, with_grids

pytestmark = pytest.mark.slow
DRAWN = "html[data-drawn]"
PIXELS = ["<7>", *"abcdefgh"]  # a label and a picture of two rows
GRID = {"first": 1, "columns": 4, "colours": {letter: f"#0000{16 * i:02x}" for i, letter in enumerate("abcdefgh")}}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages that are looked at: of one run, of eight, of a hostile one, of a long one, of a study."""
    root = tmp_path_factory.mktemp("pages")
    hostile = tuple(HOSTILE)
    runs = {
        "one": [make(root / "runs" / "one")],
        "eight": [make(root / "runs" / f"run{i}", seed=i, estimator=i > 0) for i in range(8)],
        "hostile": [
            make(root / "runs" / "<img src=x onerror=alert(1)>", words=hostile),
            make(root / "runs" / "<svg onload=alert(1)>"),
        ],
        "short": [make(root / "runs" / "short", lines=1)],
        "long": [make(root / "runs" / "long", lines=10_000)],
        "picture": [make(root / "runs" / "picture", words=PIXELS, picture=GRID)],
        "sound": [make(root / "runs" / "sound", images=[{"said": "A spectrogram.", "png": PNG}, None])],
        "code": [make(root / "runs" / "code", words=["def f(x):", "\n", "    ", "return", " x"])],
        "bare": [make(root / "runs" / "bare", report=False, estimator=False, bound="SEDD")],
    }
    written = {name: collect(each) for name, each in runs.items()} | {"study": study_data.of_study(CONFIRM)}
    written["grids"] = study_data.of_study(with_grids(root / "grids.json"))
    for name, data in written.items():
        (root / f"{name}.html").write_text(write_page(data), encoding="utf-8")
    return root


@contextmanager
def opened(browser, path, **options):
    """Open a page, wait until it is drawn, and see that nothing was wrong and nothing was asked of the network."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(120_000)
    wrong: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector(DRAWN, state="attached")
    yield page
    context.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]


@pytest.mark.parametrize("name", ["one", "eight", "hostile", "long", "picture", "sound", "bare", "study", "grids"])
def test_a_page_is_quiet_fits_a_phone_and_has_no_serious_fault(browser, pages, name):
    axe = Path(pytest.importorskip("axe_playwright_python").__file__).with_name("axe.min.js").read_text()
    with opened(browser, pages / f"{name}.html", viewport={"width": 360, "height": 780}, color_scheme="dark") as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")] == []
        page.emulate_media(color_scheme="light")
        found = page.evaluate("axe.run(document, {runOnly: ['color-contrast']})")["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []


def test_what_a_run_wrote_is_text(browser, pages):
    with opened(browser, pages / "hostile.html") as page:
        assert page.title() == "Perplexity of <svg onload=alert(1)> against <img src=x onerror=alert(1)> · atat report"
        assert page.locator("img, main script, iframe, object, [onerror]").count() == 0
        shown = page.locator("#text .tokens").first.evaluate(
            "(one) => [...one.children].map((each) => each.textContent)"
        )
        assert shown == [token.replace("\n", "↵\n") for token in HOSTILE]
        assert page.locator("#samples pre").first.text_content() == "".join(HOSTILE).strip()
        names = page.locator("#curves .chip").all_text_contents()
        assert names == ["<img src=x onerror=alert(1)>", "<svg onload=alert(1)>"]
        page.locator("#curves .chart .mark-symbol path").last.hover(force=True)


def test_the_verdict_is_read_without_javascript(browser, pages):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((pages / "hostile.html").as_uri())
    assert page.locator("h1").text_content().startswith("Perplexity of <svg")
    assert "lowest first: <img src=x onerror=alert(1)> 55.9 ± 1.2" in page.locator("#head").text_content()
    assert page.locator("#head td").count() == 14
    assert "require JavaScript" in page.locator("#main").text_content()
    context.close()


def test_the_axis_and_the_runs_are_chosen(browser, pages):
    lines = "#curves .chart >> nth=0 >> .mark-line path"
    drawn = "document.querySelector('#curves .chart').querySelectorAll('.mark-line path').length"
    with opened(browser, pages / "eight.html") as page:
        assert page.locator(lines).count() == 8
        page.get_by_role("button", name="run3").click()
        page.wait_for_function(f"{drawn} === 7")
        colours = page.locator(lines).evaluate_all("(paths) => paths.map((path) => path.getAttribute('stroke'))")
        assert "#b7608f" not in colours  # the fourth run's, which no other takes over
        page.get_by_role("button", name="seconds").focus()
        page.keyboard.press("Enter")
        page.wait_for_function(
            "document.querySelector('#curves .chart').textContent.includes('training time including')"
        )
        assert page.locator(lines).count() == 7
        page.get_by_role("button", name="run3").press("Space")
        page.wait_for_function(f"{drawn} === 8")


def test_the_slider_and_the_tokens_by_keyboard_and_mouse(browser, pages):
    with opened(browser, pages / "one.html") as page:
        text = page.evaluate("data.runs[0].text")
        heading, readout = page.locator("#text h3").nth(1), page.locator("#text .readout")
        assert heading.text_content() == "Loss at mask rate 0.5"
        page.locator("#text input[type=range]").press("ArrowRight")
        assert heading.text_content() == "Loss at mask rate 0.6"
        page.locator("#text .tokens").nth(0).focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        one = text["texts"][0]
        said = f"importance {one['importance'][5][1]:.2f} · loss {one['loss'][5][1]:.2f} nats"
        assert said in readout.text_content()
        page.locator("#text .tokens").nth(1).locator("span").nth(7).hover()
        assert "not masked in these mask samples" in readout.text_content()
        page.locator("#text select").select_option(label="2")
        assert page.evaluate("state.text.text") == 1
        assert page.locator("#text .tokens").nth(0).locator("span").count() == len(text["texts"][1]["tokens"])


def test_the_image_of_a_text_is_shown_with_its_tokens(browser, pages):
    drawn = """(images) => images.map((one) => {
      const last = [...one.closest(".sampler, section").querySelectorAll(".tokens")].at(-1).getBoundingClientRect();
      const box = one.getBoundingClientRect();
      return [one.alt, one.naturalWidth, box.top >= last.bottom || box.bottom <= last.top];
    })"""
    with opened(browser, pages / "sound.html") as page:
        for section in ("text", "replay"):
            images = page.locator(f"#{section} img")
            assert images.evaluate_all(drawn) == [["A spectrogram.", 2, True]]
            page.locator(f"#{section} select").first.select_option(label="2")
            assert images.count() == 0


def test_a_picture_is_a_grid_of_its_colours(browser, pages):
    drawn = """(panel) => [...panel.children].map((each) => {
      const box = each.getBoundingClientRect(), left = box.left - panel.getBoundingClientRect().left;
      return [Math.round(left), Math.round(box.top), getComputedStyle(each).backgroundColor];
    })"""
    with opened(browser, pages / "picture.html") as page:
        assert page.locator("#text h3").all_text_contents() == ["Picture", "Importance", "Loss at mask rate 0.5"]
        label, *pixels = page.locator("#text .tokens").first.evaluate(drawn)
        assert [colour for *_, colour in pixels] == [f"rgb(0, 0, {16 * i})" for i in range(8)]
        lefts, tops = ([pixel[axis] for pixel in pixels] for axis in (0, 1))
        assert lefts[:4] == lefts[4:] == sorted(set(lefts))
        assert label[1] < tops[0] == tops[3] < tops[4] == tops[7]
        heat = page.locator("#text .tokens").nth(1).evaluate(drawn)
        assert [pixel[:2] for pixel in heat[1:]] == [pixel[:2] for pixel in pixels]
        assert len({colour for *_, colour in heat}) > 4
        slider = page.locator("#replay input[type=range]")
        slider.evaluate("(one) => { one.value = one.max; one.dispatchEvent(new Event('input')); }")
        for panel in page.locator("#replay .tokens").all():
            assert [colour for *_, colour in panel.evaluate(drawn)[1:]] == [colour for *_, colour in pixels]
        sample = page.locator("#samples .tokens")
        assert sample.locator("span").all_text_contents() == PIXELS
        assert [each[2] for each in sample.evaluate(drawn)[1:]] == [colour for *_, colour in pixels]
        assert [each[0] for each in sample.evaluate(drawn)] == [each[0] for each in (label, *pixels)]


def test_indented_text_has_a_font_of_fixed_width(browser, pages):
    for name, fixed in (("code", True), ("one", False)):
        with opened(browser, pages / f"{name}.html") as page:
            for panel in page.locator("#text .tokens, #replay .tokens").all():
                assert ("monospace" in panel.evaluate("(each) => getComputedStyle(each).fontFamily")) == fixed


def test_the_replay_by_keyboard_and_mouse(browser, pages):
    with opened(browser, pages / "one.html") as page:
        replay = page.evaluate("data.runs[0].replay")
        last = max(sampler["evaluations"][0] for sampler in replay["samplers"])
        slider, stage = page.locator("#replay input[type=range]"), page.locator("#replay .stage")

        def masked():
            return [one.locator(".mask").count() for one in page.locator("#replay .tokens").all()]

        slider.evaluate("(one) => { one.value = 0; one.dispatchEvent(new Event('input')); }")
        length = len(replay["samplers"][0]["texts"][0]["start"])
        assert masked() == [length, length]
        stage.focus()
        page.keyboard.press("ArrowRight")
        assert masked() == [length - 4, length - 2]
        page.keyboard.press("ArrowLeft")
        page.get_by_role("button", name="Step forward").click()
        page.get_by_role("button", name="Step forward").click()
        # In its second step ancestral writes two and masks one of them again.
        assert masked() == [length - 8, length - 3]
        stage.focus()
        page.keyboard.press("Space")
        page.wait_for_function("state.replay.at > 3")
        page.keyboard.press("Space")
        at = page.evaluate("state.replay.at")
        page.wait_for_timeout(600)
        assert page.evaluate("state.replay.at") == at
        page.get_by_role("button", name="Play").click()
        page.wait_for_function(f"state.replay.at === {last} && !state.replay.playing")
        assert masked() == [0, 0]
        said = page.locator("#replay .sampler .note").all_text_contents()
        assert [each.partition(",")[0] for each in said] == [
            f"decoding step {sampler['evaluations'][0]} of {sampler['evaluations'][0]}"
            for sampler in replay["samplers"]
        ]


@pytest.mark.parametrize("name", ["eight", "one"])
def test_a_page_is_printed_on_paper_and_nothing_is_cut_off(browser, pages, name):
    window = {"width": 720, "height": 1000}
    with opened(browser, pages / f"{name}.html", viewport=window, color_scheme="dark") as page:
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not page.locator("nav").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 720
        assert page.pdf().startswith(b"%PDF")


# A run of each objective, trained and recorded as a person does it
