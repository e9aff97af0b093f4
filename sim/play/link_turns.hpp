#pragma once

#include "sim/play/simulation_state.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace isobar::sim {

/// Links that one job uses at a time, in the order in which the jobs ask. A request is for all links of a route, or of
/// a collective, at once, so that jobs do not wait for each other in a circle. Requests of one job share its links.
class LinkTurns {
 public:
  /// Calls `start` once the job may use the links: now, or when other jobs have given them back. It waits while another
  /// job holds one of the links, or while an earlier request of another job waits for one.
  /// O(links x requests that wait).
  void ask(const JobState& job, const std::vector<LinkState*>& links, std::function<void()> start);
  /// Gives back the links of a request, and starts requests that waited for them.
  void give_back(const std::vector<LinkState*>& links);

 private:
  struct Request {
    const JobState* job = nullptr;
    std::vector<LinkState*> links;
    std::function<void()> start;
  };

  bool may_start(const Request& request) const;
  void want(const Request& request) const;
  static void hold(const Request& request);
  void start_what_may();

  std::deque<Request> waiting_;  // in the order in which they asked
  std::uint64_t scan_ = 0;       // of `waiting_`
};

}  // namespace isobar::sim
