#pragma once

#include "core/units.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace isobar::allocators {

/// Where to cut a chain of layers for stages in a given order, and what (M - 1) x largest + sum then is.
struct PipelineCuts {
  std::vector<std::size_t> first_layer;  ///< of each stage
  Seconds largest;                       ///< time of a stage
  Seconds sum;                           ///< of the times of stages and hops
  Seconds step;
};

/// Dynamic programs over (stages, layers) for one pipeline; see `cut_pipeline`.
template <typename Costs>
class PipelineCutter {
 public:
  PipelineCutter(const Costs& costs, std::size_t stages, std::size_t layers, std::uint64_t microbatches)
      : costs_(costs), stages_(stages), layers_(layers), others_(static_cast<double>(microbatches - 1))
  {
  }

  std::optional<PipelineCuts> best() const
  {
    const Seconds least = least_largest();
    if (least == never) return std::nullopt;
    PipelineCuts best = least_sum(least).value();
    // Lower limits have no smaller sums. So only a limit below what is left for the largest stage can be better.
    Seconds limit = never;
    while (limit >= least) {
      const PipelineCuts cuts = least_sum(limit).value();
      if (cuts.step < best.step) best = cuts;
      if (others_ * least + cuts.sum >= best.step) break;
      const double below = std::nextafter(cuts.largest.value, 0.0);
      limit = std::min(Seconds(below), (best.step - cuts.sum) / others_);
    }
    return best;
  }

 private:
  static constexpr Seconds never{std::numeric_limits<double>::infinity()};

  /// The least largest time of a stage; `never` if the stages cannot hold the layers.
  Seconds least_largest() const
  {
    std::vector<Seconds> before(layers_ + 1, never);  // of the stages before, for the layers before
    before[0] = Seconds(0);
    std::vector<Seconds> here;
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      here.assign(layers_ + 1, never);
      for (std::size_t end = stage + 1; end + (stages_ - 1 - stage) <= layers_; ++end) {
        for (std::size_t first = end; first-- > stage;) {
          const Seconds time = costs_.time(stage, first, end - 1);
          if (time >= here[end]) break;
          if (before[first] == never || !costs_.fits(stage, first, end - 1)) continue;
          here[end] = std::min(here[end], std::max(before[first], time));
        }
      }
      before.swap(here);
    }
    return before[layers_];
  }

  /// The cuts of least sum with no stage above a limit.
  std::optional<PipelineCuts> least_sum(Seconds limit) const
  {
    std::vector<std::vector<Seconds>> sum(stages_ + 1, std::vector<Seconds>(layers_ + 1, never));
    std::vector<std::vector<std::size_t>> first_of(stages_ + 1, std::vector<std::size_t>(layers_ + 1, 0));
    sum[0][0] = Seconds(0);
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      for (std::size_t end = stage + 1; end + (stages_ - 1 - stage) <= layers_; ++end) {
        for (std::size_t first = end; first-- > stage;) {
          const Seconds time = costs_.time(stage, first, end - 1);
          if (time > limit) break;
          if (sum[stage][first] == never || !costs_.fits(stage, first, end - 1)) continue;
          const Seconds hop = stage == 0 ? Seconds(0) : costs_.hop(stage, first);
          const Seconds all = sum[stage][first] + hop + time;
          if (all >= sum[stage + 1][end]) continue;
          sum[stage + 1][end] = all;
          first_of[stage + 1][end] = first;
        }
      }
    }
    if (sum[stages_][layers_] == never) return std::nullopt;
    PipelineCuts cuts{std::vector<std::size_t>(stages_), Seconds(0), sum[stages_][layers_], Seconds(0)};
    std::size_t end = layers_;
    for (std::size_t stage = stages_; stage-- > 0;) {
      cuts.first_layer[stage] = first_of[stage + 1][end];
      cuts.largest = std::max(cuts.largest, costs_.time(stage, cuts.first_layer[stage], end - 1));
      end = cuts.first_layer[stage];
    }
    cuts.step = others_ * cuts.largest + cuts.sum;
    return cuts;
  }

  const Costs& costs_;
  std::size_t stages_;
  std::size_t layers_;
  double others_;
};

/// Cuts a chain of layers so that (M - 1) x largest time of a stage + sum of all times of stages and hops is least,
/// each stage with one layer or more. None if memory has no room.
///
/// `costs` has `time(stage, first, last)`, which does not fall when `first` does, `fits(stage, first, last)`, and
/// `hop(stage, layer)`: between a stage that begins at a layer and the stage before. Exact: cuts of least sum under
/// falling limits of the largest stage, until no lower limit can pay. O(stages x layers squared) for each limit, and
/// fewer where the limit leaves few layers to a stage; O(stages x layers) memory. Deterministic.
template <typename Costs>
std::optional<PipelineCuts> cut_pipeline(const Costs& costs, std::size_t stages, std::size_t layers,
                                         std::uint64_t microbatches)
{
  if (stages > layers) return std::nullopt;
  return PipelineCutter<Costs>(costs, stages, layers, microbatches).best();
}

}  // namespace isobar::allocators
