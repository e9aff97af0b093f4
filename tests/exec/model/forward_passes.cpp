#include "tests/exec/model/forward_passes.hpp"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <stdexcept>

namespace isobar::exec {

namespace {

/// Limits torch to one thread, which is enough for these sizes. Its threads spin while they wait for each other, which
/// takes minutes when other tests share the cores.
class OneThread final : public testing::Environment {
 public:
  void SetUp() override { at::set_num_threads(1); }
};

const auto* const one_thread = testing::AddGlobalTestEnvironment(new OneThread);

/// Enables autocast on the CPU while it lives, if the dtype needs it.
class Autocast {
 public:
  explicit Autocast(DType dtype) : enabled_(dtype != DType::Float32)
  {
    if (!enabled_) return;
    at::autocast::set_autocast_dtype(at::kCPU, dtype == DType::BFloat16 ? at::kBFloat16 : at::kHalf);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast()
  {
    if (!enabled_) return;
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }

 private:
  bool enabled_;
};

}  // namespace

Modules all_layers(const Workload& workload, std::uint64_t seed)
{
  Modules layers;
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    layers.push_back(make_layer_module(workload, i, seed, "cpu"));
  }
  return layers;
}

std::vector<Tensors> forward_all(const Workload& workload, const Modules& layers, const Tensors& inputs,
                                 const RandomKey& key)
{
  std::vector<Tensors> outputs;
  for (const auto& layer : layers) {
    outputs.push_back(forward_one(workload, *layer, outputs.empty() ? inputs : outputs.back(), key));
  }
  return outputs;
}

Tensors forward_one(const Workload& workload, LayerModule& layer, const Tensors& inputs, const RandomKey& key)
{
  const Autocast autocast(workload.dtype);
  return layer.forward(inputs, key);
}

const at::Tensor& parameter(const LayerModule& layer, const std::string& name)
{
  const auto& names = layer.parameter_names();
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) throw std::out_of_range("no parameter " + name);
  return layer.parameters()[static_cast<std::size_t>(found - names.begin())];
}

double bytes_of(const Tensors& tensors)
{
  double bytes = 0;
  for (const auto& tensor : tensors) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

bool same_bits(const Tensors& one, const Tensors& other)
{
  return std::ranges::equal(one, other, [](const auto& a, const auto& b) { return at::equal(a, b); });
}

}  // namespace isobar::exec
