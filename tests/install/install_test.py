"""An installed Isobar, moved to another folder, is found by CMake, and the C++ examples build with it and print what stands
beside them. BUILD_FOLDER is the build to install, CXX the compiler that built it."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/cpp"


def run(*command, expect=0, **options):
    result = subprocess.run(list(map(str, command)), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1200,
                            **options)
    if result.returncode != expect:
        raise AssertionError(f"{command} exits with {result.returncode}:\n{result.stdout}")
    return result.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        first = cls.folder / "first"
        run("cmake", "--install", os.environ["BUILD_FOLDER"], "--prefix", first)
        cls.prefix = cls.folder / "moved"
        first.rename(cls.prefix)

    def configure(self, source, name, expect=0):
        build = self.folder / name
        return build, run("cmake", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}",
                          f"-DCMAKE_CXX_COMPILER={os.environ['CXX']}", expect=expect)

    def test_public_headers_are_installed_once_and_include_each_other_alone(self):
        headers = sorted(path.relative_to(self.prefix / "include") for path in self.prefix.rglob("*.hpp"))
        listed = re.findall(r"^ +([a-z_/]+\.hpp)\)?$", (ROOT / "cmake/IsobarInstall.cmake").read_text(), re.MULTILINE)
        self.assertEqual([path.as_posix() for path in headers], sorted(f"isobar/{name}" for name in listed))
        for path in headers:
            text = (self.prefix / "include" / path).read_text()
            self.assertNotRegex(text, r'#include "', path)
            for name in re.findall(r"#include <(isobar/[^>]+)>", text):
                self.assertIn(pathlib.Path(name), headers, f"{path} includes {name}, which is not public")

    def test_the_examples_build_and_print_what_stands_beside_them(self):
        build, _ = self.configure(EXAMPLES, "examples")
        run("cmake", "--build", build, "--parallel", "2")
        sky = ("platforms/sky16.xml", "workloads/bert24.yaml")
        ocean = ("platforms/geo_2regions.xml", "workloads/bert_large.yaml")
        for program, files in {"plan_and_simulate": sky, "own_allocator": sky, "own_schedule": ocean}.items():
            with self.subTest(program):
                printed = run(build / program, *files, cwd=ROOT)
                self.assertEqual(printed, (EXAMPLES / f"{program}.txt").read_text())
                message = run(build / program, files[0], "no.yaml", cwd=ROOT, expect=2)
                self.assertEqual(message, "no.yaml: no such file\n")

    def test_each_component_is_found_alone_and_an_unknown_one_is_refused(self):
        project = self.folder / "project"
        project.mkdir()
        text = 'cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\nfind_package(isobar REQUIRED COMPONENTS {0})\n' \
               'if(NOT TARGET isobar::{0})\n  message(FATAL_ERROR "no target")\nendif()\n'
        for component in ("core", "allocators", "schedules", "results", "sim"):
            (project / "CMakeLists.txt").write_text(text.format(component))
            self.configure(project, f"{component}.build")
        (project / "CMakeLists.txt").write_text(text.format("executor"))
        _, message = self.configure(project, "executor.build", expect=1)
        self.assertIn("no component executor; installed are: core;allocators;schedules;results;sim", message)

    def test_a_later_minor_version_is_refused(self):
        project = self.folder / "versions"
        project.mkdir()
        (project / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\n"
                                                "find_package(isobar 0.2 REQUIRED)\n")
        _, message = self.configure(project, "versions.build", expect=1)
        self.assertRegex(message, r"version:\s+0\.1\.0|0\.1\.0")

    def test_commands_and_data_come_along(self):
        self.assertIn("isobar", run(self.prefix / "bin/isobar", "--version"))
        for path in ("platforms/sky16.xml", "workloads/bert24.yaml", "examples/cpp/CMakeLists.txt"):
            self.assertTrue((self.prefix / "share/isobar" / path).is_file(), path)


if __name__ == "__main__":
    unittest.main()
