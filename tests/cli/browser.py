"""A headless Chromium for tests of pages: Debian's, driven by the playwright that tools/setup.sh fetches."""

import contextlib
import hashlib
import os
import pathlib
import shutil
import sys
import unittest

from tests.cli.support import ROOT


def playwright_folder():
    pinned = hashlib.sha256((ROOT / "tools/playwright.txt").read_bytes()).hexdigest()[:12]
    cache = os.environ.get("ISOBAR_CACHE") or pathlib.Path(
        os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "isobar"
    return pathlib.Path(cache) / f"playwright-{pinned}"


CHROMIUM = shutil.which("chromium")


def need_browser():
    """Skips the test where there is no browser, or none that can be driven."""
    if not CHROMIUM:
        raise unittest.SkipTest("no chromium on the PATH")
    if sys.version_info[:2] != (3, 11):
        raise unittest.SkipTest("the pinned playwright is for Python 3.11")
    if not playwright_folder().is_dir():
        raise unittest.SkipTest("no playwright in the cache; source tools/setup.sh && need_playwright")


@contextlib.contextmanager
def browser():
    need_browser()
    sys.path.insert(0, str(playwright_folder()))
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield running
        finally:
            running.close()
