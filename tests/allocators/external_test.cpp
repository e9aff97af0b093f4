#include "allocators/external.hpp"
#include "allocators/registry.hpp"

#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/placed_shards.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/machines.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace isobar::allocators::external_test {

namespace {

using namespace testing_support;  // NOLINT: a test file
namespace fs = std::filesystem;

/// A shell script as ./allocator in a temporary folder, which is the working directory while the object lives: messages
/// do not depend on the machine.
class Program {
 public:
  explicit Program(const std::string& script)
  {
    fs::current_path(folder_.path());
    std::ofstream("allocator") << "#!/bin/sh\n" << script << "\n";
    fs::permissions("allocator", fs::perms::owner_all);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { fs::current_path(before_); }

 private:
  TemporaryFolder folder_;
  fs::path before_ = fs::current_path();
};

/// The plan of a program that prints `answer`.
Plan plan_by_answer(const std::string& answer, const Workload& workload, const Cluster& platform, const Goal& goal)
{
  const Program program("cat > /dev/null; cat <<'END'\n" + answer + "\nEND");
  return allocate("exec:./allocator", workload, platform, goal, {});
}

/// Four layers on two devices, placed by a program that prints `answer`.
Plan plan_by_answer(const std::string& answer)
{
  return plan_by_answer(answer, chain({1, 1, 1, 1}), cluster({1, 2}), Goal{});
}

Goal gpipe(std::uint64_t microbatches)
{
  Goal goal;
  goal.schedule = choice_of(ChainSchedule::GPipe);
  goal.microbatches = microbatches;
  return goal;
}

/// Stages of two replicas each with what `more` says of the first.
std::string two_replicas(const std::string& more)
{
  return R"({"stages": [{"first_layer": 0, "last_layer": 3, )" + more + R"("replicas": [
      {"microbatches": 4, "shards": [{"device": "gpu0"}]}, {"microbatches": 4, "shards": [{"device": "gpu1"}]}]}]})";
}

Plan plan_by_script(const std::string& script, const SearchLimits& limits = {})
{
  const Program program(script);
  return allocate("exec:./allocator", chain({1, 1, 1, 1}), cluster({1, 2}), Goal{}, limits);
}

template <typename Error>
std::string message_of(const std::function<void()>& work)
{
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string refusal_of(const std::string& answer)
{
  return message_of<InputError>([&] { plan_by_answer(answer); });
}

}  // namespace

TEST(PlaceExternally, TakesStagesFromAProgram)
{
  const Plan plan = plan_by_answer(R"({"stages": [{"device": "d1", "first_layer": 0, "last_layer": 2},
                                                   {"device": "d0", "first_layer": 3, "last_layer": 3}]})");
  EXPECT_EQ(plan.allocator, "exec:./allocator");
  EXPECT_EQ(plan.outcome, Outcome::Feasible);
  ASSERT_EQ(plan.stages.size(), 2U);
  EXPECT_EQ(plan.stages[0].device(), "d1");
  EXPECT_EQ(plan.stages[1].first_layer, 3U);
  EXPECT_TRUE(plan.predicted.has_value());
}

TEST(PlaceExternally, TakesAWholePlanFileAndRecomputesItsClaims)
{
  const Plan ours = allocate("even", chain({1, 1, 1, 1}), cluster({1, 2}), Goal{}, {});
  Plan boast = ours;
  boast.objective = Seconds(0.001);
  boast.objective_bound = Seconds(0.001);
  const Plan plan = plan_by_answer(plan_to_json(boast));
  EXPECT_EQ(plan.objective, ours.objective);
  EXPECT_EQ(plan.objective_bound, ours.objective_bound);
}

TEST(PlaceExternally, TakesStagesWithReplicas)
{
  const Plan plan = plan_by_answer(R"({"sync": {"algorithm": "tree"}, "stages": [
      {"first_layer": 0, "last_layer": 3, "replicas": [{"microbatches": 3, "shards": [{"device": "d0"}]},
                                                       {"microbatches": 5, "shards": [{"device": "d1"}]}]}]})");
  EXPECT_EQ(plan.outcome, Outcome::Optimal);  // no division of whole micro-batches takes less
  ASSERT_EQ(plan.stages.size(), 1U);
  ASSERT_EQ(plan.stages[0].replicas.size(), 2U);
  EXPECT_EQ(plan.stages[0].replicas[1].microbatches, 5U);
  EXPECT_EQ(plan.sync.algorithm, Algorithm::Tree);
  ASSERT_TRUE(plan.predicted.has_value());
  EXPECT_EQ(plan.predicted->step_time_by, StepTimeBy::Played);
  EXPECT_EQ(*plan.objective, plan.predicted->step_time);
}

TEST(PlaceExternally, TakesStagesWithReplicasWhereLayersRecompute)
{
  const Workload workload = with_recomputation(chain({1, 1, 1, 1}), {0, 1, 2, 3});
  const std::string stages = R"("stages": [{"first_layer": 0, "last_layer": 3, "replicas": [
      {"microbatches": 3, "shards": [{"device": "d0"}]}, {"microbatches": 5, "shards": [{"device": "d1"}]}]}])";
  for (const std::string& answer : {"{" + stages + "}", R"({"recompute": [0, 1, 2, 3], )" + stages + "}"}) {
    const Plan plan = plan_by_answer(answer, workload, cluster({1, 2}), Goal{});
    EXPECT_EQ(plan.stages.at(0).replicas.size(), 2U);
    EXPECT_EQ(plan.recompute, workload.recompute);
  }
}

TEST(PlaceExternally, TakesPlansOfIsobarBackAsTheyAre)
{
  const auto expect_the_same = [](Plan ours, const Workload& workload, const Cluster& platform) {
    SCOPED_TRACE(ours.allocator);
    ASSERT_TRUE(ours.objective) << ours.reason;
    ours.micro_batch = workload.micro_batch;
    ours.without = {"d9"};
    const Plan plan = plan_by_answer(plan_to_json(ours), workload, platform, gpipe(ours.goal.microbatches));
    EXPECT_EQ(plan.objective, ours.objective);
    EXPECT_EQ(plan.predicted->peak_memory, ours.predicted->peak_memory);
    ASSERT_EQ(plan.stages.size(), ours.stages.size());
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      EXPECT_EQ(plan.stages[i].residence, ours.stages[i].residence);
    }
  };
  const Workload recomputed = with_recomputation(chain({1, 1, 1, 1}), {0, 1, 2, 3});
  const Plan replicas = allocate("hybrid", recomputed, cluster({1, 1}), gpipe(8), {});
  EXPECT_TRUE(has_replicas(replicas));
  expect_the_same(replicas, recomputed, cluster({1, 1}));

  const MachineNumbers small = {.device_speed = 1e4, .device_memory = 8'000};
  const Cluster machines = cluster_with_machines({small, small}, {Seconds(0), BytesPerSecond(1e9)});
  const Workload passing = workload_of_layers(std::vector<PassingLayer>(12, {.forward = 10'000, .backward = 20'000}));
  for (const char* allocator : {"window", "zero-infinity"}) {
    expect_the_same(allocate(allocator, passing, machines, gpipe(1), {}), passing, machines);
  }
  SearchLimits offload;
  offload.offload = true;
  const Plan both = allocate("hybrid", passing, machines, gpipe(4), offload);
  EXPECT_TRUE(uses_machines(both));
  expect_the_same(both, passing, machines);
}

TEST(PlaceExternally, TakesPlanFilesWithTheLayersOfTheWorkload)
{
  Workload graph = with_recomputation(chain({1, 1, 1, 1, 1}), {1, 2, 3});
  graph.layers[3].inputs = {1, 2};  // the chain has fewer layers
  ASSERT_LT(chain_view(graph).workload.layers.size(), 5U);
  const Cluster platform = cluster({1, 1});
  for (const char* allocator : {"exact", "hybrid"}) {
    SCOPED_TRACE(allocator);
    const Plan ours = allocate(allocator, graph, platform, gpipe(8), {});
    const Plan plan = plan_by_answer(plan_to_json(ours), graph, platform, gpipe(8));
    EXPECT_EQ(plan.objective, ours.objective);
    EXPECT_EQ(plan.stages.back().last_layer, 4U);
  }
  const auto replica = [](const char* device) {
    return fmt::format(R"("replicas": [{{"microbatches": 8, "shards": [{{"device": "{}"}}]}}]}})", device);
  };
  EXPECT_EQ(
      message_of<InputError>([&] {
        plan_by_answer(R"({"schema": "isobar-plan/2", "stages": [{"first_layer": 0, "last_layer": 2, )" +
                           replica("d0") + R"(, {"first_layer": 3, "last_layer": 4, )" + replica("d1") + "]}",
                       graph, platform, gpipe(8));
      }),
      "exec:./allocator: stages: one begins at layer 3, where more than one tensor crosses; cut stages only where "
      "one tensor crosses");
}

TEST(PlaceExternally, RefusesAResidenceThatTheDeviceOrTheScheduleCannotHave)
{
  const Workload workload = workload_of_layers(std::vector<PassingLayer>(4));
  Cluster platform = cluster_with_machines({{}, {}}, {Seconds(0), BytesPerSecond(1e9)});
  const std::string answer = two_replicas(R"("cuts": "layers", "residence": {"parameters": "host", "gradients": "host",
      "optimizer": "host", "parameter_slots": 1, "gradient_slots": 1}, )");
  const auto refusal = [&](const Goal& goal) {
    return message_of<InputError>([&] { plan_by_answer(answer, workload, platform, goal); });
  };
  EXPECT_EQ(refusal(gpipe(8)), "no error");
  EXPECT_EQ(refusal(Goal{}),
            "exec:./allocator: stages[2].residence.gradient_slots: 1; the backward passes of more stages of the device "
            "overlap, and each needs a place until its last micro-batch; give as many, or use schedule gpipe");
  platform.devices[1].machine.reset();
  EXPECT_EQ(refusal(gpipe(8)),
            "exec:./allocator: stages[0].residence: device gpu1 has no machine on platform machines; give it the prop "
            "host");
}

TEST(PlaceExternally, RefusesShardsOfLayersThatCannotBeDivided)
{
  const std::string answer = R"({"stages": [{"first_layer": 0, "last_layer": 3, "replicas": [{"microbatches": 8,
      "shards": [{"device": "d0", "share": 0.25}, {"device": "d1", "share": 0.75}]}]}]})";
  EXPECT_THAT([&] { plan_by_answer(answer); },
              testing::ThrowsMessage<InputError>(testing::HasSubstr("stages[3]: 2 shards of layer layer3, which one "
                                                                    "device computes")));
}

TEST(PlaceExternally, TakesThePlanFileOfAGridAndRecomputesItsClaims)
{
  SearchLimits limits;
  limits.grid = {1, 2};
  const Plan ours = allocate("grid", chain({1, 1, 1, 1}), cluster({1, 2}), Goal{}, limits);
  Plan boast = ours;
  boast.objective = Seconds(0.001);
  const Plan plan = plan_by_answer(plan_to_json(boast));
  EXPECT_EQ(plan.objective, ours.objective);
  EXPECT_EQ(plan.stages[0].replicas.size(), 2U);
}

TEST(PlaceExternally, PlacesStagesWithReplicasOverTheLayersOfAGraph)
{
  Workload graph = chain({1, 1, 1, 1});
  graph.layers[3].inputs = {0, 2};  // the chain has layers 0, 1 to 2 ... as few as one tensor separates
  const std::size_t layers = chain_view(graph).workload.layers.size();
  ASSERT_LT(layers, 4U);
  const Program program(fmt::format(R"(cat > /dev/null; echo '{{"stages": [{{"first_layer": 0, "last_layer": {},
      "replicas": [{{"microbatches": 4, "shards": [{{"device": "d0"}}]}},
                   {{"microbatches": 4, "shards": [{{"device": "d1"}}]}}]}}]}}')",
                                    layers - 1));
  const Plan plan = allocate("exec:./allocator", graph, cluster({1, 2}), Goal{}, {});
  EXPECT_EQ(plan.stages.back().last_layer, 3U);
}

TEST(PlaceExternally, RefusesReplicasThatAreNotAPlacement)
{
  const auto two = [](const std::string& first, const std::string& second, const std::string& layers) {
    return R"({"stages": [{)" + layers + R"(, "replicas": [{"microbatches": )" + first +
           R"(, "shards": [{"device": "d0"}]}, {"microbatches": 4, "shards": [{"device": ")" + second + R"("}]}]}]})";
  };
  const std::string all = R"("first_layer": 0, "last_layer": 3)";
  EXPECT_EQ(
      refusal_of(two("3", "d1", all)),
      "exec:./allocator:1: stages[0].replicas: take 7 micro-batches, and the step has 8; give each micro-batch to "
      "one");
  EXPECT_EQ(refusal_of(two("4", "gpu9", all)),
            "exec:./allocator: stages[0].replicas[1].shards[0].device: \"gpu9\" is not on platform cluster");
  EXPECT_EQ(refusal_of(two("4", "d1", R"("first_layer": 0, "last_layer": 4)")),
            "exec:./allocator: stages: layer 4 of 4; layers count from 0 in the chain that the program reads");
  EXPECT_THAT(refusal_of(two("4", "d1", R"("first_layer": 0, "last_layer": 2)")),
              testing::StartsWith("exec:./allocator: "));
  EXPECT_THAT(refusal_of(two("4", "d0", all)), testing::StartsWith("exec:./allocator: "));
}

TEST(PlaceExternally, DoesNotBelieveAnOptimumWithoutABound)
{
  const Plan plan =
      plan_by_answer(R"({"outcome": "optimal", "stages": [{"device": "d0", "first_layer": 0, "last_layer": 3}]})");
  EXPECT_EQ(plan.outcome, Outcome::Feasible);
}

TEST(PlaceExternally, TakesAnInfeasibleAnswerWithItsReason)
{
  const Plan plan = plan_by_answer(R"({"outcome": "infeasible", "reason": "device d0 has 1 GiB and needs 2 GiB"})");
  EXPECT_EQ(plan.outcome, Outcome::Infeasible);
  EXPECT_EQ(plan.reason, "device d0 has 1 GiB and needs 2 GiB");
}

TEST(PlaceExternally, RefusesAnswersThatAreNotAPlacement)
{
  EXPECT_EQ(refusal_of("[]"),
            "exec:./allocator: the answer is not a JSON object; print one with \"stages\" (docs/own_allocator.md)");
  EXPECT_EQ(refusal_of("{\"stages\": []}"), "exec:./allocator: stages: empty; place every layer");
  EXPECT_EQ(refusal_of(R"({"stages": [{"device": "gpu9", "first_layer": 0, "last_layer": 3}]})"),
            "exec:./allocator:1: stages[0].device: \"gpu9\" is not on platform cluster");
  EXPECT_EQ(refusal_of(R"({"stages": [{"device": "d0", "first_layer": 0, "last_layer": 2}]})"),
            "exec:./allocator: stages: layers 3..3 are not placed; place every layer");
  EXPECT_EQ(
      refusal_of("{\"stages\": [{\"device\": \"d0\", \"first_layer\": 0, \"last_layer\": 1},\n"
                 "{\"device\": \"d1\", \"first_layer\": 3, \"last_layer\": 3}]}"),
      "exec:./allocator:2: stages[1].first_layer: 3 leaves a gap or an overlap: the previous stage ends at layer 1; "
      "write 2");
  EXPECT_EQ(refusal_of("{\"stages\": [{\"device\": \"d0\", \"first_layer\": 0, \"last_layer\": 1},\n"
                       "{\"device\": \"d0\", \"first_layer\": 2, \"last_layer\": 3}]}"),
            "exec:./allocator:2: stages[1].device: \"d0\" already runs stages[0]; each device runs one stage");
  EXPECT_EQ(refusal_of(R"({"outcome": "infeasible"})"),
            "exec:./allocator: reason: missing; an answer without stages needs one");
}

TEST(PlaceExternally, RefusesInvalidJsonAndNamesTheProgramAndLine)
{
  EXPECT_THAT(refusal_of("the answer is 42"), testing::StartsWith("exec:./allocator:1: "));
  EXPECT_THAT(refusal_of(R"({"stages": [{"device": "d0", "first_layer": 0, "last_layer": 9}]})"),
              testing::StartsWith("exec:./allocator:1: stages[0].last_layer: "));
  EXPECT_THAT(refusal_of(R"({"stages": [{"device": "d0", "first_layer": 0, "last_layer": 3, "speed": 1}]})"),
              testing::StartsWith("exec:./allocator:1: stages[0].speed: unknown key"));
}

TEST(PlaceExternally, CallsAPlacementThatExceedsMemoryInfeasible)
{
  const Program program(R"(cat > /dev/null; echo '{"stages": [{"device": "d0", "first_layer": 0, "last_layer": 1}]}')");
  const Cluster platform = cluster({1}, {Seconds(0), BytesPerSecond(1)}, 0x1p30);
  const Workload workload = chain({1, 1}, 1 << 27);
  const Plan plan = allocate("exec:./allocator", workload, platform, Goal{}, {});
  EXPECT_EQ(plan.outcome, Outcome::Infeasible);
  EXPECT_TRUE(plan.stages.empty());
  EXPECT_EQ(plan.reason, allocate("even", workload, platform, Goal{}, {}).reason);
}

TEST(PlaceExternally, SaysHowTheProgramFailed)
{
  const auto failure_of = [](const std::string& script, const SearchLimits& limits = {}) {
    return message_of<EnvironmentError>([&] { plan_by_script(script, limits); });
  };
  EXPECT_EQ(failure_of("cat > /dev/null; echo out of ideas >&2; exit 3"),
            "exec:./allocator: exited with code 3; last line on stderr: out of ideas");
  EXPECT_THAT(failure_of("kill -SEGV $$"), testing::StartsWith("exec:./allocator: died of signal 11"));
  SearchLimits limits;
  limits.time_limit = Seconds(0.2);
  EXPECT_EQ(failure_of("sleep 60", limits), "exec:./allocator: was ended at the time limit of 0.2 s (--time-limit)");
  EXPECT_THAT(message_of<EnvironmentError>([] { allocate("exec:./none", chain({1}), cluster({1}), Goal{}, {}); }),
              testing::HasSubstr("./none"));
}

TEST(PlaceExternally, RunsTheExample)
{
  const std::string example = std::string(ISOBAR_SOURCE_DIR) + "/examples/external_allocator.py";
  const Plan plan = allocate("exec:" + example, chain({1, 1, 1, 1, 1, 1, 1, 1, 1}), cluster({1, 2, 6}), Goal{}, {});
  ASSERT_EQ(plan.stages.size(), 3U);
  EXPECT_EQ(plan.stages[0].last_layer, 0U);
  EXPECT_EQ(plan.stages[1].last_layer, 2U);
  EXPECT_EQ(plan.stages[2].last_layer, 8U);
}

}  // namespace isobar::allocators::external_test
