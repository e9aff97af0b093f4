#include "schedules/lowering/operator_program.hpp"

#include "core/check/program_checker.hpp"
#include "core/program/collective.hpp"
#include "core/program/player.hpp"
#include "core/program/walk.hpp"
#include "core/spmd/operator_time.hpp"
#include "core/spmd/pieces.hpp"
#include "schedules/evaluation.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/support/divisions.hpp"
#include "tests/support/editable_program.hpp"
#include "tests/support/uniform_rates.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace isobar::schedules::operator_program_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

const std::vector<std::vector<double>> all_shares = {
    {1}, equal_shares(2), equal_shares(3), equal_shares(4), {0.25, 0.75}, {0.5, 0.0, 0.5}, {1.0 / 6, 1.0 / 3, 0.5}};

/// Calls `visit` with random plans of every trunk.
template <typename Visit>
void for_random_plans(int count, const std::string& more, Visit visit, std::size_t most_replicas = 1)
{
  std::mt19937_64 random(7);
  const auto workloads = moes_by_operators(more);
  const std::vector<std::string> schedules = {"duplex", "sequential", "1f1b", "gpipe"};
  for (int i = 0; i < count; ++i) {
    const Workload& workload = workloads[random() % workloads.size()];
    const auto& shares = all_shares[random() % all_shares.size()];
    const auto graph = *operator_graph_of(workload);
    const auto division = random_division(graph, spmd::Rules::Corrected, random);
    const std::string& schedule = schedules[random() % schedules.size()];
    const std::size_t replicas = most_replicas == 1 ? 1 : 1 + random() % most_replicas;
    const Plan plan = testing_support::plan_of(graph, division, shares, schedule, 1 + random() % 4, replicas);
    SCOPED_TRACE(fmt::format("plan {}: {} replicas of {} devices, {}, {} micro-batches", i, replicas, shares.size(),
                             schedule, plan.goal.microbatches));
    visit(plan, workload);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(OperatorProgram, IsSoundForRandomDivisionsSharesAndSchedules)
{
  for (const std::string more : {"", "clip_norm: 1\n", "capacity_samples: 3\n", "by_index: true\n"}) {
    for_random_plans(60, more, [](const Plan& plan, const Workload& workload) {
      ASSERT_THAT(faults_of_operators(plan, workload), IsEmpty());
      const auto program = testing_support::unit_program(plan, workload);
      ASSERT_THAT(faults_of(*program), IsEmpty());
      const auto evaluation = testing_support::unit_evaluation(plan, workload);
      ASSERT_THAT(faults_of(*evaluation, ProgramUse::Evaluation), IsEmpty());
    });
  }
}

TEST(OperatorProgram, IsSoundForReplicas)
{
  for (const std::string more : {"", "clip_norm: 1\n", "by_index: true\n"}) {
    const auto check = [](const Plan& plan, const Workload& workload) {
      ASSERT_THAT(faults_of_operators(plan, workload), IsEmpty());
      const auto program = testing_support::unit_program(plan, workload);
      ASSERT_THAT(faults_of(*program), IsEmpty());
      const auto evaluation = testing_support::unit_evaluation(plan, workload);
      ASSERT_THAT(faults_of(*evaluation, ProgramUse::Evaluation), IsEmpty());
    };
    for_random_plans(60, more, check, 3);
  }
}

/// Calls `visit` with random plans of one to three groups of every trunk, with one or two replicas.
template <typename Visit>
void for_random_groups(int count, const std::string& more, Visit visit)
{
  std::mt19937_64 random(11);
  const auto workloads = moes_by_operators(more);
  const std::vector<std::string> schedules = {"duplex", "duplex", "sequential", "1f1b", "gpipe"};
  for (int i = 0; i < count; ++i) {
    const Workload& workload = workloads[random() % workloads.size()];
    std::vector<std::vector<double>> shares(1 + random() % 3);
    for (auto& each : shares) each = all_shares[random() % all_shares.size()];
    const auto graph = *operator_graph_of(workload);
    const auto division = random_division(graph, spmd::Rules::Corrected, random, shares.size());
    const std::string& schedule = schedules[random() % schedules.size()];
    const std::size_t replicas = 1 + random() % 2;
    const Plan plan = plan_of_groups(graph, division, shares, schedule, 1 + random() % 7, replicas);
    SCOPED_TRACE(fmt::format("plan {}: {} groups, {} replicas, {}, {} micro-batches", i, shares.size(), replicas,
                             schedule, plan.goal.microbatches));
    visit(plan, workload);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(OperatorProgram, IsSoundForGroups)
{
  std::mt19937_64 random(3);
  for (const std::string more : {"", "clip_norm: 1\n", "by_index: true\n"}) {
    for_random_groups(60, more, [&](Plan plan, const Workload& workload) {
      if (random() % 2 == 0) add_random_buckets(plan, workload, random);
      ASSERT_THAT(faults_of_operators(plan, workload), IsEmpty());
      const auto program = testing_support::unit_program(plan, workload);
      ASSERT_THAT(faults_of(*program), IsEmpty());
      const auto evaluation = testing_support::unit_evaluation(plan, workload);
      ASSERT_THAT(faults_of(*evaluation, ProgramUse::Evaluation), IsEmpty());
      play_program(*program, uniform_rates(1, 1e9), 3);
    });
  }
}

TEST(OperatorProgram, OfGroupsWaitsForEveryMessage)
{
  Workload workload;
  std::mt19937_64 random(5);
  std::size_t chained = 0;
  for (const auto& shares : {std::vector<std::vector<double>>{equal_shares(6), {1}}, {{1}, equal_shares(6)}}) {
    workload = moes_by_operators().front();
    const auto graph = *operator_graph_of(workload);
    const auto division = random_division(graph, spmd::Rules::Corrected, random, 2);
    const Plan plan = plan_of_groups(graph, division, shares, "duplex", 3);
    const auto program = testing_support::unit_program(plan, workload);
    ASSERT_THAT(faults_of(*program), IsEmpty());
    const std::size_t middle = shares[0].size() == 1 ? 0 : 6;  // the rank that all others send to
    EditableProgram edited(*program);
    auto& listing = edited.listing[middle];
    // Each wait of a pass for a message, and each of a message for another one.
    for (std::size_t lane = 0; lane < listing.lanes.size(); ++lane) {
      for (auto& instruction : listing.instructions[lane]) {
        const Waits waits = instruction.waits;
        for (const Wait& left_out : waits) {
          const bool is_message = listing.lanes[left_out.lane].name.find("receive") == 0;
          if (!is_message) continue;
          if (instruction.opcode == Opcode::Recv) ++chained;
          instruction.waits = {};
          for (const Wait& wait : waits) {
            if (!(wait == left_out)) instruction.waits.add(wait);
          }
          EXPECT_THAT(faults_of(edited), Contains(HasSubstr("does not wait for the Recv at rank"))) << lane;
        }
        instruction.waits = waits;
      }
    }
    EXPECT_THAT(faults_of(edited), IsEmpty());
  }
  EXPECT_GT(chained, 0U);
}

TEST(OperatorProgram, OfGroupsSendsEachElementToTheDevicesThatHaveItThere)
{
  std::size_t messages = 0;
  for_random_groups(40, "", [&](const Plan& plan, const Workload& workload) {
    const OperatorPlan divided = operator_plan_of(plan, workload);
    const auto program = testing_support::unit_program(plan, workload);
    // What arrives at a rank in a step, by payload.
    std::map<std::pair<std::size_t, Payload>, double> arrived;
    for (std::size_t rank = 0; rank < program->ranks(); ++rank) {
      for (LaneId lane = 1; lane < program->lanes(rank).size(); ++lane) {
        for (std::uint64_t i = 0; i < program->length(rank, lane); ++i) {
          const Instruction each = program->at(rank, lane, i);
          if (each.opcode != Opcode::Recv) continue;
          ++messages;
          arrived[{rank, each.payload}] += each.size.value;
        }
      }
    }
    const auto microbatches = static_cast<double>(plan.goal.microbatches);
    for (std::size_t rank = 0; rank < program->ranks(); ++rank) {
      const OperatorPlace place = divided.place_of(rank);
      const spmd::Pieces pieces(divided.graph, divided.groups[place.group].shares);
      double activations = 0;
      double gradients = 0;
      const auto size = [&](std::size_t tensor) {
        return microbatches * pieces.size(tensor, divided.form_of(tensor), place.position).value;
      };
      if (place.group > 0) {
        for (const std::size_t tensor : divided.groups[place.group - 1].passes) activations += size(tensor);
      }
      for (const std::size_t tensor : divided.groups[place.group].passes) {
        if (divided.graph.has_gradient(tensor)) gradients += size(tensor);
      }
      ASSERT_NEAR((arrived[{rank, Payload::Activation}]), activations, 1e-9 * activations);
      ASSERT_NEAR((arrived[{rank, Payload::Gradient}]), gradients, 1e-9 * gradients);
    }
  });
  EXPECT_GT(messages, 1000U);
}

/// The lane of a rank with this name; none if it has no such lane.
std::optional<LaneId> lane_named(const Program& program, std::size_t rank, const std::string& name)
{
  const auto& lanes = program.lanes(rank);
  const auto found = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& lane) { return lane.name == name; });
  if (found == lanes.end()) return std::nullopt;
  return static_cast<LaneId>(found - lanes.begin());
}

TEST(OperatorProgram, OfEachReplicaIsThatOfItsSamples)
{
  const auto compare = [](const Plan& plan, const Workload& workload) {
    const std::size_t replicas = plan.stages.front().replicas.size();
    Plan one = plan;
    for (auto& stage : one.stages) stage.replicas.resize(1);
    const Workload samples = with_micro_batch(workload, workload.micro_batch / replicas);
    const auto whole = testing_support::unit_program(plan, workload);
    const auto part = testing_support::unit_program(one, samples);
    ASSERT_EQ(whole->ranks(), replicas * part->ranks());
    for (std::size_t rank = 0; rank < whole->ranks(); ++rank) {
      const std::size_t position = rank % part->ranks();
      EXPECT_EQ(whole->resident(rank, Tier::Device), part->resident(position, Tier::Device));
      for (const std::string name : {"compute", "collectives"}) {
        const auto lane = lane_named(*whole, rank, name);
        ASSERT_EQ(lane, lane_named(*part, position, name));
        if (!lane) continue;
        ASSERT_EQ(whole->length(rank, *lane), part->length(position, *lane));
        for (std::uint64_t i = 0; i < part->length(position, *lane); ++i) {
          const Instruction a = whole->at(rank, *lane, i);
          const Instruction b = part->at(position, *lane, i);
          ASSERT_EQ(a.opcode, b.opcode);
          ASSERT_EQ(a.payload, b.payload);
          ASSERT_EQ(a.stage, b.stage);
          ASSERT_EQ(a.microbatch, b.microbatch);
          ASSERT_EQ(a.place, b.place);
          ASSERT_NEAR(a.time.value, b.time.value, 1e-12 * b.time.value);
          ASSERT_EQ(a.size, b.size);
          ASSERT_EQ(a.result, b.result);
          ASSERT_EQ(a.acquires.size, b.acquires.size);
          ASSERT_EQ(a.releases.size, b.releases.size);
        }
      }
    }
  };
  for (const std::string more : {"", "clip_norm: 1\n"}) for_random_plans(40, more, compare, 3);
}

TEST(OperatorProgram, OfReplicasAddsUpWhatEachRankStoresOncePerPart)
{
  std::size_t sums = 0;
  const auto check = [&](const Plan& plan, const Workload& workload) {
    const OperatorPlan divided = operator_plan_of(plan, workload);
    const auto program = testing_support::unit_program(plan, workload);
    const spmd::Pieces pieces(divided.graph, divided.groups[0].shares);
    for (std::size_t rank = 0; rank < program->ranks(); ++rank) {
      const OperatorPlace place = divided.place_of(rank);
      std::map<std::uint32_t, double> bytes;
      for (std::size_t i = 0; i < divided.graph.operators.size(); ++i) {
        const auto& node = divided.graph.operators[i];
        if (node.kind != spmd::OperatorKind::Parameter || divided.replicas == 1) continue;
        const double part = pieces.part(node, divided.division.signatures[i], place.position);
        const auto stage = static_cast<std::uint32_t>(divided.division.part_of(i));
        const double size = part * size_of(workload.dtype) * static_cast<double>(workload.layers[i].parameters);
        if (size > 0) bytes[stage] += size;
      }
      const auto lane = lane_named(*program, rank, "replicas");
      ASSERT_EQ(lane.has_value(), !bytes.empty());
      if (!lane) continue;
      ASSERT_EQ(program->length(rank, *lane), bytes.size());
      const auto& ends = program->channels()[*program->lanes(rank)[*lane].channel].ends;
      ASSERT_EQ(ends.size(), divided.replicas);
      for (std::size_t r = 0; r < ends.size(); ++r) {
        EXPECT_EQ(ends[r].rank, divided.groups[0].rank_of(r, place.position));
      }
      std::uint64_t i = 0;
      for (auto each = bytes.rbegin(); each != bytes.rend(); ++each, ++i) {
        const Instruction sum = program->at(rank, *lane, i);
        EXPECT_EQ(sum.stage, each->first);
        EXPECT_NEAR(sum.size.value, each->second, 1e-9 * each->second);
        ++sums;
      }
    }
  };
  for_random_plans(40, "", check, 3);
  EXPECT_GT(sums, 100U);
}

TEST(OperatorProgram, EndsWithTheMemoryThatItBeganWith)
{
  for_random_plans(30, "", [](const Plan& plan, const Workload& workload) {
    const auto program = testing_support::unit_program(plan, workload);
    const auto rates = uniform_rates(0, 1e9);
    const auto once = play_program(*program, rates, 1);
    const auto thrice = play_program(*program, rates, 3);
    for (std::size_t rank = 0; rank < program->ranks(); ++rank) {
      ASSERT_GE(once.peak_memory[rank][0], program->resident(rank, Tier::Device));
      ASSERT_GE(thrice.peak_memory[rank][0], once.peak_memory[rank][0]);
    }
  });
}

TEST(OperatorProgram, GathersAParameterOnceThePartThatStoresItIsUpdated)
{
  std::size_t gathered_later = 0;
  for_random_plans(30, "", [&](const Plan& plan, const Workload& workload) {
    const auto program = testing_support::unit_program(plan, workload);
    const auto reforms = operator_plan_of(plan, workload).reforms;
    for (LaneId lane = 1; lane < program->lanes(0).size(); ++lane) {
      for (std::uint64_t k = 0; k < program->length(0, lane); ++k) {
        const Instruction instruction = program->at(0, lane, k);
        if (instruction.payload != Payload::Parameter) continue;
        const std::size_t stored_in = reforms[instruction.place].made_in;
        if (stored_in < instruction.stage) ++gathered_later;
        ASSERT_FALSE(instruction.waits.empty());
        const Wait wait = *instruction.waits.begin();
        ASSERT_EQ(wait.periods_back, 1U);
        const Instruction awaited = program->at(0, wait.lane, wait.count - 1);
        ASSERT_EQ(awaited.opcode, Opcode::Update);
        ASSERT_EQ(awaited.stage, stored_in);
      }
    }
  });
  EXPECT_GT(gathered_later, 0U);
}

/// The forwards of a plan under duplex, without backwards.
std::unique_ptr<Program> forwards_of(const Plan& plan, const Workload& workload)
{
  std::vector<Run> runs;
  for (std::uint32_t part = 0; part < plan.stages.size(); ++part) {
    runs.push_back({plan.goal.microbatches, {{{Opcode::Forward, part, 0}, 1}}});
  }
  const std::size_t ranks = plan.stages.front().replicas.front().shards.size();
  return testing_support::unit_program(plan, workload, std::vector<Order>(ranks, Order(std::move(runs))));
}

/// Forward times of a part: of a micro-batch on the slowest rank, and of its reforms.
struct PartTimes {
  double compute = 0;
  double reforms = 0;
  bool gathers_parameters = false;
};

std::vector<PartTimes> part_times(const Program& program, const Plan& plan, const PlayerRates& rates)
{
  std::vector<PartTimes> parts(plan.stages.size());
  play_program(program, rates, 1, [&](const Turn& turn, Seconds begin, Seconds end) {
    const Instruction& instruction = turn.instruction;
    PartTimes& part = parts[instruction.stage];
    if (instruction.opcode == Opcode::Forward) part.compute = std::max(part.compute, (end - begin).value);
    if (instruction.payload == Payload::Parameter) part.gathers_parameters = true;
    if (turn.at.rank == 0 && is_collective(instruction.opcode) && instruction.microbatch == 0) {
      part.reforms += (end - begin).value;
    }
  });
  return parts;
}

/// Compares the forwards of random plans with their phases, in which devices compute so much slower.
void compare_with_phases(double interference)
{
  const auto phase = [&](double compute, double reforms) {
    const double slowed = interference * compute;
    return slowed <= reforms ? reforms : reforms + (compute - reforms / interference);
  };
  int compared = 0;
  for_random_plans(200, "", [&](Plan plan, const Workload& workload) {
    plan.goal.microbatches = 2;
    const auto program = forwards_of(plan, workload);
    auto rates = uniform_rates(50, 10);
    const auto parts = part_times(*program, plan, rates);
    rates.interference.assign(program->ranks(), interference);
    const auto is_equal = [&](const Shard& shard) { return shard.share == plan.stages[0].replicas[0].shards[0].share; };
    const auto& shards = plan.stages[0].replicas[0].shards;
    const bool has_equal_shares = std::all_of(shards.begin(), shards.end(), is_equal);
    double phases = 0;
    double debt = 0;
    for (const auto& part : parts) {
      phases += phase(debt, part.reforms) + phase(part.compute, part.reforms);
      debt = part.compute;
    }
    phases += debt;
    const double step = play_program(*program, rates).periods[0].step_time.value;
    const bool gathers =
        std::any_of(parts.begin(), parts.end(), [](const auto& part) { return part.gathers_parameters; });
    if (gathers || !has_equal_shares) {
      // Parameters may come earlier, and devices with less to do wait for each other at collectives only.
      ASSERT_LE(step, phases * (1 + 1e-9));
    } else {
      ++compared;
      ASSERT_NEAR(step, phases, 1e-9 * phases);
    }
  });
  EXPECT_GT(compared, 20);
}

TEST(Duplex, OfTwoHalvesTakesThePublishedPhases)
{
  compare_with_phases(1);
}

TEST(Duplex, OfTwoHalvesTakesPhasesInWhichComputationsAreSlowedDown)
{
  compare_with_phases(1.14);
  compare_with_phases(3);
}

TEST(OperatorProgram, HasTheTimesOfItsOperatorsAtTheRatesOfTheirDevices)
{
  const std::map<std::string, spmd::DeviceRates> rates = {
      {"slow", {FlopsPerSecond(1e6), BytesPerSecond(1e5), Seconds(1e-3), {{Flops(100), 0.125}, {Flops(5000), 0.5}}}},
      {"fast", {FlopsPerSecond(1e8), BytesPerSecond(1e9), Seconds(1e-5)}}};
  for_random_plans(30, "", [&](Plan plan, Workload workload) {
    workload.operator_rates = rates;
    Cluster devices = testing_support::devices_at(FlopsPerSecond(1), plan);
    for (std::size_t i = 0; i < devices.devices.size(); ++i) {
      devices.devices[i].type = i % 2 == 0 ? "slow" : "fast";
      devices.devices[i].speed = rates.at(devices.devices[i].type).flops;
    }
    const auto program = make_program(plan, workload, devices);
    const auto divided = operator_plan_of(plan, workload);
    const spmd::Pieces pieces(divided.graph, divided.groups.front().shares);
    for (std::size_t rank = 0; rank < program->ranks(); ++rank) {
      const auto& its = rates.at(rank % 2 == 0 ? "slow" : "fast");
      std::vector<spmd::OperatorTimes> times(divided.division.parts.size());
      std::vector<double> updates(times.size(), 0);
      for (std::size_t i = 0; i < divided.graph.operators.size(); ++i) {
        const auto& node = divided.graph.operators[i];
        const auto& signature = divided.division.signatures[i];
        const std::size_t part = divided.division.part_of(i);
        const auto one = spmd::operator_times(node, spmd::piece_of(node, signature, pieces, rank), its);
        times[part].forward += one.forward;
        times[part].backward += one.backward;
        if (node.kind != spmd::OperatorKind::Parameter) continue;
        const double parameters =
            pieces.part(node, signature, rank) * static_cast<double>(workload.layers[i].parameters);
        updates[part] += std::max(12 * parameters / its.flops.value, 28 * parameters / its.memory_bandwidth->value);
      }
      for (std::uint64_t i = 0; i < program->length(rank, compute_lane); ++i) {
        const Instruction each = program->at(rank, compute_lane, i);
        const double taken = each.time.value;
        const double expected = each.opcode == Opcode::Forward    ? times[each.stage].forward.value
                                : each.opcode == Opcode::Backward ? times[each.stage].backward.value
                                                                  : updates[each.stage];
        ASSERT_NEAR(taken, expected, 1e-12 * expected);
      }
    }
  });
}

/// Layers of attention by heads and a network by columns, with the same work, and AllReduces of the same size between.
Plan equal_parts(Workload& workload, std::uint64_t layers, std::size_t devices)
{
  workload = workload_from_text(
      fmt::format("model: moe\ntrunk: plain\nunit: operator\nlayers: {}\nhidden: 16\nheads: 4\nsequence: 16\n"
                  "intermediate: 48\nmicro_batch: 2\n",
                  layers),
      "x.yaml");
  const auto graph = *operator_graph_of(workload);
  spmd::Division division;
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    const auto& node = graph.operators[i];
    const auto known = spmd::signatures_of(graph, node, spmd::Rules::Corrected);
    const auto choose = [&](auto fits) {
      const auto found = std::find_if(known.begin(), known.end(), fits);
      division.signatures.push_back(found == known.end() ? known.back() : *found);
    };
    const auto divides = [&](std::size_t output, std::uint8_t dimension) {
      return [=](const spmd::Signature& each) { return each.outputs[output] == spmd::gather(dimension); };
    };
    const auto adds = [](const spmd::Signature& each) {
      return each.outputs[0] == spmd::reduce && each.inputs[0].kind == spmd::Form::Kind::Gather;
    };
    const std::string name = node.name.substr(node.name.find('.') + 1);
    using Kind = spmd::OperatorKind;
    const bool begins = name == "dropout1" || name == "dropout2" || node.kind == Kind::Output;
    if (i == 0 || begins) division.parts.push_back(i);
    if (node.kind == Kind::Data) {
      choose([](const spmd::Signature& each) { return each.outputs[0] == spmd::full; });
    } else if (name == "qkv") {
      choose(divides(0, 3));
    } else if (name == "split_heads" || name == "scores" || name == "softmax" || name == "attention_dropout" ||
               name == "context") {
      choose(divides(0, 1));
    } else if (name == "merge_heads" || name == "linear1" || name == "relu" || name == "dropout") {
      choose(divides(0, 2));
    } else if (name == "out" || name == "linear2") {
      choose(adds);
    } else if (name == "out.bias" || name == "linear2.bias") {
      division.signatures.push_back({{}, {spmd::gather(0)}});  // slices of it are addends
    } else if (node.kind == Kind::Parameter) {
      division.signatures.push_back({{}, {spmd::replicate}});
    } else if (node.kind == Kind::Output) {
      choose([](const spmd::Signature&) { return true; });
    } else {
      choose([](const spmd::Signature& each) {
        return std::all_of(each.inputs.begin(), each.inputs.end(), [](auto form) { return form == spmd::full; });
      });
    }
  }
  return testing_support::plan_of(graph, division, equal_shares(devices), "duplex", 2);
}

TEST(Duplex, OfEqualPartsTakesTheClosedForm)
{
  Workload workload;
  for (const std::uint64_t layers : {1, 2, 5}) {
    Plan plan = equal_parts(workload, layers, 2);
    ASSERT_THAT(faults_of_operators(plan, workload), IsEmpty());
    for (const std::uint64_t k : {1, 2, 4, 7}) {
      for (const double bandwidth : {0.01, 0.1, 1.0, 10.0, 1000.0}) {
        plan.goal.microbatches = k;
        const auto program = forwards_of(plan, workload);
        const auto rates = uniform_rates(0, bandwidth);
        const auto parts = part_times(*program, plan, rates);
        const double p = parts[0].compute;
        const double c = parts[1].reforms;
        const auto n = static_cast<double>(2 * layers);
        const auto halves = static_cast<double>(k);
        // After n equal parts, one that only adds up what it has reformed, and one for the loss.
        const double expected = k == 1 ? n * (p + c) : std::max(halves * n * p + c, p + n * halves * c);
        ASSERT_EQ(parts.size(), n + 2);
        ASSERT_NEAR(parts[1].compute, p, 1e-9 * p);
        EXPECT_NEAR(play_program(*program, rates).periods[0].step_time.value, expected, 1e-9 * expected)
            << layers << " layers, k " << k << ", p " << p << ", c " << c;
      }
    }
  }
}

TEST(OperatorProgram, ReformsParametersOnceAStepAndOtherTensorsForEachMicroBatch)
{
  for_random_plans(40, "", [](const Plan& plan, const Workload& workload) {
    const auto program = testing_support::unit_program(plan, workload);
    const auto divided = operator_plan_of(plan, workload);
    if (program->ranks() == 1) return;
    std::map<std::pair<std::uint32_t, bool>, std::uint64_t> times;
    for (std::uint64_t i = 0; i < program->length(0, 1); ++i) {
      const Instruction each = program->at(0, 1, i);
      ++times[{each.place, each.payload == Payload::Parameter || each.payload == Payload::Activation}];
    }
    for (const auto& [reform, count] : times) {
      const bool is_parameter = divided.reforms[reform.first].is_parameter;
      ASSERT_EQ(count, is_parameter ? 1 : plan.goal.microbatches);
    }
  });
}

TEST(OperatorProgram, IsSoundWithBucketsAndWithoutSums)
{
  std::mt19937_64 random(13);
  for (const std::string more : {"", "clip_norm: 1\n"}) {
    for_random_plans(60, more, [&](Plan plan, const Workload& workload) {
      const auto rates = uniform_rates(0, 1e9);
      const auto each = testing_support::unit_program(plan, workload);
      add_random_buckets(plan, workload, random);
      ASSERT_THAT(faults_of_operators(plan, workload), IsEmpty());
      const auto joined = testing_support::unit_program(plan, workload);
      ASSERT_THAT(faults_of(*joined), IsEmpty());
      for (std::size_t rank = 0; rank < each->ranks(); ++rank) {
        EXPECT_EQ(joined->resident(rank, Tier::Device), each->resident(rank, Tier::Device));
      }
      play_program(*joined, rates, 3);
      plan.sync = {.adds_replicas = false};
      const auto none = testing_support::unit_program(plan, workload);
      ASSERT_THAT(faults_of(*none), IsEmpty());
    });
  }
}

TEST(OperatorProgram, AddsUpEachBucketWhenBackwardHasMadeItsLastGradient)
{
  std::mt19937_64 random(17);
  int buckets = 0;
  for_random_plans(60, "", [&](Plan plan, const Workload& workload) {
    add_random_buckets(plan, workload, random);
    const OperatorPlan divided = operator_plan_of(plan, workload);
    const auto program = testing_support::unit_program(plan, workload);
    if (program->ranks() == 1) return;
    std::size_t next = 0;
    for (std::uint64_t i = 0; i < program->length(0, 1); ++i) {
      const Instruction each = program->at(0, 1, i);
      if (each.payload != Payload::ParameterGradient || each.opcode != Opcode::AllReduce) continue;
      ASSERT_LT(next, divided.buckets.size());
      const auto& bucket = divided.buckets[next++];
      Bytes size;
      for (const std::size_t reform : bucket) size += divided.graph.tensors[divided.reforms[reform].tensor].size;
      EXPECT_EQ(each.place, bucket.back());
      EXPECT_EQ(each.stage, divided.reforms[bucket.back()].part);
      EXPECT_EQ(each.size, size);
      EXPECT_EQ(each.first_layer, divided.division.parts[divided.reforms[bucket.back()].part]);
      EXPECT_EQ(each.last_layer, divided.division.end_of(divided.reforms[bucket.front()].part) - 1);
      ASSERT_EQ(each.waits.size(), 1U);
      const Instruction last = program->at(0, compute_lane, each.waits.begin()->count - 1);
      EXPECT_EQ(last.opcode, Opcode::Backward);
      EXPECT_EQ(last.stage, each.stage);
      ++buckets;
    }
    EXPECT_EQ(next, divided.buckets.size());
    EXPECT_EQ(next, plan.sync.bucket_ends.size());
  });
  EXPECT_GT(buckets, 50);
}

}  // namespace
}  // namespace isobar::schedules::operator_program_test
