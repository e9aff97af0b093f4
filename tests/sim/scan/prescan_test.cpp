#include "sim/scan/prescan.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "sim/scan/radical.hpp"
#include "tests/fuzz/platform_input.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

namespace isobar::sim::prescan_test {
namespace {

using ::testing::ElementsAre;

const std::filesystem::path source = ISOBAR_SOURCE_DIR;
const std::string head = "<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n";

PlatformScan scan(const std::string& content, const std::map<std::string, std::string>& profiles = {})
{
  return scan_platform(head + content, "p.xml", [&](const std::string& file) -> std::optional<std::string> {
    const auto found = profiles.find(file);
    if (found == profiles.end()) return std::nullopt;
    return found->second;
  });
}

std::string message_of(const std::string& content, const std::map<std::string, std::string>& profiles = {})
{
  try {
    scan(content, profiles);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no fault";
}

std::string in_zone(const std::string& content)
{
  return "<platform version=\"4.1\">\n<zone id=\"z\" routing=\"Full\">\n" + content + "</zone>\n</platform>\n";
}

TEST(ScanPlatform, IgnoresRolesAndSizesOfOtherPrograms)
{
  const auto found = scan(
      "<platform version=\"4.1\">\n<zone id=\"z\" routing=\"Full\">\n<prop id=\"memory\" value=\"128\"/>\n"
      "<host id=\"a\" speed=\"1Tf\"><prop id=\"role\" value=\"master\"/></host>\n"
      "<host id=\"b\" speed=\"1Tf\"><prop id=\"role\" value=\"storage\"/></host>\n"
      "<host id=\"c\" speed=\"1Tf\"><prop id=\"role\" value=\"data-server\"/></host>\n</zone>\n</platform>\n");
  ASSERT_EQ(found.hosts.size(), 3U);
  for (const auto& host : found.hosts) {
    EXPECT_EQ(host.props.role == Role::DataServer, host.name == "c") << host.name;
    EXPECT_FALSE(host.props.memory) << host.name;
  }
}

TEST(ScanPlatform, KeepsTheOrderOfTheFile)
{
  const auto found =
      scan(in_zone("<host id=\"b10\" speed=\"1f\"/><host id=\"b2\" speed=\"1f\"/><host id=\"a\" speed=\"1f\"/>"));
  std::vector<std::string> names;
  for (const auto& host : found.hosts) names.push_back(host.name);
  EXPECT_THAT(names, ElementsAre("b10", "b2", "a"));
}

TEST(ScanPlatform, ReportsEveryFaultFirstLineFirst)
{
  EXPECT_EQ(
      message_of(in_zone("<host id=\"a\" speed=\"-1f\"/>\n<trace_connect trace=\"t\" element=\"a\"/>\n"
                         "<link id=\"l\" bandwidth=\"1\" latency=\"1ms\"/>\n")),
      "p.xml:4: host a: speed \"-1f\" is less than 0\n"
      "p.xml:5: trace_connect: there is no trace t above\n"
      "p.xml:6: link l: bandwidth \"1\" has no unit; write a number and a unit, such as \"1.25GBps\" (Bps, kBps, MBps, "
      "GBps; bps for bits)");
}

TEST(ScanPlatform, TakesZeroLatencyAndHugeBandwidth)
{
  EXPECT_EQ(message_of(in_zone("<link id=\"a\" bandwidth=\"1e30YBps\" latency=\"0\"/>"
                               "<link id=\"b\" bandwidth=\"1e-3bps\" latency=\"0ps\"/>")),
            "no fault");
}

TEST(ScanPlatform, IgnoresUnknownProps)
{
  EXPECT_EQ(message_of(in_zone("<host id=\"a\" speed=\"1f\"><prop id=\"wattage_per_state\" value=\"1:2\"/>"
                               "<prop id=\"Hdd\" value=\"180g\"/><prop id=\"size\" value=\"1\"/>"
                               "<prop id=\"num_gpus\" value=\"4\"/></host>")),
            "no fault");
}

TEST(ScanPlatform, FindsMisspellingsOnEachElement)
{
  const auto found = [](const std::string& element) { return message_of(in_zone(element)); };
  EXPECT_EQ(found("<host id=\"a\" speed=\"1f\"><prop id=\"Memory\" value=\"1 GB\"/></host>"),
            "p.xml:4: host a: prop Memory: unknown; did you mean memory?");
  EXPECT_EQ(found("<host id=\"a\" speed=\"1f\"><prop id=\"rloe\" value=\"machine\"/></host>"),
            "p.xml:4: host a: prop rloe: unknown; did you mean role?");
  EXPECT_EQ(found("<host id=\"a\" speed=\"1f\"><prop id=\"hots\" value=\"cpu\"/></host>"),
            "p.xml:4: host a: prop hots: unknown; did you mean host?");
  EXPECT_EQ(found("<link id=\"l\" bandwidth=\"1Bps\" latency=\"0\"><prop id=\"windows\" value=\"1 MB\"/></link>"),
            "p.xml:4: link l: prop windows: unknown; did you mean window?");
  EXPECT_EQ(message_of("<platform version=\"4.1\">\n<zone id=\"z\" routing=\"Full\"><prop id=\"sites\" "
                       "value=\"x\"/></zone></platform>"),
            "p.xml:3: zone z: prop sites: unknown; did you mean site?");
}

TEST(ScanPlatform, CombinesTheWindowsOfALinkAndOfItsZone)
{
  const auto found = scan(
      "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\"><prop id=\"window\" value=\"2 MB\"/>"
      "<link id=\"zones\" bandwidth=\"1Bps\" latency=\"0\"/>"
      "<link id=\"both\" bandwidth=\"1Bps\" latency=\"0\"><prop id=\"flows\" value=\"3\"/></link>"
      "<link id=\"own\" bandwidth=\"1Bps\" latency=\"0\" sharing_policy=\"SPLITDUPLEX\">"
      "<prop id=\"window\" value=\"1 MB\"/></link></zone></platform>");
  EXPECT_THAT(found.zone_in_flight, ElementsAre(std::pair<const std::string, Bytes>("z", Bytes(2e6))));
  EXPECT_THAT(found.link_in_flight, ElementsAre(std::pair<const std::string, Bytes>("both", Bytes(6e6)),
                                                std::pair<const std::string, Bytes>("own_DOWN", Bytes(1e6)),
                                                std::pair<const std::string, Bytes>("own_UP", Bytes(1e6))));
}

TEST(ScanPlatform, HasNoBoundOnSpeedupWhereALatencyFallsToZero)
{
  const auto found =
      scan(in_zone("<link id=\"l\" bandwidth=\"1MBps\" latency=\"1ms\" latency_file=\"f\"/>"), {{"f", "5 0\n"}});
  EXPECT_TRUE(std::isinf(found.profile_speedup));
  EXPECT_EQ(found.profiled_links.at("l").latency, Seconds(1e-3));
  EXPECT_THAT(found.profiles, ElementsAre("5 0\n"));
}

TEST(ScanPlatform, HasNoBoundOnSpeedupWhereALatencyProfileMeetsAnyWindow)
{
  const auto speedup = [](const std::string& zone, const std::string& link, const std::string& profile) {
    return scan(in_zone(zone + "<link id=\"l\" bandwidth=\"1MBps\" latency=\"1ms\" " + profile +
                        "/><link id=\"m\" bandwidth=\"1MBps\" latency=\"1ms\">" + link + "</link>"),
                {{"f", "5 1\n"}})
        .profile_speedup;
  };
  const std::string window = "<prop id=\"window\" value=\"1 MB\"/>";
  const std::string flows = "<prop id=\"flows\" value=\"2\"/>";
  EXPECT_EQ(speedup("", "", "latency_file=\"f\""), 1);
  EXPECT_EQ(speedup(window, window, "state_file=\"f\""), 1);
  EXPECT_EQ(speedup("", window, "latency_file=\"f\""), std::numeric_limits<double>::infinity());
  EXPECT_EQ(speedup(window, "", "latency_file=\"f\""), std::numeric_limits<double>::infinity());
  EXPECT_EQ(speedup(window, flows, "latency_file=\"f\""), std::numeric_limits<double>::infinity());
}

TEST(ScanPlatform, CountsNoSpeedupOfProfilesThatSlowDown)
{
  const auto found = scan(in_zone("<host id=\"a\" speed=\"1f\" speed_file=\"f\"/>"
                                  "<link id=\"l\" bandwidth=\"1MBps\" latency=\"0\" latency_file=\"g\"/>"),
                          {{"f", "1 0.5\n"}, {"g", "1 0\n"}});
  EXPECT_EQ(found.profile_speedup, 1);
}

TEST(ScanPlatform, LeavesTheNamesOfLinksInTopologiesToSimGrid)
{
  const auto torus = [](const std::string& id) {
    return fmt::format(
        "<cluster id=\"{0}\" prefix=\"{0}\" suffix=\"\" radical=\"0-7\" speed=\"1f\" bw=\"1Bps\" lat=\"0\" "
        "topology=\"TORUS\" topo_parameters=\"2,2,2\"/>",
        id);
  };
  const auto route_over = [&](const std::vector<std::string>& topologies, const std::string& link) {
    std::string content;
    for (const auto& id : topologies) content += torus(id);
    return message_of(in_zone(content +
                              "<zone id=\"hosts\" routing=\"Full\"><host id=\"h\" speed=\"1f\"/><host id=\"i\" "
                              "speed=\"1f\"/>\n<route src=\"h\" dst=\"i\">\n<link_ctn id=\"" +
                              link + "\"/></route></zone>"));
  };
  for (const auto& topologies :
       {std::vector<std::string>{"t", "t_u", "t_", "s", "t_u_v"}, {"t_u_v", "t_u", "t_", "s", "t"}}) {
    for (const auto* link : {"t_", "t_x", "t_u_link_from_0_to_1", "t_u_v_w", "t__", "s_1", "__loopback__"}) {
      EXPECT_EQ(route_over(topologies, link), "no fault") << link;
    }
    for (const auto* link : {"t", "tu", "u_1", "r_1", "s", "sz_1", "S_1"}) {
      EXPECT_EQ(route_over(topologies, link),
                fmt::format("p.xml:6: route from h to i: there is no link {} above", link));
    }
  }
  EXPECT_EQ(route_over({"t_u", "t_w"}, "t_v_1"), "p.xml:6: route from h to i: there is no link t_v_1 above");
}

TEST(ScanPlatform, PutsATopologyAtTheTopIntoAZone)
{
  const std::string torus =
      "<cluster id=\"t\" prefix=\"n\" suffix=\"\" radical=\"0-3\" speed=\"1f\" bw=\"1Bps\" lat=\"0\" "
      "topology=\"TORUS\" topo_parameters=\"2,2\"/>";
  EXPECT_EQ(scan("<platform version=\"4.1\">\n" + torus + "\n</platform>\n").text_to_load,
            head + "<platform version=\"4.1\">\n<zone id=\"__topology__\" routing=\"Full\">" + torus +
                "\n</zone></platform>\n");
  EXPECT_EQ(scan(in_zone(torus)).text_to_load, head + in_zone(torus));
  EXPECT_EQ(message_of("<platform version=\"4.1\">\n<cluster id=\"__topology__" + torus.substr(14) + "</platform>"),
            "p.xml:3: cluster __topology__: the name __topology__ is already taken in line 3");
}

TEST(ScanPlatform, FindsGatewaysInInnerZones)
{
  const auto rack = [](const std::string& id) {
    return "<zone id=\"" + id + "\" routing=\"Cluster\"><host id=\"" + id + ".h\" speed=\"1f\"/><router id=\"" + id +
           ".r\"/></zone>\n";
  };
  const auto route = [](const std::string& gateway) {
    return "<link id=\"l\" bandwidth=\"1Bps\" latency=\"0\"/><zoneRoute src=\"site\" dst=\"b\" gw_src=\"" + gateway +
           "\" gw_dst=\"b.r\"><link_ctn id=\"l\"/></zoneRoute>\n";
  };
  const auto site = [&](const std::string& more, const std::string& gateway) {
    return scan(in_zone("<zone id=\"site\" routing=\"Floyd\">" + rack("a") + more + "</zone>\n" + rack("b") +
                        route(gateway)))
        .inner_gateways;
  };
  EXPECT_TRUE(site("", "a.r").empty()) << "all hosts are beside it";
  const auto found = site(rack("c"), "a.r");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].line, 8);
  EXPECT_EQ(found[0].text, "zoneRoute from site to b: gw_src a.r is in the zone a inside site");
}

TEST(ScanPlatform, ReportsTheLineOfAFaultInAnInlineProfile)
{
  EXPECT_EQ(message_of("<platform version=\"4.1\">\n<zone id=\"z\" routing=\"Full\"/>\n"
                       "<trace id=\"t\" periodicity=\"9\">\n0 1\n1 x\n</trace>\n</platform>"),
            "p.xml:6: \"x\" is not a non-negative number");
}

TEST(ScanPlatform, AcceptsAtMostAHundredThousandHosts)
{
  const auto cluster = [](const char* radical) {
    return fmt::format(
        "<platform version=\"4.1\"><cluster id=\"c\" prefix=\"h\" suffix=\"\" radical=\"{}\" speed=\"1f\" "
        "bw=\"1Bps\" lat=\"0\"/></platform>",
        radical);
  };
  EXPECT_EQ(scan(cluster("1-100000")).hosts.size(), most_hosts);
  EXPECT_EQ(message_of(cluster("0-100000")),
            "p.xml:2: cluster c: radical \"0-100000\" makes more hosts than the 100000 that a platform may have");
}

TEST(ScanPlatform, SurvivesFilesThatAreCutOffAnywhere)
{
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source / "tests/instances/bad")) {
    if (entry.path().extension() != ".xml") continue;
    const std::string text = read_file(entry.path());
    for (std::size_t length = 0; length < text.size(); length += 7) {
      EXPECT_NO_THROW(fuzz::platform(text.substr(0, length))) << entry.path() << " cut after " << length;
    }
    ++files;
  }
  EXPECT_GT(files, 0u);
}

TEST(ScanPlatform, SurvivesEveryInputThatEverCrashedIt)
{
  std::size_t inputs = 0;
  for (const auto* folder : {"tests/fuzz/corpus/fuzz_prescan", "tests/fuzz/crashes/fuzz_prescan"}) {
    if (!std::filesystem::exists(source / folder)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(source / folder)) {
      EXPECT_NO_THROW(fuzz::platform(read_file(entry.path()))) << entry.path();
      ++inputs;
    }
  }
  EXPECT_GT(inputs, 0u);
}

TEST(ScanPlatform, RefusesNamesWithControlCharactersInOneLine)
{
  EXPECT_EQ(message_of(in_zone("<host id=\"a&#10;b\" speed=\"1f\"/>\n")),
            "p.xml:4: host a\\x0ab: id holds a control character");
  EXPECT_EQ(message_of(in_zone("<host id=\"a\x7F\" speed=\"1f\"/>\n<router id=\"&#x7F;\"/>\n")),
            "p.xml:4: host a\\x7f: id holds a control character\n"
            "p.xml:5: router \\x7f: id holds a control character");
}

TEST(ScanPlatform, RefusesNamesAndPropsThatAreNotUtf8)
{
  const auto with = [](const std::string& name) {
    return message_of(
        "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\"><zone id=\"hosts\" "
        "routing=\"Full\">\n<host id=\"" +
        name + "\" speed=\"1f\"/>\n<router id=\"r" + name +
        "\"/>\n<link id=\"l\" bandwidth=\"1Bps\" latency=\"0\">\n<prop id=\"note\" value=\"" + name +
        "\"/></link></zone>\n<zone id=\"" + name + "z\" routing=\"Full\"/></zone></platform>");
  };
  EXPECT_EQ(with("Zürich→東京😀"), "no fault");
  for (const auto& [bytes, seen] : {std::pair("\xE9", "\\xe9"),                              // Latin-1
                                    std::pair("\xC3", "\\xc3"),                              // cut off
                                    std::pair("\xC0\xAF", "\\xc0\\xaf"),                     // overlong
                                    std::pair("\xED\xA0\x80", "\\xed\\xa0\\x80"),            // a surrogate
                                    std::pair("\xF4\x90\x80\x80", "\\xf4\\x90\\x80\\x80")})  // beyond Unicode
  {
    EXPECT_EQ(with(bytes), fmt::format("p.xml:3: host {0}: id is not UTF-8; write the file in UTF-8\n"
                                       "p.xml:4: router r{0}: id is not UTF-8; write the file in UTF-8\n"
                                       "p.xml:6: prop note: value is not UTF-8; write the file in UTF-8\n"
                                       "p.xml:7: zone {0}z: id is not UTF-8; write the file in UTF-8",
                                       seen));
  }
}

}  // namespace
}  // namespace isobar::sim::prescan_test
