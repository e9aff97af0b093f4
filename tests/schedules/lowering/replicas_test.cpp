#include "schedules/lowering/replicas.hpp"

#include "core/check/program_checker.hpp"
#include "core/errors.hpp"
#include "core/model/dtype.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/transfer_rules.hpp"
#include "core/program/player.hpp"
#include "core/program/walk.hpp"
#include "tests/schedules/lowering/sample_programs.hpp"
#include "tests/support/editable_program.hpp"
#include "tests/support/unit_devices.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace isobar::schedules::replicas_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

struct Copy {
  std::size_t device = 0;
  std::uint64_t microbatches = 1;
};

/// Two layers per stage; `stages[s]` are the replicas of stage s.
Plan replicated(const std::vector<std::vector<Copy>>& stages, const std::string& schedule)
{
  Plan plan;
  plan.goal.schedule = schedule_from_text(schedule);
  plan.goal.microbatches = 0;
  for (const auto& copy : stages.front()) plan.goal.microbatches += copy.microbatches;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    Stage stage{2 * i, 2 * i + 1, {}};
    for (const auto& [device, microbatches] : stages[i]) {
      const bool is_only_one = stages[i].size() == 1;
      stage.replicas.push_back({is_only_one ? 0 : microbatches, {Shard{"d" + std::to_string(device)}}});
    }
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

/// Plays one step of a program on equal devices of 1 TFLOP/s.
PlayedProgram play(const Program& program, TransferTimes transfer = {})
{
  PlayerRates rates;
  rates.transfer = [transfer](std::size_t, std::size_t, Bytes size) {
    return TransferTimes{transfer.latency, transfer.data * size.value};  // `data` is of a byte
  };
  return play_program(program, rates);
}

double step_of(const Plan& plan, TransferTimes transfer = {})
{
  return play(*testing_support::program_at(FlopsPerSecond(1e12), plan, unequal_chain(2 * plan.stages.size())), transfer)
      .periods.front()
      .end.value;
}

/// The instructions of a lane kind, by stage and micro-batch.
std::map<std::pair<std::uint32_t, std::uint64_t>, std::size_t> count_of(const Program& program, Opcode opcode)
{
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::size_t> counts;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    for (std::uint64_t position = 0; position < program.length(rank, compute_lane); ++position) {
      const Instruction instruction = program.at(rank, compute_lane, position);
      if (instruction.opcode == opcode) ++counts[{instruction.stage, instruction.microbatch}];
    }
  }
  return counts;
}

TEST(Replicas, MakeSoundProgramsUnderEverySchedule)
{
  std::mt19937_64 random(5);
  const std::vector<std::string> schedules = {"sequential",     "gpipe",          "1f1b", "1f1b(warm_up=auto)",
                                              "zero-bubble-h1", "zero-bubble-h2", "",     ""};
  std::size_t with_other_counts = 0;
  std::size_t with_parameters = 0;
  std::size_t with_blocking = 0;
  for (int round = 0; round < 400; ++round) {
    const std::size_t stages = 1 + random() % 4;
    const std::size_t replicas = 1 + random() % 3;
    const std::uint64_t scale = 1 + random() % 3;
    std::vector<std::uint64_t> counts;
    for (std::size_t r = 0; r < replicas; ++r) counts.push_back(scale * (1 + random() % 4));
    std::uint64_t all = 0;
    for (const auto count : counts) all += count;
    std::vector<std::vector<Copy>> copies;
    std::size_t device = 0;
    for (std::size_t s = 0; s < stages; ++s) {
      auto& stage = copies.emplace_back();
      const bool is_other = random() % 4 == 0 && all >= 2;
      if (is_other) {
        const std::uint64_t first = 1 + random() % (all - 1);
        stage = {{device, first}, {device + 1, all - first}};
        with_other_counts += s > 0 ? 1U : 0U;
      } else {
        for (const auto count : counts) stage.push_back({device + stage.size(), count});
      }
      device += stage.size();
    }
    const std::string schedule = schedules[random() % 6];
    Plan plan = replicated(copies, schedule == "1f1b(warm_up=auto)" ? "1f1b" : schedule);
    if (random() % 3 == 0) plan.data_server = "data";
    const bool take_alike = std::all_of(plan.stages.begin(), plan.stages.end(), [&](const Stage& stage) {
      return !why_not_divided({.sharded = Sharding::Parameters}, stage, {});
    });
    plan.sync.sharded = static_cast<Sharding>(random() % (take_alike ? 4 : 3));
    if (plan.sync.sharded == Sharding::Parameters) {
      ++with_parameters;
      plan.sync.gathered = random() % 2 == 0 ? DType::BFloat16 : DType::Float32;
      plan.sync.each_microbatch = random() % 2 == 0;
    }
    plan.transfers.blocking = random() % 2 == 0;
    if (fault_of_transfers(plan)) plan.transfers.blocking = false;
    with_blocking += plan.transfers.blocking && stages > 1 ? 1U : 0U;
    Workload workload = unequal_chain(2 * stages);
    if (random() % 3 == 0) workload.training.clip_norm = 1;
    const auto program = testing_support::program_at(FlopsPerSecond(1e12), plan, workload);
    ASSERT_THAT(faults_of(*program), IsEmpty()) << schedule << round;
    const auto forwards = count_of(*program, Opcode::Forward);
    ASSERT_EQ(forwards.size(), stages * all) << schedule << round;
    for (const auto& [task, count] : forwards) ASSERT_EQ(count, 1U);
    play(*program, {Seconds(1e-4), Seconds(1e-9)});
  }
  EXPECT_GT(with_other_counts, 50U);
  EXPECT_GT(with_parameters, 10U);
  EXPECT_GT(with_blocking, 50U);
}

TEST(Replicas, OfEqualPipelinesTakeAsLongAsOneOfThemAndTheSync)
{
  for (const std::string schedule : {"sequential", "gpipe", "1f1b", "zero-bubble-h1", "zero-bubble-h2"}) {
    const double one = step_of(replicated({{{0, 6}}, {{1, 6}}, {{2, 6}}}, schedule));
    const double three =
        step_of(replicated({{{0, 6}, {1, 6}, {2, 6}}, {{3, 6}, {4, 6}, {5, 6}}, {{6, 6}, {7, 6}, {8, 6}}}, schedule));
    EXPECT_NEAR(three, one, 1e-12 * one) << schedule;
  }
}

TEST(Replicas, OfTwoStagesMayHaveOtherCutsOnADeviceOfBoth)
{
  // Device 0 runs both stages of the first pipeline, devices 1 and 2 a stage each of the second.
  const Plan plan = replicated({{{0, 4}, {1, 4}}, {{0, 4}, {2, 4}}}, "1f1b");
  const auto program = testing_support::program_at(FlopsPerSecond(1e12), plan, unequal_chain(4));
  EXPECT_THAT(faults_of(*program), IsEmpty());
  EXPECT_THAT(lane_names(*program, 0), ElementsAre("compute", "sync gradients 1", "sync gradients 0"));
  EXPECT_THAT(lane_names(*program, 1), ElementsAre("compute", "send activation", "receive gradient", "sync gradients"));
  std::vector<std::string> tasks;
  for (std::uint64_t position = 0; position < program->length(0, compute_lane); ++position) {
    const Instruction instruction = program->at(0, compute_lane, position);
    tasks.push_back(std::string(name_of(instruction.opcode)).substr(0, 1) + std::to_string(instruction.stage) + "." +
                    std::to_string(instruction.microbatch));
  }
  EXPECT_THAT(tasks, ElementsAre("F0.0", "F1.0", "B1.0", "B0.0", "F0.2", "F1.2", "B1.2", "B0.2", "F0.4", "F1.4", "B1.4",
                                 "B0.4", "F0.6", "F1.6", "B1.6", "B0.6", "U0.0", "U1.0"));
}

TEST(Replicas, SendEachMicroBatchToTheOneThatTakesIt)
{
  // Two thirds and one third of six micro-batches, then all on one device.
  const Plan plan = replicated({{{0, 4}, {1, 2}}, {{2, 6}}}, "1f1b");
  const auto program = testing_support::program_at(FlopsPerSecond(1e12), plan, unequal_chain(4));
  EXPECT_THAT(lane_names(*program, 2), ElementsAre("compute", "send gradient 1.0", "send gradient 1.1",
                                                   "receive activation 1.0", "receive activation 1.1"));
  std::vector<std::uint64_t> received;
  const LaneId lane = lane_named(*program, 2, "receive activation 1.1").value();
  for (std::uint64_t i = 0; i < program->length(2, lane); ++i) received.push_back(program->at(2, lane, i).microbatch);
  EXPECT_THAT(received, ElementsAre(1, 4));
}

TEST(Replicas, SyncTheirGradientsByARing)
{
  const TransferTimes transfer{Seconds(0.1), Seconds(1e-6)};
  const Plan plan = replicated({{{0, 1}, {1, 1}, {2, 1}, {3, 1}}}, "1f1b");
  Workload workload = unequal_chain(2);
  workload.layers[1].parameters = 1004;  // with the 1,000 of the other a multiple of four
  const auto program = testing_support::program_at(FlopsPerSecond(1e12), plan, workload);
  const Instruction sync = first_of(*program, 0, "sync gradients");
  const double bytes = 2004 * size_of(workload.dtype);
  EXPECT_EQ(sync.size, Bytes(bytes));
  EXPECT_EQ(sync.payload, Payload::ParameterGradient);
  const double alone =
      play(*testing_support::program_at(FlopsPerSecond(1e12), replicated({{{0, 1}}}, "1f1b"), workload))
          .periods.front()
          .end.value;
  // 2 (n - 1) messages of 1/n of the bytes.
  EXPECT_NEAR(play(*program, transfer).periods.front().end.value, alone + 6 * (0.1 + bytes / 4 * 1e-6), 1e-9);
}

/// Four replicas of one stage with 2,000 parameters that divide so much of them.
struct Divided {
  explicit Divided(Sharding sharded, Optimizer optimizer = Optimizer::Adam)
  {
    workload.layers[1].parameters = 1000;
    workload.optimizer = optimizer;
    plan.sync.sharded = sharded;
    program = testing_support::program_at(FlopsPerSecond(1e12), plan, workload);
  }

  Workload workload = unequal_chain(2);
  Plan plan = replicated({{{0, 2}, {1, 2}, {2, 2}, {3, 2}}}, "1f1b");
  std::unique_ptr<Program> program;
};

TEST(Replicas, ThatDivideAnOptimizerUpdateAndBringEachOtherAPart)
{
  for (const Sharding sharded : {Sharding::Optimizer, Sharding::Gradients}) {
    const Divided divided(sharded);
    EXPECT_THAT(faults_of(*divided.program), IsEmpty());
    EXPECT_THAT(lane_names(*divided.program, 2), ElementsAre("compute", "sync gradients", "gather parameters"));
    const Instruction sum = first_of(*divided.program, 2, "sync gradients");
    EXPECT_EQ(sum.opcode, Opcode::ReduceScatter);
    EXPECT_EQ(sum.size, Bytes(8000));
    const Instruction gather = first_of(*divided.program, 2, "gather parameters");
    EXPECT_EQ(gather.opcode, Opcode::AllGather);
    EXPECT_EQ(gather.payload, Payload::Parameter);
    EXPECT_EQ(gather.size, Bytes(2000));

    // Both together take as long as the sum of whole gradients, and each updates a quarter.
    const TransferTimes transfer{Seconds(0.1), Seconds(1e-6)};
    const Divided whole(Sharding::None);
    const double update = 2000 * update_flops_per_parameter(Optimizer::Adam) / 1e12;
    EXPECT_NEAR(play(*divided.program, transfer).periods.front().end.value,
                play(*whole.program, transfer).periods.front().end.value - update * 3 / 4, 1e-12);
  }
}

TEST(Replicas, ThatDivideParametersGatherThemForEachPass)
{
  const Divided divided(Sharding::Parameters);
  const Program& program = *divided.program;
  EXPECT_THAT(faults_of(program), IsEmpty());
  EXPECT_THAT(lane_names(program, 0),
              ElementsAre("compute", "gather for forwards", "gather for backwards", "sync gradients"));
  const LaneId forwards = lane_named(program, 0, "gather for forwards").value();
  const LaneId backwards = lane_named(program, 0, "gather for backwards").value();
  ASSERT_EQ(program.length(0, forwards), 2U);
  ASSERT_EQ(program.length(0, backwards), 2U);
  // F0 B0 F1 B1: each gather follows the pass before, since that is of the same stage.
  const auto wait_of = [&](LaneId lane, std::uint64_t position) {
    return *program.at(0, lane, position).waits.begin();
  };
  EXPECT_EQ(wait_of(forwards, 0), (Wait{compute_lane, 1, 5}));
  EXPECT_EQ(wait_of(backwards, 0), (Wait{compute_lane, 0, 1}));
  EXPECT_EQ(wait_of(forwards, 1), (Wait{compute_lane, 0, 2}));
  EXPECT_EQ(wait_of(backwards, 1), (Wait{compute_lane, 0, 3}));

  // A gather is half of an AllReduce by a ring. One for each of four passes and one sum, in place of a whole sum.
  const TransferTimes transfer{Seconds(0.1), Seconds(1e-6)};
  const double half = 3 * (0.1 + 2000 * 1e-6);
  const double update = 2000 * update_flops_per_parameter(Optimizer::Adam) / 1e12;
  EXPECT_NEAR(play(program, transfer).periods.front().end.value,
              play(*Divided(Sharding::None).program, transfer).periods.front().end.value + 3 * half - update * 3 / 4,
              1e-9);
}

TEST(Replicas, ThatDivideParametersDeadlockWhereTheirPassesDifferInOrder)
{
  // Devices 0 and 2 have stage 1 in pipelines of other cuts: 0 forwards twice before a backward, 2 never.
  Plan plan = replicated({{{0, 3}, {1, 3}}, {{0, 3}, {2, 3}}, {{3, 3}, {2, 3}}}, "1f1b");
  plan.sync.sharded = Sharding::Gradients;
  EXPECT_EQ(deadlock_of(*testing_support::program_at(FlopsPerSecond(1e12), plan, unequal_chain(6))), std::nullopt);
  plan.sync.sharded = Sharding::Parameters;
  EXPECT_THAT(deadlock_of(*testing_support::program_at(FlopsPerSecond(1e12), plan, unequal_chain(6))).value_or(""),
              testing::StartsWith("deadlock, each waits for the next and the last for the first: "));
  plan.goal.schedule = {"gpipe"};
  EXPECT_EQ(deadlock_of(*testing_support::program_at(FlopsPerSecond(1e12), plan, unequal_chain(6))), std::nullopt);
}

TEST(Replicas, OfSeveralPartsGatherTheNextOneDuringAPass)
{
  Plan plan = replicated({{{0, 1}, {1, 1}}, {{0, 1}, {1, 1}}}, "1f1b");
  plan.sync.sharded = Sharding::Parameters;
  const auto program = testing_support::program_at(FlopsPerSecond(1e12), plan, unequal_chain(4));
  EXPECT_THAT(faults_of(*program), IsEmpty());
  // F0 F1 B1 B0: the gather for F1 needs nothing but the last update, and that for B1 waits for F1.
  EXPECT_EQ(*first_of(*program, 0, "gather for forwards 1").waits.begin(), (Wait{compute_lane, 1, 6}));
  EXPECT_EQ(*first_of(*program, 0, "gather for backwards 1").waits.begin(), (Wait{compute_lane, 0, 2}));
  EXPECT_EQ(*first_of(*program, 0, "gather for backwards 0").waits.begin(), (Wait{compute_lane, 0, 2}));
}

TEST(Replicas, HoldOnlyTheirPartOfWhatTheyDivide)
{
  const auto peak_of = [](const Divided& divided) { return play(*divided.program).peak_memory[1][0].value; };
  const auto resident_of = [](const Divided& divided) { return divided.program->resident(1, Tier::Device).value; };
  const Divided whole(Sharding::None);
  const Divided optimizer(Sharding::Optimizer);
  const Divided gradients(Sharding::Gradients);
  // Per parameter 4 B, its gradient 4 B and two moments 8 B.
  EXPECT_DOUBLE_EQ(resident_of(whole) - resident_of(optimizer), 2000 * 8 * 3 / 4);
  EXPECT_DOUBLE_EQ(resident_of(whole) - resident_of(gradients), 2000 * (8 + 4) * 3 / 4);
  const Divided parameters(Sharding::Parameters);
  EXPECT_DOUBLE_EQ(resident_of(whole) - resident_of(parameters), 2000 * (8 + 4 + 4) * 3 / 4);
  EXPECT_DOUBLE_EQ(peak_of(whole) - peak_of(parameters), 2000 * 8 * 3 / 4);  // all gradients and parameters at once
  EXPECT_DOUBLE_EQ(peak_of(whole) - peak_of(optimizer), 2000 * 8 * 3 / 4);
  // The first backward makes all gradients while its activations are held.
  EXPECT_DOUBLE_EQ(peak_of(whole) - peak_of(gradients), 2000 * 8 * 3 / 4);
  EXPECT_EQ(resident_of(Divided(Sharding::Optimizer, Optimizer::Sgd)), resident_of(Divided({}, Optimizer::Sgd)));

  // A step of forwards that hold more than the gradients of the parameters.
  Divided large(Sharding::Gradients);
  for (auto& layer : large.workload.layers) layer.activations = Bytes(1e6);
  large.plan.goal.schedule = {"gpipe"};
  large.program = testing_support::program_at(FlopsPerSecond(1e12), large.plan, large.workload);
  EXPECT_DOUBLE_EQ(peak_of(large), resident_of(large) + 2 * 2e6 + 2000 * 4 * 3 / 4);
}

/// Equal layers, whose forward and backward take so many seconds each.
Workload equal_chain(std::size_t layers, double seconds, std::uint64_t parameters)
{
  Workload workload = unequal_chain(layers);
  workload.optimizer = Optimizer::Sgd;
  for (auto& layer : workload.layers) {
    layer.forward = layer.backward = Flops(seconds * 1e12);
    layer.parameters = parameters;
  }
  return workload;
}

TEST(Replicas, OfSeveralPartsAddUpTheGradientsOfOneWhileAnotherIsInItsBackward)
{
  // Two devices with two neighbouring stages each. The sum of the second begins when its last backward ends; that of
  // the first when its own has ended, and the other sum.
  const Plan plan = replicated({{{0, 2}, {1, 2}}, {{0, 2}, {1, 2}}}, "1f1b");
  const auto program = testing_support::program_at(FlopsPerSecond(1e12), plan, equal_chain(4, 1, 500));
  EXPECT_THAT(faults_of(*program), IsEmpty());
  EXPECT_EQ(first_of(*program, 0, "sync gradients 0").waits.size(), 2U);
  const double passes = 2 * 8;  // seconds
  for (const double sum : {0.5, 3.0}) {
    // 4,000 B by a ring of two in two messages.
    const auto played = play(*program, {Seconds(sum / 2), Seconds(0)});
    EXPECT_NEAR(played.periods.front().end.value, passes - 2 + std::max(2 + sum, 2 * sum), 1e-6);
  }
}

TEST(Replicas, OfSeveralPartsAddUpTheirGradientsInBuckets)
{
  // Two devices with three neighbouring stages each, of 800 B of gradients, a forward of a second and a backward of a
  // second for a micro-batch. The gradients of the stages are complete 2, 1 and 0 seconds before the passes end.
  const Workload workload = equal_chain(6, 0.5, 100);
  struct Case {
    double bucket;
    std::vector<double> sizes;
    double after_passes;  // seconds until the last sync ends, of which each takes three
  };
  const std::vector<Case> cases = {
      {0, {800, 800, 800}, 7}, {800, {800, 800, 800}, 7}, {801, {1600, 800}, 5}, {1e9, {2400}, 3}};
  for (const auto& [bucket, sizes, after_passes] : cases) {
    Plan plan = replicated({{{0, 2}, {1, 2}}, {{0, 2}, {1, 2}}, {{0, 2}, {1, 2}}}, "1f1b");
    plan.sync.bucket = Bytes(bucket);
    const auto program = testing_support::program_at(FlopsPerSecond(1e12), plan, workload);
    EXPECT_THAT(faults_of(*program), IsEmpty());
    std::vector<double> sent;
    std::vector<std::size_t> layers;  // of all syncs
    for (LaneId lane = 1; lane < program->lanes(0).size(); ++lane) {
      const Instruction sync = program->at(0, lane, 0);
      sent.push_back(sync.size.value);
      for (std::size_t layer = sync.first_layer; layer <= sync.last_layer; ++layer) layers.push_back(layer);
    }
    EXPECT_EQ(sent, sizes) << bucket;
    std::sort(layers.begin(), layers.end());
    EXPECT_EQ(layers, (std::vector<std::size_t>{0, 1, 2, 3, 4, 5}));
    const auto played = play(*program, {Seconds(1.5), Seconds(0)});  // a ring of two passes two messages
    EXPECT_NEAR(played.periods.front().end.value, 12 + after_passes, 1e-6) << bucket;
  }
}

TEST(Replicas, OfOtherDevicesHaveOtherBuckets)
{
  Plan plan = replicated({{{0, 2}, {1, 2}}, {{2, 2}, {3, 2}}, {{2, 2}, {3, 2}}}, "1f1b");
  plan.sync.bucket = Bytes(1e9);
  const auto program = testing_support::program_at(FlopsPerSecond(1e12), plan, unequal_chain(6));
  EXPECT_THAT(faults_of(*program), IsEmpty());
  EXPECT_EQ(first_of(*program, 0, "sync gradients").last_layer, 1U);
  EXPECT_EQ(first_of(*program, 2, "sync gradients 1").last_layer, 5U);
}

TEST(Replicas, WaitForTheBackwardsOfAllPartsOfABucket)
{
  Plan plan = replicated({{{0, 2}, {1, 2}}, {{0, 2}, {1, 2}}}, "1f1b");
  plan.sync.bucket = Bytes(1e9);
  testing_support::EditableProgram program(*testing_support::program_at(FlopsPerSecond(1e12), plan, unequal_chain(4)));
  ASSERT_THAT(faults_of(program), IsEmpty());
  program.instruction(0, 1, 0).waits = Wait{compute_lane, 0, 1};
  EXPECT_THAT(faults_of(program),
              testing::Each(testing::HasSubstr("lane sync gradients 0, position 0: AllReduce of parameter gradient in "
                                               "stage 0 does not wait for the last backward")));
  EXPECT_EQ(faults_of(program).size(), 2U);  // for those of either stage
}

std::string fault_of(const Plan& plan)
{
  try {
    orders_of(plan);
  } catch (const InputError& fault) {
    return fault.what();
  }
  return "";
}

TEST(Replicas, DoWhatTheFirstOnesAreListedToDo)
{
  Plan plan = replicated({{{0, 3}, {1, 3}}, {{2, 3}, {3, 3}}}, "1f1b");
  const auto wanted = orders_of(plan);
  const auto [shape, orders] = first_pipeline_of(plan);
  EXPECT_THAT(shape.devices, ElementsAre("d0", "d2"));
  EXPECT_EQ(shape.microbatches, 3U);
  plan.goal.schedule = {"listed", {}, {{"d0", orders[0]}, {"d2", orders[1]}}};
  EXPECT_EQ(orders_of(plan), wanted);
  plan.goal.schedule.orders.erase("d2");
  EXPECT_EQ(fault_of(plan), "schedule.orders: d2 has none; give each device of the stages an order");
}

TEST(Replicas, RefuseWhatHasNoOrder)
{
  EXPECT_EQ(fault_of(replicated({{{0, 1}, {1, 1}}}, "greedy")),
            "schedule: greedy has no orders; make a plan with isobar plan");
  const std::string unlike =
      "schedule: listed needs pipelines with one replica of each stage, all with as many micro-batches; use another "
      "schedule";
  for (Plan plan : {replicated({{{0, 2}, {1, 4}}}, "listed"), replicated({{{0, 4}, {1, 2}}, {{2, 6}}}, "listed")}) {
    plan.goal.schedule.orders = {{"d0", Order(std::vector<isobar::Run>{{1, {{{Opcode::Forward, 0, 0}}}}})}};
    EXPECT_EQ(fault_of(plan), unlike);
  }
  EXPECT_EQ(fault_of(replicated({{{0, 4}, {1, 2}}, {{2, 6}}}, "interleaved")),
            "schedule: interleaved needs pipelines with one replica of each stage; give all stages replicas with the "
            "same micro-batches");
  EXPECT_EQ(fault_of(replicated({{{0, 2}, {1, 2}}, {{1, 2}, {0, 2}}}, "1f1b")),
            "stages: device d1 has replicas of two pipelines, or of two stages of which one has more replicas than "
            "the other; give it those of one");
  EXPECT_EQ(fault_of(replicated({{{0, 2}}, {{1, 1}, {1, 1}}}, "1f1b")),
            "stages[1]: device d1 has two of its replicas; give each its own");
  EXPECT_EQ(fault_of(replicated({{{0, 2}, {1, 2}}}, "1f1b(warm_up=1)")),
            "schedule: warm_up has 1 number for 2 devices; give one for each");
  EXPECT_EQ(
      fault_of(replicated({{{0, 400'000'000}, {1, 200'000'000}}, {{2, 600'000'000}}}, "1f1b")),
      "stages[1].replicas: divide 600000000 micro-batches in another way than those of the stage before, too many "
      "to find the way of each; use the same counts, or fewer micro-batches");
  EXPECT_EQ(fault_of(replicated({{{0, 400'000'000}, {1, 200'000'000}}, {{2, 400'000'000}, {3, 200'000'000}}}, "1f1b")),
            "");
  EXPECT_EQ(fault_of(replicated({{{0, 4}, {1, 2}}, {{2, 3}, {3, 3}}, {{4, 6}}}, "1f1b(warm_up=0/0/1/1/0)")),
            "schedule: warm_up of device d0 is 0, so that it and replicas of the next stage would wait for each other; "
            "give at least 1");
}

TEST(Replicas, TakeTheWarmUpOfTheirDevices)
{
  const auto orders = orders_of(replicated({{{0, 6}, {1, 6}}, {{2, 6}, {3, 6}}}, "1f1b(warm_up=3/2/1/0)"));
  std::vector<std::uint64_t> warm_ups;
  for (const auto& order : orders) warm_ups.push_back(order.position_of({Opcode::Backward, 0, 0}) - 1);
  EXPECT_THAT(warm_ups, ElementsAre(3, 2, 1, 0));
}

TEST(StagesOfAPipeline, CountNeighboursOnADeviceAsOneUnder1f1b)
{
  Plan plan;
  for (const auto* device : {"a", "a", "b"}) {
    const std::size_t layer = plan.stages.size();
    plan.stages.push_back(stage_on(device, layer, layer));
  }
  EXPECT_THAT(stages_of_pipeline(plan), ElementsAre(Pair(0, 1), Pair(2, 2)));
  plan.goal.schedule.name = "zero-bubble-v";
  EXPECT_THAT(stages_of_pipeline(plan), ElementsAre(Pair(0, 0), Pair(1, 1), Pair(2, 2)));
}

}  // namespace
}  // namespace isobar::schedules::replicas_test
