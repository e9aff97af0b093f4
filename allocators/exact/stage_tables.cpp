#include "allocators/exact/stage_tables.hpp"

#include "allocators/bounds/comparisons.hpp"

#include <map>
#include <numeric>
#include <stdexcept>
#include <tuple>

namespace isobar::allocators {

namespace {

/// Number of groups when there are too many places.
constexpr std::size_t coarse_groups = 4;

bool same_path(const Path& a, const Path& b)
{
  return a.latency == b.latency && a.bandwidth == b.bandwidth;
}

/// Returns the place of each device: exchanging devices of one place changes no path.
std::vector<std::size_t> places_of(const Cluster& cluster, const std::function<void()>& each_device)
{
  const std::size_t devices = cluster.devices.size();
  std::vector<Path> paths(devices * devices);
  for (std::size_t i = 0; i < devices; ++i) {
    each_device();
    for (std::size_t j = 0; j < devices; ++j) {
      if (i != j) paths[i * devices + j] = cluster.path(i, j);
    }
  }
  const auto interchangeable = [&](std::size_t i, std::size_t j) {
    if (!same_path(paths[i * devices + j], paths[j * devices + i])) return false;
    for (std::size_t k = 0; k < devices; ++k) {
      if (k == i || k == j) continue;
      if (!same_path(paths[i * devices + k], paths[j * devices + k])) return false;
      if (!same_path(paths[k * devices + i], paths[k * devices + j])) return false;
    }
    return true;
  };
  std::vector<std::size_t> representatives;
  std::vector<std::size_t> place(devices);
  for (std::size_t i = 0; i < devices; ++i) {
    each_device();
    std::size_t candidate = 0;
    while (candidate < representatives.size() && !interchangeable(representatives[candidate], i)) ++candidate;
    if (candidate == representatives.size()) representatives.push_back(i);
    place[i] = candidate;
  }
  return place;
}

/// Merges places into groups: by site if there are at most `most` sites, else into `otherwise` groups by the devices'
/// best bandwidth.
std::vector<std::size_t> coarser(const Cluster& cluster, std::size_t most, std::size_t otherwise)
{
  const std::size_t devices = cluster.devices.size();
  std::vector<std::size_t> group(devices);
  std::map<std::string, std::size_t> sites;
  for (std::size_t i = 0; i < devices; ++i) {
    group[i] = sites.emplace(cluster.devices[i].site, sites.size()).first->second;
  }
  if (sites.size() > 1 && sites.size() <= most) return group;
  most = otherwise;
  std::vector<double> best(devices, 0);
  for (std::size_t i = 0; i < devices; ++i) {
    for (std::size_t j = 0; j < devices; ++j) {
      if (i != j) best[i] = std::max(best[i], cluster.path(i, j).bandwidth.value);
    }
  }
  std::vector<std::size_t> order(devices);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return best[a] > best[b]; });
  for (std::size_t rank = 0; rank < devices; ++rank) group[order[rank]] = rank * most / devices;
  return group;
}

}  // namespace

ObjectiveWeights weights_of(const Goal& goal)
{
  switch (goal.objective) {
    case Objective::Sequential:
      return {0, 1};
    case Objective::Bottleneck:
      return {1, 0};
    case Objective::Pipeline:
      return {static_cast<double>(goal.microbatches - 1), 1};
    case Objective::Step:
      if (require_chain_schedule(goal.schedule) == ChainSchedule::Sequential) {
        return {0, static_cast<double>(goal.microbatches)};
      }
      return {static_cast<double>(goal.microbatches - 1), 1};
    case Objective::DtFm:
      break;
  }
  throw std::logic_error("DT-FM's cost is no sum of stages' costs");
}

StageTables::StageTables(const CostModel& cost, const Goal& goal, std::size_t most_groups,
                         const std::function<void()>& each_step, std::size_t most_levels)
    : cost_(&cost),
      goal_(goal),
      schedule_(require_chain_schedule(goal.schedule)),
      weights_(weights_of(goal)),
      layers_(cost.layers()),
      size_of_cut_(layers_ + 1, 0),
      reach_(cost, goal, 1, each_step)
{
  for (std::size_t kind = 0; kind < cost.work_kinds(); ++kind) {
    forward_.push_back(0);
    work_.push_back(0);
    for (std::size_t end = 1; end <= layers_; ++end) {
      forward_.push_back(cost.forward_work(0, end - 1, kind).value);
      work_.push_back(forward_.back() + cost.backward_work(0, end - 1, kind).value);
    }
  }
  find_levels(most_levels);
  find_kinds(most_groups, each_step);
  tabulate_transfers();
  is_hereditary_ = goal_.communication == Communication::None && reach_.is_hereditary();
}

void StageTables::find_levels(std::size_t most_levels)
{
  levels_ = reach_.levels();
  const std::uint64_t microbatches = goal_.microbatches;
  const std::size_t most_stages = std::min(layers_, cost_->devices());
  if (limits_turns() && schedule_ == ChainSchedule::OneForwardOneBackward) {
    const std::size_t distinct = std::min<std::uint64_t>(microbatches, most_stages);
    levels_ = std::max(levels_, std::min(distinct, most_levels));
  }
  for (std::size_t level = 0; level < levels_; ++level) {
    const std::size_t most_behind = level + 1 < levels_ ? level : std::max(level, most_stages - 1);
    const auto held = std::min<std::uint64_t>(microbatches, most_behind + 1);
    const auto others = static_cast<double>(microbatches - 1);
    both_.push_back(microbatches > 1 ? static_cast<double>(microbatches - held) / others : 1);
  }
}

void StageTables::find_kinds(std::size_t most_groups, const std::function<void()>& each_device)
{
  const Cluster& cluster = cost_->cluster();
  const std::size_t devices = cluster.devices.size();
  std::vector<std::size_t> place(devices, 0);
  if (goal_.communication != Communication::None) place = places_of(cluster, each_device);
  std::vector<std::size_t> group = place;
  groups_ = *std::max_element(group.begin(), group.end()) + 1;
  places_are_exact_ = groups_ <= most_groups;
  if (!places_are_exact_) {
    // The cost of a pass grows with the square of the groups, unless sums are separable.
    const bool is_serial = goal_.communication == Communication::Serial && weights_.alpha == 0;
    const std::size_t most = limits_turns() || is_serial ? most_groups : std::min(most_groups, coarse_groups);
    // With one group a pass is quick, and without sites it proves about as much for turns.
    group = coarser(cluster, most, limits_turns() ? 1 : most);
    groups_ = *std::max_element(group.begin(), group.end()) + 1;
  }
  places_ = *std::max_element(place.begin(), place.end()) + 1;
  paths_.assign(places_ * places_, Path{Seconds(0), BytesPerSecond(infinity)});
  if (goal_.communication != Communication::None) {
    for (std::size_t i = 0; i < devices; ++i) {
      for (std::size_t j = 0; j < devices; ++j) {
        if (i != j) paths_[place[i] * places_ + place[j]] = counted_path(goal_.communication, cluster.path(i, j));
      }
    }
  }
  std::map<std::tuple<std::size_t, double, std::size_t, double, double, double>, std::uint32_t> known;
  for (std::size_t i = 0; i < devices; ++i) {
    const TransferTimes input_transfer = cost_->input_transfer(i);
    double input = CostModel::counted(goal_.communication, input_transfer).value;
    double input_turn = 0;
    if (limits_turns()) {
      // The step counts the input once. With one micro-batch at a time, no lane delays the next input.
      input /= weights_.beta;
      if (goal_.communication != Communication::None && weights_.alpha > 0) input_turn = input_transfer.data.value;
    }
    const std::size_t work = cost_->work_kind(i);
    const auto key =
        std::tuple(place[i], cost_->rate(i).value, work, cluster.devices[i].memory.value, input, input_turn);
    const auto [entry, is_new] = known.emplace(key, static_cast<std::uint32_t>(known.size()));
    if (is_new) {
      devices_of_kind_.emplace_back();
      group_of_kind_.push_back(static_cast<std::uint32_t>(group[i]));
      place_of_kind_.push_back(static_cast<std::uint32_t>(place[i]));
      slowness_.push_back(1 / cost_->rate(i).value);
      least_slowness_.push_back(1 / cost_->speed(i).value);
      row_.push_back(work * (layers_ + 1));
      input_.push_back(input);
      input_turn_.push_back(input_turn);
    }
    devices_of_kind_[entry->second].push_back(static_cast<std::uint32_t>(i));
    kind_of_device_.push_back(entry->second);
  }
}

void StageTables::tabulate_transfers()
{
  if (goal_.communication == Communication::None) {
    output_.assign(kinds(), 0);
    gradient_.assign(kinds(), 0);
    return;
  }
  std::map<std::pair<double, double>, std::uint32_t> known;
  for (std::size_t cut = 0; cut <= layers_; ++cut) {
    const std::pair bytes(cost_->boundary_output(cut).value, cost_->boundary_gradient(cut).value);
    const auto [entry, is_new] = known.emplace(bytes, static_cast<std::uint32_t>(known.size()));
    if (is_new) {
      output_bytes_.emplace_back(bytes.first);
      gradient_bytes_.emplace_back(bytes.second);
    }
    size_of_cut_[cut] = entry->second;
  }
  sizes_ = known.size();
  if (limits_turns()) {
    transfers_within(infinity, output_, gradient_);
    return;
  }
  output_.assign(kinds() * sizes_ * groups_, infinity);
  gradient_.assign(kinds() * sizes_ * groups_, infinity);
  for (std::size_t kind = 0; kind < kinds(); ++kind) {
    const std::size_t from = devices_of_kind_[kind].front();
    for (std::size_t to = 0; to < devices(); ++to) {
      if (to == from) continue;
      const Path path = counted_path(goal_.communication, cost_->cluster().path(from, to));
      const std::size_t group = group_of_kind_[kind_of_device_[to]];
      for (std::size_t size = 0; size < sizes_; ++size) {
        const std::size_t at = (kind * sizes_ + size) * groups_ + group;
        output_[at] = std::min(output_[at], path.transfer_time(output_bytes_[size]).value);
        gradient_[at] = std::min(gradient_[at], path.transfer_time(gradient_bytes_[size]).value);
      }
    }
  }
}

void StageTables::transfers_within(double limit, std::vector<double>& outputs, std::vector<double>& gradients) const
{
  outputs.assign(kinds() * sizes_ * groups_, infinity);
  gradients.assign(outputs.size(), infinity);
  // With all forwards before all backwards, a micro-batch takes a turn of both lanes over a cut.
  const bool are_apart = schedule_ == ChainSchedule::GPipe;
  const auto turn = [&](double activations, double gradient) {
    return are_apart ? activations + gradient : std::max(activations, gradient);
  };
  for (std::size_t kind = 0; kind < kinds(); ++kind) {
    for (std::size_t other = 0; other < kinds(); ++other) {
      if (other == kind && devices_of_kind_[kind].size() == 1) continue;
      const Path& there = path(kind, other);
      const Path& back = path(other, kind);
      for (std::size_t size = 0; size < sizes_; ++size) {
        const Bytes output = output_bytes_[size];
        const Bytes gradient = gradient_bytes_[size];
        const std::size_t at = (kind * sizes_ + size) * groups_ + group_of_kind_[other];
        if (turn(there.data_time(output).value, back.data_time(gradient).value) <= limit) {
          outputs[at] = std::min(outputs[at], there.transfer_time(output).value);
        }
        if (turn(back.data_time(output).value, there.data_time(gradient).value) <= limit) {
          gradients[at] = std::min(gradients[at], there.transfer_time(gradient).value);
        }
      }
    }
  }
}

std::vector<double> StageTables::by_device(const std::vector<double>& by_kind) const
{
  std::vector<double> values;
  for (const std::uint32_t kind : kind_of_device_) values.push_back(by_kind[kind]);
  return values;
}

std::vector<std::size_t> StageTables::groups_of_devices() const
{
  std::vector<std::size_t> groups;
  if (groups_ == 1) return groups;
  for (const std::uint32_t kind : kind_of_device_) groups.push_back(group_of_kind_[kind]);
  return groups;
}

}  // namespace isobar::allocators
