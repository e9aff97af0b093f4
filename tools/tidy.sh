#!/usr/bin/env bash
# tools/tidy.sh [--recent COMMITS MOST | --all | FILE...]: runs clang-tidy over the sources that need no LibTorch; with
# --recent, over those of them that the last COMMITS commits changed (all, if the history is shorter), and if these are more
# than MOST, over MOST of them, others at each commit; with --all, over all sources; with FILEs, over those whose paths
# match. A changed header stands for one source that includes it. Compiles only LibTorch's headers. A source takes
# some ten seconds, with LibTorch a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/setup.sh
log=build/tidy/clang-tidy.log
folders=(core allocators schedules sim results exec cli)
every="$PWD/($(IFS='|'; echo "${folders[*]}"))/.*\.cpp$"

changed_since() {
  git diff --name-only --diff-filter=d "$1" -- "${folders[@]}" | while read -r file; do
    case $file in
      *.cpp) echo "$file" ;;
      *.hpp) grep -rl --include='*.cpp' -F "#include \"$file\"" "${folders[@]}" || true ;;
    esac | sort | sed -n "1s|.*|$PWD/&$|p"
  done | sort -u
}

with_libtorch=OFF
most=
case ${1-} in
  "") set -- "$every" ;;
  --recent)
    since=$(git rev-parse --quiet --verify "HEAD~$2") || since=$(git hash-object -t tree /dev/null)
    most=${3:?how many sources at most}
    mapfile -t sources < <(changed_since "$since")
    [ ${#sources[@]} -gt 0 ] || exit 0
    set -- "${sources[@]}"
    ;;
  --all) with_libtorch=ON && set -- "$every" ;;
  *) with_libtorch=ON ;;
esac
[ $with_libtorch = OFF ] || need_libtorch
# Nothing is precompiled, so that a missing include is found; LibTorch's headers are, since they take too long.
without_precompiled=ON
[ $with_libtorch = OFF ] || without_precompiled=OFF
cmake --preset tidy -DISOBAR_BUILD_EXEC=$with_libtorch -DCMAKE_DISABLE_PRECOMPILE_HEADERS=$without_precompiled \
      --log-level=WARNING >/dev/null
if [ -n "$most" ]; then  # what is not built, as without LibTorch, is not linted
  mapfile -t sources < <(printf '%s\n' "$@" | while read -r source; do
    ! grep -qF "\"${source%$}\"" build/tidy/compile_commands.json || echo "$source"
  done | shuf -n "$most" --random-source=<(yes "$(git rev-parse HEAD)"))
  [ ${#sources[@]} -gt 0 ] || exit 0
  set -- "${sources[@]}"
fi
precompiled=(CMakeFiles/isobar_standard.dir/cmake_pch.hxx.pch exec/CMakeFiles/isobar_exec_device.dir/cmake_pch.hxx.pch)
[ $with_libtorch = OFF ] || cmake --build build/tidy --target "${precompiled[@]}" -- --quiet
run-clang-tidy-14 -p build/tidy -quiet -j "$(nproc)" "$@" >"$log" 2>&1 || { grep -E "(error|warning): " "$log" | sort -u; exit 1; }
