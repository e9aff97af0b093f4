#!/usr/bin/env python3
"""Makes vocab.txt from the sentences of train.tsv in this folder: BERT's special pieces, all characters of the text and
all ASCII letters and digits, then merges of the most frequent pairs of adjacent pieces, until there are 400 in all."""

import collections
import csv
import pathlib
import re
import string

FOLDER = pathlib.Path(__file__).resolve().parent
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZE = 400


def words():
    """The number of times that each word occurs in the sentences, in lower case."""
    with open(FOLDER / "train.tsv", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        text = " ".join(f"{row['sentence1']} {row['sentence2']}" for row in rows).lower()
    return collections.Counter(re.findall(r"[a-z0-9]+|[^\sa-z0-9]", text))


def joined(left, right):
    return left + right.removeprefix("##")


def main():
    counts = words()
    letters = sorted({letter for word in counts for letter in word} | set(string.ascii_lowercase + string.digits))
    pieces = dict.fromkeys(SPECIAL + letters + ["##" + letter for letter in letters if letter.isalnum()])
    parts = {word: [word[0]] + ["##" + letter for letter in word[1:]] for word in counts}
    while len(pieces) < SIZE:
        pairs = collections.Counter()
        for word, count in counts.items():
            for pair in zip(parts[word], parts[word][1:]):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        pieces[joined(*best)] = None
        for word, old in parts.items():
            new = []
            for part in old:
                if new and (new[-1], part) == best:
                    new[-1] = joined(*best)
                else:
                    new.append(part)
            parts[word] = new
    (FOLDER / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")


if __name__ == "__main__":
    main()
