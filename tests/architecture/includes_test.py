"""Fails on any #include that the table of the architecture does not allow. The table is the architecture document."""

import pathlib
import re
import sys

# folder: (our folders that it may include, prefixes of libraries that it may include in any file,
#          prefixes that it may include in the named .cpp files only)
MAY_INCLUDE = {
    "core": ({"core"}, ("fmt/",), {"*": ("yaml-cpp/", "nlohmann/", "boost/graph/")}),
    "allocators": ({"core", "allocators"}, ("fmt/",), {"*": ("boost/graph/", "nlohmann/"), "milp.cpp": ("coin/",)}),
    "schedules": ({"core", "schedules"}, ("fmt/",), {}),
    "sim": ({"core", "schedules", "sim"}, ("fmt/",), {"*": ("simgrid/", "xbt/", "pugixml.hpp")}),
    "exec": (
        {"core", "schedules", "exec"},
        ("fmt/", "CLI/"),
        {"*": ("torch/", "ATen/", "c10/", "cuda", "nccl", "nvtx3/", "boost/asio", "openssl/", "nlohmann/",
               "spdlog/")},
    ),
    "results": ({"core", "results"}, ("fmt/",), {"*": ("nlohmann/", "sqlite3.h"), "gzip.cpp": ("zlib.h",)}),
    "cli": ({"core", "allocators", "schedules", "sim", "results", "cli"}, ("fmt/", "CLI/", "spdlog/"), {"*": ("nlohmann/",)}),
}
# One file keeps what differs between SimGrid's versions, one the options that both commands take; they are headers.
HEADER_EXCEPTIONS = {"sim/simgrid_compat.hpp": ("simgrid/",), "core/command_options.hpp": ("CLI/",)}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def system_header(name):
    """Standard and POSIX headers: no folder, sys/ or netinet/, no ending or .h; none of the libraries' single-file headers."""
    of_a_library = name.endswith(".hpp") or name in ("sqlite3.h", "zlib.h") or name.startswith(("cuda", "nccl"))
    return not of_a_library and ("/" not in name or name.startswith(("sys/", "netinet/")))


def fault(root, file, line, folder, bracket, name):
    ours, anywhere, in_sources = MAY_INCLUDE[folder]
    if bracket == '"':
        if name.split("/")[0] not in ours:
            return f"{folder} may not include {name}"
        return None if (root / name).is_file() else f"{name} is not a path from the repository's root"
    allowed = anywhere + HEADER_EXCEPTIONS.get(str(file.relative_to(root)), ())
    if file.suffix != ".hpp":
        allowed += in_sources.get("*", ()) + in_sources.get(file.name, ())
    return None if name.startswith(allowed) or system_header(name) else f"{folder} may not include {name}" + (
        " in a header" if file.suffix == ".hpp" else "")


def faults(root):
    if not (root / "core/plan.hpp").is_file():
        yield f"{root}: not the root of the sources"
    for folder in MAY_INCLUDE:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in (".hpp", ".cpp", ".cu"):
                continue
            for number, line in enumerate(file.read_text().splitlines(), 1):
                if match := INCLUDE.match(line):
                    if what := fault(root, file, number, folder, *match.groups()):
                        yield f"{file.relative_to(root)}:{number}: {what}"


if __name__ == "__main__":
    found = list(faults(pathlib.Path(sys.argv[1])))
    print("\n".join(found) or "every #include follows the table")
    sys.exit(bool(found))
