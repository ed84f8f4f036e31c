"""The browser of the tests, driven by Playwright. Neither is needed to work on anything else."""

from __future__ import annotations

import shutil
from contextlib import contextmanager

import pytest

REASON = "needs a browser, which `make test-browser` installs"


@contextmanager
def chromium():
    """Give the system's Chromium, or Playwright's own; where there is none, the test is skipped, and says so."""
    playwright = pytest.importorskip("playwright.sync_api", reason=REASON)
    with playwright.sync_playwright() as drive:
        try:
            browser = drive.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        except playwright.Error as error:
            if "Executable doesn't exist" not in str(error):
                raise
            pytest.skip(REASON)
        yield browser
        browser.close()
