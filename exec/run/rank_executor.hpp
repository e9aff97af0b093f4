#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "exec/launch/progress.hpp"
#include "exec/model/batch.hpp"
#include "exec/model/memory_meter.hpp"
#include "exec/model/stage_model.hpp"
#include "exec/model/stream.hpp"
#include "exec/run/interpreter.hpp"
#include "exec/run/rank_report.hpp"
#include "exec/run/transport.hpp"

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::exec {

/// How one rank is to work.
struct RankOptions {
  /// What the first stage reads, or its data server, and what the last one compares with; outlives the executor.
  const BatchSource* batches = nullptr;
  /// Asked by the first stage when it begins a step, with whether any stage behind it wishes to end.
  std::function<StepControl(std::uint64_t step, bool stop_requested)> control;
  /// Whether this rank wishes to end; asked by each stage while it trains.
  std::function<bool()> stop_requested = [] { return false; };
  std::uint64_t timed_before = std::numeric_limits<std::uint64_t>::max();  ///< steps whose times on a GPU are kept
  std::uint64_t seed = 1;
  std::string device = "cpu";
  /// Computation takes its work / this, where the machine is fast enough: a device of that speed. On a CPU.
  std::optional<FlopsPerSecond> speed;
  double slowdown = 1;           ///< computation is stretched to this many times what it takes; 1: not at all
  Progress* progress = nullptr;  ///< told what the rank is at; outlives the executor
  Bytes memory_cap;              ///< 0: none. On a GPU an instruction that goes beyond it is told when it has
};

/// Does a rank's instructions for real: a stage's on its layers, or the data server's, which sends each micro-batch.
///
/// On a GPU every lane is a queue of its own, and an instruction is done for the host when its work is queued: what
/// needs its results waits for them on the device. The host waits for the device in two places alone, between steps
/// and where stages agree on their gradients.
class RankExecutor : public RankWork {
 public:
  /// Opens the device and makes the stage's parameters. Rank `plan.stages.size()` is the data server, always on the
  /// CPU.
  RankExecutor(const Workload& workload, const Plan& plan, std::size_t rank, const RankOptions& options);
  /// Before the first instruction; `transport` must outlive it.
  void connect(Transport& transport) { transport_ = &transport; }

  void run(std::uint64_t step, const Instruction& instruction) override;
  bool goes_on(Lane lane, std::uint64_t step) override;
  Bytes memory() const override { return meter_.current(); }
  void cancel() noexcept override;

  /// What became of a step: its mean loss, of the last stage alone.
  using StepEnded = std::function<void(std::uint64_t step, Seconds end, std::optional<double> loss)>;
  /// Called between two steps. Tells of every step that the device has ended, in their order: on the CPU of this one. A
  /// GPU may be two steps behind the host; where it is more, waits for it, or the memory of queued work would grow.
  void end_step(std::uint64_t step, const StepEnded& ended);
  /// Called after the last step: waits for the device, tells of the other steps, and gives the report what was measured
  /// there: times of a GPU instead of the host's, and the peak memory.
  void finish(const StepEnded& ended, RankReport& report);

  /// Of a rank that has played to its end: the steps that are done then, since step 0.
  std::uint64_t steps_done() const { return steps_done_; }
  /// The same of an evaluation; 0 before.
  std::uint64_t steps_evaluated() const { return steps_evaluated_; }
  /// From here on forwards alone, `steps` steps from 0 of these data; what `finish` reports is all in before. Steps end
  /// as in training, without losses.
  void begin_evaluation(const BatchSource& batches, std::uint64_t steps);

  Bytes peak_memory() const { return meter_.peak(); }
  bool is_on_gpu() const { return lanes_.front()->queue.is_on_gpu(); }
  /// What the first stage has decided of a step that has begun.
  StepControl orders_of(std::uint64_t step) { return controls_.await(step); }
  /// Waits for the device and tells of every step up to here.
  void catch_up(const StepEnded& ended);
  /// Does something with a stage's model, where the stage computes, and waits for the device. Between steps alone.
  /// @throws EnvironmentError when the device has no room for it.
  void with_model(const std::function<void(StageModel&)>& work);

 private:
  /// What waits on this rank for its next instruction, by micro-batch.
  class Mailbox {
   public:
    void put(std::uint64_t microbatch, Message message);
    Message take(std::uint64_t microbatch);

   private:
    std::mutex mutex_;
    std::multimap<std::uint64_t, Message> messages_;  // of one micro-batch in the order of steps
  };

  /// What the first stage has decided, by step: this rank's lanes wait here until it is known.
  class StepControlBoard {
   public:
    void post(std::uint64_t step, StepControl control);
    bool knows(std::uint64_t step);
    /// @throws a failure, Cancelled.
    StepControl await(std::uint64_t step);
    void forget();
    void cancel() noexcept;

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::uint64_t, StepControl> controls_;  // of the last few steps
    bool cancelled_ = false;
  };

  /// A lane's place on the device, and when its timed instructions ran there, in their order.
  class DeviceLane {
   public:
    DeviceLane(const std::string& device, Stream::Kind kind, MemoryMeter& meter) : queue(device, kind, meter) {}

    void ran(const Event& begin, const Event& end);
    void write_times(std::vector<InstructionTime>& times);

    Stream queue;
    bool is_timed = true;  ///< what runs now

   private:
    void resolve_first();

    std::deque<std::pair<Event, Event>> queued_;
    std::vector<std::pair<Seconds, Seconds>> ended_;
  };

  struct StepEnd {
    std::uint64_t step;
    Tensors loss;  // none, or a scalar that is whole once `end` has passed
    Event end;
  };

  /// Does `work`; what its device has no room for, or a GPU that fails, is this rank's failure and no bug of ours.
  void work_on_device(const std::function<void()>& work) const;
  void run_in_queue(std::uint64_t step, const Instruction& instruction, DeviceLane& lane);
  void send(const Instruction& instruction, Message message, StepControl control, DeviceLane& lane);
  /// On the data server: the next message of the first stage, which sends it when an input may leave, and at the end of
  /// a step with the step's control.
  StepControl await_first_stage();
  void tell_data_server(StepControl control);
  Message receive(const Instruction& instruction, DeviceLane& lane);
  void compute(std::uint64_t step, const Instruction& instruction, DeviceLane& lane);
  Message compute_inputs(std::uint64_t step, const Instruction& instruction);
  Message computed(std::uint64_t step, const Instruction& instruction, Message inputs);
  Message micro_batch_data(std::uint64_t step, std::uint64_t microbatch) const;
  DeviceLane& lane(Lane lane) { return *lanes_[static_cast<std::size_t>(lane)]; }
  bool is_data_server() const { return rank_ == stages_; }
  bool is_last() const { return rank_ + 1 == stages_; }
  void tell(const StepEnd& step, const StepEnded& ended) const;

  const Workload& workload_;
  RankOptions options_;
  Transport* transport_ = nullptr;
  std::size_t stages_;
  std::size_t rank_;
  bool has_data_server_;
  std::uint64_t microbatches_;  // of a step
  std::string name_;
  MemoryMeter meter_;
  std::array<std::unique_ptr<DeviceLane>, lane_count> lanes_;
  std::unique_ptr<StageModel> model_;  // none of the data server
  std::atomic<std::uint64_t> steps_done_ = 0;
  std::atomic<std::uint64_t> steps_evaluated_ = 0;
  bool evaluates_ = false;
  Mailbox received_activations_;
  Mailbox activations_to_send_;
  Mailbox received_gradients_;
  Mailbox gradients_to_send_;
  StepControlBoard controls_;
  std::mutex to_data_server_mutex_;           // two lanes of the first stage send there
  std::atomic<bool> stop_requested_ = false;  // by this stage or one behind it
  GradientFacts agreed_;                      // of all stages, from the step's AllReduce
  std::deque<StepEnd> steps_under_way_;
};

}  // namespace isobar::exec
