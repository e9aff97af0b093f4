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

/// Internals of the certificate checker: what its parts share, and one function per kind of certificate. Only
/// certificate_*.cpp include this.
namespace isobar::proofs {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Relative difference below which steps count as equal.
constexpr double tolerance = 1e-9;

/// Tolerance of comparisons, in favour of keeping placements, so that rounding never proves too much.
constexpr double rounding = 1e-12;

/// By how much a placement's memory may exceed a device's, as in the plan checker.
constexpr double memory_tolerance = 1e-9;

/// Thrown when checking a certificate would take more than Effort allows.
struct TooMuchEffort {
  std::string fault;
};

/// Limits the time and memory of a check, since a small file can require any amount of work.
class Effort {
 public:
  explicit Effort(std::uint64_t most_steps) : most_steps_(most_steps) {}

  /// Counts steps of work. Call it often enough that an interrupt need not wait long. @throws TooMuchEffort,
  /// Interrupted
  void take(std::uint64_t steps)
  {
    throw_if_interrupted();
    steps_ += steps;
    if (steps_ > most_steps_) refuse_steps();
  }
  /// Checks that `count` objects of `bytes` each fit in memory; `what` names them. @throws TooMuchEffort if not.
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

/// Sums of work (LayerWork) over the layers before each cut.
struct WorkSums {
  std::vector<double> both;     ///< forward and backward
  std::vector<double> forward;  ///< of `both`
  std::vector<double> update;
};

/// The rate at which a device does its work of layers; no pass of a layer takes less than the layer's work by
/// reference_times over the largest of a pass.
struct Rates {
  double own = 0;
  double largest = 0;
};
/// Those of each device of a cluster.
std::vector<Rates> rates_of_devices(const Workload& workload, const Cluster& cluster);

/// A chain of layers on a cluster, with its own sums over the layers. Cut k lies before layer k.
struct Chain {
  Chain(const Workload& chain, const Cluster& devices, const Plan& asked, Effort& spent);
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  std::size_t layers = 0;
  std::size_t devices = 0;
  Goal goal;
  /// None: a schedule without a recurrence, of which only the fractional bound knows something.
  std::optional<ChainSchedule> schedule;
  bool divides_layers = false;           ///< several replicas of a stage divide the micro-batches of its layers
  bool is_sky = false;                   ///< memory is by Sky's estimator
  WorkSums work;                         ///< of the layers, by reference_times
  std::vector<WorkSums> own_work;        ///< that devices have beside it
  std::vector<double> parameter_bytes;   ///< of the layers before each cut
  std::vector<double> activations;       ///< likewise, of one micro-batch
  std::vector<double> sky_memory;        ///< likewise
  double workspace = 0;                  ///< of every stage
  std::vector<double> output;            ///< bytes over each cut, forward
  std::vector<double> gradient;          ///< bytes over each cut, back
  std::vector<const WorkSums*> work_on;  ///< of each device; in `work` or `own_work`
  std::vector<double> rate;              ///< of each device, at which it does work_on
  std::vector<double> speed;             ///< of each device: no pass of a layer takes less than its `work` over this
  std::vector<double> memory;            ///< of each device
  std::vector<double> input_s;           ///< time of the input transfer to each device; 0 if input is local
  std::vector<double> input_turn_s;      ///< the part of it that limits apply to
  const Cluster* cluster = nullptr;
  bool latency_counts = true;  ///< in the transfers of stages
  Effort& effort;              ///< spent on all proofs about this chain

  void add_devices(const Workload& chain);

  /// The time that the goal counts of a transfer between two endpoints.
  double transfer_s(const Path& path, double bytes) const
  {
    return (latency_counts ? path.latency.value : 0) + bytes / path.bandwidth.value;
  }

  double compute_s(std::size_t device, std::size_t first_cut, std::size_t end_cut) const
  {
    return (work_on[device]->both[end_cut] - work_on[device]->both[first_cut]) / rate[device];
  }
  double forward_s(std::size_t device, std::size_t first_cut, std::size_t end_cut) const
  {
    return (work_on[device]->forward[end_cut] - work_on[device]->forward[first_cut]) / rate[device];
  }
  double update_s(std::size_t device, std::size_t first_cut, std::size_t end_cut) const
  {
    return (work_on[device]->update[end_cut] - work_on[device]->update[first_cut]) / rate[device];
  }
  /// True if two devices take the same for each layer.
  bool computes_alike(std::size_t device, std::size_t other) const
  {
    return rate[device] == rate[other] && work_on[device] == work_on[other];
  }
  /// Bytes that the layers between two cuts need without buffers; never less with another layer.
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
    return need_of_layers(first_cut, end_cut, held) + buffer(first_cut) + buffer(end_cut) + workspace;
  }
  /// s_i.
  double cost(double compute, double send) const
  {
    if (goal.communication == Communication::None) return compute;
    return goal.communication == Communication::Overlapped ? std::max(compute, send) : compute + send;
  }
  std::uint64_t held_by(std::size_t stages_after) const;
  /// True for the step: limits and the bound are about turns (docs/certificates.md).
  bool has_turns() const { return goal.objective == Objective::Step; }
  /// The turn of a stage's compute with at most `in_flight` micro-batches; for other objectives all of the compute.
  double turn_s(std::size_t device, std::size_t first_cut, std::size_t end_cut, std::uint64_t in_flight) const;
  /// The turn of the lanes over a cut, whose bytes take the given times each way.
  double lane_turn_s(double there, double back) const
  {
    return schedule == ChainSchedule::GPipe ? there + back : std::max(there, back);
  }
  /// The most micro-batches in flight on stages that `level` of `levels` stands for.
  std::uint64_t most_in_flight(std::size_t level, std::size_t levels) const;
  /// The objective is alpha x largest + beta x sum; the step is at least that.
  double alpha() const;
  double beta() const;
};

/// True if another layer never reduces a stage's memory, however few micro-batches are in flight.
bool memory_is_hereditary(const Chain& chain);

/// The times of transfers at each cut from a device to the nearest other device of each group.
///
/// If there are turns, only devices over whose lanes the turns are within `limit` count; infinity if there is none. All
/// times are zero, and all devices are one group, if the goal does not count transfers.
class GroupTransfers {
 public:
  GroupTransfers(const Chain& chain, const std::vector<std::size_t>& group_of_device, double limit = infinity);

  std::size_t groups() const { return groups_; }
  std::size_t group_of(std::size_t device) const { return group_of_.empty() ? 0 : group_of_[device]; }
  /// Times of activations over a cut to each group; of gradients likewise.
  const double* output(std::size_t device, std::size_t cut) const { return row(output_, device, cut); }
  const double* gradient(std::size_t device, std::size_t cut) const { return row(gradient_, device, cut); }
  /// True if transfers of two devices take the same time at every cut.
  bool are_alike(std::size_t a, std::size_t b) const;
  /// A row of zeros, one for each group.
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

/// Numbers the states of a run (neighbouring stages in one group): the devices of its group that it may still use.
/// Devices of a group are of one kind if nothing distinguishes them (core/plan/certificate.hpp).
class Runs {
 public:
  Runs(const Chain& chain, const GroupTransfers& transfers, const std::vector<double>& multipliers);

  /// One device of each kind.
  const std::vector<std::size_t>& representatives() const { return representatives_; }
  /// The number of states of a group; in the last one every device is available.
  std::size_t states(std::size_t group) const { return states_[group]; }
  std::size_t full(std::size_t group) const { return states_[group] - 1; }
  /// The number of states of all groups before this one; of all groups for the number of groups.
  std::size_t states_before(std::size_t group) const { return states_before_[group]; }
  /// The state after a device of the kind was used; none if no such device is left.
  std::optional<std::size_t> with_use(std::size_t state, std::size_t kind) const
  {
    const std::size_t share = shares_[kind];
    if (share == 0) return state;
    if (state / share % (most_[kind] + 1) == 0) return std::nullopt;
    return state - share;
  }
  /// The state after only this device was used.
  std::size_t without(std::size_t device) const
  {
    return full(group_of_kind_[kinds_[device]]) - shares_[kinds_[device]];
  }
  /// The state of the device's group in which the used devices, including this one, are not available.
  template <typename IsUsed>
  std::size_t left_of_group(std::size_t device, const IsUsed& is_used) const
  {
    const std::size_t group = group_of_kind_[kinds_[device]];
    std::size_t left = full(group);
    for (std::size_t i = 0; i < kinds_.size(); ++i) {
      if (group_of_kind_[kinds_[i]] == group && is_used(i)) left -= shares_[kinds_[i]];
    }
    return left;
  }

 private:
  std::vector<std::size_t> kinds_;  // of each device
  // Of each kind:
  std::vector<std::size_t> group_of_kind_;
  std::vector<std::size_t> representatives_;
  std::vector<std::size_t> shares_;  // by which a use lowers the state; 0 if uses are not counted
  std::vector<std::size_t> most_;    // uses that are counted together with this kind's
  // Of each group:
  std::vector<std::size_t> states_;
  std::vector<std::size_t> states_before_;
};

/// The least cost of all layers before a cut: beta x (input + sum of s_i) + sum of u_d.
///
/// Each stage costs at most `limit` and fits on its device. A stage on device d also costs its multiplier u_d. Devices
/// may be reused, but not within a run.
class PathTable {
 public:
  PathTable(const Chain& chain, const GroupTransfers& transfers, std::size_t levels, const Certificate::Rung& rung);

  /// The least cost of the layers before `cut`, with the last stage on a device of `group`, the next one on a device of
  /// `next`, and `after` stages after the cut. If the groups are the same, `left` is the state of the run before the
  /// cut.
  double before(std::size_t cut, std::size_t after, std::size_t group, std::size_t next, std::size_t left) const
  {
    const std::size_t level = std::min(after, levels_ - 1);
    return group == next ? staying_[stay(level, cut, group) + left] : least_[index(level, cut, group, next)];
  }
  const Runs& runs() const { return runs_; }
  /// The least cost of all layers: U(T, u).
  double all() const;
  /// The rung's limit, rounded up.
  double limit() const { return limit_; }
  double sum_of_multipliers() const { return sum_; }

 private:
  std::size_t index(std::size_t level, std::size_t cut, std::size_t group, std::size_t next) const
  {
    return ((level * cuts_ + cut) * groups_ + group) * groups_ + next;
  }
  std::size_t stay(std::size_t level, std::size_t cut, std::size_t group) const
  {
    return (level * cuts_ + cut) * runs_.states_before(groups_) + runs_.states_before(group);
  }
  double weight_of(std::size_t level, std::size_t slots) const;
  /// The weighted cost that a stage of the level adds to the sum.
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
  double most_cost_;  // infinite if the limit is for turns
  double beta_;
  double sum_ = 0;
  std::vector<double> weights_;             // of each level: beta, or more if slots are counted
  std::vector<double> least_;               // [level][cut][group][next], between groups
  std::vector<double> staying_;             // [level][cut][group][state of the run], within a group
  std::vector<double> least_of_any_group_;  // [level][cut][next]
};

/// The number of levels that can differ: micro-batches in flight beyond M, or stages beyond the devices, make no
/// difference.
std::size_t levels_of(const Chain& chain, const Certificate& certificate);

/// Returns why the tables for these groups of devices would be too large, or "" if they fit. Groups are numbered from 0
/// without gaps.
std::string fault_of_size(const Chain& chain, const std::vector<std::size_t>& group_of_device, std::size_t levels);

/// The bound of a certificate of kind `path`.
double path_bound(const Chain& chain, const Certificate& certificate);

/// The result of a search: an objective below the bound, or why the search ended early.
struct SearchFinding {
  double least = infinity;
  std::string fault;
};
/// Searches for a placement below `bound`.
SearchFinding search_below(const Chain& chain, const Certificate& certificate, double bound);
/// The same for objective `step`: it plays each placement to get its step time.
SearchFinding search_steps_below(const Chain& chain, const Certificate& certificate, double bound);

/// The same for DT-FM's cost, and how much a search that finds nothing proves.
struct DtFmFinding : SearchFinding {
  double proven = 0;
};
/// Searches for a placement of the plan's stages that costs less than its bound. The certificate has no other faults.
DtFmFinding search_dtfm_below(const Plan& plan, const Workload& workload, const Cluster& cluster, Effort& effort);

/// A limit that every placement's largest cost reaches, proven by an integer program without a solution; 0 and faults
/// if it is not proven.
double phase_flow_bound(const Chain& chain, const Certificate& certificate, std::vector<std::string>& faults);

/// Whether the multipliers of a certificate of kind `load` prove that no step is within its limit. The certificate has
/// no other faults.
bool refutes_by_loads(const Plan& plan, const Workload& workload, const Cluster& cluster, Effort& effort);

/// The bound of a certificate of kind `window`, from the inputs alone.
double window_bound(const Plan& plan, const Workload& workload, const Cluster& cluster);

/// The factor c such that the objective is at least c x the largest compute of a stage + beta x the sum of all. It is
/// alpha, or less for objective `step`, whose turns may be shorter than the compute.
double least_turns(const Chain& chain);

/// The bound for layers that may be cut anywhere; infinite if all memory together is too small.
double fractional_bound(const Chain& chain);

}  // namespace isobar::proofs
