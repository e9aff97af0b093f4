#include "sim/play/link_turns.hpp"

#include <algorithm>
#include <utility>

namespace isobar::sim {

void LinkTurns::ask(const JobState& job, const std::vector<LinkState*>& links, std::function<void()> start)
{
  Request request{&job, links, std::move(start)};
  ++scan_;
  for (const auto& earlier : waiting_) want(earlier);
  if (!may_start(request)) {
    waiting_.push_back(std::move(request));
    return;
  }
  hold(request);
  request.start();
}

void LinkTurns::give_back(const std::vector<LinkState*>& links)
{
  bool is_free = false;
  for (auto* link : links) {
    if (--link->holds > 0) continue;
    link->holder = nullptr;
    is_free = true;
  }
  if (is_free && !waiting_.empty()) start_what_may();
}

void LinkTurns::start_what_may()
{
  ++scan_;
  std::vector<Request> started;
  std::deque<Request> waiting;
  for (auto& request : waiting_) {
    if (may_start(request)) {
      hold(request);
      started.push_back(std::move(request));
    } else {
      want(request);
      waiting.push_back(std::move(request));
    }
  }
  waiting_ = std::move(waiting);
  for (auto& request : started) request.start();
}

/// Whether nothing keeps the request from its links, after `want` of all earlier ones in this scan.
bool LinkTurns::may_start(const Request& request) const
{
  return std::ranges::all_of(request.links, [&](const LinkState* link) {
    const bool is_wanted_by_others = link->scan == scan_ && link->wanted != request.job;
    return !is_wanted_by_others && (link->holder == nullptr || link->holder == request.job);
  });
}

void LinkTurns::want(const Request& request) const
{
  for (auto* link : request.links) {
    if (link->scan != scan_) {
      link->scan = scan_;
      link->wanted = request.job;
    } else if (link->wanted != request.job) {
      link->wanted = nullptr;
    }
  }
}

void LinkTurns::hold(const Request& request)
{
  for (auto* link : request.links) {
    link->holder = request.job;
    ++link->holds;
  }
}

}  // namespace isobar::sim
