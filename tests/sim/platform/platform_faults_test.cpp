#include "sim/platform/platform.hpp"

#include "core/errors.hpp"
#include "tests/sim/platform/platform_files.hpp"
#include "tests/support/bad_files.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

// Platform files that are refused, and files that crash SimGrid.
namespace isobar::sim::platform_faults_test {
namespace {

std::string message_of(const std::filesystem::path& file)
{
  try {
    Platform::load(file);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no fault";
}

TEST(Platform, RefusesEveryMalformedFileWithItsFileAndLine)
{
  const auto files = testing_support::expect_each_bad_file_refused("", ".xml", [](const auto& file) {
    EXPECT_THAT(message_of(file), ::testing::ContainsRegex("[a-z_/]+\\.(xml|profile):[0-9]+: ")) << file;
    Platform::load(file);
  });
  EXPECT_GE(files, 60u);
}

TEST(Platform, ReportsAMissingFile)
{
  EXPECT_EQ(message_of("nowhere/platform.xml"), "nowhere/platform.xml: no such file");
}

TEST(Platform, IgnoresConfigurationAndKeepsTheLinesOfTheRest)
{
  const std::string zone =
      "<zone id=\"z\" routing=\"Full\"><host id=\"a\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>\n";
  const std::string config =
      "<platform version=\"4.1\"><config id=\"c\">\n<!-- </config> -->\n<prop id=\"tracing\" value=\"yes\"/>\n"
      "<prop id=\"network/speed\" value=\"9\"/></config>\n<config/>\n" +
      zone;
  const auto broken = write_platform(xml_head + config + "<nothing/></zone></platform>", "broken.xml");
  EXPECT_THAT(message_of(broken), ::testing::StartsWith(broken.string() + ":9: SimGrid: "));
  const auto file = write_platform(xml_head + config + "</zone></platform>", "config.xml");
  EXPECT_THAT(Platform::load(file).notes(),
              ::testing::ElementsAre(file.string() + ":3: <config> is ignored; Isobar sets SimGrid's options itself"));
}

TEST(Platform, TurnsACrashWhileLoadingIntoOneLine)
{
  const auto file = write_platform(
      xml_head +
      "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">"
      "<host id=\"a\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>"
      "<link id=\"l\" bandwidth=\"54Mbps,36Mbps\" latency=\"0\" sharing_policy=\"WIFI\"/></zone></platform>");
  EXPECT_EQ(message_of(file), file.string() + ": SimGrid cannot load it: Non-WIFI links must use only 1 bandwidth.");
}

TEST(Platform, TurnsACrashInARouteIntoTheLineOfTheDevice)
{
  const auto file = write_platform(xml_head +
                                   "<platform version=\"4.1\"><zone id=\"z\" routing=\"None\">\n"
                                   "<host id=\"a\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>\n"
                                   "<host id=\"b\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>\n"
                                   "</zone></platform>");
  EXPECT_EQ(message_of(file),
            file.string() +
                ":5: host b: no route from a; every pair of devices needs one (SimGrid: There can't be "
                "route in an Empty zone)");
}

TEST(Platform, HidesAddressesOfSimGridsObjects)
{
  const std::string site =
      "<zone id=\"{0}\" routing=\"Full\"><host id=\"{0}1\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 "
      "GiB\"/></host></zone>\n";
  const auto file = write_platform(xml_head + "<platform version=\"4.1\"><zone id=\"z\" routing=\"Vivaldi\">\n" +
                                   fmt::format(fmt::runtime(site), "a") + fmt::format(fmt::runtime(site), "b") +
                                   "</zone></platform>");
  EXPECT_EQ(message_of(file),
            file.string() +
                ":5: host b1: no route from a1; every pair of devices needs one (SimGrid: Please specify the "
                "Vivaldi coordinates of Netzone a)");
}

}  // namespace
}  // namespace isobar::sim::platform_faults_test
