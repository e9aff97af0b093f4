#include "core/check/operator_checker.hpp"

#include "core/base/quantity_text.hpp"
#include "core/check/claims.hpp"
#include "core/check/tier_memory.hpp"
#include "core/plan/nominal_rates.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/program/collective.hpp"
#include "core/program/player.hpp"
#include "core/program/round_time.hpp"
#include "core/spmd/pieces.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace isobar {

namespace {

using spmd::Form;

/// What a rank computes in a part, in FLOPs.
struct PartWork {
  double forward = 0;
  double backward = 0;
  double update = 0;
};

/// How the time of an operator follows from its FLOPs and bytes (docs/spmd.md), told by its kind.
enum class TimedBy : std::uint8_t { Nothing, Flops, FlopsOrBytes, ProductOrBytes };

TimedBy timed_by(spmd::OperatorKind kind)
{
  using Kind = spmd::OperatorKind;
  static const std::set<Kind> there = {Kind::Data, Kind::Parameter, Kind::Positions, Kind::CausalMask, Kind::Output};
  static const std::set<Kind> views = {Kind::Transpose, Kind::Flatten, Kind::SplitHeads, Kind::MergeHeads,
                                       Kind::TakeClass};
  static const std::set<Kind> products = {Kind::Linear,   Kind::QkvLinear, Kind::Scores,  Kind::Context,
                                          Kind::Dispatch, Kind::Expert,    Kind::Combine, Kind::Convolution,
                                          Kind::Gating,   Kind::Attention};
  if (there.contains(kind)) return TimedBy::Nothing;
  if (views.contains(kind)) return TimedBy::Flops;
  return products.contains(kind) ? TimedBy::ProductOrBytes : TimedBy::FlopsOrBytes;
}

/// The part of the full rate that a product of `work` FLOP reaches: on the line through the entries around it.
double efficiency_of(const spmd::DeviceRates& rates, double work)
{
  const auto& entries = rates.efficiency;
  if (entries.empty()) return 1;
  std::size_t next = 0;
  while (next < entries.size() && entries[next].work.value < work) ++next;
  if (next == 0 || next == entries.size()) return entries[next == 0 ? 0 : next - 1].fraction;
  const double from = entries[next - 1].work.value;
  const double to = entries[next].work.value;
  return ((to - work) * entries[next - 1].fraction + (work - from) * entries[next].fraction) / (to - from);
}

/// What a device could compute at its full rate in the time of one pass, in FLOP.
double work_of_pass(TimedBy timed, double flops, double touched, const spmd::DeviceRates& rates)
{
  if (timed == TimedBy::Nothing || timed == TimedBy::Flops) return timed == TimedBy::Flops ? flops : 0;
  const double efficiency = timed == TimedBy::ProductOrBytes ? efficiency_of(rates, flops) : 1;
  const double computed = rates.launch.value * rates.flops.value + flops / efficiency;
  if (!rates.memory_bandwidth) return computed;
  return std::max(computed, touched / rates.memory_bandwidth->value * rates.flops.value);
}

/// A collective that a plan needs, by what each rank has before and afterwards.
struct Collective {
  Opcode opcode{};
  Payload payload{};
  std::uint64_t times = 0;  // in a step
  std::vector<double> before;
  std::vector<double> after;
};

class OperatorChecker {
 public:
  OperatorChecker(const Plan& plan, const Workload& workload, const Cluster& cluster, const Program& program)
      : plan_(plan),
        workload_(workload),
        cluster_(cluster),
        program_(program),
        claims_(plan),
        divided_(operator_plan_of(plan, workload)),
        units_(spmd::units_of_dimensions(divided_.graph)),
        devices_(devices_of(plan)),
        microbatches_(static_cast<double>(plan.goal.microbatches))
  {
    for (const auto& name : devices_) index_of_rank_.push_back(cluster.device_index(name).value());
  }

  std::vector<std::string> faults()
  {
    for (std::size_t rank = 0; rank < devices_.size(); ++rank) add_work(rank);
    for (std::size_t rank = 0; rank < devices_.size(); ++rank) compare_work(rank);
    if (devices_.size() > 1) {
      list_collectives();
      compare_collectives();
    }
    if (!claims_.empty()) return claims_.take();
    const PlayedProgram played = play_program(program_, nominal_rates(plan_, workload_, cluster_));
    check_memory(played);
    check_claims(played);
    return claims_.take();
  }

 private:
  /// The part of a tensor's elements that a rank has in a form.
  double part_of(std::size_t tensor, Form form, std::size_t rank) const
  {
    if (form.kind != Form::Kind::Gather) return 1;
    const auto pieces = spmd::divided(units_[tensor].at(form.dimension), divided_.groups.front().shares);
    return static_cast<double>(pieces[rank]) / static_cast<double>(units_[tensor][form.dimension]);
  }

  /// The part of an operator that a rank computes: that of any tensor which the signature divides.
  double part_of_work(std::size_t node, std::size_t rank) const
  {
    const auto& each = divided_.graph.operators[node];
    const auto& signature = divided_.division.signatures[node];
    double part = 1;
    for (std::size_t k = 0; k < each.outputs.size(); ++k) {
      part = std::min(part, part_of(each.outputs[k], signature.outputs[k], rank));
    }
    for (std::size_t k = 0; k < each.inputs.size(); ++k) {
      part = std::min(part, part_of(each.inputs[k], signature.inputs[k], rank));
    }
    return part;
  }

  void add_work(std::size_t rank)
  {
    auto& works = works_.emplace_back(divided_.division.parts.size());
    const auto rates = workload_.operator_rates.find(cluster_.devices[index_of_rank_[rank]].type);
    double resident = 0;
    for (std::size_t i = 0; i < divided_.graph.operators.size(); ++i) {
      const double part = part_of_work(i, rank);
      const Layer& layer = workload_.layers[i];
      PartWork& work = works[divided_.division.part_of(i)];
      const auto parameters = part * static_cast<double>(layer.parameters);
      const auto update = layer.update.value_or(
          Flops(static_cast<double>(layer.parameters) * update_flops_per_parameter(workload_.optimizer)));
      if (rates == workload_.operator_rates.end()) {
        work.forward += part * layer.forward.value;
        work.backward += part * layer.backward.value;
        work.update += part * update.value;
      } else {
        add_timed_work(work, i, part, rank, rates->second);
        const ParameterBytes held = parameter_bytes(workload_.dtype, workload_.optimizer);
        const double moved = parameters * (held.all() + held.parameter + held.optimizer);
        const double seconds = rates->second.memory_bandwidth ? moved / rates->second.memory_bandwidth->value : 0;
        work.update += std::max(part * update.value, seconds * rates->second.flops.value);
      }
      resident += parameters * bytes_per_parameter(workload_.dtype, workload_.optimizer);
    }
    resident_.push_back(resident);
  }

  /// Adds what a device of these rates could compute in the time of an operator's passes.
  void add_timed_work(PartWork& work, std::size_t node, double part, std::size_t rank, const spmd::DeviceRates& rates)
  {
    if (part == 0) return;
    const auto& each = divided_.graph.operators[node];
    const auto& signature = divided_.division.signatures[node];
    double touched = 0;
    for (std::size_t k = 0; k < each.inputs.size(); ++k) {
      const bool is_table = each.kind == spmd::OperatorKind::Embedding && k == 1;
      if (!is_table) touched += bytes_of(each.inputs[k], signature.inputs[k], rank);
    }
    for (std::size_t k = 0; k < each.outputs.size(); ++k) {
      touched += bytes_of(each.outputs[k], signature.outputs[k], rank);
    }
    const TimedBy timed = timed_by(each.kind);
    const double forward = each.forward.value;
    const double backward = each.backward.value;
    const double passes = timed == TimedBy::ProductOrBytes && forward > 0 ? backward / forward : 1;
    work.forward += work_of_pass(timed, part * forward, touched, rates);
    work.backward += passes * work_of_pass(timed, part * backward / passes, touched, rates);
  }

  void compare_work(std::size_t rank)
  {
    std::vector<std::array<std::uint64_t, 3>> times(works_[rank].size());
    for (std::uint64_t i = 0; i < program_.length(rank, compute_lane); ++i) {
      const Instruction instruction = program_.at(rank, compute_lane, i);
      const PartWork& work = works_[rank].at(instruction.stage);
      const std::size_t pass = instruction.opcode == Opcode::Forward ? 0 : instruction.opcode == Opcode::Update ? 2 : 1;
      const std::array<double, 3> expected = {work.forward, work.backward, work.update};
      ++times[instruction.stage][pass];
      if (agree(instruction.work.value, expected[pass]) || instruction.work.value == expected[pass]) continue;
      claims_.fault("part {}: the {} of {} has {:.9g} FLOP in its program; its operators have {:.9g}",
                    instruction.stage, name_of(instruction.opcode), shown(devices_[rank]), instruction.work.value,
                    expected[pass]);
    }
    const std::uint64_t all = plan_.goal.microbatches;
    for (std::size_t part = 0; part < times.size(); ++part) {
      if (times[part] == std::array<std::uint64_t, 3>{all, all, 1}) continue;
      claims_.fault("part {}: {} computes {} forwards, {} backwards and {} updates; a step has {}, {} and 1", part,
                    shown(devices_[rank]), times[part][0], times[part][1], times[part][2], all, all);
    }
    const double held = program_.resident(rank, Tier::Device).value;
    if (held == resident_[rank] || agree(held, resident_[rank])) return;
    claims_.fault("device {}: its program holds {:.9g} B throughout; its parameters need {:.9g} B",
                  shown(devices_[rank]), held, resident_[rank]);
  }

  /// The bytes of a tensor that a rank has in a form; of addends and whole tensors all.
  double bytes_of(std::size_t tensor, Form form, std::size_t rank) const
  {
    return part_of(tensor, form, rank) * divided_.graph.tensors[tensor].size.value;
  }

  /// The same of each rank.
  std::vector<double> bytes_of(std::size_t tensor, Form form) const
  {
    std::vector<double> bytes;
    for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
      bytes.push_back(bytes_of(tensor, form, rank));
    }
    return bytes;
  }

  /// Which collective makes one form of another; none where each rank can do it alone.
  static std::optional<Opcode> collective_between(Form from, Form to)
  {
    using Kind = Form::Kind;
    if (from.kind == Kind::Gather && to.kind == Kind::Gather) return Opcode::AllToAll;
    if (from.kind == Kind::Gather && to.kind == Kind::Full) return Opcode::AllGather;
    if (from.kind == Kind::Reduce && to.kind == Kind::Gather) return Opcode::ReduceScatter;
    if (from.kind == Kind::Reduce && to.kind == Kind::Full) return Opcode::AllReduce;
    return std::nullopt;
  }

  void list_collectives()
  {
    for (const auto& reform : divided_.reforms) {
      const std::uint64_t times = reform.is_parameter ? 1 : plan_.goal.microbatches;
      if (const auto opcode = collective_between(reform.from, reform.to)) {
        const Payload payload = reform.is_parameter ? Payload::Parameter : Payload::Activation;
        collectives_.push_back(
            {*opcode, payload, times, bytes_of(reform.tensor, reform.from), bytes_of(reform.tensor, reform.to)});
      }
      const bool is_replica = reform.from.kind == Form::Kind::Replicate;
      if (is_replica || !divided_.graph.has_gradient(reform.tensor)) continue;
      // Of a whole tensor devices have addends of its gradient, and the other way round.
      const Form from = gradient_form(reform.to);
      const Form to = gradient_form(reform.from);
      const Payload payload = reform.is_parameter ? Payload::ParameterGradient : Payload::Gradient;
      if (const auto opcode = collective_between(from, to)) {
        collectives_.push_back({*opcode, payload, times, bytes_of(reform.tensor, from), bytes_of(reform.tensor, to)});
      }
    }
    if (plan_.sync.adds_replicas) list_sums_of_replicas();
  }

  /// Gradients of replicas are addends of the whole. Those up to the end of a bucket are added up together.
  void list_sums_of_replicas()
  {
    double bytes = 0;
    for (const std::size_t index : replicas_in_backward(divided_.graph, divided_.reforms)) {
      const spmd::Tensor& tensor = divided_.graph.tensors[divided_.reforms[index].tensor];
      const auto& ends = plan_.sync.bucket_ends;
      bytes += tensor.size.value;
      if (!ends.empty() && std::find(ends.begin(), ends.end(), tensor.producer) == ends.end()) continue;
      const std::vector<double> whole(devices_.size(), std::exchange(bytes, 0));
      collectives_.push_back({Opcode::AllReduce, Payload::ParameterGradient, 1, whole, whole});
    }
  }

  /// Compares the number of collectives, and the bytes that ranks have before and after them, by kind.
  void compare_collectives()
  {
    using Kind = std::pair<Opcode, Payload>;
    struct Total {
      std::uint64_t times = 0;
      double before = 0;
      double after = 0;
    };
    std::map<Kind, Total> needed;
    std::map<Kind, Total> found;
    for (const auto& each : collectives_) {
      for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
        Total& total = needed[{each.opcode, each.payload}];
        total.times += each.times;
        total.before += static_cast<double>(each.times) * each.before[rank];
        total.after += static_cast<double>(each.times) * each.after[rank];
      }
    }
    const auto lanes = static_cast<LaneId>(program_.lanes(0).size());
    for (LaneId lane = 1; lane < lanes; ++lane) {
      for (std::uint64_t i = 0; i < program_.length(0, lane); ++i) {
        std::vector<Instruction> met;
        for (std::size_t rank = 0; rank < devices_.size(); ++rank) met.push_back(program_.at(rank, lane, i));
        if (met.front().payload == Payload::GradientFacts) continue;
        const bool is_even =
            std::all_of(met.begin(), met.end(), [](const auto& each) { return each.result == Bytes(0); });
        for (const Instruction& instruction : met) {
          const double before = instruction.size.value;
          const double equal =
              instruction.opcode == Opcode::ReduceScatter ? before / static_cast<double>(devices_.size()) : before;
          Total& total = found[{instruction.opcode, instruction.payload}];
          ++total.times;
          total.before += before;
          total.after += is_even ? equal : instruction.result.value;
        }
      }
    }
    for (const auto& [kind, total] : needed) {
      const auto& [opcode, payload] = kind;
      const Total other = found[kind];
      const bool divides = opcode == Opcode::ReduceScatter || opcode == Opcode::AllToAll;
      const bool is_same = total.times == other.times && same(total.before, other.before) &&
                           (!divides || same(total.after, other.after));
      if (is_same) continue;
      claims_.fault("its program has {} of {} {} times with {:.9g} B; its reforms need {} with {:.9g} B",
                    name_of(opcode), name_of(payload), other.times, other.before, total.times, total.before);
    }
    for (const auto& [kind, total] : found) {
      if (needed.contains(kind)) continue;
      claims_.fault("its program has {} of {}; no reform needs it", name_of(kind.first), name_of(kind.second));
    }
  }

  static bool same(double a, double b) { return a == b || agree(a, b); }

  void check_memory(const PlayedProgram& played)
  {
    const auto memories = tier_memories(plan_, cluster_, played);
    for (const auto& [name, tier, need, memory] : memories) {
      if (need.value > memory.value * (1 + claim_tolerance)) {
        const auto [needs, has] = distinct_texts(need.value / 0x1p30, memory.value / 0x1p30, 6);
        claims_.fault("{} {}: its stages need {} GiB under schedule {}, and it has {} GiB", name_of(tier), shown(name),
                      needs, shown(text_of(plan_.goal.schedule)), has);
      }
      if (plan_.predicted) claims_.check_peak_memory(name, need.value);
    }
    const std::size_t claimed = plan_.predicted ? plan_.predicted->peak_memory.size() : 0;
    if (claimed > memories.size()) {
      claims_.fault("predicted.peak_memory_bytes: {}; the plan uses {}", counted(claimed, "name"), memories.size());
    }
  }

  /// How long a collective takes alone, in rounds of flows over the platform's paths.
  double time_of(Opcode opcode, const std::vector<double>& before, const std::vector<double>& after) const
  {
    if (plan_.goal.has_free_transfers()) return 0;
    std::vector<Bytes> sizes;
    std::vector<Bytes> results;
    bool is_even = true;
    for (std::size_t rank = 0; rank < before.size(); ++rank) {
      sizes.emplace_back(before[rank]);
      results.emplace_back(after[rank]);
      is_even = is_even && before[rank] == before.front() && after[rank] == after.front();
    }
    const bool divides = opcode == Opcode::ReduceScatter || opcode == Opcode::AllToAll;
    if (is_even || !divides) results.clear();
    EndNetwork network;
    network.transfer = [&](std::size_t from, std::size_t to, Bytes size) {
      const Path path = cluster_.path(index_of_rank_[from], index_of_rank_[to]);
      return TransferTimes{path.latency, path.data_time(size)};
    };
    network.shared_links = [&](std::size_t from, std::size_t to) {
      return cluster_.network->shared_links(index_of_rank_[from], index_of_rank_[to]);
    };
    double seconds = 0;
    for (const Round& round : rounds_of(opcode, sizes, Algorithm::Ring, {}, results)) {
      seconds += round_time(round, network).value;
    }
    return seconds;
  }

  void check_claims(const PlayedProgram& played)
  {
    const double step = played.periods.front().step_time.value;
    double once = 0;   // collectives of the first micro-batch, and those of parameters
    double again = 0;  // of each other one
    for (const auto& each : collectives_) {
      const double seconds = time_of(each.opcode, each.before, each.after);
      once += seconds;
      if (each.payload == Payload::Activation || each.payload == Payload::Gradient) again += seconds;
    }
    if (devices_.size() > 1 && needs_gradient_sync(workload_)) {
      const std::vector<double> facts(devices_.size(), gradient_sync_size.value);
      once += time_of(Opcode::AllReduce, facts, facts);
    }
    double bottleneck = 0;
    double busiest = 0;
    double passes = 0;
    for (std::size_t part = 0; part < works_.front().size(); ++part) {
      double forward = 0;
      double backward = 0;
      for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
        forward = std::max(forward, works_[rank][part].forward / speed(rank));
        backward = std::max(backward, works_[rank][part].backward / speed(rank));
      }
      passes += forward + backward;
    }
    for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
      double pass = 0;
      double update = 0;
      for (const auto& work : works_[rank]) {
        pass += (work.forward + work.backward) / speed(rank);
        update += work.update / speed(rank);
      }
      bottleneck = std::max(bottleneck, pass);
      busiest = std::max(busiest, microbatches_ * pass + update);
    }
    const double communication = once + (microbatches_ - 1) * again;
    const double sequential = passes + once;
    claims_.check("objective_s", plan_.objective, step);
    claims_.check("step_bound_s", plan_.step_bound, std::max(busiest, communication) / cluster_.profile_speedup);
    if (plan_.schedule_bound) {
      claims_.fault("schedule_bound_s: only a plan with one stage on each device claims it; leave it out");
    }
    if (!plan_.predicted) {
      claims_.fault("predicted: missing; a plan that is not infeasible predicts its times and memory");
      return;
    }
    if (plan_.predicted->step_time_by != StepTimeBy::Played) {
      claims_.fault("predicted.step_time_by: {}; a step under schedule {} is played",
                    name_of(plan_.predicted->step_time_by), shown(text_of(plan_.goal.schedule)));
    }
    claims_.check("predicted.step_time_s", plan_.predicted->step_time, step);
    claims_.check("predicted.bottleneck_s", plan_.predicted->bottleneck, bottleneck);
    claims_.check("predicted.sequential_s", plan_.predicted->sequential, sequential);
    claims_.check("predicted.pipeline_s", plan_.predicted->pipeline, (microbatches_ - 1) * bottleneck + sequential);
    claims_.check_simulated();
    claims_.check_objective_bound(step);
  }

  double speed(std::size_t rank) const
  {
    return cluster_.devices[index_of_rank_[rank]].speed_at(workload_.dtype).value;
  }

  const Plan& plan_;
  const Workload& workload_;
  const Cluster& cluster_;
  const Program& program_;
  Claims claims_;
  OperatorPlan divided_;
  std::vector<std::vector<std::uint64_t>> units_;  // of each dimension of each tensor
  std::vector<std::string> devices_;               // by rank
  double microbatches_;
  std::vector<std::size_t> index_of_rank_;    // in the cluster
  std::vector<std::vector<PartWork>> works_;  // by rank and part
  std::vector<double> resident_;              // by rank
  std::vector<Collective> collectives_;
};

}  // namespace

std::vector<std::string> faults_of_operators(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                             const Program& program)
{
  return OperatorChecker(plan, workload, cluster, program).faults();
}

}  // namespace isobar
