#include "core/plan/operator_plan.hpp"

#include "core/compute/layer_noise.hpp"
#include "core/errors.hpp"
#include "core/spmd/pieces.hpp"
#include "core/spmd/signature.hpp"
#include "tests/support/divisions.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace isobar::operator_plan_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Case {
  Workload workload = moes_by_operators().front();
  spmd::OperatorGraph graph = *operator_graph_of(workload);
  std::vector<double> shares = {0.25, 0.75};
  std::mt19937_64 random{3};
  spmd::Division division = random_division(graph, spmd::Rules::Corrected, random);
  Plan plan = plan_of(graph, division, shares, "duplex", 2);
};

std::string replaced(std::string text, const std::string& from, const std::string& to)
{
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(OperatorPlan, HasALayerForEachOperatorThatAddsUpToTheBlocks)
{
  for (const auto& workload : moes_by_operators()) {
    const auto graph = operator_graph_of(workload);
    ASSERT_TRUE(graph);
    ASSERT_EQ(workload.layers.size(), graph->operators.size());
    std::uint64_t parameters = 0;
    for (std::size_t i = 0; i < workload.layers.size(); ++i) {
      EXPECT_EQ(workload.layers[i].name, graph->operators[i].name);
      EXPECT_EQ(workload.layers[i].forward, graph->operators[i].forward);
      parameters += workload.layers[i].parameters;
    }
    EXPECT_EQ(parameters, graph->parameters());
  }
  EXPECT_FALSE(operator_graph_of(small_moe("trunk: plain\nsequence: 12\ntop_k: 1\n")));
}

TEST(OperatorPlan, HasTheWorkOfTheWorkloadsLayersInProportionToItsSamples)
{
  for (const auto& exact : moes_by_operators()) {
    const Workload noisy = with_noise(exact, 0.5, 1);
    const auto nominal = operator_graph_of(exact, 4 * exact.micro_batch);
    const auto graph = operator_graph_of(noisy, 4 * exact.micro_batch);
    for (std::size_t i = 0; i < graph.operators.size(); ++i) {
      const Flops layer = exact.layers[i].forward;
      const double factor = layer > Flops(0) ? noisy.layers[i].forward / layer : 1;
      EXPECT_NEAR(graph.operators[i].forward.value, factor * nominal.operators[i].forward.value,
                  1e-12 * nominal.operators[i].forward.value);
      EXPECT_NEAR(graph.operators[i].backward.value, factor * nominal.operators[i].backward.value,
                  1e-12 * nominal.operators[i].backward.value);
    }
    EXPECT_EQ(operator_graph_of(noisy)->operators.size(), graph.operators.size());
  }
}

TEST(OperatorPlan, ReadsAndWritesThePartsOfRandomDivisions)
{
  std::mt19937_64 random(5);
  for (const auto& workload : moes_by_operators()) {
    const auto graph = *operator_graph_of(workload);
    for (const auto& shares : {equal_shares(4), std::vector<double>{0.5, 0, 0.5}, std::vector<double>{1}}) {
      const auto division = random_division(graph, spmd::Rules::Corrected, random);
      const Plan plan = plan_of(graph, division, shares, "duplex", 2);
      const std::string text = plan_to_json(plan);
      const Plan read = plan_from_json(text, "plan.json");
      EXPECT_EQ(plan_to_json(read), text);
      EXPECT_THAT(faults_of_operators(read, workload), IsEmpty());
      const auto divided = operator_plan_of(read, workload);
      EXPECT_EQ(divided.division.parts, division.parts);
      EXPECT_EQ(divided.division.signatures, division.signatures);
      EXPECT_EQ(divided.groups.front().shares, shares);
    }
  }
}

TEST(OperatorPlan, IsOneStageInItsFile)
{
  const Case sample;
  const std::string text = plan_to_json(sample.plan);
  EXPECT_THAT(text, HasSubstr("\"cuts\": ["));
  EXPECT_THAT(text, HasSubstr("\"embedding.x\": \"-> "));
  EXPECT_EQ(text.find("\"first_layer\""), text.rfind("\"first_layer\""));
}

TEST(OperatorPlan, HasReplicasThatTakeSamplesOfEveryMicroBatch)
{
  Case sample;
  for (const std::size_t replicas : {2, 3}) {
    const Plan plan = plan_of(sample.graph, sample.division, sample.shares, "duplex", 2, replicas);
    const std::string text = plan_to_json(plan);
    const Plan read = plan_from_json(text, "plan.json");
    EXPECT_EQ(plan_to_json(read), text);
    EXPECT_THAT(text, HasSubstr("\"replicas\": [\n        {\n          \"shards\""));
    EXPECT_THAT(text, HasSubstr("\"sync\": {\n    \"algorithm\": \"ring\"\n  }"));
    EXPECT_THAT(faults_of_operators(read, sample.workload), IsEmpty());
    const OperatorPlan divided = operator_plan_of(read, sample.workload);
    EXPECT_EQ(divided.replicas, replicas);
    EXPECT_EQ(divided.ranks(), 2 * replicas);
    ASSERT_EQ(divided.groups.size(), 1U);
    EXPECT_EQ(divided.groups[0].end_part, plan.stages.size());
    EXPECT_EQ(divided.groups[0].shares, sample.shares);
    EXPECT_EQ(divided.place_of(3).replica, 1U);
    EXPECT_EQ(divided.place_of(3).position, 1U);
    EXPECT_EQ(devices_of(plan).at(divided.groups[0].rank_of(1, 1)), plan.stages[0].replicas[1].shards[1].device);
    EXPECT_EQ(divided.graph.tensors.front().shape.front(), 12 / replicas);
    EXPECT_EQ(static_cast<double>(replicas) * divided.graph.operators.back().forward,
              sample.graph.operators.back().forward);
  }
}

TEST(OperatorPlan, NamesWhatIsWrongWithItsReplicas)
{
  Case sample;
  const Plan plan = plan_of(sample.graph, sample.division, sample.shares, "duplex", 2, 2);
  const auto faults = [&](const std::function<void(Replica&)>& change) {
    Plan changed = plan;
    for (auto& stage : changed.stages) change(stage.replicas[1]);
    const auto found = faults_of_operators(changed, sample.workload);
    // A file says the same.
    if (found.size() == 1) {
      EXPECT_THAT(message_of([&] { plan_from_json(plan_to_json(changed), "plan.json"); }), HasSubstr(found[0]));
    }
    return found;
  };
  EXPECT_THAT(faults([](Replica& replica) {
                replica.shards[0].share = 0.5;
                replica.shards[1].share = 0.5;
              }),
              ElementsAre("stages[0].replicas[1].shards[0].share: 0.5, and replicas[0] has 0.25; all divide operators "
                          "alike"));
  EXPECT_THAT(faults([](Replica& replica) {
                replica.shards.push_back({"d9", 0});
              }),
              ElementsAre("stages[0].replicas[1].shards: 3, and replicas[0] has 2; all divide operators alike"));
  EXPECT_THAT(faults([](Replica& replica) { replica.shards[1].device = "d0"; }),
              ElementsAre("stages[0].replicas[1].shards[1].device: d0 a second time; each shard has a device of its "
                          "own"));
  Plan other = plan;
  other.stages[0].replicas[1].microbatches = 1;
  EXPECT_THAT(faults_of_operators(other, sample.workload),
              ElementsAre("stages[0].replicas[1].microbatches: each replica takes samples of every micro-batch; leave "
                          "it out"));
  EXPECT_THAT(message_of([&] {
                plan_from_json(replaced(plan_to_json(plan), "\"shards\": [", "\"microbatches\": 1, \"shards\": ["),
                               "plan.json");
              }),
              HasSubstr("stages[0].replicas[0].microbatches: each replica takes samples of every micro-batch; leave it "
                        "out"));
  other = plan_of(sample.graph, sample.division, sample.shares, "duplex", 2, 5);
  EXPECT_THAT(
      faults_of_operators(other, sample.workload),
      ElementsAre("stages[0].replicas: 5 replicas, which cannot have as many of the 12 samples of a micro-batch; "
                  "their number divides it"));
  const Workload by_three = moes_by_operators("capacity_samples: 3\n").front();
  other = plan_of(*operator_graph_of(by_three), sample.division, sample.shares, "duplex", 2, 3);
  EXPECT_THAT(
      faults_of_operators(other, by_three),
      ElementsAre("stages[0].replicas: 3 replicas with 4 samples of a micro-batch each; the slots of experts are "
                  "for 3 (capacity_samples)"));
  other = plan;
  other.stages.back().replicas.pop_back();
  EXPECT_THAT(faults_of_operators(other, sample.workload),
              ElementsAre("stages[1].replicas: 1, and stages[0] has 2; each takes its samples through all stages"));
  other = plan;
  other.sync.sharded = Sharding::Optimizer;
  EXPECT_THAT(faults_of_operators(other, sample.workload),
              ElementsAre("sync: sharded and bucket_bytes are for stages of whole layers; leave them out"));
}

TEST(OperatorPlan, HasAStageInItsFileForEachGroup)
{
  Case sample;
  for (int i = 0; i < 10; ++i) {
    const auto division = random_division(sample.graph, spmd::Rules::Corrected, sample.random, 2);
    const std::vector<std::vector<double>> shares = {{0.25, 0.75}, {0.5, 0, 0.5}};
    Plan plan = plan_of_groups(sample.graph, division, shares, "duplex", 3, 2);
    add_random_buckets(plan, sample.workload, sample.random);
    const std::string text = plan_to_json(plan);
    const Plan read = plan_from_json(text, "plan.json");
    EXPECT_EQ(plan_to_json(read), text);
    EXPECT_THAT(faults_of_operators(read, sample.workload), IsEmpty());
    const OperatorPlan divided = operator_plan_of(read, sample.workload);
    EXPECT_EQ(divided.division.groups, division.groups);
    EXPECT_EQ(divided.ranks(), 10U);
    ASSERT_EQ(divided.groups.size(), 2U);
    EXPECT_EQ(divided.groups[1].first_part, division.groups[1]);
    EXPECT_EQ(divided.groups[1].first_rank, 4U);
    EXPECT_EQ(divided.groups[1].shares, shares[1]);
    EXPECT_FALSE(divided.groups[0].passes.empty());
    for (const std::size_t tensor : divided.groups[0].passes) {
      EXPECT_EQ(divided.form_of(tensor).kind, spmd::Form::Kind::Gather);
    }
    EXPECT_EQ(divided.place_of(8).group, 1U);
    EXPECT_EQ(divided.place_of(8).replica, 1U);
    EXPECT_EQ(divided.place_of(8).position, 1U);
  }
}

TEST(OperatorPlan, NamesWhatIsWrongWithItsGroups)
{
  Case sample;
  const auto division = random_division(sample.graph, spmd::Rules::Corrected, sample.random, 2);
  const Plan plan = plan_of_groups(sample.graph, division, {{0.5, 0.5}, {1}}, "duplex", 3);
  Plan other = plan;
  for (auto& stage : other.stages) {
    if (stage.replicas[0].shards.size() == 1) stage.replicas[0].shards[0].device = "d1";
  }
  EXPECT_THAT(
      faults_of_operators(other, sample.workload),
      ElementsAre("stages[1].replicas[0].shards[0].device: d1 a second time; each shard has a device of its own"));
  other = plan;
  for (auto& stage : other.stages) {
    if (stage.replicas[0].shards.size() == 1) stage.replicas.push_back({0, {{"d3"}}});
  }
  EXPECT_THAT(faults_of_operators(other, sample.workload),
              ElementsAre("stages[1].replicas: 2, and stages[0] has 1; each takes its samples through all stages"));
}

TEST(OperatorPlan, RefusesWhatItsFileCannotMean)
{
  const std::string text = plan_to_json(Case().plan);
  const auto fault = [&](const std::string& from, const std::string& to) {
    return message_of([&] { plan_from_json(replaced(text, from, to), "plan.json"); });
  };
  EXPECT_THAT(fault("\"layer0.qkv.weight\": \"-> ", "\"layer0.qkv.weight\": \"-> all "),
              HasSubstr("stages[0].splits.layer0.qkv.weight: \"-> all "));
  EXPECT_THAT(fault("\"replicas\": [", "\"grid\": [2, 2], \"replicas\": ["),
              HasSubstr("stages[0].grid: the shards divide each operator by its signature"));
  EXPECT_THAT(fault("\"share\": 0.25", "\"share\": 0.5"), HasSubstr("their shares sum to 1.25"));
  EXPECT_THAT(fault("\"head.output\": ", "\"more\": \"-> full\", \"head.output\": "),
              HasSubstr("stages[0].splits: 64 signatures for 63 layers; give each a signature, in their order"));
}

TEST(OperatorPlan, NamesWhatIsWrongWithADivision)
{
  Case sample;
  const auto faults = [&](Plan plan) { return faults_of_operators(plan, sample.workload); };
  Plan other = sample.plan;
  other.stages[0].splits[0].layers = "layer9.x";
  EXPECT_THAT(faults(other),
              ElementsAre("stages[0].splits: layer9.x in the place of embedding.x; list all operators in "
                          "their order"));
  other = sample.plan;
  other.stages[0].splits[0].split = "-> reduce";
  EXPECT_THAT(faults(other),
              ElementsAre("stages[0].splits: embedding.x: cannot be divided as -> reduce; use -> gather0, "
                          "or -> full"));
  const Workload blocks = small_moe("trunk: plain\nsequence: 12\ntop_k: 1\n");
  EXPECT_THAT(faults_of_operators(sample.plan, blocks),
              ElementsAre("stages[0].splits: divides operators, and the workload has no layer for each; write unit: "
                          "operator of a moe"));
  EXPECT_THAT(faults_of_operators(sample.plan, with_recomputation(sample.workload, {3})),
              ElementsAre("stages[0].splits: divides operators, which keep their activations; leave recompute out"));
  other = sample.plan;
  other.data_server = "server";
  EXPECT_THAT(
      faults(other),
      ElementsAre("stages[0].splits: divides operators on devices that have their data; leave data_server out"));
}

TEST(OperatorPlan, KeepsBucketsByTheNamesOfTheirLastParameters)
{
  Case sample;
  for (int i = 0; i < 20; ++i) {
    Plan plan = plan_of(sample.graph, random_division(sample.graph, spmd::Rules::Corrected, sample.random),
                        sample.shares, "duplex", 2);
    add_random_buckets(plan, sample.workload, sample.random);
    EXPECT_THAT(faults_of_operators(plan, sample.workload), IsEmpty());
    const std::string text = plan_to_json(plan);
    const Plan read = plan_from_json(text, "plan.json");
    EXPECT_EQ(read.sync, plan.sync);
    EXPECT_EQ(plan_to_json(read), text);
    if (!plan.sync.bucket_ends.empty()) {
      const std::string& name = sample.graph.operators[plan.sync.bucket_ends[0]].name;
      EXPECT_THAT(text, HasSubstr("\"bucket_ends\": [\n      \"" + name + "\""));
    }
  }
  Plan plan = sample.plan;
  plan.sync.adds_replicas = false;
  EXPECT_THAT(plan_to_json(plan), HasSubstr("\"adds_replicas\": false"));
  EXPECT_EQ(plan_from_json(plan_to_json(plan), "plan.json").sync, plan.sync);
  EXPECT_THAT(operator_plan_of(plan, sample.workload).buckets, IsEmpty());
}

/// All parameters on each device, and samples divided.
Plan data_parallel(const Case& sample)
{
  spmd::Division division;
  division.parts = {0};
  const auto samples = spmd::sample_dimensions(sample.graph);
  for (const auto& node : sample.graph.operators) {
    for (const auto& signature : spmd::signatures_of(sample.graph, node, spmd::Rules::Corrected)) {
      bool fits = true;
      for (std::size_t k = 0; k < node.inputs.size(); ++k) {
        const auto& dimension = samples[node.inputs[k]];
        fits = fits && (node.kind == spmd::OperatorKind::Output ||
                        signature.inputs[k] == (dimension ? spmd::gather(*dimension) : spmd::full));
      }
      if (node.kind == spmd::OperatorKind::Data) fits = signature.outputs[0] == spmd::gather(0);
      if (node.kind == spmd::OperatorKind::Parameter) fits = signature.outputs[0] == spmd::replicate;
      if (!fits) continue;
      division.signatures.push_back(signature);
      break;
    }
  }
  return plan_of(sample.graph, division, sample.shares, "duplex", 2);
}

TEST(OperatorPlan, NamesWhatIsWrongWithItsBuckets)
{
  const Case sample;
  const Plan plan = data_parallel(sample);
  ASSERT_THAT(faults_of_operators(plan, sample.workload), IsEmpty());
  const auto number_of = [&](const std::string& name) {
    const auto node = std::find_if(sample.graph.operators.begin(), sample.graph.operators.end(),
                                   [&](const auto& each) { return each.name == name; });
    return static_cast<std::size_t>(node - sample.graph.operators.begin());
  };
  const auto faults = [&](const std::vector<std::string>& ends) {
    Plan other = plan;
    for (const auto& name : ends) other.sync.bucket_ends.push_back(number_of(name));
    return faults_of_operators(other, sample.workload);
  };
  EXPECT_THAT(faults({"layer1.w1", "layer0.qkv.weight"}), IsEmpty());
  EXPECT_THAT(faults({"layer0.qkv", "layer0.qkv.weight"}),
              ElementsAre("sync.bucket_ends: layer0.qkv is not a parameter that each device has; write one whose "
                          "gradient is added up"));
  EXPECT_THAT(faults({"layer0.qkv.bias", "layer1.w1", "layer0.qkv.weight"}),
              ElementsAre("sync.bucket_ends: layer1.w1 comes too late; list the ends in the order in which backward "
                          "makes gradients"));
  EXPECT_THAT(faults({"layer1.w1"}), ElementsAre("sync.bucket_ends: no bucket has layer1.gate; end the last one with "
                                                 "layer0.qkv.weight"));
  // A second stage from the second layer on has buckets of its own.
  Plan groups = plan;
  const std::size_t cut = number_of("layer1.qkv.weight");
  Stage& first = groups.stages.front();
  Stage second = first;
  second.first_layer = cut;
  second.splits.erase(second.splits.begin(), second.splits.begin() + static_cast<std::ptrdiff_t>(cut));
  second.replicas = {{0, {{"d2"}}}};
  first.last_layer = cut - 1;
  first.splits.resize(cut);
  groups.stages.push_back(std::move(second));
  groups.sync.bucket_ends = {number_of("layer0.qkv.weight")};
  EXPECT_THAT(
      faults_of_operators(groups, sample.workload),
      ElementsAre("sync.bucket_ends: layer1.qkv.weight is in a bucket with a parameter of another stage; end one "
                  "with it"));
  groups.sync.bucket_ends = {cut, number_of("layer0.qkv.weight")};
  EXPECT_THAT(faults_of_operators(groups, sample.workload), IsEmpty());
  const auto read = [&](const std::string& sync) {
    return message_of([&] {
      plan_from_json(replaced(plan_to_json(plan), "\"predicted\":", "\"sync\": " + sync + ", \"predicted\":"),
                     "plan.json");
    });
  };
  EXPECT_THAT(read("{\"bucket_ends\": [\"w9\"]}"),
              HasSubstr("sync.bucket_ends[0]: \"w9\" is not in splits; write the name of a parameter"));
  EXPECT_THAT(read("{\"bucket_ends\": []}"),
              HasSubstr("sync.bucket_ends: none; leave it out, so that each gradient is added up by itself"));
  EXPECT_THAT(
      read("{\"bucket_ends\": [\"layer0.qkv.weight\"], \"adds_replicas\": false}"),
      HasSubstr("sync.bucket_ends: no gradients are added up with adds_replicas: false; leave one of them out"));
  EXPECT_THAT(read("{\"algorithm\": \"ring\"}"), HasSubstr("sync.algorithm: unknown key"));
}

TEST(OperatorPlan, KeepsItsRouting)
{
  Plan plan = Case().plan;
  plan.routing = spmd::Routing{4, true};
  const std::string text = plan_to_json(plan);
  EXPECT_THAT(text, HasSubstr("\"routing\": {\n    \"capacity_samples\": 4,\n    \"by_index\": true\n  }"));
  EXPECT_EQ(plan_from_json(text, "plan.json").routing, plan.routing);
  EXPECT_THAT(
      message_of([&] { plan_from_json(replaced(text, "\"capacity_samples\": 4", "\"samples\": 4"), "plan.json"); }),
      HasSubstr("routing.capacity_samples: missing"));
}

}  // namespace
}  // namespace isobar::operator_plan_test
