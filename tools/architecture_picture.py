#!/usr/bin/env python3
"""Draws the folders, their rooms and who may include whom, from the table that tests/architecture/includes_test.py checks.

architecture_picture.py [-o FILE] writes docs/images/architecture.svg. The same table gives the same bytes.
"""
import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/architecture"))
from includes_test import ROOMS, room_of  # noqa: E402

# What each folder does, and where it stands: rows from top to bottom, with the columns of their rooms.
ROWS = [
    (3, [("cli", "the command isobar"), ("exec", "the command isobar-exec: LibTorch, CUDA, NCCL")]),
    (2, [("results", "→ reports"), ("allocators", "→ plan"), ("schedules", "→ program"), ("sim", "→ trace")]),
    (8, [("core", "cluster, workload, plan, program, trace; files, errors, units; checkers")]),
]
WIDTH, MARGIN, GAP, HEAD, BOX, ROW_GAP = 880, 20, 24, 40, 30, 44
COLOURS = {"core": "#4c72b0", "allocators": "#55a868", "schedules": "#8172b3", "sim": "#c44e52", "results": "#937860",
           "exec": "#dd8452", "cli": "#64707d"}


def rooms_of(folder):
    """The names of a folder's rooms, without the folder; its top has none."""
    return sorted({room_of(room + "/x.hpp").partition("/")[2] for room in ROOMS if room.startswith(f"{folder}/")
                   and not room.endswith((".hpp", ".cpp"))})


def arrows():
    """(from, to) of folders that may include each other."""
    found = {(room.split("/")[0], other.split("/")[0]) for room, row in ROOMS.items() for other in row[0]}
    return sorted((a, b) for a, b in found if a != b)


def picture():
    parts, places, y = [], {}, MARGIN
    for columns, row in ROWS:
        width = (WIDTH - 2 * MARGIN - GAP * (len(row) - 1)) / len(row)
        lines = max(-(-len(rooms_of(folder)) // columns) for folder, _ in row)
        height = HEAD + lines * (BOX + 6) + 8
        for i, (folder, what) in enumerate(row):
            x = MARGIN + i * (width + GAP)
            places[folder] = (x, y, width, height)
            colour = COLOURS[folder]
            parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" fill="{colour}" '
                         f'fill-opacity="0.12" stroke="{colour}"/>')
            parts.append(f'<text x="{x + 12:g}" y="{y + 24:g}"><tspan font-weight="bold" font-size="15">{folder}</tspan>'
                         f'<tspan dx="10" fill="#555">{what}</tspan></text>')
            box = (width - 12 * 2 - 6 * (columns - 1)) / columns
            for k, room in enumerate(rooms_of(folder)):
                bx, by = x + 12 + (k % columns) * (box + 6), y + HEAD + (k // columns) * (BOX + 6)
                parts.append(f'<rect x="{bx:g}" y="{by:g}" width="{box:g}" height="{BOX}" rx="4" fill="white" stroke="{colour}"/>')
                parts.append(f'<text x="{bx + box / 2:g}" y="{by + 20:g}" text-anchor="middle">{room}</text>')
        y += height + ROW_GAP
    row_of = {folder: i for i, (_, row) in enumerate(ROWS) for folder, _ in row}
    for a, b in arrows():
        (ax, ay, aw, ah), (bx, by, bw, bh) = places[a], places[b]
        if row_of[a] == row_of[b]:
            ends = (ax + aw, bx - 2) if ax < bx else (ax, bx + bw + 2)
            line = (ends[0], ay + ah / 2, ends[1], by + bh / 2)
        elif row_of[b] - row_of[a] == 1:
            lean = 0.7 * (bx + bw / 2 - ax - aw / 2)
            x1 = min(max(ax + aw / 2 + lean, ax + 30), ax + aw - 30)
            line = (x1, ay + ah, min(max(x1, bx + 30), bx + bw - 30), by - 2)
        else:
            continue  # every folder may include core
        parts.append('<line x1="{:g}" y1="{:g}" x2="{:g}" y2="{:g}" stroke="#888" marker-end="url(#tip)"/>'.format(*line))
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y - ROW_GAP + MARGIN:g}" '
        'font-family="sans-serif" font-size="13">',
        '<title>Folders and rooms; an arrow leads to what may be included</title>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#888"/></marker></defs>',
        '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=pathlib.Path, default=ROOT / "docs/images/architecture.svg")
    parser.parse_args().output.write_text(picture())
