#!/usr/bin/env bash
# tools/newer_simgrid.sh: builds Isobar with the SimGrid of tools/simgrid.txt in build/newer-simgrid, runs the tests of sim/
# there, and compares its simulated steps with those of build/release on every shipped platform and on those of
# tests/instances. Exits with 5 where they differ; platforms that the newer one refuses are named. SimGrid is built once, without its optional parts, and installed in
# ~/.cache/isobar (or $ISOBAR_CACHE). $SIMGRID may name an installed one instead.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/setup.sh

# build_simgrid PREFIX: fetches SimGrid, builds its library and installs it.
build_simgrid() {
  local fresh
  fresh=$(mktemp -d)
  python3 -m pip download --quiet --no-deps --no-binary simgrid --require-hashes --requirement tools/simgrid.txt --dest "$fresh"
  mkdir "$fresh/source"
  tar --extract --gzip --file "$fresh"/simgrid-*.tar.gz --strip-components 1 --directory "$fresh/source"
  cmake -S "$fresh/source" -B "$fresh/build" -G Ninja -DCMAKE_INSTALL_PREFIX="$1" -DCMAKE_CXX_FLAGS=-O1 -DCMAKE_C_FLAGS=-O1 \
    -Denable_compile_optimizations=OFF -Denable_lto=OFF -Denable_smpi=OFF -Denable_model-checking=OFF -Denable_sthread=OFF \
    -Denable_python=OFF -Denable_java=OFF -Denable_ns3=OFF -Denable_documentation=OFF >"$fresh/log"
  cmake --build "$fresh/build" --target install >>"$fresh/log" || { tail -n 50 "$fresh/log"; exit 1; }
  rm -rf "$fresh"
}

prefix=${SIMGRID:-$(cache_folder)/simgrid-$(sha256sum tools/simgrid.txt | cut -c1-12)}
[ -e "$prefix/lib/pkgconfig/simgrid.pc" ] || build_simgrid "$prefix"

configure ON
build isobar_cli
other=build/newer-simgrid
PKG_CONFIG_PATH=$prefix/lib/pkgconfig cmake --preset release -B $other -DISOBAR_BUILD_TESTS=ON -DISOBAR_BUILD_EXEC=OFF \
  -DCMAKE_RUNTIME_OUTPUT_DIRECTORY="$PWD/$other/bin" --log-level=WARNING >/dev/null
cmake --build $other --target isobar_cli isobar_sim_tests
ctest --test-dir $other --tests-regex '^sim\.' --parallel "$test_jobs" --output-on-failure >$other/ctest.log || { cat $other/ctest.log; exit 1; }
tail -n 4 $other/ctest.log

python3 - build/release/bin/isobar $other/bin/isobar <<'COMPARE'
import csv, pathlib, subprocess, sys, tempfile

TOLERANCE = 1e-9  # relative
REFUSED = "finds no routes from there"  # sim/platform/platform.cpp
# Fits on the small devices of tests/instances.
SMALL = "model: layers\nmicro_batch: 1\nlayers:\n" + "".join(
    f"  - {{name: layer {i}, forward: 1 GFLOP, parameters: 1000, activations: 1 MB, output: {i + 1} MB}}\n" for i in range(4))


def steps(isobar, platform, workload, folder):
    """The simulated step of each allocator, empty where nothing fits; and whether the platform is refused."""
    table = pathlib.Path(folder) / "rows.csv"
    table.unlink(missing_ok=True)
    run = subprocess.run([isobar, "compare", platform, workload, "--allocators", "even,chain-dp", "--schedule", "gpipe",
                    "--budget", "1000", "-o", table], capture_output=True, text=True)
    rows = csv.DictReader(table.open()) if table.exists() else ()
    return {row["allocator"]: row["step_time_s"] for row in rows}, REFUSED in run.stderr


compared, differ, refused = 0, 0, set()
with tempfile.TemporaryDirectory() as folder:
    small = pathlib.Path(folder) / "small.yaml"
    small.write_text(SMALL)
    for platform in sorted([*pathlib.Path("platforms").glob("*.xml"), *pathlib.Path("tests/instances/platforms").glob("*.xml")]):
        here = 0
        for workload in ("workloads/bert24.yaml", small):
            (ours, _), (others, is_refused) = (steps(isobar, platform, workload, folder) for isobar in sys.argv[1:])
            if is_refused:
                refused.add(platform.name)
                continue
            for name in ours.keys() | others.keys():
                one, other = (float(found.get(name) or "nan") for found in (ours, others))
                if one != one and other != other:
                    continue  # infeasible in both
                here += 1
                if not abs(one - other) <= TOLERANCE * one:
                    differ += 1
                    print(f"{platform} {workload} {name}: {one} s, with the newer SimGrid {other} s")
        if here == 0 and platform.name not in refused:
            sys.exit(f"newer_simgrid.sh: {platform}: no plan to compare")
        compared += here
print(f"{compared} steps compared, {differ} differ; refused by the newer SimGrid: {', '.join(sorted(refused)) or 'none'}")
sys.exit(5 if differ else 0)
COMPARE
