#!/usr/bin/env python3
"""Regenerates the pictures of README and docs in docs/images: two_sites.svg, the map of README's first plan; steps.svg, the
demo's simulated steps; report.png, the first screens of a report; timeline.svg; and offloading.svg, the timeline of a model
larger than its device.

    source tools/setup.sh; need_playwright; ISOBAR=build/release/bin/isobar python3 tools/report_picture.py [PICTURE...]

PICTURE is two_sites, steps, report or offloading (default: all). Only report, with timeline.svg, needs playwright.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tests.cli.browser import browser
from tests.cli.support import ISOBAR, ROOT
from tests.docs.pages import Folder, blocks_of, commands_of

IMAGES = ROOT / "docs/images"
PLATFORM = "platforms/geo_8cities.xml"
WORKLOAD = "workloads/gpt2_1.5b.yaml"
DEMO = ("platforms/sky64.xml", "workloads/bert160.yaml")
DEMO_ALLOCATORS = ("local-search", "chain-dp", "sky-dynamic-fixed", "sky-dynamic", "even")  # best first
STEPS_WIDTH = 510  # of the chart of steps, within that of comparisons
MAP_TOP, MAP_HEIGHT = 115, 375  # what is drawn of the map of two sites


def isobar(*arguments):
    subprocess.run([pathlib.Path(ISOBAR).resolve(), *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def crop(image, size, smaller):
    image.write_text(re.sub(size, smaller, image.read_text(), count=1))


def two_sites(folder):
    """Draws the plan that the first commands of README make."""
    page = Folder(folder, ISOBAR)
    block = next(block for block in blocks_of((ROOT / "README.md").read_text()) if block.language == "console")
    commands = [command for command, _ in commands_of(block)]
    workload = re.search(r"workloads/\S+", commands[1])[0]
    image = IMAGES / "two_sites.svg"
    for command in (*commands, f"isobar simulate sites.xml {workload} --plan plan.json -o result.json",
                    f"isobar plot result.json --chart map -o {image}"):
        printed, code = page.run(command)
        if code != 0:
            raise SystemExit(f"report_picture.py: {command}: exit code {code}\n{printed}")
    crop(image, r'height="560"( .*?viewBox="0) 0 900 560', rf'height="{MAP_HEIGHT}"\g<1> {MAP_TOP} 900 {MAP_HEIGHT}')
    return [image]


def steps(folder):
    isobar("compare", *DEMO, "--allocators", ",".join(DEMO_ALLOCATORS), "--keep", folder)
    image = IMAGES / "steps.svg"
    isobar("plot", *(f"{folder}/step.{name}.result.json" for name in DEMO_ALLOCATORS), "--chart", "comparison", "-o", image)
    crop(image, r'width="900"( .*?viewBox="0 0 )900 ', rf'width="{STEPS_WIDTH}"\g<1>{STEPS_WIDTH} ')
    return [image]


def report(folder):
    isobar("compare", PLATFORM, WORKLOAD, "--keep", folder)
    # The page must not show a folder of this machine.
    results = sorted(pathlib.Path(folder).glob("*.result.json"))
    page = pathlib.Path(folder) / "report.html"
    screens, timeline = IMAGES / "report.png", IMAGES / "timeline.svg"
    isobar("report", *results, "-o", page)
    isobar("plot", results[0], "--chart", "timeline", "-o", timeline)
    page.write_text(page.read_text().replace(f"{folder}/", "results/"))
    with browser() as chromium:
        opened = chromium.new_page(viewport={"width": 1180, "height": 1500}, color_scheme="light")
        opened.goto(page.as_uri())
        opened.wait_for_selector("html[data-drawn]", state="attached")
        end = opened.locator("#timeline h2").bounding_box()["y"]
        opened.screenshot(path=screens, clip={"x": 0, "y": 0, "width": 1180, "height": end}, full_page=True)
    return [screens, timeline]


def offloading(folder):
    """Draws the plan of docs/offloading.md."""
    page = Folder(folder, ISOBAR)
    blocks = list(blocks_of((ROOT / "docs/offloading.md").read_text()))
    image = IMAGES / "offloading.svg"
    planned = [command for block in blocks if block.language == "console" for command, _ in commands_of(block)]
    drawn = next(block for block in blocks if "isobar plot" in block.text).text.splitlines()
    for command in (*planned, *drawn):
        printed, code = page.run(command.replace("offloading.svg", str(image)))
        if code != 0:
            raise SystemExit(f"report_picture.py: {command}: exit code {code}\n{printed}")
    return [image]


def main():
    pictures = {"two_sites": two_sites, "steps": steps, "report": report, "offloading": offloading}
    for name in sys.argv[1:] or pictures:
        if name not in pictures:
            raise SystemExit(f'report_picture.py: "{name}" is no picture; write {", ".join(pictures)}')
        with tempfile.TemporaryDirectory() as folder:
            for image in pictures[name](folder):
                print(f"{image.relative_to(ROOT)}: {image.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
