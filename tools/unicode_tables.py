#!/usr/bin/env python3
"""Writes exec/data/unicode_categories.cpp and exec/data/unicode_folds.cpp, what BERT's WordPiece asks of Unicode, from Python's
unicodedata."""

import pathlib
import unicodedata

CHARACTERS = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)  # decomposed by arithmetic, in exec/data/unicode.cpp


def category(code):
    return unicodedata.category(chr(code))


def ranges(wanted):
    """First and last of each run of code points whose category is wanted."""
    found = []
    for code in range(0x110000):
        if not wanted(category(code)):
            continue
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def folded(code):
    """Decomposed, without nonspacing marks, in lower case. Either order of the last two gives the same."""
    bare = [char for char in unicodedata.normalize("NFD", chr(code)) if unicodedata.category(char) != "Mn"]
    return "".join(char.lower() for char in bare)


def shifts_and_lists(folds):
    """Splits {code: one folded code} into runs (first, last, stride, difference) and the rest."""
    shifts, rest, used = [], {}, set()
    end = -1  # of the last run; runs do not overlap
    for first in sorted(folds):
        if first in used:
            continue
        runs = []
        for stride in (1, 2):
            run = [first]
            while folds.get(run[-1] + stride, 0) - run[-1] - stride == folds[first] - first and run[-1] + stride not in used:
                run.append(run[-1] + stride)
            runs.append((len(run), -stride, run))
        length, negative_stride, run = max(runs)
        if length < 3 or first < end:
            rest[first] = folds[first]
            continue
        used.update(run)
        end = run[-1]
        shifts.append((first, run[-1], -negative_stride, folds[first] - first))
    return shifts, rest


def array(kind, name, entries):
    lines, line = [], " "
    for entry in entries:
        if len(line) + len(entry) + 2 > 120:
            lines.append(line)
            line = " "
        line += f" {entry},"
    lines.append(line)
    return f"constexpr std::array<{kind}, {len(entries)}> {name}{{{{\n" + "\n".join(lines) + "\n}};\n"


def write(name, arrays):
    """A source of constants; `arrays` holds (type, name in the header, entries)."""
    text = f"""// Made by tools/unicode_tables.py from Unicode {unicodedata.unidata_version} (Python's unicodedata); do not edit.

#include "exec/data/unicode_tables.hpp"

#include <array>

namespace isobar::exec {{

namespace {{

// clang-format off
"""
    text += "\n".join(array(kind, f"{table}_table", entries) for kind, table, entries in arrays)
    text += "// clang-format on\n\n}  // namespace\n\n"
    for kind, table, _ in arrays:
        text += f"const std::span<const {kind}> {table} = {table}_table;\n"
    (pathlib.Path(__file__).parent.parent / "exec" / name).write_text(text + "\n}  // namespace isobar::exec\n")


def code_ranges(table, wanted):
    return ("CodeRange", table, [f"{{0x{first:X}, 0x{last:X}}}" for first, last in ranges(wanted)])


def main():
    folds = {code: folded(code) for code in CHARACTERS if code not in HANGUL and category(code) != "Mn"}
    folds = {code: fold for code, fold in folds.items() if fold != chr(code)}
    assert all(folds.values()), "a character vanishes"
    shifts, singles = shifts_and_lists({code: ord(fold) for code, fold in folds.items() if len(fold) == 1})
    assert all(one[1] < next_one[0] for one, next_one in zip(shifts, shifts[1:])), "runs overlap"
    several = sorted((code, fold) for code, fold in folds.items() if len(fold) > 1)
    assert all(len(fold) <= 3 for _, fold in several)

    write("unicode_categories.cpp", [code_ranges("other_codes", lambda of: of[0] == "C"),
                                     code_ranges("space_codes", lambda of: of[0] == "Z"),
                                     code_ranges("punctuation_codes", lambda of: of[0] == "P"),
                                     code_ranges("nonspacing_marks", lambda of: of == "Mn")])
    write("unicode_folds.cpp", [
        ("FoldedRun", "folded_runs", [f"{{0x{first:X}, 0x{last:X}, {stride}, {difference}}}"
                                      for first, last, stride, difference in shifts]),
        ("FoldedCode", "folded_codes", [f"{{0x{code:X}, 0x{fold:X}}}" for code, fold in sorted(singles.items())]),
        ("FoldedText", "folded_texts", [f"{{0x{code:X}, {{{', '.join(f'0x{ord(char):X}' for char in fold)}}}}}"
                                        for code, fold in several])])


if __name__ == "__main__":
    main()
