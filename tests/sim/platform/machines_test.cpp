#include "sim/platform/machines.hpp"

#include "core/base/child_process.hpp"
#include "sim/platform/platform.hpp"
#include "tests/sim/platform/platform_files.hpp"
#include "tests/support/thrown_message.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

// The machines of a platform, and which devices are in them.
namespace isobar::sim::machines_test {
namespace {

using ::testing::ElementsAre;

const std::string gibibyte = "<prop id=\"memory\" value=\"1 GiB\"/>";
const std::string is_machine = "<prop id=\"role\" value=\"machine\"/>";

std::string host(const std::string& name, const std::string& content, const std::string& speed = "1Gf")
{
  return fmt::format("<host id=\"{}\" speed=\"{}\">{}</host>\n", name, speed, content);
}
std::string machine(const std::string& name, const std::string& content = "", const std::string& speed = "1Gf")
{
  return host(name, gibibyte + is_machine + content, speed);
}
std::string in(const std::string& machine)
{
  return fmt::format("<prop id=\"host\" value=\"{}\"/>", machine);
}
std::string link(const std::string& name, const std::string& bandwidth, const std::string& latency)
{
  return fmt::format("<link id=\"{}\" bandwidth=\"{}\" latency=\"{}\"/>\n", name, bandwidth, latency);
}
std::string route(const std::string& from, const std::string& to, const std::string& link, bool both_ways = true)
{
  return fmt::format("<route src=\"{}\" dst=\"{}\" symmetrical=\"{}\"><link_ctn id=\"{}\"/></route>\n", from, to,
                     both_ways ? "YES" : "NO", link);
}

/// Loads a platform of one zone, whose content begins in line 4.
Platform load_zone(const std::string& content)
{
  return Platform::load(write_platform(xml_head + "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">\n" +
                                       content + "</zone></platform>\n"));
}

/// The name of a device's machine; "none" without one.
std::string machine_of(const Platform& platform, const std::string& device)
{
  const Cluster& cluster = platform.cluster();
  const auto& link = cluster.devices.at(*cluster.device_index(device)).machine;
  return link ? cluster.machines.at(link->machine).name : "none";
}

TEST(Machines, AreNoDevicesAndHaveTheFirstDiskWithACapacity)
{
  const Platform platform = load_zone(
      host("a", gibibyte + in("cpu")) +
      machine("cpu",
              "<disk id=\"z\" read_bw=\"1GBps\" write_bw=\"1GBps\"/>"
              "<disk id=\"y\" read_bw=\"3GBps\" write_bw=\"2GBps\"><prop id=\"capacity\" value=\"2 TB\"/></disk>"
              "<disk id=\"x\" read_bw=\"4GBps\" write_bw=\"4GBps\"><prop id=\"capacity\" value=\"4 TB\"/></disk>",
              "2.16Gf, 3.78Gf") +
      machine("spare") + link("l", "1GBps", "1ms") + route("a", "cpu", "l"));
  EXPECT_THAT(names_of(platform.cluster()), ElementsAre("a"));
  ASSERT_EQ(platform.cluster().machines.size(), 2U);
  const Machine& cpu = platform.cluster().machines[0];
  EXPECT_EQ(cpu.name, "cpu");
  EXPECT_EQ(cpu.memory, Bytes(1 << 30));
  EXPECT_EQ(cpu.busy_update_speed, FlopsPerSecond(2.16e9));
  EXPECT_EQ(cpu.update_speed, FlopsPerSecond(3.78e9));
  ASSERT_TRUE(cpu.disk.has_value());
  EXPECT_EQ(cpu.disk->name, "y");
  EXPECT_EQ(cpu.disk->capacity, Bytes(2e12));
  EXPECT_EQ(cpu.disk->read, BytesPerSecond(3e9));
  EXPECT_EQ(cpu.disk->write, BytesPerSecond(2e9));
  const Machine& spare = platform.cluster().machines[1];
  EXPECT_EQ(spare.update_speed, FlopsPerSecond(1e9));
  EXPECT_EQ(spare.busy_update_speed, FlopsPerSecond(1e9));
  EXPECT_FALSE(spare.disk.has_value());
  EXPECT_THAT(
      platform.notes(),
      ElementsAre(::testing::EndsWith("test.xml:5: host cpu: a disk without the prop capacity, which is not used")));
}

TEST(Machines, HaveAPathToAndFromTheirDevices)
{
  const Platform platform =
      load_zone(host("a", gibibyte + in("cpu")) + host("cpu", gibibyte) + link("up", "3GBps", "1ms") +
                link("down", "2GBps", "5us") + route("a", "cpu", "up", false) + route("cpu", "a", "down", false));
  ASSERT_EQ(machine_of(platform, "a"), "cpu");
  const MachineLink& link = *platform.cluster().devices[0].machine;
  EXPECT_DOUBLE_EQ(link.in.latency.value, 5e-6);
  EXPECT_EQ(link.in.bandwidth, BytesPerSecond(2e9));
  EXPECT_DOUBLE_EQ(link.out.latency.value, 1e-3);
  EXPECT_EQ(link.out.bandwidth, BytesPerSecond(3e9));
  EXPECT_THAT(platform.notes(), ElementsAre());
}

TEST(Machines, AreTheNearestOfDevicesThatNameNone)
{
  const std::string links = link("far", "9GBps", "3us") + link("slow", "1GBps", "2us") + link("fast", "2GBps", "2us") +
                            link("one_way", "9GBps", "1us") + link("between", "1GBps", "1us");
  const Platform platform = load_zone(
      host("a", gibibyte) + host("b", gibibyte) + host("c", gibibyte) + host("d", gibibyte + in("m0")) + machine("m0") +
      machine("m1") + machine("m2") + machine("m3") + links + route("a", "m0", "far") + route("a", "m1", "slow") +
      route("a", "m2", "fast") + route("a", "m3", "one_way", false) + route("b", "m2", "slow") +
      route("b", "m1", "slow") + route("d", "m0", "slow") + route("d", "m1", "one_way") + route("a", "b", "between") +
      route("a", "c", "between") + route("a", "d", "between") + route("b", "c", "between") +
      route("b", "d", "between") + route("c", "d", "between"));
  EXPECT_EQ(machine_of(platform, "a"), "m2") << "the same latency as m1, more bandwidth; m3 has no way back";
  EXPECT_EQ(machine_of(platform, "b"), "m1") << "as near as m2, and before it in the file";
  EXPECT_EQ(machine_of(platform, "c"), "none");
  EXPECT_EQ(machine_of(platform, "d"), "m0") << "named, though m1 is nearer";
  EXPECT_THAT(
      platform.notes(),
      ElementsAre(::testing::EndsWith("test.xml:5: host b: no prop host, taken to be in the nearest machine, m1"),
                  ::testing::EndsWith("test.xml:4: host a: no prop host, taken to be in the nearest machine, m2"),
                  ::testing::EndsWith("test.xml:6: host c: in no machine, because no route leads to one and back")));
}

TEST(Machines, OfAClusterMayBeGivenInADevicesFile)
{
  const auto file = write_platform(
      xml_head +
          "<platform version=\"4.1\"><cluster id=\"pod\" prefix=\"n-\" suffix=\"\" radical=\"0-3\" speed=\"1Gf,2Gf\" "
          "bw=\"1GBps\" lat=\"1us\"/></platform>\n",
      "pod.xml");
  write_platform("\"n-*\": {memory: 8 GiB}\nn-3: {role: machine}\nn-1: {host: n-0}\nn-2: {host: n-3}\n",
                 "pod.devices.yaml");
  const Platform platform = Platform::load(file);
  EXPECT_THAT(names_of(platform.cluster()), ElementsAre("n-1", "n-2"));
  EXPECT_EQ(machine_of(platform, "n-1"), "n-0");
  EXPECT_EQ(machine_of(platform, "n-2"), "n-3");
  EXPECT_EQ(platform.cluster().machines[1].update_speed, FlopsPerSecond(2e9));
}

/// A device and its machine, 1 GB/s and 1 ms apart, and a device without a route to either.
std::string device_and_machine_and_stranger()
{
  return host("a", gibibyte + in("cpu")) + host("stranger", gibibyte + in("cpu")) + machine("cpu") +
         link("l", "1GBps", "1ms") + route("a", "cpu", "l");
}

TEST(Machines, AreNotSoughtForDevicesThatAreLeftOut)
{
  const auto file = write_platform(xml_head + "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">\n" +
                                   device_and_machine_and_stranger() + "</zone></platform>\n");
  Platform platform = Platform::load(file, {}, {"stranger"});
  platform.leave_out({"stranger"}, "--without");
  EXPECT_THAT(names_of(platform.cluster()), ElementsAre("a"));
  EXPECT_EQ(machine_of(platform, "a"), "cpu");
  EXPECT_EQ(message_of([&] { platform.leave_out({"cpu"}, "--without"); }),
            "InputError --without: \"cpu\" is not a device of test; its devices are a");
}

TEST(Machines, KeepTheirPathsUpToDateWhenLinksAreScaled)
{
  Platform platform = load_zone(host("a", gibibyte + in("cpu")) + machine("cpu") + link("l", "1GBps", "1ms") +
                                link("other", "1GBps", "1ms") + route("a", "cpu", "l"));
  platform.scale(Property::Bandwidth, 3, "l");
  platform.scale(Property::Latency, 0.5);
  platform.scale(Property::Bandwidth, 7, "other");
  const MachineLink& link = *platform.cluster().devices[0].machine;
  EXPECT_EQ(link.in.bandwidth, BytesPerSecond(3e9));
  EXPECT_EQ(link.out.bandwidth, BytesPerSecond(3e9));
  EXPECT_EQ(link.in.latency, Seconds(5e-4));
  EXPECT_EQ(link.out.latency, Seconds(5e-4));
}

TEST(Machines, AreScaledWithTheSystemsMeasuredInThemByTheRatesOfUpdates)
{
  const auto file = write_platform(xml_head + "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">\n" +
                                       host("a", gibibyte + in("cpu")) + machine("cpu", "", "2Gf, 4Gf") +
                                       link("l", "1GBps", "1ms") + route("a", "cpu", "l") + "</zone></platform>\n",
                                   "scaled.xml");
  write_platform("l2l: {update_speed: 8 GFLOP/s}\n", "scaled.systems.yaml");
  Platform platform = Platform::load(file);
  const auto rates = [&] {
    const Machine& machine = platform.cluster().machines.at(0);
    return std::vector{machine.busy_update_speed.value, machine.update_speed.value,
                       platform.cluster().systems.at("l2l").update_speed->value};
  };
  platform.scale(Property::UpdateSpeed, 3, "cpu");
  EXPECT_THAT(rates(), ElementsAre(6e9, 12e9, 8e9));
  platform.scale(Property::UpdateSpeed, 0.5);
  EXPECT_THAT(rates(), ElementsAre(3e9, 6e9, 4e9));
  EXPECT_EQ(message_of([&] { platform.scale(Property::UpdateSpeed, 2, "nowhere"); }),
            "InputError scaled: there is no machine nowhere to scale");
  EXPECT_EQ(message_of([&] { platform.scale(Property::UpdateSpeed, 1e-30); }),
            "InputError scaled: scaled by 1e-30, the update speed of cpu is out of range");
}

TEST(Platform, ReadsTheSystemsFileNextToIt)
{
  const std::string xml = xml_head + "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">\n" +
                          host("a", gibibyte) + "</zone></platform>\n";
  const auto file = write_platform(xml, "measured.xml");
  const auto systems = write_platform("l2l: {copy_bandwidth: 4.2 GB/s}\n", "measured.systems.yaml");
  const Platform platform = Platform::load(file);
  ASSERT_EQ(platform.cluster().systems.size(), 1U);
  EXPECT_EQ(platform.cluster().systems.at("l2l").copy_bandwidth, BytesPerSecond(4.2e9));
  EXPECT_THAT(platform.files(), ElementsAre(file.string(), systems.string()));
}

TEST(Platform, HasAHashThatDependsOnItsSystemsFile)
{
  const std::string xml = xml_head + "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">\n" +
                          host("a", gibibyte) + "</zone></platform>\n";
  const auto hash_with = [&](const std::string& systems) {
    return run_in_child(
               [&] {
                 const auto file = write_platform(xml, "hashed.xml");
                 if (!systems.empty()) write_platform(systems, "hashed.systems.yaml");
                 return Platform::load(file).hash();
               },
               Seconds(60))
        .output_or_throw();
  };
  const std::string without = hash_with("");
  const std::string with = hash_with("l2l: {copy_bandwidth: 4.2 GB/s}\n");
  EXPECT_NE(with, without);
  EXPECT_NE(hash_with("l2l: {copy_bandwidth: 4.3 GB/s}\n"), with);
}

TEST(Platform, NamesTheLineOfAFaultInItsSystemsFile)
{
  const auto file = write_platform(xml_head + "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">\n" +
                                       host("a", gibibyte) + "</zone></platform>\n",
                                   "faulty.xml");
  const auto systems = write_platform("l2l:\n  copy_bandwith: 4.2 GB/s\n", "faulty.systems.yaml");
  EXPECT_EQ(message_of([&] { Platform::load(file); }),
            "InputError " + systems.string() + ":2: l2l.copy_bandwith: unknown key; did you mean copy_bandwidth?");
}

}  // namespace
}  // namespace isobar::sim::machines_test
