#include "core/check/plan_checker.hpp"
#include "core/check/residence_checker.hpp"
#include "core/plan/plan.hpp"

#include "core/costs/cost_model.hpp"
#include "core/plan/tied_copies.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/shard_grids.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace isobar::plan_checker_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::chain;
using testing_support::cluster;
using testing_support::plan_of;

struct Sound {
  Workload workload = chain({1, 1, 1, 1}, 1, 10, 2);
  Cluster devices = cluster({1, 2}, {Seconds(0.5), BytesPerSecond(4)}, 200);
  CostModel cost{workload, devices};
  Plan plan = plan_of({{1, 0, 2}, {0, 3, 3}}, cost, Goal::with_defaults(Objective::Pipeline));

  std::vector<std::string> faults() const { return faults_of(plan, workload, devices); }
};

TEST(FaultsOf, FindsNoneInASoundPlan)
{
  EXPECT_THAT(Sound().faults(), IsEmpty());
}

TEST(FaultsOf, AgreesWithTheCostModelOnRandomPlans)
{
  std::mt19937_64 random(1);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t layers = 1 + random() % 12;
    const std::size_t devices = 1 + random() % 6;
    const auto workload = testing_support::random_chain(random, layers);
    auto platform = testing_support::random_cluster(random, devices, 1e9);
    platform.profile_speedup = 1 + static_cast<double>(random() % 2);
    const CostModel cost(workload, platform);
    const auto stages = testing_support::random_placement(random, layers, devices);
    for (const auto& goal : testing_support::all_goals(1 + random() % 9)) {
      ASSERT_THAT(faults_of(plan_of(stages, cost, goal), workload, platform), IsEmpty());
    }
  }
}

TEST(FaultsOf, AgreesWithTheCostModelWhereLayersRecompute)
{
  std::mt19937_64 random(2);
  for (int round = 0; round < 1000; ++round) {
    const std::size_t layers = 1 + random() % 12;
    const auto workload =
        testing_support::with_random_recomputation(random, testing_support::random_chain(random, layers));
    const auto platform = testing_support::random_cluster(random, 4, 1e9);
    const CostModel cost(workload, platform);
    const auto stages = testing_support::random_placement(random, layers, 4);
    for (const auto& goal : testing_support::all_goals(1 + random() % 9)) {
      ASSERT_THAT(faults_of(plan_of(stages, cost, goal), workload, platform), IsEmpty());
    }
  }
}

TEST(FaultsOf, RefusesAWorkloadThatRecomputesOtherLayers)
{
  Sound sound;
  sound.plan.recompute = {0, 2};
  EXPECT_THAT(sound.faults(), ElementsAre("recompute: lists 2 layers, not the 0 that recompute in the given workload"));
}

/// A plan whose head uses a matrix of a layer on another device.
struct Tied : Sound {
  Tied()
  {
    workload.layers[3].name = "head";
    workload.layers[3].tied_to = 0;
    workload.layers[3].tied_parameters = workload.layers[0].parameters;
    plan = plan_of({{1, 0, 2}, {0, 3, 3}}, cost_of_tied(), Goal::with_defaults(Objective::Pipeline));
  }
  CostModel cost_of_tied() const { return {workload, devices}; }
  std::string refusal(const std::string& what) const
  {
    return fmt::format("stages[1]: layer 3 (head) uses the matrix of layer 0 ({}) in stages[0]{}",
                       workload.layers[0].name, what);
  }
};

TEST(FaultsOf, CountsTheCopyOfAMatrixInMemoryAndUpdates)
{
  Tied tied;
  EXPECT_THAT(tied.faults(), IsEmpty());
  const Sound untied;
  const Bytes copy(static_cast<double>(tied.workload.layers[0].parameters) * bytes_per_parameter(tied.workload));
  const auto& peak = tied.plan.predicted->peak_memory;
  EXPECT_EQ(peak.at("d1"), untied.plan.predicted->peak_memory.at("d1"));
  EXPECT_EQ(peak.at("d0"), untied.plan.predicted->peak_memory.at("d0") + copy);
  EXPECT_EQ(tied.cost_of_tied().update_time(0, 3, 3),
            untied.cost.update_time(0, 3, 3) + untied.cost.update_time(0, 0, 0));
  EXPECT_EQ(tied.cost_of_tied().update_time(0, 0, 3), untied.cost.update_time(0, 0, 3)) << "one device has both";
  tied.plan.predicted->peak_memory.at("d0") -= copy;
  EXPECT_THAT(tied.faults(), ElementsAre(HasSubstr("predicted.peak_memory_bytes")));
}

TEST(FaultsOf, RefusesStagesThatCannotAddUpTheMatrixThatTheyShare)
{
  Tied tied;
  const auto faults = [&] { return placement_faults_of(tied.plan, tied.workload); };
  EXPECT_THAT(faults(), IsEmpty());
  tied.plan.goal = Goal::with_defaults(Objective::Step);
  tied.plan.goal.microbatches = 4;
  auto& first = tied.plan.stages[0].replicas;
  auto& last = tied.plan.stages[1].replicas;
  const auto replica = [](const std::string& device) { return Replica{2, {Shard{device}}}; };
  first = {replica("a"), replica("b")};
  EXPECT_THAT(faults(), ElementsAre(tied.refusal(" with 2 replicas, and here are 1; give both as many")));
  last = {replica("c"), replica("d")};
  EXPECT_THAT(faults(), IsEmpty());
  tied.plan.sync.sharded = Sharding::Gradients;
  EXPECT_THAT(faults(), IsEmpty());
  tied.plan.sync.sharded = Sharding::Parameters;
  EXPECT_THAT(faults(), ElementsAre(tied.refusal(", whose copies cannot be divided as parameters; write "
                                                 "sync.sharded: gradients")));
  tied.plan.sync.sharded = Sharding::None;
  last = {replica("c"), replica("a")};
  EXPECT_THAT(faults(), ElementsAre(tied.refusal(", some of whose devices are the same; give both the same ones or "
                                                 "others")));
}

TEST(FaultsOf, RefusesOtherShardsOfAMatrixThatStagesShare)
{
  Tied tied;
  tied.plan.goal = Goal::with_defaults(Objective::Step);
  tied.plan.goal.microbatches = 4;
  tied.plan.stages.clear();
  for (auto& layer : tied.workload.layers) {
    layer.parameters *= 8;
    layer.split = Split{.name = "heads", .units = 8, .parameters = layer.parameters};
  }
  const auto faults_of_shares = [&](const std::vector<double>& first, const std::vector<double>& last) {
    tied.plan.stages.clear();
    for (std::size_t layer = 0; layer < 4; ++layer) {
      Replica replica;
      const auto& shares = layer < 3 ? first : last;
      for (std::size_t i = 0; i < shares.size(); ++i) {
        replica.shards.push_back({(layer < 3 ? "a" : "b") + std::to_string(i), shares[i]});
      }
      tied.plan.stages.push_back({layer, layer, {replica}});
    }
    return placement_faults_of(tied.plan, tied.workload);
  };
  EXPECT_THAT(faults_of_shares({0.5, 0.5}, {0.5, 0.5}), IsEmpty());
  EXPECT_THAT(faults_of_shares({0.25, 0.75}, {0.25, 0.75}), IsEmpty());
  EXPECT_THAT(faults_of_shares({0.5, 0.5}, {0.25, 0.75}),
              ElementsAre(tied.refusal(" with other shares in replica 0; give both the same")));
  EXPECT_THAT(faults_of_shares({0.5, 0.5}, {1}),
              ElementsAre(tied.refusal(" with 2 shards in replica 0, and here are 1; give both as many")));
  // Parts of a matrix may differ by a unit, and no more.
  tied.workload.layers[0].split->units = 64;
  tied.workload.layers[3].split->units = 6;
  const std::vector<double> quarters(4, 0.25);
  EXPECT_THAT(faults_of_shares({0.5, 0.5}, {0.5, 0.5}), IsEmpty());
  EXPECT_THAT(
      faults_of_shares(quarters, quarters),
      ElementsAre(tied.refusal(", whose 64 heads the shards of replica 0 divide otherwise than the 6 heads here; "
                               "give each the same part of both")));
}

TEST(FaultsOf, AllowsLayersThatShareAMatrixInTwoStagesOfOneDevice)
{
  Tied tied;
  tied.plan.goal = Goal::with_defaults(Objective::Step);
  tied.plan.goal.schedule = {"interleaved", {{"chunks", {2}}}};
  tied.plan.stages[1] = stage_on(tied.plan.stages[0].device(), 3, 3);
  EXPECT_THAT(placement_faults_of(tied.plan, tied.workload), IsEmpty());
  EXPECT_FALSE(needs_tied_copies(tied.workload, tied.plan));
}

TEST(FaultsOf, RefusesAWorkloadOfAnotherMicroBatch)
{
  Sound sound;
  sound.plan.micro_batch = 1;
  EXPECT_THAT(sound.faults(), IsEmpty());
  sound.plan.micro_batch = 4;
  EXPECT_THAT(sound.faults(), ElementsAre("micro_batch: 4 samples, not the 1 of the given workload"));
}

TEST(FaultsOf, RefusesASimulatedStepBelowTheStepBound)
{
  Sound sound;
  const Seconds bound = sound.plan.step_bound.value();
  sound.plan.simulated =
      Simulated{bound * (1 - 1e-7), 1, "even", Objective::Step};  // within the rounding of simulations
  EXPECT_THAT(sound.faults(), IsEmpty());
  sound.plan.simulated->step_time = bound / 2;
  EXPECT_THAT(sound.faults(),
              ElementsAre(fmt::format("simulated.step_time_s: claims {}, below step_bound_s {}; no order is faster",
                                      bound.value / 2, bound.value)));
}

TEST(FaultsOf, NamesALayerThatIsNotPlaced)
{
  Sound sound;
  sound.plan.stages[1].first_layer = sound.plan.stages[0].last_layer = 3;
  sound.plan.stages[0].last_layer = 1;
  EXPECT_THAT(sound.faults(),
              ElementsAre("stages[1]: layer 2 is not placed; the stages must hold every layer in order"));
}

TEST(FaultsOf, NamesALayerThatIsPlacedTwice)
{
  Sound sound;
  sound.plan.stages[1].first_layer = 2;
  EXPECT_THAT(sound.faults(), ElementsAre("stages[1]: layer 2 is placed twice; each layer has one device"));
}

TEST(FaultsOf, NamesTheLastLayersThatAreMissing)
{
  Sound sound;
  sound.plan.stages.pop_back();
  EXPECT_THAT(sound.faults(), ElementsAre("layer 3 of 4 is not placed; the stages must hold every layer in order"));
}

TEST(FaultsOf, NamesALayerThatTheWorkloadDoesNotHave)
{
  Sound sound;
  sound.plan.stages[1].last_layer = 4;
  EXPECT_THAT(sound.faults(), ElementsAre("layer 4 is placed, but workload chain has 4 layers, 0 to 3"));
}

TEST(FaultsOf, NamesAnUnknownDevice)
{
  Sound sound;
  sound.plan.stages[0].replicas[0].shards[0].device = "d9";
  EXPECT_THAT(sound.faults(), ElementsAre("stages[0]: device d9 is not on platform cluster"));
}

TEST(FaultsOf, NamesADeviceThatIsUsedTwice)
{
  Sound sound;
  sound.plan.stages[1].replicas[0].shards[0].device = "d1";
  EXPECT_THAT(sound.faults(), ElementsAre("stages[1]: device d1 runs stage 0 already; each device runs one stage"));
}

TEST(FaultsOf, ChecksOnlyThePlacementOfAPlanThatIsNoChain)
{
  Sound sound;
  sound.plan.goal = {Objective::Step, Communication::Played, {"listed"}, 8};
  sound.plan.stages = {stage_on("d1", 0, 1), stage_on("d0", 2, 2), stage_on("d1", 3, 3)};
  sound.plan.objective.reset();
  EXPECT_THAT(sound.faults(), IsEmpty());
  sound.plan.stages[2].first_layer = 2;
  EXPECT_THAT(sound.faults(), ElementsAre("stages[2]: layer 2 is placed twice; each layer has one device"));
}

TEST(FaultsOf, RefusesAScheduleWithoutItsNumbers)
{
  Sound sound;
  sound.plan.goal = {Objective::Step, Communication::Played, {"1f1b", {{"warm_up", {}}}}, 8};
  EXPECT_THAT(sound.faults(), ElementsAre("schedule.warm_up: none; a plan has the numbers that an allocator chose"));
  sound.plan.goal.schedule.numbers["warm_up"] = {2, 1, 0};
  EXPECT_THAT(sound.faults(), ElementsAre("schedule.warm_up: 3 numbers for 2 devices; each device has one"));
}

TEST(FaultsOf, RefusesAnOrderOfADeviceWithoutStages)
{
  Sound sound;
  sound.plan.goal = {Objective::Step, Communication::Played, {"listed", {}, {{"d2", {}}}}, 8};
  EXPECT_THAT(sound.faults(), ElementsAre("schedule.orders: d2 has no stage; leave its order out"));
}

TEST(FaultsOf, RefusesAFormulaAsTheObjectiveOfAPlanThatIsNoChain)
{
  Sound sound;
  sound.plan.goal.schedule = {"zero-bubble-h1"};
  EXPECT_THAT(sound.faults(), ElementsAre("objective: pipeline under schedule zero-bubble-h1; a schedule other than "
                                          "sequential, gpipe and 1f1b has objective step"));
}

TEST(FaultsOf, PlaysTheStepOfAChainThatClaimsIt)
{
  Sound sound;
  sound.plan.predicted->step_time_by = StepTimeBy::Played;
  EXPECT_THAT(sound.faults(), IsEmpty()) << "it is that of the recurrence where nothing is shared";
  sound.plan.predicted->step_time = Seconds(1);
  EXPECT_THAT(sound.faults(), ElementsAre(HasSubstr("predicted.step_time_s: claims 1; it is ")));
}

TEST(FaultsOf, NamesAnotherDataServer)
{
  Sound sound;
  sound.plan.data_server = "store";
  EXPECT_THAT(sound.faults(), ElementsAre("data_server: claims store; it is none on platform cluster"));
  sound.plan.data_server.reset();
  sound.devices.data_server = "data";
  EXPECT_THAT(sound.faults(), ElementsAre("data_server: claims none; it is data on platform cluster"));
}

TEST(FaultsOf, NamesASystemThatIsNeitherSoftwareNorMeasured)
{
  Sound sound;
  const auto faults_of_placement = [&] { return placement_faults_of(sound.plan, sound.workload, sound.devices); };
  sound.plan.goal = Goal::with_defaults(Objective::Step);
  sound.devices.systems["l2l"] = {};
  for (const char* known : {"l2l", "megatron-lm-2021"}) {
    sound.plan.system = TrainingSystem{known};
    EXPECT_THAT(faults_of_placement(), IsEmpty()) << known;
  }
  sound.plan.system = TrainingSystem{"foo"};
  EXPECT_THAT(
      faults_of_placement(),
      ElementsAre("system: \"foo\" is unknown; write one of aceso-2024, composer-fsdp-2023, fms-fsdp-2024, "
                  "internevo-2023, megascale-moe-2025, megatron-bridge-2026, megatron-core-0.8, "
                  "megatron-deepspeed-2023, megatron-deepspeed-2024, megatron-lm-2021, megatron-lm-2022, l2l, or "
                  "leave it out"));
  EXPECT_THAT(placement_faults_of(sound.plan, sound.workload), IsEmpty()) << "no platform, which may have measured it";
}

TEST(FaultsOf, RefusesMoreSamplesThanAStepHas)
{
  Sound sound;
  sound.plan.goal.microbatches = 3;
  sound.plan.samples = 3;
  EXPECT_THAT(placement_faults_of(sound.plan, sound.workload, sound.devices), IsEmpty());
  sound.plan.samples = 4;
  EXPECT_THAT(placement_faults_of(sound.plan, sound.workload, sound.devices),
              ElementsAre("samples: 4; the step has 3 micro-batches of 1, so at most 3"));
}

TEST(FaultsOf, NamesShardsThatCannotDivideTheirLayers)
{
  Sound sound;
  auto& shards = sound.plan.stages[0].replicas[0].shards;
  shards.clear();
  EXPECT_THAT(sound.faults(),
              testing::Contains("stages[0].replicas[0].shards: none; a replica has a device that runs it"));
  shards = {{"d0", 0.5}, {"d9", 0.25}};
  EXPECT_THAT(sound.faults(), testing::Contains("stages[0].replicas[0].shards: their shares sum to 0.75; those of a "
                                                "replica sum to 1"));
  const std::string& name = sound.workload.layers[0].name;
  EXPECT_THAT(sound.faults(),
              testing::Contains(fmt::format("stages[0]: 2 shards of layer {}, which one device computes; give it one "
                                            "shard (a gpt or llama needs unit: operator)",
                                            name)));
  for (auto& layer : sound.workload.layers) layer.split = Split{.name = "heads"};
  EXPECT_THAT(sound.faults(), testing::Contains(fmt::format("stages[0]: 2 shards of layer {}, which has 1 to "
                                                            "divide (heads); give it fewer shards",
                                                            name)));
  EXPECT_THAT(sound.faults(),
              testing::Contains("stages[0]: 2 shards of layers 0 to 2; each layer of several shards is a stage"));
}

TEST(FaultsOf, NamesADeviceThatDividesItsStagesWithDifferentOthers)
{
  Sound sound;
  sound.plan.stages[0].replicas[0].shards = {{"d0", 0.5}, {"d1", 0.5}};
  sound.plan.stages[1].replicas[0].shards = {{"d1", 0.5}, {"d0", 0.5}};
  EXPECT_THAT(sound.faults(),
              testing::Contains("stages[1].replicas[0].shards: device d1 has other shards beside it elsewhere; it "
                                "divides all stages that it divides with the same others, in one order and with the "
                                "same shares"));
}

TEST(FaultsOf, NamesReplicasThatDoNotDivideTheStep)
{
  Sound sound;
  const std::uint64_t all = sound.plan.goal.microbatches;
  auto& replicas = sound.plan.stages[0].replicas;
  replicas = {{all, {{"d0"}}}, {1, {{"d9"}}}};
  EXPECT_THAT(sound.faults(),
              testing::Contains(fmt::format("stages[0].replicas: take {} micro-batches, and the step has {}; give each "
                                            "micro-batch to one",
                                            all + 1, all)));
  replicas = {{all, {{"d0"}}}, {0, {{"d9"}}}};
  EXPECT_THAT(sound.faults(),
              testing::Contains("stages[0].replicas[1].microbatches: 0; each of several replicas takes some"));
  replicas = {{all - 1, {{"d0"}}}, {1, {{"d0"}}}};
  EXPECT_THAT(sound.faults(), testing::Contains("stages[0]: device d0 has two of its replicas; give each its own"));
  replicas.clear();
  EXPECT_THAT(sound.faults(), testing::Contains("stages[0]: no replicas; a stage has devices that run it"));
}

TEST(FaultsOf, TellsWhatAStageNeedsAndItsDeviceHas)
{
  Sound sound;
  sound.devices.devices[1].memory = Bytes(0x1p30);
  sound.workload.layers[2].activations = Bytes(0x1p30);
  EXPECT_THAT(faults_of(sound.plan, sound.workload, sound.devices),
              testing::Contains("stages[0]: layers 0 to 2 need 2 GiB on device d1, which has 1 GiB"));
}

TEST(FaultsOf, RequiresAReasonAndNoStagesOfAnInfeasiblePlan)
{
  Plan plan;
  plan.outcome = Outcome::Infeasible;
  const Sound sound;
  EXPECT_THAT(faults_of(plan, sound.workload, sound.devices),
              ElementsAre("reason: missing; a plan without stages needs one"));
  plan.reason = "too large";
  EXPECT_THAT(faults_of(plan, sound.workload, sound.devices), IsEmpty());
  plan.stages = sound.plan.stages;
  EXPECT_THAT(faults_of(plan, sound.workload, sound.devices),
              ElementsAre("stages: 2 in a plan with outcome infeasible; it has none"));
}

TEST(FaultsOf, AcceptsATimedOutSearchWithoutAPlacement)
{
  const Sound sound;
  Plan plan;
  plan.outcome = Outcome::TimedOut;
  plan.reason = "found none in 1 s";
  EXPECT_THAT(faults_of(plan, sound.workload, sound.devices), IsEmpty());
}

TEST(FaultsOf, RefusesEveryClaimOfAPlanWithoutStages)
{
  Sound sound;
  sound.plan.stages.clear();
  sound.plan.outcome = Outcome::Infeasible;
  sound.plan.reason = "too large";
  sound.plan.schedule_bound = Seconds(1);
  sound.plan.stamp.emplace();
  sound.plan.simulated.emplace();
  sound.plan.data_server = "d\x1b[2J";
  const auto is_refused = [](const std::string& key) {
    return key + ": a claim of a plan without stages; leave it out or write null";
  };
  EXPECT_THAT(sound.faults(), ElementsAre(is_refused("predicted"), is_refused("objective_s"),
                                          is_refused("step_bound_s"), is_refused("schedule_bound_s"),
                                          is_refused("simulated"), is_refused("stamp"), is_refused("objective_bound_s"),
                                          "data_server: claims d\\x1b[2J; it is none on platform cluster"));
  Plan plan;
  plan.outcome = Outcome::TimedOut;
  plan.reason = "found none in 1 s";
  plan.objective_bound = Seconds(1);  // left to the certificate checker
  EXPECT_THAT(faults_of(plan, sound.workload, sound.devices), IsEmpty());
  plan.objective_bound.reset();
  plan.certificate.kind = CertificateKind::Path;
  EXPECT_THAT(faults_of(plan, sound.workload, sound.devices),
              ElementsAre("certificate.kind: claims path; it is none, since there is no objective_bound_s to prove"));
}

TEST(FaultsOf, ShowsNamesOnOneLine)
{
  Sound sound;
  sound.plan.stages[0].replicas[0].shards[0].device = "d\n" + std::string(100, '1');
  EXPECT_THAT(sound.faults(),
              testing::Contains("stages[0]: device d\\x0a" + std::string(58, '1') + "… is not on platform cluster"));
}

TEST(FaultsOf, ShowsEnoughDigitsForNumbersToDiffer)
{
  Sound sound;
  const double objective = sound.plan.objective->value;
  *sound.plan.objective *= 1 + 1.1e-9;
  EXPECT_THAT(sound.faults(), ElementsAre(fmt::format("objective_s: claims {:.10g}; it is {:.10g} on this platform and "
                                                      "workload",
                                                      sound.plan.objective->value, objective)));
}

TEST(PlacementFaultsOf, NameTheFirstLayerThatAGridCannotDivide)
{
  Workload workload = testing_support::gpt_for_grids();
  Plan plan;
  plan.goal.microbatches = 2;
  std::vector<std::string> devices;
  for (std::size_t i = 0; i < 27; ++i) devices.push_back(fmt::format("d{}", i));
  const ShardGrid grid{ShardGrid::Form::ThreeD, 3, 3};
  plan.stages = testing_support::by_layers({testing_support::stage_of_grids(0, 5, grid, {0}, devices)});
  EXPECT_THAT(placement_faults_of(plan, workload), testing::IsEmpty());
  workload.micro_batch = 12;
  EXPECT_THAT(
      placement_faults_of(plan, workload),
      ElementsAre("stages[0]: 3d grid [3, 3, 3] of layer embedding, whose micro-batch of 12 is to be a multiple "
                  "of 9"));
  workload.micro_batch = 36;
  workload.layers[2].split->products[1].inputs = 100;
  workload.layers[3].split->units = 16;
  EXPECT_THAT(placement_faults_of(plan, workload),
              ElementsAre("stages[0]: 3d grid [3, 3, 3] of layer block0.mlp, whose product of 100 numbers of a token "
                          "needs a multiple of 9"));
  workload.layers[2].split->products[1].inputs = 90;
  EXPECT_THAT(placement_faults_of(plan, workload),
              ElementsAre("stages[0]: 3d grid [3, 3, 3] of layer block1.attention, whose 16 heads are to be a multiple "
                          "of 3"));
  workload.layers[3].split->units = 12;
  plan.stages.back().grid = {ShardGrid::Form::TwoD, 2};
  EXPECT_THAT(
      placement_faults_of(plan, workload),
      testing::Contains("stages[0].grid: 2d grid [2, 2] after 3d grid [3, 3, 3]; neighbouring stages are divided "
                        "alike"));
}

TEST(PlacementFaultsOf, LeaveItToThePlatformWhatAMachineHas)
{
  const Workload workload = testing_support::gpt_for_grids();
  Plan plan;
  plan.goal.microbatches = 2;
  plan.stages = {stage_on("d0", 0, workload.layers.size() - 1)};
  plan.stages.front().residence.optimizer = Tier::Disk;
  EXPECT_THAT(placement_faults_of(plan, workload), testing::IsEmpty());
}

TEST(PlacementFaultsOf, CountThePlacesOfADeviceAgainstThePartsThatPass)
{
  const Workload workload = testing_support::gpt_for_grids();
  Plan plan;
  plan.goal.microbatches = 2;
  Residence passing;
  passing.parameters = passing.gradients = passing.optimizer = Tier::Host;
  const auto faults_with = [&](std::size_t parameter_slots, std::size_t gradient_slots) {
    plan.stages.clear();
    for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
      plan.stages.push_back(stage_on("d0", layer, layer));
      if (layer == 0 || layer + 1 == workload.layers.size()) continue;
      plan.stages.back().residence = passing;
      plan.stages.back().residence.parameter_slots = parameter_slots;
      plan.stages.back().residence.gradient_slots = gradient_slots;
    }
    return placement_faults_of(plan, workload);
  };
  const std::size_t parts = workload.layers.size() - 2;
  EXPECT_EQ(key_of_circle(plan), std::nullopt);
  EXPECT_THAT(faults_with(parts, parts), testing::IsEmpty());
  EXPECT_THAT(faults_with(1000, 1),
              ElementsAre(fmt::format("stages[0].residence.parameter_slots: 1000, while parameters of {0} parts pass "
                                      "through device d0; write {0} or less",
                                      parts)));
  EXPECT_THAT(
      faults_with(1, parts + 1),
      ElementsAre(fmt::format("stages[0].residence.gradient_slots: {}, while gradients of {} parts pass through "
                              "device d0; write {} or less",
                              parts + 1, parts, parts)));
}

TEST(PlacementFaultsOf, NameWhatLetsGradientsWaitForTheirPlaceInACircle)
{
  const Workload workload = testing_support::gpt_for_grids();
  const std::size_t layers = workload.layers.size();
  Plan plan;
  plan.goal.microbatches = 2;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    plan.stages.push_back(stage_on("d0", layer, layer));
    Residence& residence = plan.stages.back().residence;
    residence.parameters = residence.gradients = residence.optimizer = Tier::Host;
    residence.parameter_slots = residence.gradient_slots = 1;
    residence.overlap = UpdateOverlap::Delayed;
    residence.copies = Copies::Redundant;
  }
  EXPECT_EQ(key_of_circle(plan), "stages[0].residence");
  EXPECT_THAT(
      placement_faults_of(plan, workload),
      ElementsAre(fmt::format("stages[0].residence.copies: redundant, where a gradient's place becomes free by "
                              "its update, and overlap delayed has that in the next step: {} of {} parts on "
                              "device d0 would wait for it in a circle; write copies lean, or gradient_slots {}",
                              layers - 1, layers, layers)));
  for (auto& stage : plan.stages) stage.residence.gradient_slots = layers;
  EXPECT_THAT(placement_faults_of(plan, workload), testing::IsEmpty());
}

TEST(PlacementFaultsOf, NameTheFirstLayerThatIsNotDividedByItsSplit)
{
  const Workload workload = testing_support::gpt_for_grids();
  Plan plan;
  plan.goal.microbatches = 2;
  const Replica pair{0, {{"d0", 0.5}, {"d1", 0.5}}};
  const auto faults_with = [&](const std::vector<NamedSplit>& splits) {
    plan.stages.clear();
    for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
      plan.stages.push_back({layer, layer, {pair}, {}, splits});
    }
    return placement_faults_of(plan, workload);
  };
  const NamedSplit attention{"*.attention", "heads"}, mlp{"block*.mlp", "columns"};
  EXPECT_THAT(faults_with({attention, mlp, {"embedding", "vocabulary"}, {"head", "vocabulary"}}), testing::IsEmpty());
  EXPECT_THAT(faults_with({attention, mlp, {"*", "1d"}}), testing::IsEmpty());
  EXPECT_THAT(faults_with({attention, mlp}),
              ElementsAre("stages[0].splits: none fits layer embedding; add \"embedding\": \"vocabulary\""));
  EXPECT_THAT(faults_with({{"block*", "heads"}, {"*", "1d"}}),
              ElementsAre("stages[0].splits: \"heads\" of layer block0.mlp, which shards divide by columns"));
}

/// A change of one field, and the start of the resulting fault.
struct Forgery {
  const char* name;
  std::function<void(Plan&)> forge;
  const char* fault;
};

class FaultsOfForgery : public testing::TestWithParam<Forgery> {};

TEST_P(FaultsOfForgery, AreFound)
{
  Sound sound;
  GetParam().forge(sound.plan);
  EXPECT_THAT(sound.faults(), ElementsAre(testing::StartsWith(GetParam().fault)));
}

const std::vector<Forgery> forgeries = {
    {"Objective", [](Plan& p) { *p.objective *= 0.999; }, "objective_s: claims "},
    {"NoObjective", [](Plan& p) { p.objective.reset(); }, "objective_s: missing"},
    {"NanObjective", [](Plan& p) { p.objective = Seconds(std::numeric_limits<double>::quiet_NaN()); },
     "objective_s: claims nan"},
    {"Bound", [](Plan& p) { p.objective_bound = *p.objective * 1.001; }, "objective_bound_s: "},
    {"NanBound", [](Plan& p) { p.objective_bound = Seconds(std::numeric_limits<double>::quiet_NaN()); },
     "objective_bound_s: nan"},
    {"NoBound", [](Plan& p) { p.objective_bound.reset(); }, "objective_bound_s: missing"},
    {"StepBound", [](Plan& p) { *p.step_bound *= 1.001; }, "step_bound_s: claims "},
    {"ScheduleBound", [](Plan& p) { p.schedule_bound = Seconds(1); },
     "schedule_bound_s: a claim of plans whose step is played"},
    {"StepTime", [](Plan& p) { p.predicted->step_time *= 0.9; }, "predicted.step_time_s: claims "},
    {"Bottleneck", [](Plan& p) { p.predicted->bottleneck *= 0.9; }, "predicted.bottleneck_s: claims "},
    {"Sequential", [](Plan& p) { p.predicted->sequential *= 0.9; }, "predicted.sequential_s: claims "},
    {"Memory", [](Plan& p) { p.predicted->peak_memory["d1"] *= 0.9; }, "predicted.peak_memory_bytes.d1: claims "},
    {"NoMemory", [](Plan& p) { p.predicted->peak_memory.erase("d1"); }, "predicted.peak_memory_bytes.d1: missing"},
    {"MoreMemory", [](Plan& p) { p.predicted->peak_memory["d7"]; }, "predicted.peak_memory_bytes: 3 devices"},
    {"NoPrediction", [](Plan& p) { p.predicted.reset(); }, "predicted: missing"},
    {"Optimality", [](Plan& p) { p.outcome = Outcome::Optimal; }, "outcome: optimal, but the bound 0"},
    {"DeviceType", [](Plan& p) { p.stages[0].replicas[0].shards[0].type = "V100"; },
     "stages[0].devices[0].type: claims \"V100\"; it is "},
    {"Site", [](Plan& p) { p.stages[0].replicas[0].shards[0].site = "Paris"; },
     "stages[0].devices[0].site: claims \"Paris\"; it is "},
    {"Share", [](Plan& p) { p.stages[0].replicas[0].shards[0].share = 0.5; }, "stages[0].devices[0].share: 0.5"},
};

INSTANTIATE_TEST_SUITE_P(OneFieldChanged, FaultsOfForgery, testing::ValuesIn(forgeries),
                         [](const auto& forgery) { return forgery.param.name; });

}  // namespace
}  // namespace isobar::plan_checker_test
