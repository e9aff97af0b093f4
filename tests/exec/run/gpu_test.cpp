#include "core/base/child_process.hpp"
#include "core/errors.hpp"
#include "exec/device/device.hpp"
#include "exec/net/secret.hpp"
#include "exec/run/machine_profile.hpp"
#include "exec/run/profile.hpp"
#include "exec/run/run.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/exec/model/plain_loop.hpp"
#include "tests/exec/run/even_split.hpp"
#include "tests/exec/run/machine_plans.hpp"
#include "tests/support/small_models.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <vector>

/// Tests that need a GPU, with label `gpu`. Without one every test is skipped with the reason.
namespace isobar::exec::gpu_test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class Gpu : public testing::Test {
 protected:
  static constexpr std::uint64_t microbatches = 4;

  /// Looks for the GPU in a child process, since a process that has used one cannot fork ranks that use it.
  void SetUp() override
  {
    constexpr Seconds limit(120);
    const auto found = run_in_child(
        [] {
          open_device("cuda:0");
          return std::string();
        },
        limit);
    if (found.failure) GTEST_SKIP() << found.failure->text;
  }

  static Workload model(const std::string& name, DType dtype = DType::Float32)
  {
    return testing_support::small_model(testing_support::shipped_workload(name), dtype);
  }

  static Plan split(const Workload& workload, std::size_t stages, ChainSchedule schedule)
  {
    return even_split(workload, stages, schedule, microbatches);
  }

  static RunOptions options_on(const std::string& device, std::uint64_t steps = 10)
  {
    RunOptions options;
    options.steps = steps;
    options.device = device;
    options.limits = time_limits(Seconds(0), Seconds(60));
    return options;
  }

  static MeasuredRun run(const Workload& workload, const Plan& plan, const RunOptions& options)
  {
    open_device("cuda:0");  // for a run on the CPU too: torch looks for its GPU library once
    // The run keeps a reference to its program.
    static std::vector<std::unique_ptr<Program>> programs;
    programs.push_back(testing_support::unit_program(plan, workload));
    return run_in_process(workload, plan, *programs.back(), options, [](const StepReport&) {});
  }

  /// Runs each rank as a process, over NCCL; returns their results. NCCL refuses two ranks on one GPU unless they claim
  /// to be on two machines.
  static std::vector<ChildResult> run_over_nccl(const Workload& workload, const Plan& plan, RunOptions options,
                                                const StepEnded& step_ended)
  {
    options.transport = TransportChoice::Nccl;
    const auto program = testing_support::unit_program(plan, workload);
    std::vector<Endpoint> endpoints;
    std::vector<TcpListener> listeners;
    for (std::size_t rank = 0; rank < program->ranks(); ++rank) {
      listeners.emplace_back(Endpoint{"127.0.0.1", 0});
      endpoints.push_back({"127.0.0.1", listeners.back().port()});
    }
    const auto secret = random_secret();
    std::vector<std::function<std::string()>> work;
    for (std::size_t rank = 0; rank < program->ranks(); ++rank) {
      work.emplace_back([&, rank] {
        setenv("NCCL_HOSTID", std::to_string(rank).c_str(), 1);
        setenv("NCCL_SOCKET_IFNAME", "lo", 1);
        RankPlace place{rank, endpoints, secret, std::move(listeners[rank])};
        listeners.clear();  // closes this process's copies
        const auto measured = run_rank(workload, plan, *program, std::move(place), options, step_ended).measured;
        std::string text;
        if (!measured) return text;
        for (const double loss : measured->losses()) text += fmt::format("{} ", loss);
        return text;
      });
    }
    constexpr Seconds limit(120);
    return run_in_children(work, work.size(), limit);
  }

  static std::vector<double> losses(const Workload& workload, const Plan& plan, const RunOptions& options)
  {
    return run(workload, plan, options).losses();
  }

  static void expect_close(const std::vector<double>& found, const std::vector<double>& expected, double relative)
  {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i], expected[i], relative * std::abs(expected[i])) << "step " << i;
    }
  }
};

TEST_F(Gpu, HasTheCpusLossesOnAnyNumberOfStages)
{
  for (const char* name : {"bert24", "gpt2_124m", "llama_8b"}) {
    const Workload workload = model(name);
    const auto expected = losses(workload, split(workload, 1, ChainSchedule::Sequential), options_on("cpu"));
    for (const std::size_t stages : {1U, 2U, 4U}) {
      for (const auto schedule :
           {ChainSchedule::Sequential, ChainSchedule::GPipe, ChainSchedule::OneForwardOneBackward}) {
        if (stages > workload.layers.size()) continue;
        SCOPED_TRACE(fmt::format("{} on {} stages", name, stages));
        expect_close(losses(workload, split(workload, stages, schedule), options_on("cuda:0")), expected, 1e-3);
      }
    }
  }
}

TEST_F(Gpu, MeasuresOperatorsOfEachDtype)
{
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    ProfileOptions options;
    options.device = "cuda:0";
    options.repetitions = 3;
    const auto table = measure_operators(model("gpt2_124m", dtype), options);
    EXPECT_EQ(table.dtype, dtype);
    EXPECT_EQ(table.device, facts_of_gpu("cuda:0").name);
    FlopsPerSecond fastest;
    for (const auto& [product, time] : table.products) fastest = std::max(fastest, product.work() / time);
    EXPECT_GT(fastest, FlopsPerSecond(1e11));
    EXPECT_LT(fastest, FlopsPerSecond(1e16));
    for (const auto& [which, bandwidth] : table.memory_bound) {
      EXPECT_GT(bandwidth.forward, BytesPerSecond(1e9)) << name_of(which);
      EXPECT_LT(bandwidth.forward, BytesPerSecond(1e14)) << name_of(which);
    }
    EXPECT_FALSE(table.attention.empty());
    EXPECT_GT(table.launch.value(), Seconds(0));
    EXPECT_LT(table.launch.value(), Seconds(1e-3));
  }
}

TEST_F(Gpu, HasTheLossesOfWholeBackwardPassesWhenItSplitsThem)
{
  for (const char* name : {"bert24", "gpt2_124m"}) {
    for (const DType dtype : {DType::Float32, DType::BFloat16}) {
      Workload workload = model(name, dtype);
      workload.training.dropout = 0.1;
      const auto expected =
          losses(workload, split(workload, 2, ChainSchedule::OneForwardOneBackward), options_on("cuda:0"));
      const Plan halved = even_split(workload, 2, {"zero-bubble-h1"}, microbatches);
      const Plan v = even_split_over(workload, 4, {"zero-bubble-v"}, microbatches,
                                     [](std::size_t stage) { return stage < 2 ? stage : 3 - stage; });
      for (const Plan& plan : {halved, v}) expect_close(losses(workload, plan, options_on("cuda:0")), expected, 1e-2);
    }
  }
}

TEST_F(Gpu, HasTheSameLossesInBfloat16OnEverySplit)
{
  for (const char* name : {"bert24", "gpt2_124m"}) {
    Workload workload = model(name, DType::BFloat16);
    workload.training.dropout = 0.1;
    const auto one = losses(workload, split(workload, 1, ChainSchedule::Sequential), options_on("cuda:0"));
    const auto three = losses(workload, split(workload, 3, ChainSchedule::OneForwardOneBackward), options_on("cuda:0"));
    expect_close(three, one, 1e-2);
  }
}

TEST_F(Gpu, ClipsTheNormOfAllStagesTogether)
{
  Workload workload = model("gpt2_124m");
  workload.training.clip_norm = 0.01;
  const auto expected = losses(workload, split(workload, 1, ChainSchedule::Sequential), options_on("cpu"));
  for (const std::size_t stages : {1U, 2U}) {
    const Plan plan = split(workload, stages, ChainSchedule::OneForwardOneBackward);
    expect_close(losses(workload, plan, options_on("cuda:0")), expected, 1e-3);
  }
}

TEST_F(Gpu, SendsItsTensorsThroughTheHostOverTcp)
{
  const Workload workload = model("bert24");
  std::vector<std::vector<double>> over_tcp;  // before this process computes anything itself
  for (const bool has_data_server : {false, true}) {
    Plan plan = split(workload, 2, ChainSchedule::OneForwardOneBackward);
    if (has_data_server) plan.data_server = "server";
    const auto program = testing_support::unit_program(plan, workload);
    const auto measured = run_in_processes(workload, plan, *program, options_on("cuda:0"), [](const StepReport&) {});
    over_tcp.push_back(measured.losses());
  }
  const auto expected = losses(workload, split(workload, 1, ChainSchedule::Sequential), options_on("cpu"));
  for (const auto& found : over_tcp) expect_close(found, expected, 1e-3);
}

TEST_F(Gpu, SendsItsTensorsByNcclBetweenTwoRanks)
{
  const Workload workload = model("bert24");
  std::vector<std::vector<double>> by_nccl;  // before this process computes anything itself
  for (const bool has_data_server : {false, true}) {
    Plan plan = split(workload, 2, ChainSchedule::OneForwardOneBackward);
    if (has_data_server) plan.data_server = "server";
    const auto ranks = run_over_nccl(workload, plan, options_on("cuda:0"), [](const StepReport&) {});
    for (const auto& rank : ranks) EXPECT_FALSE(rank.failure) << rank.failure->text;
    std::istringstream numbers(ranks.front().output);
    by_nccl.emplace_back();
    for (std::string number; numbers >> number;) by_nccl.back().push_back(std::stod(number));
  }
  const auto expected =
      losses(workload, split(workload, 2, ChainSchedule::OneForwardOneBackward), options_on("cuda:0"));
  // The data server draws its inputs on the CPU.
  const auto on_cpu = losses(workload, split(workload, 1, ChainSchedule::Sequential), options_on("cpu"));
  expect_close(by_nccl[0], expected, 1e-6);
  expect_close(by_nccl[1], on_cpu, 1e-3);
}

TEST_F(Gpu, EndsByTheDeadlineWhenTheOtherRankOfNcclDies)
{
  const Workload workload = model("bert24");
  RunOptions options = options_on("cuda:0", 1'000'000);
  options.limits = time_limits(Seconds(0), Seconds(10));
  const auto begin = std::chrono::steady_clock::now();
  const auto ranks = run_over_nccl(workload, split(workload, 2, ChainSchedule::OneForwardOneBackward), options,
                                   [](const StepReport& step) {
                                     if (step.step == 5) std::_Exit(1);  // the rank with the loss
                                   });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(90));
  ASSERT_TRUE(ranks[0].failure && ranks[1].failure);
  EXPECT_EQ(ranks[0].failure->code, ExitCode::EnvironmentError);
  EXPECT_THAT(ranks[0].failure->text, HasSubstr("rank 1"));
  EXPECT_EQ(ranks[1].failure->kind, Failure::Kind::Died);
}

// LibTorch itself takes nearly all of a large model's step.
TEST_F(Gpu, TrainsALargeModelAsFastAsAPlainLoop)
{
  open_device("cuda:0");
  Workload workload = read_workload(testing_support::shipped_workload("gpt2_1.5b"));
  workload.dtype = DType::BFloat16;
  constexpr std::uint64_t steps = 6;
  const auto median_of = [](std::vector<double> times) {
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  };
  std::vector<double> plain;
  {
    PlainLoop loop(workload, RunOptions().seed, microbatches, "cuda:0");
    for (std::uint64_t step = 0; step < steps; ++step) {
      const auto begin = std::chrono::steady_clock::now();
      loop.step();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (step > 0) plain.push_back(took.count());
    }
  }
  const auto measured = run(workload, split(workload, 1, ChainSchedule::Sequential), options_on("cuda:0", steps));
  std::vector<double> ours;
  for (const Seconds time : measured.step_times()) ours.push_back(time.value);
  ours.erase(ours.begin());
  fmt::print("step of GPT-2 1.5B in bf16, {} micro-batches: {:.4g} s; in a plain loop: {:.4g} s\n", microbatches,
             median_of(ours), median_of(plain));
  EXPECT_LT(median_of(ours), 1.03 * median_of(plain));
}

TEST_F(Gpu, TakesItsDataFromTheDataServerInOneProcess)
{
  const Workload workload = model("bert24");
  Plan plan = split(workload, 2, ChainSchedule::OneForwardOneBackward);
  plan.data_server = "server";
  const auto expected = losses(workload, split(workload, 1, ChainSchedule::Sequential), options_on("cpu"));
  expect_close(losses(workload, plan, options_on("cuda:0")), expected, 1e-3);
}

TEST_F(Gpu, TimesEveryInstructionOnTheDevice)
{
  const Workload workload = model("gpt2_124m");
  const auto measured =
      run(workload, split(workload, 2, ChainSchedule::OneForwardOneBackward), options_on("cuda:0", 5));
  for (const auto& rank : measured.ranks()) {
    EXPECT_GT(rank.peak_of(Tier::Device).value, 0);
    for (const auto& [name, times] : rank.lanes) {
      for (std::size_t i = 0; i < times.size(); ++i) {
        EXPECT_LE(times[i].begin, times[i].end);
        // Clocks of the device, resolved to a microsecond.
        if (i > 0) {
          EXPECT_GE(times[i].begin.value, times[i - 1].end.value - 1e-5);
        }
      }
    }
  }
  for (const Seconds step : measured.step_times()) EXPECT_GT(step.value, 0);
}

TEST_F(Gpu, StretchesTheComputationOfASlowDevice)
{
  const Workload workload = model("gpt2_124m");
  Plan plan = split(workload, 1, ChainSchedule::Sequential);
  const auto compute_of_a_step = [&](const RunOptions& options) {
    const auto measured = run(workload, plan, options);
    const auto& times = measured.ranks().front().lanes.at(compute_lane).times;
    Seconds sum;
    for (std::size_t i = times.size() / 2; i < times.size(); ++i) sum += times[i].end - times[i].begin;
    return sum.value;
  };
  RunOptions options = options_on("cuda:0", 20);
  const double nominal = compute_of_a_step(options);
  options.emulate = true;
  plan.stages.front().replicas.front().shards.front().slowdown = 10;
  EXPECT_GT(compute_of_a_step(options), 4 * nominal);
}

TEST_F(Gpu, RefusesMoreMemoryThanTheDeviceHas)
{
  const Workload workload = model("gpt2_124m");
  Plan plan = split(workload, 2, ChainSchedule::OneForwardOneBackward);
  plan.stages[1].replicas.front().shards.front().memory = Bytes(10'000);
  RunOptions options = options_on("cuda:0");
  options.emulate = true;
  EXPECT_THAT([&] { run(workload, plan, options); },
              ThrowsMessage<EnvironmentError>(HasSubstr("rank 1 (device-1): out of memory: ")));
}

// Every run on a GPU has this guard around its loop, so the other tests fail if a step waits for the device.
TEST_F(Gpu, ThrowsWhereTheHostWouldWaitInsideAStep)
{
  open_device("cuda:0");
  const auto tensor = at::ones({1}, at::TensorOptions(at::kCUDA));
  {
    const NoHostSync no_host_sync("cuda:0");
    EXPECT_THROW(tensor.item<float>(), c10::Error);
    EXPECT_THROW(tensor.cpu(), c10::Error);
    EXPECT_EQ(on_cpu({tensor}).front().item<float>(), 1);
    EXPECT_TRUE(on_device(at::ones({1000}), "cuda:0").is_cuda());
  }
  EXPECT_EQ(tensor.item<float>(), 1);
}

TEST_F(Gpu, ProfilesEveryLayerAndItsMachine)
{
  const Workload workload = model("gpt2_124m");
  ProfileOptions options;
  options.device = "cuda:0";
  const DeviceProfile profile = measure_profile(workload, options);
  ASSERT_EQ(profile.layers.size(), workload.layers.size());
  for (const auto& layer : profile.layers) {
    EXPECT_GT(layer.forward.value, 0);
    EXPECT_GT(layer.backward.value, 0);
    EXPECT_GT(layer.update.value, 0);
    EXPECT_GT(layer.activations.value, 0);
  }
  EXPECT_GT(profile.memory.value, 1e9);
  const MachineProfile machine = measure_machine(workload, options, nullptr);
  for (const CopyProfile& copy : {machine.in, machine.out}) {
    EXPECT_GT(copy.bandwidth.value, 1e8);
    EXPECT_GT(copy.latency.value, 0);
    EXPECT_LT(copy.latency.value, 1e-3);
  }
  EXPECT_GT(machine.update_speed.value, 1e6);
  EXPECT_GT(machine.busy_update_speed.value, 1e6);
}

TEST_F(Gpu, TrainsToTheSameBitsHoweverLayersPassToTheMachineThatUpdatesThem)
{
  const Workload workload = model("gpt2_124m");
  const ScheduleChoice gpipe = choice_of(ChainSchedule::GPipe);
  const auto by = [&](const System& system, const RunOptions& options) {
    return losses(workload, machine_plan(workload, system, 1, gpipe, microbatches), options);
  };
  const auto expected = by(zero_offload(), options_on("cuda:0"));
  ASSERT_EQ(by(zero_offload(), options_on("cuda:0")), expected) << "this GPU does not repeat its own bits";
  for (const System& system : {zero_infinity(), zero_infinity(Tier::Disk), l2l()}) {
    EXPECT_EQ(by(system, options_on("cuda:0")), expected) << system.name;
    RunOptions disturbed = options_on("cuda:0");
    disturbed.disturb_copies = 1;
    EXPECT_EQ(by(system, disturbed), expected) << system.name;
  }
  const auto resident = losses(workload, resident_plan(workload, 1, gpipe, microbatches), options_on("cuda:0"));
  expect_close(by(window(UpdateOverlap::NextForward, 0, 2), options_on("cuda:0")), resident, 1e-4);
  expect_close(expected, resident, 1e-4);
}

TEST_F(Gpu, HoldsWhatPassesInPinnedMemoryOfTheMachine)
{
  const Workload workload = model("gpt2_124m");
  const Plan plan = machine_plan(workload, window(UpdateOverlap::Step, 0, 2), 1, choice_of(ChainSchedule::GPipe), 1);
  const auto program = testing_support::unit_program(plan, workload);
  const auto measured = run(workload, plan, options_on("cuda:0", 3));
  const RankReport& rank = measured.ranks().front();
  EXPECT_EQ(rank.peak_of(Tier::Host), program->resident(0, Tier::Host));
  for (const auto& lane : rank.lanes) {
    for (const auto& time : lane.times) EXPECT_LE(time.begin, time.end) << lane.name;
  }
}

}  // namespace
}  // namespace isobar::exec::gpu_test
