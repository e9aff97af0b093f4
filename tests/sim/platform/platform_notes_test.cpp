#include "sim/platform/platform.hpp"

#include "tests/sim/platform/platform_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isobar::sim::platform_notes_test {
namespace {

using ::testing::ElementsAre;

TEST(PlatformNotes, AreEmptyForAFileThatIsUsedCompletely)
{
  EXPECT_THAT(Platform::load(instance("dijkstra")).notes(), ElementsAre());
}

TEST(PlatformNotes, NameHostsThatComputeNothing)
{
  const auto file =
      write_platform(xml_head +
                     "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">"
                     "<host id=\"a\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>\n"
                     "<host id=\"disks\" speed=\"0Gf\"><prop id=\"memory\" value=\"1 GiB\"/></host></zone></platform>");
  const auto platform = Platform::load(file);
  EXPECT_THAT(names_of(platform.cluster()), ElementsAre("a"));
  EXPECT_THAT(platform.notes(), ElementsAre(file.string() + ":4: host disks: a speed of 0, not used as a device"));
}

TEST(PlatformNotes, NameGpusOfElastiSimThatAreNoDevices)
{
  const auto file = write_platform(
      xml_head +
      "<platform version=\"4.1\">\n<cluster id=\"c\" prefix=\"c-\" suffix=\"\" radical=\"0-1\" "
      "speed=\"1Tf\" bw=\"100MBps\" lat=\"1ms\"><prop id=\"memory\" value=\"1 GiB\"/>"
      "<prop id=\"num_gpus\" value=\"4\"/><prop id=\"flops_per_gpu\" value=\"20Tf\"/></cluster></platform>");
  EXPECT_THAT(
      Platform::load(file).notes(),
      ElementsAre(file.string() + ":4: host c-0 and 1 more: ElastiSim's props num_gpus and flops_per_gpu are not "
                                  "read; write a host for each GPU, with its speed and the prop memory"));
}

TEST(PlatformNotes, NameABackboneThatSimGridDoesNotMake)
{
  const auto file = write_platform(
      xml_head +
      "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">\n<cluster id=\"t\" prefix=\"n\" suffix=\"\" "
      "radical=\"0-3\" speed=\"1Tf\" bw=\"1GBps\" lat=\"1us\" bb_bw=\"10GBps\" bb_lat=\"1us\" topology=\"TORUS\" "
      "topo_parameters=\"2,2\"><prop id=\"memory\" value=\"1 GiB\"/></cluster></zone></platform>");
  EXPECT_THAT(
      Platform::load(file).notes(),
      ElementsAre(file.string() + ":4: cluster t: bb_bw is ignored; SimGrid gives the topology TORUS no backbone"));
}

}  // namespace
}  // namespace isobar::sim::platform_notes_test
