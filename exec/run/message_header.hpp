#pragma once

#include "core/program/program.hpp"
#include "exec/net/tcp_link.hpp"
#include "exec/run/transport.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

/// What a rank sends over TCP before a message's tensors, and what the transports that do so share.
namespace isobar::exec {

/// The link that a transfer of `rank` takes: a channel for activations, one for gradients.
LinkName link_of(const Instruction& transfer, std::size_t rank);

/// The control, then for each tensor its type, whether it is differentiable, and its shape, as 64-bit integers of the
/// machine, which all ranks share.
std::vector<std::int64_t> header_of(const Message& message);

/// Where tensors are made that a message is to fill: on a GPU, in the calling thread's queue.
enum class Room { Memory, PinnedMemory, Gpu };
/// The most that the tensors of a transfer may hold: several times what the model says, which counts neither the
/// indices of tokens nor labels as they travel.
Bytes most_of(const Instruction& transfer);
/// Tensors as a header describes them, to be filled. @throws EnvironmentError when it makes no sense, or they would
/// hold more than `most` together, before any is made.
Message room_for(TcpLink::Bytes header, Room room, Bytes most);

}  // namespace isobar::exec
