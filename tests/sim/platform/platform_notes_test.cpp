#include "sim/platform/platform.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace isobar::sim {
namespace {

using ::testing::ElementsAre;

TEST(PlatformNotes, AreEmptyForAFileThatIsUsedCompletely)
{
  EXPECT_THAT(Platform::load(ISOBAR_SOURCE_DIR "/tests/instances/platforms/dijkstra.xml").notes(), ElementsAre());
}

TEST(PlatformNotes, NameHostsThatComputeNothing)
{
  const testing_support::TemporaryFolder folder;
  const auto file =
      folder.write("disks.xml",
                   "<?xml version=\"1.0\"?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
                   "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">"
                   "<host id=\"a\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>\n"
                   "<host id=\"disks\" speed=\"0Gf\"><prop id=\"memory\" value=\"1 GiB\"/></host></zone></platform>");
  const auto platform = Platform::load(file);
  std::vector<std::string> names;
  for (const auto& device : platform.cluster().devices) names.push_back(device.name);
  EXPECT_THAT(names, ElementsAre("a"));
  EXPECT_THAT(platform.notes(), ElementsAre(file.string() + ":4: host disks: a speed of 0, not used as a device"));
}

}  // namespace
}  // namespace isobar::sim
