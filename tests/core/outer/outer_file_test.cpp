#include "core/outer/outer.hpp"

#include "core/errors.hpp"
#include "core/program/collective.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace isobar::outer_file_test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::TemporaryFolder;

Plan plan_on(const std::string& device)
{
  Plan plan;
  plan.allocator = "even";
  plan.goal = testing_support::goal_under("1f1b", 2);
  plan.stages = {stage_on(device, 0, 3)};
  plan.objective = Seconds(1);
  plan.objective_bound = Seconds(1);
  plan.step_bound = Seconds(1);
  plan.predicted = Predicted{.step_time = Seconds(1), .bottleneck = Seconds(1), .sequential = Seconds(1)};
  plan.predicted->pipeline = Seconds(1);
  plan.predicted->peak_memory[device] = Bytes(8);
  plan.platform = {"p.xml", "1"};
  plan.workload = {"w.yaml", "2"};
  return plan;
}

OuterPlan sample()
{
  OuterPlan plan;
  plan.outer = {.steps = 20, .fragments = 2, .delay = 3, .algorithm = Algorithm::Direct};
  plan.outer.codec = codec_from_text("int8");
  plan.workers = {{"here", 20, plan_on("a")}, {"there", 10, plan_on("b")}};
  plan.left_out = {{"far", "too slow"}};
  plan.predicted = {Seconds(25), Seconds(20), {{"here", "there", Bytes(7)}}};
  plan.round_bound = Seconds(19);
  return plan;
}

TEST(OuterPlanFile, SurvivesWriteThenRead)
{
  const TemporaryFolder folder;
  const auto file = folder.write("rounds.json", outer_plan_to_json(sample()));
  EXPECT_TRUE(is_outer_plan(file));
  const OuterPlan read = read_outer_plan(file);
  EXPECT_EQ(outer_plan_to_json(read), outer_plan_to_json(sample()));
  EXPECT_EQ(read.outer, sample().outer);
  EXPECT_EQ(read.workers[1].name, "there");
  EXPECT_EQ(read.left_out[0].reason, "too slow");
  EXPECT_EQ(read.predicted.traffic[0].bytes, Bytes(7));
}

/// The faults of the sample in which `from` is replaced by `to`.
std::string fault_of(const std::string& from, const std::string& to)
{
  std::string text = outer_plan_to_json(sample());
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const TemporaryFolder folder;
  const auto file = folder.write("r.json", text);
  try {
    read_outer_plan(file);
  } catch (const InputError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    const auto name = message.find("r.json:");
    EXPECT_NE(name, std::string::npos) << message;
    return message.substr(name);
  }
  ADD_FAILURE() << "no fault: " << to;
  return "";
}

TEST(OuterPlanFile, HasOneLineForEachWrongKey)
{
  const struct {
    std::string from;
    std::string to;
    std::string fault;
  } cases[] = {
      {R"("steps": 20)", R"("steps": 0)", R"(outer.steps: "0" is out of range; write a whole number from 1 to 100000)"},
      {R"("steps": 20)", R"("steps": -1)", "outer.steps: "},
      {R"("steps": 20)", R"("steps": 1.5)", "outer.steps: "},
      {R"("steps": 20)", R"("steps": "20")", "outer.steps: "},
      {R"("steps": 20)", R"("steps": 20, "step": 20)", "outer.step: unknown key; the keys here are algorithm, codec"},
      {R"("fragments": 2)", R"("fragments": 0)",
       R"(outer.fragments: "0" is out of range; write a whole number from 1 to 1000)"},
      {R"("fragments": 2)", R"("fragments": 21)", "outer.fragments: 21, more than the 20 steps of a round"},
      {R"("fragments": 2)", R"("fragments": null)", "outer.fragments: "},
      {R"("delay": 3)", R"("delay": 10)", "workers[1].steps: 10, no more than outer.delay, 10"},
      {R"("delay": 3)", R"("delay": true)", "outer.delay: "},
      {R"("algorithm": "direct")", R"("algorithm": "tree")",
       R"(outer.algorithm: "tree" is not one of ring, direct, server)"},
      {R"("codec": "int8")", R"("codec": "int7")", R"(outer.codec: "int7" is no codec; write fp32, bf16, int8, int4)"},
      {R"("codec": "int8")", R"("codec": "top-k 2")", R"(outer.codec: "top-k 2" is no codec)"},
      {R"("codec": "int8")", R"("codec": 8)", "outer.codec: "},
      {R"("learning_rate": 0.7)", R"("learning_rate": -0.7)", "outer.learning_rate: "},
      {R"("learning_rate": 0.7)", R"("learning_rate": "fast")", "outer.learning_rate: "},
      {R"("momentum": 0.9)", R"("momentum": 1)", "outer.momentum: 1 is not below 1"},
      {R"("mixing": 0.0)", R"("mixing": 1.0)", "outer.mixing: 1 is not below 1"},
      {R"("name": "there")", R"("name": "here")",
       R"(workers[1].name: "here" is the name of another worker too; give each its own)"},
      {R"("steps": 10)", R"("steps": 30)", "workers[1].steps: 30, more than outer.steps, 20"},
      {R"("steps": 10)", R"("steps": 2)", "workers[1].steps: 2, no more than outer.delay, 3"},
      {R"("b": 8.0)", R"("b": "much")", "workers[1].plan.predicted.peak_memory_bytes.b: "},
      {R"("name": "b")", R"("name": "a")", R"(workers[1].plan: uses device "a", which another worker has)"},
      {R"("schema": "isobar-rounds/1")", R"("schema": "isobar-rounds/2")",
       R"(schema: "isobar-rounds/2" is not isobar-rounds/1)"},
      {R"("round_time_s": 25.0)", R"("round_time_s": -25.0)", "predicted.round_time_s: "},
      {R"("bytes": 7.0)", R"("bytes": "7 B")", "predicted.traffic[0].bytes: "},
      {R"("to": "there")", R"("to": 3)", "predicted.traffic[0].to: "},
      {R"("round_bound_s": 19.0)", R"("round_bound_s": "19")", "round_bound_s: "},
      {R"("site": "far")", R"("site": 3)", "left_out[0].site: "},
      {R"("allocator": "diloco")", R"("allocator": 1)", "allocator: "},
      {R"("search_s": 0.0)", R"("search_s": [])", "wall.search_s: "},
  };
  for (const auto& [from, to, fault] : cases) {
    std::string found = fault_of(from, to);
    found.erase(0, found.find(": ") + 2);
    EXPECT_THAT(found, HasSubstr(fault)) << to;
  }
}

TEST(OuterPlanFile, IsRefusedWithOneWorkerAndWithWorkloadsThatDiffer)
{
  const TemporaryFolder folder;
  OuterPlan one = sample();
  one.workers.pop_back();
  EXPECT_THAT([&] { read_outer_plan(folder.write("one.json", outer_plan_to_json(one))); },
              ThrowsMessage<InputError>(HasSubstr("workers: has 1; rounds need 2 or more")));
  OuterPlan other = sample();
  other.workers[1].plan.workload = {"v.yaml", "3"};
  EXPECT_THAT([&] { read_outer_plan(folder.write("other.json", outer_plan_to_json(other))); },
              ThrowsMessage<InputError>(
                  HasSubstr("workers: the plan of there is for workload v.yaml, that of here for w.yaml")));
}

TEST(OuterPlanFile, IsNoPlanOfSteps)
{
  const TemporaryFolder folder;
  const auto file = folder.write("rounds.json", outer_plan_to_json(sample()));
  EXPECT_THAT([&] { read_plan(file); },
              ThrowsMessage<InputError>(HasSubstr("schema: isobar-rounds/1, a plan of rounds")));
  EXPECT_FALSE(is_outer_plan(folder.write("plan.json", plan_to_json(plan_on("a")))));
  EXPECT_FALSE(is_outer_plan(folder.write("no.json", "{")));
  EXPECT_FALSE(is_outer_plan(folder.path() / "none.json"));
}

TEST(Outer, TakesSnapshotsAtEqualDistancesAndTheLastAtTheEnd)
{
  EXPECT_EQ(snapshot_steps(20, 1), (std::vector<std::uint64_t>{20}));
  EXPECT_EQ(snapshot_steps(20, 4), (std::vector<std::uint64_t>{5, 10, 15, 20}));
  EXPECT_EQ(snapshot_steps(7, 3), (std::vector<std::uint64_t>{3, 5, 7}));
  EXPECT_EQ(snapshot_steps(3, 3), (std::vector<std::uint64_t>{1, 2, 3}));
}

TEST(Outer, CountsTheSamplesOfAllWorkers)
{
  OuterPlan plan = sample();
  EXPECT_EQ(samples_of_round(plan, 4), (20U + 10U) * 2 * 4);
  plan.workers[1].plan.micro_batch = 8;
  EXPECT_EQ(samples_of_round(plan, 4), 20U * 2 * 4 + 10U * 2 * 8);
}

TEST(Outer, SaysWhatRoundsDoToTheResult)
{
  Outer outer;
  EXPECT_THAT(numerics_note(outer), HasSubstr("same samples, not the same loss"));
  EXPECT_THAT(numerics_note(outer), testing::Not(HasSubstr("changes the numerics")));
  outer.codec = codec_from_text("int8");
  outer.delay = 2;
  EXPECT_THAT(numerics_note(outer), HasSubstr("codec int8 changes the numerics; updates come 2 steps late"));
}

/// The bytes that pass between the first `inside` ends and the others, in the larger direction.
double crossing_bytes(const std::vector<Round>& rounds, std::size_t inside)
{
  double there = 0;
  double back = 0;
  for (const auto& round : rounds) {
    for (const auto& flow : round) {
      if ((flow.from < inside) == (flow.to < inside)) continue;
      (flow.from < inside ? there : back) += flow.size().value;
    }
  }
  return std::max(there, back);
}

TEST(Outer, HierarchicalSyncCrossesTheWanWithEightFifteenthsOfAFlatRing)
{
  constexpr std::size_t replicas = 8;
  const std::vector<Bytes> size(2 * replicas, Bytes(16e6));
  std::vector<std::string> sites(replicas, "a");
  sites.resize(2 * replicas, "b");
  const double flat = crossing_bytes(rounds_of(Opcode::AllReduce, size, Algorithm::Ring), replicas);
  const double hierarchical =
      crossing_bytes(rounds_of(Opcode::AllReduce, size, Algorithm::Hierarchical, sites), replicas);
  EXPECT_DOUBLE_EQ(flat, 1.875 * 16e6);
  EXPECT_DOUBLE_EQ(hierarchical, 1.0 * 16e6);
}

}  // namespace
}  // namespace isobar::outer_file_test
