#pragma once

#include "core/model/workload.hpp"
#include "exec/device/message.hpp"
#include "exec/model/divided_experts.hpp"
#include "exec/model/layer_module.hpp"
#include "exec/stage/stage_model.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace isobar::exec {

/// The passes of a layer whose experts several devices divide, between which tokens and gradients are exchanged. Parts
/// of different micro-batches may run at the same time, on threads of their own: those before and after an exchange
/// share no parameters with what computes the experts. On CPUs only.
class ExpertPasses {
 public:
  /// All arguments must outlive this.
  ExpertPasses(const Workload& workload, const StageOptions& options, const LayerModule& module, std::string name);
  ~ExpertPasses();
  ExpertPasses(const ExpertPasses&) = delete;
  ExpertPasses& operator=(const ExpertPasses&) = delete;

  /// The rows that leave for experts, [copies, width] by expert, and how many for each, int64 on the CPU. Waits for the
  /// update of the step before. `keeps`: what a backward pass needs; else the pass is an evaluation's.
  std::pair<at::Tensor, at::Tensor> begin_forward(std::uint64_t step, std::uint64_t microbatch, const Message& inputs,
                                                  bool keeps);
  /// What this device's experts give for rows that have arrived, in their order: from one device after another, of each
  /// by expert. `counts`: int64 [devices, own experts], on the CPU.
  at::Tensor compute(std::uint64_t microbatch, const at::Tensor& rows, const at::Tensor& counts);
  /// The layer's output. `returned`: what experts gave for the rows that left, in their order.
  Message end_forward(std::uint64_t microbatch, const at::Tensor& returned);
  /// The gradients of `returned`, of those of the output.
  at::Tensor begin_backward(std::uint64_t microbatch, const Message& gradients);
  /// Those of the rows that had arrived, of those of what the experts gave for them.
  at::Tensor compute_backward(std::uint64_t microbatch, const at::Tensor& gradients);
  /// Those of the layer's input, of those of the rows that had left.
  Message end_backward(std::uint64_t microbatch, const at::Tensor& returned);
  /// Waits until the backward passes of all micro-batches have ended.
  void await_gradients();
  /// Says that the parameters have been updated by the gradients of a step.
  void updated(std::uint64_t step);
  /// Ends the waits.
  void cancel() noexcept;

 private:
  struct MicroBatch;

  MicroBatch& in_flight(std::uint64_t microbatch);
  void forget(std::uint64_t microbatch);
  /// Waits until `is_over` holds. @throws the failure that ends all waits.
  template <typename IsOver>
  void await(IsOver is_over);
  template <typename Work>
  auto run(const MicroBatch& micro_batch, Work work) const;

  const Workload& workload_;
  const StageOptions& options_;
  const DividedExperts& experts_;
  std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::uint64_t> next_step_;  // that may begin; none before the first one
  bool is_cancelled_ = false;
  std::map<std::uint64_t, std::unique_ptr<MicroBatch>> in_flight_;
};

}  // namespace isobar::exec
