#pragma once

#include "core/base/interrupt.hpp"
#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/certificate.hpp"
#include "core/plan/plan.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

/// The rooms of the certificate checker: what they share, and one function per kind. Nothing else includes this.
namespace isobar::proofs {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Comparisons lean to the side that keeps placements, so that rounding never proves too much.
constexpr double rounding = 1e-12;

/// What a placement's memory may exceed a device's by, as the plan checker allows.
constexpr double memory_tolerance = 1e-9;

/// The certificate is refused, since checking it would take more than Effort allows.
struct TooMuchEffort {
  std::string fault;
};

/// What a check may take: a small file can ask for any amount of work.
class Effort {
 public:
  explicit Effort(std::uint64_t most_steps) : most_steps_(most_steps) {}

  /// Takes some steps, few enough for an interrupt to wait for. @throws TooMuchEffort, Interrupted
  void take(std::uint64_t steps)
  {
    throw_if_interrupted();
    steps_ += steps;
    if (steps_ > most_steps_) refuse_steps();
  }
  /// @throws TooMuchEffort where `what`, so many of so many bytes each, are too large to keep.
  static void ensure_room(std::uint64_t count, std::uint64_t bytes, const char* what)
  {
    if (count > most_bytes / bytes) refuse_bytes(what);
  }

 private:
  static constexpr std::uint64_t most_bytes = 2'000'000'000;

  [[noreturn]] void refuse_steps() const;
  [[noreturn]] static void refuse_bytes(const char* what);

  std::uint64_t most_steps_;
  std::uint64_t steps_ = 0;
};

/// A chain of layers on a cluster, by sums of its own from the layers and the cluster. Cut k lies before layer k.
struct Chain {
  Chain(const Workload& chain, const Cluster& devices, const Plan& asked, Effort& spent);

  std::size_t layers = 0;
  std::size_t devices = 0;
  Goal goal;
  bool is_sky = false;                  ///< memory is Sky's estimator
  std::vector<double> work;             ///< FLOP, forward and backward, of the layers before each cut
  std::vector<double> forward;          ///< FLOP, forward, likewise
  std::vector<double> update;           ///< FLOP, of an update, likewise
  std::vector<double> parameter_bytes;  ///< of the layers before each cut
  std::vector<double> activations;      ///< likewise, of one micro-batch
  std::vector<double> sky_memory;       ///< likewise
  double recompute_buffer = 0;          ///< of every stage
  std::vector<double> output;           ///< bytes over each cut, forward
  std::vector<double> gradient;         ///< and back
  std::vector<double> speed;            ///< of each device
  std::vector<double> memory;           ///< of each device
  std::vector<double> input_s;          ///< what each device waits for its input; 0 where it is local
  std::vector<double> input_turn_s;     ///< of that, what limits hold for
  const Cluster* cluster = nullptr;
  bool latency_counts = true;  ///< in what stages send
  Effort& effort;              ///< of all that is proven of it

  /// What the goal counts of a transfer between two endpoints.
  double transfer_s(const Path& path, double bytes) const
  {
    return (latency_counts ? path.latency.value : 0) + bytes / path.bandwidth.value;
  }

  double compute_s(std::size_t device, std::size_t first_cut, std::size_t end_cut) const
  {
    return (work[end_cut] - work[first_cut]) / speed[device];
  }
  /// Bytes that the layers between two cuts need without buffers; never less with one layer more.
  double need_of_layers(std::size_t first_cut, std::size_t end_cut, std::uint64_t held) const
  {
    if (is_sky) return sky_memory[end_cut] - sky_memory[first_cut];
    return parameter_bytes[end_cut] - parameter_bytes[first_cut] +
           (activations[end_cut] - activations[first_cut]) * static_cast<double>(held);
  }
  /// Bytes for the transfers over a cut.
  double buffer(std::size_t cut) const { return is_sky ? 0 : output[cut] + gradient[cut]; }
  /// Bytes that the layers between two cuts need with `held` micro-batches in flight.
  double need(std::size_t first_cut, std::size_t end_cut, std::uint64_t held) const
  {
    return need_of_layers(first_cut, end_cut, held) + buffer(first_cut) + buffer(end_cut) + recompute_buffer;
  }
  /// s_i.
  double cost(double compute, double send) const
  {
    if (goal.communication == Communication::None) return compute;
    return goal.communication == Communication::Overlapped ? std::max(compute, send) : compute + send;
  }
  std::uint64_t held_by(std::size_t stages_after) const;
  /// True for the step: limits hold for turns, and the bound is of these (docs/certificates.md).
  bool has_turns() const { return goal.objective == Objective::Step; }
  /// Of the compute of a stage with so many micro-batches in flight at most; for other objectives all of it.
  double turn_s(std::size_t device, std::size_t first_cut, std::size_t end_cut, std::uint64_t in_flight) const;
  /// Of the lanes over a cut, whose bytes take so long each way.
  double lane_turn_s(double there, double back) const
  {
    return goal.schedule == Schedule::GPipe ? there + back : std::max(there, back);
  }
  /// The most micro-batches in flight on stages that `level` of `levels` stands for.
  std::uint64_t most_in_flight(std::size_t level, std::size_t levels) const;
  /// The objective is alpha x largest + beta x sum, or for the step at least that.
  double alpha() const;
  double beta() const;
};

/// True when a stage never needs less memory with another layer, however few micro-batches are in flight.
bool memory_is_hereditary(const Chain& chain);

/// What transfers between devices and groups of devices take at each cut: from a device to the nearest other device of
/// a group; where there are turns, the nearest over whose lanes they are within `limit`, infinity where there is none.
/// Zero where the goal does not count transfers; then all devices are one group.
class GroupTransfers {
 public:
  GroupTransfers(const Chain& chain, const std::vector<std::size_t>& group_of_device, double limit = infinity);

  std::size_t groups() const { return groups_; }
  std::size_t group_of(std::size_t device) const { return group_of_.empty() ? 0 : group_of_[device]; }
  /// Activations over a cut to each group; gradients back likewise.
  const double* output(std::size_t device, std::size_t cut) const { return row(output_, device, cut); }
  const double* gradient(std::size_t device, std::size_t cut) const { return row(gradient_, device, cut); }
  /// True when transfers of two devices take as long at every cut.
  bool are_alike(std::size_t a, std::size_t b) const;
  /// No transfer to any group.
  const double* nothing() const { return nothing_.data(); }

 private:
  const double* row(const std::vector<double>& table, std::size_t device, std::size_t cut) const
  {
    return table.empty() ? nothing_.data() : &table[(device * cuts_ + cut) * groups_];
  }

  void tabulate(const Chain& chain);
  void tabulate_within(const Chain& chain, double limit);

  std::size_t groups_ = 1;
  std::size_t cuts_ = 0;
  std::vector<std::size_t> group_of_;
  std::vector<double> nothing_;
  std::vector<double> output_;    // [device][cut][group]
  std::vector<double> gradient_;  // likewise
};

/// What a run, neighbouring stages in one group, may still use of its group: a number for each way that there is.
/// Devices of a group are one kind where nothing tells them apart (core/plan/certificate.hpp).
class Runs {
 public:
  Runs(const Chain& chain, const GroupTransfers& transfers, const std::vector<double>& multipliers);

  /// One device of each kind.
  const std::vector<std::size_t>& representatives() const { return representatives_; }
  /// Ways of a group; the last one has everything.
  std::size_t ways(std::size_t group) const { return ways_[group]; }
  std::size_t everything(std::size_t group) const { return ways_[group] - 1; }
  /// Ways of all groups before this one; of all for the number of groups.
  std::size_t ways_before(std::size_t group) const { return ways_before_[group]; }
  /// What is left of one way with a device of the kind used; none where there is none left.
  std::optional<std::size_t> with_use(std::size_t way, std::size_t kind) const
  {
    const std::size_t share = shares_[kind];
    if (share == 0) return way;
    if (way / share % (most_[kind] + 1) == 0) return std::nullopt;
    return way - share;
  }
  /// What is left of everything after one use of the device.
  std::size_t without(std::size_t device) const
  {
    return everything(group_of_kind_[kinds_[device]]) - shares_[kinds_[device]];
  }
  /// What is left of the device's group where devices are used, itself among them.
  template <typename IsUsed>
  std::size_t left_beside(std::size_t device, const IsUsed& is_used) const
  {
    const std::size_t group = group_of_kind_[kinds_[device]];
    std::size_t left = everything(group);
    for (std::size_t i = 0; i < kinds_.size(); ++i) {
      if (group_of_kind_[kinds_[i]] == group && is_used(i)) left -= shares_[kinds_[i]];
    }
    return left;
  }

 private:
  std::vector<std::size_t> kinds_;          // of each device
  std::vector<std::size_t> group_of_kind_;  // and of each kind:
  std::vector<std::size_t> representatives_;
  std::vector<std::size_t> shares_;  // what a use takes from a way; 0 where uses are not counted
  std::vector<std::size_t> most_;    // uses that are counted together with this kind's
  std::vector<std::size_t> ways_;    // of each group
  std::vector<std::size_t> ways_before_;
};

/// The least cost of all layers before a cut, in stages that each cost `limit` at most and fit on their device, where a
/// stage on device d costs its multiplier more and devices may be used again, though not within a run:
/// beta x (input + sum of s_i) + sum of u_d.
class PathTable {
 public:
  PathTable(const Chain& chain, const GroupTransfers& transfers, std::size_t levels, const Certificate::Rung& rung);

  /// Layers before `cut`, the last stage on a device of `group`, the next on one of `next`; `after` stages follow.
  /// Where the groups are the same, the stages before find what is `left` of it.
  double before(std::size_t cut, std::size_t after, std::size_t group, std::size_t next, std::size_t left) const
  {
    const std::size_t level = std::min(after, levels_ - 1);
    return group == next ? staying_[stay(level, cut, group) + left] : least_[index(level, cut, group, next)];
  }
  const Runs& runs() const { return runs_; }
  /// All layers: U(T, u).
  double all() const;
  /// `limit`, rounded up.
  double limit() const { return limit_; }
  double sum_of_multipliers() const { return sum_; }

 private:
  std::size_t index(std::size_t level, std::size_t cut, std::size_t group, std::size_t next) const
  {
    return ((level * cuts_ + cut) * groups_ + group) * groups_ + next;
  }
  std::size_t stay(std::size_t level, std::size_t cut, std::size_t group) const
  {
    return (level * cuts_ + cut) * runs_.ways_before(groups_) + runs_.ways_before(group);
  }
  double weight_of(std::size_t level, std::size_t slots) const;
  /// What a stage of the level adds to the sum, weighted.
  double counted(std::size_t level, double compute, double sent_on, double sent_back) const;
  void fill();
  void fill_cell(std::size_t cut, std::size_t level);
  void fill_cell_by(std::size_t kind, std::size_t cut, std::size_t level);
  void fill_without_transfers();

  const Chain& chain_;
  const GroupTransfers& transfers_;
  const std::vector<double>& multipliers_;
  Runs runs_;
  std::size_t levels_;
  std::size_t cuts_;
  std::size_t groups_;
  double limit_;
  double most_cost_;  // infinite where the limit holds for turns
  double beta_;
  double sum_ = 0;
  std::vector<double> weights_;             // of each level: beta, or more where slots are counted
  std::vector<double> least_;               // [level][cut][group][next], between groups
  std::vector<double> staying_;             // [level][cut][group][what is left], within a group
  std::vector<double> least_of_any_group_;  // [level][cut][next]
};

/// As many levels as can differ: micro-batches in flight beyond M, and stages beyond the devices, tell nothing apart.
std::size_t levels_of(const Chain& chain, const Certificate& certificate);

/// What tables for such groups of devices, counted from 0 without gaps, would be refused for; "" when they can be made.
std::string fault_of_size(const Chain& chain, const std::vector<std::size_t>& group_of_device, std::size_t levels);

double path_bound(const Chain& chain, const Certificate& certificate);

/// What a search found: an objective below the bound, or why it ended before it found any or none.
struct SearchFinding {
  double least = infinity;
  std::string fault;
};
SearchFinding search_below(const Chain& chain, const Certificate& certificate, double bound);
/// The same for the step: placements are played.
SearchFinding search_steps_below(const Chain& chain, const Certificate& certificate, double bound);

/// A limit below which no placement's largest cost is, proven by an integer program without a solution; 0 and faults
/// where it is not.
double phase_flow_bound(const Chain& chain, const Certificate& certificate, std::vector<std::string>& faults);

/// The objective is at least so many times the largest compute of a stage, and beta times their sum: alpha, or for the
/// step what turns are of compute at least.
double least_turns(const Chain& chain);

/// The bound for layers that may be cut anywhere; infinite where all memory together is too small.
double fractional_bound(const Chain& chain);

}  // namespace isobar::proofs
