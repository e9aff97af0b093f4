#pragma once

#include <string>

namespace isobar::exec {

/// How tensors travel between ranks that are processes.
enum class TransportChoice {
  Tcp,   ///< through the host
  Nccl,  ///< from GPU to GPU, between any two stages
  Auto   ///< NCCL between different GPUs of one machine that have the same version of it; otherwise TCP
};
const char* name_of(TransportChoice choice);
/// @throws InputError naming --transport.
TransportChoice transport_from_text(const std::string& text);

/// What decides, for one rank, which transport its links use. Numbers that are exact as doubles, so that an all-reduce
/// can distribute them.
struct Reach {
  double nccl = 0;     ///< NCCL's version; 0: no NCCL or no GPU
  double machine = 0;  ///< hash of the machine's identity
  double gpu = 0;      ///< hash of the GPU's place in the machine
};
/// Why the link from one rank to another does not use NCCL, such as "the same GPU"; "" if it does.
std::string why_not_nccl(const Reach& from, const Reach& to, TransportChoice choice);

}  // namespace isobar::exec
