#include "core/outer/ring_order.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>

namespace isobar {

namespace {

/// The slowest hop, then the sum of all.
struct RingCost {
  double slowest = 0;
  double sum = 0;

  RingCost with(double hop) const { return {std::max(slowest, hop), sum + hop}; }
  bool operator<(const RingCost& other) const
  {
    return slowest != other.slowest ? slowest < other.slowest : sum < other.sum;
  }
};

/// What hops cost, in a table.
class Hops {
 public:
  Hops(std::size_t places, const std::function<double(std::size_t, std::size_t)>& cost)
      : places_(places), costs_(places * places)
  {
    for (std::size_t from = 0; from < places; ++from) {
      for (std::size_t to = 0; to < places; ++to) {
        if (from != to) costs_[from * places + to] = cost(from, to);
      }
    }
  }

  double operator()(std::size_t from, std::size_t to) const { return costs_[from * places_ + to]; }

  RingCost of(const std::vector<std::size_t>& order) const
  {
    RingCost cost;
    for (std::size_t i = 0; i < order.size(); ++i) cost = cost.with((*this)(order[i], order[(i + 1) % order.size()]));
    return cost;
  }

 private:
  std::size_t places_;
  std::vector<double> costs_;
};

/// The slowest hop of a ring cannot be below `slowest` of the best one, so paths over slower hops do not count; among
/// the others the least sum wins. Two passes of the recurrence: one for the slowest hop, one for the sum.
class ExactRing {
 public:
  ExactRing(std::size_t places, const Hops& hops)
      : others_(places - 1), hops_(hops), table_((std::size_t{1} << others_) * others_)
  {
  }

  std::vector<std::size_t> order()
  {
    const double slowest = best([](double path, double hop) { return std::max(path, hop); }, infinity).second;
    const auto [last, sum] = best([](double path, double hop) { return path + hop; }, slowest);
    return path_to(last);
  }

 private:
  /// Fills the table with the best paths from place 0 through a set to its last place, over hops of at most `limit`;
  /// then the last place of the best ring, and its value.
  template <typename Join>
  std::pair<std::size_t, double> best(Join join, double limit)
  {
    const auto hop_of = [&](std::size_t from, std::size_t to) {
      const double hop = hops_(from, to);
      return hop <= limit ? hop : infinity;
    };
    const std::size_t sets = std::size_t{1} << others_;
    for (std::size_t set = 1; set < sets; ++set) {
      for (std::size_t last = 0; last < others_; ++last) {
        if ((set >> last & 1) == 0) continue;
        Cell& cell = table_[set * others_ + last];
        cell = {infinity, 0};
        const std::size_t before = set & ~(std::size_t{1} << last);
        if (before == 0) {
          cell = {join(0, hop_of(0, last + 1)), 0};
          continue;
        }
        for (std::size_t place = 0; place < others_; ++place) {
          if ((before >> place & 1) == 0) continue;
          const double value = join(table_[before * others_ + place].value, hop_of(place + 1, last + 1));
          if (value < cell.value) cell = {value, static_cast<std::uint8_t>(place)};
        }
      }
    }
    std::pair<std::size_t, double> found{0, infinity};
    for (std::size_t last = 0; last < others_; ++last) {
      const double value = join(table_[(sets - 1) * others_ + last].value, hop_of(last + 1, 0));
      if (value < found.second) found = {last, value};
    }
    return found;
  }

  std::vector<std::size_t> path_to(std::size_t last) const
  {
    std::vector<std::size_t> order;
    std::size_t set = (std::size_t{1} << others_) - 1;
    while (set != 0) {
      order.push_back(last + 1);
      const Cell& cell = table_[set * others_ + last];
      set &= ~(std::size_t{1} << last);
      last = cell.before;
    }
    order.push_back(0);
    std::ranges::reverse(order);
    return order;
  }

  struct Cell {
    double value = 0;
    std::uint8_t before = 0;
  };
  static constexpr double infinity = std::numeric_limits<double>::infinity();
  std::size_t others_;  // places but the first
  const Hops& hops_;
  std::vector<Cell> table_;
};

std::vector<std::size_t> nearest_next(std::size_t places, const Hops& hops)
{
  std::vector<std::size_t> order = {0};
  std::vector<bool> is_in(places, false);
  is_in[0] = true;
  while (order.size() < places) {
    std::size_t next = 0;
    for (std::size_t place = 1; place < places; ++place) {
      if (!is_in[place] && (next == 0 || hops(order.back(), place) < hops(order.back(), next))) next = place;
    }
    is_in[next] = true;
    order.push_back(next);
  }
  return order;
}

/// Turns the run from `begin` to `end`, or moves its first place behind its last, whichever is better; false if neither
/// is better than `cost`.
bool improve(std::vector<std::size_t>& order, std::size_t begin, std::size_t end, const Hops& hops, RingCost& cost)
{
  const auto from = static_cast<std::ptrdiff_t>(begin);
  const auto to = static_cast<std::ptrdiff_t>(end);
  auto turned = order;
  std::reverse(turned.begin() + from, turned.begin() + to);
  auto moved = order;
  std::rotate(moved.begin() + from, moved.begin() + from + 1, moved.begin() + to);
  auto moved_back = order;
  std::rotate(moved_back.begin() + from, moved_back.begin() + to - 1, moved_back.begin() + to);
  bool is_better = false;
  for (auto* candidate : {&turned, &moved, &moved_back}) {
    const RingCost own = hops.of(*candidate);
    if (!(own < cost)) continue;
    cost = own;
    order = *candidate;
    is_better = true;
  }
  return is_better;
}

std::vector<std::size_t> searched_ring(std::size_t places, const Hops& hops)
{
  auto order = nearest_next(places, hops);
  RingCost cost = hops.of(order);
  for (bool is_better = true; is_better;) {
    is_better = false;
    for (std::size_t begin = 1; begin < places && !is_better; ++begin) {
      for (std::size_t end = begin + 2; end <= places && !is_better; ++end) {
        is_better = improve(order, begin, end, hops, cost);
      }
    }
  }
  return order;
}

}  // namespace

std::vector<std::size_t> ring_order(std::size_t places, const std::function<double(std::size_t, std::size_t)>& cost)
{
  const Hops hops(places, cost);
  if (places > most_exact_ring) return searched_ring(places, hops);
  if (places > 2) return ExactRing(places, hops).order();
  std::vector<std::size_t> order(places);
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

}  // namespace isobar
