#pragma once

#include "core/model/workload.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/plan.hpp"
#include "core/program/player.hpp"
#include "core/program/program.hpp"
#include "exec/control/rank_turn.hpp"
#include "exec/control/step_board.hpp"
#include "exec/device/memory_meter.hpp"
#include "exec/device/stream.hpp"
#include "exec/links/transfer_waits.hpp"
#include "exec/model/batch.hpp"
#include "exec/rank/interpreter.hpp"
#include "exec/rank/mailbox.hpp"
#include "exec/rank/parameter_collectives.hpp"
#include "exec/rank/rank_machine.hpp"
#include "exec/rank/rank_report.hpp"
#include "exec/rank/rank_stages.hpp"
#include "exec/spmd/operator_passes.hpp"
#include "exec/stage/stage_model.hpp"
#include "exec/transport/transport.hpp"
#include "exec/watch/progress.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::exec {

/// How one rank executes its instructions.
struct RankOptions {
  /// Source of the inputs, on the rank of the first stage or the data server, and of the last stage's labels; outlives
  /// the executor.
  const BatchSource* batches = nullptr;
  /// Decides about a step. Rank 0 calls it when the step begins, with whether any rank has requested a stop.
  std::function<StepControl(std::uint64_t step, bool stop_requested)> control;
  /// Whether this rank requests a stop; called before each instruction.
  std::function<bool()> stop_requested = [] { return false; };
  /// First step whose times on a GPU are not kept.
  std::uint64_t timed_before = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t seed = 1;
  std::string device = "cpu";
  /// Whether a computation takes the time of its instruction, if the machine is fast enough. CPU only.
  bool takes_known_times = false;
  double slowdown = 1;           ///< else computation is stretched to this many times its duration; 1: not at all
  Progress* progress = nullptr;  ///< receives what the rank is working on; outlives the executor
  Bytes memory_cap;              ///< 0: no cap. On a GPU checked after each instruction
  std::size_t threads = 1;       ///< of the machine's updates
  std::optional<EmulatedMachine> machine = {};  ///< sets the time of copies, updates and disk. CPU only
  std::string scratch;                          ///< RankMachine::Options, as is the next
  std::optional<std::uint64_t> disturbed = {};
  const JobTurns* turns = nullptr;  ///< of a job that shares its devices with others; null: it has them for itself
  std::uint64_t first_step = 0;     ///< of its turns
};

/// Executes a rank's instructions: those of its stages on their layers, or the data server's, which sends each
/// micro-batch. Of a stage with several replicas or shards, the first shard of the first replica tells the loss.
///
/// Where the plan divides operators, OperatorPasses makes the passes, the reforms and the messages. Each rank of the
/// last group has an addend of the loss; rank 0 adds them up, and reports a step once all have arrived.
///
/// What a task of a shard makes is an addend, or its part of what all gather: the collective that follows makes it
/// whole, and leaves it to the neighbouring stages.
///
/// Copies to and from the machine that the device is in, its updates and its disk are RankMachine's, in lanes of their
/// own.
///
/// In a mix of jobs, computations wait for the rank's turn on its device, and collectives for that on its links.
///
/// On a GPU, every lane has its own stream, and the host counts an instruction as done when its work is queued. Each
/// leaves an event; an instruction that waits for another one waits for its event on the device. The host waits for the
/// device only between steps and in the gradient sync.
class RankExecutor : public RankWork {
 public:
  /// Opens the device and makes the parameters of the rank's stages. The data server is always on the CPU. `workload`
  /// and `program` must outlive the executor.
  /// @throws EnvironmentError when the device cannot be opened or has too little memory.
  RankExecutor(const Workload& workload, const Plan& plan, const Program& program, std::size_t rank,
               const RankOptions& options);
  /// Sets how the rank meets the others, before the first instruction: `transport` has the channels of the program,
  /// `board` the decisions about steps. `waits` limits the waits for those. Both must outlive the executor.
  void connect(Transport& transport, StepBoard& board, TransferWaits waits);

  void await_turn(std::uint64_t step, std::uint64_t position, const Instruction& instruction) override;
  void run(std::uint64_t step, std::uint64_t position, const Instruction& instruction) override;
  bool has_next_step(LaneId lane, std::uint64_t step) override;
  bool rests_after(std::uint64_t step) override;
  Bytes memory(Tier tier) const override { return meters_[static_cast<std::size_t>(tier)].current(); }
  void cancel() noexcept override;

  /// Receives a step, the time of its end by the steady clock, and its mean loss (from the first shard of the first
  /// replica of the last stage, or from rank 0 where the plan divides operators).
  using StepEnded = std::function<void(std::uint64_t step, Seconds end, std::optional<double> loss)>;
  /// Before the first step: takes part in the turns of a mix, once the job may.
  void join_turns();
  /// After the last step of training: the rank computes nothing more on its device.
  void leave_turns() noexcept;

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
  /// Switches to the forward passes of `program`, whose channels must be among those of the training: `steps` steps
  /// from step 0 of `batches`. Call `finish` before. Steps end as in training, without losses.
  void begin_evaluation(const Program& program, const BatchSource& batches, std::uint64_t steps);

  Bytes peak_memory() const { return meter(Tier::Device).peak(); }
  bool is_on_gpu() const { return lanes_.front()->stream.is_on_gpu(); }
  bool has_last_stage() const;
  /// Whether the rank has the first shard of the first replica of the stage.
  bool has_first_shard(std::size_t stage) const;
  /// Rank 0's decision about a step, once it is known.
  StepControl control_of(std::uint64_t step);
  /// Waits for the device and reports every step so far.
  void catch_up(const StepEnded& ended);
  /// Runs `work` with the models of the rank's stages, in their order, on the compute lane's stream, and waits for the
  /// device. Only between steps, after one that all lanes have ended.
  /// @throws EnvironmentError when the device has too little memory for it.
  void with_models(const std::function<void(std::size_t stage, StageModel& model)>& work);

 private:
  /// An instruction in its place.
  struct Job {
    const Instruction& instruction;
    std::uint64_t step;
    std::uint64_t position;
    DeviceLane& lane;
  };

  struct StepEnd {
    std::uint64_t step;
    Tensors loss;  // empty, or a scalar that is complete once `end` has passed
    Event end;
  };

  void make_models(const Plan& plan);
  void make_operators(const Plan& plan);
  std::vector<HeldParameter> held_parameters(const Stage& stage, std::size_t shard) const;
  void add_lanes();
  /// Runs `work`. Reports out of memory and a failed GPU as this rank's failure, not as a bug of ours.
  void work_on_device(const std::function<void()>& work) const;
  void await_events(const Job& job) const;
  void run_on_stream(const Job& job);
  void send(const Job& job);
  void receive(const Job& job);
  void collective(const Job& job);
  void make_whole(const Job& job);
  void gather_sequence(const Job& job);
  void exchange(const Job& job);
  void reform(const Job& job);
  void compute(const Job& job);
  void use_machine(const Job& job);
  Message inputs_of(const Job& job);
  Message computed(const Job& job, Message inputs);
  void hand_on(const Instruction& instruction, Message outputs);
  void leave(Payload payload, const Instruction& instruction, Message message);
  void pass_on(Payload payload, const Instruction& instruction, Message message);
  void ran(const Job& job, const Event& begin, const Event& end) const;
  void use_batches(const BatchSource& batches);
  Message micro_batch_data(std::uint64_t step, std::uint64_t microbatch) const;
  const Channel& channel_at(const Instruction& instruction) const;
  std::size_t channel_of(const Instruction& instruction) const;
  /// The index of this rank's shard of an instruction's stage.
  std::int64_t own_shard(const Instruction& instruction) const
  {
    return static_cast<std::int64_t>(stages_.own.at(instruction.stage).placed.shard);
  }
  /// What the collectives of an instruction's lane among shards are for; none of other lanes.
  std::optional<ShardRole> role_of(const Instruction& instruction) const;
  /// Of all gradients of a step, for its updates.
  GradientFacts facts_of(std::uint64_t step);
  MemoryMeter& meter(Tier tier) { return meters_[static_cast<std::size_t>(tier)]; }
  const MemoryMeter& meter(Tier tier) const { return meters_[static_cast<std::size_t>(tier)]; }
  bool is_data_server() const { return stages_.own.empty(); }
  std::uint32_t last_stage() const { return static_cast<std::uint32_t>(stages_.ranks.size() - 1); }
  Phase phase() const { return evaluates_ ? Phase::Evaluation : Phase::Training; }
  /// How many other ranks than this one, rank 0, have an addend of the loss.
  std::size_t others_with_loss() const;
  /// Whether a step can be reported without a wait.
  bool has_ended(const StepEnd& step) const;
  void report_step(const StepEnd& step, const StepEnded& ended);

  const Workload& workload_;
  const Program* program_;
  const Program* training_;
  RankOptions options_;
  std::unique_ptr<BatchSource> parts_of_batches_;  // null unless devices divide sequences
  Transport* transport_ = nullptr;
  StepBoard* board_ = nullptr;
  std::optional<TransferWaits> waits_;
  std::size_t rank_;
  RankStages stages_;
  ParameterCollectives parameters_;
  bool has_data_server_;
  bool is_alone_;  // no other rank has a stage
  bool divides_sequence_;
  std::string name_;
  std::array<MemoryMeter, tier_count> meters_;      // by Tier
  MemoryMeter working_memory_{Bytes(0)};            // of the machine's updates, which no plan counts
  std::vector<std::unique_ptr<DeviceLane>> lanes_;  // by LaneId
  std::vector<std::size_t> channels_;               // of the training, by channel of `program_`
  std::atomic<std::uint64_t> steps_done_ = 0;
  std::atomic<std::uint64_t> steps_evaluated_ = 0;
  bool evaluates_ = false;
  Mailbox made_;      // by shards, before it is whole
  Mailbox gathered_;  // by shards that divide the sequence, what a pass reads whole
  Mailbox kept_;      // of its inputs, the part of this shard
  Mailbox restored_;  // those inputs, for the backward pass
  Mailbox arrived_;   // what stages of this rank read
  Mailbox leaving_;   // what they made for other ranks
  std::deque<StepEnd> steps_in_flight_;
  std::optional<OperatorPlan> divided_;        // of a plan that divides operators
  std::unique_ptr<OperatorPasses> operators_;  // likewise; otherwise null
  std::unique_ptr<RankTurn> turn_;             // null unless the job shares its devices
  std::unique_ptr<RankMachine> machine_;       // null if all stages live on the device
};

}  // namespace isobar::exec
