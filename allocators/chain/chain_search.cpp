#include "allocators/chain/chain_search.hpp"

#include "core/errors.hpp"

#include <stdexcept>

// Functions that inner loops call are inline: the compiler merges them as it does with members defined in a class.
namespace isobar::allocators::chain_dp {

namespace {

template <Communication communication>
double stage_cost(double compute, double send)
{
  if constexpr (communication == Communication::None) return compute;
  if constexpr (communication == Communication::Overlapped) return std::max(compute, send);
  return compute + send;
}

/// What a pass limits: the cost, or for played transfers the compute only.
template <Communication communication>
double limited_cost(double compute, double send)
{
  return communication == Communication::Played ? compute : stage_cost<communication>(compute, send);
}

}  // namespace

template <Communication communication>
ChainSearch<communication>::ChainSearch(const CostModel& cost, const Goal& goal, double memory_factor,
                                        SearchClock& clock)
    : cost_(cost),
      goal_(goal),
      clock_(clock),
      layers_(cost.layers()),
      devices_(cost.devices()),
      reach_(cost, goal, memory_factor, [this] { clock_.leave_if_over(); }),
      beginnings_(cost, communication, reach_),
      work_(cost.work_kinds() * (layers_ + 1)),
      options_(reach_.levels() * devices_),
      return_paths_(devices_),
      paths_(devices_ * devices_)
{
  for (std::size_t device = 0; device < devices_; ++device) {
    clock.leave_if_over();
    seconds_per_flop_.push_back(1 / cost.rate(device).value);
    find_return_paths(device);
  }
}

template <Communication communication>
void ChainSearch<communication>::find_return_paths(std::size_t device)
{
  if constexpr (communication == Communication::None) {
    if (device > 0) return_paths_[device].push_back({});
    return;
  }
  for (std::size_t before = device; before-- > 0;) {
    const AffinePath path = affine_path(counted_path(communication, cost_.cluster().path(before, device)));
    const AffinePath back = affine_path(counted_path(communication, cost_.cluster().path(device, before)));
    paths_[device * devices_ + before] = path;
    beginnings_.add_path(before, path);
    beginnings_.add_path(device, back);
    auto& ways = return_paths_[device];
    auto way = std::find_if(ways.begin(), ways.end(), [&](const ReturnPath& known) {
      return known.path.latency == back.latency && known.path.per_byte == back.per_byte;
    });
    if (way == ways.end()) way = ways.insert(way, {back, {}});
    way->devices.push_back(static_cast<std::uint32_t>(before));
  }
}

template <Communication communication>
std::optional<Found> ChainSearch<communication>::within(double limit)
{
  return pass<false>(limit, infinity);
}

template <Communication communication>
std::optional<Found> ChainSearch<communication>::least_sum(double limit, double ceiling)
{
  return pass<true>(limit, ceiling);
}

template <Communication communication>
StagePlacement ChainSearch<communication>::overfull_beginning()
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

/// Fills in the work of the stages that begin at `first`, by their end.
template <Communication communication>
inline void ChainSearch<communication>::fill_work(std::size_t first)
{
  double* work = work_.data();
  for (std::size_t kind = 0; kind < cost_.work_kinds(); ++kind, work += layers_ + 1) {
    for (std::size_t end = first + 1; end <= layers_; ++end) {
      work[end] = (cost_.forward_work(first, end - 1, kind) + cost_.backward_work(first, end - 1, kind)).value;
    }
  }
}

// --- choices ---------------------------------------------------------------------------------------------------------

/// Calls visit(compute, option) for each end that the stage's memory and the limit allow and each option there;
/// work_ is that of `first`.
template <Communication communication>
template <typename Visit>
inline void ChainSearch<communication>::for_each_choice(std::size_t first, std::size_t device, std::size_t level,
                                                        const Visit& visit)
{
  const std::size_t furthest = reach_.furthest(level, device, first);
  if (furthest <= first) return;
  const Options& known = options(level, device);
  const double slowness = seconds_per_flop_[device];
  const double* work = &work_[cost_.work_kind(device) * (layers_ + 1)];
  for (std::size_t i = known.begin[first], end = known.begin[furthest]; i-- > end;) {
    const Option& option = known.all[i];
    const double compute = work[option.cut] * slowness;
    if (compute > limit_) {
      note_beyond_limit(compute);
      return;
    }
    if (reach_.fits(level, device, first, option.cut)) visit(compute, option);
  }
}

/// The choice whose cost without gradients is least: if any choice keeps the stage within the limit, this one does.
template <Communication communication>
inline Choice ChainSearch<communication>::least_partial_cost(std::size_t first, std::size_t device, std::size_t level)
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
template <Communication communication>
inline Choice ChainSearch<communication>::least_sum_choice(std::size_t first, std::size_t device, std::size_t level,
                                                           double gradient)
{
  gathered_.clear();
  Choice best;
  const double before = first == 0 ? 0 : beginnings_.least_before(device - 1, first);
  for_each_choice(first, device, level, [&](double compute, const Option& option) {
    const double stage = stage_cost<communication>(compute, gradient + option.send);
    const double sum = stage + option.rest;
    if (limited_cost<communication>(compute, gradient + option.send) > limit_ || sum + before >= ceiling_) return;
    gathered_.push_back({sum, compute, &option});
    if (sum < best.value) best = gathered_.back();
  });
  return best;
}

/// The least sum of the gathered choices for another time of the gradients.
template <Communication communication>
inline double ChainSearch<communication>::least_gathered_sum(double gradient) const
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

/// The least sum of the gathered choices for one time of the gradients. A larger time makes no sum smaller, so the
/// best choice for the least time remains the best as long as its own sum does not grow, or grows as every sum does.
template <Communication communication>
inline double ChainSearch<communication>::sum_with_gradient(double gradient, const Choice& best) const
{
  const double send = gradient + best.option->send;
  const double sum = stage_cost<communication>(best.compute, send) + best.option->rest;
  if (limited_cost<communication>(best.compute, send) <= limit_ &&
      (communication != Communication::Overlapped || sum == best.value))
    return sum;
  return least_gathered_sum(gradient);
}

// --- options ---------------------------------------------------------------------------------------------------------

/// Offers the devices of `way` the stage that begins at `cut` on `device` as their continuation.
template <Communication communication>
inline void ChainSearch<communication>::offer(const ReturnPath& way, std::size_t cut, std::size_t device,
                                              std::size_t level, double rest)
{
  const double bytes = cost_.boundary_output(cut).value;
  const std::size_t level_before = reach_.level_before(level);
  for (const std::uint32_t before : way.devices) {
    if (beginnings_.least_before(before, cut) + rest >= ceiling_) return;  // fewer devices cannot do better
    if (cut > beginnings_.furthest_end(before)) continue;
    const double send = paths_[device * devices_ + before].time(bytes);
    if (limited_cost<communication>(0, send) > limit_) {
      note_beyond_limit(send);
      continue;
    }
    add_option(options(level_before, before), {send, rest, static_cast<std::uint32_t>(cut),
                                               static_cast<std::uint32_t>(device), static_cast<std::uint32_t>(level)});
  }
}

template <Communication communication>
inline void ChainSearch<communication>::add_option(Options& known, const Option& option)
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

/// Ends a cut: fewer stages after a device need no more memory before it, so an option of a lower level beats an
/// equal one of a higher level.
template <Communication communication>
inline void ChainSearch<communication>::close_cut(std::size_t cut)
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
template <Communication communication>
template <bool sums>
inline void ChainSearch<communication>::settle(std::size_t first, std::size_t device, std::size_t level)
{
  const double bytes = cost_.boundary_gradient(first).value;
  const auto& ways = return_paths_[device];
  if constexpr (!sums) {
    const Choice choice = least_partial_cost(first, device, level);
    if (choice.option == nullptr) return;
    for (const auto& way : ways) {
      const double stage = choice.value + way.path.time(bytes);
      if (stage > limit_) {
        note_beyond_limit(stage);
      } else {
        offer(way, first, device, level, 0);
      }
    }
  } else {
    double least_gradient = infinity;
    for (const auto& way : ways) least_gradient = std::min(least_gradient, way.path.time(bytes));
    const Choice best = least_sum_choice(first, device, level, least_gradient);
    if (best.option == nullptr) return;
    for (const auto& way : ways) {
      const double rest = sum_with_gradient(way.path.time(bytes), best);
      if (rest < ceiling_) offer(way, first, device, level, rest);
    }
  }
}

/// Without communication the best stage after a cut is the same for every device before it.
template <Communication communication>
template <bool sums>
inline void ChainSearch<communication>::settle_without_transfers(std::size_t first)
{
  std::vector<Option> best(reach_.levels(), Option{0, infinity, static_cast<std::uint32_t>(first), 0, 0});
  for (std::size_t device = devices_; device-- > 0;) {
    for (std::size_t level = 0; level < reach_.levels(); ++level) {
      const bool useful = first <= beginnings_.furthest_end(device) && best[level].rest < infinity &&
                          best[level].rest + beginnings_.least_before(device, first) < ceiling_;
      if (useful) add_option(options(level, device), best[level]);
    }
    if (device == 0 || first > beginnings_.front(device)) continue;
    for (std::size_t level = 0; level < reach_.levels(); ++level) {
      const Choice choice = sums ? least_sum_choice(first, device, level, 0) : least_partial_cost(first, device, level);
      Option& known = best[reach_.level_before(level)];
      if (choice.value < known.rest) {
        known.rest = choice.value;
        known.device = static_cast<std::uint32_t>(device);
        known.level = static_cast<std::uint32_t>(level);
      }
    }
  }
}

// --- passes ----------------------------------------------------------------------------------------------------------

template <Communication communication>
template <bool sums>
inline std::optional<Found> ChainSearch<communication>::pass(double limit, double ceiling)
{
  clock_.spend_or_leave();
  limit_ = limit;
  ceiling_ = ceiling;
  next_limit_ = infinity;
  if (from_the_start_) {
    next_limit_ = beginnings_.find_fronts(limit);
  } else {
    beginnings_.open_fronts();
  }
  if constexpr (sums) beginnings_.find_least_sums(limit);
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
        if (first > beginnings_.front(device)) continue;
        for (std::size_t level = 0; level < reach_.levels(); ++level) settle<sums>(first, device, level);
      }
    }
    close_cut(first);
  }
  return begin_chain<sums>();
}

template <Communication communication>
template <bool sums>
inline std::optional<Found> ChainSearch<communication>::begin_chain()
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
template <Communication communication>
template <bool sums>
inline Found ChainSearch<communication>::trace(std::size_t device, std::size_t level)
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
      gradient = affine_path(counted_path(communication, cost_.cluster().path(next.device, device)))
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

template class ChainSearch<Communication::None>;
template class ChainSearch<Communication::Overlapped>;
template class ChainSearch<Communication::Serial>;
template class ChainSearch<Communication::Played>;

}  // namespace isobar::allocators::chain_dp
