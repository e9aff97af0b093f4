#!/usr/bin/env bash
# A message that SimGrid's put_async sends does not move before its receiver calls get: there is no overlap with the
# receiver's computation. With set_receiver on the mailbox it moves at once.
#
# Package: Debian 12's libsimgrid-dev 3.32-2, with g++ and pkg-config. Downloads nothing.
# Input: 4 GB over a link of 1 GB/s with no latency; the receiver computes for 10 s, then receives.
# Guess: the bytes move during the computation, as the send is asynchronous: both sides are done by 10 s.
# Seen: 14 s. After Mailbox::set_receiver the sender is done at 4 s and the receiver at 10 s.
# So: a simulated pipeline of one actor a stage adds each transfer to the receiving stage's time unless the mailboxes
# have receivers, or the stage posts get_async before it computes.
set -euo pipefail
case $(pkg-config --modversion simgrid 2>/dev/null) in
  3.32*) ;;
  *) echo "cannot run: needs SimGrid 3.32 (Debian 12: libsimgrid-dev) and pkg-config" >&2; exit 2 ;;
esac
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/send.cpp" <<'END'
#include <cstdio>

#include <simgrid/s4u.hpp>
namespace sg = simgrid::s4u;

int main(int argc, char** argv)
{
  sg::Engine engine(&argc, argv);
  for (const char* setting : {"network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0"})
    sg::Engine::set_config(setting);
  auto* zone = sg::create_full_zone("zone");
  auto* from = zone->create_host("from", 1e9)->seal();
  auto* to = zone->create_host("to", 1e9)->seal();
  auto* link = zone->create_link("link", 1e9)->seal();
  zone->add_route(from->get_netpoint(), to->get_netpoint(), nullptr, nullptr, {sg::LinkInRoute(link)}, true);
  zone->seal();
  static int activations = 0;
  static double sent = 0, received = 0;
  sg::Actor::create("sender", from, [] {
    sg::Mailbox::by_name("box")->put_async(&activations, 4'000'000'000)->wait();
    sent = sg::Engine::get_clock();
  });
  auto receiver = sg::Actor::create("receiver", to, [] {
    sg::this_actor::execute(10e9);
    sg::Mailbox::by_name("box")->get<int>();
    received = sg::Engine::get_clock();
  });
  if (argc > 1) sg::Mailbox::by_name("box")->set_receiver(receiver);
  engine.run();
  std::printf("sent %g s, received %g s", sent, received);
}
END
g++ -std=c++17 "$folder/send.cpp" -o "$folder/send" $(pkg-config --cflags --libs simgrid) ||
  { echo "cannot run: the program does not compile" >&2; exit 2; }

plain=$("$folder/send" --log=root.thres:error) || true
with_receiver=$("$folder/send" set_receiver --log=root.thres:error) || true
seen="plain: $plain; set_receiver: $with_receiver"
expected='plain: sent 14 s, received 14 s; set_receiver: sent 4 s, received 10 s'
[ "$seen" = "$expected" ] || { echo "changed: expected \"$expected\", seen \"$seen\""; exit 1; }
echo "holds: $seen"
