#include "allocators/tiers/window.hpp"

#include "allocators/bounds/comparisons.hpp"
#include "allocators/tiers/tier_plans.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace isobar::allocators {

namespace {

/// With more layers that pass, fewer of their divisions into a prefix and a spread rest are tried.
constexpr std::size_t most_layers_with_all_spreads = 32;
constexpr std::size_t spreads_of_many = 4;
/// With more layers, numbers of resident layers are tried in steps first, and then around the best one.
constexpr std::size_t most_layers_searched_whole = 128;
constexpr std::size_t coarse_parts = 16;
constexpr std::size_t refinement = 4;
/// Divisions of the places in a row that make the step no shorter.
constexpr int most_worse = 2;

/// Which layers stay: `resident` in all, of which `part` of `parts` are spread over those after the prefix.
struct Division {
  std::size_t resident = 0;
  std::size_t part = 0;
  std::size_t parts = 1;

  std::size_t spread() const { return resident * part / parts; }
};

struct Candidate {
  Division division;
  WindowShape shape;
  std::size_t places = 0;  // for parameters and gradients together
  double bound = 0;        // s
};

class WindowSearch {
 public:
  WindowSearch(const WindowCosts& costs, SearchClock& clock) : costs_(costs), clock_(clock)
  {
    for (std::size_t i = 1; i + 1 < costs.layers(); ++i) {
      has_activations_ = has_activations_ || costs.activation_bytes(i).value > 0;
    }
  }

  /// The shape with the least step; none if none fits.
  std::optional<WindowShape> best()
  {
    std::size_t stride = coarse_stride();
    const bool is_whole = stride == 1;
    for (std::size_t resident = 0; resident < blocks(); resident += stride) add_candidates(resident);
    add_candidates(blocks());
    try_candidates(is_whole);
    if (!best_ && !is_whole) {  // few numbers fit, between those
      for (std::size_t resident = 0; resident < blocks(); ++resident) add_candidates(resident);
      try_candidates(false);
    }
    while (best_ && stride > 1 && !is_cut_short_) {
      const std::size_t finer = (stride + refinement - 1) / refinement;
      const Division kept = best_division_;
      const std::size_t first = kept.resident - std::min(kept.resident, stride);
      for (std::size_t resident = first; resident <= std::min(blocks(), kept.resident + stride); resident += finer) {
        add_candidate({resident, kept.part, kept.parts}, best_->stores_activations, best_->overlap);
      }
      stride = finer;
      try_candidates(stride == 1);
    }
    if (best_ && blocks() <= most_layers_with_all_spreads) exchange();
    if (best_) shrink();
    return best_;
  }

  bool is_cut_short() const { return is_cut_short_; }

  /// What the shape needs that lacks least if nothing fits.
  WindowMemory nearest() const
  {
    std::optional<WindowMemory> nearest;
    std::pair<double, double> least;
    std::size_t best = 0;
    std::size_t stride = coarse_stride();
    const auto try_numbers = [&](std::size_t first, std::size_t end) {
      for (std::size_t resident = first; resident < end; resident += stride) {
        const WindowMemory memory = least_memory(resident);
        const auto lack = lack_of(memory);
        if (nearest && lack >= least) continue;
        nearest = memory;
        least = lack;
        best = resident;
      }
    };
    for (try_numbers(0, blocks()); stride > 1;) {
      const std::size_t around = stride;
      stride = (stride + refinement - 1) / refinement;
      try_numbers(best - std::min(best, around), std::min(blocks(), best + around + 1));
    }
    return nearest.value_or(costs_.memory_of(shape_of(0, 0)));
  }

 private:
  std::size_t blocks() const { return costs_.layers() - 2; }

  std::size_t coarse_stride() const
  {
    return blocks() <= most_layers_searched_whole ? 1 : (blocks() + coarse_parts - 1) / coarse_parts;
  }

  /// The least that a prefix of this number of resident layers needs.
  WindowMemory least_memory(std::size_t resident) const
  {
    WindowShape shape = shape_of(resident, 0);
    shape.parameter_slots = shape.gradient_slots = 1;
    if (costs_.machine().disk) shape.spilled = shape.windowed();
    shape.stores_activations = costs_.memory_of(shape).device > costs_.device().memory;
    return costs_.memory_of(shape);
  }

  /// What is missing on the device, and in the machine.
  std::pair<double, double> lack_of(const WindowMemory& memory) const
  {
    const auto excess = [](Bytes need, Bytes has) { return std::max(0.0, (need - has).value); };
    const auto& disk = costs_.machine().disk;
    return {excess(memory.device, costs_.device().memory),
            excess(memory.host, costs_.machine().memory) + (disk ? excess(memory.disk, disk->capacity) : 0)};
  }

  /// The first and the last layer stay, a prefix of others, and `spread` of the rest, evenly spread.
  WindowShape shape_of(std::size_t prefix, std::size_t spread) const
  {
    WindowShape shape;
    shape.is_resident.assign(costs_.layers(), false);
    shape.is_resident.front() = shape.is_resident.back() = true;
    for (std::size_t i = 0; i < prefix; ++i) shape.is_resident[1 + i] = true;
    const std::size_t rest = blocks() - prefix;
    for (std::size_t i = 0; i < spread; ++i) shape.is_resident[1 + prefix + (2 * i + 1) * rest / (2 * spread)] = true;
    return shape;
  }

  void add_candidates(std::size_t resident)
  {
    if (!costs_.may_fit(resident)) return;
    const bool tries_all = blocks() <= most_layers_with_all_spreads;
    const std::size_t parts = tries_all ? std::max<std::size_t>(resident, 1) : spreads_of_many;
    for (std::size_t part = 0; part <= parts; ++part) {
      const Division division{resident, part, parts};
      if (part > 0 && division.spread() == Division{resident, part - 1, parts}.spread()) continue;
      for (const bool stores_activations : {false, true}) {
        for (const auto overlap : {UpdateOverlap::Step, UpdateOverlap::NextForward}) {
          add_candidate(division, stores_activations, overlap);
        }
      }
    }
  }

  /// Tries the candidates with the least bounds first, as long as these are below the least step: with all divisions of
  /// their places, or with one.
  void try_candidates(bool divides)
  {
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) { return a.bound < b.bound; });
    for (const auto& candidate : candidates_) {
      if (best_ && candidate.bound >= least_ * (1 - tolerance)) break;
      if (!try_places(candidate, divides)) break;
    }
    candidates_.clear();
  }

  void add_candidate(const Division& division, bool stores_activations, UpdateOverlap overlap)
  {
    WindowShape shape = shape_of(division.resident - division.spread(), division.spread());
    shape.stores_activations = stores_activations;
    const std::size_t windowed = shape.windowed();
    if (windowed == 0 && overlap != UpdateOverlap::Step) return;
    if (stores_activations && !has_activations_) return;
    shape.overlap = overlap;
    if (!spill(shape)) return;
    const WindowMemory fixed = costs_.memory_of(shape);
    const auto [parameters, gradients] = costs_.places_of(shape);
    Candidate candidate;
    if (windowed > 0) {
      // Memory is linear in the places.
      WindowShape with_one = shape;
      with_one.parameter_slots = 1;
      const Bytes place = costs_.memory_of(with_one).device - fixed.device;
      const Bytes free = costs_.device().memory - fixed.device;
      if (place.value <= 0 || free.value < 0) return;
      const double fit = std::floor(free / std::max(place, place * (gradients / parameters)) + tolerance);
      candidate.places = static_cast<std::size_t>(std::min(fit, 2.0 * static_cast<double>(windowed)));
      if (candidate.places < 2) return;
    } else if (fixed.device > costs_.device().memory) {
      return;
    }
    candidate.bound = bound_of(shape, candidate.places);
    candidate.division = division;
    candidate.shape = std::move(shape);
    candidates_.push_back(std::move(candidate));
  }

  /// Puts states of the last layers on the disk until the rest fits on the host; false if it never does.
  bool spill(WindowShape& shape) const
  {
    const auto fits = [&](std::size_t spilled) {
      shape.spilled = spilled;
      const WindowMemory memory = costs_.memory_of(shape);
      return memory.host <= costs_.machine().memory &&
             (spilled == 0 || (costs_.machine().disk && memory.disk <= costs_.machine().disk->capacity));
    };
    if (fits(0)) return true;
    if (!costs_.machine().disk) return false;
    std::size_t low = 0;
    std::size_t high = shape.windowed();
    while (high - low > 1) {
      const std::size_t middle = (low + high) / 2;
      shape.spilled = middle;
      (costs_.memory_of(shape).host <= costs_.machine().memory ? high : low) = middle;
    }
    return fits(high);
  }

  /// What no step of the shape with `places` places in all is below, as far as its own lanes tell.
  double bound_of(const WindowShape& shape, std::size_t places) const
  {
    double compute = 0;
    double in = 0;
    double out = 0;
    double updates = 0;
    double forwards = 0;
    double last_updates = 0;  // the most that remains when a backward ends
    for (std::size_t i = 0; i < costs_.layers(); ++i) {
      compute += costs_.forward(i) + costs_.backward(i);
      forwards += costs_.forward(i);
    }
    double backwards = compute - forwards;
    double skipped_forwards = 0;  // of the layers before the first one that passes
    bool has_passed = false;
    for (std::size_t i = 0; i < costs_.layers(); ++i) {
      if (!shape.is_resident[i]) {
        has_passed = true;
        in += 2 * (costs_.parameter_bytes(i) / costs_.rates().in.bandwidth).value;
        out += (costs_.parameter_bytes(i) / costs_.rates().out.bandwidth).value;
        updates += costs_.update_time(i);
        const double before =
            forwards - (shape.overlap == UpdateOverlap::NextForward ? skipped_forwards : 0) + backwards;
        last_updates = std::max(last_updates, before + updates);
      }
      if (!has_passed) skipped_forwards += costs_.forward(i);
      backwards -= costs_.backward(i);
    }
    for (std::size_t i = 1; i + 1 < costs_.layers() && shape.stores_activations; ++i) {
      const Bytes stored = costs_.microbatches() * costs_.activation_bytes(i);
      in += (stored / costs_.rates().in.bandwidth).value;
      out += (stored / costs_.rates().out.bandwidth).value;
    }
    in -= static_cast<double>(places) * (costs_.places_of(shape).first / costs_.rates().in.bandwidth).value;
    return std::max({compute, in, out, updates, last_updates});
  }

  /// Divides the places of a candidate between parameters and gradients; false if the search is over.
  bool try_places(const Candidate& candidate, bool divides)
  {
    const std::size_t windowed = candidate.shape.windowed();
    if (windowed == 0) return try_shape(candidate.shape, candidate.division).has_value();
    std::optional<double> least;
    int worse = 0;
    for (std::size_t gradients = divides || candidate.places < 3 ? 1 : 2;
         gradients < candidate.places && gradients <= windowed && worse < most_worse;
         gradients = gradients < 4 ? gradients + 1 : 2 * gradients) {
      WindowShape shape = candidate.shape;
      shape.gradient_slots = gradients;
      shape.parameter_slots = std::min(candidate.places - gradients, windowed);
      const auto step = try_shape(shape, candidate.division);
      if (!step) return false;
      if (!divides) return true;
      worse = !least || *step < *least ? 0 : worse + 1;
      least = std::min(*step, least.value_or(*step));
      if (candidate.bound >= least_ * (1 - tolerance)) return true;
    }
    return true;
  }

  /// The step of a shape, which is kept if it is the least; none if the search is over.
  std::optional<double> try_shape(const WindowShape& shape, const Division& division)
  {
    if (clock_.is_over() || !clock_.spend()) {
      is_cut_short_ = true;
      return std::nullopt;
    }
    const double step = costs_.step_of(shape).value;
    if (best_ && step >= least_ * (1 - tolerance)) return step;
    best_ = shape;
    best_division_ = division;
    least_ = step;
    return step;
  }

  bool fits(const WindowShape& shape) const
  {
    const WindowMemory memory = costs_.memory_of(shape);
    const auto& disk = costs_.machine().disk;
    return memory.device <= costs_.device().memory && memory.host <= costs_.machine().memory &&
           (memory.disk.value <= 0 || (disk && memory.disk <= disk->capacity));
  }

  /// Exchanges a layer that stays and one that passes, as long as that makes the step shorter.
  void exchange()
  {
    for (bool is_better = true; is_better;) {
      is_better = false;
      for (std::size_t i = 1; i <= blocks() && !is_better; ++i) {
        for (std::size_t j = 1; j <= blocks() && !is_better; ++j) {
          if (!best_->is_resident[i] || best_->is_resident[j]) continue;
          WindowShape next = *best_;
          next.is_resident[i] = false;
          next.is_resident[j] = true;
          const double before = least_;
          if (!fits(next)) continue;
          if (!try_shape(next, best_division_)) return;
          is_better = least_ < before;
        }
      }
    }
  }

  /// Gives up places that the best step does not need.
  void shrink()
  {
    if (best_->windowed() == 0) return;
    for (std::size_t WindowShape::*slots : {&WindowShape::parameter_slots, &WindowShape::gradient_slots}) {
      std::size_t low = 0;  // too few
      std::size_t high = (*best_).*slots;
      while (high - low > 1) {
        WindowShape fewer = *best_;
        fewer.*slots = (low + high) / 2;
        (costs_.step_of(fewer).value <= least_ * (1 + tolerance) ? high : low) = fewer.*slots;
      }
      (*best_).*slots = high;
    }
  }

  const WindowCosts& costs_;
  SearchClock& clock_;
  bool has_activations_ = false;
  std::vector<Candidate> candidates_;
  std::optional<WindowShape> best_;
  Division best_division_;
  double least_ = 0;
  bool is_cut_short_ = false;
};

}  // namespace

std::optional<WindowShape> best_window(const WindowCosts& costs, SearchClock& clock)
{
  return WindowSearch(costs, clock).best();
}

WindowMemory nearest_window(const WindowCosts& costs)
{
  SearchClock clock({});
  return WindowSearch(costs, clock).nearest();
}

Proposals propose_windows(const HybridProblem& problem)
{
  require_passing(problem, window_allocator.name);
  SearchClock clock(problem.limits);
  Proposals proposals;
  std::vector<std::string> reasons;
  for (const std::size_t device : kinds_with_machine(problem.cluster)) {
    const WindowCosts costs(problem.workload, problem.cluster, device, problem.goal.microbatches, "");
    WindowSearch search(costs, clock);
    const auto shape = search.best();
    proposals.is_cut_short = proposals.is_cut_short || search.is_cut_short();
    if (shape) {
      proposals.plans.push_back(plan_of(problem, costs.stages_of(*shape)));
    } else if (!search.is_cut_short()) {
      reasons.push_back(what_lacks(costs, search.nearest()));
    }
  }
  if (proposals.plans.empty()) proposals.reason = reason_of(problem.cluster, reasons);
  return proposals;
}

}  // namespace isobar::allocators
