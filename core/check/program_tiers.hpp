#pragma once

#include "core/check/program_tasks.hpp"
#include "core/program/program.hpp"
#include "core/program/walk.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

/// The order of copies and of what they serve. Internal to core/check.
namespace isobar::program_check {

/// Checks a rank that uses its machine: every pass follows the load of its parameters, which stay in their place until
/// it ends; gradients leave after the last backward, and their place is not used before they have left; the machine
/// updates after that, with the optimizer's state from the disk, and the next step loads what it updated; activations
/// leave after their forward and are back before their backward.
class TierOrder {
 public:
  TierOrder(const Program& program, std::size_t rank);

  /// `begun`: by lane, how many instructions are known to be complete when the turn begins.
  void note(const Turn& turn, const std::vector<std::uint32_t>& begun);
  /// Adds the faults of a period that was noted whole.
  void add_faults(ProgramFaults& faults) const;

 private:
  /// An instruction and what is known when it begins.
  struct Noted {
    Instruction instruction;
    std::uint64_t position = 0;
    std::vector<std::uint32_t> begun;
  };
  using Fault = std::pair<const Noted*, const char*>;  // an instruction, and what it does not follow

  std::size_t lane_of(Engine engine) const;
  const std::vector<Noted>& of(Engine engine) const { return noted_[lane_of(engine)]; }
  bool follows(const Noted& later, const Noted& earlier) const;
  bool follows_of_period_before(const Noted& later, const Noted& earlier) const;
  const Noted* find(Engine engine, Payload payload, std::uint32_t stage, std::optional<std::uint64_t> microbatch) const;

  void check_parameters(ProgramFaults& faults) const;
  void check_gradients(ProgramFaults& faults) const;
  void check_updates(ProgramFaults& faults) const;
  void check_activations(ProgramFaults& faults) const;
  void add(ProgramFaults& faults, const Noted& later, const char* what) const;

  const Program& program_;
  std::size_t rank_;
  std::vector<std::vector<Noted>> noted_;  // by lane; those of the network are left out
};

}  // namespace isobar::program_check
