#include "sim/play/copies.hpp"

#include "sim/play/faults.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

namespace isobar::sim {

namespace {

bool is_of_disk(Opcode opcode)
{
  return opcode == Opcode::Read || opcode == Opcode::Write;
}

/// What delays a copy besides its route's latency.
Seconds delay_of(const Instruction& copy, const MachineRates& rates)
{
  const bool is_delayed =
      copy.opcode == Opcode::Load && copy.payload == Payload::Parameter && copy.pass == Opcode::Backward;
  return is_delayed ? rates.backward_delay : Seconds(0);
}

}  // namespace

void Copies::start(LaneState& lane)
{
  require_machine(state_, lane, lane.turn);
  lanes_.begin_running(lane);
  if (is_of_disk(lane.turn.instruction.opcode)) {
    start_on_disk(lane);
  } else {
    start_on_links(lane);
  }
}

void Copies::start_on_links(LaneState& lane)
{
  const RankState& rank = rank_of(lane);
  const Instruction& copy = lane.turn.instruction;
  if (lane.stream == nullptr) lane.stream = &streams_.create();
  if (copy.opcode == Opcode::Load) {
    streams_.connect(*lane.stream, lane, *rank.machine->host, *rank.host, rank.machine_rates.in.bandwidth);
  } else {
    streams_.connect(*lane.stream, lane, *rank.host, *rank.machine->host, rank.machine_rates.out.bandwidth);
  }
  streams_.send(*lane.stream, 1, copy.size, delay_of(copy, rank.machine_rates));
}

void Copies::start_on_disk(LaneState& lane)
{
  const MachineState& machine = *rank_of(lane).machine;
  const Instruction& copy = lane.turn.instruction;
  if (machine.disk == nullptr) {
    throw platform_fault(state_.platform, fmt::format("machine {} has no disk with the prop capacity, and {} needs one",
                                                      machine.host->get_name(), description(lane, lane.turn)));
  }
  if (copy.size.value <= 0) return lanes_.complete(lane);
  const auto io = sg4::Io::init();
  io->set_disk(machine.disk)->set_size(static_cast<std::uint64_t>(std::llround(std::ceil(copy.size.value))));
  io->set_op_type(copy.opcode == Opcode::Read ? sg4::Io::OpType::READ : sg4::Io::OpType::WRITE);
  io->set_data(static_cast<ActivityOwner*>(&lane));
  lane.activity = io;
  start_activity(io);
}

void Copies::complete(const Stream& stream)
{
  streams_.release(stream);
  lanes_.complete(*stream.sender);
}

void Copies::machine_switched(const sg4::Host& host) const
{
  if (host.is_on()) return;
  for (const auto& job : state_.jobs) {
    for (const auto& rank : job.ranks) {
      if (rank.machine == nullptr || rank.machine->host != &host) continue;
      for (const auto& lane : rank.lanes) {
        if (lane.activity && is_of_disk(lane.turn.instruction.opcode)) require_machine(state_, lane, lane.turn);
      }
    }
  }
}

}  // namespace isobar::sim
