#include "core/errors.hpp"
#include "core/plan/plan.hpp"
#include "exec/device/memory_meter.hpp"
#include "exec/device/stream.hpp"
#include "exec/model/batch.hpp"
#include "exec/run/run.hpp"
#include "exec/run/run_devices.hpp"
#include "exec/stage/stage_model.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/exec/model/plain_loop.hpp"
#include "tests/exec/model/small_models.hpp"
#include "tests/exec/run/even_split.hpp"
#include "tests/exec/run/run_options.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <ctime>
#include <numeric>
#include <tuple>

namespace isobar::exec::executor_test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<double> losses_of(const Workload& workload, const Plan& plan, Way way, const RunOptions& options)
{
  const auto program = testing_support::unit_program(plan, workload);
  return run_by(way, workload, plan, *program, options).losses();
}

/// The times of a rank's lane, by its name.
const std::vector<InstructionTime>& times_of(const MeasuredRun& measured, std::size_t rank, const std::string& lane)
{
  const auto& lanes = measured.ranks().at(rank).lanes;
  const auto found =
      std::find_if(lanes.begin(), lanes.end(), [&](const LaneReport& each) { return each.name == lane; });
  ensure(found != lanes.end(), "the rank has such a lane");
  return found->times;
}

std::vector<double> losses_of_a_plain_loop(const Workload& workload, std::uint64_t steps, std::uint64_t microbatches,
                                           PlainLoop::Order order = PlainLoop::Order::Ascending)
{
  at::set_num_threads(1);
  PlainLoop loop(workload, seed, microbatches);
  std::vector<double> losses;
  for (std::uint64_t step = 0; step < steps; ++step) losses.push_back(loop.step(order));
  return losses;
}

struct Split {
  std::string model;
  std::size_t stages;
  ChainSchedule schedule;
  Way way;
};

std::ostream& operator<<(std::ostream& out, const Split& split)
{
  const char* schedule = split.schedule == ChainSchedule::Sequential ? "Sequential"
                         : split.schedule == ChainSchedule::GPipe    ? "GPipe"
                                                                     : "OneForwardOneBackward";
  return out << fmt::format("{}On{}Stages{}{}", split.model, split.stages, schedule,
                            split.way == Way::InProcess ? "InProcess" : "OverTcp");
}

/// Each by one way, so that each schedule on each number of stages has both.
std::vector<Split> all_splits()
{
  std::vector<Split> splits;
  bool is_in_process = true;
  for (const char* model : {"Bert", "Gpt"}) {
    for (const std::size_t stages : {1U, 2U, 3U, 4U}) {
      for (const auto schedule :
           {ChainSchedule::Sequential, ChainSchedule::GPipe, ChainSchedule::OneForwardOneBackward}) {
        splits.push_back({model, stages, schedule, is_in_process ? Way::InProcess : Way::Tcp});
        is_in_process = !is_in_process;
      }
    }
    is_in_process = !is_in_process;
  }
  return splits;
}

class AnySplit : public testing::TestWithParam<Split> {
 protected:
  static constexpr std::uint64_t microbatches = 4;
  static constexpr std::uint64_t steps = 20;

  static Workload workload() { return GetParam().model == "Bert" ? small_bert() : small_gpt(); }
  static PlainLoop::Order order()
  {
    return GetParam().schedule == ChainSchedule::GPipe ? PlainLoop::Order::Descending : PlainLoop::Order::Ascending;
  }

  static void expect_the_plain_loops_losses(const Workload& workload, const Plan& plan)
  {
    const auto losses = losses_of(workload, plan, GetParam().way, options_for(steps));
    EXPECT_EQ(losses, losses_of_a_plain_loop(workload, steps, microbatches, order()));
  }
  static Plan plan(const Workload& workload)
  {
    return even_split(workload, GetParam().stages, GetParam().schedule, microbatches);
  }
};

TEST_P(AnySplit, HasThePlainLoopsLosses)
{
  expect_the_plain_loops_losses(workload(), plan(workload()));
}

TEST_P(AnySplit, HasThePlainLoopsLossesWithDropoutAndRecomputation)
{
  Workload dropping = workload();
  dropping.training.dropout = 0.2;
  Plan plan_ = plan(dropping);
  for (std::size_t layer = 0; layer < dropping.layers.size(); layer += 2) plan_.recompute.push_back(layer);
  expect_the_plain_loops_losses(dropping, plan_);
}

INSTANTIATE_TEST_SUITE_P(Executor, AnySplit, testing::ValuesIn(all_splits()), testing::PrintToStringParamName());

/// A schedule, and how the stages of its plan lie on devices: stage i on device i, or on several in turn, or there and
/// back.
struct Folded {
  std::string name;
  ScheduleChoice schedule;
  std::size_t devices = 1;
  std::size_t stages = 1;
  bool returns = false;

  Plan plan(const Workload& workload, std::uint64_t microbatches) const
  {
    return even_split_over(workload, stages, schedule, microbatches, [this](std::size_t stage) {
      return returns && stage >= devices ? stages - 1 - stage : stage % devices;
    });
  }
};

std::vector<Folded> all_folded()
{
  return {{"Interleaved", {"interleaved", {{"chunks", {2}}}}, 2, 4},
          {"ZeroBubbleH1", {"zero-bubble-h1"}, 3, 3},
          {"ZeroBubbleH2", {"zero-bubble-h2"}, 3, 3},
          {"ZeroBubbleV", {"zero-bubble-v"}, 2, 4, true},
          {"InterleavedGroups", {"interleaved", {{"chunks", {2}}, {"group", {3}}}}, 2, 4},
          {"DualPipeV", {"dualpipe-v"}, 2, 4, true},
          {"VHalf", {"v-half"}, 2, 4, true},
          {"VMin", {"v-min"}, 2, 4, true}};
}

using FoldedWay = std::tuple<Folded, Way>;

class AnyFolded : public testing::TestWithParam<FoldedWay> {
 protected:
  static constexpr std::uint64_t microbatches = 5;
  static constexpr std::uint64_t steps = 10;

  static void expect_the_plain_loops_losses(const Workload& workload, const Plan& plan, double tolerance = 0)
  {
    const auto losses = losses_of(workload, plan, std::get<Way>(GetParam()), options_for(steps));
    expect_close(losses, losses_of_a_plain_loop(workload, steps, microbatches), tolerance);
  }
  static Plan plan(const Workload& workload) { return std::get<Folded>(GetParam()).plan(workload, microbatches); }
};

TEST_P(AnyFolded, HasThePlainLoopsLosses)
{
  for (const Workload& workload : {small_bert(), small_gpt()}) {
    expect_the_plain_loops_losses(workload, plan(workload));
  }
}

TEST_P(AnyFolded, HasThePlainLoopsLossesWithDropoutAndRecomputation)
{
  for (Workload workload : {small_bert(), small_gpt()}) {
    workload.training.dropout = 0.2;
    Plan plan_ = plan(workload);
    for (std::size_t layer = 0; layer < workload.layers.size(); layer += 2) plan_.recompute.push_back(layer);
    expect_the_plain_loops_losses(workload, plan_);
  }
}

TEST_P(AnyFolded, ClipsTheNormOfAllStagesTogether)
{
  Workload workload = small_gpt();
  workload.training.clip_norm = 0.01;
  workload.training.learning_rate = 1;
  expect_the_plain_loops_losses(workload, plan(workload), 1e-5);
}

TEST_P(AnyFolded, TakesItsDataFromTheDataServer)
{
  const Workload workload = small_bert();
  Plan plan_ = plan(workload);
  plan_.data_server = "server";
  expect_the_plain_loops_losses(workload, plan_);
}

INSTANTIATE_TEST_SUITE_P(Executor, AnyFolded, testing::ValuesIn(by_one_way_each(all_folded())),
                         [](const testing::TestParamInfo<FoldedWay>& case_) {
                           return std::get<Folded>(case_.param).name +
                                  (std::get<Way>(case_.param) == Way::InProcess ? "InProcess" : "OverTcp");
                         });

TEST(Executor, RunsAllStagesOnOneDevice)
{
  Workload workload = small_gpt();
  workload.training.clip_norm = 0.01;  // the device takes the facts of both stages itself
  const Folded folded{"", {"interleaved", {{"chunks", {2}}}}, 1, 2};
  expect_close(losses_of(workload, folded.plan(workload, 4), Way::InProcess, options_for(5)),
               losses_of_a_plain_loop(workload, 5, 4), 1e-5);
}

/// A model whose activations are far larger than its parameters and its messages.
Workload model_of_activations()
{
  Workload workload = small_gpt();
  workload.micro_batch = 64;
  workload.layers.clear();
  build_gpt(std::get<GptSizes>(workload.model), workload);
  return workload;
}

/// What each stage of a plan keeps of a micro-batch until its backward pass.
std::vector<Bytes> kept_by_stages(const Workload& workload, const Plan& plan)
{
  meter_cpu_memory();
  MemoryMeter meter(Bytes(0));
  Stream stream("cpu", Stream::Kind::Computations, meter);
  const Stream::Scope scope(stream);
  const auto batches = synthetic_batches(workload);
  Message passed;
  passed.tensors = batches->inputs({seed, 0, 0}, "cpu");
  passed.differentiable.assign(passed.tensors.size(), false);
  std::vector<Bytes> kept;
  for (const Stage& stage : plan.stages) {
    StageOptions options;
    options.first_layer = stage.first_layer;
    options.last_layer = stage.last_layer;
    options.batches = batches.get();
    StageModel model(workload, options);
    const Bytes before = meter.current();
    Message outputs = model.forward(0, 0, passed);
    kept.push_back(meter.current() - before);
    passed = std::move(outputs);
  }
  return kept;
}

/// The most that a rank keeps at once of micro-batches, by the order of its instructions.
Bytes most_kept(const Program& program, std::size_t rank, const std::vector<Bytes>& kept_by_stage)
{
  Bytes held;
  Bytes most;
  for (std::uint64_t position = 0; position < program.length(rank, compute_lane); ++position) {
    const Instruction instruction = program.at(rank, compute_lane, position);
    const Bytes kept = kept_by_stage.at(instruction.stage);
    if (instruction.opcode == Opcode::Forward) held += kept;
    most = std::max(most, held);
    if (instruction.opcode == Opcode::Backward || instruction.opcode == Opcode::BackwardWeight) held -= kept;
  }
  return most;
}

/// By how much the peak memory of each rank grows, as predicted and as measured, when a step has eight micro-batches in
/// place of one.
struct Growth {
  Bytes predicted;
  Bytes measured;
};
std::vector<Growth> growth_of_peaks(const Workload& workload, const Folded& folded, const std::vector<Bytes>& kept)
{
  std::vector<Growth> growths(folded.devices);
  for (const std::uint64_t microbatches : {8U, 1U}) {
    const Plan plan = folded.plan(workload, microbatches);
    const auto program = testing_support::unit_program(plan, workload);
    const auto run = run_in_process(workload, plan, *program, options_for(2), [](const StepReport&) {});
    for (std::size_t rank = 0; rank < folded.devices; ++rank) {
      const double sign = microbatches == 1 ? -1 : 1;
      growths[rank].predicted += sign * most_kept(*program, rank, kept);
      growths[rank].measured += sign * run.ranks()[rank].peak_of(Tier::Device);
    }
  }
  return growths;
}

TEST(Executor, KeepsTheMicroBatchesThatTheOrderSays)
{
  const Workload workload = model_of_activations();
  for (const Folded& folded : {Folded{"", {"sequential"}, 2, 2}, Folded{"", {"gpipe"}, 2, 2},
                               Folded{"", {"1f1b"}, 3, 3}, Folded{"", {"interleaved"}, 2, 4}}) {
    const auto kept = kept_by_stages(workload, folded.plan(workload, 1));
    const Bytes half = 0.5 * *std::max_element(kept.begin(), kept.end());
    for (const Growth& growth : growth_of_peaks(workload, folded, kept)) {
      EXPECT_NEAR(growth.measured.value, growth.predicted.value, half.value) << folded.schedule.name;
    }
  }
}

TEST(Executor, KeepsNoMoreThanWholeMicroBatchesUntilTheirWeightGradients)
{
  const Workload workload = model_of_activations();
  for (const Folded& folded : all_folded()) {
    if (folded.schedule.numbers.contains("group")) continue;  // which one micro-batch has not
    const auto kept = kept_by_stages(workload, folded.plan(workload, 1));
    const Bytes half = 0.5 * *std::max_element(kept.begin(), kept.end());
    for (const Growth& growth : growth_of_peaks(workload, folded, kept)) {
      EXPECT_LT(growth.measured, growth.predicted + half) << folded.schedule.name;
    }
  }
}

TEST(Executor, HasTheSameLossesWhenItRecomputesEveryLayer)
{
  const Workload workload = small_gpt();
  Plan plan = even_split(workload, 2, ChainSchedule::OneForwardOneBackward, 4);
  plan.recompute.resize(workload.layers.size());
  std::iota(plan.recompute.begin(), plan.recompute.end(), 0);
  expect_close(losses_of(workload, plan, Way::InProcess, options_for(5)), losses_of_a_plain_loop(workload, 5, 4), 0);
}

TEST(Executor, FollowsThePlainLoopWithEveryOptimizer)
{
  for (const Optimizer optimizer : {Optimizer::Sgd, Optimizer::Momentum, Optimizer::Adam, Optimizer::AdamW}) {
    Workload workload = small_gpt();
    workload.optimizer = optimizer;
    workload.training.weight_decay = 0.1;
    const Plan plan = even_split(workload, 3, ChainSchedule::OneForwardOneBackward, 2);
    expect_close(losses_of(workload, plan, Way::InProcess, options_for(6)), losses_of_a_plain_loop(workload, 6, 2), 0);
  }
}

TEST(Executor, FollowsThePlainLoopWithALearningRateThatChangesAndOtherConstantsOfAdam)
{
  Workload workload = small_gpt();
  workload.optimizer = Optimizer::AdamW;
  const auto unchanged = losses_of_a_plain_loop(workload, 6, 2);
  workload.training.warmup_steps = 2;
  workload.training.decay = RateDecay::Linear;
  workload.training.decay_steps = 5;
  workload.training.beta2 = 0.9;
  const auto expected = losses_of_a_plain_loop(workload, 6, 2);
  Workload still = workload;
  still.training.learning_rate = 0;
  const auto untrained = losses_of_a_plain_loop(still, 6, 2);
  EXPECT_EQ(expected[1], untrained[1]) << "the rate of step 0 is 0";
  EXPECT_NE(expected[2], untrained[2]);
  EXPECT_NE(expected[3], unchanged[3]);
  const Plan plan = even_split(workload, 3, ChainSchedule::OneForwardOneBackward, 2);
  for (const Way way : {Way::Tcp, Way::InProcess}) {
    expect_close(losses_of(workload, plan, way, options_for(6)), expected, 0);
  }
}

TEST(Executor, ClipsTheNormOfAllStagesTogether)
{
  Workload workload = small_gpt();
  workload.training.clip_norm = 0.01;
  workload.training.learning_rate = 1;
  const auto expected = losses_of_a_plain_loop(workload, 10, 2);
  for (const Way way : {Way::Tcp, Way::InProcess}) {
    for (const std::size_t stages : {1U, 3U}) {
      const Plan plan = even_split(workload, stages, ChainSchedule::OneForwardOneBackward, 2);
      expect_close(losses_of(workload, plan, way, options_for(10)), expected, 1e-5);
    }
  }
}

TEST(Executor, HasTheSameLossesInHalfPrecisionOnEverySplit)
{
  for (const DType dtype : {DType::BFloat16, DType::Float16}) {
    Workload workload = small_bert();
    workload.dtype = dtype;
    workload.layers.clear();
    build_bert(std::get<BertSizes>(workload.model), workload);
    const auto one =
        losses_of(workload, even_split(workload, 1, ChainSchedule::Sequential, 2), Way::InProcess, options_for(6));
    const auto three =
        losses_of(workload, even_split(workload, 3, ChainSchedule::Sequential, 2), Way::InProcess, options_for(6));
    EXPECT_TRUE(std::isfinite(one.back()));
    EXPECT_NE(one.front(), one.back());
    expect_close(three, one, 0);
  }
}

TEST(Executor, TakesItsDataFromTheDataServer)
{
  const Workload workload = small_bert();
  Plan plan = even_split(workload, 2, ChainSchedule::OneForwardOneBackward, 4);
  plan.data_server = "server";
  const auto expected = losses_of_a_plain_loop(workload, 3, 4);
  for (const Way way : {Way::Tcp, Way::InProcess}) {
    expect_close(losses_of(workload, plan, way, options_for(3)), expected, 0);
  }
}

TEST(Executor, FetchesAnInputOnceTheForwardTwoMicroBatchesEarlierHasEnded)
{
  const Workload workload = small_bert();
  constexpr std::uint64_t microbatches = 5;
  Plan plan = even_split(workload, 2, ChainSchedule::OneForwardOneBackward, microbatches);
  plan.data_server = "server";
  RunOptions options = options_for(2);
  options.emulate = true;
  // Forward passes so slow that sockets could take all inputs long before.
  for (Stage& stage : plan.stages) stage.replicas.front().shards.front().slowdown = 2;
  options.profiled_speed =
      testing_support::unit_program(plan, workload)->at(0, compute_lane, 0).time.value * FlopsPerSecond(1 / 0.01);
  const auto program = schedules::make_program(plan, workload, run_devices(plan, options));
  const auto measured = run_in_processes(workload, plan, *program, options, [](const StepReport&) {});
  const auto& computed = times_of(measured, 0, "compute");
  const auto& received = times_of(measured, 0, "receive activation");
  ASSERT_EQ(received.size(), 2 * microbatches);
  const std::uint64_t length = program->length(0, compute_lane);
  for (std::uint64_t i = 0; i < computed.size(); ++i) {
    const Instruction instruction = program->at(0, compute_lane, i % length);
    const std::uint64_t next = i / length * microbatches + instruction.microbatch + 2;  // over both steps
    if (instruction.opcode != Opcode::Forward || next >= received.size()) continue;
    EXPECT_GE(received[next].begin, computed[i].end) << "input " << next;
  }
}

TEST(Executor, KeepsOnlyTheTimesOfTheFirstStepsOfALongRun)
{
  const Workload workload = small_gpt();
  const Plan brief = even_split(workload, 2, ChainSchedule::OneForwardOneBackward, 1);
  const auto program = testing_support::unit_program(brief, workload);
  constexpr std::uint64_t steps = 1'010;
  const auto measured = run_in_process(workload, brief, *program, options_for(steps), [](const StepReport&) {});
  EXPECT_EQ(measured.losses().size(), steps);
  EXPECT_EQ(measured.timed_steps(), 1'000U);
  EXPECT_EQ(measured.step_times().size(), 1'000U);
  // 512 micro-batches: 2 x 512 computations and an update, 512 sends and 512 receives.
  const Plan busy = even_split(workload, 2, ChainSchedule::OneForwardOneBackward, 512);
  EXPECT_EQ(timed_steps(*testing_support::unit_program(busy, workload)), 200'000U / (4 * 512 + 1));
  const Plan busiest = even_split(workload, 2, ChainSchedule::OneForwardOneBackward, 50'000);
  EXPECT_EQ(timed_steps(*testing_support::unit_program(busiest, workload)), 10U);
}

TEST(Executor, StretchesTheComputationOfASlowDevice)
{
  Workload workload = small_gpt();
  workload.micro_batch = 16;
  Plan plan = even_split(workload, 1, ChainSchedule::Sequential, 1);
  const auto program = testing_support::unit_program(plan, workload);
  RunOptions options = options_for(10);
  options.emulate = true;
  plan.stages.front().replicas.front().shards.front().slowdown = 20;
  // Compared with the processor time of the whole run, which other work on the machine does not lengthen.
  const std::clock_t begin = std::clock();
  const auto measured = run_in_process(workload, plan, *program, options, [](const StepReport&) {});
  const double worked_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  const auto times = measured.step_times();
  EXPECT_GT(std::accumulate(times.begin(), times.end(), Seconds(0)).value, 5 * worked_s);
}

TEST(Executor, GivesSlowedRanksTheTimesOfTheirProfileAndLeavesOthersAlone)
{
  const Workload workload = small_gpt();
  Plan plan = even_split(workload, 2, ChainSchedule::OneForwardOneBackward, 2);
  plan.stages[0].replicas.front().shards.front().slowdown = 1;
  plan.stages[1].replicas.front().shards.front().slowdown = 4;
  RunOptions options = options_for(4);
  options.emulate = true;
  // So slow that the machine's own time is negligible.
  options.profiled_speed =
      testing_support::unit_program(plan, workload)->at(1, compute_lane, 0).time.value * FlopsPerSecond(1 / 0.05);
  const auto program = schedules::make_program(plan, workload, run_devices(plan, options));
  const auto measured = run_in_process(workload, plan, *program, options, [](const StepReport&) {});
  /// The shortest forward pass, which other work on the machine has not lengthened.
  const auto least_forward_of = [&](std::size_t rank) {
    const auto& times = times_of(measured, rank, "compute");
    const auto length = program->length(rank, compute_lane);
    Seconds least = times.front().end - times.front().begin;
    for (std::size_t i = 0; i < times.size(); ++i) {
      if (program->at(rank, compute_lane, i % length).opcode != Opcode::Forward) continue;
      least = std::min(least, times[i].end - times[i].begin);
    }
    return least.value;
  };
  EXPECT_GE(least_forward_of(1), 0.2);
  EXPECT_LT(least_forward_of(0), 0.05);
}

TEST(Executor, RefusesMoreMemoryThanTheDeviceHas)
{
  const Workload workload = small_gpt();
  Plan plan = even_split(workload, 2, ChainSchedule::OneForwardOneBackward, 4);
  plan.stages[1].replicas.front().shards.front().memory = Bytes(10'000);
  const auto program = testing_support::unit_program(plan, workload);
  RunOptions options = options_for(2);
  options.emulate = true;
  EXPECT_THAT([&] { run_in_process(workload, plan, *program, options, [](const StepReport&) {}); },
              ThrowsMessage<EnvironmentError>(HasSubstr("rank 1 (device-1): out of memory in layer 4 (block3): ")));
}

TEST(Executor, EndsAllRanksWhenOneFailsAndNamesIt)
{
  const Workload workload = small_gpt();
  const Plan plan = even_split(workload, 3, ChainSchedule::OneForwardOneBackward, 4);
  const auto program = testing_support::unit_program(plan, workload);
  const auto fail = [](const StepReport& step) {
    if (step.step == 2) throw EnvironmentError("the disk is full");
  };
  EXPECT_THAT([&] { run_in_processes(workload, plan, *program, options_for(1000), fail); },
              ThrowsMessage<EnvironmentError>("rank 2 (device-2): the disk is full"));
  EXPECT_THAT([&] { run_in_process(workload, plan, *program, options_for(1000), fail); },
              ThrowsMessage<EnvironmentError>("the disk is full"));
}

TEST(Executor, MeasuresEveryInstructionInItsPlace)
{
  const Workload workload = small_gpt();
  const Plan plan = even_split(workload, 3, ChainSchedule::OneForwardOneBackward, 4);
  const auto program = testing_support::unit_program(plan, workload);
  const auto measured = run_in_process(workload, plan, *program, options_for(3), [](const StepReport&) {});

  struct Sink : TraceSink {
    void record(const TraceEvent& event) override { events.push_back(event); }
    void memory_changed(std::size_t rank, Tier tier, Seconds time, Bytes memory) override
    {
      EXPECT_EQ(tier, Tier::Device);
      EXPECT_GE(time, last_of_rank[rank]);
      last_of_rank[rank] = time;
      most_of_rank[rank] = std::max(most_of_rank[rank], memory);
    }
    void link_changed(const std::string& link, Seconds time, std::size_t transfers) override
    {
      EXPECT_GE(time, last_of_link[link]);
      last_of_link[link] = time;
      on_link[link] = transfers;
    }
    std::vector<TraceEvent> events;
    std::map<std::size_t, Seconds> last_of_rank;
    std::map<std::size_t, Bytes> most_of_rank;
    std::map<std::string, Seconds> last_of_link;
    std::map<std::string, std::size_t> on_link;
  } sink;
  measured.replay(sink, {"a", "b", "c"});
  for (const auto& [rank, most] : sink.most_of_rank) {
    EXPECT_GT(most, Bytes(0));
    EXPECT_LE(most, measured.ranks()[rank].peak_of(Tier::Device));
  }
  EXPECT_EQ(sink.most_of_rank.size(), 3u);
  EXPECT_THAT(sink.on_link, ::testing::ElementsAre(std::pair("a → b", 0u), std::pair("b → a", 0u),
                                                   std::pair("b → c", 0u), std::pair("c → b", 0u)));
  std::uint64_t expected = 0;
  for (std::size_t rank = 0; rank < program->ranks(); ++rank) {
    for (LaneId lane = 0; lane < program->lanes(rank).size(); ++lane) expected += 3 * program->length(rank, lane);
  }
  ASSERT_EQ(sink.events.size(), expected);
  for (std::size_t i = 1; i < sink.events.size(); ++i) EXPECT_LE(sink.events[i - 1].end, sink.events[i].end);
  EXPECT_EQ(sink.events.front().instruction.opcode, Opcode::Forward);
  for (const auto& event : sink.events) {
    EXPECT_GE(event.begin.value, 0);
    EXPECT_LE(event.begin, event.end);
    const Instruction expected_there = program->at(event.rank, event.instruction.lane, event.position);
    EXPECT_EQ(event.instruction.opcode, expected_there.opcode);
    EXPECT_EQ(event.instruction.microbatch, expected_there.microbatch);
    if (event.instruction.opcode == Opcode::Forward) {
      EXPECT_GT(event.memory.value, 0);
    }
  }
  EXPECT_EQ(measured.step_times().size(), 3U);
}

}  // namespace
}  // namespace isobar::exec::executor_test
