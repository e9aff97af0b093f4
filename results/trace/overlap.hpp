#pragma once

#include "core/program/trace.hpp"
#include "core/units.hpp"
#include "results/result.hpp"
#include "results/trace/intervals.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace isobar::results {

/// Measures how devices compute and communicate at the same time, while a trace is recorded. Keeps two times of each
/// instruction that takes time.
class OverlapMeter : public TraceSink {
 public:
  explicit OverlapMeter(std::size_t ranks) : compute_(ranks), communication_(ranks) {}
  void record(const TraceEvent& event) override;

  /// Of the ranks that `devices` names. The trace held `steps` steps.
  std::vector<DeviceOverlap> overlaps(const std::vector<std::string>& devices, std::uint64_t steps) const;

 private:
  std::vector<std::vector<Interval>> compute_;  // by rank
  std::vector<std::vector<Interval>> communication_;
};

}  // namespace isobar::results
