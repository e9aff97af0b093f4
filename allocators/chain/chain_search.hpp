#pragma once

#include "allocators/chain/beginning_bounds.hpp"
#include "allocators/chain/memory_reach.hpp"
#include "allocators/chain/path_table.hpp"
#include "allocators/search_clock.hpp"
#include "core/costs/cost_model.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

/// The dynamic program of chain-dp for one limit at a time; chain_dp.cpp runs passes until the goal is met.
namespace isobar::allocators::chain_dp {

/// A plan of a pass, with its largest stage cost and the sum of all stage costs, in seconds.
struct Found {
  std::vector<StagePlacement> stages;
  double bottleneck = 0;
  double sum = 0;
};

/// Devices before one device, last first, to which its gradients take the same time.
struct ReturnPath {
  AffinePath path;
  std::vector<std::uint32_t> devices;
};

/// One continuation after a cut: what the stage before the cut sends, and what all stages after it cost, in seconds.
struct Option {
  double send = 0;
  double rest = 0;
  std::uint32_t cut = 0;
  std::uint32_t device = 0;
  std::uint32_t level = 0;
};

/// The options of one device at one level, cut after cut from the last; those of `cut` are numbers begin[cut] to
/// begin[cut-1] - 1.
struct Options {
  std::vector<Option> all;
  std::vector<std::uint32_t> begin;
};

/// A stage's choice: where it ends and what follows.
struct Choice {
  double value = infinity;
  double compute = 0;
  const Option* option = nullptr;
};

/// Passes of the dynamic program over one cost model and goal.
///
/// The communication is a template parameter because the inner loops depend on it. Played stands for serial sums under
/// limits on compute only, which only least_sum() supports. A pass takes the time that chain_dp.hpp states.
template <Communication communication>
class ChainSearch {
 public:
  /// Devices have `memory_factor` times their memory. Keeps references to the cost model and the clock.
  /// @throws OutOfLimits when `clock` ends the search.
  ChainSearch(const CostModel& cost, const Goal& goal, double memory_factor, SearchClock& clock);
  ChainSearch(const ChainSearch&) = delete;
  ChainSearch& operator=(const ChainSearch&) = delete;

  /// Returns some plan whose stages all cost at most `limit`. None: no such plan exists, and next_limit() is the least
  /// limit at which that could change.
  /// @throws OutOfLimits, as do the functions below.
  std::optional<Found> within(double limit);
  double next_limit() const { return next_limit_; }

  /// Returns the plan of least sum among those whose stages all cost at most `limit`; none when that sum reaches
  /// `ceiling`.
  std::optional<Found> least_sum(double limit, double ceiling = infinity);

  /// Returns the first stage of a split in which all other stages fit. For use when no plan exists: that stage exceeds
  /// its memory.
  StagePlacement overfull_beginning();

 private:
  void find_return_paths(std::size_t device);
  void fill_work(std::size_t first);

  Options& options(std::size_t level, std::size_t device) { return options_[level * devices_ + device]; }
  const Options& options(std::size_t level, std::size_t device) const { return options_[level * devices_ + device]; }

  /// Records a value above the limit. Any limit below the least of them gives the same pass.
  void note_beyond_limit(double value) { next_limit_ = std::min(next_limit_, value); }

  template <bool sums>
  std::optional<Found> pass(double limit, double ceiling);
  template <bool sums>
  void settle(std::size_t first, std::size_t device, std::size_t level);
  template <bool sums>
  void settle_without_transfers(std::size_t first);
  template <bool sums>
  std::optional<Found> begin_chain();
  template <bool sums>
  Found trace(std::size_t device, std::size_t level);

  template <typename Visit>
  void for_each_choice(std::size_t first, std::size_t device, std::size_t level, const Visit& visit);
  Choice least_partial_cost(std::size_t first, std::size_t device, std::size_t level);
  Choice least_sum_choice(std::size_t first, std::size_t device, std::size_t level, double gradient);
  double least_gathered_sum(double gradient) const;
  double sum_with_gradient(double gradient, const Choice& best) const;

  void offer(const ReturnPath& way, std::size_t cut, std::size_t device, std::size_t level, double rest);
  static bool beats(const Option& a, const Option& b) { return a.send <= b.send && a.rest <= b.rest; }
  static void add_option(Options& known, const Option& option);
  void close_cut(std::size_t cut);

  const CostModel& cost_;
  Goal goal_;
  SearchClock& clock_;
  std::size_t layers_;
  std::size_t devices_;
  MemoryReach reach_;
  BeginningBounds beginnings_;
  std::vector<double> seconds_per_flop_;
  bool from_the_start_ = true;  // leave out states that no plan reaches
  double limit_ = infinity;
  double ceiling_ = infinity;
  double next_limit_ = infinity;
  std::vector<double> work_;  // of the stage from the state's layer, by its end
  std::vector<Choice> gathered_;
  std::vector<Options> options_;  // [level][device]
  std::vector<std::vector<ReturnPath>> return_paths_;
  std::vector<AffinePath> paths_;  // [to][from], from < to
};

extern template class ChainSearch<Communication::None>;
extern template class ChainSearch<Communication::Overlapped>;
extern template class ChainSearch<Communication::Serial>;
extern template class ChainSearch<Communication::Played>;

}  // namespace isobar::allocators::chain_dp
