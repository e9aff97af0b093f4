#pragma once

#include "core/program/player.hpp"
#include "core/program/program.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace isobar::results {

/// Critical path of the first period of a program: the chain of computations, transfers and collectives from its begin
/// to its end, each of which begins when the one before ends.
struct PlayedPath {
  enum class Kind { Compute, Data, Latency, Copy, Update };
  /// A piece of the path. A transfer has one for its bytes and one for its latency; so has each round of a collective,
  /// of its longest flow alone, with its part of what other flows add to the collective. Copies are those between a
  /// device and its machine, and of the machine's disk; updates those by the machine.
  struct Part {
    Kind kind = Kind::Compute;
    std::size_t from = 0;           ///< rank that computes or sends
    std::optional<std::size_t> to;  ///< rank that receives; none: computes
    std::uint32_t stage = 0;
    std::optional<Payload> collective;  ///< what the collective carries that it belongs to, if any
    Seconds time;
  };

  Seconds step_time;
  std::vector<Part> parts;  ///< from the end to the begin; they sum to the step
};

/// Plays one period and walks back from its end. Of predecessors that end at the same time, the work of the same lane
/// comes first. O(instructions) time and memory. @throws as play_program does.
PlayedPath played_path(const Program& program, const PlayerRates& rates);

}  // namespace isobar::results
