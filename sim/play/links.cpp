#include "sim/play/links.hpp"

#include "core/text/quantity_text.hpp"
#include "sim/play/faults.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace isobar::sim {

const Hop& Links::hop(sg4::Host& from, sg4::Host& to, BytesPerSecond most)
{
  auto [entry, is_new] = hops_.try_emplace({&from, &to});
  Hop& hop = entry->second;
  if (!is_new) return hop;
  hop.from = &from;
  hop.to = &to;
  hop.is_within_host = &from == &to;
  if (hop.is_within_host) return hop;
  hop.route = state_.platform.routes().between(from, to);
  if (hop.route.missing()) {
    throw platform_fault(state_.platform, fmt::format("no route from {} to {}; devices that exchange data need one",
                                                      from.get_name(), to.get_name()));
  }
  if (most < hop.route.path().bandwidth) {
    if (hop.route.latency.value <= 0) {
      throw platform_fault(
          state_.platform,
          fmt::format("the route from {} to {} has no latency, which SimGrid needs to limit its copies "
                      "to {}; give a link of it one, such as 1us",
                      from.get_name(), to.get_name(), text_of(most)));
    }
    hop.route.rate_cap = most;
  }
  for (auto* link : hop.route.links) {
    auto [state, is_first] = state_of_link_.try_emplace(link, nullptr);
    if (is_first) state->second = &links_.emplace_back(*link);
    hop.links.push_back(state->second);
  }
  return hop;
}

void Links::hold(const Hop& hop)
{
  const Seconds time = now();
  for (auto* link : hop.links) {
    if (link->transfers++ == 0) link->busy_since = time;
    report(*link, time);
  }
}

void Links::release(const Hop& hop, std::uint64_t bytes)
{
  const Seconds time = now();
  for (auto* link : hop.links) {
    link->bytes += bytes;
    if (--link->transfers == 0) link->busy_time += time - link->busy_since;
    report(*link, time);
  }
}

void Links::report(const LinkState& link, Seconds time) const
{
  for (const auto& job : state_.jobs) {
    if (job.sink != nullptr) job.sink->link_changed(link.name, time - state_.begin, link.transfers);
  }
}

void Links::bandwidth_changed(const sg4::Link& link)
{
  const auto state = state_of_link_.find(&link);
  if (state == state_of_link_.end()) return;
  state->second->bandwidth = std::max(state->second->bandwidth, BytesPerSecond(link.get_bandwidth()));
}

bool Links::carries_data(const sg4::Link& link) const
{
  const auto state = state_of_link_.find(&link);
  return state != state_of_link_.end() && state->second->transfers > 0;
}

std::vector<LinkUse> Links::uses() const
{
  std::vector<LinkUse> uses;
  for (const auto& link : links_) {
    uses.push_back({link.name, Bytes(static_cast<double>(link.bytes)), link.busy_time, link.bandwidth});
  }
  std::ranges::sort(uses, {}, &LinkUse::name);
  return uses;
}

}  // namespace isobar::sim
