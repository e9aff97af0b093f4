"""Fails on any #include that the table of the architecture does not allow. The table is the architecture document.

includes_test.py ROOT checks the sources below ROOT: each room includes only the rooms and libraries of its row, arrows
between rooms go one way, no headers include each other in a ring, and no room or folder is too large to know.
"""
import pathlib
import re
import sys
import tempfile
import unittest

CORE = {"core", "core/base", "core/spmd", "core/model", "core/huggingface", "core/cluster", "core/jobs", "core/plan",
        "core/outer", "core/program", "core/compute", "core/steps", "core/check", "core/certificates", "core/text",
        "core/order", "core/costs"}
EXECUTION = {"exec/control", "exec/device", "exec/files", "exec/launch", "exec/links", "exec/model", "exec/net",
             "exec/outer", "exec/stage", "exec/transport", "exec/watch"}
# The limits keep the tree readable. A room's files fit one screen, and a reader can name what they are about. A folder's
# rooms fit its part of the picture in docs/architecture.md: two lines of eight for core, beside the folder's own files.
# Divide a full room by what it is about; its tests follow.
MOST_ROOMS = 17
MOST_FILES = 36

# room: (our rooms that it may include besides itself, prefixes of libraries in any file, prefixes in .cpp files only).
# A path of a file is a room of its own: it may include what its room may not.
ROOMS = {
    "core": (set(), ("fmt/",), ()),
    "core/base": ({"core"}, ("fmt/",), ()),
    "core/base/command_options.hpp": ({"core"}, ("CLI/",), ()),
    "core/text": ({"core"}, ("fmt/",), ("yaml-cpp/", "nlohmann/")),
    "core/text/json_text.hpp": ({"core"}, ("nlohmann/json_fwd.hpp",), ()),
    "core/spmd": ({"core", "core/program"}, ("fmt/",), ()),
    "core/model": ({"core", "core/base", "core/spmd", "core/text"}, ("fmt/",), ("nlohmann/", "boost/graph/")),
    "core/huggingface": ({"core", "core/model", "core/text"}, ("fmt/",), ()),
    "core/cluster": ({"core", "core/base", "core/model", "core/text"}, ("fmt/",), ("nlohmann/",)),
    "core/jobs": ({"core", "core/base", "core/text"}, ("fmt/",), ("nlohmann/",)),
    "core/order": ({"core", "core/text", "core/program"}, ("fmt/",), ()),
    "core/plan": (
        {"core", "core/base", "core/spmd", "core/model", "core/cluster", "core/program", "core/text", "core/order"},
        ("fmt/",), ("nlohmann/",)),
    "core/outer": ({"core", "core/base", "core/plan", "core/program", "core/text"}, ("fmt/",), ("nlohmann/",)),
    "core/costs": ({"core", "core/model", "core/cluster", "core/plan", "core/program"}, ("fmt/",), ()),
    "core/program": ({"core"}, ("fmt/",), ("nlohmann/",)),
    "core/compute": (
        {"core", "core/base", "core/spmd", "core/model", "core/cluster", "core/plan", "core/program", "core/text",
         "core/order", "core/costs"},
        ("fmt/",), ("nlohmann/",)),
    "core/steps": (
        {"core", "core/spmd", "core/model", "core/cluster", "core/plan", "core/program", "core/costs"}, ("fmt/",), ()),
    "core/check": (CORE - {"core/check", "core/certificates"}, ("fmt/",), ()),
    "core/certificates": (CORE - {"core/certificates"}, ("fmt/",), ()),
    "allocators/bounds": (CORE, ("fmt/",), ()),
    "allocators": (CORE | {"allocators/bounds", "schedules/lowering", "schedules/orders"}, ("fmt/",), ("nlohmann/",)),
    "allocators/registry.cpp": (
        CORE | {"allocators", "allocators/bounds", "allocators/chain", "allocators/exact", "allocators/hybrid",
                "allocators/planners", "allocators/sky", "allocators/spmd", "allocators/tiers", "schedules/lowering"},
        ("fmt/",), ()),
    "allocators/sky": (CORE | {"allocators"}, ("fmt/",), ()),
    "allocators/sky/milp.cpp": (CORE | {"allocators", "allocators/sky"}, ("fmt/",), ("coin/",)),
    "allocators/chain": (CORE | {"allocators", "allocators/bounds", "allocators/sky"}, ("fmt/",), ("boost/graph/",)),
    "allocators/exact": (
        CORE | {"allocators", "allocators/bounds", "allocators/chain", "allocators/sky"}, ("fmt/",),
        ("boost/graph/",)),
    "allocators/planners": (
        CORE | {"allocators", "allocators/bounds", "allocators/chain", "schedules/lowering", "schedules/orders"},
        ("fmt/",), ()),
    "allocators/hybrid": (
        CORE | {"allocators", "allocators/bounds", "allocators/chain", "allocators/exact", "allocators/planners",
                "schedules/lowering", "schedules/orders"},
        ("fmt/",), ()),
    "allocators/spmd": (CORE | {"allocators", "allocators/bounds", "schedules/lowering"}, ("fmt/",), ()),
    "allocators/spmd/linear_program.cpp": (CORE | {"allocators/spmd"}, ("fmt/",), ("coin/",)),
    "allocators/mix": (CORE, ("fmt/",), ("lemon/",)),
    "allocators/tiers": (CORE | {"allocators", "allocators/bounds", "schedules/lowering", "schedules/orders"}, ("fmt/",), ()),
    "schedules": (CORE | {"schedules/orders", "schedules/lowering"}, ("fmt/",), ()),
    "schedules/lowering": (CORE | {"schedules/orders"}, ("fmt/",), ()),
    "schedules/rounds": (CORE | {"schedules/lowering"}, ("fmt/",), ()),
    "schedules/orders": (CORE, ("fmt/",), ()),
    "sim/scan": (CORE, ("fmt/",), ("pugixml.hpp",)),
    "sim/platform": (CORE | {"sim/scan"}, ("fmt/",), ("simgrid/", "xbt/")),
    "sim/platform/simgrid_compat.hpp": (set(), ("simgrid/",), ()),  # keeps what differs between SimGrid's versions
    "sim/generate": (CORE, ("fmt/",), ()),
    "sim/play": (CORE | {"schedules", "sim/platform"}, ("fmt/",), ("simgrid/", "xbt/")),
    "results": (CORE, ("fmt/",), ("nlohmann/",)),
    "results/trace": (CORE | {"results"}, ("fmt/",), ("nlohmann/", "zlib.h")),
    "results/fidelity": (CORE | {"results"}, ("fmt/",), ("nlohmann/",)),
    "results/gate": (CORE | {"results"}, ("fmt/",), ("nlohmann/",)),
    "results/sweep": (CORE | {"results"}, ("fmt/",), ("nlohmann/", "sqlite3.h")),
    "results/report": (CORE | {"results", "results/trace"}, ("fmt/",), ("nlohmann/",)),
    "exec/files": (CORE, ("fmt/",), ("nlohmann/",)),
    "exec/data": (CORE | {"exec/files"}, ("fmt/",), ("utf8proc.h",)),
    "exec/net": (CORE, ("fmt/",), ("boost/asio", "openssl/")),
    "exec/links": (CORE | {"exec/net"}, ("fmt/", "CLI/"), ("boost/asio",)),
    "exec/outer": (CORE | {"exec/files", "exec/links", "exec/net"}, ("fmt/",), ()),
    "exec/launch": (CORE | {"exec/files", "exec/links", "exec/net"}, ("fmt/", "CLI/"), ("nlohmann/",)),
    "exec/watch": (CORE | {"exec/files", "exec/links", "exec/net"}, ("fmt/", "CLI/"), ("nlohmann/",)),
    "exec/device": (CORE | {"exec/files"}, ("fmt/",), ("torch/", "ATen/", "c10/", "cuda", "nvtx3/")),
    "exec/control": (
        CORE | {"exec/device", "exec/links", "exec/watch"}, ("fmt/",), ("nlohmann/", "linux/futex.h")),
    "exec/transport": (
        CORE | {"exec/device", "exec/links", "exec/net"}, ("fmt/",), ("torch/", "ATen/", "c10/", "cuda", "nccl")),
    "exec/spmd": (CORE | {"exec/data", "exec/device"}, ("fmt/",), ("torch/", "ATen/", "c10/")),
    "exec/model": (
        CORE | {"exec/data", "exec/device", "exec/files", "exec/spmd"}, ("fmt/",), ("torch/", "ATen/", "c10/")),
    "exec/stage": (
        CORE | {"exec/data", "exec/device", "exec/files", "exec/model", "exec/spmd"}, ("fmt/",), ("torch/", "ATen/", "c10/")),
    "exec/rank": (
        CORE | EXECUTION | {"exec/data", "exec/spmd", "schedules", "schedules/lowering"}, ("fmt/",),
        ("torch/", "ATen/", "c10/", "nlohmann/")),
    "exec/run": (
        CORE | EXECUTION | {"exec/data", "exec/outer", "exec/rank", "exec/spmd", "schedules", "schedules/lowering"},
        ("fmt/",), ("torch/", "ATen/", "c10/", "nlohmann/")),
    "exec": (
        CORE | EXECUTION | {"exec/data", "exec/rank", "exec/run", "schedules/lowering"}, ("fmt/", "CLI/"),
        ("nlohmann/", "spdlog/")),
}
COMMANDS = CORE | {"allocators", "allocators/mix", "allocators/sky", "allocators/spmd", "schedules", "schedules/orders", "schedules/lowering", "schedules/rounds", "sim/platform",
                   "sim/generate", "sim/play", "results", "results/trace", "results/gate", "results/sweep",
                   "results/report", "results/fidelity"}
ROOMS |= {
    "cli": (COMMANDS, ("fmt/", "CLI/", "spdlog/"), ("nlohmann/",)),
    "cli/planning": (COMMANDS | {"cli"}, ("fmt/", "CLI/", "spdlog/"), ("nlohmann/",)),
    "cli/frameworks": (COMMANDS | {"cli"}, ("fmt/", "CLI/"), ("nlohmann/",)),
    "cli/commands": (COMMANDS | {"cli", "cli/frameworks", "cli/planning", "cli/rounds", "cli/sweep"}, ("fmt/", "CLI/", "spdlog/"), ("nlohmann/",)),
    "cli/convert": (COMMANDS | {"cli", "cli/commands", "cli/frameworks", "cli/planning"}, ("fmt/", "CLI/"), ("nlohmann/",)),
    "cli/fidelity": (COMMANDS | {"cli", "cli/planning"}, ("fmt/", "CLI/"), ("nlohmann/",)),
    "cli/calibrate": (COMMANDS | {"cli", "cli/planning", "cli/fidelity"}, ("fmt/", "CLI/"), ("nlohmann/",)),
    "cli/rounds": (COMMANDS | {"cli", "cli/planning"}, ("fmt/", "CLI/", "spdlog/"), ("nlohmann/",)),
    "cli/report": (COMMANDS | {"cli", "cli/planning"}, ("fmt/", "CLI/"), ("nlohmann/",)),
    "cli/share": (COMMANDS | {"cli", "cli/planning"}, ("fmt/", "CLI/"), ("nlohmann/",)),
    "cli/sweep": (COMMANDS | {"cli", "cli/planning"}, ("fmt/", "CLI/"), ("nlohmann/",)),
}
FOLDERS = sorted({room.split("/")[0] for room in ROOMS})
SOURCES = (".hpp", ".cpp", ".cu")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def system_header(name):
    """Standard and POSIX headers: no folder, sys/ or netinet/, no ending or .h; none of the libraries' single-file headers."""
    of_a_library = name.endswith(".hpp") or name in ("sqlite3.h", "utf8proc.h", "zlib.h") or name.startswith(("cuda", "nccl"))
    return not of_a_library and ("/" not in name or name.startswith(("sys/", "netinet/")))


def room_of(path):
    """The room of a source, such as core/plan for core/plan/plan.hpp; a folder within a room belongs to the room."""
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def fault(root, file, bracket, name):
    """What is wrong with an #include of `file` (a path below `root`), or None."""
    room = room_of(file)
    rooms, anywhere, in_sources = ROOMS.get(file, ROOMS[room])
    if bracket == '"':
        if name.startswith("generated/"):  # by the build, of a table (isobar_rows)
            own = room_of(name.removeprefix("generated/")) == room
            return None if own else f"{name} is generated for another folder"
        if not (root / name).is_file():
            return f"{name} is not a path from the repository's root"
        return None if room_of(name) in rooms | {room} else f"{room} may not include {name}"
    is_header = file.endswith(".hpp")
    allowed = anywhere if is_header else anywhere + in_sources
    return None if name.startswith(allowed) or system_header(name) else f"{room} may not include {name}" + (
        " in a header" if is_header else "")


def ring(arrows):
    """Some nodes that lead around to the first one, or None. `arrows`: what each node leads to."""
    done, path = set(), []

    def search(node):
        if node in path:
            return path[path.index(node):] + [node]
        if node in done:
            return None
        path.append(node)
        found = next(filter(None, map(search, sorted(arrows.get(node, ())))), None)
        path.pop()
        done.add(node)
        return found

    return next(filter(None, map(search, sorted(arrows))), None)


def faults(root):
    if not (root / "core/plan/plan.hpp").is_file():
        yield f"{root}: not the root of the sources"
    headers = {}
    for folder in FOLDERS:
        files = sorted(path.relative_to(root).as_posix() for path in (root / folder).rglob("*") if path.suffix in SOURCES)
        rooms = sorted({room_of(file) for file in files})
        if len(rooms) > MOST_ROOMS:
            yield f"{folder}: {len(rooms)} rooms; at most {MOST_ROOMS}"
        for room in rooms:
            count = sum(room_of(file) == room for file in files)
            if room not in ROOMS:
                yield f"{room}: no row in the table"
            elif count > MOST_FILES:
                yield f"{room}: {count} files; at most {MOST_FILES}"
        for file in files:
            if room_of(file) not in ROOMS:
                continue
            for number, line in enumerate((root / file).read_text().splitlines(), 1):
                if match := INCLUDE.match(line):
                    if what := fault(root, file, *match.groups()):
                        yield f"{file}:{number}: {what}"
                    if file.endswith(".hpp") and match.group(1) == '"':
                        headers.setdefault(file, set()).add(match.group(2))
    if found := ring(headers):
        yield "headers include each other: " + " -> ".join(found)


class Faults(unittest.TestCase):
    """The check itself, on sources that it must accept or refuse."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("core/plan/plan.hpp", "#include <vector>\n")

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def faults(self):
        return list(faults(self.root))

    def test_rows_of_the_table_have_no_ring(self):
        arrows = {room: row[0] for room, row in ROOMS.items() if not room.endswith(SOURCES)}
        self.assertIsNone(ring(arrows))

    def test_an_include_of_a_lower_room_passes(self):
        self.write("core/check/checker.cpp", '#include "core/plan/plan.hpp"\n#include <fmt/format.h>\n')
        self.assertEqual(self.faults(), [])

    def test_an_include_of_a_higher_room_is_refused(self):
        self.write("core/check/checker.hpp", "")
        self.write("core/plan/plan.cpp", '\n#include "core/check/checker.hpp"\n')
        self.assertEqual(self.faults(), ["core/plan/plan.cpp:2: core/plan may not include core/check/checker.hpp"])

    def test_a_library_of_another_room_is_refused(self):
        self.write("core/text/files.hpp", "#include <yaml-cpp/yaml.h>\n")
        self.write("core/text/files.cpp", "#include <yaml-cpp/yaml.h>\n#include <simgrid/s4u.hpp>\n")
        self.assertEqual(self.faults(), ["core/text/files.cpp:2: core/text may not include simgrid/s4u.hpp",
                                         "core/text/files.hpp:1: core/text may not include yaml-cpp/yaml.h in a header"])

    def test_headers_that_include_each_other_are_refused(self):
        self.write("core/plan/a.hpp", '#include "core/plan/b.hpp"\n')
        self.write("core/plan/b.hpp", '#include "core/plan/a.hpp"\n')
        self.assertEqual(self.faults(),
                         ["headers include each other: core/plan/a.hpp -> core/plan/b.hpp -> core/plan/a.hpp"])

    def test_a_room_without_a_row_and_a_crowded_one_are_refused(self):
        self.write("core/attic/box.hpp", "")
        for i in range(MOST_FILES):
            self.write(f"core/plan/file_{i}.hpp", "")
        self.assertEqual(self.faults(), ["core/attic: no row in the table",
                                         f"core/plan: {MOST_FILES + 1} files; at most {MOST_FILES}"])


if __name__ == "__main__":
    tests = unittest.TestLoader().loadTestsFromTestCase(Faults)
    passed = unittest.TextTestRunner(verbosity=0).run(tests).wasSuccessful()
    found = list(faults(pathlib.Path(sys.argv[1])))
    print("\n".join(found) or "every #include follows the table")
    sys.exit(1 if found or not passed else 0)
