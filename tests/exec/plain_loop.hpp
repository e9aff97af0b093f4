#pragma once

#include "core/workload.hpp"
#include "exec/layer_module.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace isobar::exec {

/// What anybody would write with LibTorch: the whole model in one graph on the CPU, micro-batch by micro-batch. The
/// executor is held against it.
class PlainLoop {
 public:
  /// `workload` must outlive it.
  PlainLoop(const Workload& workload, std::uint64_t seed, std::uint64_t microbatches);
  ~PlainLoop();
  PlainLoop(const PlainLoop&) = delete;
  PlainLoop& operator=(const PlainLoop&) = delete;

  /// One step of training; its mean loss.
  double step();

 private:
  struct Optimizer;

  const Workload& workload_;
  std::uint64_t seed_;
  std::uint64_t microbatches_;
  std::uint64_t next_step_ = 0;
  std::vector<std::unique_ptr<LayerModule>> layers_;
  Tensors parameters_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace isobar::exec
