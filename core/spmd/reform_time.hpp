#pragma once

#include "core/program/program.hpp"
#include "core/shared_link.hpp"
#include "core/spmd/pieces.hpp"
#include "core/spmd/reform.hpp"
#include "core/transfer_times.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace isobar::spmd {

/// The devices that divide a graph, numbered in the order of their collectives, and what lies between them.
struct DeviceGroup {
  /// The times of a message, alone.
  std::function<TransferTimes(std::size_t from, std::size_t to, Bytes size)> transfer;
  /// The links of a message; none: no two share one.
  std::function<std::vector<SharedLink>(std::size_t from, std::size_t to)> shared_links = {};
  std::function<Seconds(std::size_t device)> start = {};  ///< of a collective (EndNetwork::start)
  Algorithm algorithm = Algorithm::Ring;
  std::vector<std::string> sites = {};  ///< of each device, for hierarchical collectives
};

/// Name of the lane of a Program that makes the reforms of a rank.
inline constexpr const char* reform_lane = "collectives";
/// Name of the lane that adds up the gradients of its parameters over replicas.
inline constexpr const char* replica_lane = "replicas";

/// The collective that a reform is; none of those without communication. Replicate has its own in the backward pass.
std::optional<Opcode> opcode_of(ReformKind kind);

/// What each device brings to a collective that makes another form of a tensor in `from` (rounds_of): its slice to an
/// AllGather or AllToAll, the whole tensor to an AllReduce or ReduceScatter.
std::vector<Bytes> sizes_of_ends(Opcode opcode, const Pieces& pieces, std::size_t tensor, Form from);
/// What each device has after a ReduceScatter or AllToAll into slices of `to`, if they are not equal; otherwise empty,
/// as of other collectives (Instruction::result).
std::vector<Bytes> results_of_ends(Opcode opcode, const Pieces& pieces, std::size_t tensor, Form from, Form to);

/// The time of a collective that has the network for itself (round_time.hpp). So a
/// program plays it (player.hpp), and the simulator.
Seconds collective_time(Opcode opcode, const std::vector<Bytes>& sizes, const DeviceGroup& group,
                        const std::vector<Bytes>& results = {});

}  // namespace isobar::spmd
