#!/usr/bin/env bash
# tools/fuzz.sh SECONDS: runs each fuzzer that long, from the corpus in tests/fuzz/corpus.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
cmake --preset fuzz --log-level=WARNING >/dev/null
fuzzers=(tests/fuzz/fuzz_*.cpp)
fuzzers=("${fuzzers[@]##*/}")
cmake --build --preset fuzz --target "${fuzzers[@]%.cpp}"
for fuzzer in build/fuzz/bin/fuzz_*; do  # some change their folder, so paths are whole
  name=$(basename "$fuzzer")
  corpus=$PWD/build/fuzz/corpus/$name
  mkdir -p "$corpus"
  echo "$name: $seconds s"
  "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=0 -verbosity=0 \
    -artifact_prefix="$PWD/build/fuzz/" "$corpus" "$PWD/tests/fuzz/corpus/$name"
done
