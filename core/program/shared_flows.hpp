#pragma once

#include "core/shared_link.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace isobar {

/// The weight of a flow over a route of this latency: 1 / latency, and 1 without one.
inline double weight_of_flow(Seconds latency)
{
  return latency > Seconds(0) ? 1 / latency.value : 1;
}

/// Data on their way over links, in the order of time. Times are in seconds, sizes in bytes.
///
/// Flows share their links by weighted max-min fairness: no rate can grow unless one that is smaller, relative to its
/// weight, shrinks. A flow that fills a fat pipe leaves the others in it only their weights' part of its bandwidth. So
/// SimGrid's CM02 does. Rates change when a flow begins or ends. That takes O(links) for a flow that takes no bandwidth
/// from others; else O(flows x links) for each rate of the flows that depend on each other. Deterministic.
class SharedFlows {
 public:
  /// A flow that has ended.
  struct End {
    std::size_t owner = 0;
    double time = 0;
  };

  /// The number of a way over these links, for `begin`. Their names must outlive this object.
  std::size_t way_over(const std::vector<SharedLink>& links);

  /// Lets `bytes` flow over a way from `time` on, which must not be before now(). Alone, they flow at `most` bytes per
  /// second. A flow without bytes ends as it begins.
  void begin(std::size_t owner, std::size_t way, double time, double bytes, double most, double weight);

  /// The time up to which flows have been followed.
  double now() const { return now_; }
  /// The time at which the next flow begins or ends; infinite without one.
  double next();
  /// Follows the flows until next(). @returns those that have ended, until the next call. They may be none.
  const std::vector<End>& advance();

 private:
  struct Load {
    std::size_t link = 0;
    double passes = 1;
  };
  struct Flow {
    std::size_t owner = 0;
    std::size_t way = 0;
    double left = 0;  // bytes, at `since`
    double most = 0;  // bytes per second
    double weight = 1;
    double since = 0;
    double rate = 0;
    std::uint64_t version = 0;  // of `rate`
    std::uint64_t visit = 0;
    bool is_under_way = false;
  };
  struct Link {
    double bandwidth = 0;
    bool is_fat_pipe = false;
    std::vector<std::size_t> flows;
    double most = 0;  // that all flows would take
    bool is_contended = false;
    std::uint64_t visit = 0;
    // While rates are given:
    double free = 0;
    double weight = 0;  // of the flows that have no rate yet: their sum, of a fat pipe the largest
  };
  struct Event {
    double time = 0;
    std::size_t flow = 0;
    std::uint64_t version = 0;

    bool operator>(const Event& other) const { return time != other.time ? time > other.time : flow > other.flow; }
  };
  using Events = std::priority_queue<Event, std::vector<Event>, std::greater<>>;

  void drop_outdated();
  void start(std::size_t number);
  void finish(std::size_t number, double time);
  bool is_contended(const Link& link) const;
  void join_dependents(std::size_t flow);
  void share();
  void weigh();
  void set_rate(Flow& flow, std::size_t number, double rate);

  std::unordered_map<std::string_view, std::size_t> number_of_link_;
  std::vector<Link> links_;
  std::vector<std::vector<Load>> ways_;
  std::vector<Flow> flows_;
  std::vector<std::size_t> unused_;  // flows
  Events begins_;
  Events ends_;
  std::vector<End> ended_;
  std::vector<std::size_t> changed_;      // flows whose links' use has changed
  std::vector<std::size_t> dependents_;   // flows that depend on each other
  std::vector<std::size_t> their_links_;  // that are contended
  std::uint64_t visit_ = 0;
  double now_ = 0;
};

}  // namespace isobar
