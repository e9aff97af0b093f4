#include "allocators/spmd/buckets.hpp"

#include "allocators/registry.hpp"
#include "core/base/files.hpp"
#include "core/check/program_checker.hpp"
#include "core/errors.hpp"
#include "core/model/routing.hpp"
#include "core/plan/operator_plan.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/support/divisions.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/thrown_message.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace isobar::allocators::buckets_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using spmd::ReplicaGradient;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr auto t_moe = R"(model: moe
trunk: plain
unit: operator
layers: 6
hidden: 1024
heads: 4
intermediate: 4096
experts: 16
capacity_rounding: down
sequence: 256
micro_batch: 128
)";

Cluster four_devices(double speed = 15e12)
{
  return cluster({speed, speed, speed, speed}, {Seconds(1e-5), BytesPerSecond(1e10)}, 64 * 0x1p30);
}

Plan planned(const std::string& allocator, const Workload& workload, const Cluster& devices,
             std::uint64_t microbatches = 1)
{
  Goal goal = defaults_of(allocator, Objective::Step, false).goal;
  goal.microbatches = microbatches;
  return allocate(allocator, workload, devices, goal, {});
}

/// A collective of rank 0.
struct Collective {
  Opcode opcode{};
  Payload payload{};
  Bytes size;
};

std::vector<Collective> collectives_of(const Plan& plan, const Workload& workload)
{
  const auto program = testing_support::unit_program(plan, workload);
  EXPECT_THAT(faults_of(*program), IsEmpty());
  std::vector<Collective> collectives;
  for (LaneId lane = 1; lane < program->lanes(0).size(); ++lane) {
    for (std::uint64_t i = 0; i < program->length(0, lane); ++i) {
      const Instruction each = program->at(0, lane, i);
      collectives.push_back({each.opcode, each.payload, each.size});
    }
  }
  return collectives;
}

std::vector<std::string> names_of(const std::vector<std::size_t>& operators, const Workload& workload)
{
  std::vector<std::string> names;
  for (const std::size_t node : operators) names.push_back(workload.layers[node].name);
  return names;
}

std::vector<ReplicaGradient> gradients(const std::vector<double>& sizes, const std::vector<double>& ready = {})
{
  std::vector<ReplicaGradient> result;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    result.push_back({100 - i, Bytes(sizes[i]), Seconds(ready.empty() ? 0 : ready[i])});
  }
  return result;
}

TEST(BucketEnds, BySizeKeepTheGradientThatReachesTheCap)
{
  const auto ends = [](const std::vector<double>& sizes) {
    return spmd::bucket_ends_by_size(gradients(sizes), Bytes(10), Bytes(25));
  };
  EXPECT_THAT(ends({4, 6, 20, 5, 1, 1}), ElementsAre(99, 97, 95));
  EXPECT_THAT(ends({400, 400}), ElementsAre(100, 99));
  EXPECT_THAT(ends({1, 1}), ElementsAre(99));
  EXPECT_THAT(ends({}), IsEmpty());
}

TEST(BucketEnds, ByCycleJoinWhatIsReadyTogetherUpToALimit)
{
  const auto ends = [](const std::vector<double>& sizes, const std::vector<double>& ready) {
    return spmd::bucket_ends_by_cycle(gradients(sizes, ready), Seconds(1), Bytes(10));
  };
  EXPECT_THAT(ends({1, 1, 1, 1}, {0.2, 0.9, 1.1, 2.5}), ElementsAre(99, 98, 97));
  EXPECT_THAT(ends({6, 4, 1, 1}, {0.1, 0.1, 0.1, 0.1}), ElementsAre(99, 97));
  EXPECT_THAT(ends({1, 20, 1, 1}, {0.1, 0.1, 0.1, 0.1}), ElementsAre(100, 99, 97));
}

TEST(Ddp, HasTheTwelveBucketsOfTMoe)
{
  const Workload workload = workload_from_text(t_moe, "t.yaml");
  const Plan plan = planned("ddp", workload, four_devices());
  const auto names = names_of(plan.sync.bucket_ends, workload);
  ASSERT_EQ(names.size(), 12U);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto moe = fmt::format("layer{}.", 5 - 2 * i);
    const auto dense = fmt::format("layer{}.", 4 - 2 * i);
    EXPECT_EQ(names[4 * i], moe + "w2");
    EXPECT_EQ(names[4 * i + 1], moe + "w1");
    EXPECT_EQ(names[4 * i + 2], dense + "linear2.weight");
    EXPECT_EQ(names[4 * i + 3], dense + "qkv.weight");
  }
  const auto collectives = collectives_of(plan, workload);
  ASSERT_EQ(collectives.size(), 12U);
  double all = 0;
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(collectives[i].opcode, Opcode::AllReduce);
    const double megabytes = collectives[i].size.value / 1e6;
    if (i % 4 > 1) {
      EXPECT_NEAR(megabytes, i % 4 == 2 ? 33.66 : 33.60, 0.005);
    }
    all += collectives[i].size.value;
  }
  EXPECT_EQ(all, 4.0 * 453'098'496);
}

TEST(Ddp, ComputesOneMicroBatchAfterAnotherAndAddsUpOnce)
{
  const Workload workload = moes_by_operators().front();
  const Cluster devices = cluster({1e9, 1e9}, {Seconds(1e-5), BytesPerSecond(1e8)});
  const Plan plan = planned("ddp", workload, devices, 3);
  EXPECT_EQ(plan.goal.schedule.name, "sequential");
  EXPECT_EQ(collectives_of(plan, workload).size(), plan.sync.bucket_ends.size());
  EXPECT_EQ(defaults_of("dp-ev", Objective::Step, false).goal.schedule.name, "duplex");
  EXPECT_THAT(planned("dp-ev", workload, devices).sync.bucket_ends, IsEmpty());
}

TEST(Horovod, JoinsMoreGradientsTheFasterDevicesMakeThem)
{
  const Workload workload = workload_from_text(t_moe, "t.yaml");
  std::size_t last = 1000;
  for (const double speed : {1e12, 15e12, 1e15, 1e18}) {
    const Cluster devices = four_devices(speed);
    const Plan plan = planned("horovod", workload, devices);
    EXPECT_LE(plan.sync.bucket_ends.size(), last);
    last = plan.sync.bucket_ends.size();
    double all = 0;
    for (const auto& each : collectives_of(plan, workload)) all += each.size.value;
    EXPECT_EQ(all, 4.0 * 453'098'496);
  }
  // Of 201.8 MB in pieces of at most 128 MiB between six matrices of experts, two of which follow each other.
  EXPECT_EQ(last, 3 * 3U + 1);
}

TEST(Horovod, TakesTheTimesAtWhichTheLastDeviceHasMadeAGradient)
{
  const Workload workload = moes_by_operators().front();
  const Cluster devices = cluster({1e9, 5e8}, {Seconds(1e-5), BytesPerSecond(1e8)});
  Plan plan = planned("dp-ev", workload, devices, 2);
  const auto gradients = spmd::played_gradients(plan, workload, devices);
  double forward = 0;
  double backward = 0;
  for (const auto& layer : workload.layers) {
    forward += layer.forward.value;
    backward += layer.backward.value;
  }
  // The slower one has half of the samples of both micro-batches.
  EXPECT_NEAR(gradients.back().ready.value, 2 * (forward + backward) / 2 / 5e8, 1e-9);
  for (std::size_t i = 1; i < gradients.size(); ++i) EXPECT_GE(gradients[i].ready, gradients[i - 1].ready);
  EXPECT_NEAR(gradients.front().ready.value, 2 * forward / 2 / 5e8, 1e-9);  // of a norm, which has no FLOPs
}

TEST(DeepSpeedMoe, HasTheCollectivesOfTMoe)
{
  const Workload workload = workload_from_text(t_moe, "t.yaml");
  const Plan plan = planned("deepspeed-moe", workload, four_devices());
  EXPECT_EQ(plan.routing, (isobar::spmd::Routing{32, false}));
  EXPECT_EQ(plan.goal.schedule.name, "sequential");
  const auto collectives = collectives_of(plan, with_routing(workload, *plan.routing, 128));
  ASSERT_EQ(collectives.size(), 13U);
  std::map<Payload, int> exchanges;
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(collectives[i].opcode, Opcode::AllToAll);
    EXPECT_NEAR(collectives[i].size.value / 1e6, 41.94, 0.005);
    ++exchanges[collectives[i].payload];
  }
  EXPECT_EQ(exchanges, (std::map<Payload, int>{{Payload::Activation, 6}, {Payload::Gradient, 6}}));
  EXPECT_EQ(collectives[12].opcode, Opcode::AllReduce);
  EXPECT_EQ(collectives[12].size, Bytes(4.0 * 50'445'312));
}

TEST(DeepSpeedMoe, OverlapsNothing)
{
  const Workload workload = workload_from_text(t_moe, "t.yaml");
  const Plan plan = planned("deepspeed-moe", workload, four_devices(), 2);
  const Predicted& predicted = plan.predicted.value();
  // Both micro-batches one after the other, with the sums of gradients once, and the update.
  const Workload routed = with_routing(workload, *plan.routing, 128);
  double update = 0;
  for (const auto& layer : routed.layers) {
    const bool is_divided = layer.name.ends_with("w1") || layer.name.ends_with("w2");
    update += update_work(routed, layer).value / (is_divided ? 4 : 1) / 15e12;
  }
  double once = 0;
  for (const auto& each : collectives_of(plan, routed)) {
    if (each.payload == Payload::ParameterGradient) once += 2 * 3 * (1e-5 + each.size.value / 4 / 1e10);
  }
  const double expected = 2 * predicted.sequential.value - once + update;
  EXPECT_NEAR(predicted.step_time.value, expected, 1e-6 * expected);
}

TEST(FastMoe, ExchangesCountsAndAllTokens)
{
  const Workload workload = workload_from_text(t_moe, "t.yaml");
  for (const std::string name : {"fastmoe", "fastmoe-published"}) {
    const Plan plan = planned(name, workload, four_devices());
    EXPECT_EQ(plan.routing, (isobar::spmd::Routing{32, true}));
    const auto collectives = collectives_of(plan, with_routing(workload, *plan.routing, 128));
    const bool adds = name == "fastmoe";
    EXPECT_EQ(plan.sync.adds_replicas, adds);
    ASSERT_EQ(collectives.size(), adds ? 16U : 15U);
    for (std::size_t i = 0; i < 6; i += 3) {
      EXPECT_EQ(collectives[i].size, Bytes(16 * 8));  // counts come first
      EXPECT_EQ(collectives[i + 1].size, Bytes(32 * 256 * 1024 * 4));
      EXPECT_EQ(collectives[i + 2].size, collectives[i + 1].size);
    }
    EXPECT_EQ(collectives.back().size, adds ? Bytes(4.0 * 50'445'312) : collectives[1].size);
  }
}

TEST(ExpertParallelism, AddsUpTheNormWhereGradientsAreClipped)
{
  const Workload workload = workload_from_text(std::string(t_moe) + "clip_norm: 1\n", "t.yaml");
  const Plan plan = planned("deepspeed-moe", workload, four_devices());
  const auto collectives = collectives_of(plan, with_routing(workload, *plan.routing, 128));
  EXPECT_EQ(collectives.back().payload, Payload::GradientFacts);
}

TEST(ExpertParallelism, SaysWhyItHasNoPlan)
{
  const auto reason = [](const std::string& from, const std::string& to, std::size_t devices = 4) {
    std::string text = t_moe;
    if (!from.empty()) text.replace(text.find(from), from.size(), to);
    const Cluster all = cluster(std::vector<double>(devices, 1e12), {Seconds(1e-5), BytesPerSecond(1e10)}, 64 * 0x1p30);
    const Plan plan = planned("deepspeed-moe", workload_from_text(text, "t.yaml"), all);
    EXPECT_EQ(plan.outcome, Outcome::Infeasible);
    return plan.reason;
  };
  EXPECT_EQ(reason("", "", 3),
            "16 experts for 3 devices, which have as many each; plan for a divisor of them with --without");
  EXPECT_EQ(reason("micro_batch: 128", "micro_batch: 6"),
            "micro-batches of 6 samples for 4 devices, which have as many each; write a multiple as micro_batch");
  EXPECT_EQ(reason("experts: 16\ncapacity_rounding: down\n", ""),
            "0 experts for 4 devices, which have as many each; plan for a divisor of them with --without");
}

TEST(Baselines, AreCheckedPlansOfEveryTrunk)
{
  const Cluster devices = cluster({1e9, 1e9, 1e9}, {Seconds(1e-5), BytesPerSecond(1e8)});
  for (const auto& workload : moes_by_operators("clip_norm: 1\n")) {
    for (const char* name : {"ddp", "dp-ev", "dp-cp", "horovod", "deepspeed-moe", "fastmoe", "fastmoe-published"}) {
      for (const std::uint64_t microbatches : {1, 3}) {
        const Plan plan = planned(name, workload, devices, microbatches);  // refuses a plan with faults
        EXPECT_EQ(plan.outcome, Outcome::Feasible) << name;
        EXPECT_LE(*plan.step_bound, *plan.objective);
        const Plan read = plan_from_json(plan_to_json(plan), "plan.json");
        EXPECT_EQ(plan_to_json(read), plan_to_json(plan));
      }
    }
  }
}

TEST(Baselines, OfOtherRoutingsShareNoBounds)
{
  const Workload workload = workload_from_text(t_moe, "t.yaml");
  Plan own = planned("ddp", workload, four_devices());
  const Plan other = planned("deepspeed-moe", workload, four_devices());
  const auto before = own.objective_bound;
  ASSERT_GT(*other.objective_bound, *before);
  adopt_bound(own, other);
  EXPECT_EQ(own.objective_bound, before);
}

}  // namespace
}  // namespace isobar::allocators::buckets_test
