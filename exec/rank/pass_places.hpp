#pragma once

#include "core/program/program.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace isobar::exec {

/// What the passes of a rank use of a program's copies, by the waits of the program alone. The same in every period.
class PassPlaces {
 public:
  PassPlaces(const Program& program, std::size_t rank);

  /// The place of the parameters that instruction `position` of the compute lane uses; none if they live on the device.
  std::optional<std::size_t> of_parameters(std::uint64_t position) const;
  /// The place from which a Store takes the parameters of the pass before it.
  std::size_t of_stored_parameters(const Instruction& store) const;
  /// The places whose parameters no pass after instruction `position` uses.
  const std::vector<std::size_t>& freed_after(std::uint64_t position) const;
  /// The first and the last position of the backward passes of a stage.
  bool begins_backwards(const Instruction& pass, std::uint64_t position) const;
  bool ends_backwards(const Instruction& pass, std::uint64_t position) const;
  /// The place from which the gradients of a stage leave the device.
  const std::map<std::uint32_t, std::size_t>& of_gradients() const { return of_gradients_; }

 private:
  struct Backwards {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
  };

  std::vector<std::optional<std::size_t>> of_parameters_;  // by position of the compute lane
  std::map<std::uint64_t, std::vector<std::size_t>> freed_after_;
  std::map<std::uint32_t, Backwards> backwards_;  // by stage
  std::map<std::uint32_t, std::size_t> of_gradients_;
};

/// The lane of a rank with an engine that only one of its lanes has; none if it has no such lane.
std::optional<LaneId> lane_of(const Program& program, std::size_t rank, Engine engine);

}  // namespace isobar::exec
