#pragma once

#include "core/units.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// How a lower bound on the objective was proven, and how the proof is checked.
enum class CertificateKind {
  None,        ///< claims 0
  Fractional,  ///< layers may be cut anywhere; recomputed from the inputs alone
  // Of a chain (is_chain):
  Path,       ///< multipliers on "each device once"; recomputed by one pass over the cuts per rung
  Search,     ///< the same multipliers; a search finds nothing below the bound; searched again
  PhaseFlow,  ///< an integer program over the phases of a repeating chain has no solution at a limit; solved again
  // Of other plans:
  DtFm,   ///< a search over the groups of replicas finds no lower cost of communication; searched again
  Load,   ///< multipliers on the load of each device; recomputed by one pass over the cuts
  Window  ///< work, copies and updates of a device with its machine; recomputed from the inputs alone
};

/// "none", "fractional", "path", "search", "phase-flow", "dtfm", "load", "window".
std::string_view name_of(CertificateKind kind);
std::optional<CertificateKind> certificate_kind_from_name(std::string_view name);
std::vector<std::string> certificate_kind_names();

/// In how many equal parts the bound of kind `window` divides the memory of a device for layers that stay on it.
inline constexpr std::size_t window_bound_parts = 1'024;

/// Largest number of combinations of uses of a group's device kinds in a run for which the kinds are counted
/// separately.
inline constexpr std::size_t most_run_states = 128;

/// The proof of a lower bound on an objective; docs/certificates.md has the mathematics.
///
/// The objective is alpha x max + beta x sum of the stages' costs s_i, with (alpha, beta) = (1, 0) for bottleneck, (0,
/// 1) for sequential and (M-1, 1) for pipeline. The step is at least such a value of its turns and costs, with (M-1,
/// 1), or (0, M) for schedule sequential; limits apply to turns. Under schedules without a recurrence it is at least M
/// x the largest compute of a device, which the fractional bound uses.
///
/// A rung with slots K counts the costs of stages with fewer than K stages after them, and of the transfers after these
/// stages, 1 + floor((M-1)/K) times, and does not count the largest turn.
///
/// Path. Rungs T_1 < T_2 < …, the last may be infinite, each with a multiplier u_d >= 0 per device. Let U(T, u) be the
/// least of  beta x (input + sum of s_i) + sum of u_d  over all sequences of stages that cut the chain, each with s_i
/// <= T, within its device's memory, where devices may be reused. Every placement is such a sequence and uses each
/// device at most once, so its sum is at least U(T, u) - sum of all u_d. A placement whose largest cost lies in
/// (T_{j-1}, T_j], with T_0 = 0, costs at least alpha T_{j-1} + beta-part(U(T_j, u_j) - sum u_j): none exists where U
/// is infinite, or, for beta = 0, where U exceeds sum u_j. Above the last rung the objective exceeds (alpha + beta)
/// T_R. The bound is the least of all these.
///
/// Neighbouring stages in one group form a run, and the reuse of devices within a run is limited. Devices of a group
/// are of one kind if they are alike in everything that U uses. A run uses each kind at most as often as it has
/// devices, if the product of (devices of the kind + 1) over the group's kinds is at most `most_run_states`; otherwise
/// a run is at most as long as the group has devices. With a single group, runs are not limited.
///
/// Two simplifications make U smaller and cheaper to compute. Devices are put into groups, and a stage pays for a
/// transfer to a group what the group's nearest device (other than itself) costs. A stage with n stages after it holds
/// the micro-batches in flight of one with min(n, levels - 1).
///
/// DtFm. Devices of a group are interchangeable. Each rung is a limit on the time of a stage's gradient sync; its
/// multipliers prune the search for stages that sync within it. What syncs longer than the last rung costs at least
/// that much and the cheapest transfers.
///
/// Load. For objective step. One rung: within its limit T, micro-batch for micro-batch, the layers pass through runs on
/// devices, and a device has time for at most n of a run. So a run takes 1/n of a device for each micro-batch. No
/// plan's step is within T if M x the least sum of multiplier / n over sequences of runs exceeds the sum of the
/// multipliers of all devices. Groups are kinds of devices, which count as the fastest of the group and as the one with
/// most memory.
struct Certificate {
  struct Rung {
    std::optional<Seconds> limit;     ///< none: infinite
    std::vector<double> multipliers;  ///< of each device, in the order of the cluster; dtfm, load: of each group
    std::size_t slots = 0;            ///< K above, only for the step under 1f1b: counts round trips; 0: none

    friend bool operator==(const Rung&, const Rung&) = default;
  };

  CertificateKind kind = CertificateKind::None;
  std::vector<std::size_t> groups = {};  ///< of each device, counted from 0 without gaps; empty: all in group 0
  std::size_t levels = 1;
  /// Ascending. Path, search: at least one; dtfm: any; load: one; phase-flow: one without multipliers.
  std::vector<Rung> rungs = {};

  friend bool operator==(const Certificate&, const Certificate&) = default;
};

}  // namespace isobar
