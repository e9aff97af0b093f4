# Sourced by ./demo, ./test and .ci/run: installs missing packages and builds preset `release` in build/release.

build_packages=(ca-certificates g++ cmake ninja-build pkg-config ccache libsimgrid-dev libyaml-cpp-dev libboost-graph-dev
                libcli11-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libpugixml-dev coinor-libcbc-dev liblemon-dev zlib1g-dev
                libsqlite3-dev libssl-dev libutf8proc-dev python3 python3-pip)
test_packages=(libgtest-dev libgmock-dev librapidcheck-dev git clang-format-14 chromium slurm-wlm munge openmpi-bin
               faketime)

# need_packages PACKAGE...: installs the missing ones by apt-get, as root or with sudo. Instant when none is missing.
need_packages() {
  local missing=()
  local package
  for package in "$@"; do
    [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  echo "Installing: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Lets all clones share the cache, and caches files with a precompiled header.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros CMAKE_CXX_COMPILER_LAUNCHER=ccache

# configure ALL: ON includes the executor and the tests; OFF leaves an existing build folder as it is. A new build folder
# compiles each library as one source, which takes a third of the time.
configure() {
  local unity=()
  if [ -f build/release/build.ninja ]; then
    [ "$1" = ON ] || return 0
  else
    unity=(-DCMAKE_UNITY_BUILD=ON)
  fi
  cmake --preset release -DISOBAR_BUILD_TESTS="$1" -DISOBAR_BUILD_EXEC="$1" "${unity[@]}" --log-level=WARNING >/dev/null
}

# build TARGET...: shows its progress in a terminal; elsewhere prints what fails, or that there is nothing to do.
build() {
  local quiet=()
  [ -t 1 ] || quiet=(-- --quiet)
  cmake --build build/release --target "$@" "${quiet[@]}"
}

# Tests at a time: many of them wait, such as for a deadline.
test_jobs=$(($(nproc) + 2))

# The folder for downloads and fuzzing inputs, shared by all clones.
cache_folder() {
  echo "${ISOBAR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/isobar}"
}

# need_wheels NAME SIZE PREFIX...: fetches the pinned wheels of tools/NAME.txt once, unpacks the files that begin with one
# of the prefixes into ~/.cache/isobar (or $ISOBAR_CACHE), and sets `wheels` to their folder. Completes an existing folder
# that has no file of some prefix. The folder's name has a hash of tools/NAME.txt.
need_wheels() {
  local name=$1 size=$2
  local cache
  cache=$(cache_folder)
  wheels=$cache/$name-$(sha256sum "tools/$name.txt" | cut -c1-12)
  local prefix missing=
  for prefix in "${@:3}"; do compgen -G "$wheels/$prefix*" >/dev/null || missing=yes; done
  [ -z "$missing" ] && return
  echo "Fetching $name ($size) into $wheels"
  mkdir -p "$cache"
  local fresh
  fresh=$(mktemp -d "$cache/fetching.XXXXXX")
  # One Python version is named, so that one hash suffices; the files of LibTorch and plotly.js do not depend on it.
  local python=${wheel_python:-3.11}
  python3 -m pip download --quiet --no-deps --only-binary=:all: --require-hashes --implementation cp --python-version "$python" \
    --abi "cp${python/./}" --abi abi3 --abi none --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 --platform manylinux_2_24_x86_64 --platform manylinux2014_x86_64 \
    --platform manylinux1_x86_64 --platform any --requirement "tools/$name.txt" --dest "$fresh/wheels"
  python3 - "$fresh" "${@:3}" <<'UNPACK'
import os, pathlib, sys, zipfile
root, prefixes = pathlib.Path(sys.argv[1]), tuple(sys.argv[2:])
for wheel in (root / "wheels").iterdir():
    with zipfile.ZipFile(wheel) as files:
        for entry in files.infolist():
            if entry.filename.startswith(prefixes):
                path = files.extract(entry, root / "unpacked")
                if mode := entry.external_attr >> 16 & 0o777:
                    os.chmod(path, mode)
UNPACK
  # If another process was faster, keep its files.
  mv -T "$fresh/unpacked" "$wheels" 2>/dev/null || cp -rn "$fresh/unpacked/." "$wheels"
  rm -rf "$fresh"
}

# The pinned torch: libraries and Python.
need_torch() {
  need_wheels libtorch "544 MB" torch/ torchgen/ functorch/ torch-2 nvidia/
}

# Sets CMAKE_PREFIX_PATH to the pinned wheel's LibTorch, unless it is set already.
need_libtorch() {
  [ -z "${CMAKE_PREFIX_PATH:-}" ] || return 0
  need_torch
  export CMAKE_PREFIX_PATH=$wheels/torch
}

# plotly.js for reports, where cmake/FindPlotlyJs.cmake looks for it.
need_plotly() {
  [ -n "${PlotlyJs_ROOT:-}" ] || need_wheels plotly "10 MB" plotly/package_data/plotly.min.js plotly-
}

# Playwright, which drives a browser in tests, where tests/cli/browser.py looks for it.
need_playwright() {
  need_wheels playwright "54 MB" ""
}

# Python's torch, transformers and TensorBoard for comparisons in tests, where tests/support/peers.py looks for them.
need_peers() {
  need_torch
  local torch=$wheels
  need_wheels peers "50 MB" ""
  [ -d "$wheels/cuda" ] || python3 tools/cuda_stand_ins.py "$torch" "$wheels/cuda"
}

# A newer torch for Python, on which .ci/full tests isobar-torch, too.
need_newer_torch() {
  need_wheels newer_torch "540 MB" torch/ torchgen/ functorch/ torch-2 nvidia/
  [ -d "$wheels/cuda" ] || python3 tools/cuda_stand_ins.py "$wheels" "$wheels/cuda"
}

# Megatron-Core, torchtitan and DeepSpeed, on which .ci/full tests isobar convert.
need_frameworks() {
  need_peers
  local peers=$wheels
  need_newer_torch
  local torch=$wheels wheel_python=3.12
  need_wheels frameworks "5 MB" ""
  [ -d "$wheels/deepspeed" ] && return
  echo "Fetching deepspeed (2 MB) into $wheels"
  LD_LIBRARY_PATH=$torch/cuda PYTHONPATH=$wheels:$torch:$peers python3 -m pip install --quiet --no-deps --no-build-isolation \
    --require-hashes --requirement tools/deepspeed.txt --target "$wheels/fresh"
  mv "$wheels/fresh/deepspeed" "$wheels"
  rm -r "$wheels/fresh"
}

# HolisticTraceAnalysis, which reads torch's profiles; sets ISOBAR_HTA to the Python that has it.
need_hta() {
  cache=$(cache_folder)
  local folder=$cache/hta-0.5.0
  if [ ! -e "$folder/bin/hta_is_here" ]; then
    echo "Fetching HolisticTraceAnalysis (150 MB) into $folder"
    python3 -m venv --clear "$folder"
    "$folder/bin/pip" install --quiet HolisticTraceAnalysis==0.5.0
    touch "$folder/bin/hta_is_here"
  fi
  export ISOBAR_HTA=$folder/bin/python
}
