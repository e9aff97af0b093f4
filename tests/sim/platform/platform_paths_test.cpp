#include "sim/platform/platform.hpp"

#include "core/errors.hpp"
#include "sim/platform/routes.hpp"
#include "sim/platform/simgrid_compat.hpp"
#include "tests/sim/platform/platform_files.hpp"
#include "tests/support/simulated.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

// Paths between devices: links, latency and bandwidth, and the transfers that take them.
namespace isobar::sim::platform_paths_test {
namespace {

/// The first devices of a platform, and the path from one device to another.
struct Expected {
  const char* platform;
  std::vector<std::string> devices;
  std::size_t from;
  std::size_t to;
  double latency;
  double bandwidth;
  std::vector<std::string> links;
};

std::ostream& operator<<(std::ostream& stream, const Expected& expected)
{
  return stream << expected.platform << " from " << expected.from << " to " << expected.to;
}

class EveryConstruct : public ::testing::TestWithParam<Expected> {};

TEST_P(EveryConstruct, LoadsWithThePathsOfItsNumbers)
{
  const auto& expected = GetParam();
  const Cluster cluster = load(expected.platform);
  auto names = names_of(cluster);
  names.resize(std::min(names.size(), expected.devices.size()));
  EXPECT_EQ(names, expected.devices);
  const Path path = cluster.path(expected.from, expected.to);
  EXPECT_NEAR(path.latency.value, expected.latency, 1e-12);
  EXPECT_NEAR(path.bandwidth.value, expected.bandwidth, 1e-9 * expected.bandwidth);
  EXPECT_EQ(cluster.network->links(expected.from, expected.to), expected.links);
}

INSTANTIATE_TEST_SUITE_P(
    Platforms, EveryConstruct,
    ::testing::Values(
        Expected{"star_cluster",
                 {"gpu-0.pod", "gpu-1.pod", "gpu-10.pod", "gpu-2.pod"},
                 2,
                 0,
                 1e-5,
                 12.5e9,
                 {"pod_link_10_UP", "pod_link_0_DOWN"}},
        Expected{"cluster_backbone",
                 {"node0", "node1", "node2"},
                 0,
                 7,
                 6e-4,
                 800e6,
                 {"rack_link_0_limiter", "rack_link_0_UP", "rack_backbone", "rack_link_7_DOWN", "rack_link_7_limiter"}},
        Expected{"cluster_shared_links",
                 {"l0", "l1", "r0", "r1"},
                 0,
                 3,
                 0.010031,
                 100e6,
                 {"left_link_0", "wan", "right_backbone", "right_link_1"}},
        Expected{"host_links", {"us10", "us2", "us1"}, 1, 0, 1.3e-4, 500e6, {"up2", "spine", "both"}},
        Expected{"full_two_sites", {"l0", "l1", "o0"}, 0, 2, 0.0203, 125e6, {"lyon_lan", "to_oslo", "oslo_lan"}},
        Expected{"full_two_sites", {"l0", "l1", "o0"}, 2, 0, 0.0303, 62.5e6, {"oslo_lan", "to_lyon", "lyon_lan"}},
        Expected{"full_two_sites", {"l0", "l1", "o0"}, 3, 2, 0.0203, 125e6, {"lyon_lan", "to_oslo", "oslo_lan"}},
        Expected{"floyd", {"a", "b", "c"}, 0, 2, 0.006, 50e6, {"ab", "bh", "hc"}},
        Expected{"dijkstra", {"a", "b", "c"}, 2, 0, 0.006, 50e6, {"hc", "bh", "ab"}},
        Expected{"dijkstra_cache", {"a", "b", "c"}, 0, 2, 0.006, 50e6, {"ab", "bh", "hc"}},
        Expected{"vivaldi_peers",
                 {"peer-10", "peer-2", "peer-1"},
                 0,
                 1,
                 0.008,
                 5e6,
                 {"link_peer-10_UP", "link_peer-2_DOWN"}},
        Expected{"fat_tree", {"n0", "n1", "n2"}, 0, 1, 2e-5, 1e9, {"link_from_0_31_0_UP", "link_from_1_31_1_DOWN"}},
        Expected{"torus", {"n0", "n1", "n2"}, 0, 3, 1e-5, 1e9, {"t_link_from_0_to_3_UP"}},
        Expected{"fatpipe", {"a", "b", "c"}, 0, 1, 0.001, 100e6, {"pipe"}},
        Expected{"fatpipe", {"a", "b", "c"}, 0, 2, 0.005, 75e6, {"bus", "pipe", "bus"}},
        Expected{"fatpipe", {"a", "b", "c"}, 1, 2, 0.002, 100e6, {"pipe", "pipe"}},
        Expected{"cabinets",
                 {"h0.c0", "h1.c0", "h0.c1", "h3.c1"},
                 0,
                 3,
                 1.3e-4,
                 500e6,
                 {"link_h0.c0_UP", "spine", "link_h3.c1_DOWN"}},
        Expected{"bypass", {"a", "b", "c"}, 0, 1, 0.001, 2e9, {"short"}},
        Expected{"bypass", {"a", "b", "c"}, 1, 0, 0.02, 500e6, {"long", "long"}},
        Expected{"bypass", {"a", "b", "c"}, 0, 2, 0.03, 300e6, {"long", "fibre", "__loopback__"}},
        Expected{"profiles", {"a", "b"}, 0, 1, 0.04, 100e6, {"l"}},
        Expected{"traces", {"a", "b"}, 1, 0, 0.04, 100e6, {"l"}},
        Expected{"version_4", {"a", "b"}, 0, 1, 1e-4, 125e6, {"l_UP", "free"}},
        // Windows: 2 MB / 50 ms; 4 flows of them; 8 flows of 1 MiB / 20 ms; a link narrower than its window; none.
        Expected{"windows", {"a", "b", "c", "d"}, 0, 1, 0.02, 2e6 / 0.05, {"there"}},
        Expected{"windows", {"a", "b", "c", "d"}, 1, 0, 0.03, 8e6 / 0.05, {"back"}},
        Expected{"windows", {"a", "b", "c", "d"}, 2, 0, 0.01, 8 * 1048576 / 0.02, {"own_DOWN"}},
        Expected{"windows", {"a", "b", "c", "d"}, 1, 2, 0.001, 10e6, {"fast"}},
        Expected{"windows", {"a", "b", "c", "d"}, 2, 3, 1e-6, 10e9, {"lan"}}));

/// Platforms whose links keep their nominal values.
class EveryTransfer : public ::testing::TestWithParam<const char*> {
 protected:
  Platform platform_ = Platform::load(instance(GetParam()));
};

void expect_transfers_as_paths_say(const Platform& platform)
{
  const Cluster& cluster = platform.cluster();
  const std::size_t last = cluster.devices.size() - 1;
  const std::set<std::pair<std::size_t, std::size_t>> pairs = {{0, 1}, {1, 0}, {0, last}, {last, 0}, {last / 2, last}};
  for (const auto& [from, to] : pairs) {
    if (from == to) continue;
    const auto hosts = on_hosts({cluster.devices[from].name, cluster.devices[to].name});
    for (const Bytes size : {Bytes(1000), Bytes(100e6)}) {
      const double time = number_from_child([&] {
        ListedProgram program(2);
        program.transfer(0, 1, size);
        return simulate(platform, program, hosts, 1, nullptr).step_times.at(0).value;
      });
      const double expected = cluster.path(from, to).transfer_time(size).value;
      EXPECT_NEAR(time, expected, 1e-6 * expected)
          << size.value << " bytes from " << hosts[0].host << " to " << hosts[1].host;
    }
  }
}

TEST_P(EveryTransfer, TakesTheTimeOfItsPath)
{
  expect_transfers_as_paths_say(platform_);
}

TEST_P(EveryTransfer, TakesTheTimeOfItsPathAfterScaling)
{
  const std::size_t last = platform_.cluster().devices.size() - 1;
  const Path before = platform_.cluster().path(0, last);
  platform_.scale(Property::Bandwidth, 0.25);
  const double window_rate = platform_.cluster().path(0, last).bandwidth.value;
  if (std::string(GetParam()) != "windows") {
    EXPECT_NEAR(window_rate, 0.25 * before.bandwidth.value, 1);
  }
  platform_.scale(Property::Latency, 3);
  const Path after = platform_.cluster().path(0, last);
  EXPECT_LE(after.bandwidth.value, window_rate);
  if (std::string(GetParam()) == "vivaldi_peers") {
    EXPECT_EQ(after.latency, before.latency);  // Vivaldi computes it from coordinates
  } else {
    EXPECT_NEAR(after.latency.value, 3 * before.latency.value, 1e-12);
  }
  expect_transfers_as_paths_say(platform_);
}

INSTANTIATE_TEST_SUITE_P(Platforms, EveryTransfer,
                         ::testing::Values("star_cluster", "cluster_backbone", "cluster_shared_links", "host_links",
                                           "full_two_sites", "floyd", "dijkstra", "dijkstra_cache", "vivaldi_peers",
                                           "fat_tree", "torus", "dragonfly", "fatpipe", "cabinets", "bypass",
                                           "version_4", "windows"));

TEST(Platform, GivesATransferToTheSameDeviceNoTime)
{
  EXPECT_EQ(load("floyd").path(1, 1).transfer_time(Bytes(1e9)), Seconds(0));
}

TEST(Platform, KeepsNominalPathsAfterProfilesHaveChangedTheLinks)
{
  const auto platform = Platform::load(instance("profiles"));
  const auto* engine = sg4::Engine::get_instance();
  EXPECT_EQ(engine->link_by_name("l")->get_bandwidth(), 200e6);  // the profile has set it at 0 s
  const auto route = platform.routes().between(*engine->host_by_name("a"), *engine->host_by_name("b"));
  EXPECT_NEAR(route.latency.value, 0.04, 1e-15);
  EXPECT_EQ(route.bandwidth, BytesPerSecond(100e6));
}

TEST(Platform, ReportsAMissingRouteOfALargePlatformWhenItsPathIsLookedUp)
{
  // 200 hosts, each with a route to the next one only. Loading checks just these neighbours.
  std::string content = xml_head + "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">";
  for (int i = 0; i < 200; ++i) {
    content += fmt::format("<host id=\"h{}\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>", i);
  }
  content += "<link id=\"l\" bandwidth=\"1GBps\" latency=\"1ms\"/>";
  for (int i = 0; i < 200; ++i) {
    content += fmt::format("<route src=\"h{}\" dst=\"h{}\"><link_ctn id=\"l\"/></route>", i, (i + 1) % 200);
  }
  const Cluster cluster = Platform::load(write_platform(content + "</zone></platform>")).cluster();
  EXPECT_NEAR(cluster.path(7, 8).latency.value, 1e-3, 1e-15);
  EXPECT_THAT([&] { cluster.path(7, 9); },
              ::testing::ThrowsMessage<InputError>("no route from h7 to h9; every pair of devices needs one"));
}

}  // namespace
}  // namespace isobar::sim::platform_paths_test
