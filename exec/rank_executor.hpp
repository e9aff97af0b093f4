#pragma once

#include "core/plan.hpp"
#include "core/workload.hpp"
#include "exec/interpreter.hpp"
#include "exec/memory_meter.hpp"
#include "exec/stage_model.hpp"
#include "exec/transport.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace isobar::exec {

/// How one rank is to work.
struct RankOptions {
  std::uint64_t seed = 1;
  std::string device = "cpu";
  double slowdown = 1;  ///< computation is stretched to this many times what it takes; 1: not at all
  Bytes memory_cap;     ///< 0: none
};

/// Does a rank's instructions for real: a stage's on its layers, or the data server's, which sends each micro-batch.
class RankExecutor : public RankWork {
 public:
  /// Makes the stage's parameters. Rank `plan.stages.size()` is the data server.
  RankExecutor(const Workload& workload, const Plan& plan, std::size_t rank, const RankOptions& options);
  /// Before the first instruction; `transport` must outlive it.
  void connect(Transport& transport) { transport_ = &transport; }

  void run(std::uint64_t step, const Instruction& instruction) override;
  Bytes memory() const override { return meter_.current(); }
  void cancel() noexcept override { transport_->cancel(); }

  Bytes peak_memory() const { return meter_.peak(); }
  /// True of the last stage alone.
  bool has_loss() const { return rank_ + 1 == stages_; }
  /// Mean loss of the micro-batches since the last call.
  double take_loss() { return model_->take_loss(); }
  const StageModel& model() const { return *model_; }

 private:
  /// What waits on this rank for its next instruction, by micro-batch.
  class Shelf {
   public:
    void put(std::uint64_t microbatch, Message message);
    Message take(std::uint64_t microbatch);

   private:
    std::mutex mutex_;
    std::map<std::uint64_t, Message> messages_;
  };

  void compute(std::uint64_t step, const Instruction& instruction);
  Message stage_inputs(std::uint64_t step, std::uint64_t microbatch);
  Message micro_batch_data(std::uint64_t step, std::uint64_t microbatch) const;

  const Workload& workload_;
  RankOptions options_;
  Transport* transport_ = nullptr;
  std::size_t stages_;
  std::size_t rank_;
  bool has_data_server_;
  MemoryMeter meter_;
  std::unique_ptr<StageModel> model_;  // none of the data server
  Shelf received_activations_;
  Shelf activations_to_send_;
  Shelf received_gradients_;
  Shelf gradients_to_send_;
  GradientFacts agreed_;  // of all stages, from the step's AllReduce
};

}  // namespace isobar::exec
