#pragma once

#include "exec/launch/rendezvous.hpp"

namespace isobar::exec::rendezvous {

/// Rank 0's part of `meet`: waits for the others, examines their facts, and sends them its decision.
Meeting meet_as_master(const RendezvousOptions& options, const RankFacts& facts, const Preflight& preflight);

}  // namespace isobar::exec::rendezvous
