#pragma once

#include "core/jobs/mix.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace isobar {

/// Which job may compute on each device of a mix, now. The simulator and the executor ask the same rules.
///
/// A job asks for a device when its next computation there is ready, computes once it is the holder, and gives the
/// device back at its hand-over.
///
/// - Hand-over after a step: turns are numbered, and each device grants those of its jobs in the order of their
/// numbers,
///   so a device may wait for a job while another one is ready. All devices have the same order, which rules out that
///   jobs wait for each other in a circle. Strict: numbers follow the rotation. Conserving: a turn gets the next number
///   when the first device of the job asks for it.
/// - Hand-over after an instruction. Conserving: the first that asked for the device. Strict: the jobs of the device
/// one
///   after the other, one computation each; a job that has computed its steps of the round is passed over until the
///   others have. This can deadlock where a job's devices wait for each other.
///
/// A job that has left a device is passed over there from then on, and does not hold it. One that joins has its first
/// turn in a round that no device has begun.
///
/// The state lives in memory that the caller gives, so that processes can share it. It has no lock of its own. All
/// operations are O(jobs), `join` and `leave` O(jobs x devices).
class TurnOrder {
 public:
  /// `places[j]`: the devices of job j, numbered from 0 to `devices` - 1. `memory`: `words(…)` numbers, zeros for a new
  /// state; it must outlive this. All processes that share it must give the same mix and places.
  TurnOrder(const Mix& mix, std::vector<std::vector<std::size_t>> places, std::size_t devices,
            std::span<std::uint64_t> memory);
  /// The numbers of memory that a state takes.
  static std::size_t words(std::size_t jobs, std::size_t devices);

  /// Lets a job take part on all its devices, from its first turn on. No device of it may be taking part.
  void join(std::size_t job);
  /// Ends the part of a job on a device, or on all its devices. Nothing where it takes no part.
  void leave(std::size_t job, std::size_t device);
  void leave(std::size_t job);
  bool takes_part(std::size_t job, std::size_t device) const;

  /// Asks for a device for a job that takes part there and does not hold it. Nothing if it has asked already.
  void ask(std::size_t job, std::size_t device);
  /// Grants a free device to the next job if that has asked for it.
  /// @returns the job that now holds the device and did not before.
  std::optional<std::size_t> grant(std::size_t device);
  /// The job that holds a device.
  std::optional<std::size_t> holder(std::size_t device) const;
  /// The number of the turn for which a job asks for a device or holds it, where the hand-over is after a step. Equal
  /// on all devices of the job, and larger for a later turn.
  std::uint64_t turn_number(std::size_t job, std::size_t device) const;
  /// The number of a turn of a job, the first of which since it joined is 0; none if it has none yet. Numbers of
  /// conserving turns are known of the last 16.
  std::optional<std::uint64_t> number_of(std::size_t job, std::uint64_t turn) const;
  /// The same. A turn that has none gets the next number, as if a device of the job asked for it, after the turns
  /// before it that have none.
  std::uint64_t number(std::size_t job, std::uint64_t turn);
  /// Gives a device back. `ends_step`: with the last computation of a step; always true if the hand-over is after a
  /// step. @throws std::logic_error unless the job holds it.
  void give_back(std::size_t job, std::size_t device, bool ends_step);

 private:
  // Turns of a job that some of its devices have begun and others have not; see `number_of`.
  static constexpr std::size_t open_turns = 16;

  struct Job {
    std::uint64_t first_round = 0;  // strict
    std::uint64_t numbered = 0;     // turns that have a number; conserving
    std::uint64_t numbers[open_turns] = {};
  };
  struct Place {
    std::uint64_t takes_part = 0;
    std::uint64_t turns = 0;  // given back; of a hand-over after an instruction: steps that it has ended
    std::uint64_t asked = 0;  // 0: not; else the place in the order of those that have
  };
  struct Device {
    std::uint64_t holder = 0;  // index of the job + 1; 0: free
    std::uint64_t next = 0;    // in jobs_at_: whose instruction is next; strict
  };
  struct Counters {
    std::uint64_t numbers = 0;  // of turns
    std::uint64_t asked = 0;
  };

  Counters& counters() const;
  Job& state_of(std::size_t job) const;
  Device& state_at(std::size_t device) const;
  Place& place_of(std::size_t job, std::size_t device) const;
  std::uint64_t round_of(std::size_t job, std::uint64_t turn) const;
  void number_next_turn(std::size_t job);
  std::optional<std::size_t> next_turn(std::size_t device) const;
  std::optional<std::size_t> first_asked(std::size_t device) const;
  std::optional<std::size_t> next_instruction(std::size_t device) const;

  Discipline discipline_;
  HandOver hand_over_;
  std::size_t devices_;
  std::vector<std::vector<std::size_t>> places_;   // of each job
  std::vector<std::vector<std::size_t>> jobs_at_;  // of each device, in the order of their first turns
  std::vector<std::vector<std::uint64_t>> turns_;  // of each job, its places in a round
  std::uint64_t round_length_ = 0;
  std::span<std::uint64_t> memory_;
};

}  // namespace isobar
