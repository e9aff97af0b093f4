#pragma once

#include "core/program/program.hpp"
#include "core/units.hpp"
#include "exec/control/device_turns.hpp"
#include "exec/device/stream.hpp"
#include "exec/links/transfer_waits.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace isobar::exec {

/// How many collectives a rank makes in each turn of its job on its device: those of a step, with the gathers of what
/// the step has updated.
std::uint64_t collectives_of_turn(const Program& program, std::size_t rank);

/// What the jobs that share a device have queued on it last, for jobs whose ranks are threads of one process. So a
/// turn's work follows the work of the turn before on a GPU, and no host waits for it. Thread-safe.
class TurnEvents {
 public:
  explicit TurnEvents(std::size_t devices) : ends_(devices) {}

  Event last(std::size_t device);
  void end_turn(std::size_t device, const Event& end);

 private:
  std::mutex mutex_;
  std::vector<Event> ends_;
};

/// A job's part in a mix. Pointed-to objects outlive the run.
struct JobTurns {
  DeviceTurns* turns = nullptr;
  TurnEvents* events = nullptr;  ///< null: the ranks of a device are processes, so the host waits for each turn
  std::size_t job = 0;
  std::vector<std::size_t> devices;  ///< by rank
  Seconds round;                     ///< predicted time of a round of the mix; 0: unknown
};

/// One rank's turns on its device. The updates of a step open the next turn; its last computation that is no update
/// ends it. Updates whose parameters are gathered afterwards (gathers_updates) need no turn: in one, the device would
/// wait for the gather. Leaves the device when it is destroyed. Its lanes may call it at the same time.
class RankTurn {
 public:
  /// Checks the number of a turn against those of the job's other ranks; `check` throws if they differ.
  using Numbered = std::function<void(std::uint64_t turn, std::uint64_t number)>;

  RankTurn(const JobTurns& job, const Program& program, std::size_t rank, std::uint64_t first_step);
  RankTurn(const RankTurn&) = delete;
  RankTurn& operator=(const RankTurn&) = delete;
  ~RankTurn() { leave(); }

  /// Before the first step.
  void join(const std::function<bool()>& stop_requested) { turns_.join(job_.job, stop_requested); }
  /// After the last one. The rank computes nothing on the device afterwards.
  void leave() noexcept { turns_.leave(job_.job, device_); }

  /// Waits until the instruction may begin.
  void await(std::uint64_t step, std::uint64_t position, const Instruction& instruction, const TransferWaits& waits,
             const Numbered& numbered, const std::function<void()>& check);
  /// Orders what the stream gets from now on after the turn before.
  void follow(const Instruction& instruction, Stream& stream);
  /// After an instruction, whose work is in the stream.
  void done(std::uint64_t step, std::uint64_t position, const Instruction& instruction, Stream& stream);

 private:
  bool is_in_turn(const Instruction& instruction) const;

  const JobTurns& job_;
  DeviceTurns& turns_;
  std::size_t device_;
  std::uint64_t first_step_;
  bool updates_in_turns_;
  std::uint64_t last_of_turn_;  // position of the computation that ends a turn
  bool holds_ = false;          // of the compute lane alone
};

}  // namespace isobar::exec
