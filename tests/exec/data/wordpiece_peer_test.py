"""Compares our WordPiece with Hugging Face's tokenizers (tools/peers.txt) on random text from all of Unicode."""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata
import unittest

from tests.support.peers import need_peers
from tests.support.wheels import wheels_folder

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
# The peer's tables are from several versions of Unicode, and it leaves a gap in CJK's extension E.
KNOWN = [chr(code) for code in range(1, 0x110000)
         if not 0xD800 <= code < 0xE000 and not 0x2B820 <= code < 0x2B920 and chr(code) != "\n"
         and unicodedata.ucd_3_2_0.category(chr(code)) == unicodedata.category(chr(code)) != "Cn"]
LETTERS = [char for char in KNOWN if unicodedata.category(char)[0] in "LMNS" and ord(char) < 0x3000]
COMMON = list("aAbBeEiIoOsStT ''.,-éÉüÜßñ\t\u0301\u0308\u00A0\u200B한글漢字ΣσςЖж")


def random_text(draw):
    alphabet = draw.choice([COMMON, COMMON + LETTERS[:400], LETTERS, KNOWN])
    return "".join(draw.choices(alphabet, k=draw.randrange(1, 40)))


def random_vocabulary(draw, texts, normalise):
    """Pieces of the texts, so that many words are known."""
    pieces = dict.fromkeys(SPECIAL)
    for text in texts:
        for word in normalise(text).split():
            for _ in range(3):
                begin = draw.randrange(len(word))
                piece = word[begin:begin + draw.choice([1, 1, 2, 3])]
                pieces[("##" if draw.random() < 0.5 else "") + piece] = None
    return [piece for piece in pieces if piece.strip() == piece and "\x85" not in piece]


class WordPiecePeer(unittest.TestCase):
    def setUp(self):
        need_peers()
        sys.path.append(str(wheels_folder("peers")))
        self.addCleanup(sys.path.pop)

    def compare(self, seed, lower, accents, chinese, settings):
        import tokenizers  # only installed among the peers

        draw = random.Random(seed)
        texts = [random_text(draw) for _ in range(5000)]
        normaliser = tokenizers.normalizers.BertNormalizer(strip_accents=not accents, lowercase=lower,
                                                           handle_chinese_chars=chinese)
        vocabulary = random_vocabulary(draw, texts, normaliser.normalize_str) + ["A"] * (not lower)
        vocabulary = list(dict.fromkeys(vocabulary))
        peer = tokenizers.Tokenizer(tokenizers.models.WordPiece(
            {piece: token for token, piece in enumerate(vocabulary)}, unk_token="[UNK]", max_input_chars_per_word=100))
        peer.normalizer = normaliser
        peer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "vocab.txt"
            file.write_text("".join(f"{piece}\n" for piece in vocabulary), newline="\n")
            if settings is not None:
                file.with_name("tokenizer_config.json").write_text(json.dumps(settings))
            done = subprocess.run([os.environ["ISOBAR_WORDPIECE_FILTER"], file], check=True, timeout=600,
                                  input="".join(f"{text}\n" for text in texts).encode(), stdout=subprocess.PIPE)
        lines = done.stdout.decode().split("\n")[:-1]
        self.assertEqual(len(lines), len(texts))
        unknown, pieces = 0, 0
        for text, line in zip(texts, lines):
            expected = peer.encode(text).ids
            self.assertEqual([int(token) for token in line.split()], expected, ascii(text))
            unknown += expected.count(1)
            pieces += len(expected) - expected.count(1)
        self.assertGreater(pieces, 5000)
        self.assertGreater(unknown, 1000)

    def test_uncased_pieces_are_those_of_tokenizers(self):
        self.compare(1, lower=True, accents=False, chinese=True, settings=None)

    def test_cased_pieces_are_those_of_tokenizers(self):
        self.compare(2, lower=False, accents=True, chinese=True, settings=None)

    def test_pieces_in_lower_case_with_accents_are_those_of_tokenizers(self):
        self.compare(3, lower=True, accents=True, chinese=True, settings={"do_lower_case": True, "strip_accents": False})

    def test_pieces_in_any_case_without_accents_are_those_of_tokenizers(self):
        self.compare(4, lower=False, accents=False, chinese=False,
                     settings={"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False})


if __name__ == "__main__":
    unittest.main()
