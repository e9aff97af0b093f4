#include "core/spmd/reform_time.hpp"

#include "core/program/collective.hpp"
#include "core/program/round_time.hpp"

namespace isobar::spmd {

std::optional<Opcode> opcode_of(ReformKind kind)
{
  switch (kind) {
    case ReformKind::AllGather:
      return Opcode::AllGather;
    case ReformKind::AllReduce:
      return Opcode::AllReduce;
    case ReformKind::ReduceScatter:
      return Opcode::ReduceScatter;
    case ReformKind::AllToAll:
      return Opcode::AllToAll;
    default:
      return std::nullopt;
  }
}

std::vector<Bytes> sizes_of_ends(Opcode opcode, const Pieces& pieces, std::size_t tensor, Form from)
{
  const bool brings_all = opcode == Opcode::AllReduce || opcode == Opcode::ReduceScatter;
  std::vector<Bytes> sizes;
  for (std::size_t i = 0; i < pieces.devices(); ++i) {
    sizes.push_back(pieces.size(tensor, brings_all ? full : from, i));
  }
  return sizes;
}

std::vector<Bytes> results_of_ends(Opcode opcode, const Pieces& pieces, std::size_t tensor, Form from, Form to)
{
  if (opcode != Opcode::ReduceScatter && opcode != Opcode::AllToAll) return {};
  std::vector<Bytes> results;
  bool are_equal = true;
  for (std::size_t i = 0; i < pieces.devices(); ++i) {
    results.push_back(pieces.size(tensor, to, i));
    are_equal = are_equal && results[i] == results[0] && pieces.size(tensor, from, i) == pieces.size(tensor, from, 0);
  }
  return are_equal ? std::vector<Bytes>() : results;
}

Seconds collective_time(Opcode opcode, const std::vector<Bytes>& sizes, const DeviceGroup& group,
                        const std::vector<Bytes>& results)
{
  const EndNetwork network{group.transfer, group.shared_links, group.start};
  return isobar::collective_time(rounds_of(opcode, sizes, group.algorithm, group.sites, results), network);
}

}  // namespace isobar::spmd
