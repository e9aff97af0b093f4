#!/usr/bin/env bash
# SimGrid's default solver lets a flow pass a link faster than the link is, if another flow over the same first link
# starts at the same time.
#
# Package: Debian 12's libsimgrid-dev 3.32-2, with g++ and pkg-config. Downloads nothing.
# Input: one host sends 100 MB to each of two others at once. Both pass its link `up` of 500 MB/s, and then a link of
# their own, of 100 and 200 MB/s. Latency 1 ms.
# Guess: 1 s and 0.5 s by the narrow links; `up` is never full.
# Seen: 1 s and 0.25 s: the second flow passes its link of 200 MB/s at the 400 MB/s that the first one leaves of `up`.
# With --cfg=network/optim:Full: 1 s and 0.5 s.
# Reason, by the source of src/kernel/lmm: a flow that begins marks its first link for the solver, and with it the links
# of the flows that have begun. The other flow finds its first link marked, and does not mark its second one.
# So: simulated broadcasts, pipelines and all-to-alls from one host are too fast by default. Full is right, and slower
# (1.8 times for a pipeline of 64 devices). Without latencies (--cfg=network/latency-factor:0) both are right: a flow then
# shares all its links from its start.
set -euo pipefail
case $(pkg-config --modversion simgrid 2>/dev/null) in
  3.32*) ;;
  *) echo "cannot run: needs SimGrid 3.32 (Debian 12: libsimgrid-dev) and pkg-config" >&2; exit 2 ;;
esac
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/flows.cpp" <<'END'
#include <cstdio>
#include <string>

#include <simgrid/s4u.hpp>
namespace sg = simgrid::s4u;

int main(int argc, char** argv)
{
  sg::Engine engine(&argc, argv);
  for (const char* setting : {"network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0"})
    sg::Engine::set_config(setting);
  auto* zone = sg::create_full_zone("zone");
  auto* from = zone->create_host("from", 1e9)->seal();
  auto* up = zone->create_link("up", 500e6)->set_latency(1e-3)->seal();
  static double ends[2];
  for (int i = 0; i < 2; ++i) {
    const std::string name = i == 0 ? "narrow" : "wide";
    auto* to = zone->create_host(name, 1e9)->seal();
    auto* down = zone->create_link("down " + name, (i + 1) * 100e6)->seal();
    zone->add_route(from->get_netpoint(), to->get_netpoint(), nullptr, nullptr,
                    {sg::LinkInRoute(up), sg::LinkInRoute(down)}, true);
    sg::Actor::create("sender " + name, from, [from, to, i] {
      sg::Comm::sendto_async(from, to, 100'000'000)->wait();
      ends[i] = sg::Engine::get_clock();
    });
  }
  zone->seal();
  engine.run();
  std::printf("%.2f s and %.2f s", ends[0], ends[1]);
}
END
g++ -std=c++17 "$folder/flows.cpp" -o "$folder/flows" $(pkg-config --cflags --libs simgrid) ||
  { echo "cannot run: the program does not compile" >&2; exit 2; }

lazy=$("$folder/flows" --log=root.thres:error) || true
full=$("$folder/flows" --log=root.thres:error --cfg=network/optim:Full) || true
at_once=$("$folder/flows" --log=root.thres:error --cfg=network/latency-factor:0) || true
seen="default: $lazy; Full: $full; without latencies: $at_once"
expected='default: 1.00 s and 0.25 s; Full: 1.00 s and 0.50 s; without latencies: 1.00 s and 0.50 s'
[ "$seen" = "$expected" ] || { echo "changed: expected \"$expected\", seen \"$seen\""; exit 1; }
echo "holds: $seen"
