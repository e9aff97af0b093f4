#!/usr/bin/env bash
# The same line of a SimGrid availability profile means "half the speed" for a host and "half a byte a second" for a link.
#
# Package: Debian 12's libsimgrid-dev 3.32-2, with g++ and pkg-config. Downloads nothing.
# Input: a host of 1 Gflop/s with a speed_file, and a link of 1 GB/s with a bandwidth_file; both files have `0 0.5`.
# Guess: both are halved, as the attributes look alike and their files have one form.
# Seen: 10 Gflop take 20 s, so that the host is halved. Ten bytes also take 20 s: the link's bandwidth is 0.5 B/s.
# No warning appears.
# So: write shares of the speed for hosts, but bytes a second for links. A trace of shares gives a network that is
# slower by a factor of a billion.
set -euo pipefail
case $(pkg-config --modversion simgrid 2>/dev/null) in
  3.32*) ;;
  *) echo "cannot run: needs SimGrid 3.32 (Debian 12: libsimgrid-dev) and pkg-config" >&2; exit 2 ;;
esac
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
echo '0 0.5' | tee host.profile >link.profile
cat > platform.xml <<'END'
<?xml version="1.0"?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="zone" routing="Full">
    <host id="a" speed="1Gf" speed_file="host.profile"/>
    <host id="b" speed="1Gf"/>
    <link id="link" bandwidth="1GBps" latency="0s" bandwidth_file="link.profile"/>
    <route src="a" dst="b"><link_ctn id="link"/></route>
  </zone>
</platform>
END
cat > profiles.cpp <<'END'
#include <cstdio>

#include <simgrid/s4u.hpp>
namespace sg = simgrid::s4u;

int main(int argc, char** argv)
{
  sg::Engine engine(&argc, argv);
  for (const char* setting : {"network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0"})
    sg::Engine::set_config(setting);
  engine.load_platform("platform.xml");
  auto* from = sg::Host::by_name("a");
  sg::Actor::create("a", from, [from] {
    sg::this_actor::execute(10e9);
    const double computed = sg::Engine::get_clock();
    sg::Comm::sendto(from, sg::Host::by_name("b"), 10);
    std::printf("10 Gflop: %g s; 10 bytes: %g s", computed, sg::Engine::get_clock() - computed);
  });
  engine.run();
}
END
g++ -std=c++17 profiles.cpp -o profiles $(pkg-config --cflags --libs simgrid) ||
  { echo "cannot run: the program does not compile" >&2; exit 2; }

seen=$(./profiles --log=root.thres:error) || true
expected='10 Gflop: 20 s; 10 bytes: 20 s'
[ "$seen" = "$expected" ] || { echo "changed: expected \"$expected\", seen \"$seen\""; exit 1; }
echo "holds: $seen"
