"""The runner of the documentation's command blocks finds what a page shows wrongly; links lead somewhere, and shown C++ is
that of an example."""
import re
import unittest

from tests.docs.pages import ROOT, Block, Fault, blocks_of, commands_of, matches, run_block


class Shell:
    """Stands for a folder: commands that print themselves."""

    def __init__(self, codes=()):
        self.codes = dict(codes)

    def run(self, command):
        return f"{command}!\n", self.codes.get(command, 0)


class Blocks(unittest.TestCase):
    def test_blocks_have_their_line_language_and_remark(self):
        page = "One\n\n<!-- exit code 4 -->\n```console\n$ a\n```\n1. x\n\n   ```sh\n   b\n   ```\n```text\nc\n```\n"
        self.assertEqual([(block.line, block.language, block.text, block.exit_code) for block in blocks_of(page)],
                         [(4, "console", "$ a\n", 4), (9, "sh", "b\n", 0), (12, "text", "c\n", 0)])

    def test_a_command_may_take_several_lines(self):
        self.assertEqual(list(commands_of(Block(1, "console", "$ a \\\n  b\nout\n$ c\n"))), [("a \\\n  b", "out\n"), ("c", "")])

    def test_an_ellipsis_stands_for_what_differs(self):
        self.assertTrue(matches("took … s\n…\nend\n", "took 1.5 s\na\nb\nend\n"))
        self.assertFalse(matches("took … s\nend\n", "took 1.5 s\na\nend\n"))

    def test_another_output_or_exit_code_is_a_fault(self):
        run_block(Block(1, "console", "$ a\na!\n"), Shell())
        for block, shell in ((Block(1, "console", "$ a\nb!\n"), Shell()), (Block(1, "console", "$ a\na!\n"), Shell({"a": 2})),
                             (Block(1, "console", "$ a\na!\n", exit_code=2), Shell())):
            with self.assertRaises(Fault):
                run_block(block, shell)


class Links(unittest.TestCase):
    def test_every_link_within_the_repository_leads_to_a_file_and_a_heading(self):
        faults = []
        pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*/*.md"), *ROOT.glob("examples/**/*.md")]
        self.assertGreater(len(pages), 10)
        for page in pages:
            text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
            for target in re.findall(r"\]\(([^)\s]+)\)", text):
                if re.match(r"[a-z]+:", target):
                    continue
                path, _, anchor = target.partition("#")
                file = (page.parent / path).resolve() if path else page
                if not file.exists():
                    faults.append(f"{page.relative_to(ROOT)}: {target}: no such file")
                elif anchor and anchor not in anchors_of(file.read_text()):
                    faults.append(f"{page.relative_to(ROOT)}: {target}: no such heading")
        self.assertEqual(faults, [])


class Sources(unittest.TestCase):
    def test_cpp_blocks_stand_in_an_example_that_is_built(self):
        examples = [path.read_text() for path in ROOT.glob("examples/cpp/*.cpp")]
        shown = [(page.name, block) for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))
                 for block in blocks_of(page.read_text()) if block.language == "cpp"]
        self.assertGreater(len(shown), 0)
        for page, block in shown:
            self.assertTrue(any(block.text in text for text in examples), f"{page}:{block.line} is in no example")


def anchors_of(text):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower().replace(" ", "-")
            for heading in headings}


if __name__ == "__main__":
    unittest.main()
