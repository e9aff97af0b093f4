#include "core/plan/plan_file.hpp"

#include "core/base/files.hpp"
#include "core/check/plan_checker.hpp"
#include "core/costs/cost_model.hpp"
#include "core/errors.hpp"
#include "core/plan/plan.hpp"
#include "tests/support/bad_files.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/thrown_message.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace isobar::plan_file_test {
namespace {

using testing_support::chain;
using testing_support::cluster;

Plan some_plan()
{
  const auto workload = chain({1, 1, 1}, 1, 10, 2);
  const auto devices = cluster({1, 2}, {Seconds(0.5), BytesPerSecond(3)});
  const CostModel cost(workload, devices);
  return testing_support::plan_of({{1, 0, 1}, {0, 2, 2}}, cost, Goal::with_defaults(Objective::Pipeline));
}

TEST(PlanFile, SurvivesWritingAndReading)
{
  const auto plan = some_plan();
  const auto json = plan_to_json(plan);
  EXPECT_EQ(plan_to_json(plan_from_json(json, "plan.json")), json);
}

TEST(PlanFile, KeepsTheDevicesThatWereLeftOut)
{
  auto plan = some_plan();
  EXPECT_EQ(plan_to_json(plan).find("without"), std::string::npos);
  plan.without = {"d7", "d2"};
  EXPECT_EQ(plan_from_json(plan_to_json(plan), "plan.json").without, plan.without);
}

TEST(PlanFile, KeepsEveryDigitOfRandomPlans)
{
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    const auto workload = testing_support::random_chain(random, 8);
    const auto devices = testing_support::random_cluster(random, 4, 1e9);
    const CostModel cost(workload, devices);
    const auto stages = testing_support::random_placement(random, 8, 4);
    const auto plan = testing_support::plan_of(
        stages, cost, {Objective::Bottleneck, Communication::Serial, {"gpipe"}, 1 + random() % 100});
    const auto again = plan_from_json(plan_to_json(plan), "plan.json");
    EXPECT_EQ(again.objective, plan.objective);
    EXPECT_EQ(again.predicted->peak_memory, plan.predicted->peak_memory);
    EXPECT_THAT(faults_of(again, workload, devices), testing::IsEmpty());
  }
}

TEST(PlanFile, KeepsAnInfeasiblePlanWithItsReason)
{
  Plan plan = some_plan();
  plan.outcome = Outcome::Infeasible;
  plan.stages.clear();
  plan.predicted.reset();
  plan.objective.reset();
  plan.reason = "device d1 needs 3 GiB and has \"2 GiB\"";
  const auto again = plan_from_json(plan_to_json(plan), "plan.json");
  EXPECT_EQ(again.outcome, Outcome::Infeasible);
  EXPECT_EQ(again.reason, plan.reason);
  EXPECT_FALSE(again.objective);
  EXPECT_FALSE(again.gap_fraction());
}

TEST(PlanFile, KeepsTheDataServer)
{
  Plan plan = some_plan();
  EXPECT_EQ(plan_to_json(plan).find("data_server"), std::string::npos);
  plan.data_server = "store";
  EXPECT_EQ(plan_from_json(plan_to_json(plan), "plan.json").data_server, "store");
}

TEST(PlanFile, KeepsTheLayersThatRecompute)
{
  Plan plan = some_plan();
  EXPECT_EQ(plan_to_json(plan).find("recompute"), std::string::npos);
  plan.recompute = {0, 2};
  EXPECT_EQ(plan_from_json(plan_to_json(plan), "plan.json").recompute, plan.recompute);
}

TEST(PlanFile, KeepsTheMicroBatchWhereItIsNotTheWorkloads)
{
  Plan plan = some_plan();
  EXPECT_EQ(plan_to_json(plan).find("micro_batch\""), std::string::npos);
  plan.micro_batch = 16;
  EXPECT_EQ(plan_from_json(plan_to_json(plan), "plan.json").micro_batch, 16U);
}

TEST(PlanFile, KeepsTheSettingsOfItsWorkload)
{
  Plan plan = some_plan();
  EXPECT_EQ(plan_to_json(plan).find("\"set\""), std::string::npos);
  const auto hash = hash_of(plan);
  plan.workload.set = {{"layers", "3"}, {"dtype", "bf16"}};
  const auto json = plan_to_json(plan);
  EXPECT_THAT(json, testing::HasSubstr("\"set\": {\n        \"dtype\": \"bf16\",\n        \"layers\": \"3\"\n"));
  EXPECT_EQ(plan_from_json(json, "plan.json").workload.set, plan.workload.set);
  EXPECT_NE(hash_of(plan), hash);
}

TEST(PlanFile, HasSettingsThatACommandMayOnlyRepeat)
{
  const auto fault_of = [](const Plan& plan, const WorkloadSettings& given) -> std::string {
    try {
      EXPECT_EQ(settings_of(plan, "plan.json", given), plan.workload.set);
    } catch (const InputError& fault) {
      return fault.what();
    }
    return "accepted";
  };
  Plan plan = some_plan();
  EXPECT_EQ(fault_of(plan, {}), "accepted");
  EXPECT_EQ(fault_of(plan, {{"layers", "3"}}),
            "--set: layers=3: plan.json was made without a setting of layers; leave the option out, or plan again");
  plan.workload.set = {{"layers", "4"}, {"dtype", "bf16"}};
  EXPECT_EQ(fault_of(plan, {}), "accepted");
  EXPECT_EQ(fault_of(plan, {{"layers", "4"}}), "accepted");
  EXPECT_EQ(fault_of(plan, {{"layers", "3"}}),
            "--set: layers=3: plan.json was made with layers=4; leave the option out, or plan again");
}

TEST(PlanFile, KeepsTheSimulationAlsoInTheHash)
{
  Plan plan = some_plan();
  EXPECT_EQ(plan_to_json(plan).find("simulated"), std::string::npos);
  const auto hash = hash_of(plan);
  plan.simulated = Simulated{Seconds(29.5), 7, "chain-dp", Objective::Bottleneck};
  const auto again = plan_from_json(plan_to_json(plan), "plan.json");
  ASSERT_TRUE(again.simulated);
  EXPECT_EQ(again.simulated->step_time, Seconds(29.5));
  EXPECT_EQ(again.simulated->candidates, 7U);
  EXPECT_EQ(again.simulated->allocator, "chain-dp");
  EXPECT_EQ(again.simulated->objective, Objective::Bottleneck);
  EXPECT_NE(hash_of(plan), hash);
  EXPECT_EQ(hash_of(again), hash_of(plan));
}

/// A plan that isobar-plan/1 cannot express: d1 has two stages.
Plan some_plan_2()
{
  Plan plan = some_plan();
  plan.goal = Goal::with_defaults(Objective::Step);
  plan.goal.schedule = {"interleaved", {{"chunks", {2}}}};
  plan.goal.microbatches = 3;
  plan.stages = {stage_on("d1", 0, 0), stage_on("d0", 1, 1), stage_on("d1", 2, 2)};
  plan.stages[1].replicas[0].shards[0].type = "A10";
  plan.predicted->step_time_by = StepTimeBy::Played;
  return plan;
}

TEST(PlanFile2, HasStagesOfReplicasAndAScheduleWithNumbers)
{
  const auto json = plan_to_json(some_plan_2());
  EXPECT_THAT(json, testing::StartsWith(R"({
  "schema": "isobar-plan/2",
  "allocator": "by hand",
  "objective": "step",
  "communication": "played",
  "schedule": {
    "name": "interleaved",
    "chunks": 2
  },
  "microbatches": 3,
)"));
  EXPECT_THAT(json, testing::HasSubstr(R"(
    {
      "first_layer": 1,
      "last_layer": 1,
      "replicas": [
        {
          "microbatches": 3,
          "shards": [
            {
              "device": "d0",
              "type": "A10"
            }
          ]
        }
      ]
    },
)"));
  EXPECT_THAT(json, testing::HasSubstr(R"("step_time_by": "played")"));
}

TEST(PlanFile2, SurvivesWritingAndReading)
{
  const auto plan = some_plan_2();
  const auto again = plan_from_json(plan_to_json(plan), "plan.json");
  EXPECT_EQ(plan_to_json(again), plan_to_json(plan));
  EXPECT_EQ(hash_of(again), hash_of(plan));
  EXPECT_EQ(again.goal.schedule, plan.goal.schedule);
  EXPECT_EQ(again.predicted->step_time_by, StepTimeBy::Played);
  ASSERT_EQ(again.stages.size(), 3U);
  EXPECT_EQ(again.stages[1].device(), "d0");
  EXPECT_EQ(again.stages[1].replicas[0].shards[0].share, 1);
  EXPECT_EQ(again.stages[1].replicas[0].shards[0].type, "A10");
}

TEST(PlanFile2, KeepsReplicasAndHowTheyAgree)
{
  Plan plan = some_plan_2();
  plan.goal.schedule = {"1f1b"};
  plan.stages = {stage_on("d1", 0, 0), {1, 2, {{2, {Shard{"d0"}}}, {1, {Shard{"d2"}}}}}};
  plan.stages[0].replicas[0].shards[0].site = "Paris";
  plan.stages[1].replicas[1].shards[0].site = "Oslo";
  plan.sync.algorithm = Algorithm::Hierarchical;
  const auto json = plan_to_json(plan);
  EXPECT_THAT(json, testing::Not(testing::HasSubstr("Paris"))) << "a stage without a sync needs no sites";
  EXPECT_THAT(json, testing::HasSubstr("\"sync\": {\n    \"algorithm\": \"hierarchical\"\n  }"));
  const auto again = plan_from_json(json, "plan.json");
  EXPECT_EQ(plan_to_json(again), json);
  EXPECT_EQ(again.sync.algorithm, Algorithm::Hierarchical);
  ASSERT_EQ(again.stages[1].replicas.size(), 2U);
  EXPECT_EQ(again.stages[0].replicas[0].microbatches, 0U);  // all
  EXPECT_EQ(again.stages[1].replicas[0].microbatches, 2U);
  EXPECT_EQ(again.stages[1].replicas[1].shards[0].device, "d2");
  EXPECT_EQ(again.stages[1].replicas[1].shards[0].site, "Oslo");
  EXPECT_EQ(devices_of(again), (std::vector<std::string>{"d1", "d0", "d2"}));
}

TEST(PlanFile2, KeepsTheRulesOfTransfersAndOfDividedParameters)
{
  Plan plan = some_plan_2();
  plan.goal.schedule = {"gpipe"};
  const std::vector<Replica> replicas = {{1, {Shard{"d0"}}}, {1, {Shard{"d1"}}}};
  plan.goal.microbatches = 2;
  plan.stages = {{0, 0, replicas}, {1, 2, replicas}};
  EXPECT_THAT(plan_to_json(plan), testing::Not(testing::HasSubstr("transfers")));
  plan.transfers = {.blocking = true, .sliced = false};
  plan.sync.sharded = Sharding::Parameters;
  plan.sync.gathered = DType::BFloat16;
  plan.sync.each_microbatch = true;
  const auto json = plan_to_json(plan);
  EXPECT_THAT(json, testing::HasSubstr("\"transfers\": {\n    \"blocking\": true\n  }"));
  EXPECT_THAT(json, testing::HasSubstr("\"gather_dtype\": \"bf16\",\n    \"each_microbatch\": true"));
  const auto again = plan_from_json(json, "plan.json");
  EXPECT_EQ(plan_to_json(again), json);
  EXPECT_EQ(again.transfers, plan.transfers);
  EXPECT_EQ(again.sync, plan.sync);
}

/// A plan of two devices, whose key `system` is this text.
std::string with_system(const std::string& system, const std::string& more = "")
{
  auto plan = some_plan();
  plan.goal.objective = Objective::Step;
  plan.goal.communication = Communication::Played;
  plan.system = TrainingSystem{"SYSTEM"};
  std::string json = plan_to_json(plan);
  const std::string key = "\"system\": \"SYSTEM\"";
  return json.replace(json.find(key), key.size(), "\"system\": " + system + more);
}

TEST(PlanFile2, KeepsTheFlagsOfASystemThatDiffer)
{
  const auto plan = plan_from_json(
      with_system(R"({"name": "megatron-lm", "version": "2021", "host_forward_s": 0.25, "product_speed": 1,
                      "overlap_shard_collectives": true, "most_divided": "gradients", "memory_context_bytes": 5})"),
      "plan.json");
  ASSERT_TRUE(plan.system && plan.system->changed);
  EXPECT_EQ(plan.system->name, "megatron-lm-2021");
  EXPECT_EQ(framework_of(*plan.system)->host_forward, Seconds(0.25));
  EXPECT_EQ(framework_of(*plan.system)->host_backward, find_framework("megatron-lm-2021")->host_backward);
  const std::string json = plan_to_json(plan);
  EXPECT_THAT(json, testing::HasSubstr(R"("system": {
    "name": "megatron-lm-2021",
    "host_forward_s": 0.25,
    "overlap_shard_collectives": true,
    "most_divided": "gradients",
    "memory_context_bytes": 5)"));
  EXPECT_EQ(plan_from_json(json, "plan.json").system, plan.system);
  EXPECT_EQ(plan_to_json(plan_from_json(json, "plan.json")), json);

  const auto named = plan_from_json(with_system(R"({"name": "megatron-lm-2021", "product_speed": 1})"), "plan.json");
  EXPECT_EQ(named.system, TrainingSystem{"megatron-lm-2021"}) << "no flag differs";
  const auto twice = plan_from_json(with_system(R"({"name": "megatron-lm-2021", "version": "2021"})"), "plan.json");
  EXPECT_EQ(twice.system, named.system) << "the version is said twice";
  EXPECT_EQ(plan_from_json(with_system(R"({"name": "l2l"})"), "plan.json").system, TrainingSystem{"l2l"});
}

TEST(PlanFile2, HasRulesOfItsSystemInTransfersAlone)
{
  const auto plan =
      plan_from_json(with_system(R"({"name": "megatron-core-0.8", "blocking_transfers": true})"), "plan.json");
  EXPECT_TRUE(plan.transfers.blocking);
  EXPECT_EQ(plan.system, TrainingSystem{"megatron-core-0.8"});
  const auto same =
      plan_from_json(with_system(R"({"name": "megatron-lm-2021", "blocking_transfers": true})"), "plan.json");
  EXPECT_TRUE(same.transfers.blocking) << "stated, though it is the system's own";
  EXPECT_FALSE(plan_from_json(with_system(R"("megatron-lm-2021")"), "plan.json").transfers.blocking);
}

TEST(PlanFile2, RefusesWrongFlagsOfASystem)
{
  const auto fault_of = [](const std::string& system, const std::string& more = "") -> std::string {
    try {
      plan_from_json(with_system(system, more), "plan.json");
    } catch (const InputError& fault) {
      const std::string text = fault.what();
      return text.substr(text.find("system"));
    }
    return "accepted";
  };
  EXPECT_EQ(fault_of(R"({"name": "megatron-lm-2021", "host_forward": 1})"),
            "system.host_forward: unknown key; did you mean host_forward_s?");
  EXPECT_EQ(fault_of(R"({"name": "megatron-lm-2021", "overlap_shard_sums": "yes"})"),
            "system.overlap_shard_sums: \"yes\" is not a boolean; write true or false without quotes");
  EXPECT_EQ(fault_of(R"({"name": "megatron-lm-2021", "memory_reserve": 0})"),
            "system.memory_reserve: \"0\" is out of range; write a number from 0.001 to 1000");
  EXPECT_EQ(fault_of(R"({"name": "l2l", "product_speed": 2})"),
            "system.name: \"l2l\" is no training software with flags; write one of aceso-2024, composer-fsdp-2023, "
            "fms-fsdp-2024, internevo-2023, megascale-moe-2025, megatron-bridge-2026, "
            "megatron-core-0.8, megatron-deepspeed-2023, megatron-deepspeed-2024, megatron-lm-2021, megatron-lm-2022");
  EXPECT_THAT(fault_of(R"({"product_speed": 2})"),
              testing::StartsWith("system.name: missing; write one of aceso-2024, "));
  EXPECT_EQ(fault_of("[1]"), "system: is a list; write a name, or an object of name and flags");
  EXPECT_THAT(fault_of(R"("")"), testing::StartsWith("system: \"\" is unknown; write one of aceso-2024, "));
  EXPECT_EQ(
      fault_of(R"({"name": "megatron-lm-2021", "blocking_transfers": true})", R"(, "transfers": {"blocking": false})"),
      "system.blocking_transfers: true makes transfers.blocking true, and it is false; leave one of them out");
}

TEST(PlanFile2, RefusesABucketOtherThanTheOneThatItsSystemStates)
{
  Plan plan = some_plan_2();
  plan.goal.schedule = {"gpipe"};
  plan.goal.microbatches = 2;
  const std::vector<Replica> replicas = {{1, {Shard{"d0"}}}, {1, {Shard{"d1"}}}};
  plan.stages = {{0, 0, replicas}, {1, 2, replicas}};
  plan.sync.bucket = Bytes(5e7);
  plan.system = TrainingSystem{"SYSTEM"};
  const auto with = [&](const std::string& flags) {
    std::string json = plan_to_json(plan);
    const std::string system = "\"SYSTEM\"";
    return json.replace(json.find(system), system.size(), R"({"name": "megatron-lm-2021", )" + flags + "}");
  };
  for (const char* flags : {R"("gradient_bucket_bytes": 5e7)", R"("overlap_gradient_sums": true)"}) {
    EXPECT_EQ(plan_from_json(with(flags), "plan.json").sync.bucket, Bytes(5e7)) << flags;
  }
  const auto fault_of = [&](const std::string& flags) {
    const std::string json = with(flags);
    const auto line =
        1 + std::count(json.begin(), json.begin() + static_cast<std::ptrdiff_t>(json.find("\"system\"")), '\n');
    const std::string text = message_of([&] { plan_from_json(json, "plan.json"); });
    const std::string place = fmt::format("InputError plan.json:{}: system.", line);
    return text.starts_with(place) ? text.substr(place.size()) : text;
  };
  EXPECT_EQ(fault_of(R"("gradient_bucket_bytes": 1e6)"),
            "gradient_bucket_bytes: 1e6 makes sync.bucket_bytes 1000000, and it is 50000000.0; leave one of them out");
  EXPECT_EQ(fault_of(R"("overlap_gradient_sums": false)"),
            "overlap_gradient_sums: false makes sync.bucket_bytes 1e+18, and it is 50000000.0; leave one of them out");
}

TEST(PlanFile2, HasAChainWithRulesOfTransfers)
{
  Plan plan = some_plan_2();
  plan.goal.schedule = {"1f1b"};
  plan.stages = {stage_on("d1", 0, 0), stage_on("d0", 1, 2)};
  plan.transfers.blocking = true;
  EXPECT_FALSE(is_chain(plan));
  EXPECT_EQ(plan_from_json(plan_to_json(plan), "plan.json").transfers, plan.transfers);
}

TEST(PlanFile2, JoinsTheLayersOfStagesWithSeveralShards)
{
  Plan plan = some_plan_2();
  plan.goal.schedule = {"1f1b"};
  const Replica both{0, {{"d0", 0.25}, {"d2", 0.75}}};
  plan.stages = {stage_on("d1", 0, 0), {1, 1, {both}}, {2, 2, {both}}};
  const auto json = plan_to_json(plan);
  EXPECT_THAT(json, testing::HasSubstr("\"first_layer\": 1,\n      \"last_layer\": 2,"));
  EXPECT_THAT(json, testing::HasSubstr("\"share\": 0.75"));
  const auto again = plan_from_json(json, "plan.json");
  EXPECT_EQ(plan_to_json(again), json);
  ASSERT_EQ(again.stages.size(), 3U);
  EXPECT_EQ(again.stages[1].first_layer, 1U);
  EXPECT_EQ(again.stages[1].last_layer, 1U);
  EXPECT_EQ(again.stages[2].first_layer, 2U);
  EXPECT_EQ(again.stages[2].replicas[0].shards[1].share, 0.75);
  EXPECT_EQ(devices_of(again), (std::vector<std::string>{"d1", "d0", "d2"}));
}

TEST(PlanFile2, KeepsStagesOfLayersApartThatFollowEachOtherOnTheSameDevices)
{
  Plan plan = some_plan_2();
  plan.goal.schedule = {"zero-bubble-v"};
  plan.stages.clear();
  const Replica both{0, {{"d0", 0.5}, {"d2", 0.5}}};
  for (std::size_t layer = 0; layer < 4; ++layer) plan.stages.push_back({layer, layer, {both}});
  plan.stages[1].starts_chunk = true;
  const auto json = plan_to_json(plan);
  EXPECT_THAT(json, testing::HasSubstr("\"first_layer\": 0,\n      \"last_layer\": 0,"));
  EXPECT_THAT(json, testing::HasSubstr("\"first_layer\": 1,\n      \"last_layer\": 3,"));
  const auto again = plan_from_json(json, "plan.json");
  EXPECT_EQ(plan_to_json(again), json);
  ASSERT_EQ(again.stages.size(), 4U);
  for (std::size_t layer = 0; layer < 4; ++layer) EXPECT_EQ(again.stages[layer].starts_chunk, layer == 1) << layer;
}

TEST(PlanFile2, KeepsGridsOfShardsAndBuckets)
{
  using Form = ShardGrid::Form;
  Plan plan = some_plan_2();
  plan.goal.schedule = {"1f1b"};
  const auto replica_on = [](std::size_t first, std::size_t shards, std::uint64_t microbatches) {
    Replica replica{microbatches, {}};
    for (std::size_t i = 0; i < shards; ++i) {
      replica.shards.push_back({fmt::format("d{}", first + i), 1 / static_cast<double>(shards)});
    }
    return replica;
  };
  plan.sync.bucket = Bytes(25e6);
  for (const ShardGrid grid :
       {ShardGrid{Form::TwoD, 2}, {Form::TwoAndAHalfD, 2, 4}, {Form::ThreeD, 2, 2}, {Form::Sequence, 4}}) {
    const std::vector<Replica> replicas = {replica_on(0, grid.blocks(), 1),
                                           replica_on(grid.blocks(), grid.blocks(), 2)};
    plan.stages = {{0, 0, replicas, grid}, {1, 1, replicas, grid}};
    const auto json = plan_to_json(plan);
    EXPECT_THAT(json, testing::HasSubstr(fmt::format("\"splits\": {{\n        \"*\": \"{}\"", name_of(grid.form))));
    EXPECT_THAT(json, testing::HasSubstr("\"bucket_bytes\": 25000000.0"));
    const auto again = plan_from_json(json, "plan.json");
    EXPECT_EQ(plan_to_json(again), json);
    ASSERT_EQ(again.stages.size(), 2U);
    EXPECT_EQ(again.stages[1].grid, grid);
    EXPECT_EQ(again.sync, plan.sync);
  }
}

TEST(PlanFile2, KeepsTheNamesOfWhatShardsDivide)
{
  Plan plan = some_plan_2();
  plan.goal.schedule = {"1f1b"};
  const std::vector<Replica> replicas = {{3, {{"d0", 0.5}, {"d1", 0.5}}}};
  for (const std::string others : {"vocabulary", "1d"}) {
    const std::vector<NamedSplit> splits = {{"*.attention", "heads"}, {"*.mlp", "columns"}, {"*", others}};
    plan.stages = {{0, 0, replicas, {}, splits}, {1, 1, replicas, {}, splits}};
    plan.stages[0].splits.back().layers = plan.stages[1].splits.back().layers = others == "1d" ? "*" : "embedding";
    const auto json = plan_to_json(plan);
    const auto again = plan_from_json(json, "plan.json");
    EXPECT_EQ(plan_to_json(again), json);
    ASSERT_EQ(again.stages.size(), 2U);
    EXPECT_EQ(again.stages[1].splits, plan.stages[1].splits);
  }
}

TEST(PlanFile2, KeepsNumbersByDevice)
{
  auto plan = some_plan();
  plan.goal.schedule = {"1f1b", {{"warm_up", {2, 0}}}};
  const auto json = plan_to_json(plan);
  EXPECT_THAT(json, testing::HasSubstr("isobar-plan/2"));
  EXPECT_EQ(plan_from_json(json, "plan.json").goal.schedule, plan.goal.schedule);
}

TEST(PlanFile2, KeepsOrdersAsRuns)
{
  auto plan = some_plan_2();
  const auto slot = [](Opcode opcode, std::uint32_t part) { return Slot{{opcode, part, 0}, 1}; };
  plan.goal.schedule = {"listed", {}, {}};
  const isobar::Run of_d0{3,
                          {slot(Opcode::Forward, 0), slot(Opcode::BackwardInput, 0), slot(Opcode::BackwardWeight, 0)}};
  const isobar::Run first_of_d1{3, {slot(Opcode::Forward, 0)}};
  const isobar::Run last_of_d1{3, {slot(Opcode::Forward, 1), slot(Opcode::Backward, 1), slot(Opcode::Backward, 0)}};
  plan.goal.schedule.orders["d0"] = Order(std::vector<isobar::Run>{of_d0});
  plan.goal.schedule.orders["d1"] = Order(std::vector<isobar::Run>{first_of_d1, last_of_d1});
  const auto json = plan_to_json(plan);
  EXPECT_THAT(json, testing::HasSubstr(R"(
    "name": "listed",
    "orders": {
      "d0": [
        [
          3,
          "F0.0+ B0.0+ W0.0+"
        ]
      ],
      "d1": [
        [
          3,
          "F0.0+"
        ],
        [
          3,
          "F1.0+ B1.0+ B0.0+"
        ]
      ]
    }
)"));
  EXPECT_EQ(plan_from_json(json, "plan.json").goal.schedule, plan.goal.schedule);
}

/// A plan with the orders that an allocator made, and the bound of all orders.
Plan some_greedy_plan()
{
  Plan plan = some_plan();
  plan.goal = Goal::with_defaults(Objective::Step);
  plan.goal.schedule = {"greedy"};
  plan.goal.microbatches = 2;
  plan.predicted->step_time_by = StepTimeBy::Played;
  plan.schedule_bound = Seconds(12.5);
  const auto slot = [](Opcode opcode) { return Slot{{opcode, 0, 0}, 1}; };
  const isobar::Run rounds{2, {slot(Opcode::Forward), slot(Opcode::BackwardInput), slot(Opcode::BackwardWeight)}};
  for (const char* device : {"d0", "d1"}) {
    plan.goal.schedule.orders[device] = Order(std::vector<isobar::Run>{rounds});
  }
  return plan;
}

TEST(PlanFile2, KeepsTheOrdersAndTheBoundOfAGreedyPlan)
{
  const Plan plan = some_greedy_plan();
  const auto json = plan_to_json(plan);
  EXPECT_THAT(json, testing::HasSubstr("\n  \"schedule_bound_s\": 12.5,\n"));
  const auto again = plan_from_json(json, "plan.json");
  EXPECT_EQ(again.goal.schedule, plan.goal.schedule);
  EXPECT_EQ(again.schedule_bound, plan.schedule_bound);
  EXPECT_EQ(plan_to_json(again), json);
}

TEST(PlanFile2, NeedsNoOrdersWithoutStages)
{
  Plan plan = some_greedy_plan();
  plan.outcome = Outcome::Infeasible;
  plan.reason = "too little memory";
  plan.goal.schedule.orders.clear();
  plan.stages.clear();
  plan.predicted.reset();
  plan.objective.reset();
  plan.schedule_bound.reset();
  const auto json = plan_to_json(plan);
  EXPECT_EQ(json.find("schedule_bound_s"), std::string::npos);
  EXPECT_EQ(plan_to_json(plan_from_json(json, "plan.json")), json);
}

TEST(PlanFile2, HasTheBoundOfAllOrdersOfAChain)
{
  Plan plan = some_plan();
  const auto lower = plan_to_json(plan);
  plan.schedule_bound = Seconds(1);
  const auto json = plan_to_json(plan);
  EXPECT_THAT(json, testing::HasSubstr("isobar-plan/2"));
  EXPECT_EQ(plan_from_json(json, "plan.json").schedule_bound, Seconds(1));
  auto text = lower;
  text.insert(text.find("  \"certificate\""), "  \"schedule_bound_s\": 1.0,\n");
  EXPECT_THAT([&] { plan_from_json(text, "plan.json"); },
              testing::ThrowsMessage<InputError>(testing::HasSubstr("schedule_bound_s: unknown key")));
}

TEST(PlanFile2, HasPlansWithoutStages)
{
  Plan plan = some_plan_2();
  plan.outcome = Outcome::Infeasible;
  plan.reason = "too little memory";
  plan.stages.clear();
  plan.predicted.reset();
  plan.objective.reset();
  const auto json = plan_to_json(plan);
  EXPECT_THAT(json, testing::HasSubstr("isobar-plan/2"));
  EXPECT_EQ(plan_to_json(plan_from_json(json, "plan.json")), json);
}

TEST(PlanFile2, ReadsAChainWhichIsThenWrittenInTheLowerSchema)
{
  const auto plan = some_plan();
  auto text = plan_to_json(plan);
  ASSERT_THAT(text, testing::HasSubstr("isobar-plan/1"));
  const auto replace = [&text](const std::string& before, const std::string& after) {
    const auto at = text.find(before);
    ASSERT_NE(at, std::string::npos) << before;
    text.replace(at, before.size(), after);
  };
  replace("isobar-plan/1", "isobar-plan/2");
  replace(R"("schedule": "1f1b")", R"("schedule": {"name": "1f1b"})");
  for (int stage = 0; stage < 2; ++stage) {
    replace(R"("devices": [)", R"("replicas": [{"microbatches": 8, "shards": [)");
    replace(R"("name": "d)", R"("device": "d)");
    replace("      ],\n      \"first", "      ]}],\n      \"first");
  }
  EXPECT_EQ(plan_to_json(plan_from_json(text, "plan.json")), plan_to_json(plan));
}

Plan some_stamped_plan()
{
  Plan plan = some_plan();
  plan.stamp = Stamp{Seconds(29.25), {{"d0", Bytes(22)}, {"d1", Bytes(60)}}, "0", "w", hash_of(plan), "1.2.3", "3.32"};
  return plan;
}

TEST(PlanFile, KeepsAStamp)
{
  const auto plan = some_stamped_plan();
  const auto again = plan_from_json(plan_to_json(plan), "plan.json");
  EXPECT_EQ(plan_to_json(again), plan_to_json(plan));
  ASSERT_TRUE(again.stamp);
  EXPECT_EQ(again.stamp->step_time, Seconds(29.25));
  EXPECT_EQ(again.stamp->peak_memory, plan.stamp->peak_memory);
}

TEST(HashOf, CoversAllExceptStampAndWall)
{
  Plan plan = some_stamped_plan();
  const auto hash = hash_of(plan);
  plan.stamp.reset();
  plan.search_time = Seconds(7);
  EXPECT_EQ(hash_of(plan), hash);
  EXPECT_EQ(hash_of(plan_from_json(plan_to_json(plan), "plan.json")), hash);
  plan.stages[0].replicas[0].shards[0].device = "d7";
  EXPECT_NE(hash_of(plan), hash);
}

TEST(FaultsOfStamp, FindsNoneInAMatchingStamp)
{
  EXPECT_THAT(faults_of_stamp(some_stamped_plan(), "w", "1.2.3"), testing::IsEmpty());
}

TEST(FaultsOfStamp, SaysThatAPlanHasNone)
{
  EXPECT_THAT(faults_of_stamp(some_plan(), "w", "1.2.3"), testing::ElementsAre("has no stamp"));
}

TEST(FaultsOfStamp, NamesEachMismatch)
{
  Plan plan = some_stamped_plan();
  const auto stamped = plan.stamp->plan_hash;
  plan.goal.microbatches = 4;
  EXPECT_THAT(faults_of_stamp(plan, "v", "1.3.0"),
              testing::ElementsAre("stamp.plan: made for a plan with hash " + stamped + "; this one has " +
                                       hash_of(plan) + ": simulate it again with --stamp",
                                   "stamp.workload: made for a workload with hash w; this one has v: simulate it again "
                                   "with --stamp",
                                   "stamp.version: made by isobar 1.2.3; this is 1.3.0: simulate it again with "
                                   "--stamp"));
}

TEST(FaultsOfStamp, NamesAnotherPlatform)
{
  Plan plan = some_stamped_plan();
  plan.stamp->platform_hash = "1";
  EXPECT_THAT(faults_of_stamp(plan, "w", "1.2.3"),
              testing::ElementsAre("stamp.platform: made on a platform with hash 1; the plan's, platform.xml, has 0: "
                                   "simulate it there with --stamp"));
}

TEST(PlanFile, HasTheGapOfObjectiveAndBound)
{
  Plan plan = some_plan();
  plan.objective = Seconds(8);
  plan.objective_bound = Seconds(6);
  EXPECT_DOUBLE_EQ(plan.gap_fraction().value(), 0.25);
}

TEST(PlanFile, RefusesEachMalformedFileWithItsOwnMessage)
{
  EXPECT_GE(testing_support::expect_each_bad_file_refused("plan_", ".json", [](const auto& file) { read_plan(file); }),
            90u);
}

TEST(ReadPlan, PutsFileAndLineBeforeEachFaultOfTheSchedulesCheck)
{
  const testing_support::TemporaryFolder folder;
  const auto file = folder.path() / "plan.json";
  write_file_atomically(file, plan_to_json(some_plan_2()));
  EXPECT_EQ(plan_to_json(read_plan(file, [](const Plan&) {})), plan_to_json(some_plan_2()));
  const std::string place = file.string() + ":6: ";
  EXPECT_THAT(
      [&] {
        read_plan(file, [](const Plan&) {
          throw InputError(std::vector<std::string>{"schedule: is odd; write another", "schedule: is late"});
        });
      },
      testing::ThrowsMessage<InputError>(place + "schedule: is odd; write another\n" + place + "schedule: is late"));
}

TEST(ReadPlan, ReportsAMissingFile)
{
  EXPECT_THAT([] { read_plan("no/such/plan.json"); },
              testing::ThrowsMessage<InputError>("no/such/plan.json: no such file"));
}

}  // namespace
}  // namespace isobar::plan_file_test
