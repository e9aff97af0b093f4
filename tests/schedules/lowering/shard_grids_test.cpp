#include "tests/support/shard_grids.hpp"
#include "core/check/program_checker.hpp"
#include "core/model/dtype.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/shard_collectives.hpp"
#include "core/program/collective.hpp"
#include "core/program/player.hpp"
#include "core/program/walk.hpp"
#include "schedules/evaluation.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/schedules/lowering/sample_programs.hpp"
#include "tests/support/editable_program.hpp"
#include "tests/support/uniform_rates.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace isobar::schedules::shard_grids_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::Contains;
using testing::IsEmpty;
using Form = ShardGrid::Form;

constexpr double bytes_of_a_number = 4;  // float32

std::vector<std::string> devices(std::size_t count)
{
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back(fmt::format("d{}", i));
  return names;
}

/// One stage of all layers on a grid.
Plan alone(const Workload& workload, const ShardGrid& grid, std::uint64_t microbatches)
{
  Plan plan;
  plan.goal.microbatches = microbatches;
  auto names = devices(grid.blocks());
  plan.stages = by_layers({stage_of_grids(0, workload.layers.size() - 1, grid, {0}, names)});
  return plan;
}

TEST(ShardGrids, MakeSoundProgramsUnderEverySchedule)
{
  std::mt19937_64 random(7);
  const std::vector<std::string> schedules = {"sequential", "gpipe", "1f1b", "zero-bubble-h1", "zero-bubble-h2"};
  std::size_t with_replicas = 0;
  for (int round = 0; round < 120; ++round) {
    Plan plan;
    plan.goal.schedule = schedule_from_text(schedules[random() % schedules.size()]);
    plan.goal.microbatches = 4;
    const auto grids = small_rows_and_grids();
    const ShardGrid& grid = grids[random() % grids.size()];
    const std::vector<std::vector<std::uint64_t>> divisions = {{0}, {2, 2}, {1, 3}};
    auto names = devices(200);
    const std::size_t stages = 1 + random() % 3;
    for (std::size_t i = 0; i < stages; ++i) {
      plan.stages.push_back(
          stage_of_grids(2 * i, i + 1 == stages ? 5 : 2 * i + 1, grid, divisions[random() % 3], names));
    }
    // Several stages that divide micro-batches differently might wait for each other's parameters.
    const bool may_gather = stages == 1 && !why_not_divided({.sharded = Sharding::Parameters}, plan.stages.front(), {});
    plan.sync.sharded = static_cast<Sharding>(random() % (may_gather ? 4 : 3));
    if (plan.sync.sharded == Sharding::None) plan.sync.bucket = Bytes(static_cast<double>(random() % 20'000));
    with_replicas += has_replicas(plan) ? 1U : 0U;
    if (random() % 3 == 0) plan.data_server = "data";
    Workload workload = gpt_for_grids();
    if (random() % 3 == 0) workload.training.clip_norm = 1;
    plan.stages = by_layers(plan.stages);
    ASSERT_FALSE(fault_of_shards(plan.stages));
    ASSERT_THAT(faults_of(*testing_support::unit_program(plan, workload)), IsEmpty()) << round << " " << text_of(grid);
    ASSERT_THAT(faults_of(*testing_support::unit_evaluation(plan, workload), ProgramUse::Evaluation), IsEmpty())
        << round;
  }
  EXPECT_GT(with_replicas, 40U);
}

/// The waits but number `index`.
Waits without(const Waits& waits, std::size_t index)
{
  Waits others;
  std::size_t i = 0;
  for (const Wait& wait : waits) {
    if (i++ != index) others.add(wait);
  }
  return others;
}

TEST(ShardGrids, NeedEveryWaitButThoseForRoom)
{
  // A gather of parameters, or of inputs for a backward pass, may run as early as it likes.
  for (const auto& grid :
       {ShardGrid{Form::TwoD, 2}, {Form::TwoAndAHalfD, 2, 2}, {Form::ThreeD, 2, 2}, {Form::Sequence, 2}}) {
    const Workload workload = gpt_for_grids();
    Plan plan;
    plan.goal.microbatches = 2;
    auto names = devices(2 * grid.blocks());
    plan.stages = by_layers({stage_of_grids(0, 2, grid, {0}, names), stage_of_grids(3, 5, grid, {0}, names)});
    EditableProgram program(*testing_support::unit_program(plan, workload));
    ASSERT_THAT(faults_of(program), IsEmpty());
    std::size_t needed = 0;
    for (const std::size_t rank : {std::size_t{0}, grid.blocks()}) {
      for (std::size_t lane = 0; lane < program.lanes(rank).size(); ++lane) {
        const std::string& name = program.lanes(rank)[lane].name;
        const bool may_be_early = name.starts_with("gather weights") || name.starts_with("gather inputs again") ||
                                  name.starts_with("gather kept inputs");
        if (may_be_early) continue;
        for (auto& instruction : program.listing[rank].instructions[lane]) {
          if (instruction.opcode == Opcode::Update) continue;  // may follow another one that waits
          const Waits all = instruction.waits;
          for (std::size_t i = 0; i < all.size(); ++i) {
            instruction.waits = without(all, i);
            EXPECT_FALSE(faults_of(program).empty())
                << text_of(grid) << ", rank " << rank << ", lane " << name << ", wait " << i << " of "
                << name_of(instruction.opcode) << " of layer " << instruction.first_layer;
            ++needed;
          }
          instruction.waits = all;
        }
      }
    }
    EXPECT_GT(needed, 50U);
  }
}

TEST(ShardGrids, AreGroupsOfRanksThatComputeTheSameAndMeet)
{
  const Workload workload = gpt_for_grids();
  const auto sound = testing_support::unit_program(alone(workload, {Form::TwoD, 2}, 1), workload);
  const auto faults_after = [&](const std::function<void(EditableProgram&)>& edit) {
    EditableProgram program(*sound);
    edit(program);
    return faults_of(program);
  };
  EXPECT_THAT(faults_after([](EditableProgram& program) {
                program.grid_list = {{0, 1, 2, 7}};
              }),
              Contains("grid 0: rank 7; the program has 4 ranks"));
  EXPECT_THAT(faults_after([](EditableProgram& program) {
                program.grid_list = {{0, 1, 2, 3}, {3}};
              }),
              Contains("grid 1: rank 3 again; a rank has one place in one grid"));
  EXPECT_THAT(
      faults_after([](EditableProgram& program) {
        program.grid_list = {{0, 1}, {2, 3}};
      }),
      Contains("rank 2, lane compute, position 0: a second Forward for micro-batch 0 of stage 0; the first is at "
               "rank 0, lane compute, position 0"));
}

/// The bytes that shards send in a step in collectives that `counts` accepts, on the mean.
double mean_sent(const Program& program, const std::function<bool(const Instruction&)>& counts)
{
  double sent = 0;
  for (const auto& channel : program.channels()) {
    const End& first = channel.ends.front();
    for (std::uint64_t k = 0; k < program.length(first.rank, first.lane); ++k) {
      const Instruction instruction = program.at(first.rank, first.lane, k);
      if (!counts(instruction)) continue;
      const std::vector<Bytes> sizes(channel.ends.size(), instruction.size);
      for (const auto& round : rounds_of(instruction.opcode, sizes, channel.algorithm)) {
        for (const auto& flow : round) sent += flow.size().value;
      }
    }
  }
  return sent / static_cast<double>(program.ranks());
}

TEST(ShardGrids, SendTheBytesOfTheirAlgorithms)
{
  // A transformer layer has products of h -> 3h, h -> h, h -> 4h and 4h -> h: all inputs of n tokens are 7nh numbers,
  // all outputs 9nh and all parameters 12h². Each of the three passes of SUMMA moves inputs and parameters; 3d moves
  // each matrix once forward and once backward.
  const Workload workload = gpt_for_grids();
  constexpr std::uint64_t microbatches = 3;
  const double h = 72, n = 36 * 4;
  for (const auto& grid : small_grids()) {
    const auto program = testing_support::unit_program(alone(workload, grid, microbatches), workload);
    const auto q = static_cast<double>(grid.side), d = static_cast<double>(grid.depth);
    const double of_layer = grid.form == Form::ThreeD ? 2 * (q - 1) / (q * q * q) * (16 * n * h + 12 * h * h)
                                                      : 3 * (q - 1) / (q * q) * (7 * n * h / d + 12 * h * h);
    const auto is_of_blocks = [](const Instruction& instruction) {
      return instruction.first_layer >= 1 && instruction.last_layer <= 4;
    };
    const double sent = mean_sent(*program, [&](const Instruction& instruction) {
      return is_of_blocks(instruction) && instruction.opcode != Opcode::AllReduce;
    });
    EXPECT_NEAR(sent / bytes_of_a_number, microbatches * 2 * of_layer, 1e-9 * sent) << text_of(grid);
    // Norms: two sums of each token forward and two backward, of two norms in a layer.
    const double tokens = grid.form == Form::ThreeD ? n / (q * q) : n / (q * d);
    const double of_norms = mean_sent(*program, [&](const Instruction& instruction) {
      return is_of_blocks(instruction) && instruction.opcode == Opcode::AllReduce &&
             instruction.payload != Payload::ParameterGradient;
    });
    const double expected_of_norms = microbatches * 2 * 2 * 2 * (2 * tokens) * 2 * (q - 1) / q;
    EXPECT_NEAR(of_norms / bytes_of_a_number, expected_of_norms, 0.01 * expected_of_norms);  // messages are whole bytes
    // The layers of the depth add up the gradients of their copies once a step.
    const double of_copies = mean_sent(*program, [](const Instruction& instruction) {
      return instruction.opcode == Opcode::AllReduce && instruction.payload == Payload::ParameterGradient;
    });
    double copied = 0;
    for (const auto& layer : workload.layers) copied += static_cast<double>(shared_parameters(layer, grid));
    const double depth = grid.form == Form::TwoAndAHalfD ? d : 1;
    EXPECT_NEAR(of_copies / bytes_of_a_number, 2 * (depth - 1) / depth * copied,
                static_cast<double>(workload.layers.size()) * depth);  // messages are whole bytes
    EXPECT_EQ(copied > 0, grid.form == Form::TwoAndAHalfD);
  }
}

TEST(SequenceParallelism, SendsTheBytesOfItsGathersAndSums)
{
  // Per transformer layer, in parts of n h numbers: forward 2 AllGathers and 2 ReduceScatters, backward the same and 2
  // AllGathers of what was kept (Korthikanti et al. 2022, section 4.2.2), each (p-1)/p.
  const double h = 72, n = 36 * 4;
  for (const std::string recompute : {"", "all"}) {
    Workload workload = gpt_for_grids();
    if (!recompute.empty()) workload = with_recomputation(workload, {1, 2, 3, 4});
    for (const std::size_t side : {2U, 4U}) {
      const auto p = static_cast<double>(side);
      const auto program = testing_support::unit_program(alone(workload, {Form::Sequence, side}, 3), workload);
      const auto sent = [&](std::size_t first, std::size_t last) {
        return mean_sent(*program,
                         [=](const Instruction& instruction) {
                           return instruction.first_layer >= first && instruction.last_layer <= last &&
                                  instruction.payload != Payload::ParameterGradient;
                         }) /
               bytes_of_a_number;
      };
      EXPECT_DOUBLE_EQ(sent(1, 4), 3 * 2 * 10 * (p - 1) / p * n * h);
      EXPECT_DOUBLE_EQ(sent(0, 0), 3 * 2 * (p - 1) / p * n * h);
      EXPECT_DOUBLE_EQ(sent(5, 5), 3 * (3 * (p - 1) / p * n * h + (p - 1) * 2 * n));
    }
  }
}

TEST(SequenceParallelism, TakesTheTimesOfItsGathersAndSums)
{
  const Workload workload = gpt_for_grids();
  const double nh_bytes = 36 * 4 * 72 * bytes_of_a_number, latency = 1e-5, bandwidth = 1e9;
  for (const double p : {2.0, 4.0}) {
    const auto program = testing_support::program_at(
        FlopsPerSecond(1e9), alone(workload, {Form::Sequence, static_cast<std::size_t>(p)}, 1), workload);
    PlayerRates rates = uniform_rates(latency, bandwidth);
    double work = 0, update = 0;
    const Stage stage = alone(workload, {Form::Sequence, static_cast<std::size_t>(p)}, 1).stages.front();
    for (const auto& layer : workload.layers) {
      work += (layer.forward + layer.backward).value / p / 1e9;
      update += update_work(workload, layer_of_shard(layer, stage, 0, 0)).value / 1e9;
    }
    const auto ring = [&](double bytes) { return (p - 1) * (latency + bytes / (p * bandwidth)); };
    // The sum and gather of the embedding, four of each layer and three of the head on the way; what was kept comes
    // while the task before runs, but that of the head, whose backward follows its forward. The gradients of what is
    // not divided of the embedding, its positions, are added up last.
    const double loss = (p - 1) * (latency + 2 * bytes_of_a_number * 36 * 4 / bandwidth);
    const double step = work + (2 + 4 * 4 + 2) * ring(nh_bytes) + loss + 2 * ring(bytes_of_a_number * 4 * 72);
    const double played = play_program(*program, rates).periods.front().end.value;
    EXPECT_GT(played, (step + update) * (1 - 1e-9)) << p;
    EXPECT_LT(played, step + update + 5 * ring(nh_bytes)) << p;  // of what was kept
  }
}

TEST(SequenceParallelism, DividesAllActivationsAndWhatOneDimensionDivides)
{
  const Workload workload = gpt_for_grids("dtype: bf16\n");
  const double s = 4, b = 36, h = 72, a = 12;
  for (const double t : {2.0, 4.0}) {
    const Stage stage = alone(workload, {Form::Sequence, static_cast<std::size_t>(t)}, 1).stages.front();
    double kept = 0;
    for (const std::size_t index : {1U, 2U}) {
      const Layer& layer = workload.layers[index];
      const Layer part = layer_of_shard(layer, stage, 0, 0);
      kept += part.activations.value;
      const double divided = static_cast<double>(layer.split->parameters);
      EXPECT_EQ(static_cast<double>(part.parameters), static_cast<double>(layer.parameters) - divided * (1 - 1 / t));
      EXPECT_EQ(shared_parameters(layer, stage.grid), layer.parameters - layer.split->parameters);
    }
    EXPECT_NEAR(kept, s * b * h * (34 + 5 * a * s / h) / t, 1e-9 * kept) << t;  // Korthikanti et al. 2022
  }
}

TEST(ShardGrids, MoveWhatEmbeddingAndHeadNeed)
{
  const Workload workload = gpt_for_grids();
  const double h = 72, n = 36 * 4, vocabulary = 96;
  for (const auto& grid : small_grids()) {
    const auto program = testing_support::unit_program(alone(workload, grid, 1), workload);
    const auto q = static_cast<double>(grid.side), d = static_cast<double>(grid.depth);
    const double p = static_cast<double>(grid.blocks());
    const auto sent = [&](std::size_t layer) {
      return mean_sent(*program,
                       [layer](const Instruction& instruction) {
                         return instruction.first_layer == layer && instruction.opcode != Opcode::AllReduce;
                       }) /
             bytes_of_a_number;
    };
    // Looked-up rows are added up, and their gradients gathered.
    EXPECT_NEAR(sent(0), 2 * (q - 1) / p * n * h, 1e-6) << text_of(grid);
    // The head's product, and the two numbers of each token that the loss needs.
    const double tokens = grid.form == Form::ThreeD ? n / (q * q) : n / (q * d);
    const double of_product = grid.form == Form::ThreeD ? 2 * (q - 1) / p * (n * h + n * vocabulary + h * vocabulary)
                                                        : 3 * (q - 1) / (q * q) * (n * h / d + h * vocabulary);
    EXPECT_NEAR(sent(5), of_product + (q - 1) * 2 * tokens, 1e-6) << text_of(grid);
  }
}

TEST(ShardGrids, TakeTheTimesOfTheirAlgorithms)
{
  // Each of the 4 products of a transformer layer gathers or scatters in q - 1 messages, of a q-th of what is gathered.
  const Workload workload = gpt_for_grids();
  const double h = 72, n = 36 * 4, latency = 1e-5, bandwidth = 1e9;
  for (const auto& grid : small_grids()) {
    const auto program = testing_support::program_at(FlopsPerSecond(1e15), alone(workload, grid, 1), workload);
    const auto q = static_cast<double>(grid.side), d = static_cast<double>(grid.depth);
    double played = 0;
    std::size_t collectives = 0;
    const PlayedSink sink = [&](const Turn& turn, Seconds begin, Seconds end) {
      const Instruction& instruction = turn.instruction;
      const bool is_counted = turn.at.rank == 0 && is_collective(instruction.opcode) && instruction.first_layer >= 1 &&
                              instruction.last_layer <= 4 && instruction.opcode != Opcode::AllReduce;
      if (!is_counted) return;
      played += (end - begin).value;
      ++collectives;
    };
    PlayerRates rates = uniform_rates(latency, bandwidth);
    play_program(*program, rates, 1, sink);
    const double numbers = grid.form == Form::ThreeD ? 2 * (q - 1) / (q * q * q) * (16 * n * h + 12 * h * h)
                                                     : 3 * (q - 1) / (q * q) * (7 * n * h / d + 12 * h * h);
    // For each product: forward and twice backward two matrices; in 3d three matrices forward and three backward.
    const double messages = 6 * 4 * (q - 1);
    EXPECT_EQ(collectives, 2U * 6 * 4);
    const double expected = 2 * (messages * latency + numbers * bytes_of_a_number / bandwidth);
    EXPECT_NEAR(played, expected, 1e-9 * expected) << text_of(grid);
  }
}

TEST(ShardGrids, DivideWorkParametersAndActivations)
{
  // Korthikanti et al. 2022: s b h (34 + 5 a s / h) bytes of a layer in 16 bit, of which a grid divides all.
  const Workload workload = gpt_for_grids("dtype: bf16\n");
  const double s = 4, b = 36, h = 72, a = 12;
  for (const auto& grid : small_grids()) {
    const Stage stage = alone(workload, grid, 1).stages.front();
    const auto p = static_cast<double>(grid.blocks());
    double kept = 0;
    double work = 0;
    double all_work = 0;
    for (const std::size_t index : {1U, 2U}) {
      const Layer part = layer_of_shard(workload.layers[index], stage, 0, 0);
      kept += part.activations.value;
      work += (part.forward + part.backward).value;
      all_work += (workload.layers[index].forward + workload.layers[index].backward).value;
      const double blocks = grid.form == Form::ThreeD ? p : std::pow(static_cast<double>(grid.side), 2);
      EXPECT_EQ(part.parameters, std::ceil(static_cast<double>(workload.layers[index].parameters) / blocks));
    }
    EXPECT_NEAR(kept, s * b * h * (34 + 5 * a * s / h) / p, 1e-9 * kept) << text_of(grid);
    EXPECT_DOUBLE_EQ(work, all_work / p);
  }
}

TEST(ShardGrids, HaveRoomForTheBlocksOfOthers)
{
  const Workload workload = gpt_for_grids();
  const double h = 72, n = 36 * 4;
  for (const auto& grid : small_grids()) {
    const auto program = testing_support::unit_program(alone(workload, grid, 2), workload);
    const auto q = static_cast<double>(grid.side), p = static_cast<double>(grid.blocks());
    double acquired = 0;  // for the forward of the first mlp
    for (LaneId lane = 1; lane < program->lanes(0).size(); ++lane) {
      for (std::uint64_t k = 0; k < program->length(0, lane); ++k) {
        const Instruction instruction = program->at(0, lane, k);
        const bool is_of_forward =
            program->lanes(0)[lane].name.find("again") == std::string::npos && instruction.payload != Payload::Gradient;
        if (instruction.first_layer == 2 && instruction.microbatch == 0 && is_of_forward) {
          acquired += instruction.acquires.size.value;
        }
      }
    }
    // SUMMA: two blocks of the largest inputs, of 4h, and of parameters. 3d: all gathered blocks but the own ones.
    const double expected =
        grid.form == Form::ThreeD ? (q - 1) / p * (5 * n * h + 8 * h * h) : 2 * (4 * n * h / p + 4 * h * h / (q * q));
    EXPECT_NEAR(acquired / bytes_of_a_number, expected, 1e-9 * expected) << text_of(grid);
  }
}

TEST(ShardGrids, LieInRowsColumnsAndDepth)
{
  using Groups = std::vector<std::vector<std::size_t>>;
  const ShardGrid grid{Form::ThreeD, 2, 2};
  EXPECT_EQ(groups_along(grid, GridAxis::Row, 8), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(groups_along(grid, GridAxis::Column, 8), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(groups_along(grid, GridAxis::Depth, 8), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(groups_along({}, GridAxis::All, 3), (Groups{{0, 1, 2}}));
}

}  // namespace
}  // namespace isobar::schedules::shard_grids_test
