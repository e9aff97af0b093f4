#pragma once

#include "core/units.hpp"
#include "exec/launch/preflight.hpp"
#include "exec/net/secret.hpp"
#include "exec/net/tcp_listener.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace isobar::exec {

struct RendezvousOptions {
  std::size_t rank = 0;
  std::size_t ranks = 1;
  Endpoint master;  ///< where rank 0 listens
  std::shared_ptr<const Secret> secret;
  bool tls = false;
  std::string bind;      ///< an address or an interface to listen on; "": the address that the others see
  Seconds deadline{60};  ///< until all ranks are there
};

/// What a rank knows once all have met and nothing speaks against the run.
struct Meeting {
  std::size_t device = 0;           ///< which of the plan's devices this rank is
  std::vector<Endpoint> endpoints;  ///< of all, by device
  TcpListener listener;             ///< this rank's own, open at its endpoint
  std::string in_words;             ///< on rank 0, for people: who is who; "" elsewhere
};

/// Brings the ranks of a run together. Rank 0 listens at the master's address; the others call it, prove the secret,
/// and say what they are. Each opens a listener on a free port of the address from which it reaches rank 0. Rank 0
/// examines all, and tells everyone where the others are, or every reason why there is no run.
///
/// Where the master's name means the loopback interface on rank 0's own machine, as distributions set it up, rank 0
/// listens on all interfaces instead, since to the others it means another one.
/// @throws InputError, the same on all ranks, with the reasons of the preflight, or for two processes that say they are
/// the same rank; EnvironmentError naming the ranks that are missing at the deadline, or two that would begin at
/// different steps, or the master that does not answer, or an address that cannot be listened on; Interrupted.
Meeting meet(const RendezvousOptions& options, const RankFacts& facts, const Preflight& preflight);

}  // namespace isobar::exec
