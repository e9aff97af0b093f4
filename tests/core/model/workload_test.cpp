#include "core/model/workload.hpp"

#include "core/costs/cost_model.hpp"
#include "tests/support/instances.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

namespace isobar::workload_test {
namespace {

using testing_support::chain;

std::vector<std::size_t> all_layers_of(const Workload& workload)
{
  std::vector<std::size_t> layers(workload.layers.size());
  std::iota(layers.begin(), layers.end(), std::size_t{0});
  return layers;
}

TEST(WithRecomputation, KeepsOnlyTheInputsOfTheLayers)
{
  Workload workload = chain({1, 2, 4, 8}, 0, 100, 10);
  workload.input = Bytes(7);
  workload.layers[1].output = Bytes(30);
  workload.layers[3].inputs = {1, 2};
  const Workload result = with_recomputation(workload, {0, 2, 3});
  EXPECT_EQ(result.layers[0].activations, Bytes(7));
  EXPECT_EQ(result.layers[1].activations, Bytes(100));
  EXPECT_EQ(result.layers[2].activations, Bytes(30));
  EXPECT_EQ(result.layers[3].activations, Bytes(30 + 10));
  EXPECT_EQ(result.workspace, Bytes(100 - 7));
  EXPECT_THAT(result.recompute, testing::ElementsAre(0, 2, 3));
}

TEST(WithRecomputation, CountsAFormulasWorkspaceInPassesAndAMeasuredOneThroughout)
{
  Workload workload = chain({1, 2, 4}, 0, 100, 10);
  workload.layers[1].workspace = Bytes(50);
  const Workload by_formula = with_recomputation(workload, {1});
  EXPECT_EQ(by_formula.layers[1].workspace, Bytes(50 + 90));
  EXPECT_EQ(by_formula.workspace, Bytes(90));
  workload.workspace = Bytes(50);  // as a profile sets it
  const Workload by_profile = with_recomputation(workload, {1});
  EXPECT_EQ(by_profile.layers[1].workspace, Bytes(50 + 90));
  EXPECT_EQ(by_profile.workspace, Bytes(50 + 90));
}

TEST(WithRecomputation, AddsForwardWorkOnlyToTheBackwardOfItsLayers)
{
  const Workload result = with_recomputation(chain({1, 2, 4}), {1});
  EXPECT_EQ(result.layers[0].backward, Flops(2));
  EXPECT_EQ(result.layers[1].forward, Flops(2));
  EXPECT_EQ(result.layers[1].backward, Flops(6));
  EXPECT_EQ(result.layers[2].backward, Flops(8));
}

TEST(WithRecomputation, LeavesTheGradientsOfParametersAsTheyAre)
{
  Workload workload = chain({1, 2, 4});
  workload.layers[1].backward_weight = Flops(1.5);
  const Workload result = with_recomputation(workload, {1});
  EXPECT_EQ(result.layers[1].backward_weight, Flops(1.5));
}

TEST(DefaultBackwardWeight, IsHalfOfTheBackwardPassWhereThereAreParameters)
{
  Layer layer;
  layer.backward = Flops(6);
  EXPECT_EQ(default_backward_weight(layer), Flops(0));
  layer.parameters = 1;
  EXPECT_EQ(default_backward_weight(layer), Flops(3));
}

TEST(WithRecomputation, KeepsNoMoreThanTheLayerDidBefore)
{
  const Workload result = with_recomputation(chain({1, 1}, 0, 5, 10), {1});
  EXPECT_EQ(result.layers[1].activations, Bytes(5));
  EXPECT_EQ(result.workspace, Bytes(0));
}

TEST(WithRecomputation, OfNoLayerChangesNothing)
{
  const Workload workload = chain({1, 2}, 3, 5, 10);
  EXPECT_EQ(workload_to_json(with_recomputation(workload, {})), workload_to_json(workload));
}

TEST(WithRecomputation, RequiresTrainingMemoryAndIsDoneOnce)
{
  Workload workload = chain({1, 1}, 0, 5, 1);
  EXPECT_THROW(with_recomputation(with_recomputation(workload, {0}), {1}), std::logic_error);
  workload.memory_model = MemoryModel::Sky;
  EXPECT_THROW(with_recomputation(workload, {0}), std::logic_error);
}

TEST(WithRecomputation, OfAllLayersAddsOneForwardAndAtMostItsBuffer)
{
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    Workload before = testing_support::random_chain(random, 1 + random() % 9);
    before.memory_model = MemoryModel::Training;
    for (auto& layer : before.layers) layer.backward = 2 * layer.forward;
    const Workload after = with_recomputation(before, all_layers_of(before));
    const auto devices = testing_support::cluster({1});
    const CostModel cost_before(before, devices);
    const CostModel cost(after, devices);
    const std::size_t last = cost.layers() - 1;
    for (std::size_t first = 0; first <= last; ++first) {
      EXPECT_NEAR(cost.backward_work(first, last).value, 3 * cost.forward_work(first, last).value, 1e-12);
      for (const std::uint64_t in_flight : {1, 2, 9}) {
        EXPECT_LE(cost.memory(first, last, in_flight),
                  cost_before.memory(first, last, in_flight) + after.workspace + Bytes(1e-12));
      }
    }
    // A stage that holds the layer with the largest buffer saves at least as much.
    EXPECT_LE(cost.memory(0, last, 1), cost_before.memory(0, last, 1) + Bytes(1e-12));
  }
}

TEST(WithMicroBatch, EqualsTheWorkloadOfAFileWithThatSize)
{
  const char* const models[] = {
      "model: bert\nencoders: 2\nhidden: 8\nheads: 2\nintermediate: 32\nvocabulary: 100\npositions: 16\nclasses: 3\n"
      "sequence: 16\nmemory_model: sky\n",
      "model: bert\nencoders: 2\nhidden: 8\nheads: 2\nintermediate: 32\nvocabulary: 100\npositions: 16\nclasses: 3\n"
      "sequence: 16\n",
      "model: gpt\nlayers: 3\nhidden: 8\nheads: 2\nvocabulary: 100\nsequence: 16\noptimizer: adamw\n",
      "model: llama\nlayers: 3\nhidden: 8\nheads: 4\nkv_heads: 2\nintermediate: 20\nvocabulary: 100\nsequence: 16\n"
      "dtype: bf16\n",
      "model: resnet\ndepth: 50\n"};
  for (const std::string text : models) {
    const Workload small = workload_from_text(text + "micro_batch: 2\n", "w.yaml");
    const Workload large = workload_from_text(text + "micro_batch: 48\n", "w.yaml");
    EXPECT_EQ(workload_to_json(with_micro_batch(small, 48)), workload_to_json(large)) << text;
    EXPECT_NE(workload_to_json(small), workload_to_json(large));
    if (small.memory_model == MemoryModel::Sky) continue;
    EXPECT_EQ(workload_to_json(with_micro_batch(with_recomputation(small, {1, 2}), 48)),
              workload_to_json(with_recomputation(large, {1, 2})));
  }
}

TEST(WorkloadToJson, HasHowDevicesCanDivideALayer)
{
  const Workload workload = workload_from_text(
      "model: gpt\nlayers: 1\nhidden: 8\nheads: 2\nvocabulary: 100\nsequence: 16\nmicro_batch: 2\nunit: operator\n",
      "w.yaml");
  const std::string json = workload_to_json(workload);
  EXPECT_THAT(json, testing::HasSubstr(R"("split":{"name":"heads","units":2,"parameters":280,)"));
  EXPECT_THAT(json, testing::HasSubstr(R"("products":[[8,24],[8,8]],"norm_sums":2})"));
  EXPECT_THAT(json, testing::HasSubstr(R"("gathered_bytes":256.0,"products":[[8,100]],"norm_sums":2})"));
  const Workload listed = chain({1});
  EXPECT_THAT(workload_to_json(listed), testing::Not(testing::HasSubstr("split")));
}

TEST(WithMicroBatch, RefusesListedLayers)
{
  EXPECT_THROW(with_micro_batch(chain({1, 2}), 2), std::logic_error);
}

TEST(WorkloadToJson, ContainsTheWorkForTheGradientsOfParameters)
{
  Workload workload = chain({1});
  workload.layers[0].backward_weight = Flops(0.75);
  EXPECT_NE(workload_to_json(workload).find(R"("backward_flops":2.0,"backward_weight_flops":0.75)"), std::string::npos)
      << workload_to_json(workload);
}

TEST(WorkloadToJson, ContainsTheRecomputationBuffer)
{
  const Workload workload = with_recomputation(chain({1, 1}, 0, 50, 10), {0, 1});
  EXPECT_NE(workload_to_json(workload).find(R"("recompute_buffer_bytes":50.0)"), std::string::npos)
      << workload_to_json(workload);
}

}  // namespace
}  // namespace isobar::workload_test
