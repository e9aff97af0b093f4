#!/usr/bin/env python3
"""Regenerates the pictures of README and docs in docs/images: steps.svg, the demo's simulated steps; report.png, the first
screens of a report; and timeline.svg.

    source tools/setup.sh; need_playwright; ISOBAR=build/release/bin/isobar python3 tools/report_picture.py
"""

import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tests.cli.browser import browser
from tests.cli.support import ISOBAR, ROOT

PLATFORM = "platforms/geo_8cities.xml"
WORKLOAD = "workloads/gpt2_1.5b.yaml"
DEMO = ("platforms/sky64.xml", "workloads/bert160.yaml")
DEMO_ALLOCATORS = ("local-search", "chain-dp", "sky-dynamic-fixed", "sky-dynamic", "even")  # best first
STEPS_WIDTH = 510  # of the chart of steps, within that of comparisons


def isobar(*arguments):
    subprocess.run([pathlib.Path(ISOBAR).resolve(), *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def main():
    images = ROOT / "docs/images"
    with tempfile.TemporaryDirectory() as folder:
        isobar("compare", PLATFORM, WORKLOAD, "--keep", folder)
        # The page must not show a folder of this machine.
        results = sorted(pathlib.Path(folder).glob("*.result.json"))
        page = pathlib.Path(folder) / "report.html"
        isobar("report", *results, "-o", page)
        isobar("plot", results[0], "--chart", "timeline", "-o", images / "timeline.svg")
        page.write_text(page.read_text().replace(f"{folder}/", "results/"))
        with browser() as chromium:
            opened = chromium.new_page(viewport={"width": 1180, "height": 1500}, color_scheme="light")
            opened.goto(page.as_uri())
            opened.wait_for_selector("html[data-drawn]", state="attached")
            end = opened.locator("#timeline h2").bounding_box()["y"]
            opened.screenshot(path=images / "report.png", clip={"x": 0, "y": 0, "width": 1180, "height": end}, full_page=True)
    with tempfile.TemporaryDirectory() as folder:
        isobar("compare", *DEMO, "--allocators", ",".join(DEMO_ALLOCATORS), "--keep", folder)
        steps = images / "steps.svg"
        isobar("plot", *(f"{folder}/step.{name}.result.json" for name in DEMO_ALLOCATORS), "--chart", "comparison", "-o", steps)
        steps.write_text(re.sub(r'width="900"( .*?viewBox="0 0 )900 ', rf'width="{STEPS_WIDTH}"\g<1>{STEPS_WIDTH} ',
                                steps.read_text(), count=1))
    for image in (images / "steps.svg", images / "report.png", images / "timeline.svg"):
        print(f"{image.relative_to(ROOT)}: {image.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
