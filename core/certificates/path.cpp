// Recomputes the bound by multipliers on "each device once" (docs/certificates.md), with one pass over the cuts per
// rung from the front of the chain to its end.

#include "core/certificates/proofs.hpp"

#include <fmt/format.h>

#include <numeric>

namespace isobar::proofs {

namespace {

// Approximate, relative to one iteration of the innermost loop of a path's table.
constexpr std::uint64_t steps_of_path = 100;
constexpr std::uint64_t steps_of_window = 8;

}  // namespace

bool memory_is_hereditary(const Chain& chain)
{
  const std::uint64_t held = chain.held_by(0);
  for (std::size_t k = 0; k < chain.layers; ++k) {
    const double layer = chain.need_of_layers(k, k + 1, held) * (1 + rounding);
    // Another layer at a stage's end moves its buffer from cut k to k + 1, at its beginning from k + 1 to k.
    const bool grows_at_end = k == 0 || layer + chain.buffer(k + 1) >= chain.buffer(k);
    const bool grows_at_beginning = k + 1 == chain.layers || layer + chain.buffer(k) >= chain.buffer(k + 1);
    if (!grows_at_end || !grows_at_beginning) return false;
  }
  return true;
}

GroupTransfers::GroupTransfers(const Chain& chain, const std::vector<std::size_t>& group_of_device, double limit)
    : cuts_(chain.layers + 1)
{
  const bool counts = chain.goal.communication != Communication::None;
  if (counts && !group_of_device.empty()) {
    group_of_ = group_of_device;
    groups_ = 1 + *std::max_element(group_of_.begin(), group_of_.end());
  }
  nothing_.assign(groups_, 0);
  if (!counts) return;
  output_.assign(chain.devices * cuts_ * groups_, infinity);
  gradient_.assign(output_.size(), infinity);
  if (chain.has_turns()) {
    tabulate_within(chain, limit * (1 + rounding));
  } else {
    tabulate(chain);
  }
}

void GroupTransfers::tabulate(const Chain& chain)
{
  std::vector<std::vector<Path>> paths(groups_);
  for (std::size_t i = 0; i < chain.devices; ++i) {
    for (auto& to_group : paths) to_group.clear();
    for (std::size_t j = 0; j < chain.devices; ++j) {
      if (j == i) continue;
      const Path path = chain.cluster->path(i, j);
      chain.effort.take(steps_of_path);
      auto& known = paths[group_of(j)];
      const bool is_worse = std::any_of(known.begin(), known.end(), [&](const Path& other) {
        return (!chain.latency_counts || other.latency <= path.latency) && other.bandwidth >= path.bandwidth;
      });
      if (is_worse) continue;
      std::erase_if(
          known, [&](const Path& other) { return path.latency <= other.latency && path.bandwidth >= other.bandwidth; });
      known.push_back(path);
    }
    for (std::size_t cut = 1; cut < chain.layers; ++cut) {
      chain.effort.take(chain.devices);
      for (std::size_t group = 0; group < groups_; ++group) {
        const std::size_t at = (i * cuts_ + cut) * groups_ + group;
        for (const Path& path : paths[group]) {
          output_[at] = std::min(output_[at], chain.transfer_s(path, chain.output[cut]));
          gradient_[at] = std::min(gradient_[at], chain.transfer_s(path, chain.gradient[cut]));
        }
      }
    }
  }
}

void GroupTransfers::tabulate_within(const Chain& chain, double limit)
{
  struct Lanes {
    Path there;
    Path back;
  };
  std::vector<std::vector<Lanes>> lanes(groups_);  // of one device, to devices of each group
  for (std::size_t i = 0; i < chain.devices; ++i) {
    for (auto& to_group : lanes) to_group.clear();
    for (std::size_t j = 0; j < chain.devices; ++j) {
      if (j == i) continue;
      const Lanes one{chain.cluster->path(i, j), chain.cluster->path(j, i)};
      auto& known = lanes[group_of(j)];
      chain.effort.take(steps_of_path + known.size());
      const bool is_worse = std::any_of(known.begin(), known.end(), [&](const Lanes& other) {
        return other.there.latency <= one.there.latency && other.there.bandwidth >= one.there.bandwidth &&
               other.back.bandwidth >= one.back.bandwidth;
      });
      if (!is_worse) known.push_back(one);
    }
    for (std::size_t cut = 1; cut < chain.layers; ++cut) {
      for (std::size_t group = 0; group < groups_; ++group) {
        const std::size_t at = (i * cuts_ + cut) * groups_ + group;
        chain.effort.take(lanes[group].size());
        for (const auto& [there, back] : lanes[group]) {
          const auto data = [](const Path& path, double bytes) { return bytes / path.bandwidth.value; };
          const double forward = chain.output[cut];
          const double backward = chain.gradient[cut];
          if (chain.lane_turn_s(data(there, forward), data(back, backward)) <= limit) {
            output_[at] = std::min(output_[at], chain.transfer_s(there, forward));
          }
          if (chain.lane_turn_s(data(back, forward), data(there, backward)) <= limit) {
            gradient_[at] = std::min(gradient_[at], chain.transfer_s(there, backward));
          }
        }
      }
    }
  }
}

bool GroupTransfers::are_alike(std::size_t a, std::size_t b) const
{
  const auto same_rows = [&](const std::vector<double>& table) {
    const auto row = [&](std::size_t device) {
      return table.begin() + static_cast<std::ptrdiff_t>(device * cuts_ * groups_);
    };
    return table.empty() || std::equal(row(a), row(a + 1), row(b));
  };
  return same_rows(output_) && same_rows(gradient_);
}

Runs::Runs(const Chain& chain, const GroupTransfers& transfers, const std::vector<double>& multipliers)
    : states_(transfers.groups(), 1)
{
  std::vector<std::size_t> devices_of_kind;
  std::vector<std::size_t> devices_of_group(transfers.groups(), 0);
  for (std::size_t i = 0; i < chain.devices; ++i) {
    chain.effort.take(representatives_.size() + chain.layers * transfers.groups());
    const auto alike = std::find_if(representatives_.begin(), representatives_.end(), [&](std::size_t other) {
      return transfers.group_of(i) == transfers.group_of(other) && chain.computes_alike(i, other) &&
             chain.memory[i] == chain.memory[other] && chain.input_s[i] == chain.input_s[other] &&
             multipliers[i] == multipliers[other] && transfers.are_alike(i, other);
    });
    const auto kind = static_cast<std::size_t>(alike - representatives_.begin());
    if (alike == representatives_.end()) {
      representatives_.push_back(i);
      group_of_kind_.push_back(transfers.group_of(i));
      devices_of_kind.push_back(0);
    }
    kinds_.push_back(kind);
    ++devices_of_kind[kind];
    ++devices_of_group[transfers.group_of(i)];
  }
  shares_.assign(representatives_.size(), 0);
  most_.assign(representatives_.size(), 0);
  for (std::size_t group = 0; transfers.groups() > 1 && group < transfers.groups(); ++group) {
    std::size_t apart = 1;
    for (std::size_t kind = 0; kind < representatives_.size(); ++kind) {
      if (group_of_kind_[kind] == group) apart = std::min(apart * (devices_of_kind[kind] + 1), most_run_states + 1);
    }
    for (std::size_t kind = 0; kind < representatives_.size(); ++kind) {
      if (group_of_kind_[kind] != group) continue;
      const bool is_apart = apart <= most_run_states;
      shares_[kind] = is_apart ? states_[group] : 1;
      most_[kind] = is_apart ? devices_of_kind[kind] : devices_of_group[group];
      states_[group] = shares_[kind] * (most_[kind] + 1);
    }
  }
  states_before_ = {0};
  for (const std::size_t states : states_) states_before_.push_back(states_before_.back() + states);
}

std::size_t levels_of(const Chain& chain, const Certificate& certificate)
{
  if (chain.schedule != ChainSchedule::OneForwardOneBackward || (chain.is_sky && !chain.has_turns())) return 1;
  const auto most = std::min<std::uint64_t>(chain.goal.microbatches, std::min(chain.layers, chain.devices));
  return std::min(certificate.levels, static_cast<std::size_t>(most));
}

std::string fault_of_size(const Chain& chain, const std::vector<std::size_t>& group_of_device, std::size_t levels)
{
  constexpr double most = 2e8;
  const bool counts_transfers = chain.goal.communication != Communication::None;
  std::vector<std::size_t> devices = {chain.devices};  // of each group
  if (counts_transfers && !group_of_device.empty()) {
    devices.assign(1 + *std::max_element(group_of_device.begin(), group_of_device.end()), 0);
    for (const std::size_t group : group_of_device) ++devices[group];
  }
  const double groups = static_cast<double>(devices.size());
  const double cuts = static_cast<double>(chain.layers + 1);
  double states = 0;  // upper bound
  for (const std::size_t count : devices) {
    const std::size_t apart = count < 16 ? std::min(most_run_states, std::size_t{1} << count) : most_run_states;
    states += static_cast<double>(std::max(apart, count + 1));
  }
  const double path = static_cast<double>(levels) * cuts * (groups == 1 ? 1 : groups * groups + states);
  const double transfers = counts_transfers ? 2 * static_cast<double>(chain.devices) * cuts * groups : 0;
  const double numbers = std::max(path, transfers);
  if (numbers <= most) return "";
  return fmt::format(
      "certificate: {} groups at {} levels over {} layers make a table of {:.3g} numbers; at most {:.3g} "
      "are checked",
      devices.size(), levels, chain.layers, numbers, most);
}

PathTable::PathTable(const Chain& chain, const GroupTransfers& transfers, std::size_t levels,
                     const Certificate::Rung& rung)
    : chain_(chain),
      transfers_(transfers),
      multipliers_(rung.multipliers),
      runs_(chain, transfers, rung.multipliers),
      levels_(levels),
      cuts_(chain.layers + 1),
      groups_(transfers.groups()),
      limit_(rung.limit ? rung.limit->value * (1 + rounding) : infinity),
      most_cost_(limit_),
      beta_(chain.beta()),
      sum_(std::accumulate(rung.multipliers.begin(), rung.multipliers.end(), 0.0)),
      least_(levels * cuts_ * groups_ * groups_, infinity),
      staying_(levels * cuts_ * runs_.states_before(groups_), infinity)
{
  if (chain.has_turns()) most_cost_ = infinity;
  for (std::size_t level = 0; level < levels; ++level) weights_.push_back(weight_of(level, rung.slots));
  if (chain.goal.communication == Communication::None && memory_is_hereditary(chain)) {
    fill_without_transfers();
  } else {
    fill();
  }
}

double PathTable::weight_of(std::size_t level, std::size_t slots) const
{
  // The last level also stands for stages with more stages after them, unless there are none.
  const bool stands_for_more = level + 1 == levels_ && levels_ < std::min(chain_.layers, chain_.devices);
  if (level >= slots || (stands_for_more && slots > level + 1)) return beta_;
  const std::uint64_t trips = 1 + (chain_.goal.microbatches - 1) / slots;
  return static_cast<double>(trips);
}

double PathTable::counted(std::size_t level, double compute, double sent_on, double sent_back) const
{
  if (!chain_.has_turns()) return beta_ * chain_.cost(compute, sent_on + sent_back);
  return weights_[level] * chain_.cost(compute, sent_on) + weights_[std::min(level + 1, levels_ - 1)] * sent_back;
}

double PathTable::all() const
{
  double least = infinity;
  for (std::size_t group = 0; group < groups_; ++group) {
    for (std::size_t next = 0; next < groups_; ++next) {
      least = std::min(least, before(chain_.layers, 0, group, next, runs_.full(group)));
    }
  }
  return least;
}

void PathTable::fill()
{
  least_of_any_group_.assign(levels_ * cuts_ * groups_, infinity);
  for (std::size_t cut = 1; cut < cuts_; ++cut) {
    const std::size_t levels = cut == chain_.layers ? 1 : levels_;
    for (std::size_t level = 0; level < levels; ++level) {
      fill_cell(cut, level);
      chain_.effort.take(groups_ * groups_);
      for (std::size_t group = 0; group < groups_; ++group) {
        for (std::size_t next = 0; next < groups_; ++next) {
          double& least = least_of_any_group_[(level * cuts_ + cut) * groups_ + next];
          least = std::min(least, before(cut, level, group, next, runs_.full(group)));
        }
      }
    }
  }
}

void PathTable::fill_cell(std::size_t end, std::size_t level)
{
  for (std::size_t kind = 0; kind < runs_.representatives().size(); ++kind) fill_cell_by(kind, end, level);
}

/// Tries a last stage before `end` on a device of the kind from each cut, with the best placement before it.
void PathTable::fill_cell_by(std::size_t kind, std::size_t end, std::size_t level)
{
  const std::size_t i = runs_.representatives()[kind];
  const std::size_t group = transfers_.group_of(i);
  const std::size_t level_before = std::min(level + 1, levels_ - 1);
  const std::uint64_t held = chain_.held_by(level);
  const std::uint64_t in_flight = chain_.most_in_flight(level, levels_);
  const double memory = chain_.memory[i] * (1 + memory_tolerance);
  const double* output = end == chain_.layers ? transfers_.nothing() : transfers_.output(i, end);
  double* least = &least_[index(level, end, group, 0)];
  double* stays = &staying_[stay(level, end, group)];
  double entered = infinity;  // the least at the beginning of a run
  const auto offer = [&](double compute, double before, double sent_back, bool begins_run) {
    for (std::size_t next = 0; next < groups_; ++next) {
      if (next == group && !begins_run) continue;
      if (!(chain_.cost(compute, output[next] + sent_back) <= most_cost_)) continue;
      double& known = next == group ? entered : least[next];
      known = std::min(known, before + counted(level, compute, output[next], sent_back));
    }
  };
  const auto worst_of_all = [&] {
    double worst = entered;
    for (std::size_t next = 0; next < groups_; ++next) {
      if (next != group) worst = std::max(worst, least[next]);
    }
    return worst;
  };
  for (std::size_t first = end; first-- > 0;) {
    chain_.effort.take(1 + groups_ + runs_.states(group));
    const double compute = chain_.compute_s(i, first, end);
    if (chain_.turn_s(i, first, end, in_flight) > limit_ || chain_.need_of_layers(first, end, held) > memory) break;
    if (chain_.need(first, end, held) > memory) continue;
    if (first == 0) {
      const double input = chain_.cost(0, chain_.input_s[i]);
      if (chain_.input_turn_s[i] <= limit_) offer(compute, multipliers_[i] + beta_ * input, 0, true);
      continue;
    }
    const double* gradient = transfers_.gradient(i, first);
    const double least_before = least_of_any_group_[(level_before * cuts_ + first) * groups_ + group];
    if (multipliers_[i] + beta_ * compute + least_before < worst_of_all()) {
      for (std::size_t previous = 0; previous < groups_; ++previous) {
        const double before = this->before(first, level_before, previous, group, runs_.without(i));
        if (before < infinity) offer(compute, multipliers_[i] + before, gradient[previous], previous != group);
      }
    }
    if (!(chain_.cost(compute, output[group] + gradient[group]) <= most_cost_)) continue;
    const double cost = counted(level, compute, output[group], gradient[group]);
    const double* stayed = &staying_[stay(level_before, first, group)];
    for (std::size_t state = 0; state < runs_.states(group); ++state) {
      const auto left = runs_.with_use(state, kind);
      if (left) stays[state] = std::min(stays[state], stayed[*left] + multipliers_[i] + cost);
    }
  }
  for (std::size_t state = 0; state < runs_.states(group); ++state) {
    if (runs_.with_use(state, kind)) stays[state] = std::min(stays[state], entered);
  }
}

/// A stage's cost is then a difference of two sums, and the cuts from which a device reaches `end` are a sliding
/// window. Its best cut is at the front of a queue from which worse earlier cuts were dropped.
void PathTable::fill_without_transfers()
{
  struct Window {
    std::vector<std::uint32_t> cuts;  // their keys rise
    std::size_t front = 0;
  };
  std::vector<Window> windows(levels_ * chain_.devices);
  std::size_t kept = 0;  // in all queues
  for (std::size_t end = 1; end < cuts_; ++end) {
    const std::size_t levels = end == chain_.layers ? 1 : levels_;
    chain_.effort.take(levels * chain_.devices * steps_of_window);
    Effort::ensure_room(kept, sizeof(std::uint32_t), "the cuts of a path");
    for (std::size_t level = 0; level < levels; ++level) {
      const std::size_t level_before = std::min(level + 1, levels_ - 1);
      const std::uint64_t held = chain_.held_by(level);
      const std::uint64_t in_flight = chain_.most_in_flight(level, levels_);
      double& least = staying_[stay(level, end, 0)];
      for (std::size_t i = 0; i < chain_.devices; ++i) {
        auto& [cuts, front] = windows[level * chain_.devices + i];
        const double per_flop = weights_[level] / chain_.rate[i];
        const std::vector<double>& work = chain_.work_on[i]->both;
        const auto key = [&, per_flop](std::size_t cut) {
          const double before = cut == 0 ? 0 : staying_[stay(level_before, cut, 0)];
          return before - per_flop * work[cut];
        };
        const double newest = key(end - 1);
        if (newest < infinity) {
          kept -= cuts.size();
          while (cuts.size() > front && key(cuts.back()) >= newest) cuts.pop_back();
          cuts.push_back(static_cast<std::uint32_t>(end - 1));
          kept += cuts.size();
        }
        const double memory = chain_.memory[i] * (1 + memory_tolerance);
        while (front < cuts.size() && (chain_.turn_s(i, cuts[front], end, in_flight) > limit_ ||
                                       chain_.need(cuts[front], end, held) > memory)) {
          ++front;
        }
        if (front < cuts.size()) {
          least = std::min(least, multipliers_[i] + key(cuts[front]) + per_flop * work[end]);
        }
      }
    }
  }
}

double path_bound(const Chain& chain, const Certificate& certificate)
{
  const std::size_t levels = levels_of(chain, certificate);
  const GroupTransfers all_transfers(chain, certificate.groups);
  double bound = infinity;
  double limit_below = 0;
  for (const auto& rung : certificate.rungs) {
    std::optional<GroupTransfers> within;
    if (chain.has_turns() && rung.limit) within.emplace(chain, certificate.groups, rung.limit->value);
    const PathTable table(chain, within ? *within : all_transfers, levels, rung);
    const double all = table.all();
    const double multipliers = table.sum_of_multipliers();
    if (all < infinity) {
      const double slack = rounding * (all + multipliers);
      const double gained = all - multipliers - slack;
      const bool none_exists = chain.beta() == 0 && gained > 0;
      if (!none_exists) {
        const double largest = rung.slots > 0 ? 0 : chain.alpha() * limit_below;
        bound = std::min(bound, largest + (chain.beta() > 0 ? gained : 0));
      }
    }
    limit_below = rung.limit.value_or(Seconds(infinity)).value;
  }
  return std::max(0.0, std::min(bound, (chain.alpha() + chain.beta()) * limit_below));
}

}  // namespace isobar::proofs
