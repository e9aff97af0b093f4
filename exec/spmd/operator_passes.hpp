#pragma once

#include "core/model/workload.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/program/program.hpp"
#include "exec/device/message.hpp"
#include "exec/device/stream.hpp"
#include "exec/device/tensors.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace isobar::exec {

/// How a rank computes its part of the operators of a model.
struct OperatorOptions {
  std::size_t rank = 0;
  /// Makes the data of a micro-batch, of all replicas, on the device, by their number in the graph: inputs, then
  /// labels. Called by several threads.
  std::function<at::Tensor(std::uint64_t step, std::uint64_t microbatch, std::size_t number)> data;
  std::uint64_t microbatches = 1;  ///< per step; each one's loss counts 1/microbatches
  std::uint64_t seed = 1;
  std::string device = "cpu";
};

/// How a rank makes the collectives of reforms with the others, for an instruction; as Transport does.
struct Collectives {
  std::function<void(const Instruction& instruction, const Tensors& tensors)> sum;
  std::function<void(const Instruction& instruction, const Tensors& outgoing, const Tensors& incoming)> exchange;
};

/// The forward and backward passes of a rank through the parts of a plan that divides operators, and the reforms
/// between them.
///
/// In a part autograd records the operators, and the reforms without communication. Tensors of other parts, and those
/// that a collective has made, are leaves of its graph. A backward pass adds up their gradients, by tensor and
/// micro-batch, in the form of spmd::gradient_form; conjugates make those of the tensors before the reform of them.
/// Gradients of parameters add up in the parameters, over the micro-batches of a step. A parameter that a collective
/// makes whole is gathered once a step, and its gradient taken back once.
///
/// Groups of a pipeline pass slices of tensors on, and their gradients back, in messages between ranks whose slices
/// overlap.
///
/// Every rank makes all data of a micro-batch, takes the samples of its replica, and keeps its slice. Tensors are kept
/// until the backward pass of the part that makes them, reformed ones until that of the part before which they are
/// reformed.
///
/// Numbers are of the dtype of the parameters, or of the workload's if that has 16 bits, by autocast.
///
/// Passes may run beside reforms of another lane, if the instructions wait for each other as those of
/// schedules::OperatorProgram do; otherwise not thread-safe.
class OperatorPasses {
 public:
  /// `parameters`: what this rank stores of each parameter of its group, in the order of the graph's operators; leaves
  /// of autograd.
  /// `plan` and `workload` must outlive this.
  OperatorPasses(const OperatorPlan& plan, const Workload& workload, Tensors parameters,
                 const OperatorOptions& options);
  OperatorPasses(const OperatorPasses&) = delete;
  OperatorPasses& operator=(const OperatorPasses&) = delete;
  ~OperatorPasses();

  /// Passes a micro-batch through a part, on the calling thread's stream, which is `stream`.
  void forward(std::uint64_t step, const Instruction& pass, Stream& stream);
  /// @param loss_scale factor of the loss
  void backward(std::uint64_t step, const Instruction& pass, double loss_scale, Stream& stream);
  /// Makes a reform, the index of which in the plan is the instruction's place, or its conjugate; of the gradients of
  /// replicated parameters, those of a bucket, of which it is the last.
  void reform(std::uint64_t step, const Instruction& instruction, const Collectives& collectives, Stream& stream);
  /// Adds up the gradients of what this rank stores of the parameters of a part, the instruction's stage, over the
  /// replicas.
  void add_up_replicas(const Instruction& instruction, const Collectives& collectives, Stream& stream);
  /// The message of a Send: the pieces that `reader`, a rank of a neighbouring group, shares with this one's slices of
  /// the tensors between them, or of their gradients.
  Message leaving(std::size_t reader, std::uint64_t step, const Instruction& send, Stream& stream);
  /// Keeps such a message, which a Recv has brought from `sender`. Its tensors are on the device.
  void arrived(std::size_t sender, std::uint64_t step, const Instruction& receive, const Message& message,
               Stream& stream);
  /// This rank's addend of the mean loss over the micro-batches of a step, since the last call: a float64 scalar on
  /// its device. Only in the last group.
  at::Tensor take_loss();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobar::exec
