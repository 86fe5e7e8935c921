"""A real browser for the tests that look at pages: Debian's Chromium, one a process, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = (
    os.environ.get("CHROMIUM")
    or shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_PATIENCE_MS = 180_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A running Chromium.

    Playwright drives only one in a process, with an event loop that other tests must not find running.
    """
    driver = pytest.importorskip("playwright.sync_api")
    driver.expect.set_options(timeout=_PATIENCE_MS)
    if CHROMIUM is None:
        pytest.skip("there is no Chromium (apt-get install chromium, or set CHROMIUM)")
    with driver.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


def login(
    browser: Any,
    url: str,
    password: str,
    *,
    user: str = "admin",
    scheme: str = "light",
    width: int = 1440,
    height: int = 1100,
) -> Any:
    """A page of Airflow at ``url``, logged in through its form. ``scheme``: light or dark."""
    page = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme).new_page()
    page.set_default_timeout(_PATIENCE_MS)
    page.goto(url)
    page.fill('input[name="username"]', user)
    page.fill('input[name="password"]', password)
    page.click('button[type="submit"]')
    page.wait_for_url(lambda at: "/auth/login" not in at)
    return page


def shot(page: Any, name: str, *, fitted: bool = False, whole: bool = True) -> None:
    """A picture for people's eyes, if ``SLUICE_SCREENSHOTS`` names a folder for it. ``fitted``: as high as what it
    shows; not ``whole``: only what the window shows.
    """
    folder = os.environ.get("SLUICE_SCREENSHOTS")
    if folder:
        page.wait_for_timeout(1500)
        Path(folder).mkdir(parents=True, exist_ok=True)
        size = page.viewport_size
        if fitted:
            page.set_viewport_size({**size, "height": 240})
        page.screenshot(path=f"{folder}/{name}.png", full_page=whole)
        page.set_viewport_size(size)
