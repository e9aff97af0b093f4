#include "core/program/program.hpp"

#include "core/names.hpp"

#include <stdexcept>

namespace isobar {

namespace {

constexpr NameTable<Lane, lane_count> lanes = {{{Lane::Compute, "compute"},
                                                {Lane::SendActivation, "send activation"},
                                                {Lane::SendGradient, "send gradient"},
                                                {Lane::ReceiveActivation, "receive activation"},
                                                {Lane::ReceiveGradient, "receive gradient"}}};
constexpr NameTable<Opcode, 6> opcodes = {{{Opcode::Forward, "Forward"},
                                           {Opcode::Backward, "Backward"},
                                           {Opcode::AllReduce, "AllReduce"},
                                           {Opcode::Update, "Update"},
                                           {Opcode::Send, "Send"},
                                           {Opcode::Recv, "Recv"}}};

}  // namespace

Lane other_end(Lane lane)
{
  switch (lane) {
    case Lane::SendActivation:
      return Lane::ReceiveActivation;
    case Lane::SendGradient:
      return Lane::ReceiveGradient;
    case Lane::ReceiveActivation:
      return Lane::SendActivation;
    case Lane::ReceiveGradient:
      return Lane::SendGradient;
    case Lane::Compute:
      break;
  }
  throw std::logic_error("the compute lane has no other end");
}

std::string_view name_of(Lane lane)
{
  return name_in(lanes, lane);
}
std::string_view name_of(Opcode opcode)
{
  return name_in(opcodes, opcode);
}

bool is_transfer(const Instruction& instruction)
{
  return instruction.opcode == Opcode::Send || instruction.opcode == Opcode::Recv;
}

}  // namespace isobar
