#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/player.hpp"
#include "core/program/program.hpp"
#include "core/units.hpp"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace isobar::allocators {

/// Times of a plan whose devices divide operators (core/plan/operator_plan.hpp), from its Program. Collectives and
/// messages count as if each had the network for itself.
class OperatorCosts {
 public:
  /// `rates` are those that the program is played with.
  OperatorCosts(const Program& program, const PlayerRates& rates, std::uint64_t microbatches);

  /// bottleneck: the most that a device computes for a micro-batch · sequential: one micro-batch alone, its parts and
  /// collectives one after another, with the longest message of each kind between groups · pipeline: of these, by the
  /// usual formula.
  Predicted formulas() const;
  /// No order of these passes ends a step earlier: all that a device computes, or all collectives of a lane.
  Seconds least_step() const;

 private:
  void add_collectives(const Program& program, const PlayerRates& rates, const Channel& channel);

  std::uint64_t microbatches_;
  std::vector<Seconds> passes_;                  // by rank
  std::vector<Seconds> updates_;                 // by rank
  std::vector<std::vector<Seconds>> forwards_;   // by rank and part
  std::vector<std::vector<Seconds>> backwards_;  // by rank and part
  std::vector<std::size_t> first_part_;          // by rank
  // Collectives, but those of gradient facts:
  Seconds longest_lane_;       // of a step
  std::vector<Seconds> once_;  // by rank: of one micro-batch, with what happens once a step
  Seconds facts_;
  std::map<std::pair<std::size_t, Payload>, Seconds> messages_;  // the longest, by the part that makes it
};

}  // namespace isobar::allocators
