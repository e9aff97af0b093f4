#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "exec/launch/progress.hpp"
#include "exec/model/batch.hpp"
#include "exec/model/memory_meter.hpp"
#include "exec/model/stage_model.hpp"
#include "exec/model/stream.hpp"
#include "exec/run/interpreter.hpp"
#include "exec/run/mailbox.hpp"
#include "exec/run/rank_report.hpp"
#include "exec/run/transport.hpp"

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::exec {

/// How one rank executes its instructions.
struct RankOptions {
  /// Source of the inputs, on the first stage or the data server, and of the last stage's labels; outlives the
  /// executor.
  const BatchSource* batches = nullptr;
  /// Decides about a step. The first stage calls it when the step begins, with whether any stage has requested a stop.
  std::function<StepControl(std::uint64_t step, bool stop_requested)> control;
  /// Whether this rank requests a stop; each stage calls it while it trains.
  std::function<bool()> stop_requested = [] { return false; };
  /// First step whose times on a GPU are not kept.
  std::uint64_t timed_before = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t seed = 1;
  std::string device = "cpu";
  /// Emulated speed: a computation takes its work divided by this, if the machine is fast enough. CPU only.
  std::optional<FlopsPerSecond> speed;
  double slowdown = 1;           ///< computation is stretched to this many times its duration; 1: not at all
  Progress* progress = nullptr;  ///< receives what the rank is working on; outlives the executor
  Bytes memory_cap;              ///< 0: no cap. On a GPU checked after each instruction
};

/// Executes a rank's instructions: a stage's on its layers, or the data server's, which sends each micro-batch.
///
/// On a GPU, every lane has its own stream, and the host counts an instruction as done when its work is queued: later
/// work waits for its results on the device. The host waits for the device only between steps and in the gradient sync.
class RankExecutor : public RankWork {
 public:
  /// Opens the device and makes the stage's parameters. Rank `plan.stages.size()` is the data server, always on the
  /// CPU.
  /// @throws EnvironmentError when the device cannot be opened or has too little memory.
  RankExecutor(const Workload& workload, const Plan& plan, std::size_t rank, const RankOptions& options);
  /// Sets the transport, before the first instruction; `transport` must outlive the executor.
  void connect(Transport& transport) { transport_ = &transport; }

  void run(std::uint64_t step, const Instruction& instruction) override;
  bool has_next_step(Lane lane, std::uint64_t step) override;
  Bytes memory() const override { return meter_.current(); }
  void cancel() noexcept override;

  /// Receives a step, the time of its end by the steady clock, and its mean loss (last stage only).
  using StepEnded = std::function<void(std::uint64_t step, Seconds end, std::optional<double> loss)>;
  /// Ends a step on the compute lane and reports, in order, all steps that the device has ended; on a CPU this one. A
  /// GPU may be two steps behind the host; beyond that this waits for it, since the memory of queued work would grow.
  void end_step(std::uint64_t step, const StepEnded& ended);
  /// Call after the last step. Waits for the device and reports the remaining steps. Adds the device's measurements to
  /// `report`: peak memory, and a GPU's times in place of the host's.
  void finish(const StepEnded& ended, RankReport& report);

  /// After the last step of training: the number of steps done since step 0. Otherwise 0.
  std::uint64_t steps_done() const { return steps_done_; }
  /// After the last step of an evaluation: its number of steps. Otherwise 0.
  std::uint64_t steps_evaluated() const { return steps_evaluated_; }
  /// Switches to forward passes only: `steps` steps from step 0 of `batches`. Call `finish` before. Steps end as in
  /// training, without losses.
  void begin_evaluation(const BatchSource& batches, std::uint64_t steps);

  Bytes peak_memory() const { return meter_.peak(); }
  bool is_on_gpu() const { return lanes_.front()->stream.is_on_gpu(); }
  /// The first stage's decisions about a step that has begun.
  StepControl control_of(std::uint64_t step) { return controls_.await(step); }
  /// Waits for the device and reports every step so far.
  void catch_up(const StepEnded& ended);
  /// Runs `work` with the stage's model on the compute lane's stream and waits for the device. Only between steps.
  /// @throws EnvironmentError when the device has too little memory for it.
  void with_model(const std::function<void(StageModel&)>& work);

 private:
  /// A lane's stream, and the times at which its timed instructions ran there, in order.
  class DeviceLane {
   public:
    DeviceLane(const std::string& device, Stream::Kind kind, MemoryMeter& meter) : stream(device, kind, meter) {}

    void ran(const Event& begin, const Event& end);
    void write_times(std::vector<InstructionTime>& times);

    Stream stream;
    bool is_timed = true;  ///< whether to keep the times of the current instruction

   private:
    void resolve_first();

    std::deque<std::pair<Event, Event>> pending_;     // start and end of each instruction
    std::vector<std::pair<Seconds, Seconds>> ended_;  // their times, once the device has passed both
  };

  struct StepEnd {
    std::uint64_t step;
    Tensors loss;  // empty, or a scalar that is complete once `end` has passed
    Event end;
  };

  /// Runs `work`. Reports out of memory and a failed GPU as this rank's failure, not as a bug of ours.
  void work_on_device(const std::function<void()>& work) const;
  void run_on_stream(std::uint64_t step, const Instruction& instruction, DeviceLane& lane);
  void send(const Instruction& instruction, Message message, StepControl control, DeviceLane& lane);
  /// On the data server: waits for the first stage's next message, which it sends when an input may leave and, with the
  /// step's control, at the end of a step.
  StepControl await_first_stage();
  void notify_data_server(StepControl control);
  Message receive(const Instruction& instruction, DeviceLane& lane);
  void compute(std::uint64_t step, const Instruction& instruction, DeviceLane& lane);
  Message compute_inputs(std::uint64_t step, const Instruction& instruction);
  Message computed(std::uint64_t step, const Instruction& instruction, Message inputs);
  Message micro_batch_data(std::uint64_t step, std::uint64_t microbatch) const;
  DeviceLane& lane(Lane lane) { return *lanes_[static_cast<std::size_t>(lane)]; }
  bool is_data_server() const { return rank_ == stages_; }
  bool is_last() const { return rank_ + 1 == stages_; }
  static void report_step(const StepEnd& step, const StepEnded& ended);

  const Workload& workload_;
  RankOptions options_;
  Transport* transport_ = nullptr;
  std::size_t stages_;
  std::size_t rank_;
  bool has_data_server_;
  std::uint64_t microbatches_;  // per step
  std::string name_;
  MemoryMeter meter_;
  std::array<std::unique_ptr<DeviceLane>, lane_count> lanes_;
  std::unique_ptr<StageModel> model_;  // null on the data server
  std::atomic<std::uint64_t> steps_done_ = 0;
  std::atomic<std::uint64_t> steps_evaluated_ = 0;
  bool evaluates_ = false;
  Mailbox received_activations_;
  Mailbox activations_to_send_;
  Mailbox received_gradients_;
  Mailbox gradients_to_send_;
  StepControlBoard controls_;
  std::mutex to_data_server_mutex_;           // two lanes of the first stage send there
  std::atomic<bool> stop_requested_ = false;  // by this stage or a later one
  GradientFacts reduced_;                     // sums over all stages, from the step's AllReduce
  std::deque<StepEnd> steps_in_flight_;
};

}  // namespace isobar::exec
