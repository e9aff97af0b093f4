#include "sim/generate/machine_file.hpp"

#include "core/errors.hpp"
#include "sim/platform/platform.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <string>

namespace isobar::sim::machine_file_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::filesystem::path written(const std::string& text)
{
  static const testing_support::TemporaryFolder folder;
  return folder.write("m.yaml", text);
}

MachineFile read(const std::string& text, const MachineOverrides& overrides = {})
{
  return read_machine(written(text).string(), overrides, "row 3: platform_overrides");
}

/// The message of the faults of a machine file, with its folder left out.
std::string faults_of(const std::string& text, const MachineOverrides& overrides = {})
{
  std::string message = message_of([&] { read(text, overrides); });
  const std::string folder = written(text).parent_path().string() + "/";
  for (auto at = message.find(folder); at != std::string::npos; at = message.find(folder)) {
    message.erase(at, folder.size());
  }
  return message;
}

/// The cluster of a machine: one for each process.
Cluster cluster_of(const std::string& text, const MachineOverrides& overrides = {})
{
  return Platform::from_text(machine_to_xml(read(text, overrides)), "m").cluster();
}

const std::string dgx = R"(# A comment.
nodes: 2
gpus_per_node: 8
device: A100-SXM4-80GB
inside: {topology: switch, bandwidth_per_gpu: 300 GB/s}   # NVLink 3
outside: {nics_per_node: 8, bandwidth_per_nic: 25 GB/s}
unknown: [latencies, NCCL version]
)";

const std::string mixed = R"(node_groups:
- {device: T4-16GB, count: 1, gpus_per_node: 4, inside_bandwidth_per_gpu: 4 GB/s, nic_bandwidth: 50 Gbit/s}
- device: V100-SXM2-16GB
  count: 2
  gpus_per_node: 4
  inside: {topology: mesh, bandwidth_per_gpu: 150 GB/s}
  outside: {nics_per_node: 2, measured_send_recv: 1.1 GB/s}
)";

TEST(MachineFile, NumbersDevicesByNodeAndGivesEachItsNodeAsSite)
{
  const Cluster cluster = cluster_of(mixed);
  ASSERT_EQ(cluster.devices.size(), 12u);
  EXPECT_EQ(cluster.devices[3].name, "n0g3");
  EXPECT_EQ(cluster.devices[4].name, "n1g0");
  EXPECT_EQ(cluster.devices[11].name, "n2g3");
  EXPECT_EQ(cluster.devices[11].site, "n2");
  EXPECT_EQ(cluster.devices[11].type, "V100-SXM2-16GB");
  EXPECT_EQ(cluster.devices[11].memory, Bytes(16160 * 0x1p20));
  EXPECT_EQ(cluster.devices[3].type, "T4-16GB");
  EXPECT_EQ(cluster.devices[3].speed_at(DType::Float16), FlopsPerSecond(65e12));
  EXPECT_EQ(cluster.devices[3].speed, FlopsPerSecond(8.1e12));
}

TEST(MachineFile, LetsTransfersToOtherNodesPassTheNicsButNotTheLinksInsideNodes)
{
  const Cluster cluster = cluster_of(dgx);
  EXPECT_THAT(cluster.network->links(0, 1), ElementsAre("nvlink.n0g0_UP", "nvlink.n0g1_DOWN"));
  EXPECT_THAT(cluster.network->links(1, 8), ElementsAre("nic.n0.1_UP", "nic.n1.0_DOWN"));
  EXPECT_NEAR(cluster.path(0, 1).bandwidth.value, 0.728 * 300e9, 1);
  EXPECT_NEAR(cluster.path(0, 1).latency.value, 2.25e-6, 1e-12);
  EXPECT_NEAR(cluster.devices[0].collective_start.value, 38e-6, 1e-15);
  EXPECT_NEAR(cluster.path(1, 8).bandwidth.value, 0.9 * 25e9, 1);
  EXPECT_NEAR(cluster.path(1, 8).latency.value, 4.75e-6, 1e-12);
}

TEST(MachineFile, SharesANicAmongNeighbouringGpus)
{
  const Cluster cluster = cluster_of(mixed);
  EXPECT_THAT(cluster.network->links(0, 4), ElementsAre("nic.n0.0_UP", "nic.n1.0_DOWN"));
  EXPECT_THAT(cluster.network->links(3, 7), ElementsAre("nic.n0.0_UP", "nic.n1.1_DOWN"));
  EXPECT_THAT(cluster.network->links(5, 10), ElementsAre("nic.n1.0_UP", "nic.n2.1_DOWN"));
}

TEST(MachineFile, JoinsEachPairOfAMeshByLinksOfItsOwn)
{
  const Cluster cluster = cluster_of(mixed);
  EXPECT_THAT(cluster.network->links(4, 6), ElementsAre("nvlink.n1g0.g2"));
  EXPECT_THAT(cluster.network->links(6, 4), ElementsAre("nvlink.n1g2.g0"));
  EXPECT_NEAR(cluster.path(4, 6).bandwidth.value, 0.872 * 50e9, 1) << "150 GB/s of a GPU over three links";
}

TEST(MachineFile, SharesThePciExpressOfACardBetweenBothDirections)
{
  const Cluster cluster = cluster_of(mixed);
  EXPECT_THAT(cluster.network->links(0, 2), ElementsAre("pcie.n0g0", "pcie.n0g2"));
  EXPECT_THAT(cluster.network->links(2, 0), ElementsAre("pcie.n0g2", "pcie.n0g0"));
  EXPECT_NEAR(cluster.path(0, 1).latency.value, 4e-6, 1e-12);
}

TEST(MachineFile, TakesMeasuredBandwidthsAsTheyAre)
{
  const Cluster cluster = cluster_of(
      "nodes: 2\ngpus_per_node: 4\ndevice: L4\ninside: {topology: pcie, measured_send_recv: 9.4 GB/s}\n"
      "outside: {nics_per_node: 1, measured_send_recv: 2.4 GB/s, bandwidth_per_nic: 12.5 GB/s, latency: 20 us}\n");
  EXPECT_EQ(cluster.path(0, 1).bandwidth, BytesPerSecond(9.4e9));
  EXPECT_EQ(cluster.path(0, 4).bandwidth, BytesPerSecond(2.4e9));
  EXPECT_NEAR(cluster.path(0, 4).latency.value, 20e-6, 1e-12);
}

TEST(MachineFile, GivesRingsOfA10GMoreThanOneOfTheirTransfersAttains)
{
  const Cluster cluster =
      cluster_of("nodes: 1\ngpus_per_node: 2\ndevice: A10G\ninside: {measured_send_recv: 1.4 GB/s}\n");
  EXPECT_NEAR(cluster.path(0, 1).bandwidth.value, 1.323 * 1.4e9, 1);
}

TEST(MachineFile, LeavesBandwidthsAsTheyAreThatAreBelowWhatTheirLinksAttain)
{
  // 22.9 of 200 Gbit/s and 125 of the 150 GB/s between two of four GH200 are measured values.
  const Cluster cluster = cluster_of(
      "nodes: 2\ngpus_per_node: 4\ndevice: GH200-96GB\ninside: {topology: mesh, bandwidth_per_pair: 125 GB/s}\n"
      "outside: {nics_per_node: 4, bandwidth_per_nic: 22.4 GB/s}\n");
  EXPECT_NEAR(cluster.path(0, 1).bandwidth.value, 125e9, 0.1e9);
  EXPECT_EQ(cluster.path(0, 4).bandwidth, BytesPerSecond(22.4e9));
}

TEST(MachineFile, NeedsNoLinksWhereThereIsNothingToJoin)
{
  const Cluster cluster = cluster_of("nodes: 1\ngpus_per_node: 1\ndevice: L4\n");
  EXPECT_EQ(cluster.devices.size(), 1u);
  EXPECT_EQ(read("nodes: 1\ngpus_per_node: 2\ndevice: L4\ninside: {bandwidth_per_gpu: 32 GB/s}\n").groups[0].outside,
            std::nullopt);
}

TEST(MachineFile, FollowsOverridesOfItsCounts)
{
  auto machine = read(dgx, {{"nodes", "4"}, {"gpus_per_node", "2"}});
  EXPECT_EQ(machine.groups[0].count, 4u);
  EXPECT_EQ(machine.groups[0].gpus_per_node, 2u);
  EXPECT_THAT(machine.command,
              AllOf(HasSubstr("isobar platform generate machine "), HasSubstr(" --set nodes=4 --set gpus_per_node=2")));
  machine = read(mixed, {{"count_T4-16GB", "0"}, {"count_V100-SXM2-16GB", "3"}});
  ASSERT_EQ(machine.groups.size(), 1u);
  EXPECT_EQ(machine.groups[0].device, "V100-SXM2-16GB");
  EXPECT_EQ(machine.groups[0].count, 3u);
}

TEST(MachineFile, RefusesOverridesThatNameNothing)
{
  const std::string place = "InputError row 3: platform_overrides: ";
  EXPECT_EQ(faults_of(mixed, {{"nodes", "2"}}),
            place + "nodes: the machine has 2 groups of nodes; write count_DEVICE for one of them");
  EXPECT_EQ(faults_of(mixed, {{"count_A10G", "2"}}),
            place + "count_A10G: the machine has no nodes of \"A10G\"; write count_T4-16GB or count_V100-SXM2-16GB");
  EXPECT_EQ(faults_of(dgx, {{"nodes", "0"}}), place + "nodes: \"0\" is not a whole number from 1 to 65536");
  EXPECT_EQ(faults_of(dgx, {{"nodes", "2"}, {"nodes", "3"}}), place + "nodes: is given twice; give it once");
  EXPECT_EQ(faults_of(dgx, {{"gpus", "2"}}),
            place + "gpus: unknown; write nodes, gpus_per_node or count_A100-SXM4-80GB");
  EXPECT_EQ(faults_of(dgx, {{"count_A100-SXM4-80GB", "0"}}), place + "no nodes are left; write a count above 0");
  EXPECT_EQ(faults_of("node_groups:\n- {device: T4, count: 1, gpus_per_node: 1, nic_bandwidth: 1 GB/s}\n"
                      "- {device: T4, count: 1, gpus_per_node: 1, nic_bandwidth: 2 GB/s}\n",
                      {{"count_T4", "2"}}),
            place + "count_T4: several groups of nodes have \"T4\"; write the counts in the file");
}

TEST(MachineFile, NamesEveryFaultWithItsLine)
{
  EXPECT_EQ(faults_of("nodes: 0\ngpus_per_node: 8\ndevice: H100\ninside: {topology: ring}\n"
                      "outside: {bandwidth_per_nic: 100}\nunknown: {a: b}\nnics: 3\n"),
            "InputError m.yaml:1: nodes: \"0\" is out of range; write a whole number from 1 to 65536\n"
            "m.yaml:3: device: \"H100\" is not a device type; did you mean H100-SXM-80GB or H100-96GB-HBM2e? (for "
            "another one, write a similar "
            "type, and its props device, memory and speed.* in a file for --devices)\n"
            "m.yaml:4: inside.topology: \"ring\" is not one of switch, mesh, pcie\n"
            "m.yaml:4: inside.bandwidth_per_gpu: missing; write it, bandwidth_per_pair or measured_send_recv, such as "
            "\"300 GB/s\"\n"
            "m.yaml:5: outside.bandwidth_per_nic: \"100\" is not a bandwidth; write a number and a unit, such as "
            "\"10 Gbit/s\"\n"
            "m.yaml:6: unknown: is not a list of words; write one, such as [latencies, clocks]\n"
            "m.yaml:7: nics: unknown key; the keys here are device, gpus_per_node, inside, name, nodes, note, outside, "
            "source, unknown");
}

TEST(MachineFile, DoesNotCallLinksMissingWhoseBandwidthIsWrong)
{
  for (const std::string key : {"bandwidth_per_gpu", "bandwidth_per_pair", "measured_send_recv"}) {
    EXPECT_EQ(faults_of("nodes: 1\ngpus_per_node: 8\ndevice: L4\ninside: {" + key + ": 300}\n"),
              "InputError m.yaml:4: inside." + key +
                  ": \"300\" is not a bandwidth; write a number and a unit, such as \"10 Gbit/s\"");
  }
}

TEST(MachineFile, NamesLinksThatAreMissing)
{
  EXPECT_EQ(
      faults_of("nodes: 2\ngpus_per_node: 4\ndevice: L4\n"),
      "InputError m.yaml:1: inside: missing; write how the 4 GPUs of a node are joined, such as {topology: switch, "
      "bandwidth_per_gpu: 300 GB/s}\n"
      "m.yaml:1: outside: missing; write the NICs of a node, such as {nics_per_node: 8, bandwidth_per_nic: 25 "
      "GB/s}");
  EXPECT_EQ(faults_of("nodes: 1\ngpus_per_node: 1\ndevice: L4\n", {{"nodes", "2"}}),
            "InputError m.yaml:1: outside: missing; write the NICs of a node, such as {nics_per_node: 8, "
            "bandwidth_per_nic: 25 GB/s}");
  EXPECT_EQ(faults_of("nodes: 2\ngpus_per_node: 1\ndevice: L4\noutside: {bandwidth_per_nic: 0 GB/s}\n"),
            "InputError m.yaml:4: outside.bandwidth_per_nic: \"0 GB/s\" is 0; write more");
}

TEST(MachineFile, RefusesGroupsThatAreIncomplete)
{
  EXPECT_EQ(faults_of("nodes: 3\nnode_groups: []\n"),
            "InputError m.yaml:1: nodes: has no effect beside node_groups; leave it out\n"
            "m.yaml:2: node_groups: is empty; write at least one group");
  EXPECT_EQ(faults_of("node_groups:\n- {device: T4}\n- 3\n"),
            "InputError m.yaml:2: node_groups[0].count: missing; write a whole number from 1 to 65536\n"
            "m.yaml:2: node_groups[0].gpus_per_node: missing; write a whole number from 1 to 256\n"
            "m.yaml:3: node_groups[1]: is a single value; write \"key: value\" pairs");
}

TEST(MachineFile, RefusesMoreDevicesThanAPlatformHas)
{
  EXPECT_EQ(faults_of(dgx, {{"nodes", "8193"}}),
            "InputError m.yaml: 8193 nodes of 8 GPUs are too many; a platform has at most 65536 devices");
}

TEST(MachineFile, NamesItsSourcesAndItsCommandInThePlatform)
{
  const auto xml = machine_to_xml(read(dgx, {{"nodes", "1"}}));
  EXPECT_THAT(xml,
              HasSubstr("A100-SXM4-80GB inside a node: 218.4GB/s of 300GB/s; as the NVSwitch of A100-SXM4 attains: "));
  EXPECT_THAT(xml, HasSubstr("not known: latencies, NCCL version."));
  EXPECT_THAT(xml, HasSubstr("NVIDIA A100 data sheet, 2021; 81051 MiB: ultralytics/ultralytics#22877."));
  EXPECT_THAT(xml, HasSubstr("m.yaml --set nodes=1\"/>"));
}

TEST(MachineFile, KeepsTheNameThatDataSetsGiveADeviceType)
{
  for (const auto* name : {"H100-SXM5-80GB", "B200-SXM", "T4-16GB", "GH200-96GB", "H200-SXM-141GB", "RTX-2080", "A40",
                           "A10G", "Titan-RTX", "RTX-3090", "V100-SXM2-32GB", "A100-PCIE-80GB"}) {
    const auto xml = machine_to_xml(read("nodes: 1\ngpus_per_node: 1\ndevice: " + std::string(name) + "\n"));
    EXPECT_THAT(xml, HasSubstr("<prop id=\"device\" value=\"" + std::string(name) + "\"/>"));
  }
}

TEST(MachineFile, LooksUpRoutesOfSixThousandDevices)
{
  const Cluster cluster = cluster_of(dgx, {{"nodes", "768"}});
  ASSERT_EQ(cluster.devices.size(), 6144u);
  EXPECT_THAT(cluster.network->links(0, 6143), ElementsAre("nic.n0.0_UP", "nic.n767.7_DOWN"));
  EXPECT_THAT(cluster.network->links(6143, 6142), ElementsAre("nvlink.n767g7_UP", "nvlink.n767g6_DOWN"));
}

TEST(Fabrics, NeverAttainMoreThanIsGivenOrThanTheirLinksAreBuiltFor)
{
  const Fabric& fabric = inside_fabric("A100-SXM4-40GB", Topology::Switch);
  const BytesPerSecond nominal(300e9);
  EXPECT_EQ(attained(fabric, nominal, nominal), fabric.attained_fraction * nominal);
  EXPECT_EQ(attained(fabric, BytesPerSecond(200e9), nominal), BytesPerSecond(200e9));
  EXPECT_EQ(attained(fabric, BytesPerSecond(600e9), nominal), fabric.attained_fraction * BytesPerSecond(600e9));
  EXPECT_EQ(line_rate(BytesPerSecond(22.9e9)), BytesPerSecond(25e9));
  EXPECT_EQ(line_rate(BytesPerSecond(0.125e9)), BytesPerSecond(0.125e9));
  EXPECT_EQ(line_rate(BytesPerSecond(900e9)), BytesPerSecond(900e9));
}

compute::Calibration calibration_of(const std::string& device, const compute::LinkFactors& links)
{
  return {"c.yaml", *find_framework("megatron-lm-2021"), device, links, {}};
}

TEST(MachineFile, GetsTheFactorsOfACalibrationOnTheLinksOfItsDevice)
{
  MachineFile machine = read(dgx);
  calibrate(machine, calibration_of("A100-SXM4-80GB", {0.5, 1.1}));
  const std::string xml = machine_to_xml(machine);
  EXPECT_THAT(xml, AllOf(HasSubstr("--system c.yaml"), HasSubstr("times 0.5 by the calibration")));
  const Cluster cluster = Platform::from_text(xml, "m").cluster();
  EXPECT_NEAR(cluster.path(0, 1).bandwidth.value, 0.5 * 0.728 * 300e9, 1);
  EXPECT_NEAR(cluster.path(1, 8).bandwidth.value, 1.1 * 0.9 * 25e9, 1);
}

TEST(MachineFile, KeepsTheLinksOfOtherDevicesThanThoseOfACalibration)
{
  MachineFile machine = read(mixed);
  calibrate(machine, calibration_of("V100-SXM2-16GB", {0.5, 0.5}));
  EXPECT_EQ(machine.groups[0].links, compute::LinkFactors{});
  EXPECT_EQ(machine.groups[1].links, (compute::LinkFactors{0.5, 0.5}));
  EXPECT_EQ(message_of([&] { calibrate(machine, calibration_of("L4", {})); }),
            "InputError --system: c.yaml calibrates nodes of \"L4\"; the machine has \"T4-16GB\", \"V100-SXM2-16GB\"");
}

}  // namespace
}  // namespace isobar::sim::machine_file_test
