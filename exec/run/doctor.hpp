#pragma once

#include "core/plan/plan.hpp"
#include "exec/net/link_probe.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// What a run needs of the machine, and how it was found to be.
struct Finding {
  enum class Verdict { Good, Doubtful, Bad };

  Verdict verdict = Verdict::Good;
  std::string subject;  ///< "memory", "link to rank 2"
  std::string text;     ///< what was measured; if not good, what would help
};

struct DoctorOptions {
  std::optional<Plan> plan;       ///< whose memory must be there
  std::uint64_t micro_batch = 8;  ///< of the products and the attention that are timed
  std::uint64_t sequence = 128;
  std::string device = "cpu";  ///< "cpu", "cuda:0"
  std::size_t threads = 1;
  std::size_t flows = 4;            ///< links are measured with 1 and with as many connections
  std::optional<std::size_t> rank;  ///< with `ranks`: this one's links to and from the others; else loopback alone
  std::vector<Endpoint> ranks;
  TcpOptions tcp;  ///< with `ranks`: the secret, TLS and where to listen
};

/// Looks at the machine: processor, free memory, what matrix products and attention run at, how exactly it sleeps (what
/// emulation needs), the links, and the clocks of the other ranks. Some seconds, and some for each link. With ranks,
/// all of them call it. @throws as TcpWorld does: a rank that cannot be reached is no finding.
std::vector<Finding> examine(const DoctorOptions& options);

}  // namespace isobar::exec
