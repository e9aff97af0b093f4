"""Where tools/setup.sh unpacks its pinned wheels."""

import hashlib
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def wheels_folder(name):
    """The folder of tools/NAME.txt, whether it is there or not."""
    pinned = hashlib.sha256((ROOT / f"tools/{name}.txt").read_bytes()).hexdigest()[:12]
    cache = os.environ.get("ISOBAR_CACHE") or pathlib.Path(
        os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "isobar"
    return pathlib.Path(cache) / f"{name}-{pinned}"
