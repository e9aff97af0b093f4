# Sourced by ./demo, ./test and .ci/run: installs what is missing and builds preset `release` into build/release.

build_packages=(ca-certificates g++ cmake ninja-build pkg-config ccache libsimgrid-dev libyaml-cpp-dev libboost-graph-dev
                libcli11-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libpugixml-dev coinor-libcbc-dev zlib1g-dev libsqlite3-dev)
test_packages=(libgtest-dev libgmock-dev librapidcheck-dev python3 python3-pip git clang-format-14 slurm-wlm munge)

# Installs the packages that are not there, by apt-get as root or with sudo. Takes no time when all are there.
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

# The cache serves every clone, wherever it lies.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CMAKE_CXX_COMPILER_LAUNCHER=ccache

# configure ALL: ALL is ON, for the executor and the tests too, or OFF, which leaves a build folder with them as it is.
configure() {
  [ "$1" = OFF ] && [ -f build/release/build.ninja ] && return
  cmake --preset release -DISOBAR_BUILD_TESTS="$1" -DISOBAR_BUILD_EXEC="$1" --log-level=WARNING >/dev/null
}

# build TARGET...: says what it does only when there is something to do.
build() {
  cmake --build build/release --target "$@" -- --quiet
}

# Names a LibTorch in CMAKE_PREFIX_PATH: the one that is there already, else the pinned wheel's, fetched once into
# ~/.cache/isobar (or $ISOBAR_CACHE).
need_libtorch() {
  [ -z "${CMAKE_PREFIX_PATH:-}" ] || return 0
  local cache=${ISOBAR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/isobar}
  local folder
  folder=$cache/libtorch-$(sha256sum tools/libtorch.txt | cut -c1-12)
  export CMAKE_PREFIX_PATH=$folder/torch
  [ -d "$folder" ] && return
  echo "Fetching LibTorch (544 MB) into $folder"
  mkdir -p "$cache"
  local fresh
  fresh=$(mktemp -d "$cache/fetching.XXXXXX")
  # The wheel's libraries are the same for every Python: one is named, so that one hash does.
  python3 -m pip download --quiet --no-deps --only-binary=:all: --require-hashes --implementation cp --python-version 3.11 \
    --abi cp311 --abi none --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 --platform manylinux2014_x86_64 \
    --requirement tools/libtorch.txt --dest "$fresh/wheels"
  python3 - "$fresh" <<'UNPACK'
import pathlib, sys, zipfile
root = pathlib.Path(sys.argv[1])
for wheel in (root / "wheels").iterdir():
    with zipfile.ZipFile(wheel) as files:
        wanted = ("torch/lib/", "torch/include/", "torch-2", "nvidia/")
        files.extractall(root / "unpacked", [name for name in files.namelist() if name.startswith(wanted)])
UNPACK
  # Whoever comes second keeps the first one's.
  mv -T "$fresh/unpacked" "$folder" 2>/dev/null || [ -d "$folder" ]
  rm -rf "$fresh"
}
