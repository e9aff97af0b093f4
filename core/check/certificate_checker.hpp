#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace isobar {

/// What a certificate amounts to when it is recomputed.
struct CertificateCheck {
  Seconds proven;                   ///< no placement has a smaller objective; 0 where there are faults
  std::vector<std::string> faults;  ///< one line each: the key, what it claims, what it is
};

/// Some four minutes: a small file can ask for any amount of work.
inline constexpr std::uint64_t most_certificate_steps = 50'000'000'000;

/// Recomputes the lower bound that a plan's certificate proves (docs/certificates.md), by code that no allocator uses
/// and without the cost model, and finds fault where the certificate is malformed or `objective_bound` is above the
/// bound proven by more than 1e-9 relative. Cuts are those of the workload's chain view. Says nothing about the plan
/// itself, which `faults_of` checks; a plan without a bound has nothing to prove.
/// O(L log L + D log D) for `fractional`; a pass over the cuts per rung for `path`. What takes more than `most_steps`
/// steps of work, or 2 GB for one of its tables, is a fault. @throws Interrupted
CertificateCheck check_certificate(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                   std::uint64_t most_steps = most_certificate_steps);

/// The faults alone.
std::vector<std::string> faults_of_certificate(const Plan& plan, const Workload& workload, const Cluster& cluster);

}  // namespace isobar
