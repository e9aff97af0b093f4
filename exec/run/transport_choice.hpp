#pragma once

#include <string>

namespace isobar::exec {

/// What carries tensors between ranks that are processes.
enum class TransportChoice {
  Tcp,   ///< through the host
  Nccl,  ///< from GPU to GPU, between any two stages
  Auto   ///< NCCL between different GPUs of one machine that both have it, in one version; else TCP
};
const char* name_of(TransportChoice choice);
/// @throws InputError naming --transport.
TransportChoice transport_from_text(const std::string& text);

/// What decides which transport a link takes, of one rank. Numbers, so that the ranks' sums tell them to all; exact as
/// doubles.
struct Reach {
  double nccl = 0;     ///< its version; 0: none, or no GPU
  double machine = 0;  ///< a hash
  double gpu = 0;      ///< a hash of its place in the machine
};
/// "" where the link from one rank to another takes NCCL, else why not: "the same GPU".
std::string why_not_nccl(const Reach& from, const Reach& to, TransportChoice choice);

}  // namespace isobar::exec
