#pragma once

#include "allocators/exact/stage_tables.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace isobar::allocators {

/// A chain that repeats: `prefix` layers, then `repeats` times `period` layers, then the rest. Layers repeat when their
/// work and memory do. The prefix has at least one layer, where the chain begins.
struct Repetition {
  std::size_t prefix = 1;
  std::size_t period = 1;
  std::size_t repeats = 0;

  std::size_t end() const { return prefix + period * repeats; }
};

/// The longest period that is searched for; a transformer layer in Sky's split has three parts.
inline constexpr std::size_t longest_period = 3;

/// Finds the longest repetition with a period of at most `longest_period` that covers more than half of the chain;
/// among equals the shortest period. O(layers x longest_period).
std::optional<Repetition> repetition_of(const CostModel& cost);

/// Decides whether a repeating chain has a placement within a limit on the bottleneck, without transfers.
///
/// Only the longest stages matter, since any part of a stage that fits also fits. So the device and the phase at which
/// a stage of the repeating part begins determine that stage: it is an arc between phases that covers a number of
/// layers. A placement is a trail from the beginning to the end with at most one arc per device. A choice of arcs is a
/// placement if and only if the arcs balance at each phase, are connected and cover the chain.
///
/// Whether such a choice exists is an integer program with few more rows than phases. A dynamic program over devices
/// solves it; its state is the imbalance at each node. Potentials of the nodes (the duals of the rows) give the loss of
/// each choice for a device. States whose total loss is larger than that of any solution are dropped, which keeps the
/// program small: 1,023 devices take some ten thousand states at a time.
///
/// O(devices x states x arcs of a device) time, O(devices x states) memory. Source: the arcs are our own; the pruning
/// is reduced-cost fixing (Dantzig, Fulkerson, Johnson, 1954).
class PhaseFlow {
 public:
  /// The tables must be hereditary (StageTables::is_hereditary). `check` is called regularly and may throw. Keeps
  /// references.
  PhaseFlow(const StageTables& tables, const Repetition& repetition, std::function<void()> check);

  /// False when a state does not fit into 64 bits: many phases or layers outside the repetition.
  bool is_small_enough() const;

  enum class Verdict { Feasible, Infeasible, Unknown };
  struct Answer {
    Verdict verdict = Verdict::Unknown;
    std::vector<StagePlacement> stages;  ///< when feasible
  };
  /// Searches for a placement within the limit; where costs count, for one with a sum below `ceiling`. Keeps at most
  /// `most_states` states after each device. The verdict is Unknown only when those were too few, or when memory
  /// depends on the schedule and a solution violates it.
  Answer solve(double limit, std::size_t most_states, double ceiling = 0);

  /// Where costs count: a lower bound on the sum of every placement within the limit.
  double least_sum(double limit);
  /// The value of each kind by the potentials: multipliers of a path certificate.
  std::vector<double> multipliers() const;

  /// True when the potentials alone prove that no placement is within the limit. O(devices x arcs) a step.
  bool potentials_refuse(double limit);

  /// The largest limit below `known` that the potentials refuse, to 1e-9 relative, starting from `refused`; 0 when they
  /// refuse none. Afterwards the potentials are those of that limit.
  double largest_refused_limit(double refused, double known);

  /// The least limit above `limit` at which some stage becomes longer; infinity when there is none.
  double next_limit(double limit) const;

 private:
  /// Covers are whole numbers of layers; potentials are not.
  static constexpr double cover_resolution = 1e-6;

  struct Arc {
    std::uint8_t from;
    std::uint8_t to;
    std::uint32_t covers;
    double cost;  // 0 where only the largest counts
  };
  struct Chosen {
    std::uint32_t device;
    Arc arc;
  };
  /// A set of phases that a solution did not connect with the beginning. Any arc inside it then requires an arc that
  /// crosses its border.
  using Subset = std::uint32_t;
  class Key;
  struct Preference;
  class Outlook;

  std::size_t phase_bits() const;
  std::size_t key_bits() const;
  std::size_t cover_bits() const;
  std::size_t node_of(std::size_t position) const;
  bool is_phase(std::size_t node) const;
  bool is_in(Subset subset, std::size_t node) const;
  std::size_t reach(std::size_t kind, std::size_t first, double limit) const;
  /// The quantity that limits hold for; for the step the least over all positions of the stage.
  double turn(std::size_t kind, std::size_t first, std::size_t end) const
  {
    return tables_.turn(tables_.levels() - 1, kind, first, end);
  }
  template <typename Visit>
  void for_each_beginning(std::size_t kind, double limit, const Visit& visit) const;
  void find_arcs(double limit, bool all);
  double price() const { return potential_.back(); }
  double gain(const Arc& arc) const
  {
    return price() * arc.covers - arc.cost + potential_[arc.from] - potential_[arc.to];
  }
  void add_arc(std::vector<Arc>& arcs, std::size_t kind, std::size_t first, std::size_t end, bool all) const;
  double least_cost() const;
  double excess(std::vector<double>& slope) const;
  double improve_potentials(double precision, double enough);
  std::vector<Preference> preferences() const;
  std::optional<std::vector<Chosen>> choose(double ceiling, std::size_t most_states, bool& dropped);
  std::optional<Subset> detached(const std::vector<Chosen>& chosen) const;
  std::vector<StagePlacement> placement(const std::vector<Chosen>& chosen, double limit) const;

  const StageTables& tables_;
  bool counts_costs_;
  Repetition repetition_;
  std::function<void()> check_;
  std::size_t nodes_;
  std::vector<std::vector<Arc>> arcs_;  // by kind
  std::vector<double> potential_;       // by node, and the price of a layer
  std::vector<Subset> subsets_;         // watched by the states
  std::vector<std::uint32_t> devices_;  // in the order of the dynamic program
};

}  // namespace isobar::allocators
