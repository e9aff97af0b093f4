#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar {

/// Which replica of a stage takes which of a step's micro-batches: the next one goes to the replica that is furthest
/// behind its part, so that every stretch of the step has some of each. This repeats with a period of M / g
/// micro-batches, g being the greatest common divisor of the counts.
///
/// Look-ups take O(1), construction O(period log replicas), memory O(period).
class MicrobatchPattern {
 public:
  static constexpr std::uint64_t longest_period = std::uint64_t{1} << 20;

  /// `counts`: the micro-batches of each replica, at least 1. Source: the divisor method of Sainte-Laguë.
  /// @throws InputError if the period is longer than longest_period, without a place; std::logic_error without replicas
  /// and for a count of 0.
  explicit MicrobatchPattern(std::vector<std::uint64_t> counts);

  std::size_t replicas() const { return counts_.size(); }
  std::uint64_t count(std::size_t replica) const { return counts_.at(replica); }
  /// After how many micro-batches the pattern repeats.
  std::uint64_t period() const { return places_.size(); }
  /// The replica that takes a micro-batch.
  std::size_t replica_of(std::uint64_t microbatch) const { return places_[microbatch % places_.size()].replica; }
  /// How many micro-batches before this one go to the same replica.
  std::uint64_t index_of(std::uint64_t microbatch) const;
  /// The micro-batch of a replica with that index: the inverse of index_of.
  std::uint64_t nth(std::size_t replica, std::uint64_t index) const;

  bool operator==(const MicrobatchPattern& other) const { return counts_ == other.counts_; }

 private:
  struct Place {
    std::uint32_t replica = 0;
    std::uint32_t index = 0;  // of the micro-batch among those of the replica in a period
  };

  std::vector<std::uint64_t> counts_;
  std::vector<Place> places_;                           // of a period
  std::vector<std::vector<std::uint32_t>> of_replica_;  // the places of each replica
};

}  // namespace isobar
