"""Usage: hidden_names_test.py ROOT

Sources that are compiled as one share their unnamed namespaces. A function there hides one of namespace isobar from all of
them, and their calls may take it instead: on_one_line of a path once became on_one_line of a message. hidden_names_test.py
names such functions. A test's source has a namespace of its own instead, which is named after it.
"""
import collections
import pathlib
import re
import sys
import tempfile
import unittest

FOLDERS = ("core", "allocators", "schedules", "results", "sim", "cli", "exec")
WHOLE = ("core", "results", "cli")  # of the others, each room is a library
FUNCTION = re.compile(r"^(?!return\b|using\b|namespace\b|class\b|struct\b|enum\b|template\b|static_assert\b)"
                      r"[A-Za-z][\w:<>,&* ]*?[ *&](\w+)\(", re.MULTILINE)
UNNAMED = re.compile(r"^namespace \{$(.*?)^\}  // namespace$", re.MULTILINE | re.DOTALL)
NOT_CODE = re.compile(r'//.*|"(?:\\.|[^"\\])*"')


def library_of(path):
    """The sources that are compiled with this one: its folder, or its room."""
    return path.parts[0] if path.parts[0] in WHOLE else "/".join(path.parts[:-1][:2])


def hidden_names(root):
    """Faults, as "source: function hides that of header, which user calls"."""
    declared = {}
    for header in sorted((root / "core").rglob("*.hpp")):
        text = header.read_text()
        if re.search(r"^namespace isobar \{$", text, re.MULTILINE):
            for match in FUNCTION.finditer(text):
                declared.setdefault(match[1], header.relative_to(root))
    libraries = collections.defaultdict(dict)
    for folder in FOLDERS[1:]:
        for source in sorted((root / folder).rglob("*.cpp")):
            path = source.relative_to(root)
            if path.parent == pathlib.Path("exec"):  # the command isobar-exec, whose sources are compiled apart
                continue
            libraries[library_of(path)][path] = source.read_text()
    faults = []
    for sources in libraries.values():
        own = {path: {match[1] for part in UNNAMED.finditer(text) for match in FUNCTION.finditer(part[1])}
               for path, text in sources.items()}
        for path in sources:
            for name in sorted(own[path] & declared.keys()):
                call = re.compile(rf"(?<![\w.:>]){name}\(")
                users = [other for other, its in sources.items() if name not in own[other] and call.search(NOT_CODE.sub("", its))]
                if users:
                    faults.append(f"{path}: {name} hides that of {declared[name]}, which {users[0]} calls; name it otherwise")
    return faults


def shared_namespaces(root):
    """Faults of sources of tests, as "source: what to write"."""
    faults = []
    for source in sorted((root / "tests").rglob("*_test.cpp")):
        if not re.search(rf"^namespace isobar(::\w+)*::(\w+_)?{source.stem} \{{$", source.read_text(), re.MULTILINE):
            faults.append(f"{source.relative_to(root)}: put its tests into a namespace ...::{source.stem}")
    return faults


class HiddenNames(unittest.TestCase):
    def faults_of(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return hidden_names(root) + shared_namespaces(root)

    HEADER = "namespace isobar {\n\nstd::string on_one_line(std::string_view text);\n\n}\n"
    HIDING = ("namespace isobar::cli {\n\nnamespace {\n\nvoid other()\n{\n}\n\n"
              "std::string on_one_line(const std::string& text)\n{\n}\n\n}  // namespace\n}\n")

    def test_a_function_that_another_source_calls_is_named(self):
        files = {"core/errors.hpp": self.HEADER, "cli/slurm.cpp": self.HIDING, "cli/plan.cpp": "x = on_one_line(name);\n"}
        self.assertEqual(self.faults_of(files), ["cli/slurm.cpp: on_one_line hides that of core/errors.hpp, which cli/plan.cpp "
                                                 "calls; name it otherwise"])

    def test_a_call_in_another_library_or_with_its_namespace_is_none(self):
        self.assertEqual(self.faults_of({"core/errors.hpp": self.HEADER, "cli/slurm.cpp": self.HIDING,
                                         "cli/plan.cpp": "x = isobar::on_one_line(name);  // on_one_line()\n",
                                         "sim/scan/scan.cpp": "x = on_one_line(name);\n"}), [])

    def test_a_source_of_tests_has_its_own_namespace(self):
        self.assertEqual(self.faults_of({"tests/core/a_test.cpp": "namespace isobar::a_test {\n",
                                         "tests/sim/scan/b_test.cpp": "namespace isobar::sim::scan_b_test {\n",
                                         "tests/core/c_test.cpp": "namespace isobar {\nnamespace {\n"}),
                         ["tests/core/c_test.cpp: put its tests into a namespace ...::c_test"])


if __name__ == "__main__":
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(HiddenNames)
    if not unittest.TextTestRunner().run(tests).wasSuccessful():
        sys.exit(1)
    found = hidden_names(pathlib.Path(sys.argv[1])) + shared_namespaces(pathlib.Path(sys.argv[1]))
    print("\n".join(found) or "no name is hidden")
    sys.exit(1 if found else 0)
