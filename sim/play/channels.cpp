#include "sim/play/channels.hpp"

#include "sim/play/faults.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace isobar::sim {

const Channel& Channels::look_up(std::size_t from, std::size_t to)
{
  auto [entry, is_new] = channels_.try_emplace({from, to});
  Channel& channel = entry->second;
  if (!is_new) return channel;
  const sg4::Host& source = *state_.ranks[from].host;
  const sg4::Host& destination = *state_.ranks[to].host;
  channel.to = to;
  channel.route = state_.platform.routes().between(source, destination);
  if (channel.route.missing()) {
    throw platform_fault(state_.platform, fmt::format("no route from {} to {}; devices that exchange data need one",
                                                      source.get_name(), destination.get_name()));
  }
  for (auto* link : channel.route.links) {
    auto [state, is_first] = state_of_link_.try_emplace(link, nullptr);
    if (is_first) state->second = &links_.emplace_back(*link);
    channel.links.push_back(state->second);
  }
  return channel;
}

void Channels::hold_links(const Message& message)
{
  const Seconds time = now();
  for (auto* link : message.channel->links) {
    if (link->transfers++ == 0) link->busy_since = time;
    report(*link, time);
  }
}

void Channels::release_links(const Message& message)
{
  const Seconds time = now();
  for (auto* link : message.channel->links) {
    link->bytes += message.bytes;
    if (--link->transfers == 0) link->busy_time += time - link->busy_since;
    report(*link, time);
  }
}

void Channels::report(const LinkState& link, Seconds time) const
{
  if (state_.sink != nullptr) state_.sink->link_changed(link.name, time - state_.begin, link.transfers);
}

bool Channels::carries_data(const sg4::Link& link) const
{
  const auto state = state_of_link_.find(&link);
  return state != state_of_link_.end() && state->second->transfers > 0;
}

std::vector<LinkUse> Channels::uses() const
{
  std::vector<LinkUse> uses;
  for (const auto& link : links_) {
    uses.push_back({link.name, Bytes(static_cast<double>(link.bytes)), link.busy_time});
  }
  std::ranges::sort(uses, {}, &LinkUse::name);
  return uses;
}

}  // namespace isobar::sim
