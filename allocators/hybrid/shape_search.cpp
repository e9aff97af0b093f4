#include "allocators/hybrid/shape_search.hpp"

#include "allocators/fast_random.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace isobar::allocators {

namespace {

/// Devices of a kind that divide a layer: a stage without layers.
struct Group {
  std::size_t kind = 0;
  std::size_t tensor = 1;
};

class ShapeSearch {
 public:
  ShapeSearch(const ShapeCosts& costs, SearchedShapes searched, std::size_t most_replicas, std::uint64_t seed,
              std::size_t most, SearchClock& clock)
      : costs_(costs), searched_(searched), most_replicas_(most_replicas), random_(seed), most_(most), clock_(clock)
  {
    layers_ = costs.cost().layers();
  }

  std::vector<ShapedPlan> best(std::uint64_t moves, double heat)
  {
    add_starts();
    // The best starts are each improved for a part of the moves.
    constexpr std::size_t most_improved_shapes = 4;
    std::vector<std::vector<Shape>> starts;
    for (const auto& [step, shapes] : best_) {
      if (starts.size() < most_improved_shapes) starts.push_back(shapes);
    }
    for (const auto& start : starts) improve(start, moves / starts.size(), heat);
    std::vector<ShapedPlan> plans;
    for (const auto& [step, shapes] : best_) plans.push_back({shapes, *value(shapes)});
    return plans;
  }

 private:
  using Shapes = std::vector<Shape>;

  std::optional<ShapeEstimate> value(const Shapes& shapes) const
  {
    if (searched_ == SearchedShapes::Uniform && !have_equal_parts(shapes)) return std::nullopt;
    const auto times = costs_.times(shapes);
    const bool fits = std::all_of(times.begin(), times.end(), [](const ShapeTimes& one) { return one.fits; });
    auto estimate = fits ? costs_.estimate(shapes, times) : std::nullopt;
    if (searched_ == SearchedShapes::Any || !estimate) return estimate;
    const bool take_as_many =
        std::all_of(estimate->fewer.begin(), estimate->fewer.end(), [](std::size_t fewer) { return fewer == 0; });
    return take_as_many ? estimate : std::nullopt;
  }

  /// Whether all pipelines are alike, and all of their stages have as many shards.
  static bool have_equal_parts(const Shapes& shapes)
  {
    const auto& stages = shapes.front().stages;
    return std::all_of(shapes.begin(), shapes.end(), [&](const Shape& shape) {
      return shape.stages == stages && std::all_of(stages.begin(), stages.end(), [&](const ShapeStage& stage) {
               return stage.tensor == stages.front().tensor;
             });
    });
  }

  /// Keeps shapes among the best. Equal ones are found by their step first.
  void keep(Shapes shapes, Seconds step)
  {
    if (best_.size() == most_ && step >= best_.rbegin()->first) return;
    join_equal(shapes);
    const auto [begin, end] = best_.equal_range(step);
    if (std::any_of(begin, end, [&](const auto& known) { return known.second == shapes; })) return;
    best_.emplace(step, std::move(shapes));
    if (best_.size() > most_) best_.erase(std::prev(best_.end()));
  }

  /// Sorts shapes and makes copies of equal ones.
  static void join_equal(Shapes& shapes)
  {
    std::sort(shapes.begin(), shapes.end(), [](const Shape& a, const Shape& b) { return a.stages < b.stages; });
    std::size_t last = 0;
    for (std::size_t i = 1; i < shapes.size(); ++i) {
      if (shapes[i].stages == shapes[last].stages) {
        shapes[last].copies += shapes[i].copies;
      } else {
        if (++last < i) shapes[last] = std::move(shapes[i]);
      }
    }
    shapes.resize(last + 1);
  }

  void consider(const Shapes& shapes)
  {
    if (shapes.empty() || copies_of(shapes) > most_replicas_) return;
    if (const auto found = value(shapes)) keep(shapes, found->step);
  }

  /// The layers of a shape with these groups and that many pipelines in all, which fit into memory, so that the slowest
  /// stage is as fast as a search over limits finds; none if there are more groups than layers, or nothing fits.
  std::optional<std::vector<ShapeStage>> balanced(const std::vector<Group>& groups, std::size_t replicas) const
  {
    if (groups.empty() || groups.size() > layers_) return std::nullopt;
    const auto cut = [&](Seconds limit) -> std::optional<std::vector<ShapeStage>> {
      std::vector<ShapeStage> stages;
      std::size_t first = 0;
      for (std::size_t i = 0; i < groups.size(); ++i) {
        const std::size_t left = groups.size() - 1 - i;
        if (first + left >= layers_) return std::nullopt;
        ShapeStage stage{groups[i].kind, groups[i].tensor, first, first};
        const auto is_possible = [&] {
          return costs_.compute_time(stage) <= limit && costs_.fits(stage, left, replicas);
        };
        std::size_t low = first;  // the last layer that surely is within the limit, if the first one is
        std::size_t high = layers_ - 1 - left;
        while (low < high) {
          stage.last_layer = (low + high + 1) / 2;
          is_possible() ? low = stage.last_layer : high = stage.last_layer - 1;
        }
        stage.last_layer = low;
        if (!is_possible()) return std::nullopt;
        stages.push_back(stage);
        first = low + 1;
      }
      return first == layers_ ? std::optional(stages) : std::nullopt;
    };
    Seconds high;
    for (const auto& group : groups) {
      high = std::max(high, costs_.compute_time({group.kind, group.tensor, 0, layers_ - 1}));
    }
    auto found = cut(high);
    Seconds low;
    for (int i = 0; i < 12 && found; ++i) {
      const Seconds middle = (low + high) / 2.0;
      if (auto better = cut(middle)) {
        found = std::move(better);
        high = middle;
      } else {
        low = middle;
      }
    }
    return found;
  }

  std::optional<Shape> shape_of(const std::vector<Group>& groups, std::size_t copies, std::size_t replicas) const
  {
    auto stages = balanced(groups, replicas);
    if (!stages || copies == 0) return std::nullopt;
    return Shape{copies, std::move(*stages)};
  }

  static std::vector<Group> groups_of(const Shape& shape)
  {
    std::vector<Group> groups;
    for (const auto& stage : shape.stages) groups.push_back({stage.kind, stage.tensor});
    return groups;
  }

  // Starts.

  double speed_of(std::size_t kind) const { return costs_.cost().speed(costs_.kinds()[kind].devices.front()).value; }

  void sort_by_speed(std::vector<std::size_t>& kinds) const
  {
    std::stable_sort(kinds.begin(), kinds.end(),
                     [&](std::size_t a, std::size_t b) { return speed_of(a) > speed_of(b); });
  }

  /// All kinds, and those of each site: all of these, and all but the slowest ones, one after another.
  std::vector<std::vector<std::size_t>> selections() const
  {
    std::map<std::string, std::vector<std::size_t>> groups;
    std::vector<std::size_t> all(costs_.kinds().size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    for (const std::size_t kind : all) groups[site_of(kind)].push_back(kind);
    std::set<std::vector<std::size_t>> found;
    const auto add = [&](std::vector<std::size_t> kinds) {
      for (sort_by_speed(kinds); !kinds.empty(); kinds.pop_back()) {
        auto sorted = kinds;
        std::sort(sorted.begin(), sorted.end());
        found.insert(std::move(sorted));
      }
    };
    add(all);
    for (const auto& [site, kinds] : groups) add(kinds);
    return {found.begin(), found.end()};
  }

  const std::string& site_of(std::size_t kind) const
  {
    return costs_.cost().cluster().devices[costs_.kinds()[kind].devices.front()].site;
  }

  /// Some orders of kinds: as they are, by speed and backwards; of a few kinds all.
  std::vector<std::vector<std::size_t>> orders_of(std::vector<std::size_t> kinds) const
  {
    std::vector<std::vector<std::size_t>> orders;
    if (kinds.size() <= 3) {
      do {
        orders.push_back(kinds);
      } while (std::next_permutation(kinds.begin(), kinds.end()));
      return orders;
    }
    orders.push_back(kinds);
    orders.emplace_back(kinds.rbegin(), kinds.rend());
    sort_by_speed(kinds);
    orders.push_back(kinds);
    orders.emplace_back(kinds.rbegin(), kinds.rend());
    return orders;
  }

  /// Pipelines over some kinds, each with an equal part of their devices.
  std::vector<Shape> equal_pipelines(const std::vector<std::size_t>& order, std::size_t tensor,
                                     std::size_t copies) const
  {
    std::vector<Group> groups;
    for (const std::size_t kind : order) {
      const std::size_t number = costs_.kinds()[kind].devices.size() / tensor / copies;
      groups.insert(groups.end(), number, Group{kind, tensor});
    }
    if (groups.size() > layers_) groups.resize(layers_);
    const auto shape = shape_of(groups, copies, copies);
    return shape ? std::vector{*shape} : std::vector<Shape>();
  }

  void add_starts()
  {
    for (const auto& kinds : selections()) {
      std::size_t devices = 0;
      for (const std::size_t kind : kinds) devices += costs_.kinds()[kind].devices.size();
      const auto orders = orders_of(kinds);
      for (const std::size_t tensor : costs_.tensors()) {
        for (std::size_t copies = 1; copies <= std::min(devices, most_replicas_); ++copies) {
          if (copies > 8 && devices % copies != 0) continue;
          if (clock_.is_over() && !best_.empty()) return;
          for (const auto& order : orders) consider(equal_pipelines(order, tensor, copies));
        }
      }
    }
    add_mixed_starts();
  }

  /// Adds pipelines of each kind, or of each site, side by side.
  void add_mixed_starts()
  {
    std::map<std::string, std::vector<std::size_t>> sites;
    std::size_t devices = 0;
    const std::size_t count = costs_.kinds().size();
    for (std::size_t kind = 0; kind < count; ++kind) {
      devices += costs_.kinds()[kind].devices.size();
      sites[site_of(kind)].push_back(kind);
    }
    for (const std::size_t tensor : costs_.tensors()) {
      for (std::size_t length = 1; length <= std::min(devices, layers_); length *= 2) {
        Shapes by_kind;
        for (std::size_t kind = 0; kind < count; ++kind) add_pipelines(by_kind, {kind}, tensor, length);
        consider(by_kind);
        Shapes by_site;
        for (const auto& [site, kinds] : sites) add_pipelines(by_site, kinds, tensor, length);
        consider(by_site);
      }
      Shapes shortest;  // of each kind the shortest pipelines that fit into its memory
      for (std::size_t kind = 0; kind < count; ++kind) {
        for (std::size_t length = 1; length <= layers_; ++length) {
          Shapes one;
          add_pipelines(one, {kind}, tensor, length);
          if (one.empty()) continue;
          shortest.push_back(one.front());
          break;
        }
      }
      consider(shortest);
    }
  }

  void add_pipelines(Shapes& shapes, const std::vector<std::size_t>& kinds, std::size_t tensor,
                     std::size_t length) const
  {
    std::size_t groups = 0;
    for (const std::size_t kind : kinds) groups += costs_.kinds()[kind].devices.size() / tensor;
    const std::size_t copies = std::min(groups / length, most_replicas_ - std::min(most_replicas_, copies_of(shapes)));
    if (copies == 0) return;
    const auto more = equal_pipelines(kinds, tensor, copies);
    shapes.insert(shapes.end(), more.begin(), more.end());
  }

  // Moves.

  /// Another set of shapes, within the devices of each kind; none if the move is not possible.
  std::optional<Shapes> moved(const Shapes& shapes)
  {
    Shapes next = shapes;
    const std::size_t replicas = copies_of(shapes);
    const std::size_t chosen = random_.below(next.size());
    Shape& shape = next[chosen];
    const std::size_t at = random_.below(shape.stages.size());
    const auto rebalance = [&](const std::vector<Group>& groups) {
      auto stages = balanced(groups, replicas);
      if (!stages) return false;
      shape.stages = std::move(*stages);
      return true;
    };
    auto groups = groups_of(shape);
    const auto some_kind = [&] { return random_.below(costs_.kinds().size()); };
    switch (random_.below(12)) {
      case 0:
      case 1:
      case 2: {  // shift a cut
        if (at + 1 == shape.stages.size()) return std::nullopt;
        ShapeStage& left = shape.stages[at];
        ShapeStage& right = shape.stages[at + 1];
        const std::size_t by = 1 + random_.below(2);
        if (random_.below(2) == 0) {
          if (left.last_layer < left.first_layer + by) return std::nullopt;
          left.last_layer -= by;
          right.first_layer -= by;
        } else {
          if (right.last_layer < right.first_layer + by) return std::nullopt;
          left.last_layer += by;
          right.first_layer += by;
        }
        break;
      }
      case 3: {  // exchange two stages of a pipeline
        const std::size_t other = random_.below(shape.stages.size());
        std::swap(groups[at], groups[other]);
        if (!rebalance(groups)) return std::nullopt;
        break;
      }
      case 4: {  // exchange the devices of stages of two pipelines
        Shape& second = next[random_.below(next.size())];
        if (&second == &shape || second.copies != shape.copies) return std::nullopt;
        ShapeStage& other = second.stages[random_.below(second.stages.size())];
        std::swap(shape.stages[at].kind, other.kind);
        std::swap(shape.stages[at].tensor, other.tensor);
        auto both = groups_of(second);
        auto stages = balanced(both, replicas);
        if (!stages || !rebalance(groups_of(shape))) return std::nullopt;
        second.stages = std::move(*stages);
        break;
      }
      case 5: {  // leave a stage out, or move it to another pipeline
        const Group group = groups[at];
        groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(at));
        if (groups.empty()) {
          next.erase(next.begin() + static_cast<std::ptrdiff_t>(chosen));
          if (next.empty()) return std::nullopt;
        } else if (!rebalance(groups)) {
          return std::nullopt;
        }
        if (random_.below(2) == 0) break;
        Shape& second = next[random_.below(next.size())];
        auto more = groups_of(second);
        more.insert(more.begin() + static_cast<std::ptrdiff_t>(random_.below(more.size() + 1)), group);
        auto stages = balanced(more, replicas);
        if (!stages) return std::nullopt;
        second.stages = std::move(*stages);
        break;
      }
      case 6: {  // add a stage
        const Group group{some_kind(), groups[at].tensor};
        groups.insert(groups.begin() + static_cast<std::ptrdiff_t>(random_.below(groups.size() + 1)), group);
        if (!rebalance(groups)) return std::nullopt;
        break;
      }
      case 7:  // other devices
        groups[at].kind = some_kind();
        if (!rebalance(groups)) return std::nullopt;
        break;
      case 8:  // more or fewer copies
        if (random_.below(2) == 0) {
          ++shape.copies;
        } else if (--shape.copies == 0) {
          next.erase(next.begin() + static_cast<std::ptrdiff_t>(chosen));
          if (next.empty()) return std::nullopt;
        }
        break;
      case 9: {  // a copy of its own, or a further one
        Shape own = shape;
        own.copies = 1 + random_.below(shape.copies);
        if (own.copies == shape.copies) return std::nullopt;
        shape.copies -= own.copies;
        next.push_back(std::move(own));
        break;
      }
      case 10: {  // more or fewer shards of the stages of a kind
        const std::size_t kind = groups[at].kind;
        const bool more = random_.below(2) == 0;
        const std::size_t tensor = more ? groups[at].tensor * 2 : groups[at].tensor / 2;
        const auto known = costs_.tensors();
        if (std::find(known.begin(), known.end(), tensor) == known.end()) return std::nullopt;
        std::vector<Group> changed;
        bool is_second = false;
        for (const auto& group : groups) {
          if (group.kind != kind) {
            changed.push_back(group);
          } else if (!more || !is_second) {
            changed.insert(changed.end(), more ? 1 : 2, Group{kind, tensor});
          }
          if (group.kind == kind) is_second = !is_second;
        }
        if (!rebalance(changed)) return std::nullopt;
        break;
      }
      case 11: {  // join two pipelines, or cut one
        const std::size_t other = random_.below(next.size());
        if (other != chosen && next[other].copies == shape.copies) {
          const auto more = groups_of(next[other]);
          groups.insert(groups.end(), more.begin(), more.end());
          if (!rebalance(groups)) return std::nullopt;
          next.erase(next.begin() + static_cast<std::ptrdiff_t>(other));
        } else {
          if (at == 0) return std::nullopt;
          auto second =
              shape_of({groups.begin() + static_cast<std::ptrdiff_t>(at), groups.end()}, shape.copies, replicas);
          groups.resize(at);
          if (!second || !rebalance(groups)) return std::nullopt;
          next.push_back(std::move(*second));
        }
        break;
      }
      default:
        break;
    }
    if (copies_of(next) > most_replicas_) return std::nullopt;
    std::vector<std::size_t> used(costs_.kinds().size(), 0);
    for (const auto& one : next) {
      for (const auto& stage : one.stages) used[stage.kind] += one.copies * stage.tensor;
    }
    for (std::size_t kind = 0; kind < used.size(); ++kind) {
      if (used[kind] > costs_.kinds()[kind].devices.size()) return std::nullopt;
    }
    return next;
  }

  void improve(Shapes shapes, std::uint64_t moves, double first_heat)
  {
    auto current = value(shapes);
    if (!current) return;
    for (std::uint64_t i = 0; i < moves; ++i) {
      if (i % 64 == 0 && clock_.is_over()) return;
      if (!clock_.spend()) return;
      auto next = moved(shapes);
      if (!next) continue;
      const auto found = value(*next);
      if (!found) continue;
      const double heat = first_heat * (1 - static_cast<double>(i) / static_cast<double>(moves)) * current->step.value;
      const Seconds more = found->step - current->step;
      if (more > Seconds(0) && random_.uniform() >= std::exp(-more.value / std::max(heat, 1e-300))) continue;
      shapes = std::move(*next);
      current = found;
      keep(shapes, current->step);
    }
  }

  const ShapeCosts& costs_;
  SearchedShapes searched_;
  std::size_t most_replicas_;
  FastRandom random_;
  std::size_t most_;
  SearchClock& clock_;
  std::size_t layers_ = 0;
  std::multimap<Seconds, Shapes> best_;
};

}  // namespace

std::vector<ShapedPlan> search_shapes(const ShapeCosts& costs, SearchedShapes searched, std::size_t most_replicas,
                                      std::uint64_t seed, std::uint64_t moves, double heat, std::size_t most,
                                      SearchClock& clock)
{
  return ShapeSearch(costs, searched, most_replicas, seed, most, clock).best(moves, heat);
}

std::vector<Pipeline> pipelines_of(const ShapedPlan& plan, const std::vector<DeviceKind>& kinds, Layout layout)
{
  std::vector<std::size_t> used(kinds.size(), 0);
  std::vector<Pipeline> pipelines;
  const auto take = [&](const ShapeStage& stage) {
    const auto begin = kinds[stage.kind].devices.begin() + static_cast<std::ptrdiff_t>(used[stage.kind]);
    used[stage.kind] += stage.tensor;
    return PipelineStage{
        {begin, begin + static_cast<std::ptrdiff_t>(stage.tensor)}, stage.first_layer, stage.last_layer};
  };
  for (std::size_t i = 0; i < plan.shapes.size(); ++i) {
    const auto& [copies, stages] = plan.shapes[i];
    const std::size_t first = pipelines.size();
    for (std::size_t copy = 0; copy < copies; ++copy) {
      const bool takes_less = copy + plan.estimate.fewer[i] >= copies;
      pipelines.push_back({plan.estimate.microbatches[i] - (takes_less ? 1 : 0), {}});
      if (layout == Layout::StagesApart) continue;
      for (const auto& stage : stages) pipelines.back().stages.push_back(take(stage));
    }
    if (layout == Layout::ReplicasApart) continue;
    for (const auto& stage : stages) {
      for (std::size_t copy = 0; copy < copies; ++copy) pipelines[first + copy].stages.push_back(take(stage));
    }
  }
  return pipelines;
}

}  // namespace isobar::allocators
