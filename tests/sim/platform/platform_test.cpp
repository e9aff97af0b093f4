#include "sim/platform/platform.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "sim/platform/routes.hpp"
#include "sim/platform/simgrid_compat.hpp"
#include "tests/support/simulated.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>

namespace isobar::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::filesystem::path instances = std::filesystem::path(ISOBAR_SOURCE_DIR) / "tests/instances";

Cluster load(const std::string& name)
{
  return Platform::load(instances / "platforms" / (name + ".xml")).cluster();
}

std::vector<std::string> names_of(const Cluster& cluster)
{
  std::vector<std::string> names;
  for (const auto& device : cluster.devices) names.push_back(device.name);
  return names;
}

/// Writes a platform file into a folder of this process.
std::filesystem::path write_platform(const std::string& content, const std::string& name = "test.xml")
{
  static const testing_support::TemporaryFolder
      folder;  // lives as long as the process; files of its tests have different names
  return folder.write(name, content);
}

const std::string head = "<?xml version=\"1.0\"?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n";

std::string message_of(const std::filesystem::path& file)
{
  try {
    Platform::load(file);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no fault";
}

// Every construct loads with its devices in the order of the file and with the paths of its numbers.

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
        // Windows: 2 MB / 50 ms; 4 flows of them; 8 flows of 1 MiB / 20 ms; the zone's window, but a narrow link.
        Expected{"windows", {"a", "b", "c", "d"}, 0, 1, 0.02, 2e6 / 0.05, {"there"}},
        Expected{"windows", {"a", "b", "c", "d"}, 1, 0, 0.03, 8e6 / 0.05, {"back"}},
        Expected{"windows", {"a", "b", "c", "d"}, 2, 0, 0.01, 8 * 1048576 / 0.02, {"own_DOWN"}},
        Expected{"windows", {"a", "b", "c", "d"}, 1, 2, 0.001, 10e6, {"fast"}},
        Expected{"windows", {"a", "b", "c", "d"}, 2, 3, 1e-6, 10e9, {"lan"}}));

/// Platforms whose links keep their nominal values.
class EveryTransfer : public ::testing::TestWithParam<const char*> {
 protected:
  Platform platform_ = Platform::load(instances / "platforms" / (std::string(GetParam()) + ".xml"));
};

void expect_transfers_as_paths_say(const Platform& platform)
{
  const Cluster& cluster = platform.cluster();
  const std::size_t last = cluster.devices.size() - 1;
  const std::set<std::pair<std::size_t, std::size_t>> pairs = {{0, 1}, {1, 0}, {0, last}, {last, 0}, {last / 2, last}};
  for (const auto& [from, to] : pairs) {
    if (from == to) continue;
    const auto hosts = at_one_gigaflop({cluster.devices[from].name, cluster.devices[to].name});
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

// Props.

TEST(Platform, ReadsThePropsOfDevices)
{
  const Cluster cluster = load("star_cluster");
  EXPECT_EQ(cluster.name, "star_cluster");
  ASSERT_EQ(cluster.devices.size(), 4u);
  const Device& device = cluster.devices[3];
  EXPECT_EQ(device.type, "V100-SXM2-16GB");
  EXPECT_EQ(device.site, "lyon");
  EXPECT_EQ(device.memory, Bytes(16.0 * 1024 * 1024 * 1024));
  EXPECT_EQ(device.speed, FlopsPerSecond(10e12));
  EXPECT_EQ(device.speed_at(DType::BFloat16), FlopsPerSecond(100e12));
  EXPECT_EQ(device.speed_at(DType::Float16), FlopsPerSecond(10e12));
  EXPECT_EQ(device.price_usd_per_hour, 2.48);
  EXPECT_EQ(cluster.data_server, std::nullopt);
  EXPECT_EQ(cluster.profile_speedup, 1);
}

TEST(Platform, TakesTheSiteOfTheNearestZoneUnlessTheHostHasOne)
{
  const Cluster cluster = load("host_links");
  EXPECT_EQ(cluster.devices[0].site, "lab");
  EXPECT_EQ(cluster.devices[1].site, "desk");
  EXPECT_EQ(cluster.devices[2].site, "lab");
}

TEST(Platform, FindsTheDataServerAmongHostsThatAreNoDevices)
{
  const Cluster cluster = load("full_two_sites");
  EXPECT_EQ(cluster.data_server, "store");
  EXPECT_THAT(names_of(cluster), ElementsAre("l0", "l1", "o0"));
  EXPECT_EQ(cluster.data_server_index(), 3u);
}

TEST(Platform, TakesTheSpeedOfThePowerStateThatAHostStartsIn)
{
  EXPECT_EQ(load("version_4").devices[0].speed, FlopsPerSecond(2e12));
}

TEST(Platform, ReadsTheDevicesFileBesideIt)
{
  const Cluster cluster = load("vivaldi_peers");
  EXPECT_EQ(cluster.data_server, "store");
  ASSERT_EQ(cluster.devices.size(), 3u);
  EXPECT_EQ(cluster.devices[0].memory, Bytes(8.0 * 1024 * 1024 * 1024));
  EXPECT_EQ(cluster.devices[1].memory, Bytes(16.0 * 1024 * 1024 * 1024));
  EXPECT_EQ(cluster.devices[1].type, "RTX-3060");
  EXPECT_EQ(cluster.devices[1].speed_at(DType::BFloat16), FlopsPerSecond(20e12));
  EXPECT_EQ(cluster.devices[0].speed_at(DType::BFloat16), FlopsPerSecond(1e12));
}

TEST(Platform, TakesTheDevicesFileThatItIsGiven)
{
  const auto devices = write_platform("h0.c0: {memory: 1 GiB}\nh3.c1: {memory: 2 GiB}\n", "other.yaml");
  const Cluster cluster = Platform::load(instances / "platforms/cabinets.xml", devices).cluster();
  EXPECT_THAT(names_of(cluster), ElementsAre("h0.c0", "h3.c1"));
}

TEST(Platform, KnowsTheLargestSpeedupOfItsProfiles)
{
  // Availability up to 3, bandwidth up to 2, latency down to a quarter.
  EXPECT_EQ(load("profiles").profile_speedup, 4);
}

TEST(Platform, ReadsInlineProfiles)
{
  EXPECT_EQ(load("traces").profile_speedup, 2.5);
}

TEST(Platform, HasNoBoundOnSpeedupWhereALatencyProfileLiftsTheCapsOfWindows)
{
  write_platform("5 2\n", "slower.profile");  // without windows, a rising latency would speed nothing up
  const auto file = write_platform(head +
                                   "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">"
                                   "<host id=\"a\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>"
                                   "<link id=\"l\" bandwidth=\"1GBps\" latency=\"1s\" latency_file=\"slower.profile\"/>"
                                   "<link id=\"m\" bandwidth=\"1GBps\" latency=\"1s\"><prop id=\"window\" value=\"1 "
                                   "MB\"/></link></zone></platform>");
  EXPECT_EQ(Platform::load(file).cluster().profile_speedup, std::numeric_limits<double>::infinity());
}

TEST(Platform, IncludesProfilesAndTheDevicesFileInItsHash)
{
  const std::string platform = head +
                               "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">"
                               "<host id=\"a\" speed=\"1Tf\" speed_file=\"load.profile\"/></zone></platform>";
  const auto file = write_platform(platform, "hashed.xml");
  const std::string devices = "a: {memory: 1 GiB}\n";
  const auto profile = write_platform("0 1\n", "load.profile");
  const auto devices_file = write_platform(devices, "hashed.devices.yaml");
  const auto loaded = Platform::load(file);
  EXPECT_EQ(loaded.hash(), fingerprint(platform + devices + "0 1\n"));
  EXPECT_THAT(loaded.files(), testing::UnorderedElementsAre(file, profile, devices_file));
}

TEST(Platform, ScalesOneDeviceInAllItsRates)
{
  auto platform = Platform::load(instances / "platforms/star_cluster.xml");
  const auto before = platform.cluster().devices;
  platform.scale(Property::Speed, 2, before[1].name);
  platform.scale(Property::Memory, 0.5);
  const auto& after = platform.cluster().devices;
  EXPECT_EQ(after[0].speed, before[0].speed);
  EXPECT_EQ(after[1].speed, 2.0 * before[1].speed);
  EXPECT_EQ(after[1].speed_at(DType::BFloat16), 2.0 * before[1].speed_at(DType::BFloat16));
  EXPECT_EQ(after[0].memory, 0.5 * before[0].memory);
}

TEST(Platform, ScalesOneLinkAndLeavesTheOthers)
{
  auto platform = Platform::load(instances / "platforms/floyd.xml");
  const auto& network = *platform.cluster().network;
  const std::string link = network.links(0, 1).front();
  const Path before = network.path(0, 1);
  const Path expected = network.path_with(0, 1, link, 0.01);
  ASSERT_NE(expected.bandwidth, before.bandwidth);
  platform.scale(Property::Bandwidth, 0.01, link);
  EXPECT_NEAR(network.path(0, 1).bandwidth.value, expected.bandwidth.value, 1e-6);
  EXPECT_EQ(network.path(0, 1).latency, before.latency);
}

TEST(Platform, RefusesToScaleWhatItCannot)
{
  auto platform = Platform::load(instances / "platforms/profiles.xml");
  const auto expect_refused = [&](Property property, double factor, const std::optional<std::string>& name,
                                  const std::string& message) {
    EXPECT_THAT([&] { platform.scale(property, factor, name); }, ::testing::ThrowsMessage<InputError>(message));
  };
  expect_refused(Property::Speed, 0, {}, "profiles: scaled by 0; a factor must be greater than 0");
  expect_refused(Property::Speed, 1e-30, "a", "profiles: scaled by 1e-30, the speed of a is out of range");
  expect_refused(Property::Memory, 2, "x", "profiles: there is no device x to scale");
  expect_refused(Property::Latency, 2, "x", "profiles: there is no link x to scale");
  expect_refused(Property::Bandwidth, 2, "l", "profiles: link l has a profile; only links without one can be scaled");
}

TEST(Platform, GivesATransferToTheSameDeviceNoTime)
{
  EXPECT_EQ(load("floyd").path(1, 1).transfer_time(Bytes(1e9)), Seconds(0));
}

TEST(Platform, KeepsNominalPathsAfterProfilesHaveChangedTheLinks)
{
  const auto platform = Platform::load(instances / "platforms/profiles.xml");
  const auto* engine = sg4::Engine::get_instance();
  EXPECT_EQ(engine->link_by_name("l")->get_bandwidth(), 200e6);  // the profile has set it at 0 s
  const auto route = platform.routes().between(*engine->host_by_name("a"), *engine->host_by_name("b"));
  EXPECT_NEAR(route.latency.value, 0.04, 1e-15);
  EXPECT_EQ(route.bandwidth, BytesPerSecond(100e6));
}

// Settings.

TEST(NetworkSettings, OverrideTheConfigurationOfAPlatformFile)
{
  load("version_4");  // asks for LV08, whose latencies are 13 times longer
  const auto* engine = sg4::Engine::get_instance();
  auto transfer = sg4::Comm::sendto_init(engine->host_by_name("a"), engine->host_by_name("b"));
  start_activity(transfer->set_payload_size(125'000'000));
  engine->run();
  EXPECT_NEAR(sg4::Engine::get_clock(), 1.0, 1e-9);  // SimGrid's flows do not include latencies
}

TEST(NetworkSettings, NameEachOptionOnce)
{
  std::set<std::string> names;
  for (const auto& [name, value] : network_settings()) {
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_FALSE(value.empty()) << name;
  }
  EXPECT_TRUE(names.contains("network/model"));
}

TEST(NetworkSettings, TimeMicrosecondActivitiesToAMillionth)
{
  load("floyd");
  const auto* engine = sg4::Engine::get_instance();
  auto* host = engine->host_by_name("a");  // 1 TFLOP/s
  const auto run_for = [&](double flops) {
    auto exec = sg4::Exec::init()->set_host(host)->set_flops_amount(flops);
    start_activity(exec);
    engine->run();
  };
  run_for(1e15);  // begin late, where the spacing of doubles is larger
  const double begin = sg4::Engine::get_clock();
  EXPECT_NEAR(begin, 1000, 1e-9);
  for (int i = 0; i < 1000; ++i) run_for(1e6);
  EXPECT_NEAR(sg4::Engine::get_clock() - begin, 1e-3, 1e-9);
}

TEST(NetworkSettings, SeparateEndsHalfAMicrosecondApart)
{
  load("floyd");
  const auto* engine = sg4::Engine::get_instance();
  std::vector<double> ends;
  on_activity_completion([&ends](const sg4::Activity&) { ends.push_back(sg4::Engine::get_clock()); });
  std::vector<sg4::ExecPtr> execs;
  for (const double flops : {1.000e6, 1.0005e6}) {  // on two hosts: 1 us and 0.50025 us
    auto* host = engine->host_by_name(execs.empty() ? "a" : "b");
    execs.push_back(sg4::Exec::init()->set_host(host)->set_flops_amount(flops));
    start_activity(execs.back());
  }
  engine->run();
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_NEAR(ends[0], 0.50025e-6, 1e-12);
  EXPECT_NEAR(ends[1], 1e-6, 1e-12);
}

TEST(NetworkSettings, LeaveSimGridsSharingInInverseProportionToLatencies)
{
  const auto file = write_platform(
      head +
      "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">"
      "<host id=\"a\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>"
      "<host id=\"b\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>"
      "<host id=\"c\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>"
      "<link id=\"bus\" bandwidth=\"100MBps\" latency=\"0\"/>"
      "<link id=\"near\" bandwidth=\"1GBps\" latency=\"1ms\"/><link id=\"far\" bandwidth=\"1GBps\" latency=\"3ms\"/>"
      "<route src=\"a\" dst=\"b\"><link_ctn id=\"bus\"/></route>"
      "<route src=\"a\" dst=\"c\"><link_ctn id=\"near\"/><link_ctn id=\"bus\"/></route>"
      "<route src=\"b\" dst=\"c\"><link_ctn id=\"far\"/><link_ctn id=\"bus\"/></route></zone></platform>");
  const auto platform = Platform::load(file);
  const auto* engine = sg4::Engine::get_instance();
  std::vector<double> ends;
  on_activity_completion([&ends](const sg4::Activity&) { ends.push_back(sg4::Engine::get_clock()); });
  std::vector<sg4::CommPtr> transfers;
  for (const char* from : {"a", "b"}) {
    transfers.push_back(sg4::Comm::sendto_init(engine->host_by_name(from), engine->host_by_name("c")));
    start_activity(transfers.back()->set_payload_size(300'000'000));
  }
  engine->run();
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_NEAR(ends[0], 300e6 / 75e6, 1e-5);  // 75 and 25 MB/s
  EXPECT_NEAR(ends[1], 6, 1e-5);
}

TEST(SimGridVersion, IsThatOfTheLibrary)
{
  EXPECT_THAT(simgrid_version(), ::testing::MatchesRegex("[0-9]+\\.[0-9]+.*"));
}

// Faults.

/// The text between "<!-- expect: " and " -->".
std::string expected_message(const std::string& content)
{
  const std::string begin = "<!-- expect: ";
  const auto start = content.find(begin) + begin.size();
  return content.substr(start, content.find(" -->", start) - start);
}

TEST(Platform, RefusesEveryMalformedFileWithItsFileAndLine)
{
  std::filesystem::current_path(instances / "bad");
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(".")) {
    if (entry.path().extension() != ".xml") continue;
    const std::filesystem::path file = entry.path().filename();
    EXPECT_EQ(message_of(file), expected_message(read_file(file))) << file;
    EXPECT_THAT(message_of(file), ::testing::ContainsRegex("[a-z_/]+\\.(xml|profile):[0-9]+: ")) << file;
    ++files;
  }
  EXPECT_GE(files, 60u);
}

TEST(Platform, IgnoresConfigurationAndKeepsTheLinesOfTheRest)
{
  const std::string zone =
      "<zone id=\"z\" routing=\"Full\"><host id=\"a\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>\n";
  const std::string config =
      "<platform version=\"4.1\"><config id=\"c\">\n<!-- </config> -->\n<prop id=\"tracing\" value=\"yes\"/>\n"
      "<prop id=\"network/speed\" value=\"9\"/></config>\n<config/>\n" +
      zone;
  const auto broken = write_platform(head + config + "<nothing/></zone></platform>", "broken.xml");
  EXPECT_THAT(message_of(broken), ::testing::StartsWith(broken.string() + ":9: SimGrid: "));
  const auto file = write_platform(head + config + "</zone></platform>", "config.xml");
  EXPECT_THAT(Platform::load(file).notes(),
              ElementsAre(file.string() + ":3: <config> is ignored; Isobar sets SimGrid's options itself"));
}

TEST(Platform, TurnsACrashWhileLoadingIntoOneLine)
{
  const auto file = write_platform(
      head +
      "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">"
      "<host id=\"a\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>"
      "<link id=\"l\" bandwidth=\"54Mbps,36Mbps\" latency=\"0\" sharing_policy=\"WIFI\"/></zone></platform>");
  EXPECT_EQ(message_of(file), file.string() + ": SimGrid cannot load it: Non-WIFI links must use only 1 bandwidth.");
}

TEST(Platform, TurnsACrashInARouteIntoTheLineOfTheDevice)
{
  const auto file = write_platform(head +
                                   "<platform version=\"4.1\"><zone id=\"z\" routing=\"None\">\n"
                                   "<host id=\"a\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>\n"
                                   "<host id=\"b\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>\n"
                                   "</zone></platform>");
  EXPECT_EQ(message_of(file),
            file.string() +
                ":5: host b: no route from a; every pair of devices needs one (SimGrid: There can't be "
                "route in an Empty zone)");
}

TEST(Platform, PrefersTheDevicesFileToPropsOfOtherPrograms)
{
  const auto file =
      write_platform(head +
                     "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\"><prop id=\"memory\" value=\"128\"/>"
                     "<host id=\"a\" speed=\"1Tf\"><prop id=\"role\" value=\"master\"/></host>"
                     "<host id=\"b\" speed=\"1Tf\"><prop id=\"role\" value=\"storage\"/></host>"
                     "<link id=\"l\" bandwidth=\"1GBps\" latency=\"1ms\"/>"
                     "<route src=\"a\" dst=\"b\"><link_ctn id=\"l\"/></route></zone></platform>");
  const auto devices = write_platform("a: {memory: 8 GiB}\nb: {role: data-server}\n", "foreign.devices.yaml");
  const Platform loaded = Platform::load(file, devices);
  ASSERT_EQ(loaded.cluster().devices.size(), 1U);
  EXPECT_EQ(loaded.cluster().devices[0].memory, Bytes(8 * 0x1p30));
  EXPECT_EQ(loaded.cluster().data_server, "b");
}

TEST(Platform, HidesAddressesOfSimGridsObjects)
{
  const std::string site =
      "<zone id=\"{0}\" routing=\"Full\"><host id=\"{0}1\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 "
      "GiB\"/></host></zone>\n";
  const auto file = write_platform(head + "<platform version=\"4.1\"><zone id=\"z\" routing=\"Vivaldi\">\n" +
                                   fmt::format(fmt::runtime(site), "a") + fmt::format(fmt::runtime(site), "b") +
                                   "</zone></platform>");
  EXPECT_EQ(message_of(file),
            file.string() +
                ":5: host b1: no route from a1; every pair of devices needs one (SimGrid: Please specify the "
                "Vivaldi coordinates of Netzone a)");
}

TEST(Platform, ReportsAMissingFile)
{
  EXPECT_EQ(message_of("nowhere/platform.xml"), "nowhere/platform.xml: no such file");
}

TEST(Platform, KeepsSignalHandlers)
{
  std::signal(SIGINT, SIG_IGN);
  load("floyd");
  EXPECT_EQ(std::signal(SIGINT, SIG_DFL), SIG_IGN);
}

TEST(Platform, CanBeLoadedOncePerProcess)
{
  load("floyd");
  EXPECT_THROW(load("dijkstra"), std::logic_error);
}

TEST(Platform, WritesNothingToTheTerminal)
{
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  load("version_4");  // SimGrid would log its version, its configuration and FULLDUPLEX
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

// Large platforms.

std::string star_of(std::size_t hosts)
{
  return head + fmt::format(
                    "<platform version=\"4.1\"><cluster id=\"c\" prefix=\"g\" suffix=\"\" radical=\"0-{}\" "
                    "speed=\"1Tf\" bw=\"1GBps\" lat=\"1us\"><prop id=\"memory\" value=\"1 GiB\"/></cluster></platform>",
                    hosts - 1);
}

double processor_seconds()
{
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

TEST(Platform, LoadsFourThousandDevicesInLessThanASecond)
{
  const auto file = write_platform(star_of(4096));
  const double begin = processor_seconds();
  const Cluster cluster = Platform::load(file).cluster();
  EXPECT_LT(processor_seconds() - begin, 1.0);
  EXPECT_EQ(cluster.devices.size(), 4096u);
  EXPECT_EQ(cluster.devices[4095].name, "g4095");
  EXPECT_NEAR(cluster.path(4095, 0).latency.value, 2e-6, 1e-15);
}

TEST(Platform, ReportsAMissingRouteOfALargePlatformWhenItsPathIsLookedUp)
{
  // 200 hosts, each with a route to the next one only. Loading checks just these neighbours.
  std::string content = head + "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">";
  for (int i = 0; i < 200; ++i) {
    content += fmt::format("<host id=\"h{}\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>", i);
  }
  content += "<link id=\"l\" bandwidth=\"1GBps\" latency=\"1ms\"/>";
  for (int i = 0; i < 200; ++i) {
    content += fmt::format("<route src=\"h{}\" dst=\"h{}\"><link_ctn id=\"l\"/></route>", i, (i + 1) % 200);
  }
  const Cluster cluster = Platform::load(write_platform(content + "</zone></platform>")).cluster();
  EXPECT_NEAR(cluster.path(7, 8).latency.value, 1e-3, 1e-15);
  try {
    cluster.path(7, 9);
    FAIL() << "no fault";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "no route from h7 to h9; every pair of devices needs one");
  }
}

}  // namespace
}  // namespace isobar::sim
