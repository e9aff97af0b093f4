# Sourced by ./demo, ./test and .ci/run: installs what is missing and builds preset `release` into build/release.

build_packages=(ca-certificates g++ cmake ninja-build pkg-config ccache libsimgrid-dev libyaml-cpp-dev libboost-graph-dev
                libcli11-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libpugixml-dev coinor-libcbc-dev zlib1g-dev)
test_packages=(libgtest-dev libgmock-dev librapidcheck-dev python3 git clang-format-14)

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

# configure TESTS: TESTS is ON, or OFF, which leaves a build folder with tests as it is.
configure() {
  [ "$1" = OFF ] && [ -f build/release/build.ninja ] && return
  cmake --preset release -DISOBAR_BUILD_TESTS="$1" --log-level=WARNING >/dev/null
}

# build TARGET...: says what it does only when there is something to do.
build() {
  cmake --build build/release --target "$@" -- --quiet
}
