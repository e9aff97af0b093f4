#pragma once

#include "allocators/chain/memory_reach.hpp"
#include "allocators/chain/path_table.hpp"
#include "allocators/search_clock.hpp"
#include "core/plan/cost_model.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <vector>

/// The dynamic programme of chain-dp, for one limit at a time; chain_dp.cpp asks it until the goal is met.
namespace isobar::allocators::chain_dp {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
/// Costs closer than this (relative) count as equal; well above the rounding of a sum, well below what is promised.
inline constexpr double resolution = 1e-13;

/// Leaves a search from any depth; the best plan so far is kept outside.

struct Found {
  std::vector<StagePlacement> stages;
  double bottleneck = 0;
  double sum = 0;
};

using Link = AffinePath;

inline Link link_of(const Path& path)
{
  return {path.latency.value, 1 / path.bandwidth.value};
}

/// Devices before one device, last first, to which its gradients take the same time.
struct WayBack {
  Link link;
  std::vector<std::uint32_t> devices;
};

/// One way to go on behind a cut: what the stage before it sends, and what all stages behind it cost.
struct Option {
  double send = 0;
  double rest = 0;
  std::uint32_t cut = 0;
  std::uint32_t device = 0;
  std::uint32_t level = 0;
};

/// The options of one device at one level, cut after cut from the last; those of `cut` are [begin[cut], begin[cut-1][.
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

template <Communication communication>
double stage_cost(double compute, double send)
{
  if constexpr (communication == Communication::None) return compute;
  if constexpr (communication == Communication::Overlapped) return std::max(compute, send);
  return compute + send;
}

/// What the limit of a pass is on: the cost, but for played transfers what the device computes.
template <Communication communication>
double limited_cost(double compute, double send)
{
  return communication == Communication::Played ? compute : stage_cost<communication>(compute, send);
}

/// The dynamic programme over one cost model and goal. The communication is a template parameter because the inner
/// loops consist of it. Played stands for serial sums under limits on compute alone, which least_sum() takes.
template <Communication communication>
class ChainSearch {
 public:
  ChainSearch(const CostModel& cost, const Goal& goal, double memory_factor, SearchClock& clock)
      : cost_(cost),
        goal_(goal),
        clock_(clock),
        layers_(cost.layers()),
        devices_(cost.devices()),
        reach_(cost, goal, memory_factor, [this] { clock_.leave_if_over(); }),
        work_(layers_ + 1),
        front_(devices_),
        furthest_end_(devices_),
        least_before_(devices_ * layers_),
        options_(reach_.levels() * devices_),
        ways_back_(devices_),
        links_(devices_ * devices_),
        best_link_(devices_, Link{infinity, infinity})
  {
    for (std::size_t device = 0; device < devices_; ++device) {
      clock.leave_if_over();
      seconds_per_flop_.push_back(1 / cost.speed(device).value);
      find_ways_back(device);
    }
  }

  /// Some plan whose stages all cost at most `limit`; none when there is none, and then next_limit() is the least limit
  /// at which that could change.
  std::optional<Found> within(double limit) { return pass<false>(limit, infinity); }
  double next_limit() const { return next_limit_; }

  /// The plan of least sum among those whose stages all cost at most `limit`; none when that sum reaches `ceiling`.
  std::optional<Found> least_sum(double limit, double ceiling = infinity) { return pass<true>(limit, ceiling); }

  /// When no plan exists: the stage that the chain's beginning would have to be so that all behind it fits.
  StagePlacement overfull_beginning()
  {
    from_the_start_ = false;
    pass<false>(infinity, infinity);
    from_the_start_ = true;
    for (std::size_t first = 1; first < layers_; ++first) {
      for (std::size_t device = 0; device < devices_; ++device) {
        for (std::size_t level = 0; level < reach_.levels(); ++level) {
          fill_work(first);
          const Choice choice = least_partial_cost(first, device, level);
          if (choice.option != nullptr) return {device, 0, choice.option->cut - 1};
        }
      }
    }
    throw std::logic_error("each layer fits on a device, so the last one has a state");
  }

 private:
  void find_ways_back(std::size_t device)
  {
    if constexpr (communication == Communication::None) {
      if (device > 0) ways_back_[device].push_back({});
      return;
    }
    for (std::size_t before = device; before-- > 0;) {
      links_[device * devices_ + before] = link_of(counted_path(communication, cost_.cluster().path(before, device)));
      const Link link = link_of(counted_path(communication, cost_.cluster().path(device, before)));
      improve_best_link(before, links_[device * devices_ + before]);
      improve_best_link(device, link);
      auto& ways = ways_back_[device];
      auto way = std::find_if(ways.begin(), ways.end(), [&](const WayBack& known) {
        return known.link.latency == link.latency && known.link.per_byte == link.per_byte;
      });
      if (way == ways.end()) way = ways.insert(way, {link, {}});
      way->devices.push_back(static_cast<std::uint32_t>(before));
    }
  }

  void improve_best_link(std::size_t from, const Link& link)
  {
    best_link_[from].latency = std::min(best_link_[from].latency, link.latency);
    best_link_[from].per_byte = std::min(best_link_[from].per_byte, link.per_byte);
  }

  double work(std::size_t first, std::size_t end) const
  {
    return (cost_.forward_work(first, end - 1) + cost_.backward_work(first, end - 1)).value;
  }

  /// Work of the stages that begin at `first`, by their end.
  void fill_work(std::size_t first)
  {
    for (std::size_t end = first + 1; end <= layers_; ++end) work_[end] = work(first, end);
  }

  Options& options(std::size_t level, std::size_t device) { return options_[level * devices_ + device]; }
  const Options& options(std::size_t level, std::size_t device) const { return options_[level * devices_ + device]; }

  /// A value above the limit was met: below it the same limits give the same pass.
  void note_beyond_limit(double value) { next_limit_ = std::min(next_limit_, value); }

  /// How far the devices get at most, were transfers free and memory as at the end of the chain: states beyond are
  /// unreachable.
  void find_fronts()
  {
    if (!from_the_start_) {
      std::fill(front_.begin(), front_.end(), layers_);
      std::fill(furthest_end_.begin(), furthest_end_.end(), layers_);
      return;
    }
    std::size_t front = 0;
    for (std::size_t device = 0; device < devices_; ++device) {
      front_[device] = front;
      if (front == layers_) {
        furthest_end_[device] = layers_;
        continue;
      }
      // Nearer beginnings reach less far in work, so the furthest beginning bounds them all.
      std::size_t low = front;
      std::size_t high = reach_.furthest_up_to(device, front);
      while (low < high) {
        const std::size_t end = (low + high + 1) / 2;
        const double compute = work(front, end) * seconds_per_flop_[device];
        if (compute <= limit_) {
          low = end;
        } else {
          note_beyond_limit(compute);
          high = end - 1;
        }
      }
      furthest_end_[device] = low;
      front = std::max(front, low);
    }
  }

  /// What one device can add to a beginning of the chain under the limit: so much work, at so much time per FLOP.
  struct Filling {
    double most_work;
    double seconds_per_flop;
  };

  /// least_before_: the layers before a cut, cut anywhere, on the devices up to one, each within the limit, those first
  /// that take least time for their work. Under serial communication a full device spends part of the limit on its two
  /// cheapest transfers; less than full it only fares worse. The first stage sends no gradients, so it can hold more
  /// than a full device: that much work is left out.
  void bound_beginnings()
  {
    std::vector<Filling> fillings;
    double least_input = infinity;
    for (std::size_t device = 0; device < devices_; ++device) {
      least_input =
          std::min(least_input,
                   stage_cost<communication>(0, CostModel::counted(communication, cost_.input_transfer(device)).value));
      double output = infinity;    // least over a cut so far
      double gradient = infinity;  // likewise
      double left_out = 0;
      double full_work = 0;  // of the devices that are full
      double full_time = 0;
      std::size_t full = 0;
      for (std::size_t cut = 1; cut < layers_; ++cut) {
        const double cut_output = cost_.boundary_output(cut).value;
        const double cut_gradient = cost_.boundary_gradient(cut).value;
        const bool is_cheaper = cut_output < output || cut_gradient < gradient;
        if (cut == 1 || (communication == Communication::Serial && is_cheaper)) {
          output = std::min(output, cut_output);
          gradient = std::min(gradient, cut_gradient);
          left_out = fill_devices(device, output, gradient, fillings);
          full_work = full_time = 0;
          full = 0;
        }
        const double work_before = work(0, cut) - left_out;
        while (full < fillings.size() && work_before - full_work > fillings[full].most_work) {
          full_work += fillings[full].most_work;
          full_time += limit_;
          ++full;
        }
        const double rest = std::max(0.0, work_before - full_work);
        const double least = full < fillings.size()            ? full_time + rest * fillings[full].seconds_per_flop
                             : rest > resolution * work_before ? infinity
                                                               : full_time;
        least_before_[device * layers_ + cut] = (least_input + least) * (1 - resolution);
      }
    }
  }

  /// The fillings of devices 0..last, quickest first. Returns the work that the first stage can hold beyond its own.
  double fill_devices(std::size_t last, double output, double gradient, std::vector<Filling>& fillings) const
  {
    fillings.clear();
    double most_left_out = 0;
    for (std::size_t device = 0; device <= last; ++device) {
      double transfers = 0;
      if constexpr (communication == Communication::Serial) {
        if (devices_ > 1) {
          const double back = best_link_[device].time(gradient);
          transfers = best_link_[device].time(output) + back;
          most_left_out = std::max(most_left_out, back / seconds_per_flop_[device]);
        }
      }
      if (transfers >= limit_) continue;
      const double compute_fraction = limit_ < infinity ? 1 - transfers / limit_ : 1;
      fillings.push_back(
          {(limit_ - transfers) / seconds_per_flop_[device], seconds_per_flop_[device] / compute_fraction});
    }
    std::sort(fillings.begin(), fillings.end(),
              [](const Filling& a, const Filling& b) { return a.seconds_per_flop < b.seconds_per_flop; });
    return most_left_out;
  }

  /// Calls visit(compute, option) for each end that the stage's memory and the limit allow and each option there;
  /// work_ is that of `first`.
  template <typename Visit>
  void for_each_choice(std::size_t first, std::size_t device, std::size_t level, const Visit& visit)
  {
    const std::size_t furthest = reach_.furthest(level, device, first);
    if (furthest <= first) return;
    const Options& known = options(level, device);
    const double slowness = seconds_per_flop_[device];
    for (std::size_t i = known.begin[first], end = known.begin[furthest]; i-- > end;) {
      const Option& option = known.all[i];
      const double compute = work_[option.cut] * slowness;
      if (compute > limit_) {
        note_beyond_limit(compute);
        return;
      }
      if (reach_.fits(level, device, first, option.cut)) visit(compute, option);
    }
  }

  /// The choice whose cost without gradients is least: with it a stage stays within the limit if with any.
  Choice least_partial_cost(std::size_t first, std::size_t device, std::size_t level)
  {
    Choice best;
    for_each_choice(first, device, level, [&](double compute, const Option& option) {
      const double partial = communication == Communication::None         ? 0
                             : communication == Communication::Overlapped ? option.send
                                                                          : compute + option.send;
      if (partial < best.value) best = {partial, compute, &option};
    });
    return best;
  }

  /// The choice of least sum when the stage's gradients take `gradient`. Gathers the choices that can be part of a plan
  /// below the ceiling with this gradient or a larger one.
  Choice least_sum_choice(std::size_t first, std::size_t device, std::size_t level, double gradient)
  {
    gathered_.clear();
    Choice best;
    const double before = first == 0 ? 0 : least_before_[(device - 1) * layers_ + first];
    for_each_choice(first, device, level, [&](double compute, const Option& option) {
      const double stage = stage_cost<communication>(compute, gradient + option.send);
      const double sum = stage + option.rest;
      if (limited_cost<communication>(compute, gradient + option.send) > limit_ || sum + before >= ceiling_) return;
      gathered_.push_back({sum, compute, &option});
      if (sum < best.value) best = gathered_.back();
    });
    return best;
  }

  /// The gathered choice of least sum for another time of the gradients.
  double least_gathered_sum(double gradient) const
  {
    double least = infinity;
    for (const Choice& choice : gathered_) {
      const double send = gradient + choice.option->send;
      const double stage = stage_cost<communication>(choice.compute, send);
      if (limited_cost<communication>(choice.compute, send) <= limit_)
        least = std::min(least, stage + choice.option->rest);
    }
    return least;
  }

  /// Offers the devices of `way` the stage that begins at `cut` on `device` as what follows.
  void offer(const WayBack& way, std::size_t cut, std::size_t device, std::size_t level, double rest)
  {
    const double bytes = cost_.boundary_output(cut).value;
    const std::size_t level_before = reach_.level_before(level);
    for (const std::uint32_t before : way.devices) {
      if (least_before_[before * layers_ + cut] + rest >= ceiling_) return;  // so it is with fewer devices
      if (cut > furthest_end_[before]) continue;
      const double send = links_[device * devices_ + before].time(bytes);
      if (limited_cost<communication>(0, send) > limit_) {
        note_beyond_limit(send);
        continue;
      }
      add_option(options(level_before, before),
                 {send, rest, static_cast<std::uint32_t>(cut), static_cast<std::uint32_t>(device),
                  static_cast<std::uint32_t>(level)});
    }
  }

  static bool beats(const Option& a, const Option& b) { return a.send <= b.send && a.rest <= b.rest; }

  static void add_option(Options& known, const Option& option)
  {
    for (std::size_t i = known.begin[option.cut]; i < known.all.size();) {
      if (beats(known.all[i], option)) return;
      if (beats(option, known.all[i])) {
        known.all[i] = known.all.back();
        known.all.pop_back();
      } else {
        ++i;
      }
    }
    known.all.push_back(option);
  }

  /// Ends a cut: fewer stages behind a device need no more memory before it, so an option of a lower level beats an
  /// equal one of a higher level.
  void close_cut(std::size_t cut)
  {
    for (std::size_t device = 0; device < devices_; ++device) {
      for (std::size_t level = 0; level < reach_.levels(); ++level) {
        Options& known = options(level, device);
        const auto is_beaten = [&](const Option& option) {
          for (std::size_t lower = 0; lower < level; ++lower) {
            const Options& other = options(lower, device);
            for (std::size_t i = other.begin[cut]; i < other.begin[cut - 1]; ++i) {
              if (beats(other.all[i], option)) return true;
            }
          }
          return false;
        };
        if (level > 0) {
          known.all.erase(std::remove_if(known.all.begin() + known.begin[cut], known.all.end(), is_beaten),
                          known.all.end());
        }
        known.begin[cut - 1] = static_cast<std::uint32_t>(known.all.size());
      }
    }
  }

  /// Settles the states that begin at `first` on `device`: offers each to the devices before it.
  template <bool sums>
  void settle(std::size_t first, std::size_t device, std::size_t level)
  {
    const double bytes = cost_.boundary_gradient(first).value;
    const auto& ways = ways_back_[device];
    if constexpr (!sums) {
      const Choice choice = least_partial_cost(first, device, level);
      if (choice.option == nullptr) return;
      for (const auto& way : ways) {
        const double stage = choice.value + way.link.time(bytes);
        if (stage > limit_) {
          note_beyond_limit(stage);
        } else {
          offer(way, first, device, level, 0);
        }
      }
    } else {
      double least_gradient = infinity;
      for (const auto& way : ways) least_gradient = std::min(least_gradient, way.link.time(bytes));
      const Choice best = least_sum_choice(first, device, level, least_gradient);
      if (best.option == nullptr) return;
      for (const auto& way : ways) {
        const double rest = sum_with_gradient(way.link.time(bytes), best);
        if (rest < ceiling_) offer(way, first, device, level, rest);
      }
    }
  }

  /// The least sum of the gathered choices for one time of the gradients. A larger time makes no sum smaller, so the
  /// best choice for the least time remains the best as long as its own sum does not grow, or grows as every sum does.
  double sum_with_gradient(double gradient, const Choice& best) const
  {
    const double send = gradient + best.option->send;
    const double sum = stage_cost<communication>(best.compute, send) + best.option->rest;
    if (limited_cost<communication>(best.compute, send) <= limit_ &&
        (communication != Communication::Overlapped || sum == best.value))
      return sum;
    return least_gathered_sum(gradient);
  }

  /// Without communication the best stage behind a cut is the same for every device before it.
  template <bool sums>
  void settle_without_transfers(std::size_t first)
  {
    std::vector<Option> best(reach_.levels(), Option{0, infinity, static_cast<std::uint32_t>(first), 0, 0});
    for (std::size_t device = devices_; device-- > 0;) {
      for (std::size_t level = 0; level < reach_.levels(); ++level) {
        const bool useful = first <= furthest_end_[device] && best[level].rest < infinity &&
                            best[level].rest + least_before_[device * layers_ + first] < ceiling_;
        if (useful) add_option(options(level, device), best[level]);
      }
      if (device == 0 || first > front_[device]) continue;
      for (std::size_t level = 0; level < reach_.levels(); ++level) {
        const Choice choice =
            sums ? least_sum_choice(first, device, level, 0) : least_partial_cost(first, device, level);
        Option& known = best[reach_.level_before(level)];
        if (choice.value < known.rest) {
          known.rest = choice.value;
          known.device = static_cast<std::uint32_t>(device);
          known.level = static_cast<std::uint32_t>(level);
        }
      }
    }
  }

  template <bool sums>
  std::optional<Found> pass(double limit, double ceiling)
  {
    clock_.spend_or_leave();
    limit_ = limit;
    ceiling_ = ceiling;
    next_limit_ = infinity;
    find_fronts();
    if constexpr (sums) bound_beginnings();
    for (auto& known : options_) {
      known.all.clear();
      known.begin.assign(layers_ + 1, 0);
    }
    for (std::size_t device = 0; device < devices_; ++device) {
      options(0, device).all.push_back({0, 0, static_cast<std::uint32_t>(layers_), 0, 0});
    }
    close_cut(layers_);
    for (std::size_t first = layers_; --first > 0;) {
      clock_.leave_if_over();
      fill_work(first);
      if constexpr (communication == Communication::None) {
        settle_without_transfers<sums>(first);
      } else {
        for (std::size_t device = 1; device < devices_; ++device) {
          if (first > front_[device]) continue;
          for (std::size_t level = 0; level < reach_.levels(); ++level) settle<sums>(first, device, level);
        }
      }
      close_cut(first);
    }
    return begin_chain<sums>();
  }

  template <bool sums>
  std::optional<Found> begin_chain()
  {
    fill_work(0);
    double best = ceiling_;
    StagePlacement begin;
    std::size_t begin_level = 0;
    bool found = false;
    for (std::size_t device = 0; device < devices_; ++device) {
      const double input =
          stage_cost<communication>(0, CostModel::counted(communication, cost_.input_transfer(device)).value);
      if (limited_cost<communication>(0, input) > limit_) {
        note_beyond_limit(input);
        continue;
      }
      for (std::size_t level = 0; level < reach_.levels(); ++level) {
        const Choice choice = sums ? least_sum_choice(0, device, level, 0) : least_partial_cost(0, device, level);
        if (choice.option == nullptr) continue;
        if (choice.value > limit_ && !sums) {
          note_beyond_limit(choice.value);
          continue;
        }
        const double sum = sums ? input + choice.value : 0;
        if (sum >= best) continue;
        best = sum;
        begin.device = device;
        begin_level = level;
        found = true;
      }
    }
    if (!found) return std::nullopt;
    return trace<sums>(begin.device, begin_level);
  }

  /// Makes the choices again, from the first stage on.
  template <bool sums>
  Found trace(std::size_t device, std::size_t level)
  {
    Found found;
    double gradient = 0;
    for (std::size_t first = 0; first < layers_;) {
      fill_work(first);
      const Choice choice =
          sums ? least_sum_choice(first, device, level, gradient) : least_partial_cost(first, device, level);
      ensure(choice.option != nullptr, "a state that was settled has a choice");
      const Option next = *choice.option;
      found.stages.push_back({device, first, next.cut - 1});
      if (communication != Communication::None && next.cut < layers_) {
        gradient = link_of(counted_path(communication, cost_.cluster().path(next.device, device)))
                       .time(cost_.boundary_gradient(next.cut).value);
      }
      first = next.cut;
      device = next.device;
      level = next.level;
    }
    const auto evaluation = cost_.evaluate(found.stages, goal_);
    found.bottleneck = evaluation.bottleneck.value;
    found.sum = evaluation.sum.value;
    return found;
  }

  const CostModel& cost_;
  Goal goal_;
  SearchClock& clock_;
  std::size_t layers_;
  std::size_t devices_;
  MemoryReach reach_;
  std::vector<double> seconds_per_flop_;
  bool from_the_start_ = true;  // leave out states that no plan reaches
  double limit_ = infinity;
  double ceiling_ = infinity;
  double next_limit_ = infinity;
  std::vector<double> work_;               // of the stage from the state's layer, by its end
  std::vector<std::size_t> front_;         // the furthest layer at which a stage on the device can begin
  std::vector<std::size_t> furthest_end_;  // the furthest end of a stage on the device
  std::vector<double> least_before_;  // [device][cut]: least sum of the stages before a cut, the last on the device
  std::vector<Choice> gathered_;
  std::vector<Options> options_;  // [level][device]
  std::vector<std::vector<WayBack>> ways_back_;
  std::vector<Link> links_;      // [to][from], from < to
  std::vector<Link> best_link_;  // of each device: the least latency and most bandwidth that it sends by
};

}  // namespace isobar::allocators::chain_dp
