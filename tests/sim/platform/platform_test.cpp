#include "sim/platform/platform.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "tests/sim/platform/platform_files.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstddef>
#include <ctime>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>

// What a loaded platform holds, how it is scaled, and what loading does to the process.
namespace isobar::sim::platform_test {
namespace {

using ::testing::ElementsAre;

// --- devices -----------------------------------------------------------------------------------------------------

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
  const Cluster cluster = Platform::load(instance("cabinets"), devices).cluster();
  EXPECT_THAT(names_of(cluster), ElementsAre("h0.c0", "h3.c1"));
}

TEST(Platform, PrefersTheDevicesFileToPropsOfOtherPrograms)
{
  const auto file =
      write_platform(xml_head +
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

// --- profiles and files ------------------------------------------------------------------------------------------

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
  const auto file = write_platform(xml_head +
                                   "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">"
                                   "<host id=\"a\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>"
                                   "<link id=\"l\" bandwidth=\"1GBps\" latency=\"1s\" latency_file=\"slower.profile\"/>"
                                   "<link id=\"m\" bandwidth=\"1GBps\" latency=\"1s\"><prop id=\"window\" value=\"1 "
                                   "MB\"/></link></zone></platform>");
  EXPECT_EQ(Platform::load(file).cluster().profile_speedup, std::numeric_limits<double>::infinity());
}

TEST(Platform, IncludesProfilesAndTheDevicesFileInItsHash)
{
  const std::string platform = xml_head +
                               "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">"
                               "<host id=\"a\" speed=\"1Tf\" speed_file=\"load.profile\"/></zone></platform>";
  const auto file = write_platform(platform, "hashed.xml");
  const std::string devices = "a: {memory: 1 GiB}\n";
  const auto profile = write_platform("0 1\n", "load.profile");
  const auto devices_file = write_platform(devices, "hashed.devices.yaml");
  const auto loaded = Platform::load(file);
  EXPECT_EQ(loaded.hash(), fingerprint(platform + devices + "0 1\n"));
  EXPECT_THAT(loaded.files(), ::testing::UnorderedElementsAre(file, profile, devices_file));
}

// --- scaling -----------------------------------------------------------------------------------------------------

TEST(Platform, ScalesOneDeviceInAllItsRates)
{
  auto platform = Platform::load(instance("star_cluster"));
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
  auto platform = Platform::load(instance("floyd"));
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
  auto platform = Platform::load(instance("profiles"));
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

// --- the process -------------------------------------------------------------------------------------------------

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

std::string star_of(std::size_t hosts)
{
  return xml_head +
         fmt::format(
             "<platform version=\"4.1\"><cluster id=\"c\" prefix=\"g\" suffix=\"\" radical=\"0-{}\" "
             "speed=\"1Tf\" bw=\"1GBps\" lat=\"1us\"><prop id=\"memory\" value=\"1 GiB\"/></cluster></platform>",
             hosts - 1);
}

/// Processor time of this process, without its children.
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

}  // namespace
}  // namespace isobar::sim::platform_test
