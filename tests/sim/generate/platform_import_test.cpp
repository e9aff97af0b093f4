#include "sim/generate/platform_generator.hpp"

#include "core/errors.hpp"
#include "tests/support/bad_files.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <pugixml.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace isobar::sim::platform_import_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

const fs::path instances = fs::path(ISOBAR_SOURCE_DIR) / "tests/instances";

ImportOptions good_options()
{
  ImportOptions options;
  options.matrix = instances / "import_matrix.csv";
  options.sites = instances / "import_sites.csv";
  return options;
}

/// The root zone of a platform; `document` keeps it alive.
pugi::xml_node root_of(pugi::xml_document& document, const std::string& xml)
{
  EXPECT_TRUE(document.load_string(xml.c_str()));
  return document.child("platform").child("zone");
}

std::string attribute(const pugi::xml_node& zone, const char* link, const char* name)
{
  return zone.find_child_by_attribute("link", "id", link).attribute(name).value();
}

/// With files that a test writes into a temporary folder.
class ImportMatrix : public testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& content) const { return folder_.write(name, content); }

 private:
  testing_support::TemporaryFolder folder_;
};

TEST_F(ImportMatrix, GivesEachDirectionOfAPairItsOwnLink)
{
  pugi::xml_document document;
  const auto root = root_of(document, import_matrix(good_options()));
  EXPECT_EQ(attribute(root, "wan.north.south", "bandwidth"), "1GBps");
  EXPECT_EQ(attribute(root, "wan.south.north", "bandwidth"), "500MBps");
  EXPECT_EQ(attribute(root, "wan.north.west", "bandwidth"), "250MBps");
  // 20 ms there and back, of which half of 0.2 ms and half of 8 ms pass within the sites.
  EXPECT_EQ(attribute(root, "wan.north.west", "latency"), "7.95ms");
  EXPECT_EQ(attribute(root, "wan.west.north", "latency"), "9.95ms");
  EXPECT_EQ(attribute(root.find_child_by_attribute("zone", "id", "west"), "nic.west.0", "latency"), "2ms");
}

TEST_F(ImportMatrix, OrdersSitesAndDevicesAsTheSitesFileDoes)
{
  pugi::xml_document document;
  std::vector<std::string> hosts;
  for (const auto& site : root_of(document, import_matrix(good_options())).children("zone")) {
    for (const auto& host : site.children("host")) {
      const auto device = host.find_child_by_attribute("prop", "id", "device").attribute("value").value();
      hosts.push_back(std::string(host.attribute("id").value()) + " " + device);
    }
  }
  EXPECT_THAT(hosts, ElementsAre("south.0 T4", "south.1 A100-SXM4-40GB", "south.2 A100-SXM4-40GB",
                                 "north.0 V100-SXM2-16GB", "north.1 V100-SXM2-16GB", "west.0 RTX-4090"));
}

TEST_F(ImportMatrix, RoutesWhatLeavesOrEntersASiteThroughItsCap)
{
  pugi::xml_document document;
  const auto root = root_of(document, import_matrix(good_options()));
  EXPECT_EQ(attribute(root, "egress.south", "bandwidth"), "375MBps");
  EXPECT_EQ(attribute(root, "ingress.north", "bandwidth"), "750MBps");
  std::vector<std::string> links;
  for (const auto& route : root.children("zoneRoute")) {
    if (std::string(route.attribute("src").value()) != "south" ||
        std::string(route.attribute("dst").value()) != "north")
      continue;
    for (const auto& link : route.children("link_ctn")) links.emplace_back(link.attribute("id").value());
  }
  EXPECT_THAT(links, ElementsAre("egress.south", "wan.south.north", "ingress.north"));
}

TEST_F(ImportMatrix, CopiesTheSourcesThatTheFilesNameIntoThePlatform)
{
  auto options = good_options();
  options.flows = 4;
  const auto xml = import_matrix(options);
  EXPECT_THAT(xml, HasSubstr("\n  Made up: three sites, each direction of its own.\n"));
  EXPECT_THAT(xml,
              HasSubstr("\n  RTX-4090: float32 82.6 TFLOP/s, fp16 165.2 TFLOP/s, bf16 165.2 TFLOP/s: NVIDIA Ada GPU "
                        "architecture white paper, 2022; 24207 MiB: 3DTopia/Phidias-Diffusion#8.\n"));
  EXPECT_THAT(xml, HasSubstr("cirquit/hivemind-multi-cloud, MIT, April-May 2023"));
  EXPECT_THAT(xml, HasSubstr("import_sites.csv --flows 4 --window 2.65MB\"/>"));
}

TEST_F(ImportMatrix, ReadsUndirectedPairsColumnsInAnyOrderAndWindowsLineEnds)
{
  auto options = good_options();
  options.undirected = true;
  options.matrix = write("it's a matrix.csv",
                         "# made up -- or not\r\nrtt_ms,to, from ,bandwidth_gbit_s\r\n\r\n10,south,north,8\r\n"
                         "20 , north,west,4\r\n30,west,south,2");
  options.sites =
      write("sites.csv", "lan_rtt_ms,site,devices,lan_bandwidth_gbit_s\n0,north,1xT4,10\n0,south,1xT4,10\n");
  const auto xml = import_matrix(options);
  pugi::xml_document document;
  const auto root = root_of(document, xml);
  EXPECT_EQ(attribute(root, "wan.north.south", "latency"), "5ms");
  EXPECT_EQ(attribute(root, "wan.south.north", "latency"), "5ms");
  EXPECT_EQ(attribute(root, "wan.south.north", "bandwidth"), "1GBps");
  EXPECT_FALSE(root.find_child_by_attribute("zone", "id", "west")) << "the sites file chooses";
  EXPECT_THAT(xml, HasSubstr("  made up - - or not\n")) << "two hyphens in a row would end the comment";
  EXPECT_THAT(root.find_child_by_attribute("prop", "id", "made_by").attribute("value").value(),
              HasSubstr("it'\\''s a matrix.csv' --sites "));
}

TEST_F(ImportMatrix, RefusesBothDirectionsOfAPairWhenUndirected)
{
  auto options = good_options();
  options.undirected = true;
  options.matrix = write("m.csv", "from,to,bandwidth_gbit_s,rtt_ms\nnorth,south,8,100\nsouth,north,8,100\n");
  EXPECT_THAT([&] { import_matrix(options); },
              testing::ThrowsMessage<InputError>(options.matrix.string() +
                                                 ":3: to: south to north is already in line 2; write each pair once"));
}

TEST_F(ImportMatrix, ReportsAllFaultsOfAFileAtOnce)
{
  auto options = good_options();
  options.matrix =
      write("m.csv", "from,to,bandwidth_gbit_s,rtt_ms\nnorth,south,no,100\nsouth,north,8\nwest,west,1,-1\n");
  const auto file = options.matrix.string();
  EXPECT_THAT([&] { import_matrix(options); },
              testing::ThrowsMessage<InputError>(
                  file + ":2: bandwidth_gbit_s: \"no\" is not a number above 0 and at most 1000000000\n" + file +
                  ":3: row: has 3 cells; the header has 4\n" + file +
                  ":4: rtt_ms: \"-1\" is not a number from 0 to 1000000000\n" + file +
                  ":4: to: west is also in the column from; a row joins two sites"));
}

TEST_F(ImportMatrix, RefusesZeroFlows)
{
  auto options = good_options();
  options.flows = 0;
  EXPECT_THAT([&] { import_matrix(options); },
              testing::ThrowsMessage<InputError>("--flows: 0 is out of range; write a number from 1 to 65536"));
}

TEST_F(ImportMatrix, RefusesTooManySites)
{
  auto options = good_options();
  std::string matrix = "from,to,bandwidth_gbit_s,rtt_ms\n";
  std::string sites = "site,devices,lan_bandwidth_gbit_s,lan_rtt_ms\ns0,1xT4,1,1\n";
  for (int i = 1; i < 129; ++i) {
    matrix += "s0,s" + std::to_string(i) + ",1,10\n";
    sites += "s" + std::to_string(i) + ",1xT4,1,1\n";
  }
  options.matrix = write("m.csv", matrix);
  options.sites = write("s.csv", sites);
  EXPECT_THAT([&] { import_matrix(options); },
              testing::ThrowsMessage<InputError>(options.sites.string() +
                                                 ":130: site: 129 are too many; a platform has at most 128 sites"));
}

TEST_F(ImportMatrix, RefusesEachBadMatrixWithItsMessage)
{
  EXPECT_GE(testing_support::expect_each_bad_file_refused("import_matrix_", ".csv",
                                                          [](const auto& file) {
                                                            ImportOptions options;
                                                            options.matrix = file;
                                                            options.sites = "../import_sites.csv";
                                                            import_matrix(options);
                                                          }),
            20u);
}

TEST_F(ImportMatrix, RefusesEachBadSitesFileWithItsMessage)
{
  EXPECT_GE(testing_support::expect_each_bad_file_refused("import_sites_", ".csv",
                                                          [](const auto& file) {
                                                            ImportOptions options;
                                                            options.matrix = "../import_matrix.csv";
                                                            options.sites = file;
                                                            import_matrix(options);
                                                          }),
            12u);
}

}  // namespace
}  // namespace isobar::sim::platform_import_test
