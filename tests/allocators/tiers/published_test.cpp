#include "allocators/tiers/published.hpp"

#include "allocators/registry.hpp"
#include "core/base/files.hpp"
#include "core/model/layer_graph.hpp"
#include "core/text/csv_table.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/support/machines.hpp"
#include "tests/support/thrown_message.hpp"
#include "tests/support/unit_devices.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace isobar::allocators::published_test {
namespace {

constexpr double mebibyte = 0x1p20;

std::filesystem::path source_file(const std::string& name)
{
  return std::filesystem::path(ISOBAR_SOURCE_DIR) / name;
}

/// The model of the published runs with so many blocks, of which each recomputes its activations.
Workload stronghold_model(const std::string& layers)
{
  const auto file = source_file("workloads/stronghold.yaml");
  const WorkloadSettings settings = {{"layers", layers}};
  const Workload workload = workload_from_text(read_file(file), file.string(), settings);
  std::vector<std::size_t> blocks;
  for (std::size_t i = 1; i + 1 < workload.layers.size(); ++i) blocks.push_back(i);
  return with_recomputation(workload, blocks);
}

/// A device and a machine that hold everything.
Cluster roomy_cluster()
{
  return testing_support::cluster_with_machine({.device_memory = 1e15, .host_memory = 1e15, .in = 12e9, .out = 12e9});
}

Plan plan_of_run(const std::string& system, const Workload& workload, const std::string& window)
{
  const std::map<std::string, std::string> allocator_of = {{"megatron-lm", "resident"},
                                                           {"stronghold", "stronghold-published"}};
  const auto renamed = allocator_of.find(system);
  SearchLimits limits;
  if (!window.empty()) limits.window = std::stoull(window);
  Goal goal;
  goal.schedule = choice_of(ChainSchedule::GPipe);
  goal.microbatches = 1;
  return allocate(renamed == allocator_of.end() ? system : renamed->second, workload, roomy_cluster(), goal, limits);
}

TEST(PublishedSystems, HoldOnTheDeviceWhatTheirRunsDid)
{
  const auto file = source_file("platforms/data/stronghold/calibration.csv");
  FaultList faults(file.string());
  const std::vector<std::string> columns = {"system", "layers", "window", "device_allocated_mib"};
  const std::vector<std::string> others = {"iteration_ms",     "first10_ms",          "samples_per_s",
                                           "forward_ms",       "backward_ms",         "optimizer_ms",
                                           "device_peak_mib",  "device_reserved_mib", "wait_load_fp_ms",
                                           "wait_store_fp_ms", "wait_load_bp_ms",     "wait_store_update_bp_ms",
                                           "setup_s",          "loss_at_50"};
  const CsvTable runs = CsvTable::by_hand(read_file(file), columns, others, faults);
  ASSERT_TRUE(faults.empty());
  int compared = 0;
  for (const auto& run : runs.rows()) {
    const std::string& system = run.cells[0];
    SCOPED_TRACE(system + " " + run.cells[1] + " " + run.cells[2]);
    const Workload workload = stronghold_model(run.cells[1]);
    const Plan plan = plan_of_run(system, workload, run.cells[2]);
    ASSERT_FALSE(plan.stages.empty()) << plan.reason;
    const auto program = testing_support::unit_program(plan, workload);
    // Where nothing passes, what crosses the ends and recomputed activations count throughout, not just in a step.
    const Boundaries cuts = boundaries_of(workload);
    const Bytes buffers = system == "megatron-lm" ? workload.workspace + cuts.output.front() : Bytes(0);
    const double held = (program->resident(0, Tier::Device) - buffers).value / mebibyte;
    const double measured = std::stod(run.cells[3]);
    // Our places are of whole layers: an embedding has its positions too, which DeepSpeed's largest tensor has not.
    const double tolerance = system == "zero-infinity" ? 0.015 : 0.001;
    EXPECT_NEAR(held, measured, tolerance * measured);
    ++compared;
  }
  EXPECT_EQ(compared, 9);
}

TEST(PublishedSystems, HoldOnTheHostWhatTheMachineUpdates)
{
  const Workload workload = stronghold_model("32");
  double parameters = 0;
  for (const auto& layer : workload.layers) parameters += static_cast<double>(layer.parameters);
  const auto host_of = [&](const std::string& system) {
    return plan_of_run(system, workload, "").predicted->peak_memory.at("node0").value;
  };
  EXPECT_DOUBLE_EQ(host_of("l2l"), 16 * parameters);
  EXPECT_DOUBLE_EQ(host_of("zero-offload"), 16 * parameters);
  EXPECT_DOUBLE_EQ(host_of("zero-infinity"), 16 * parameters);
}

/// A step of one micro-batch of a model on a device with much memory, in a machine with `host` bytes and a disk.
Plan plan_with_disk(const std::string& allocator, const Workload& workload, double host, double disk)
{
  Goal goal;
  goal.schedule = choice_of(ChainSchedule::GPipe);
  goal.microbatches = 1;
  const Cluster cluster = testing_support::cluster_with_machine(
      {.device_memory = 1e15,
       .host_memory = host,
       .in = 12e9,
       .out = 12e9,
       .disk = Disk{"nvme0", Bytes(disk), BytesPerSecond(2.5e9), BytesPerSecond(1.25e9)}});
  return allocate(allocator, workload, cluster, goal, {});
}

TEST(PublishedSystems, HoldAllOptimizerStatesOnTheDiskWhereTheHostHoldsTooLittle)
{
  const Workload workload = stronghold_model("32");
  double parameters = 0;
  double most = 0;  // of a layer
  for (const auto& layer : workload.layers) {
    parameters += static_cast<double>(layer.parameters);
    most = std::max(most, static_cast<double>(layer.parameters));
  }
  const Plan on_host = plan_with_disk("zero-infinity", workload, 16 * parameters, 1e12);
  EXPECT_DOUBLE_EQ(on_host.predicted.value().peak_memory.at("node0").value, 16 * parameters);
  EXPECT_FALSE(on_host.predicted->peak_memory.contains("node0/nvme0"));
  const Plan on_disk = plan_with_disk("zero-infinity", workload, 15.9 * parameters, 1e12);
  ASSERT_TRUE(on_disk.predicted) << on_disk.reason;
  EXPECT_DOUBLE_EQ(on_disk.predicted->peak_memory.at("node0/nvme0").value, 8 * parameters);
  // Three states are between the disk and their updates.
  EXPECT_DOUBLE_EQ(on_disk.predicted->peak_memory.at("node0").value, 8 * parameters + 3 * 8 * most);
  EXPECT_GT(*on_disk.objective, *on_host.objective);
  EXPECT_EQ(plan_with_disk("zero-infinity", workload, 15.9 * parameters, 8e9).reason,
            "disk node0/nvme0: its stages need 12.8 GiB under schedule gpipe and it has 7.45 GiB; 5.34 GiB more memory "
            "there would be enough");
}

TEST(PublishedSystems, NameAllocatorsThatUseTheDiskWhereTheHostHoldsTooLittle)
{
  const Workload workload = stronghold_model("32");
  for (const char* allocator : {"l2l", "zero-offload"}) {
    EXPECT_EQ(plan_with_disk(allocator, workload, 20e9, 1e12).reason,
              "host node0: its stages need 25.6 GiB under schedule gpipe and it has 18.6 GiB; 6.95 GiB more memory "
              "there would be enough; allocators window and zero-infinity can have optimizer states on its disk");
  }
}

TEST(PublishedSystems, RefuseAWindowThatLeavesNothingToPass)
{
  const Workload workload = stronghold_model("4");
  EXPECT_EQ(message_of([&] { plan_of_run("stronghold", workload, "4"); }),
            "InputError --window: 4 of 4 blocks; some stay on the device and some pass, so it is 1 to 3");
}

TEST(PublishedSystems, SayWhenNoDeviceHasAMachine)
{
  Cluster cluster = roomy_cluster();
  cluster.machines.clear();
  cluster.devices.front().machine.reset();
  Goal goal;
  goal.microbatches = 1;
  const Plan plan = allocate("zero-offload", stronghold_model("2"), cluster, goal, {});
  EXPECT_EQ(plan.outcome, Outcome::Infeasible);
  EXPECT_EQ(plan.reason, "no device of platform machines has a machine; give devices the prop host");
}

}  // namespace
}  // namespace isobar::allocators::published_test
