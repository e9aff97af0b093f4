#!/usr/bin/env bash
# tools/tidy.sh [FILE...]: clang-tidy over these sources, or over all of them; nothing is compiled but what they share.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/setup.sh
need_libtorch
cmake --preset tidy -DISOBAR_BUILD_EXEC=ON --log-level=WARNING >/dev/null
cmake --build build/tidy --target exec/CMakeFiles/isobar_exec.dir/cmake_pch.hxx.pch -- --quiet
log=build/tidy/clang-tidy.log
[ $# -gt 0 ] || set -- "$PWD/(core|allocators|schedules|sim|results|exec|cli)/.*\.cpp$"
run-clang-tidy-14 -p build/tidy -quiet -j "$(nproc)" "$@" >"$log" 2>&1 || { grep -E "(error|warning): " "$log" | sort -u; exit 1; }
