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
  Endpoint master;                  ///< where rank 0 listens
  std::string master_advice = {};   ///< what to change when rank 0 cannot listen there
  std::string missing_advice = {};  ///< what to change when ranks on other machines are missing; "": nothing known
  std::shared_ptr<const Secret> secret;
  bool tls = false;
  std::string bind;      ///< address or interface to listen on; "": the address that the others see
  Seconds deadline{60};  ///< until all ranks are connected
};

/// What a rank knows once all ranks have met and found no reason against the run.
struct Meeting {
  std::size_t device = 0;           ///< index of this rank's device in the plan
  std::vector<Endpoint> endpoints;  ///< of all ranks, by device
  TcpListener listener;             ///< this rank's own, open at its endpoint
  std::string summary;              ///< on rank 0, for people: the device of each rank; "" elsewhere
};

/// Brings the ranks of a run together. Rank 0 listens at the master's address; the others connect to it, prove the
/// secret and report their facts. Each rank opens a listener on a free port of the address from which it reaches rank
/// 0. Rank 0 examines all facts and sends every rank the endpoints of the others, or all reasons against the run.
///
/// The master's name may begin to resolve later, as that of a container does: all ranks look it up until the deadline.
/// If the name resolves to the loopback interface on rank 0's own machine, as distributions configure it, rank
/// 0 listens on all interfaces instead, since the name resolves to another address elsewhere.
/// @throws InputError, the same on all ranks, with the faults of the preflight, or when two processes claim the same
/// rank; EnvironmentError naming the ranks that are missing at the deadline, two ranks that would begin at different
/// steps, a master that does not answer, or an address on which this rank cannot listen; Interrupted.
Meeting meet(const RendezvousOptions& options, const RankFacts& facts, const Preflight& preflight);

}  // namespace isobar::exec
