#include "allocators/played_plan.hpp"
#include "core/check/plan_checker.hpp"
#include "core/check/played_checker.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/support/divisions.hpp"
#include "tests/support/instances.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

namespace isobar::allocators::operator_costs_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> faults(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  auto found = faults_of(plan, workload, cluster);
  if (!found.empty()) return found;
  return faults_of_played(plan, workload, cluster, *schedules::make_program(plan, workload, cluster));
}

Plan random_plan(const Workload& workload, const std::vector<double>& shares, std::mt19937_64& random,
                 std::size_t replicas = 1)
{
  const auto graph = *operator_graph_of(workload);
  const auto division = random_division(graph, spmd::Rules::Corrected, random);
  Plan plan = testing_support::plan_of(graph, division, shares, random() % 3 == 0 ? "sequential" : "duplex",
                                       1 + random() % 4, replicas);
  plan.platform.name = "p.xml";
  plan.workload.name = "w.yaml";
  return plan;
}

/// Passes a program on with one change.
class ChangedProgram : public Program {
 public:
  ChangedProgram(const Program& program, std::function<void(Instruction&)> change)
      : program_(program), change_(std::move(change))
  {
  }
  std::size_t ranks() const override { return program_.ranks(); }
  const std::vector<Lane>& lanes(std::size_t rank) const override { return program_.lanes(rank); }
  const std::vector<Channel>& channels() const override { return program_.channels(); }
  Bytes resident(std::size_t rank, Tier tier) const override { return program_.resident(rank, tier); }
  std::uint64_t length(std::size_t rank, LaneId lane) const override { return program_.length(rank, lane); }
  Instruction at(std::size_t rank, LaneId lane, std::uint64_t position) const override
  {
    Instruction instruction = program_.at(rank, lane, position);
    change_(instruction);
    return instruction;
  }

 private:
  const Program& program_;
  std::function<void(Instruction&)> change_;
};

TEST(PlansThatDivideOperators, MakeClaimsThatTheirCheckerFindsToo)
{
  std::mt19937_64 random(11);
  const std::vector<std::vector<double>> all_shares = {{1},          equal_shares(2), equal_shares(4),
                                                       {0.25, 0.75}, {0.5, 0, 0.5},   {1.0 / 6, 1.0 / 3, 0.5}};
  for (const std::string more : {"", "clip_norm: 1\n", "capacity_samples: 3\n", "by_index: true\n"}) {
    for (const auto& workload : moes_by_operators(more)) {
      for (const auto& shares : all_shares) {
        std::vector<double> speeds;
        for (std::size_t i = 0; i < shares.size(); ++i) speeds.push_back(1e6 * static_cast<double>(1 + i));
        const Cluster devices = cluster(speeds, {Seconds(1e-4), BytesPerSecond(1e7)});
        Plan plan = random_plan(workload, shares, random);
        const auto way = random() % 3;
        if (way == 0) add_random_buckets(plan, workload, random);
        if (way == 1) plan.sync.adds_replicas = false;
        price_by_playing(plan, workload, devices);
        ASSERT_THAT(faults(plan, workload, devices), IsEmpty());
        EXPECT_LE(*plan.step_bound, *plan.objective);
        EXPECT_LE(*plan.objective_bound, *plan.objective);
        const Plan read = plan_from_json(plan_to_json(plan), "plan.json");
        EXPECT_THAT(faults(read, workload, devices), IsEmpty());
      }
    }
  }
}

TEST(PlansThatDivideOperators, OfReplicasMakeClaimsThatTheirCheckerFindsToo)
{
  std::mt19937_64 random(23);
  const std::vector<std::vector<double>> all_shares = {{1},          equal_shares(2), equal_shares(3),
                                                       {0.25, 0.75}, {0.5, 0, 0.5},   {1.0 / 6, 1.0 / 3, 0.5}};
  for (const std::string more : {"", "clip_norm: 1\n", "by_index: true\n"}) {
    for (const auto& workload : moes_by_operators(more)) {
      for (const auto& shares : all_shares) {
        for (const std::size_t replicas : {2, 3}) {
          std::vector<double> speeds;
          for (std::size_t i = 0; i < replicas * shares.size(); ++i) {
            speeds.push_back(1e6 * static_cast<double>(1 + i));
          }
          const Cluster devices = cluster(speeds, {Seconds(1e-4), BytesPerSecond(1e7)});
          Plan plan = random_plan(workload, shares, random, replicas);
          plan.sync.algorithm = random() % 2 == 0 ? Algorithm::Ring : Algorithm::Tree;
          if (random() % 2 == 0) add_random_buckets(plan, workload, random);
          price_by_playing(plan, workload, devices);
          ASSERT_THAT(faults(plan, workload, devices), IsEmpty());
          EXPECT_LE(*plan.step_bound, *plan.objective);
          const Plan read = plan_from_json(plan_to_json(plan), "plan.json");
          EXPECT_THAT(faults(read, workload, devices), IsEmpty());
        }
      }
    }
  }
}

TEST(PlansThatDivideOperators, OfGroupsMakeClaimsThatTheirCheckerFindsToo)
{
  std::mt19937_64 random(29);
  const std::vector<std::vector<double>> all_shares = {{1},          equal_shares(2), equal_shares(3),
                                                       {0.25, 0.75}, {0.5, 0, 0.5},   {1.0 / 6, 1.0 / 3, 0.5}};
  for (const std::string more : {"", "clip_norm: 1\n", "by_index: true\n"}) {
    for (const auto& workload : moes_by_operators(more)) {
      for (int i = 0; i < 12; ++i) {
        const std::size_t replicas = 1 + random() % 2;
        std::vector<std::vector<double>> shares(2 + random() % 2);
        std::vector<double> speeds;
        for (auto& each : shares) {
          each = all_shares[random() % all_shares.size()];
          for (std::size_t k = 0; k < replicas * each.size(); ++k) {
            speeds.push_back(1e6 * static_cast<double>(1 + speeds.size()));
          }
        }
        const Cluster devices = cluster(speeds, {Seconds(1e-4), BytesPerSecond(1e7)});
        const auto graph = *operator_graph_of(workload);
        const auto division = random_division(graph, spmd::Rules::Corrected, random, shares.size());
        Plan plan =
            plan_of_groups(graph, division, shares, random() % 3 == 0 ? "1f1b" : "duplex", 1 + random() % 5, replicas);
        plan.platform.name = "p.xml";
        plan.workload.name = "w.yaml";
        price_by_playing(plan, workload, devices);
        ASSERT_THAT(faults(plan, workload, devices), IsEmpty());
        EXPECT_LE(*plan.step_bound, *plan.objective);
        const std::string text = plan_to_json(plan);
        const Plan read = plan_from_json(text, "plan.json");
        EXPECT_EQ(plan_to_json(read), text);
        EXPECT_THAT(faults(read, workload, devices), IsEmpty());
        // Messages that are too small, or to another stage.
        const auto program = schedules::make_program(plan, workload, devices);
        const ChangedProgram smaller(*program, [](Instruction& each) {
          if (is_transfer(each.opcode)) each.size = each.size * 0.5;
        });
        EXPECT_THAT(faults_of_played(plan, workload, devices, smaller),
                    Contains(HasSubstr("what both have of the tensors between is")));
      }
    }
  }
}

TEST(PlansThatDivideOperators, AreRefusedWithOtherClaims)
{
  std::mt19937_64 random(2);
  const Workload workload = moes_by_operators().front();
  const Cluster devices = cluster({1e6, 1e6}, {Seconds(1e-4), BytesPerSecond(1e7)});
  const std::vector<std::pair<std::function<void(Plan&)>, std::string>> changes = {
      {[](Plan& plan) { plan.predicted->step_time = plan.predicted->step_time * 0.99; }, "predicted.step_time_s"},
      {[](Plan& plan) { plan.predicted->bottleneck = plan.predicted->bottleneck * 1.01; }, "predicted.bottleneck_s"},
      {[](Plan& plan) { plan.predicted->sequential = plan.predicted->sequential * 1.01; }, "predicted.sequential_s"},
      {[](Plan& plan) { *plan.predicted->pipeline = *plan.predicted->pipeline * 1.01; }, "predicted.pipeline_s"},
      {[](Plan& plan) { plan.predicted->peak_memory["d1"] = Bytes(1); }, "predicted.peak_memory_bytes"},
      {[](Plan& plan) { *plan.step_bound = *plan.step_bound * 1.01; }, "step_bound_s"},
      {[](Plan& plan) { plan.schedule_bound = Seconds(1e-9); }, "schedule_bound_s"},
      {[](Plan& plan) { plan.stages[0].splits[0].split = "-> reduce"; }, "stages[0].splits: embedding.x"},
      {[](Plan& plan) { plan.stages.back().replicas[0].shards[0].share = 0.25; }, "all divide operators alike"}};
  Plan plan = random_plan(workload, equal_shares(2), random);
  price_by_playing(plan, workload, devices);
  for (const auto& [change, text] : changes) {
    Plan changed = plan;
    change(changed);
    EXPECT_THAT(faults(changed, workload, devices), Contains(HasSubstr(text)));
  }
}

TEST(PlansThatDivideOperators, AddUpReplicasUnlessTheySayOtherwise)
{
  std::mt19937_64 random(8);
  const Workload workload = moes_by_operators().front();
  const Cluster devices = cluster({1e6, 1e6}, {Seconds(1e-4), BytesPerSecond(1e7)});
  Plan plan = random_plan(workload, equal_shares(2), random);
  price_by_playing(plan, workload, devices);
  const auto program_with = [&](const Sync& sync) {
    Plan other = plan;
    other.sync = sync;
    return schedules::make_program(other, workload, devices);
  };
  const auto none = program_with({.adds_replicas = false});
  EXPECT_THAT(faults_of_played(plan, workload, devices, *none),
              Contains(HasSubstr("its program has AllReduce of parameter gradient 0 times with 0 B")));
  Plan drifting = plan;
  drifting.sync.adds_replicas = false;
  price_by_playing(drifting, workload, devices);
  EXPECT_THAT(faults_of_played(drifting, workload, devices, *none), IsEmpty());
  EXPECT_THAT(faults_of_played(drifting, workload, devices, *program_with({})),
              Contains(HasSubstr("AllReduce of parameter gradient; no reform needs it")));
  Plan joined = plan;
  add_random_buckets(joined, workload, random);
  EXPECT_THAT(faults_of_played(plan, workload, devices, *program_with(joined.sync)),
              Contains(HasSubstr("its program has AllReduce of parameter gradient")));
}

TEST(PlansThatDivideOperators, AreComparedWithTheirProgram)
{
  std::mt19937_64 random(4);
  const Workload workload = moes_by_operators().front();
  const Cluster devices = cluster({1e6, 1e6}, {Seconds(1e-4), BytesPerSecond(1e7)});
  Plan plan = random_plan(workload, equal_shares(2), random);
  price_by_playing(plan, workload, devices);
  const auto program = schedules::make_program(plan, workload, devices);
  const auto found = [&](const std::function<void(Instruction&)>& change) {
    return faults_of_played(plan, workload, devices, ChangedProgram(*program, change));
  };
  EXPECT_THAT(found([](Instruction&) {}), IsEmpty());
  EXPECT_THAT(found([](Instruction& each) { each.time = each.time * 2; }), Contains(HasSubstr("s in its program")));
  EXPECT_THAT(found([](Instruction& each) {
                if (is_collective(each.opcode)) each.size = each.size * 2;
              }),
              Contains(HasSubstr("its reforms need")));
}

TEST(PlansThatDivideOperators, OfReplicasAddUpAllTheirGradientsInTime)
{
  std::mt19937_64 random(31);
  int early = 0;
  for (const auto& workload : moes_by_operators()) {
    for (const auto& shares : {std::vector<double>{1}, equal_shares(2)}) {
      const std::size_t devices = 2 * shares.size();
      const Cluster platform = cluster(std::vector<double>(devices, 1e6), {Seconds(1e-4), BytesPerSecond(1e7)});
      Plan plan = random_plan(workload, shares, random, 2);
      price_by_playing(plan, workload, platform);
      const auto program = schedules::make_program(plan, workload, platform);
      const auto lane = static_cast<LaneId>(program->lanes(0).size() - 1);
      ASSERT_EQ(program->lanes(0)[lane].name, "replicas");
      const auto is_sum = [&](const Instruction& each) {
        return each.lane == lane && each.payload == Payload::ParameterGradient;
      };
      const auto expect_fault = [&](const std::function<void(Instruction&)>& change, const std::string& text) {
        const ChangedProgram changed(*program, change);
        EXPECT_THAT(faults_of_played(plan, workload, platform, changed), Contains(HasSubstr(text)));
      };
      const std::uint32_t first = program->at(0, lane, 0).stage;
      expect_fault([&](Instruction& each) { each.size = is_sum(each) ? each.size * 0.99 : each.size; },
                   "its gradients are");
      // One is missing, in the place of another one that comes twice.
      const std::uint32_t last = program->at(0, lane, program->length(0, lane) - 1).stage;
      ASSERT_NE(first, last);
      expect_fault([&](Instruction& each) { each.stage = is_sum(each) && each.stage == last ? first : each.stage; },
                   fmt::format("part {}: d0 adds up its gradients with other replicas 0 times", last));
      expect_fault(
          [&](Instruction& each) {
            if (is_sum(each)) each.waits = {};
          },
          "add up its gradients before all of them exist");
      expect_fault(
          [&](Instruction& each) {
            if (each.opcode == Opcode::Update) each.waits = {};
          },
          "updates it before the replicas have added up its gradients");
      // Each wait counts.
      for (std::uint64_t i = 0; i < program->length(0, lane); ++i) {
        const Instruction sum = program->at(0, lane, i);
        if (sum.waits.size() < 2) continue;
        ++early;
        expect_fault(
            [&](Instruction& each) {
              if (is_sum(each) && each.stage == sum.stage) each.waits = Waits(*sum.waits.begin());
            },
            fmt::format("part {}: replicas of d0 add up its gradients before all of them exist", sum.stage));
      }
    }
  }
  EXPECT_GT(early, 0);
}

}  // namespace
}  // namespace isobar::allocators::operator_costs_test
