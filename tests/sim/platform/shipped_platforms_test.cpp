#include "core/base/files.hpp"
#include "sim/generate/platform_generator.hpp"
#include "sim/platform/platform.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <pugixml.hpp>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace isobar::sim::shipped_platforms_test {
namespace {

namespace fs = std::filesystem;

const fs::path root = ISOBAR_SOURCE_DIR;

std::string sky(std::size_t nodes)
{
  SkyOptions options;
  options.nodes = nodes;
  return generate_sky(options);
}

std::string import(const std::string& matrix, const std::string& sites, bool undirected,
                   std::optional<std::size_t> flows)
{
  ImportOptions options;
  options.matrix = "platforms/data/" + matrix;
  options.sites = "platforms/data/" + sites;
  options.undirected = undirected;
  options.flows = flows;
  return import_matrix(options);
}

std::string two_sites()
{
  SitesOptions options;
  options.devices = device_groups_from_text("2xA100-SXM4-40GB+2xT4");
  return generate_sites(options);
}

std::string nodes(const std::string& site, const std::string& other_site = "", double wan_gigabits = 10,
                  double wan_rtt_ms = 30)
{
  NodesOptions options;
  options.nodes = {node_groups_from_text(site)};
  if (!other_site.empty()) options.nodes.push_back(node_groups_from_text(other_site));
  options.wan_bandwidth = BytesPerSecond(wan_gigabits * 1e9 / 8);
  options.wan_rtt = Seconds(wan_rtt_ms * 1e-3);
  return generate_nodes(options);
}

/// A path between two devices as measured, or as requested from the generator.
struct ExpectedPath {
  std::string from;
  std::string to;
  double latency_s;
  double bandwidth_bytes_per_s;
};

struct Shipped {
  std::string name;
  std::function<std::string()> made;
  std::size_t devices;
  std::string first;
  std::string last;
  std::vector<ExpectedPath> paths;
};

void PrintTo(const Shipped& platform, std::ostream* stream)
{
  *stream << platform.name;
}

const double window = 2.65e6;

const std::vector<Shipped>& shipped()
{
  static const std::vector<Shipped> platforms = {
      {"sky4", [] { return sky(4); }, 3, "node-1", "node-3", {{"node-1", "node-3", 2e-3, 1.25e9 / 1.572229495472084}}},
      {"sky16",
       [] { return sky(16); },
       15,
       "node-1",
       "node-15",
       {{"node-2", "node-1", 2e-3, 1.25e9 / 1.572229495472084}}},
      {"sky32",
       [] { return sky(32); },
       31,
       "node-1",
       "node-31",
       {{"node-3", "node-31", 2e-3, 1.25e9 / 1.5914407193521527}}},
      {"sky64",
       [] { return sky(64); },
       63,
       "node-1",
       "node-63",
       {{"node-63", "node-62", 2e-3, 1.25e9 / 1.7503500727555852}}},
      {"geo_8cities",
       [] { return import("dtfm_10cities.csv", "geo_8cities.sites.csv", true, {}); },
       64,
       "Oregon.0",
       "Ireland.7",
       {{"Oregon.0", "Oregon.7", 2.5e-3, 2e9 / 8},
        {"Oregon.0", "Virginia.3", 67e-3 / 2, 0.79e9 / 8},
        {"Virginia.3", "Oregon.0", 67e-3 / 2, 0.79e9 / 8},
        {"Ohio.0", "Virginia.0", 11e-3 / 2, 1.12e9 / 8},
        {"Seoul.4", "London.5", 238e-3 / 2, 0.342e9 / 8}}},
      {"geo_2regions",
       [] { return import("gcp_us_eu.csv", "geo_2regions.sites.csv", false, 16); },
       8,
       "gcp-us.0",
       "gcp-eu.3",
       {{"gcp-us.0", "gcp-us.1", 0.697e-3 / 2, 6.91e9 / 8},
        {"gcp-us.0", "gcp-eu.0", 103e-3 / 2, 16 * window / 103e-3},
        {"gcp-eu.0", "gcp-us.0", 103e-3 / 2, 16 * window / 103e-3}}},
      {"geo_12regions",
       [] { return import("skyplane_12regions.csv", "geo_12regions.sites.csv", false, 16); },
       64,
       "aws:us-east-1.0",
       "azure:koreacentral.3",
       // Near regions: the narrowest link, which is AWS's own network for these two. Far regions: the window over the
       // mean of the round trips, which pings from the two ends measure slightly differently.
       {{"azure:eastus.0", "aws:us-east-1.0", 1.865e-3 / 2, 4.78e9 / 8},
        {"aws:us-east-1.0", "azure:eastus.0", 1.899e-3 / 2, 4.78e9 / 8},
        {"azure:westus.0", "aws:eu-west-1.0", 136.493e-3 / 2, 1.0212e9 / 8},
        {"azure:koreacentral.0", "aws:eu-west-1.0", 255.57e-3 / 2, 16 * window / ((255.57e-3 + 255.408e-3) / 2)}}},
      {"two_sites",
       two_sites,
       8,
       "site-0.0",
       "site-1.3",
       {{"site-0.0", "site-0.3", 1e-4, 1.25e9}, {"site-0.0", "site-1.3", 0.05, 1.25e8}}},
      {"nodes8",
       [] { return nodes("8xA100-SXM4-40GB"); },
       8,
       "site-0.0.0",
       "site-0.0.7",
       {{"site-0.0.0", "site-0.0.7", 1e-5, 3e11}}},
      {"nodes24",
       [] { return nodes("8xA100-SXM4-40GB", "4*4xT4"); },
       24,
       "site-0.0.0",
       "site-1.3.3",
       {{"site-0.0.0", "site-0.0.1", 1e-5, 3e11},
        {"site-1.2.0", "site-1.2.3", 1e-5, 1.6e10},
        {"site-1.0.0", "site-1.3.3", 5e-5, 1.25e10},
        {"site-0.0.7", "site-1.3.0", 0.015, 1.25e9}}},
      {"nodes64",
       [] { return nodes("2*8xA100-SXM4-40GB+2*8xV100-SXM2-16GB", "8*4xT4"); },
       64,
       "site-0.0.0",
       "site-1.7.3",
       {{"site-0.2.0", "site-0.2.5", 1e-5, 1.5e11},
        {"site-0.0.0", "site-0.3.7", 5e-5, 1.25e10},
        {"site-1.7.0", "site-0.3.0", 0.015, 1.25e9}}},
      {"muri_8x8",
       [] { return nodes("8*8xV100-SXM2-16GB"); },
       64,
       "site-0.0.0",
       "site-0.7.7",
       {{"site-0.3.0", "site-0.3.7", 1e-5, 1.5e11}, {"site-0.0.0", "site-0.7.7", 5e-5, 1.25e10}}},
      {"nodes256",
       [] { return nodes("8*8xH100-SXM-80GB+8*8xA100-SXM4-80GB", "8*8xV100-SXM2-32GB+16*4xT4"); },
       256,
       "site-0.0.0",
       "site-1.23.3",
       {{"site-0.0.0", "site-0.0.7", 1e-5, 4.5e11},
        {"site-0.15.7", "site-0.0.0", 5e-5, 1.25e10},
        {"site-1.23.0", "site-0.3.0", 0.015, 1.25e9}}},
  };
  return platforms;
}

/// Platforms that isobar does not make: written by hand, or by tools/hidup_platforms.py.
const std::vector<std::string>& made_otherwise()
{
  static const std::vector<std::string> names = {"hap_16v100_48p100", "hidup_1x4",       "hidup_2x4",
                                                 "hidup_8x8",         "stronghold_v100", "two_t4_nvme"};
  return names;
}

/// The names of all shipped platforms.
std::vector<std::string> all_names()
{
  std::vector<std::string> names = made_otherwise();
  for (const auto& platform : shipped()) names.push_back(platform.name);
  return names;
}

class ShippedPlatform : public testing::TestWithParam<Shipped> {
 protected:
  ShippedPlatform() { fs::current_path(root); }
};

TEST_P(ShippedPlatform, IsWhatItsCommandMakes)
{
  EXPECT_EQ(read_file(fmt::format("platforms/{}.xml", GetParam().name)), GetParam().made());
}

TEST_P(ShippedPlatform, LoadsWithItsDevicesInOrderAndItsMeasuredPaths)
{
  const auto& expected = GetParam();
  const auto platform = Platform::load(fmt::format("platforms/{}.xml", expected.name));
  const auto& cluster = platform.cluster();
  ASSERT_EQ(cluster.devices.size(), expected.devices);
  EXPECT_EQ(cluster.devices.front().name, expected.first);
  EXPECT_EQ(cluster.devices.back().name, expected.last);
  EXPECT_EQ(cluster.data_server.value_or("none"), expected.name.starts_with("sky") ? "node-0" : "none");
  for (const auto& device : cluster.devices) {
    EXPECT_GT(device.speed.value, 0) << device.name;
    EXPECT_GT(device.memory.value, 0) << device.name;
    const std::string site = device.name.substr(0, device.name.find('.'));
    EXPECT_EQ(device.site, expected.name.starts_with("sky") ? "" : site);
  }
  for (const auto& [from, to, latency, bandwidth] : expected.paths) {
    const auto path = cluster.path(cluster.device_index(from).value(), cluster.device_index(to).value());
    EXPECT_NEAR(path.latency.value, latency, 4e-9) << from << " to " << to;  // four links, each to half a nanosecond
    EXPECT_NEAR(path.bandwidth.value, bandwidth, 1e-7 * bandwidth) << from << " to " << to;
  }
}

INSTANTIATE_TEST_SUITE_P(, ShippedPlatform, testing::ValuesIn(shipped()),
                         [](const auto& instance) { return instance.param.name; });

TEST(ShippedPlatforms, AreAllKnownToThisTest)
{
  std::set<std::string> known;
  for (const auto& name : all_names()) known.insert(name + ".xml");
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator(root / "platforms")) {
    if (entry.path().extension() == ".xml") found.insert(entry.path().filename().string());
  }
  EXPECT_EQ(found, known);
}

/// Misspelled quantities of a file: "Gbps" differs from "GBps" by a factor of 8, a bare number by any factor.
std::vector<std::string> misspelled_quantities(const std::string& xml)
{
  static const std::string number = R"((0|[1-9]\d*)(\.\d+)?(e[-+]?\d+)?)";
  static const std::vector<std::pair<std::string, std::regex>> attributes = {
      {"speed", std::regex(number + "[kMGTPE]?f(," + number + "[kMGTPE]?f)?")},
      {"bandwidth", std::regex(number + "([kMGT]|[KMGT]i)?Bps")},
      {"read_bw", std::regex(number + "([kMGT]|[KMGT]i)?Bps")},
      {"write_bw", std::regex(number + "([kMGT]|[KMGT]i)?Bps")},
      {"latency", std::regex(number + "(s|ms|us|ns)")}};
  static const std::vector<std::pair<std::regex, std::regex>> props = {
      {std::regex("memory|window|capacity"), std::regex(number + " ([kMGT]|[KMGT]i)?B")},
      {std::regex(R"(speed\..*)"), std::regex(number + " [kMGTP]?FLOP/s")},
      {std::regex("price"), std::regex(number + " USD/h")}};
  std::vector<std::string> faults;
  pugi::xml_document document;
  if (!document.load_string(xml.c_str())) return {"not XML"};
  std::function<void(const pugi::xml_node&)> visit = [&](const pugi::xml_node& node) {
    for (const auto& [name, spelling] : attributes) {
      const std::string value = node.attribute(name.c_str()).value();
      if (node.attribute(name.c_str()) && !std::regex_match(value, spelling)) faults.push_back(name + " " + value);
    }
    if (std::string(node.name()) == "prop") {
      const std::string id = node.attribute("id").value();
      const std::string value = node.attribute("value").value();
      for (const auto& [ids, spelling] : props) {
        if (std::regex_match(id, ids) && !std::regex_match(value, spelling)) faults.push_back(id + " " + value);
      }
    }
    for (const auto& child : node.children()) visit(child);
  };
  visit(document);
  return faults;
}

TEST(ShippedPlatforms, SpellEveryQuantityInBytesWithItsUnit)
{
  for (const auto& name : all_names()) {
    EXPECT_THAT(misspelled_quantities(read_file(root / "platforms" / (name + ".xml"))), testing::IsEmpty()) << name;
  }
}

TEST(ShippedPlatforms, FailTheSpellingCheckWithBitsOrBareNumbers)
{
  const auto faults = misspelled_quantities(
      R"(<platform><host speed="1e9"><prop id="memory" value="16GB"/><prop id="speed.bf16" value="3 Tf"/></host>)"
      R"(<link bandwidth="10Gbps" latency="5"/><link bandwidth="1250000000" latency="2 ms"/><link bandwidth="nanBps"/>)"
      R"(<prop id="window" value="2650000"/></platform>)");
  EXPECT_THAT(faults,
              testing::ElementsAre("speed 1e9", "memory 16GB", "speed.bf16 3 Tf", "bandwidth 10Gbps", "latency 5",
                                   "bandwidth 1250000000", "latency 2 ms", "bandwidth nanBps", "window 2650000"));
}

TEST(ShippedPlatforms, NameTheirSourcesAndTheirCommandAtTheTop)
{
  for (const auto& name : all_names()) {
    pugi::xml_document document;
    const auto xml = read_file(root / "platforms" / (name + ".xml"));
    ASSERT_TRUE(document.load_string(xml.c_str(), pugi::parse_full));
    const auto comment = std::find_if(document.begin(), document.end(),
                                      [](const auto& node) { return node.type() == pugi::node_comment; });
    ASSERT_NE(comment, document.end()) << name;
    if (std::ranges::count(made_otherwise(), name) > 0) continue;
    const auto made_by = document.child("platform").child("zone").child("prop");
    EXPECT_STREQ(made_by.attribute("id").value(), "made_by") << name;
    EXPECT_THAT(made_by.attribute("value").value(), testing::StartsWith("isobar platform ")) << name;
  }
}

/// A platform of tools/hidup_platforms.py.
struct Testbed {
  std::string name;
  std::size_t nodes;
  std::size_t devices_of_node;
  BytesPerSecond between;  ///< nodes
};

class HidupTestbed : public testing::TestWithParam<Testbed> {};

TEST_P(HidupTestbed, HasNodesOfDevicesThatShareALink)
{
  const auto& expected = GetParam();
  const auto platform = Platform::load(root / fmt::format("platforms/{}.xml", expected.name));
  const auto& cluster = platform.cluster();
  ASSERT_EQ(cluster.devices.size(), expected.nodes * expected.devices_of_node);
  for (std::size_t i = 0; i < cluster.devices.size(); ++i) {
    const auto& device = cluster.devices[i];
    EXPECT_EQ(device.site, fmt::format("node-{}", i / expected.devices_of_node));
    EXPECT_EQ(device.name, fmt::format("{}.{}", device.site, i % expected.devices_of_node));
    EXPECT_GT(device.interference, 1);
  }
  const auto inside = cluster.path(0, 1);
  EXPECT_NEAR(inside.latency.value, 14.1e-6, 1e-9);
  EXPECT_NEAR(inside.bandwidth.value, 112.8e9, 1);
  if (expected.nodes == 1) return;
  const std::size_t last = cluster.devices.size() - 1;
  const auto across = cluster.path(0, last);
  EXPECT_NEAR(across.latency.value, 1.6e-6, 1e-9);
  EXPECT_NEAR(across.bandwidth.value, expected.between.value, 1e-5 * expected.between.value);
  const auto links = cluster.network->links(0, last);
  const auto others = cluster.network->links(1, last - 1);
  const auto is_shared = [&](const std::string& link) { return std::ranges::count(others, link) > 0; };
  EXPECT_EQ(std::ranges::count_if(links, is_shared), 2) << "out of the first node, and into the last";
}

INSTANTIATE_TEST_SUITE_P(, HidupTestbed,
                         testing::Values(Testbed{"hidup_1x4", 1, 4, {}},
                                         Testbed{"hidup_2x4", 2, 4, BytesPerSecond(10.4e9)},
                                         Testbed{"hidup_8x8", 8, 8, BytesPerSecond(9.71e9 / 8)},
                                         Testbed{"hap_16v100_48p100", 8, 8, BytesPerSecond(10.4e9 / 8)}),
                         [](const auto& instance) { return instance.param.name; });

TEST(ShippedPlatforms, HaveTheMachineOfStrongholdsCalibration)
{
  const auto platform = Platform::load(root / "platforms/stronghold_v100.xml");
  const auto& cluster = platform.cluster();
  ASSERT_EQ(cluster.devices.size(), 1U);
  ASSERT_EQ(cluster.machines.size(), 1U);
  EXPECT_EQ(cluster.machines[0].memory, Bytes(90.0 * (1 << 30)));
  EXPECT_FALSE(cluster.machines[0].disk.has_value());
  const Flops update = Flops(12 * 50'358'272.0);  // of one layer
  EXPECT_NEAR((update / cluster.machines[0].busy_update_speed).value, 0.280, 5e-4);
  EXPECT_NEAR((update / cluster.machines[0].update_speed).value, 0.160, 5e-4);
  EXPECT_EQ(cluster.devices[0].machine->in.bandwidth, BytesPerSecond(12e9));
  EXPECT_DOUBLE_EQ(cluster.devices[0].machine->out.latency.value, 1e-5);
  EXPECT_THAT(platform.notes(), testing::IsEmpty());
}

TEST(ShippedPlatforms, HaveTwoDevicesBehindTheSwitchOfAMachineWithADisk)
{
  const auto platform = Platform::load(root / "platforms/two_t4_nvme.xml");
  const auto& cluster = platform.cluster();
  ASSERT_EQ(cluster.devices.size(), 2U);
  for (const auto& device : cluster.devices) {
    EXPECT_EQ(device.machine->in.bandwidth, BytesPerSecond(12e9)) << device.name;
    EXPECT_DOUBLE_EQ(device.machine->in.latency.value, 1e-5) << device.name;
  }
  EXPECT_EQ(cluster.machines.at(0).disk->capacity, Bytes(1e12));
  EXPECT_DOUBLE_EQ(cluster.path(0, 1).latency.value, 1e-5) << "past the switch's link to the CPU";
  EXPECT_THAT(cluster.network->links(0, 1), testing::ElementsAre("pcie0_UP", "pcie1_DOWN"));
  EXPECT_THAT(platform.notes(), testing::IsEmpty());
}

class LargeStar : public testing::TestWithParam<std::size_t> {};

TEST_P(LargeStar, IsMadeAndLoadedInSeconds)
{
  const testing_support::TemporaryFolder folder;
  const std::clock_t start = std::clock();
  StarOptions options;
  options.devices = {{GetParam(), ""}};
  options.speed_spread = 4;
  const auto file = folder.write("star.xml", generate_star(options));
  const auto platform = Platform::load(file);
  const double cpu_s = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  ASSERT_EQ(platform.cluster().devices.size(), GetParam());
  EXPECT_EQ(platform.cluster().devices.back().name, fmt::format("device-{}", GetParam() - 1));
  EXPECT_LT(cpu_s, 10);  // a fraction of a second in a release build; sanitizers take ten times as long
}

INSTANTIATE_TEST_SUITE_P(, LargeStar, testing::Values(1024, 4096), testing::PrintToStringParamName());

}  // namespace
}  // namespace isobar::sim::shipped_platforms_test
