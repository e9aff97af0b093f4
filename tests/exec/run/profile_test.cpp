#include "exec/run/profile.hpp"

#include "exec/device/operator_times.hpp"
#include "exec/files/scratch_file.hpp"
#include "exec/launch/device_name.hpp"
#include "exec/launch/link_probe.hpp"
#include "exec/run/machine_profile.hpp"
#include "tests/support/small_models.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace isobar::exec::profile_test {
namespace {

TEST(MeasureProfile, TimesEachKindOfLayerOnceAndNamesEveryLayer)
{
  const Workload workload = testing_support::small_model(testing_support::shipped_workload("bert24"));
  ProfileOptions options;
  options.repetitions = 5;
  const DeviceProfile profile = measure_profile(workload, options);
  ASSERT_EQ(profile.layers.size(), workload.layers.size());
  Seconds total;
  for (std::size_t i = 0; i < profile.layers.size(); ++i) {
    const LayerProfile& layer = profile.layers[i];
    EXPECT_EQ(layer.name, workload.layers[i].name);
    EXPECT_GT(layer.forward.value, 0);
    EXPECT_GT(layer.backward.value, 0);
    EXPECT_GT(layer.update.value, 0);
    EXPECT_GT(layer.activations.value, 0);
    const Bytes parameters(4 * static_cast<double>(workload.layers[i].parameters));
    EXPECT_GE(layer.peak.value(), layer.activations + parameters);
    EXPECT_GE(layer.spread_fraction, 0);
    total += layer.forward + layer.backward;
  }
  // The second encoder's units have the kinds of the first one's.
  EXPECT_EQ(profile.layers[4].forward, profile.layers[1].forward);
  EXPECT_EQ(profile.layers[5].backward, profile.layers[2].backward);
  Flops work;
  for (const auto& layer : workload.layers) work += layer.forward + layer.backward;
  EXPECT_NEAR((profile.speed * total).value, work.value, 1e-6 * work.value);
  EXPECT_NE(profile.device.find(", 1 thread"), std::string::npos);
}

TEST(FirstOfKind, IsTheFirstLayerThatIsEqualButForDigitsInItsName)
{
  const Workload workload = testing_support::small_model(testing_support::shipped_workload("bert24"));
  const std::vector<std::size_t> first = first_of_kind(workload);
  EXPECT_EQ((std::vector<std::size_t>(first.begin(), first.begin() + 7)),
            (std::vector<std::size_t>{0, 1, 2, 3, 1, 2, 3}));
}

TEST(MeasureOperators, NamesTheDeviceAsAProfileOfLayersDoes)
{
  Workload workload = testing_support::small_model(testing_support::shipped_workload("gpt2_124m"));
  ProfileOptions options;
  options.repetitions = 1;
  std::size_t parts = 0;
  options.on_pass = [&] { ++parts; };
  const auto table = measure_operators(workload, options);
  EXPECT_EQ(table.device, processor_name(1));
  EXPECT_EQ(table.memory, machine_memory().total);
  EXPECT_EQ(parts, operator_parts(workload));
}

TEST(MeasureMachine, MeasuresCopiesUpdatesMemoryAndTheDisk)
{
  const Workload workload = testing_support::small_model(testing_support::shipped_workload("gpt2_124m"));
  const testing_support::TemporaryFolder folder;
  ScratchFile scratch(folder.path(), std::uint64_t{16} << 20);
  ProfileOptions options;
  std::size_t parts = 0;
  options.on_pass = [&] { ++parts; };
  const MachineProfile machine = measure_machine(workload, options, &scratch);
  EXPECT_EQ(parts, machine_parts);
  EXPECT_EQ(machine.processor, processor_name(1));
  EXPECT_EQ(machine.memory, machine_memory().total);
  EXPECT_GT(machine.memory, Bytes(1e8));
  for (const CopyProfile& copy : {machine.in, machine.out}) {
    EXPECT_GT(copy.latency, Seconds(0));
    EXPECT_LT(copy.latency, Seconds(0.01));
    EXPECT_GT(copy.bandwidth, BytesPerSecond(1e7));
    EXPECT_LT(copy.bandwidth, BytesPerSecond(1e13));
  }
  for (const FlopsPerSecond speed : {machine.update_speed, machine.busy_update_speed}) {
    EXPECT_GT(speed, FlopsPerSecond(1e4));
    EXPECT_LT(speed, FlopsPerSecond(1e12));
  }
  const DiskProfile disk = machine.disk.value();
  EXPECT_EQ(disk.is_direct, scratch.is_direct());
  EXPECT_GE(disk.capacity, Bytes(static_cast<double>(scratch.size())));
  for (const BytesPerSecond rate : {disk.read, disk.write}) {
    EXPECT_GT(rate, BytesPerSecond(1e4));
    EXPECT_LT(rate, BytesPerSecond(1e13));
  }
  EXPECT_FALSE(measure_machine(workload, options, nullptr).disk);
}

TEST(MeasureMachine, CountsUpdatesAsTheProfileOfALayerOnThatProcessorDoes)
{
  // One block has almost all parameters, so that its update is the machine's on a CPU.
  GptSizes sizes;
  sizes.layers = 1;
  sizes.hidden = 256;
  sizes.heads = 2;
  sizes.vocabulary = 20;
  sizes.positions = 16;
  Workload workload;
  workload.sequence = 16;
  build_gpt(sizes, workload);
  workload.model = sizes;
  ProfileOptions options;
  const LayerProfile block = measure_profile(workload, options).layers[1];
  const MachineProfile machine = measure_machine(workload, options, nullptr);
  const Flops work(static_cast<double>(workload.layers[1].parameters) * update_flops_per_parameter(workload.optimizer));
  constexpr double busy_machine = 8;  // other processes lengthen the machine's time, but not the layer's
  EXPECT_LT(block.update / (work / machine.update_speed), 4);
  EXPECT_LT(work / machine.update_speed / block.update, busy_machine);
}

TEST(ProbeLoopback, MeasuresALatencyAndABandwidth)
{
  for (const std::size_t flows : {1U, 4U}) {
    const LinkMeasurement link = probe_loopback(flows);
    EXPECT_GT(link.latency.value, 0);
    EXPECT_TRUE(std::isfinite(link.latency.value));
    EXPECT_GT(link.bandwidth.value, 0);
    EXPECT_TRUE(std::isfinite(link.bandwidth.value));
  }
}

}  // namespace
}  // namespace isobar::exec::profile_test
