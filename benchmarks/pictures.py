"""Take screenshots of a run's page as docs/report/*.png: in light and dark mode, on a phone and in print.

`--sections text samples --folder FOLDER` instead takes the named sections of the page, on a desktop and on a phone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.reports.browser import chromium

FOLDER = Path(__file__).parents[1] / "docs" / "report"
# Colour scheme, medium, width and height of each screenshot.
VIEWS = {
    "light": ("light", "screen", 1000, 960),
    "dark": ("dark", "screen", 1000, 960),
    "phone": ("light", "screen", 360, 720),
    "print": ("light", "print", 700, 990),
}
# Both texts halfway through sampling.
REPLAY = "(slider) => { slider.value = slider.max / 2; slider.dispatchEvent(new Event('input')); }"


def main() -> None:
    """Write the screenshots; the run must have a page, which `atat report RUN --compute` writes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--sections", nargs="+", metavar="ID", help="take only these sections of the page")
    parser.add_argument("--text", help="number of the held-out text in the section `text`")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the screenshots are written")
    given, _ = parser.parse_known_args()
    if given.text and "text" not in (given.sections or ()):
        parser.error("--text has no effect without `--sections text`; add it, or remove --text")
    if given.sections:
        sections(given.run, given.sections, given.text, given.folder)
        return
    with chromium() as browser:
        for name, (scheme, medium, width, height) in VIEWS.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.emulate_media(media=medium)
            page.goto((given.run / "report.html").resolve().as_uri())
            page.wait_for_selector("html[data-drawn]", state="attached")
            written = [page.screenshot(path=given.folder / f"{name}.png")]
            if name in ("light", "dark"):
                page.locator("#replay input").evaluate(REPLAY)
                box = page.locator("#replay").bounding_box()
                clip = {"x": 0, "y": box["y"] + 1, "width": width, "height": box["height"] + 15}  # without its line
                written.append(page.screenshot(path=given.folder / f"replay-{name}.png", full_page=True, clip=clip))
            page.close()
            print(f"  {name}: {', '.join(f'{len(each) / 1000:.0f} kB' for each in written)}")


def sections(run: Path, names: list[str], text: str | None, folder: Path) -> None:
    """Write report.png and report-phone.png with these sections of a run's page."""
    hidden = "".join(f":not(#{name})" for name in names)
    with chromium() as browser:
        for name, width in (("report", 820), ("report-phone", 360)):
            page = browser.new_page(viewport={"width": width, "height": 400})
            page.goto((run / "report.html").resolve().as_uri())
            page.wait_for_selector("html[data-drawn]", state="attached")
            page.add_style_tag(content=f"header, footer, #licences, section{hidden} {{ display: none }}")
            if text:
                page.locator("#text select").select_option(label=text)
            if "replay" in names:
                page.locator("#replay input").evaluate(REPLAY)
            page.screenshot(path=folder / f"{name}.png", full_page=True)
            print(folder / f"{name}.png")


if __name__ == "__main__":
    main()
