#!/usr/bin/env bash
# tools/fuzz.sh [SECONDS]: runs each fuzzer for SECONDS (default: 60), as many at a time as there are processors. They
# begin with their seeds in tests/fuzz/corpus and the inputs that earlier runs found. New inputs go to
# ~/.cache/isobar/fuzz (or $ISOBAR_CACHE/fuzz), outside of the repository. An input that crashes a fuzzer is written to
# build/fuzz. To keep it as a test, move it to tests/fuzz/crashes/FUZZER.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/setup.sh
seconds=${1:-60}
cmake --preset fuzz --log-level=WARNING >/dev/null
fuzzers=(tests/fuzz/fuzz_*.cpp)
fuzzers=("${fuzzers[@]##*/}")
fuzzers=("${fuzzers[@]%.cpp}")
cmake --build --preset fuzz --target "${fuzzers[@]}"

# fuzz NAME: runs one fuzzer.
fuzz() {
  local name=$1
  local grown
  grown=$(cache_folder)/fuzz/$name
  mkdir -p "$grown"
  echo "$name: $seconds s, from $(ls "tests/fuzz/corpus/$name" | wc -l) seeds and $(ls "$grown" | wc -l) inputs in $grown"
  # Absolute paths, since some fuzzers change their folder. New inputs go to the first folder.
  "$PWD/build/fuzz/bin/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=0 -verbosity=0 \
    -artifact_prefix="$PWD/build/fuzz/" "$grown" "$PWD/tests/fuzz/corpus/$name" >"build/fuzz/$name.log" 2>&1 ||
    { cat "build/fuzz/$name.log"; exit 1; }
}
export -f fuzz cache_folder
export seconds
printf '%s\n' "${fuzzers[@]}" | xargs --max-procs="$(nproc)" --replace bash -c 'fuzz {}'
