#include "allocators/planners/dtfm_compositions.hpp"

#include "allocators/bounds/comparisons.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <map>
#include <numeric>

namespace isobar::allocators {

namespace {

/// Divides things into sets whose members can be exchanged: numbers of the sets, by first appearance.
template <typename AreAlike>
std::vector<std::size_t> sets_of(std::size_t things, AreAlike are_alike)
{
  std::vector<std::size_t> set_of(things);
  std::vector<std::size_t> firsts;
  for (std::size_t i = 0; i < things; ++i) {
    const auto same =
        std::find_if(firsts.begin(), firsts.end(), [&](std::size_t first) { return are_alike(first, i); });
    set_of[i] = static_cast<std::size_t>(same - firsts.begin());
    if (same == firsts.end()) firsts.push_back(i);
  }
  return set_of;
}

/// The devices of a class in a stage, and the classes of the other stage that they reach.
struct ClassReach {
  unsigned devices;
  std::uint64_t reached;
};

/// Whether the devices of some classes, with those of any set of the others, reach at least as many devices.
bool every_set_finds(std::span<const ClassReach> others, unsigned devices, std::uint64_t reached,
                     std::span<const std::uint16_t> to)
{
  unsigned found = 0;
  for (std::uint64_t rest = reached; rest != 0; rest &= rest - 1) {
    found += to[static_cast<std::size_t>(std::countr_zero(rest))];
  }
  if (found < devices) return false;
  for (std::size_t i = 0; i < others.size(); ++i) {
    const auto& [more, further] = others[i];
    if (!every_set_finds(others.subspan(i + 1), devices + more, reached | further, to)) return false;
  }
  return true;
}

}  // namespace

DeviceClasses::DeviceClasses(const DtFmCosts& costs)
{
  const std::size_t devices = costs.devices();
  class_of_ = sets_of(devices, [&](std::size_t a, std::size_t b) {
    if (costs.sync(a, b) != costs.sync(b, a) || costs.pass(a, b) != costs.pass(b, a)) return false;
    for (std::size_t k = 0; k < devices; ++k) {
      if (k == a || k == b) continue;
      const bool is_alike = costs.sync(a, k) == costs.sync(b, k) && costs.sync(k, a) == costs.sync(k, b) &&
                            costs.pass(a, k) == costs.pass(b, k) && costs.pass(k, a) == costs.pass(k, b);
      if (!is_alike) return false;
    }
    return true;
  });
  members_.resize(*std::max_element(class_of_.begin(), class_of_.end()) + 1);
  for (std::size_t i = 0; i < devices; ++i) members_[class_of_[i]].push_back(i);
  const std::size_t classes = members_.size();
  for (const auto& members : members_) room_.push_back(static_cast<std::uint16_t>(members.size()));

  // A class of one device has no time within itself.
  const auto has_time = [&](std::size_t s, std::size_t t) { return s != t || room_[s] > 1; };
  const auto devices_of = [&](std::size_t s, std::size_t t) {
    return std::pair(members_[s].front(), s == t ? members_[s][1] : members_[t].front());
  };
  sync_.resize(classes * classes, 0);
  std::vector<double> pass(classes * classes, infinity);
  for (std::size_t s = 0; s < classes; ++s) {
    for (std::size_t t = 0; t < classes; ++t) {
      if (!has_time(s, t)) continue;
      const auto [from, to] = devices_of(s, t);
      sync_[s * classes + t] = costs.sync(from, to);
      pass[s * classes + t] = costs.pass(from, to);
      levels_.push_back(costs.pass(from, to));
    }
  }
  std::sort(levels_.begin(), levels_.end());
  levels_.erase(std::unique(levels_.begin(), levels_.end()), levels_.end());
  times_ = levels_;
  times_.push_back(infinity);
  for (const double time : pass) {
    level_.push_back(
        static_cast<std::size_t>(std::lower_bound(levels_.begin(), levels_.end(), time) - levels_.begin()));
  }
  kind_of_ = sets_of(classes, [&](std::size_t a, std::size_t b) {
    const auto at = [&](std::size_t s, std::size_t t) { return s * classes + t; };
    const auto are_equal = [&](std::size_t x, std::size_t y) { return sync_[x] == sync_[y] && pass[x] == pass[y]; };
    if (room_[a] != room_[b] || !are_equal(at(a, a), at(b, b)) || !are_equal(at(a, b), at(b, a))) return false;
    for (std::size_t k = 0; k < classes; ++k) {
      if (k == a || k == b) continue;
      if (!are_equal(at(a, k), at(b, k)) || !are_equal(at(k, a), at(k, b))) return false;
    }
    return true;
  });
  kinds_ = *std::max_element(kind_of_.begin(), kind_of_.end()) + 1;
  if (classes > most_device_classes) return;
  receivers_.resize(levels_.size(), std::vector<std::uint64_t>(classes, 0));
  senders_ = receivers_;
  for (std::size_t level = 0; level < levels_.size(); ++level) {
    for (std::size_t s = 0; s < classes; ++s) {
      for (std::size_t t = 0; t < classes; ++t) {
        if (level_[s * classes + t] > level) continue;
        receivers_[level][s] |= std::uint64_t{1} << t;
        senders_[level][t] |= std::uint64_t{1} << s;
      }
    }
  }
}

double DeviceClasses::sync_of(std::span<const std::uint16_t> stage) const
{
  double longest = 0;
  for (std::size_t s = 0; s < size(); ++s) {
    if (stage[s] == 0) continue;
    double time = -sync_[s * size() + s];
    for (std::size_t t = 0; t < size(); ++t) time += stage[t] * sync_[s * size() + t];
    longest = std::max(longest, time);
  }
  return longest;
}

std::size_t DeviceClasses::least_hop(std::span<const std::uint16_t> from, std::span<const std::uint16_t> to) const
{
  const std::size_t none = levels_.size();
  for (std::size_t s = 0; s < size(); ++s) {
    if (from[s] + to[s] > room_[s]) return none;
  }
  // The devices of one class need as many partners.
  const auto reached_by = [&](std::uint16_t devices, std::span<const std::uint16_t> others, std::size_t level,
                              const auto& level_to) {
    for (;; ++level) {
      unsigned found = 0;
      for (std::size_t t = 0; t < size(); ++t) found += level_to(t) <= level ? others[t] : 0U;
      if (found >= devices) return level;
    }
  };
  std::size_t level = 0;
  for (std::size_t s = 0; s < size(); ++s) {
    if (from[s] > 0) level = reached_by(from[s], to, level, [&](std::size_t t) { return level_[s * size() + t]; });
    if (to[s] > 0) level = reached_by(to[s], from, level, [&](std::size_t t) { return level_[t * size() + s]; });
  }
  return level;
}

std::size_t DeviceClasses::hop(std::span<const std::uint16_t> from, std::span<const std::uint16_t> to) const
{
  std::size_t level = least_hop(from, to);
  const auto classes_in = [](std::span<const std::uint16_t> stage) {
    return std::count_if(stage.begin(), stage.end(), [](std::uint16_t count) { return count > 0; });
  };
  const bool is_forward = classes_in(from) <= classes_in(to);
  while (level < levels_.size() &&
         !(is_forward ? is_enough(level, from, to, receivers_) : is_enough(level, to, from, senders_))) {
    ++level;
  }
  return level;
}

bool DeviceClasses::is_enough(std::size_t level, std::span<const std::uint16_t> from, std::span<const std::uint16_t> to,
                              const std::vector<std::vector<std::uint64_t>>& partners) const
{
  std::array<ClassReach, most_device_classes> classes;
  std::size_t count = 0;
  std::uint64_t present = 0;
  for (std::size_t s = 0; s < size(); ++s) {
    if (to[s] > 0) present |= std::uint64_t{1} << s;
  }
  for (std::size_t s = 0; s < size(); ++s) {
    if (from[s] > 0) classes[count++] = {from[s], partners[level][s] & present};
  }
  return every_set_finds({classes.data(), count}, 0, 0, to);
}

std::size_t number_of_compositions(const DeviceClasses& classes, std::size_t devices)
{
  if (classes.size() > most_device_classes) return most_compositions + 1;
  std::vector<std::size_t> ways(devices + 1, 0);  // of so many devices of the classes so far
  ways[0] = 1;
  for (std::size_t s = 0; s < classes.size(); ++s) {
    for (std::size_t sum = devices; sum > 0; --sum) {
      for (std::size_t count = 1; count <= std::min<std::size_t>(sum, classes.room(s)); ++count) {
        ways[sum] = std::min(ways[sum] + ways[sum - count], most_compositions + 1);
      }
    }
  }
  return ways[devices];
}

Compositions::Compositions(const DeviceClasses& classes, std::size_t devices) : stride(classes.size())
{
  std::vector<std::pair<double, ClassCounts>> found;
  ClassCounts current(stride, 0);
  std::size_t room_behind = std::accumulate(classes.rooms().begin(), classes.rooms().end(), std::size_t{0});
  const std::function<void(std::size_t, std::size_t, std::size_t)> add = [&](std::size_t s, std::size_t left,
                                                                             std::size_t room) {
    if (left > room) return;
    if (s == stride) {
      found.emplace_back(classes.sync_of(current), current);
      return;
    }
    for (std::size_t count = 0; count <= std::min<std::size_t>(left, classes.room(s)); ++count) {
      current[s] = static_cast<std::uint16_t>(count);
      add(s + 1, left - count, room - classes.room(s));
    }
    current[s] = 0;
  };
  add(0, devices, room_behind);
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::map<ClassCounts, std::size_t> first_of;  // by counts in falling order within each kind
  for (const auto& [time, stage] : found) {
    ClassCounts ordered(stride);
    std::vector<std::vector<std::uint16_t>> of_kind(classes.kinds());
    for (std::size_t s = 0; s < stride; ++s) of_kind[classes.kind_of(s)].push_back(stage[s]);
    for (auto& of_one : of_kind) std::sort(of_one.begin(), of_one.end());
    for (std::size_t s = 0; s < stride; ++s) {
      auto& of_one = of_kind[classes.kind_of(s)];
      ordered[s] = of_one.back();
      of_one.pop_back();
    }
    representative.push_back(first_of.emplace(ordered, sync.size()).first->second);
    counts.insert(counts.end(), stage.begin(), stage.end());
    sync.push_back(time);
  }
}

}  // namespace isobar::allocators
