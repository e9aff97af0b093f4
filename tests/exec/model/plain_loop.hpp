#pragma once

#include "core/model/workload.hpp"
#include "exec/model/layer_module.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace isobar::exec {

/// Reference for the executor, as usually written with LibTorch: the whole model in one graph on one device,
/// micro-batch by micro-batch, with autocast for bfloat16.
class PlainLoop {
 public:
  /// In which order a step adds up the gradients of its micro-batches.
  enum class Order { Ascending, Descending };

  /// `workload` must outlive it.
  PlainLoop(const Workload& workload, std::uint64_t model_seed, std::uint64_t microbatches, std::string device = "cpu");
  ~PlainLoop();
  PlainLoop(const PlainLoop&) = delete;
  PlainLoop& operator=(const PlainLoop&) = delete;

  /// Trains one step; returns its mean loss.
  double step(Order order = Order::Ascending);

 private:
  struct Optimizer;

  at::Tensor loss_of_micro_batch(const RandomKey& key);

  const Workload& workload_;
  std::uint64_t seed_;
  std::uint64_t microbatches_;
  std::string device_;
  std::uint64_t next_step_ = 0;
  std::vector<std::unique_ptr<LayerModule>> layers_;
  Tensors parameters_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace isobar::exec
