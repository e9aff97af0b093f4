#!/usr/bin/env bash
# tools/tidy.sh [--all | FILE...]: clang-tidy over the sources that need no LibTorch, over all of them, or over those whose
# paths match. Nothing is compiled but the header that the executor's share. With LibTorch a source takes a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/setup.sh
log=build/tidy/clang-tidy.log
with_libtorch=OFF
[ $# -eq 0 ] || with_libtorch=ON
[ $# -gt 0 ] && [ "$1" != --all ] || set -- "$PWD/(core|allocators|schedules|sim|results|exec|cli)/.*\.cpp$"
[ $with_libtorch = OFF ] || need_libtorch
cmake --preset tidy -DISOBAR_BUILD_EXEC=$with_libtorch --log-level=WARNING >/dev/null
if [ $with_libtorch = ON ]; then
  cmake --build build/tidy --target exec/CMakeFiles/isobar_exec.dir/cmake_pch.hxx.pch -- --quiet
fi
run-clang-tidy-14 -p build/tidy -quiet -j "$(nproc)" "$@" >"$log" 2>&1 || { grep -E "(error|warning): " "$log" | sort -u; exit 1; }
