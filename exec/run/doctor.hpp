#pragma once

#include "core/plan/plan.hpp"
#include "exec/launch/link_probe.hpp"
#include "exec/run/machine_needs.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// One property of the machine that a run depends on, as measured.
struct Finding {
  enum class Verdict { Good, Doubtful, Bad };

  Verdict verdict = Verdict::Good;
  std::string subject;  ///< "memory", "link to rank 2"
  std::string text;     ///< the measurement; if not good, what is wrong
};

struct DoctorOptions {
  std::optional<Plan> plan;        ///< the memory it needs must be available
  std::vector<MachineNeed> needs;  ///< what else it needs of this machine
  std::uint64_t micro_batch = 8;   ///< of the matrix product and the attention that are timed
  std::uint64_t sequence = 128;
  std::string device = "cpu";  ///< "cpu", "cuda:0"
  std::size_t threads = 1;
  std::size_t connections = 4;      ///< links are measured with 1, 2, 4, … and this many TCP connections
  std::optional<std::size_t> rank;  ///< with `ranks`: this rank; its links are measured. Absent: loopback only
  std::vector<Endpoint> ranks;
  TcpOptions tcp;  ///< with `ranks`: secret, TLS and listening address
};

/// Examines the machine: processor, available memory, speed of matrix products and attention, accuracy of sleeps (which
/// emulation needs), links, and the clock offset to rank 0. Takes some seconds, plus some for each link. With `ranks`,
/// all ranks must call it.
/// @throws as TcpWorld does: an unreachable rank is an error, not a finding.
std::vector<Finding> examine(const DoctorOptions& options);

}  // namespace isobar::exec
