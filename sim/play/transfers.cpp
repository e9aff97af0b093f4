#include "sim/play/transfers.hpp"

#include "core/errors.hpp"
#include "sim/play/faults.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

namespace isobar::sim {

namespace {

/// Whether a message is on its way over the link, none of its bytes arrived yet.
bool has_on_the_way(const LaneState& send, const sg4::Link& link)
{
  return std::any_of(send.on_the_way.begin(), send.on_the_way.end(), [&link](const Message& message) {
    const auto& links = message.channel->route.links;
    return std::find(links.begin(), links.end(), &link) != links.end();
  });
}

}  // namespace

void Transfers::start(LaneState& send, LaneState& receive)
{
  for (LaneState* lane : {&send, &receive}) lanes_.begin(*lane);
  receive.senders.push_back(&send);
  put_on_its_way(send, send.turn.size);
  for (LaneState* lane : {&send, &receive}) lanes_.advance(*lane);
}

void Transfers::put_on_its_way(LaneState& send, Bytes size)
{
  const Channel& channel = channels_.find(send, send.turn.peer);
  require_route(state_, send, send.turn, channel);
  send.on_the_way.push_back({&channel, now(), state_.platform.routes().latency_now(channel.route),
                             static_cast<std::uint64_t>(std::llround(std::ceil(size.value)))});
  let_arrive(send);
}

/// Starts the data of the lane's next message, once it is due and nothing that comes before it is still arriving.
void Transfers::let_arrive(LaneState& send)
{
  if (send.activity || send.on_the_way.empty()) return;
  const Message& next = send.on_the_way.front();
  if (now() < next.due()) return wait_until_due(send);
  if (send.lane != Lane::Compute && receiver(send, next).senders.front() != &send) return;
  send.arriving = next;
  send.on_the_way.pop_front();
  if (send.lane != Lane::Compute) {
    lanes_.stamp(send);
    lanes_.stamp(receiver(send, send.arriving));
  }
  channels_.hold_links(send.arriving);
  flows_.start(send);
}

void Transfers::wait_until_due(LaneState& send)
{
  if (send.timer != nullptr) return;
  send.timer = call_at(send.on_the_way.front().due().value, [this, &send] {
    send.timer = nullptr;
    state_.guard.run([&] { let_arrive(send); });
  });
}

void Transfers::complete(LaneState& send)
{
  const Message& message = send.arriving;
  channels_.release_links(message);
  LaneState& receive = receiver(send, message);
  ensure(receive.senders.front() == &send, "messages arrive in the order of their lane");
  receive.senders.pop_front();
  // The last byte has arrived now; it had left a latency before.
  const Seconds began_to_leave = std::max({message.ready, send.left, send.begin - message.latency});
  const Seconds arrived = now();
  send.left = std::max(began_to_leave, arrived - message.latency);
  lanes_.end(send, send.first, began_to_leave, send.left);
  lanes_.end(receive, receive.first, receive.begin, arrived);
  for (LaneState* lane : {&send, &receive}) {
    if (lane->completed < lane->started) lane->first = state_.program.at(lane->rank, lane->lane, lane->completed);
  }
  let_arrive(send);
  if (!receive.senders.empty() && receive.senders.front() != &send) let_arrive(*receive.senders.front());
}

void Transfers::link_switched(const sg4::Link& link) const
{
  if (link.is_on()) return;
  for (const auto& rank : state_.ranks) {
    for (const auto& lane : rank.lanes) {
      if (has_on_the_way(lane, link)) {
        throw off_fault(state_, "link " + link.get_name(), lane, lane.under_way());
      }
    }
  }
}

void Transfers::remove_timers()
{
  for (auto& rank : state_.ranks) {
    for (auto& lane : rank.lanes) {
      if (lane.timer != nullptr) std::exchange(lane.timer, nullptr)->remove();
    }
  }
}

}  // namespace isobar::sim
