#include "allocators/mix/placements.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace isobar::allocators {

namespace {

/// What is placed so far.
struct Load {
  Seconds longest;              ///< step alone, or sum of work on a device or link
  double squares = 0;           ///< sum over steps and resources
  std::vector<Seconds> busy;    ///< of each resource
  std::vector<Bytes> resident;  ///< in each place
  std::vector<Bytes> activations;
  Seconds device_time;  ///< sum over devices
};

class PlacementSearch {
 public:
  PlacementSearch(const PlacementProblem& problem, std::size_t count, std::uint64_t most_steps)
      : problem_(problem), count_(count), steps_left_(most_steps), choices_(problem.jobs.size())
  {
    const std::size_t jobs = problem.jobs.size();
    std::vector<Seconds> least_alone;
    std::vector<Seconds> least_time;
    for (const auto& choices : problem.jobs) {
      ensure(!choices.empty(), "a job without a choice of devices");
      Seconds alone(std::numeric_limits<double>::infinity());
      Seconds time = alone;
      for (const auto& choice : choices) {
        alone = std::min(alone, choice.alone);
        time = std::min(time, device_time(choice));
      }
      least_alone.push_back(alone);
      least_time.push_back(time);
    }
    order_.resize(jobs);
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    // Long jobs first, and jobs of one kind in sequence.
    std::ranges::stable_sort(order_, [&](std::size_t a, std::size_t b) {
      if (least_alone[a] != least_alone[b]) return least_alone[a] > least_alone[b];
      return problem.kinds[a] < problem.kinds[b];
    });
    longest_from_.assign(jobs + 1, Seconds(0));
    time_from_.assign(jobs + 1, Seconds(0));
    for (std::size_t i = jobs; i-- > 0;) {
      longest_from_[i] = std::max(longest_from_[i + 1], least_alone[order_[i]]);
      time_from_[i] = time_from_[i + 1] + least_time[order_[i]];
    }
    found_.bound = Seconds(std::numeric_limits<double>::infinity());
  }

  JointPlacements run()
  {
    Load load;
    load.busy.resize(problem_.resources);
    load.resident.resize(problem_.memory.size());
    load.activations.resize(problem_.memory.size());
    place_from(0, load);
    for (auto& leaf : leaves_) found_.best.push_back({std::move(leaf.choices), leaf.round});
    if (!found_.best.empty()) found_.bound = std::min(found_.bound, found_.best.front().round);
    return std::move(found_);
  }

 private:
  struct Leaf {
    std::vector<std::size_t> choices;
    Seconds round;
    double squares;

    bool is_better_than(Seconds other_round, double other_squares) const
    {
      return round != other_round ? round < other_round : squares <= other_squares;
    }
  };
  struct Extension {
    std::size_t choice;
    Seconds bound;
    Load load;
  };

  Seconds device_time(const PlacedStep& step) const
  {
    Seconds time;
    for (const auto& [resource, busy] : step.busy) {
      if (resource < problem_.devices) time += busy;
    }
    return time;
  }

  /// Adds a step to a load. Returns false if it does not fit in memory.
  bool add(const PlacedStep& step, Load& load) const
  {
    for (const auto& [place, resident, activations] : step.memory) {
      load.resident[place] += resident;
      load.activations[place] = std::max(load.activations[place], activations);
      if (load.resident[place] + load.activations[place] > problem_.memory[place]) return false;
    }
    load.longest = std::max(load.longest, step.alone);
    load.squares += step.alone.value * step.alone.value;
    for (const auto& [resource, busy] : step.busy) {
      Seconds& sum = load.busy[resource];
      load.squares += (2 * sum.value + busy.value) * busy.value;
      sum += busy;
      load.longest = std::max(load.longest, sum);
      if (resource < problem_.devices) load.device_time += busy;
    }
    return true;
  }

  /// Of all placements of the jobs from the i-th on, beside this load.
  Seconds bound_of(const Load& load, std::size_t i) const
  {
    const Seconds bound = std::max(load.longest, longest_from_[i]);
    if (problem_.devices == 0) return bound;
    // A sum has rounding errors, and may not exclude a placement that is equal.
    constexpr double rounding = 1 - 1e-12;
    return std::max(bound, rounding / static_cast<double>(problem_.devices) * (load.device_time + time_from_[i]));
  }

  bool is_excluded(Seconds bound, double squares) const
  {
    return leaves_.size() == count_ && leaves_.back().is_better_than(bound, squares);
  }

  void place_from(std::size_t i, const Load& load)
  {
    if (i == order_.size()) {
      const auto behind = std::ranges::find_if(
          leaves_, [&](const Leaf& leaf) { return !leaf.is_better_than(load.longest, load.squares); });
      leaves_.insert(behind, Leaf{choices_, load.longest, load.squares});
      if (leaves_.size() > count_) leaves_.pop_back();
      return;
    }
    const std::size_t job = order_[i];
    // Jobs of one kind take their choices in rising order: trading places changes nothing.
    const bool follows_its_kind = i > 0 && problem_.kinds[order_[i - 1]] == problem_.kinds[job];
    std::vector<Extension> extensions;
    for (std::size_t choice = follows_its_kind ? choices_[order_[i - 1]] : 0; choice < problem_.jobs[job].size();
         ++choice) {
      if (steps_left_ == 0) {
        found_.is_exact = false;
        found_.bound = std::min(found_.bound, bound_of(load, i));
        break;
      }
      --steps_left_;
      Extension extension{choice, {}, load};
      if (!add(problem_.jobs[job][choice], extension.load)) continue;
      extension.bound = bound_of(extension.load, i + 1);
      if (!is_excluded(extension.bound, extension.load.squares)) extensions.push_back(std::move(extension));
    }
    std::ranges::stable_sort(extensions, [](const Extension& a, const Extension& b) {
      return a.bound != b.bound ? a.bound < b.bound : a.load.squares < b.load.squares;
    });
    for (const auto& [choice, bound, next] : extensions) {
      if (is_excluded(bound, next.squares)) continue;
      choices_[job] = choice;
      place_from(i + 1, next);
    }
  }

  const PlacementProblem& problem_;
  std::size_t count_;
  std::uint64_t steps_left_;
  std::vector<std::size_t> order_;
  std::vector<Seconds> longest_from_;  // the longest least step alone of the jobs from the i-th in `order_` on
  std::vector<Seconds> time_from_;     // the sum of their least device times
  std::vector<std::size_t> choices_;
  std::vector<Leaf> leaves_;  // at most count_, the best first
  JointPlacements found_;
};

}  // namespace

std::vector<std::vector<std::size_t>> device_groups(std::size_t devices, std::size_t most)
{
  ensure(devices > 0 && most > 0, "groups of no device");
  std::vector<std::size_t> whole(devices);
  std::iota(whole.begin(), whole.end(), std::size_t{0});
  std::vector<std::vector<std::size_t>> groups = {whole};
  constexpr std::size_t most_of_subsets = 20;
  if (devices <= most_of_subsets && (std::size_t{1} << devices) - 1 <= most) {
    for (std::size_t mask = 1; mask + 1 < std::size_t{1} << devices; ++mask) {
      std::vector<std::size_t> group;
      for (const std::size_t device : whole) {
        if ((mask >> device & 1) != 0) group.push_back(device);
      }
      groups.push_back(std::move(group));
    }
    return groups;
  }
  std::size_t units = 1;
  while (units < devices && (units + 1) * (units + 2) / 2 <= most) ++units;
  for (std::size_t begin = 0; begin < units; ++begin) {
    for (std::size_t end = begin + 1; end <= units; ++end) {
      if (end - begin == units) continue;
      groups.emplace_back(whole.begin() + static_cast<std::ptrdiff_t>(begin * devices / units),
                          whole.begin() + static_cast<std::ptrdiff_t>(end * devices / units));
    }
  }
  return groups;
}

JointPlacements best_placements(const PlacementProblem& problem, std::size_t count, std::uint64_t most_steps)
{
  ensure(problem.kinds.size() == problem.jobs.size() && count > 0, "a placement of no job");
  return PlacementSearch(problem, count, most_steps).run();
}

}  // namespace isobar::allocators
