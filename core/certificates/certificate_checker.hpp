#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace isobar {

/// The result of recomputing a certificate.
struct CertificateCheck {
  Seconds proven;  ///< no placement has a smaller objective, of a chain no chain; 0 if there are faults
  std::vector<std::string> faults;  ///< one line each: the key, what it claims, what it is
};

/// Default limit on the work of a check, about four minutes: a small file can require any amount of work.
inline constexpr std::uint64_t most_certificate_steps = 50'000'000'000;

/// Recomputes the lower bound that a plan's certificate proves (docs/certificates.md), with code that no allocator uses
/// and without the cost model.
///
/// It is a fault if the certificate is malformed, or if `objective_bound` exceeds the proven bound by more than 1e-9
/// relative, or the proven bound so exceeds `objective`. Cuts are those of the workload's chain view. The plan itself
/// is not checked; `faults_of` does that. A plan without a bound has nothing to prove. O(L log L + D log D) for
/// `fractional`; a pass over the cuts per rung for `path`. A check that needs more than `most_steps` steps of work, or
/// 2 GB for one of its tables, is a fault. @throws Interrupted
CertificateCheck check_certificate(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                   std::uint64_t most_steps = most_certificate_steps);

/// Only the faults of `check_certificate`.
std::vector<std::string> faults_of_certificate(const Plan& plan, const Workload& workload, const Cluster& cluster);

}  // namespace isobar
