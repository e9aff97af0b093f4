#include "sim/play/transfers.hpp"

#include "core/errors.hpp"
#include "sim/play/faults.hpp"

#include <algorithm>

namespace isobar::sim {

void Transfers::try_to_start(LaneState& lane)
{
  ensure(lane.other_end != nullptr, "a transfer over no channel of two ends");
  LaneState& other = *lane.other_end;
  if (other.state != TurnState::Ready) return;
  const bool sends = lane.turn.instruction.opcode == Opcode::Send;
  ensure(other.turn.instruction.opcode == (sends ? Opcode::Recv : Opcode::Send), "two ends of a transfer that differ");
  start(sends ? lane : other, sends ? other : lane);
}

void Transfers::start(LaneState& send, LaneState& receive)
{
  for (LaneState* lane : {&send, &receive}) lanes_.begin(*lane);
  if (send.stream == nullptr) {
    send.stream = &streams_.create(&receive);
    streams_.connect(*send.stream, send, receive.rank);
  }
  const Hop& hop = *send.stream->hop;
  if (hop.is_within_host) {
    require_hop(state_, send, send.turn, hop);
  } else if (!turns_) {
    streams_.send(*send.stream, 1, send.turn.instruction.size);
  } else {
    turns_->ask(*send.job, hop.links,
                [this, stream = send.stream, size = send.turn.instruction.size] { streams_.send(*stream, 1, size); });
  }
  for (LaneState* lane : {&send, &receive}) lanes_.advance(*lane);
  if (!hop.is_within_host) return;
  for (LaneState* lane : {&send, &receive}) {
    SimulationState::stamp(*lane);
    lanes_.arrive(*lane, lane->begin, lane->begin);
  }
}

void Transfers::complete(Stream& stream)
{
  streams_.release(stream);
  const Message& message = stream.arriving;
  // The last byte has arrived now; it had left a latency before.
  const Seconds began_to_leave = std::max({message.ready, stream.left, stream.begin - message.latency});
  const Seconds arrived = now();
  stream.left = std::max(began_to_leave, arrived - message.latency);
  lanes_.arrive(*stream.sender, began_to_leave, stream.left);
  lanes_.arrive(*stream.receiver, stream.begin, arrived);
  streams_.let_arrive(stream);
  if (turns_) turns_->give_back(stream.hop->links);
}

}  // namespace isobar::sim
