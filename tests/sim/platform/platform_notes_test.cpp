#include "sim/platform/platform.hpp"

#include "tests/sim/platform/platform_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isobar::sim {
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

}  // namespace
}  // namespace isobar::sim
