#include "sim/generate/platform_generator.hpp"

#include "core/base/files.hpp"
#include "core/base/pcg64.hpp"
#include "core/cluster/device_types.hpp"
#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <pugixml.hpp>

#include <cstdlib>
#include <functional>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace isobar::sim::platform_generator_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

/// A host of a platform file, with speed and bandwidth in base units.
struct ReadHost {
  std::string name;
  double speed = 0;
  std::string memory;  ///< as written; empty without the prop
  std::string device;
  std::string role;
  double bandwidth = 0;
  std::string latency;  ///< as written
};

double in_base_unit(const std::string& text)
{
  char* unit = nullptr;
  const double number = std::strtod(text.c_str(), &unit);
  switch (*unit) {
    case 'T':
      return number * 1e12;
    case 'G':
      return number * 1e9;
    case 'M':
      return number * 1e6;
    default:
      return number;
  }
}

pugi::xml_document parsed(const std::string& xml)
{
  pugi::xml_document document;
  const auto result = document.load_string(xml.c_str(), pugi::parse_full);
  EXPECT_TRUE(result) << result.description();
  return document;
}

std::string prop(const pugi::xml_node& node, const char* id)
{
  return node.find_child_by_attribute("prop", "id", id).attribute("value").value();
}

std::vector<ReadHost> hosts_of(const pugi::xml_node& zone)
{
  std::vector<ReadHost> hosts;
  for (const auto& node : zone.children("host")) {
    ReadHost host;
    host.name = node.attribute("id").value();
    host.speed = in_base_unit(node.attribute("speed").value());
    host.memory = prop(node, "memory");
    host.device = prop(node, "device");
    host.role = prop(node, "role");
    const auto link = zone.find_child_by_attribute("link", "id", ("nic." + host.name).c_str());
    host.bandwidth = in_base_unit(link.attribute("bandwidth").value());
    host.latency = link.attribute("latency").value();
    hosts.push_back(std::move(host));
  }
  return hosts;
}

std::vector<ReadHost> star_hosts(const std::string& xml)
{
  return hosts_of(parsed(xml).child("platform").child("zone"));
}

std::string made_by(const std::string& xml)
{
  return prop(parsed(xml).child("platform").child("zone"), "made_by");
}

/// tests/instances/sky_slowdowns.csv, cell by cell, without comments and header.
std::vector<std::vector<std::string>> published_slowdowns()
{
  std::istringstream file(read_file(ISOBAR_SOURCE_DIR "/tests/instances/sky_slowdowns.csv"));
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#' || line.rfind("rank", 0) == 0) continue;
    std::istringstream cells(line);
    rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, ',');) rows.back().push_back(cell);
  }
  return rows;
}

double number(const std::string& cell)
{
  return std::strtod(cell.c_str(), nullptr);
}

TEST(GenerateSky, GivesEachWorkerThePublishedFactors)
{
  SkyOptions options;
  options.nodes = 65;
  const auto hosts = star_hosts(generate_sky(options));
  const auto rows = published_slowdowns();
  ASSERT_EQ(hosts.size(), 65u);
  ASSERT_EQ(rows.size(), 65u);
  for (std::size_t rank = 1; rank < hosts.size(); ++rank) {
    const auto& host = hosts[rank];
    EXPECT_EQ(host.name, fmt::format("node-{}", rank));
    EXPECT_EQ(host.speed, 9.3e12 / number(rows[rank][5])) << rank;
    EXPECT_EQ(bytes_from_text(host.memory), Bytes(15780.0 / number(rows[rank][3]) * 1048576)) << rank;
    EXPECT_EQ(host.bandwidth, 1.25e9 / number(rows[rank][4])) << rank;
    EXPECT_EQ(host.latency, "1ms");
    EXPECT_EQ(host.role, "");
  }
}

TEST(GenerateSky, MakesNodeZeroAnUnslowedDataServerWithoutMemory)
{
  const auto server = star_hosts(generate_sky({})).front();
  EXPECT_EQ(server.name, "node-0");
  EXPECT_EQ(server.role, "data-server");
  EXPECT_EQ(server.memory, "");
  EXPECT_EQ(server.speed, 9.3e12);
  EXPECT_EQ(server.bandwidth, 1.25e9);
}

TEST(GenerateSky, SpreadsOnlyTheSpeedsWhenAsked)
{
  SkyOptions options;
  options.speed_spread = 4;
  const auto spread = star_hosts(generate_sky(options));
  const auto published = star_hosts(generate_sky({}));
  const auto rows = published_slowdowns();
  for (std::size_t rank = 1; rank < spread.size(); ++rank) {
    EXPECT_EQ(spread[rank].speed, 9.3e12 / number(rows[rank][6])) << rank;  // the published comment's 1 + 3 u32
    EXPECT_EQ(spread[rank].memory, published[rank].memory);
    EXPECT_EQ(spread[rank].bandwidth, published[rank].bandwidth);
  }
}

TEST(GenerateSky, BeginsALongerPlatformWithTheShorterOne)
{
  SkyOptions options;
  options.nodes = 1000;
  const auto longer = star_hosts(generate_sky(options));
  const auto shorter = star_hosts(generate_sky({}));
  for (std::size_t rank = 0; rank < shorter.size(); ++rank) {
    EXPECT_EQ(longer[rank].speed, shorter[rank].speed);
    EXPECT_EQ(longer[rank].memory, shorter[rank].memory);
  }
}

TEST(GenerateSky, NamesItsSourcesAndItsCommand)
{
  SkyOptions options;
  options.nodes = 16;
  options.bandwidth = BytesPerSecond(5e8);
  const auto xml = generate_sky(options);
  EXPECT_EQ(
      made_by(xml),
      "isobar platform generate sky --nodes 16 --speed-spread 2 --memory 15780MiB --bandwidth 500MB/s --latency 1ms");
  for (const auto* source : {"hpcaitech/SkyComputing", "arXiv 2202.11836", "Apache-2.0", "never applied it"}) {
    EXPECT_THAT(xml, HasSubstr(source));
  }
}

TEST(GenerateStar, NamesItsDevicesInTheOrderOfTheirGroups)
{
  StarOptions options;
  options.devices = device_groups_from_text("2xT4+1+3xA100-SXM4-40GB");
  const auto hosts = star_hosts(generate_star(options));
  ASSERT_EQ(hosts.size(), 6u);
  std::vector<std::string> types;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    EXPECT_EQ(hosts[i].name, fmt::format("device-{}", i));
    types.push_back(hosts[i].device);
  }
  EXPECT_THAT(types, ElementsAre("T4", "T4", "", "A100-SXM4-40GB", "A100-SXM4-40GB", "A100-SXM4-40GB"));
  EXPECT_EQ(hosts[0].speed, 8.1e12);
  EXPECT_EQ(hosts[0].memory, "15102 MiB");
  EXPECT_EQ(hosts[2].speed, 1e13);
  EXPECT_EQ(hosts[5].memory, "39.5 GiB");
  EXPECT_EQ(hosts[5].latency, "50us");
}

TEST(GenerateStar, SlowsEachDeviceByTheNumbersOfItsSeed)
{
  StarOptions options;
  options.devices = device_groups_from_text("30xT4+30");
  options.speed_spread = 5;
  options.memory_spread = 2;
  options.bandwidth_spread = 3;
  options.seed = 7;
  const auto xml = generate_star(options);
  Pcg64 stream(7);
  for (const auto& host : star_hosts(xml)) {
    const double u_speed = stream.uniform();
    const double u_memory = stream.uniform();
    const double u_bandwidth = stream.uniform();
    const std::size_t index = std::stoul(host.name.substr(7));
    EXPECT_EQ(host.speed, (index < 30 ? 8.1e12 : 1e13) / (1 + 4 * u_speed));
    EXPECT_EQ(bytes_from_text(host.memory), (index < 30 ? Bytes(15102 * 0x1p20) : Bytes(16e9)) / (1 + u_memory));
    EXPECT_EQ(host.bandwidth, 1.25e9 / (1 + 2 * u_bandwidth));
    EXPECT_EQ(host.device, "") << "a profile of the type would take the place of the slowed speed";
  }
  EXPECT_EQ(generate_star(options), xml);
  options.seed = 8;
  EXPECT_NE(generate_star(options), xml);
}

TEST(GenerateStar, NamesTheSourceOfTheRatesOfAType)
{
  StarOptions options;
  options.devices = device_groups_from_text("8xH100-SXM-80GB");
  const auto xml = generate_star(options);
  EXPECT_THAT(
      xml, HasSubstr("H100-SXM-80GB: float32 67 TFLOP/s, fp16 989 TFLOP/s, bf16 989 TFLOP/s: NVIDIA H100 data sheet, "
                     "2023, halved; 81089 MiB: PyTorch 2.7 with CUDA 12.8."));
  EXPECT_EQ(made_by(xml),
            "isobar platform generate star --devices 8xH100-SXM-80GB --bandwidth 1.25GB/s --latency 50us "
            "--speed-spread 1 --memory-spread 1 --bandwidth-spread 1 --seed 0");
}

TEST(GenerateSites, GivesTheWideAreaLinkTheRoundTripLessThatOfTheSites)
{
  SitesOptions options;
  options.sites = 3;
  options.lan_rtt = Seconds(4e-3);
  options.wan_rtt = Seconds(50e-3);
  options.egress = BytesPerSecond(6e7);
  options.flows = 8;
  const auto document = parsed(generate_sites(options));
  const auto root = document.child("platform").child("zone");
  std::size_t links = 0;
  for (const auto& link : root.children("link")) {
    if (std::string(link.attribute("id").value()).rfind("wan.", 0) != 0) continue;
    ++links;
    EXPECT_STREQ(link.attribute("latency").value(), "23ms");
    EXPECT_STREQ(link.attribute("bandwidth").value(), "125MBps");
    EXPECT_EQ(prop(link, "flows"), "8");
    EXPECT_EQ(prop(link, "window"), "2.65 MB");
  }
  EXPECT_EQ(links, 6u);
  EXPECT_STREQ(root.find_child_by_attribute("link", "id", "egress.site-2").attribute("bandwidth").value(), "60MBps");
  EXPECT_FALSE(root.find_child_by_attribute("link", "id", "ingress.site-2"));
  for (const auto& site : root.children("zone")) {
    EXPECT_EQ(prop(site, "site"), site.attribute("id").value());
    const auto hosts = hosts_of(site);
    ASSERT_EQ(hosts.size(), 8u);
    EXPECT_EQ(hosts[7].name, fmt::format("{}.7", site.attribute("id").value()));
    EXPECT_EQ(hosts[7].latency, "1ms");
  }
  std::size_t routes = 0;
  for (const auto& route : root.children("zoneRoute")) {
    ++routes;
    std::vector<std::string> names;
    for (const auto& link : route.children("link_ctn")) names.emplace_back(link.attribute("id").value());
    const std::string from = route.attribute("src").value();
    const std::string to = route.attribute("dst").value();
    EXPECT_THAT(names, ElementsAre("egress." + from, "wan." + from + "." + to));
    EXPECT_STREQ(route.attribute("symmetrical").value(), "NO");
  }
  EXPECT_EQ(routes, 6u);
}

TEST(GenerateSites, LeavesTheWindowLawOutWhenNoFlowsAreGiven)
{
  EXPECT_THAT(generate_sites({}), Not(HasSubstr("window")));
}

TEST(GenerateNodes, GivesEachNodeALinkThatItsDevicesShare)
{
  NodesOptions options;
  options.nodes = {node_groups_from_text("2*3xA100-SXM4-40GB+1*2"), node_groups_from_text("4xT4")};
  options.inside_rtt = Seconds(8e-6);
  options.lan_rtt = Seconds(48e-6);
  options.lan_bandwidth = BytesPerSecond(5e9);
  options.ingress = BytesPerSecond(6e7);
  const auto document = parsed(generate_nodes(options));
  const auto root = document.child("platform").child("zone");
  const auto site = root.find_child_by_attribute("zone", "id", "site-0");
  std::vector<std::string> nodes;
  for (const auto& node : site.children("zone")) {
    if (!node.child("host")) continue;
    nodes.emplace_back(node.attribute("id").value());
    EXPECT_EQ(prop(node, "site"), "site-0");
    const auto link = site.find_child_by_attribute("link", "id", ("lan." + nodes.back()).c_str());
    EXPECT_STREQ(link.attribute("bandwidth").value(), "5GBps");
    EXPECT_STREQ(link.attribute("latency").value(), "10us");
    for (const auto& host : hosts_of(node)) {
      EXPECT_EQ(host.bandwidth, host.device.empty() ? 32e9 : 300e9) << host.name;
      EXPECT_EQ(host.latency, "2us");
    }
  }
  EXPECT_THAT(nodes, ElementsAre("site-0.0", "site-0.1", "site-0.2"));
  const auto hosts = hosts_of(site.find_child_by_attribute("zone", "id", "site-0.2"));
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[1].name, "site-0.2.1");
  EXPECT_STREQ(root.find_child_by_attribute("link", "id", "wan.site-1.site-0").attribute("latency").value(),
               "49.976ms");
  EXPECT_TRUE(root.find_child_by_attribute("link", "id", "ingress.site-1"));
}

TEST(GenerateNodes, NamesItsSourcesAndItsCommand)
{
  NodesOptions options;
  options.nodes = {node_groups_from_text("2*8xV100-SXM2-16GB"), node_groups_from_text("4xT4+1*2xT4")};
  options.inside_bandwidth = BytesPerSecond(1e10);
  const auto xml = generate_nodes(options);
  EXPECT_EQ(made_by(xml),
            "isobar platform generate nodes --nodes '2*8xV100-SXM2-16GB,1*4xT4+1*2xT4' --inside-bandwidth 10GB/s "
            "--inside-rtt 20us --lan-bandwidth 12.5GB/s --lan-rtt 100us --wan-bandwidth 125MB/s --wan-rtt 100ms");
  EXPECT_THAT(xml, HasSubstr("NVIDIA T4 data sheet, 2019"));
}

TEST(GeneratedPlatforms, SpellNumbersWithTheFewestDigitsThatHoldThem)
{
  StarOptions options;
  options.devices = {{1, ""}};
  const auto spelled = [&options](double speed, double memory, double bandwidth, double latency) {
    options.speed = FlopsPerSecond(speed);
    options.memory = Bytes(memory);
    options.bandwidth = BytesPerSecond(bandwidth);
    options.latency = Seconds(latency);
    const auto document = parsed(generate_star(options));
    const auto zone = document.child("platform").child("zone");
    return fmt::format("{} {} {} {}", zone.child("host").attribute("speed").value(), prop(zone.child("host"), "memory"),
                       zone.child("link").attribute("bandwidth").value(),
                       zone.child("link").attribute("latency").value());
  };
  EXPECT_EQ(spelled(1e12, 16e9, 1.25e9, 0), "1Tf 16 GB 1.25GBps 0s");
  EXPECT_EQ(spelled(3.3e15, 0x1p34, 5e11, 1), "3.3Pf 16 GiB 500GBps 1s");
  EXPECT_EQ(spelled(0.5, 15780 * 0x1p20, 597712500, 0.0314225), "0.5f 15780 MiB 597.7125MBps 31.4225ms");
  EXPECT_EQ(spelled(1e12 / 3, 1e10 / 3, 1e9 / 3, 2e-4),
            "333333333333.3333f 3333333333.3333335 B 333333333.3333333Bps 200us");
}

TEST(GeneratedPlatforms, AreRefusedWithTheOptionThatIsOutOfRange)
{
  const auto refuses = [](const std::function<void()>& generate, const std::string& message) {
    EXPECT_THAT(generate, ThrowsMessage<InputError>(message));
  };
  const auto sky = [](auto change) {
    return [change] {
      SkyOptions options;
      change(options);
      generate_sky(options);
    };
  };
  const auto star = [](auto change) {
    return [change] {
      StarOptions options;
      change(options);
      generate_star(options);
    };
  };
  const auto sites = [](auto change) {
    return [change] {
      SitesOptions options;
      change(options);
      generate_sites(options);
    };
  };
  const auto nodes = [](auto change) {
    return [change] {
      NodesOptions options;
      change(options);
      generate_nodes(options);
    };
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  refuses(sky([](auto& o) { o.nodes = 1; }), "--nodes: 1 is out of range; write a number from 2 to 65536");
  refuses(sky([](auto& o) { o.nodes = 65'537; }), "--nodes: 65537 is out of range; write a number from 2 to 65536");
  refuses(sky([](auto& o) { o.speed_spread = 0.5; }),
          "--speed-spread: 0.5 is out of range; write a factor from 1 to 1e9");
  refuses(sky([nan](auto& o) { o.speed_spread = nan; }),
          "--speed-spread: nan is out of range; write a factor from 1 to 1e9");
  refuses(sky([](auto& o) { o.memory = Bytes(0); }), "--memory: 0B is out of range; write a value above 0");
  refuses(sky([](auto& o) { o.bandwidth = BytesPerSecond(0); }),
          "--bandwidth: 0B/s is out of range; write a value above 0");
  refuses(sky([](auto& o) { o.latency = Seconds(-1); }), "--latency: -1s is out of range; write 0s or more");
  refuses(star([](auto& o) {
            o.devices = {{65'537, ""}};
          }),
          "--devices: 65537 is too many; a platform has at most 65536 devices");
  refuses(star([](auto& o) { o.speed = FlopsPerSecond(0); }),
          "--speed: 0FLOP/s is out of range; write a value above 0");
  refuses(star([](auto& o) { o.memory_spread = 0; }),
          "--memory-spread: 0 is out of range; write a factor from 1 to 1e9");
  refuses(sites([](auto& o) { o.sites = 0; }), "--sites: 0 is out of range; write a number from 1 to 128");
  refuses(sites([](auto& o) { o.sites = 129; }), "--sites: 129 is out of range; write a number from 1 to 128");
  refuses(sites([](auto& o) {
            o.sites = 128, o.devices = {{512, "T4"}, {1, "A10"}};
          }),
          "--devices: 512xT4+1xA10 is too many; a platform has at most 65536 devices");
  refuses(sites([](auto& o) { o.flows = 0; }), "--flows: 0 is out of range; write a number from 1 to 65536");
  refuses(sites([](auto& o) { o.flows = 1, o.window = Bytes(0); }),
          "--window: 0B is out of range; write a value above 0");
  refuses(sites([](auto& o) { o.egress = BytesPerSecond(0); }),
          "--egress: 0B/s is out of range; write a value above 0");
  refuses(sites([](auto& o) { o.window = Bytes(1e6); }), "--window: changes nothing without --flows; give both");
  refuses(sites([](auto& o) {
            o.devices = {{8, "T4"}}, o.memory = Bytes(1e6);
          }),
          "--memory: changes nothing, since every device has a type; leave it out");
  refuses(star([](auto& o) {
            o.devices = {{8, "T4"}}, o.speed = FlopsPerSecond(1e12);
          }),
          "--speed: changes nothing, since every device has a type; leave it out");
  refuses(sites([](auto& o) { o.wan_rtt = Seconds(1e-4); }),
          "--wan-rtt: 100us is less than the 200us within a site; write at least that");
  refuses(nodes([](auto& o) { o.lan_rtt = Seconds(1e-5); }),
          "--lan-rtt: 10us is less than the 20us within a node; write at least that");
  refuses(nodes([](auto& o) {
            o.nodes = {{{1025, {1, "T4"}}}};
          }),
          "--nodes: 1025*1xT4 has 1025 nodes; a site has at most 1024");
  refuses(nodes([](auto& o) { o.nodes.assign(129, {{1, {1, "T4"}}}); }), "--nodes: 129 sites; there are at most 128");
  refuses(nodes([](auto& o) {
            o.nodes = {{{1, {1, "T4"}}}, {{1u << 31, {1u << 31, "T4"}}}};
          }),
          "--nodes: 2147483648*2147483648xT4 and the sites before are too many; a platform has at most 65536 devices");
  refuses(nodes([](auto& o) {
            o.nodes = {{{1, {4, "T4"}}}}, o.speed = FlopsPerSecond(1e12);
          }),
          "--speed: changes nothing, since every device has a type; leave it out");
  refuses(nodes([](auto& o) { o.inside_bandwidth = BytesPerSecond(0); }),
          "--inside-bandwidth: 0B/s is out of range; write a value above 0");
}

TEST(NodeGroups, AreReadAsTheyAreWritten)
{
  for (const auto* text : {"1*8", "4*8xT4", "2*1xRTX-4090+1*2xV100-SXM2-32GB+3*4"}) {
    EXPECT_EQ(text_of(node_groups_from_text(text)), text);
  }
  EXPECT_EQ(text_of(node_groups_from_text("8xT4")), "1*8xT4");
}

TEST(NodeGroups, AreRefusedWithTheGroupAtFault)
{
  for (const auto* text : {"*8xT4", "0*8xT4", "-1*8xT4", "two*8xT4", "99999999999999999999*8xT4"}) {
    const std::string count = std::string(text).substr(0, std::string(text).find('*'));
    EXPECT_THAT([&] { node_groups_from_text(text); },
                ThrowsMessage<std::invalid_argument>(
                    fmt::format("\"{}\" is not a number of nodes; write NODES*COUNTxTYPE, such as "
                                "\"4*8xA100-SXM4-40GB\"",
                                count)));
  }
  EXPECT_THAT([] { node_groups_from_text("2x4xT4"); },
              ThrowsMessage<std::invalid_argument>("\"2x4xT4\" has two numbers of devices; write 2*4xT4 for 2 nodes"));
  EXPECT_THAT([] { node_groups_from_text("2*"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("\"\" is not a number of devices; write COUNTxTYPE")));
}

TEST(DeviceGroups, AreReadAsTheyAreWritten)
{
  for (const auto* text : {"1024", "8xT4", "1xRTX-4090+2xV100-SXM2-32GB+4"}) {
    EXPECT_EQ(text_of(device_groups_from_text(text)), text);
  }
}

TEST(DeviceGroups, AreRefusedWithTheGroupAtFault)
{
  const std::string not_a_count = " is not a number of devices; write COUNTxTYPE, such as \"8xA100-SXM4-40GB\"";
  for (const auto* text : {"", "x", "-1", "0", "1.5", "8 xT4", "T4", "99999999999999999999"}) {
    EXPECT_THAT([&] { device_groups_from_text(text); },
                ThrowsMessage<std::invalid_argument>(fmt::format("\"{}\"{}", text, not_a_count)));
  }
  EXPECT_THAT([] { device_groups_from_text("1xT4+"); }, ThrowsMessage<std::invalid_argument>("\"\"" + not_a_count));
}

TEST(DeviceGroups, RefuseOtherTypesWithAWayToDescribeThem)
{
  const std::string way_out =
      " (for another one, write a similar type, and its props device, memory and speed.* in a file for --devices)";
  EXPECT_THAT([] { device_groups_from_text("8xH100"); },
              ThrowsMessage<std::invalid_argument>(
                  "\"H100\" is not a device type; did you mean H100-SXM-80GB or H100-96GB-HBM2e?" + way_out));
  EXPECT_THAT([] { device_groups_from_text("1xRTX-3080"); },
              ThrowsMessage<std::invalid_argument>(fmt::format("\"RTX-3080\" is not a device type; the types are {}{}",
                                                               fmt::join(device_type_names(), ", "), way_out)));
}

}  // namespace
}  // namespace isobar::sim::platform_generator_test
