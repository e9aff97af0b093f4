#include "exec/model/deferred_products.hpp"

#include "exec/device/memory_meter.hpp"
#include "exec/device/stream.hpp"
#include "exec/model/batch.hpp"
#include "exec/model/layer_module.hpp"
#include "exec/model/loss.hpp"
#include "exec/stage/stage_model.hpp"
#include "tests/support/small_models.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <ATen/autocast_mode.h>

#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace isobar::exec::deferred_products_test {
namespace {

constexpr std::uint64_t seed = 3;

Workload model(const std::string& name, DType dtype = DType::Float32)
{
  return testing_support::small_model(testing_support::shipped_workload(name), dtype);
}

/// The same bits, also of values that are not finite.
void expect_same_bits(const at::Tensor& found, const at::Tensor& expected, const std::string& what)
{
  ASSERT_EQ(found.defined(), expected.defined()) << what;
  if (!found.defined()) return;
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(at::equal(found.contiguous().view(at::kInt), expected.contiguous().view(at::kInt))) << what;
}

/// Trains with plain LibTorch: all layers in one graph, two micro-batches.
class Layers {
 public:
  explicit Layers(const Workload& workload) : workload_(workload)
  {
    for (std::size_t i = 0; i < workload.layers.size(); ++i) {
      layers_.push_back(make_layer_module(workload, i, seed, "cpu"));
    }
  }

  /// `products`: records the matrix products, if not null.
  void forward_and_backward(std::uint64_t microbatch, const std::shared_ptr<DeferredProducts>& products)
  {
    const RandomKey key{seed, 0, microbatch};
    Tensors passed = synthetic_inputs(workload_, key, "cpu");
    {
      const DeferredProducts::Scope scope(products);
      const bool is_mixed = workload_.dtype == DType::BFloat16;
      at::autocast::set_autocast_enabled(at::kCPU, is_mixed);
      if (is_mixed) at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      for (auto& layer : layers_) passed = layer->forward(passed, key);
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
    }
    loss_of(workload_, passed, synthetic_labels(workload_, key, "cpu")).backward();
  }

  /// The gradients of all parameters, with their names.
  std::vector<std::pair<std::string, at::Tensor>> gradients() const
  {
    std::vector<std::pair<std::string, at::Tensor>> all;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      for (std::size_t j = 0; j < layers_[i]->parameters().size(); ++j) {
        all.emplace_back(fmt::format("layer {}: {}", i, layers_[i]->parameter_names()[j]),
                         layers_[i]->parameters()[j].grad());
      }
    }
    return all;
  }

 private:
  const Workload& workload_;
  std::vector<std::unique_ptr<LayerModule>> layers_;
};

class AnyModel : public testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  static Workload workload()
  {
    Workload workload = model(std::get<0>(GetParam()), std::get<1>(GetParam()));
    workload.training.dropout = 0.1;
    return workload;
  }
};

TEST_P(AnyModel, HasTheBitsOfAWholeBackwardPass)
{
  const Workload dropping = workload();
  Layers whole(dropping);
  Layers split(dropping);
  const auto first = std::make_shared<DeferredProducts>();
  const auto second = std::make_shared<DeferredProducts>();
  whole.forward_and_backward(0, nullptr);
  whole.forward_and_backward(1, nullptr);
  split.forward_and_backward(0, first);
  split.forward_and_backward(1, second);
  std::size_t left_out = 0;
  for (const auto& [name, gradient] : split.gradients()) left_out += gradient.defined() ? 0 : 1;
  EXPECT_GT(left_out, 0U) << "products leave out the gradients of their parameters";
  first->add_gradients();
  second->add_gradients();
  const auto expected = whole.gradients();
  const auto found = split.gradients();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expect_same_bits(found[i].second, expected[i].second, expected[i].first);
  }
}

/// The parameters of a stage after two steps of three micro-batches, and what the sync was told. `splits`: backward
/// passes are split, and all weight gradients of a step are computed at its end.
std::pair<std::vector<StoredTensor>, double> trained(const Workload& workload, bool splits,
                                                     const std::vector<std::size_t>& recomputed)
{
  constexpr std::uint64_t microbatches = 3;
  const auto batches = synthetic_batches(workload);
  StageOptions options;
  options.last_layer = workload.layers.size() - 1;
  options.recomputed = recomputed;
  options.microbatches = microbatches;
  options.splits_backward = splits;
  options.seed = seed;
  options.batches = batches.get();
  StageModel stage(workload, options);
  double sum_of_squares = 0;
  for (std::uint64_t step = 0; step < 2; ++step) {
    for (std::uint64_t microbatch = 0; microbatch < microbatches; ++microbatch) {
      Message inputs;
      inputs.tensors = batches->inputs({seed, step, microbatch}, "cpu");
      inputs.differentiable.assign(inputs.tensors.size(), false);
      stage.forward(step, microbatch, std::move(inputs));
      if (splits) {
        stage.backward_input(microbatch, {});
      } else {
        stage.backward(microbatch, {});
      }
    }
    for (std::uint64_t microbatch = 0; splits && microbatch < microbatches; ++microbatch) {
      stage.backward_weight(microbatch);
    }
    GradientFacts facts;
    stage.add_gradient_facts(step, facts);
    sum_of_squares += facts.sum_of_squares;
    stage.update(step, facts);
  }
  return {stage.state(), sum_of_squares};
}

TEST_P(AnyModel, TrainsAsWithWholeBackwardPassesAlsoWithRecomputation)
{
  const Workload dropping = workload();
  std::vector<std::size_t> all(dropping.layers.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::vector<std::size_t> some;
  for (const std::size_t layer : all) {
    if (layer % 2 == 0) some.push_back(layer);
  }
  for (const auto& recomputed : {std::vector<std::size_t>(), some, all}) {
    const auto [expected, expected_sum] = trained(dropping, false, recomputed);
    const auto [found, sum] = trained(dropping, true, recomputed);
    EXPECT_EQ(sum, expected_sum);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(found[i].data, expected[i].data) << expected[i].facts.name;
  }
}

INSTANTIATE_TEST_SUITE_P(DeferredProducts, AnyModel,
                         testing::Combine(testing::Values("bert24", "gpt2_124m", "llama_8b", "resnet50"),
                                          testing::Values(DType::Float32, DType::BFloat16)));

TEST(DeferredProducts, AreOrdinaryProductsOutsideAScope)
{
  EXPECT_FALSE(DeferredProducts::are_recorded());
  const auto products = std::make_shared<DeferredProducts>();
  {
    const DeferredProducts::Scope scope(products);
    EXPECT_TRUE(DeferredProducts::are_recorded());
    {
      const DeferredProducts::Scope none(nullptr);
      EXPECT_FALSE(DeferredProducts::are_recorded());
    }
    EXPECT_TRUE(DeferredProducts::are_recorded());
  }
  EXPECT_FALSE(DeferredProducts::are_recorded());
}

TEST(DeferredProducts, KeepInputAndGradientUntilTheGradientsAreAdded)
{
  constexpr std::int64_t rows = 1000;
  constexpr std::int64_t from = 40;
  constexpr std::int64_t to = 30;
  meter_cpu_memory();
  MemoryMeter meter(Bytes(0));
  Stream stream("cpu", Stream::Kind::Computations, meter);
  const Stream::Scope scope(stream);
  const auto weight = at::ones({to, from}).requires_grad_();
  const auto bias = at::ones({to}).requires_grad_();
  const Bytes before = meter.current();
  const auto products = std::make_shared<DeferredProducts>();
  {
    const DeferredProducts::Scope recorded(products);
    const auto input = at::ones({rows, from}).requires_grad_();
    at::Tensor output = DeferredProducts::linear(input, weight, bias);
    output = output * 2;  // its gradient is a tensor of its own
    output.backward(at::ones({rows, to}));
    EXPECT_TRUE(at::equal(input.grad(), at::full({rows, from}, 2.0 * to)));
  }
  const Bytes kept = meter.current() - before;
  const Bytes needed(4.0 * (rows * from + rows * to));  // the input and the gradient of the output
  EXPECT_GE(kept, needed);
  EXPECT_LT(kept, needed + Bytes(10'000));
  products->add_gradients();
  EXPECT_LT(meter.current() - before, Bytes(10'000));  // the gradients of the parameters
  EXPECT_TRUE(at::equal(weight.grad(), at::full({to, from}, 2.0 * rows)));
  EXPECT_TRUE(at::equal(bias.grad(), at::full({to}, 2.0 * rows)));
}

}  // namespace
}  // namespace isobar::exec::deferred_products_test
