#pragma once

#include "core/program/program.hpp"
#include "core/units.hpp"
#include "schedules/rounds/outer_pieces.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace isobar::schedules {

/// Floating-point operations for a value of an outer gradient: to find, scale and round it; and to decode the mean, and
/// update momentum and parameter.
inline constexpr double encode_flops = 4;
inline constexpr double outer_update_flops = 8;

/// What the outer work of a value takes on a rank, and where it is done.
struct OuterRank {
  Seconds encode;
  Seconds update;
  bool on_machine = false;  ///< else on the device
};

/// A worker of a round.
struct RoundWorker {
  std::unique_ptr<Program> step;  ///< of its plan
  std::vector<OuterRank> ranks;   ///< of its devices
  std::uint64_t steps = 1;        ///< of a round
  /// What each step takes in a run of them. If it is given, all but the first steps between two snapshots or updates
  /// are one computation of that time on each device; all lanes but the compute lane rest meanwhile.
  std::optional<Seconds> step_time = {};
};

/// Makes the Program of the rounds of some workers (Outer): a period is a round. Ranks are those of the workers' plans,
/// worker after worker. Those of a worker's step have their lanes, with the instructions of all its steps, and then:
/// - "outer encode", "outer update": Encodes and OuterUpdates, of ranks that have them on their machines. On the device
///   they are in the compute lane, in which an OuterUpdate without time stands where what others updated is taken.
/// - "outer sync": for each piece of parameters, an AllReduce of its encoded outer gradients by all workers; of a
///   sparse codec an AllGather.
/// - "outer gather": the parts of a rank's parameters that replicas of the same worker have updated.
///
/// Ranks hold 8 bytes for each value that they update, and from Encode to update its encoded and its decoded value.
/// `at` takes O(log fragments) beyond that of the step.
std::unique_ptr<Program> make_round_program(std::vector<RoundWorker> workers, const Outer& outer,
                                            const OuterDivision& division);

}  // namespace isobar::schedules
