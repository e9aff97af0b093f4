#pragma once

#include "core/jobs/mix.hpp"
#include "core/jobs/turn_order.hpp"
#include "core/units.hpp"
#include "exec/links/deadlines.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace isobar::exec {

/// Who of a mix's jobs may compute on each device of this machine, and make collectives there, now: TurnOrder with
/// waits, for ranks that are threads or processes.
///
/// The state is in memory that this process shares with all children that it forks later. Processes may die at any
/// instruction: changes are made to a copy of the state, which then replaces it at once, under a robust mutex, so a
/// dead process leaves the state before or after its change. `leave` frees what its job held; its parent calls it.
///
/// **Collectives** (`orders_collectives`): those of different jobs follow each other on every device in the order of
/// the numbers of their turns. The order of all turns is one, so no two jobs wait for each other, and NCCL sees one
/// order over all communicators of a device. One job's collectives of a turn are at work on a device at a time.
///
/// Thread-safe. A change is O(jobs x devices) words of memory and takes microseconds.
class DeviceTurns {
 public:
  /// What the jobs of a mix share.
  struct Jobs {
    std::vector<std::vector<std::size_t>> places;         ///< devices of each job, numbered from 0
    std::vector<std::vector<std::uint64_t>> collectives;  ///< of each turn, by job and place
    std::size_t devices = 0;
  };

  /// Jobs whose `start` is the earliest take part from the beginning. With Discipline::None no job waits for a device.
  /// @throws EnvironmentError when the memory cannot be mapped; std::logic_error unless jobs take turns where
  /// collectives are ordered.
  DeviceTurns(const Mix& mix, Jobs jobs, bool orders_collectives);
  DeviceTurns(const DeviceTurns&) = delete;
  DeviceTurns& operator=(const DeviceTurns&) = delete;
  ~DeviceTurns();

  bool has_turns() const { return has_turns_; }
  HandOver hand_over() const { return mix_.hand_over; }

  /// Waits until a job's `start` has passed since the first turn of the mix, or until `stop_requested`, and lets it
  /// take part; the first of its ranks does. @throws Interrupted, and a failure of kind Cancelled.
  void join(std::size_t job, const std::function<bool()>& stop_requested = {});
  /// Ends the part of a job on a device, and frees the device if the job holds it. May be called more than once.
  void leave(std::size_t job, std::size_t device) noexcept;
  void leave(std::size_t job) noexcept;

  /// Asks for a device, for the next turn or instruction of a job. Returns the turn's number in the order of all turns
  /// if the hand-over is after a step.
  std::optional<std::uint64_t> ask(std::size_t job, std::size_t device);
  /// Waits until the job holds the device. `check` is called now and then; what it throws ends the wait.
  /// @throws Interrupted, and failures of kind Cancelled and DeadlinePassed with texts such as
  ///   job a: no turn on its device after 40 s: deadline passed
  void await_device(std::size_t job, std::size_t device, Deadline deadline, const std::function<void()>& check = {});
  /// As TurnOrder.
  void give_back(std::size_t job, std::size_t device, bool ends_step);

  /// Waits until the collectives of all earlier turns on the device are done. `turn`: of the job, from 0; it gets its
  /// number now if it has none. @throws as `await_device` does.
  void await_links(std::size_t job, std::size_t device, std::uint64_t turn, Deadline deadline,
                   const std::function<void()>& check = {});
  /// Counts a collective that is done.
  void collective_done(std::size_t job, std::size_t device, std::uint64_t turn);

  /// Grows whenever a job asks for a device, gives it back, joins or leaves, and whenever `works` is called.
  std::uint64_t activity() const;
  /// Tells that a rank has ended a computation.
  void works();
  /// Ends all waits of a job in this process.
  void cancel(std::size_t job) noexcept;

 private:
  struct Shared;
  struct State;
  class Lock;

  template <typename Change>
  auto change(Change make);
  State state_in(std::size_t copy);
  std::size_t index_of(std::size_t job, std::size_t device) const { return job * jobs_.devices + device; }
  bool may_use_links(State& state, std::size_t job, std::size_t device, std::uint64_t turn);
  void begin_collectives(State& state, std::size_t job);
  template <typename Reached>
  void wait(std::size_t job, const char* what, Deadline deadline, const std::function<void()>& check, Reached reached);
  void wake() noexcept;

  Mix mix_;
  Jobs jobs_;
  bool has_turns_;
  bool orders_collectives_;
  std::vector<std::uint64_t> collectives_;  // of each turn, by index_of
  std::size_t state_words_ = 0;
  std::size_t mapped_bytes_ = 0;
  Shared* shared_ = nullptr;
  std::vector<TurnOrder> turns_;                               // over each of the two copies of the state
  std::vector<std::unique_ptr<std::atomic<bool>>> cancelled_;  // by job
};

}  // namespace isobar::exec
