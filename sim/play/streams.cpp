#include "sim/play/streams.hpp"

#include "core/errors.hpp"
#include "sim/play/faults.hpp"
#include "sim/play/standstill.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace isobar::sim {

namespace {

/// The current bandwidth of the narrowest link; infinite without links.
BytesPerSecond narrowest_now(const Route& route)
{
  double narrowest = std::numeric_limits<double>::infinity();
  for (const auto* link : route.links) narrowest = std::min(narrowest, link->get_bandwidth());
  return BytesPerSecond(narrowest);
}

bool passes(const Stream& stream, const sg4::Link& link)
{
  const auto& links = stream.hop->route.links;
  return std::find(links.begin(), links.end(), &link) != links.end();
}

}  // namespace

Stream& Streams::create(LaneState* receiver)
{
  Stream& stream = state_.streams.emplace_back();
  stream.receiver = receiver;
  return stream;
}

const Hop& Streams::hop(sg4::Host& from, sg4::Host& to)
{
  return links_.hop(from, to, unlimited);
}

void Streams::connect(Stream& stream, LaneState& sender, std::size_t to)
{
  connect(stream, sender, *rank_of(sender).host, *sender.job->ranks[to].host);
}

void Streams::connect(Stream& stream, LaneState& sender, sg4::Host& from, sg4::Host& to, BytesPerSecond most)
{
  stream.sender = &sender;
  if (stream.hop != nullptr && stream.hop->from == &from && stream.hop->to == &to) return;
  stream.hop = &links_.hop(from, to, most);
}

void Streams::send(Stream& stream, std::uint64_t messages, Bytes size, Seconds delay)
{
  const Hop& hop = *stream.hop;
  require_hop(state_, *stream.sender, stream.sender->turn, hop);
  const Seconds latency = static_cast<double>(messages) * state_.platform.routes().latency_now(hop.route);
  stream.on_the_way.push({now(), latency + delay, static_cast<std::uint64_t>(std::llround(std::ceil(size.value)))});
  let_arrive(stream);
}

void Streams::let_arrive(Stream& stream)
{
  if (stream.activity || stream.on_the_way.empty()) return;
  if (now() < stream.on_the_way.front().due()) return wait_until_due(stream);
  stream.arriving = stream.on_the_way.front();
  stream.on_the_way.pop();
  stream.begin = now();
  if (stream.receiver != nullptr) {
    for (LaneState* lane : {stream.sender, stream.receiver}) SimulationState::stamp(*lane);
  }
  links_.hold(*stream.hop);
  start_data(stream, stream.arriving.bytes);
}

void Streams::wait_until_due(Stream& stream)
{
  if (stream.timer != nullptr) return;
  stream.timer = call_at(stream.on_the_way.front().due().value, [this, &stream] {
    stream.timer = nullptr;
    state_.guard.run([&] { let_arrive(stream); });
  });
}

void Streams::start_data(Stream& stream, std::uint64_t bytes)
{
  const Hop& hop = *stream.hop;
  const Route& route = hop.route;
  const auto comm = sg4::Comm::sendto_init(hop.from, hop.to);
  comm->set_payload_size(bytes);
  comm->set_data(static_cast<ActivityOwner*>(&stream));
  stream.activity = comm;
  const bool is_capped = std::isfinite(route.rate_cap.value);
  stream.fixed_bound = unlimited;
  if (is_capped || bound_is_fixed_at_start(route.latency.value)) {
    stream.fixed_bound = std::min(narrowest_now(route), route.rate_cap);
  }
  // Neither 3.32 nor 4.1 obeys Comm::set_rate between hosts; both limit a flow to gamma / (2 x latency).
  if (is_capped) sg4::Engine::set_config(window_option, 2 * (route.latency * route.rate_cap).value);
  start_flow(network_, *comm, state_.platform.routes().latency_now(route).value);
  if (is_capped) sg4::Engine::set_config(window_option, 0.0);
}

void Streams::bandwidth_changed(const sg4::Link& link)
{
  if (hold_at_standstill(link)) return;
  links_.bandwidth_changed(link);
  if (!links_.carries_data(link)) return;
  for (auto& stream : state_.streams) {
    if (!stream.activity || std::isinf(stream.fixed_bound.value) || !passes(stream, link)) continue;
    const Route& route = stream.hop->route;
    if (stream.fixed_bound >= std::min(narrowest_now(route), route.rate_cap)) continue;
    const double remaining = std::ceil(stream.activity->get_remaining());
    state_.cancelled.cancel(std::move(stream.activity));
    start_data(stream, static_cast<std::uint64_t>(remaining));
  }
}

void Streams::link_switched(const sg4::Link& link) const
{
  if (link.is_on()) return;
  for (const auto& stream : state_.streams) {
    if (stream.on_the_way.empty() || !passes(stream, link)) continue;
    throw off_fault(state_, "link " + link.get_name(), *stream.sender, stream.sender->under_way());
  }
}

void Streams::remove_timers()
{
  for (auto& stream : state_.streams) {
    if (stream.timer != nullptr) std::exchange(stream.timer, nullptr)->remove();
  }
}

}  // namespace isobar::sim
