#pragma once

#include "core/units.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// How a lower bound on the objective was proven.
enum class CertificateKind {
  None,        ///< claims 0
  Fractional,  ///< layers cut anywhere; found anew from the inputs alone
  Path,        ///< multipliers on "each device once"; found anew by one pass over the cuts per rung
  Search,      ///< the same multipliers; below the bound the labels of a search run out, which is searched again
  PhaseFlow    ///< an integer program over the phases of a repeating chain has no solution at a limit; solved again
};

std::string_view name_of(CertificateKind kind);  ///< "none", "fractional", "path", "search", "phase-flow"
std::optional<CertificateKind> certificate_kind_from_name(std::string_view name);
std::vector<std::string> certificate_kind_names();

/// Up to so many ways to use the kinds of a group in a run, they are counted apart.
inline constexpr std::size_t most_run_rooms = 128;

/// What proves a lower bound on an objective alpha x max + beta x sum of the stages' costs s_i: (1, 0) for bottleneck,
/// (0, 1) for sequential, (M-1, 1) for pipeline. The step is at least that of its turns and costs, (M-1, 1) too or (0,
/// M) for schedule sequential; limits hold for turns. docs/certificates.md has the proofs.
///
/// A rung with slots K counts the costs of stages with fewer than K behind them, and of the transfers behind these,
/// 1 + floor((M-1)/K) times, and the largest turn not at all.
///
/// Path. Rungs T_1 < T_2 < …, the last may be infinite, each with a multiplier u_d >= 0 per device. Let U(T, u) be the
/// least of  beta x (input + sum of s_i) + sum of u_d  over all sequences of stages that cut the chain, each with
/// s_i <= T, within its device's memory, where a device may be used again and again. Every placement is such a sequence
/// and uses each device once at most, so its sum is at least U(T, u) - sum of all u_d. A placement whose largest cost
/// lies in ]T_{j-1}, T_j] (T_0 = 0) costs at least alpha T_{j-1} + beta-part(U(T_j, u_j) - sum u_j): none exists where
/// U is infinite, or, for beta = 0, where U exceeds sum u_j. Above the last rung the objective exceeds
/// (alpha + beta) T_R. The bound is the least of all these.
///
/// Neighbouring stages in one group are a run; what placements cannot do, runs may not either. Let the devices of a
/// group be of kinds, those of one kind alike in everything that U looks at. A run uses each kind at most as often as
/// it has devices, where the product of (devices of the kind + 1) over the group's kinds is at most `most_run_rooms`;
/// elsewhere a run is at most as long as the group has devices. Where there is one group, runs are as they like.
///
/// Two things make U easier, and smaller. Devices are put into groups, and a stage pays for a transfer to a group what
/// the nearest device of it asks, itself left out. A stage with n stages after it holds the micro-batches in flight of
/// one with min(n, levels - 1).
struct Certificate {
  struct Rung {
    std::optional<Seconds> limit;     ///< none: infinite
    std::vector<double> multipliers;  ///< of each device, in the order of the cluster
    std::size_t slots = 0;            ///< of the step under 1f1b: whose round trips the sum counts; 0: none

    friend bool operator==(const Rung&, const Rung&) = default;
  };

  CertificateKind kind = CertificateKind::None;
  std::vector<std::size_t> groups = {};  ///< of each device, counted from 0 without gaps; empty: all in group 0
  std::size_t levels = 1;
  std::vector<Rung> rungs = {};  ///< path, search: at least one, ascending; phase-flow: one, without multipliers

  friend bool operator==(const Certificate&, const Certificate&) = default;
};

}  // namespace isobar
