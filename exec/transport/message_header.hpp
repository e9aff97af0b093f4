#pragma once

#include "core/program/program.hpp"
#include "exec/links/tcp_link.hpp"
#include "exec/transport/transport.hpp"

#include <cstdint>
#include <vector>

/// The header that precedes a message's tensors over TCP, and what the transports that send it share.
namespace isobar::exec {

/// Encodes a message's header: each tensor's type, whether it is differentiable, and its shape. 64-bit integers in the
/// machine's byte order, which all ranks share.
std::vector<std::int64_t> header_of(const Message& message);

/// Where received tensors are allocated; on a GPU, on the calling thread's stream.
enum class TensorMemory { Pageable, Pinned, Gpu };
/// Largest accepted size of a transfer's tensors: several times the size in the program, which does not count token ids
/// and labels as they are sent.
Bytes size_limit(const Instruction& transfer);
/// Allocates the tensors that a header describes, to be filled by the receiver.
/// @throws EnvironmentError when the header is malformed, or the tensors would take more than `most` bytes together;
/// then nothing beyond `most` has been allocated.
Message allocate_message(TcpLink::Bytes header, TensorMemory memory, Bytes most);

}  // namespace isobar::exec
