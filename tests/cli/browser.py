"""A headless Chromium for tests of pages: Debian's, driven by the playwright that tools/setup.sh fetches."""

import contextlib
import shutil
import sys
import unittest

from tests.support.wheels import wheels_folder

CHROMIUM = shutil.which("chromium")


def need_browser():
    """Skips the test when there is no browser, or none that can be driven."""
    if not CHROMIUM:
        raise unittest.SkipTest("no chromium on the PATH")
    if sys.version_info[:2] != (3, 11):
        raise unittest.SkipTest("the pinned playwright is for Python 3.11")
    if not wheels_folder("playwright").is_dir():
        raise unittest.SkipTest("no playwright in the cache; source tools/setup.sh && need_playwright")


@contextlib.contextmanager
def browser():
    need_browser()
    sys.path.insert(0, str(wheels_folder("playwright")))
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield running
        finally:
            running.close()
