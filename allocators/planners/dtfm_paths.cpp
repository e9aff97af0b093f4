#include "allocators/planners/dtfm_paths.hpp"

#include "allocators/bounds/comparisons.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace isobar::allocators {

namespace {

constexpr std::uint16_t is_exact = 0x8000;  // of an entry of a row
constexpr std::size_t most_seen = 2'000'000;

}  // namespace

StagePaths::StagePaths(const DeviceClasses& classes, const Compositions& compositions, std::size_t stages)
    : classes_(classes),
      compositions_(compositions),
      stages_(stages),
      alike_(compositions.size()),
      rows_(compositions.size()),
      least_onward_(compositions.size(), 0),
      repeated_(compositions.size(), infinity),
      use_(compositions.size(), 0),
      begin_(stages + 1, std::vector<double>(compositions.size(), infinity)),
      after_(begin_)
{
  for (std::size_t i = 0; i < compositions.size(); ++i) {
    alike_[compositions.representative[i]].push_back(i);
    repeated_[i] = classes.time_of(classes.hop(compositions[i], compositions[i]));
  }
}

std::vector<std::uint16_t>& StagePaths::row_of(std::size_t representative)
{
  auto& row = rows_[representative];
  if (!row.empty()) return row;
  row.resize(compositions_.size());
  std::size_t least = classes_.levels().size();
  for (std::size_t j = 0; j < row.size(); ++j) {
    row[j] = static_cast<std::uint16_t>(classes_.least_hop(compositions_[representative], compositions_[j]));
    if (j != representative) least = std::min<std::size_t>(least, row[j]);
  }
  least_onward_[representative] = classes_.time_of(least);
  return row;
}

double StagePaths::time_between(std::size_t from, std::size_t to)
{
  if (compositions_.representative[from] != from) {
    return classes_.time_of(classes_.hop(compositions_[from], compositions_[to]));
  }
  auto& entry = row_of(from)[to];
  if ((entry & is_exact) == 0) {
    entry = static_cast<std::uint16_t>(classes_.hop(compositions_[from], compositions_[to]) | is_exact);
  }
  return classes_.time_of(entry & ~is_exact);
}

std::size_t StagePaths::most_in_run(std::size_t composition) const
{
  std::size_t most = stages_;
  for (std::size_t s = 0; s < classes_.size(); ++s) {
    const std::size_t each = compositions_[composition][s];
    if (each > 0) most = std::min<std::size_t>(most, classes_.room(s) / each);
  }
  return most;
}

StagePaths::Relaxed StagePaths::relax(std::size_t count, const std::vector<double>& multipliers,
                                      const SearchClock& clock)
{
  std::vector<std::size_t> representatives;
  for (std::size_t i = 0; i < count; ++i) {
    if (compositions_.representative[i] == i) representatives.push_back(i);
  }
  multiplier_.resize(classes_.size());
  for (std::size_t s = 0; s < classes_.size(); ++s) multiplier_[s] = multipliers[classes_.kind_of(s)];
  std::vector<std::size_t> most_in_a_run(compositions_.size(), 0);
  for (const std::size_t i : representatives) {
    use_[i] = 0;
    for (std::size_t s = 0; s < classes_.size(); ++s) use_[i] += compositions_[i][s] * multiplier_[s];
    most_in_a_run[i] = most_in_run(i);
    after_[0][i] = 0;
  }
  std::vector<std::vector<std::size_t>> next(stages_ + 1, std::vector<std::size_t>(compositions_.size()));
  auto length = next;
  std::vector<std::size_t> order = representatives;
  for (std::size_t k = 1; k <= stages_; ++k) {
    for (const std::size_t i : representatives) {
      begin_[k][i] = infinity;
      for (std::size_t run = 1; run <= std::min(k, most_in_a_run[i]); ++run) {
        const double repeats = run > 1 ? static_cast<double>(run - 1) * repeated_[i] : 0;
        const double time = repeats + static_cast<double>(run) * use_[i] + after_[k - run][i];
        if (time >= begin_[k][i]) continue;
        begin_[k][i] = time;
        length[k][i] = run;
      }
    }
    if (k == stages_) break;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return begin_[k][a] < begin_[k][b]; });
    for (const std::size_t i : representatives) {
      clock.leave_if_over();
      auto& row = row_of(i);
      double least = infinity;
      for (const std::size_t j : order) {
        if (begin_[k][j] + least_onward_[i] >= least) break;
        for (const std::size_t each : alike_[j]) {
          if (each >= count || each == i) continue;
          if (begin_[k][j] + classes_.time_of(row[each] & ~is_exact) >= least) continue;
          const double time = begin_[k][j] + time_between(i, each);
          if (time >= least) continue;
          least = time;
          next[k][i] = j;
        }
      }
      after_[k][i] = least;
    }
  }
  Relaxed relaxed{infinity, std::vector<double>(classes_.kinds(), 0)};
  std::size_t first = 0;
  for (const std::size_t i : representatives) {
    if (begin_[stages_][i] >= relaxed.bound) continue;
    relaxed.bound = begin_[stages_][i];
    first = i;
  }
  if (relaxed.bound == infinity) return relaxed;
  for (std::size_t k = stages_; k > 0;) {
    const std::size_t run = length[k][first];
    for (std::size_t s = 0; s < classes_.size(); ++s) {
      relaxed.used[classes_.kind_of(s)] += static_cast<double>(run * compositions_[first][s]);
    }
    k -= run;
    first = next[k][first];
  }
  for (std::size_t s = 0; s < classes_.size(); ++s) relaxed.bound -= multiplier_[s] * classes_.room(s);
  return relaxed;
}

void StagePaths::search(std::size_t count, double least_sync, SearchClock& clock, StageSequence& best)
{
  count_ = count;
  least_sync_ = least_sync;
  clock_ = &clock;
  best_ = &best;
  left_ = classes_.rooms();
  runs_.clear();
  seen_.clear();
  order_.assign(stages_ + 1, {});
  for (std::size_t k = 1; k <= stages_; ++k) {
    order_[k].resize(count);
    std::iota(order_[k].begin(), order_[k].end(), std::size_t{0});
    std::sort(order_[k].begin(), order_[k].end(),
              [&](std::size_t a, std::size_t b) { return begin(k, a) < begin(k, b); });
  }
  extend(stages_, 0, least_sync);
}

void StagePaths::extend(std::size_t left, double passes, double sync)
{
  clock_->spend_or_leave();
  clock_->leave_if_over();
  if (left == 0) {
    close(passes, sync);
    return;
  }
  double unused = 0;  // multipliers
  for (std::size_t s = 0; s < left_.size(); ++s) unused += multiplier_[s] * left_[s];
  const auto is_too_dear = [&](double least_passes, double least_sync) {
    return least_sync + 2 * (least_passes - unused) >= best_->cost * (1 - proof_precision);
  };
  const bool is_first = runs_.empty();
  const std::size_t last = is_first ? 0 : runs_.back().composition;
  const double onward = is_first ? 0 : least_onward_[compositions_.representative[last]];
  for (const std::size_t j : order_[left]) {
    if (is_too_dear(passes + onward + begin(left, j), sync)) break;
    if (is_first ? compositions_.representative[j] != j : j == last) continue;
    const double longest = std::max(sync, compositions_.sync[j]);
    if (is_too_dear(passes + onward + begin(left, j), longest)) continue;
    const auto stage = compositions_[j];
    std::size_t most = left;
    for (std::size_t s = 0; s < stage.size(); ++s) {
      if (stage[s] > 0) most = std::min<std::size_t>(most, left_[s] / stage[s]);
    }
    if (most == 0) continue;
    const double reached = passes + (is_first ? 0 : time_between(last, j));
    const std::size_t alike = compositions_.representative[j];
    for (std::size_t run = most; run > 0; --run) {
      const double at_end = reached + (run > 1 ? static_cast<double>(run - 1) * repeated_[j] : 0);
      if (is_too_dear(at_end + static_cast<double>(run) * use_[alike] + after_[left - run][alike], longest)) continue;
      for (std::size_t s = 0; s < stage.size(); ++s) left_[s] = static_cast<std::uint16_t>(left_[s] - run * stage[s]);
      runs_.push_back({j, run});
      if (!is_dominated(j, at_end, longest)) extend(left - run, at_end, longest);
      runs_.pop_back();
      for (std::size_t s = 0; s < stage.size(); ++s) left_[s] = static_cast<std::uint16_t>(left_[s] + run * stage[s]);
    }
  }
}

bool StagePaths::is_dominated(std::size_t last, double passes, double sync)
{
  const auto key = std::pair(left_, last);
  auto found = seen_.find(key);
  if (found == seen_.end()) {
    if (seen_.size() >= most_seen) return false;
    found = seen_.emplace(key, std::vector<std::pair<double, double>>()).first;
  }
  auto& others = found->second;
  for (const auto& [other_passes, other_sync] : others) {
    if (other_passes <= passes && other_sync <= sync) return true;
  }
  std::erase_if(others, [&](const auto& other) { return passes <= other.first && sync <= other.second; });
  others.emplace_back(passes, sync);
  return false;
}

void StagePaths::close(double passes, double sync)
{
  const double cost = sync + 2 * passes;
  if (cost >= best_->cost) return;
  best_->cost = cost;
  best_->stages.clear();
  for (const auto& [composition, length] : runs_) {
    const auto stage = compositions_[composition];
    for (std::size_t i = 0; i < length; ++i) best_->stages.emplace_back(stage.begin(), stage.end());
  }
}

}  // namespace isobar::allocators
