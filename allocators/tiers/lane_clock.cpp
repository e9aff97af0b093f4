#include "allocators/tiers/lane_clock.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <limits>

namespace isobar::allocators {

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

}  // namespace

void LaneClock::Item::add(Need need)
{
  if (need.count == 0) return;
  const auto free = std::find_if(needs.begin(), needs.end(), [&](const Need& each) {
    return each.count == 0 || (each.lane == need.lane && each.periods_back == need.periods_back);
  });
  ensure(free != needs.end(), "an item has at most three needs");
  if (need.count > free->count) *free = need;
}

std::size_t LaneClock::add(Lane lane, const Item& item)
{
  items_[lane].push_back(item);
  return items_[lane].size() - 1;
}

Seconds LaneClock::time_of(std::uint64_t counted, std::uint64_t periods, FlopsPerSecond idle_rate,
                           FlopsPerSecond busy_rate) const
{
  struct State {
    std::uint64_t done = 0;  // items of all periods
    std::uint64_t period = 0;
    std::size_t at = 0;  // the next or running item
    bool is_running = false;
    double end = never;  // of the running item; of lane Host: see `left`
  };
  std::array<State, lane_count> lanes;
  double left = 0;  // work of the running update
  double now = 0;
  std::vector<double> ends(periods, 0);
  const auto is_met = [&](const Need& need, std::uint64_t period) {
    if (need.count == 0 || need.periods_back > period) return true;
    return lanes[need.lane].done >= (period - need.periods_back) * items_[need.lane].size() + need.count;
  };
  const auto may_start = [&](std::size_t lane) {
    const State& state = lanes[lane];
    if (state.is_running || items_[lane].empty() || state.period == periods) return false;
    // No lane is more than a period ahead of another.
    if (state.at == 0 && state.period >= 2) {
      for (std::size_t other = 0; other < lane_count; ++other) {
        if (lanes[other].done < (state.period - 1) * items_[other].size()) return false;
      }
    }
    const auto& needs = items_[lane][state.at].needs;
    return std::all_of(needs.begin(), needs.end(), [&](const Need& need) { return is_met(need, state.period); });
  };
  const auto complete = [&](std::size_t lane) {
    State& state = lanes[lane];
    state.is_running = false;
    state.end = never;
    ++state.done;
    ends[state.period] = std::max(ends[state.period], now);
    if (++state.at < items_[lane].size()) return;
    state.at = 0;
    ++state.period;
  };
  for (;;) {
    for (bool has_started = true; has_started;) {
      has_started = false;
      for (std::size_t lane = 0; lane < lane_count; ++lane) {
        if (!may_start(lane)) continue;
        has_started = true;
        lanes[lane].is_running = true;
        const double amount = items_[lane][lanes[lane].at].amount;
        if (lane == Host) {
          left = amount;
        } else {
          lanes[lane].end = now + amount;
        }
        if (amount <= 0) complete(lane);
      }
    }
    const double rate = (lanes[Compute].is_running ? busy_rate : idle_rate).value;
    double next = lanes[Host].is_running ? now + left / rate : never;
    std::size_t first = Host;
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      if (lane == Host || lanes[lane].end >= next) continue;
      next = lanes[lane].end;
      first = lane;
    }
    if (next == never) break;
    if (lanes[Host].is_running) left = std::max(0.0, left - (next - now) * rate);
    now = next;
    complete(first);
  }
  for (std::size_t lane = 0; lane < lane_count; ++lane) {
    ensure(items_[lane].empty() || lanes[lane].period == periods, "items that wait for each other");
  }
  return Seconds(ends[counted] - (counted > 0 ? ends[counted - 1] : 0));
}

}  // namespace isobar::allocators
