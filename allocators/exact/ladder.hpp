#pragma once

#include "core/plan/certificate.hpp"

#include <cstddef>
#include <limits>
#include <vector>

namespace isobar::allocators {

/// Relative distance at which a placement and its bound count as equal; a tenth of the checker's tolerance.
inline constexpr double resolution = 1e-10;
/// Rungs whose limits are closer than this (relative to the objective) are not cut further.
inline constexpr double finest_rung = 1e-5;
/// Rungs wider than this are cut before their multipliers are improved.
inline constexpr double coarse_rung = 0.03;

/// A lower bound on alpha x max + sum, composed of intervals of the largest cost ("rungs"). A placement whose largest
/// cost lies in (from, limit] costs at least alpha x from + sum. It is refined where it is least.
class Ladder {
 public:
  struct Rung {
    double from = 0;
    double limit = std::numeric_limits<double>::infinity();
    double sum = 0;                   ///< no placement within the limit has less; infinite: no placement exists
    std::vector<double> multipliers;  ///< by device: the proof of the sum
    std::size_t slots = 0;            ///< if not 0, the sum counts slots and the largest cost does not count
    bool is_priced_well = false;      ///< its multipliers had many steps
    bool is_searched = false;         ///< a search showed that no placement of this rung beats the best known one
  };

  explicit Ladder(double alpha) : alpha_(alpha) {}

  void add(Rung rung) { rungs_.push_back(std::move(rung)); }
  std::vector<Rung>& rungs() { return rungs_; }
  const std::vector<Rung>& rungs() const { return rungs_; }

  double value(const Rung& rung) const
  {
    if (rung.is_searched) return std::numeric_limits<double>::infinity();
    return rung.slots > 0 ? rung.sum : alpha_ * rung.from + rung.sum;
  }
  /// The rung of least value, and that value: what the ladder proves, except for searched rungs.
  std::size_t weakest() const;
  double bound() const { return value(rungs_[weakest()]); }
  /// Indices of the rungs by value, least first.
  std::vector<std::size_t> by_value() const;
  /// Cuts a rung at `limit`: the upper part keeps its sum; the lower part is returned without a sum.
  Rung split(std::size_t rung, double limit);

  /// Returns the certificate: path, or search if a rung was searched.
  Certificate certificate(const std::vector<std::size_t>& groups, std::size_t levels) const;

 private:
  double alpha_;
  std::vector<Rung> rungs_;
};

}  // namespace isobar::allocators
