#!/usr/bin/env bash
# tools/tidy.sh [--recent COMMITS | --all | FILE...]: clang-tidy over the sources that need no LibTorch, over those of them
# that the last so many commits changed (all, where history does not go so far back), over all sources, or over those
# whose paths match. Of a changed header one source that includes it is taken. Nothing is compiled but the headers
# that the command's and the executor's share. With LibTorch a source takes a minute.
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
case ${1-} in
  "") set -- "$every" ;;
  --recent)
    since=$(git rev-parse --quiet --verify "HEAD~$2") && mapfile -t sources < <(changed_since "$since") || sources=("$every")
    [ ${#sources[@]} -gt 0 ] || exit 0
    set -- "${sources[@]}"
    ;;
  --all) with_libtorch=ON && set -- "$every" ;;
  *) with_libtorch=ON ;;
esac
[ $with_libtorch = OFF ] || need_libtorch
cmake --preset tidy -DISOBAR_BUILD_EXEC=$with_libtorch --log-level=WARNING >/dev/null
precompiled=(cli/CMakeFiles/isobar_cli.dir/cmake_pch.hxx.pch)
[ $with_libtorch = OFF ] || precompiled+=(exec/CMakeFiles/isobar_exec_model.dir/cmake_pch.hxx.pch)
cmake --build build/tidy --target "${precompiled[@]}" -- --quiet
run-clang-tidy-14 -p build/tidy -quiet -j "$(nproc)" "$@" >"$log" 2>&1 || { grep -E "(error|warning): " "$log" | sort -u; exit 1; }
