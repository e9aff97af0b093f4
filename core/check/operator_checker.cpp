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
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
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

/// Devices that divide some parts: those of each replica.
struct Group {
  std::size_t first_part = 0;
  std::size_t end_part = 0;
  std::vector<double> shares;
  std::vector<std::vector<std::size_t>> replicas;  // ranks
};

/// Where a rank is.
struct Place {
  std::size_t group = 0;
  std::size_t replica = 0;
  std::size_t position = 0;
};

/// A collective that a replica of a group needs, by what each of its ranks has before and afterwards.
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
        replicas_(plan.stages.front().replicas.size()),
        in_backward_(replicas_in_backward(divided_.graph, divided_.reforms)),
        microbatches_(static_cast<double>(plan.goal.microbatches))
  {
    list_groups();
    for (const auto& name : devices_) index_of_rank_.push_back(cluster.device_index(name).value());
  }

  std::vector<std::string> faults()
  {
    for (std::size_t rank = 0; rank < devices_.size(); ++rank) add_work(rank);
    for (std::size_t rank = 0; rank < devices_.size(); ++rank) compare_work(rank);
    list_collectives();
    compare_collectives();
    compare_sums();
    compare_messages();
    if (!claims_.empty()) return claims_.take();
    const PlayedProgram played = play_program(program_, nominal_rates(plan_, workload_, cluster_));
    check_memory(played);
    check_claims(played);
    return claims_.take();
  }

 private:
  void list_groups()
  {
    std::map<std::string, std::size_t> rank_of;
    for (std::size_t rank = 0; rank < devices_.size(); ++rank) rank_of[devices_[rank]] = rank;
    places_.resize(devices_.size());
    for (std::size_t part = 0; part < plan_.stages.size(); ++part) {
      const auto& replicas = plan_.stages[part].replicas;
      const std::size_t first = rank_of.at(replicas.front().shards.front().device);
      if (!groups_.empty() && groups_.back().replicas.front().front() == first) {
        groups_.back().end_part = part + 1;
        continue;
      }
      Group& group = groups_.emplace_back(Group{part, part + 1, {}, {}});
      for (const auto& shard : replicas.front().shards) group.shares.push_back(shard.share);
      for (std::size_t r = 0; r < replicas.size(); ++r) {
        auto& ranks = group.replicas.emplace_back();
        for (std::size_t q = 0; q < replicas[r].shards.size(); ++q) {
          ranks.push_back(rank_of.at(replicas[r].shards[q].device));
          places_[ranks.back()] = {groups_.size() - 1, r, q};
        }
      }
    }
  }

  /// The part of a tensor's elements that a device of a group has in a form.
  double part_of(std::size_t tensor, Form form, const Place& place) const
  {
    if (form.kind != Form::Kind::Gather) return 1;
    const auto pieces = spmd::divided(units_[tensor].at(form.dimension), groups_[place.group].shares);
    return static_cast<double>(pieces[place.position]) / static_cast<double>(units_[tensor][form.dimension]);
  }

  /// The part of an operator that a device computes: that of any tensor which the signature divides.
  double part_of_work(std::size_t node, const Place& place) const
  {
    const auto& each = divided_.graph.operators[node];
    const auto& signature = divided_.division.signatures[node];
    double part = 1;
    for (std::size_t k = 0; k < each.outputs.size(); ++k) {
      part = std::min(part, part_of(each.outputs[k], signature.outputs[k], place));
    }
    for (std::size_t k = 0; k < each.inputs.size(); ++k) {
      part = std::min(part, part_of(each.inputs[k], signature.inputs[k], place));
    }
    return part;
  }

  void add_work(std::size_t rank)
  {
    auto& works = works_.emplace_back(divided_.division.parts.size());
    const auto rates = workload_.operator_rates.find(cluster_.devices[index_of_rank_[rank]].type);
    const Place& place = places_[rank];
    const Group& group = groups_[place.group];
    const auto replicas = static_cast<double>(replicas_);
    double resident = 0;
    for (std::size_t i = plan_.stages[group.first_part].first_layer; i <= plan_.stages[group.end_part - 1].last_layer;
         ++i) {
      const double part = part_of_work(i, place);
      const Layer& layer = workload_.layers[i];
      PartWork& work = works[divided_.division.part_of(i)];
      const auto parameters = part * static_cast<double>(layer.parameters);
      const auto update = layer.update.value_or(
          Flops(static_cast<double>(layer.parameters) * update_flops_per_parameter(workload_.optimizer)));
      if (rates == workload_.operator_rates.end()) {
        work.forward += part * layer.forward.value / replicas;  // of the replica's samples
        work.backward += part * layer.backward.value / replicas;
        work.update += part * update.value;
      } else {
        add_timed_work(work, i, part, place, rates->second);
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
  void add_timed_work(PartWork& work, std::size_t node, double part, const Place& place, const spmd::DeviceRates& rates)
  {
    if (part == 0) return;
    const auto& each = divided_.graph.operators[node];
    const auto& signature = divided_.division.signatures[node];
    double touched = 0;
    for (std::size_t k = 0; k < each.inputs.size(); ++k) {
      const bool is_table = each.kind == spmd::OperatorKind::Embedding && k == 1;
      if (!is_table) touched += bytes_of(each.inputs[k], signature.inputs[k], place);
    }
    for (std::size_t k = 0; k < each.outputs.size(); ++k) {
      touched += bytes_of(each.outputs[k], signature.outputs[k], place);
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
    const Group& group = groups_[places_[rank].group];
    for (std::size_t part = 0; part < times.size(); ++part) {
      const bool is_own = part >= group.first_part && part < group.end_part;
      if (!is_own && times[part] == std::array<std::uint64_t, 3>{}) continue;
      if (!is_own) {
        claims_.fault("part {}: {} computes it, and is not a device of its stage", part, shown(devices_[rank]));
        continue;
      }
      if (times[part] == std::array<std::uint64_t, 3>{all, all, 1}) continue;
      claims_.fault("part {}: {} computes {} forwards, {} backwards and {} updates; a step has {}, {} and 1", part,
                    shown(devices_[rank]), times[part][0], times[part][1], times[part][2], all, all);
    }
    const double held = program_.resident(rank, Tier::Device).value;
    if (held == resident_[rank] || agree(held, resident_[rank])) return;
    claims_.fault("device {}: its program holds {:.9g} B throughout; its parameters need {:.9g} B",
                  shown(devices_[rank]), held, resident_[rank]);
  }

  /// The bytes of a tensor that a device has in a form; of addends and whole tensors all.
  double bytes_of(std::size_t tensor, Form form, const Place& place) const
  {
    return part_of(tensor, form, place) * divided_.graph.tensors[tensor].size.value;
  }

  /// The same of each device of a replica.
  std::vector<double> bytes_of_all(std::size_t tensor, Form form, std::size_t group) const
  {
    std::vector<double> bytes;
    for (std::size_t i = 0; i < groups_[group].shares.size(); ++i) {
      bytes.push_back(bytes_of(tensor, form, {group, 0, i}));
    }
    return bytes;
  }

  std::size_t group_of_part(std::size_t part) const
  {
    std::size_t group = 0;
    while (groups_[group].end_part <= part) ++group;
    return group;
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
    collectives_.resize(groups_.size());
    for (const auto& reform : divided_.reforms) {
      const std::size_t group = group_of_part(reform.part);
      if (groups_[group].shares.size() == 1) continue;
      const auto bytes = [&](Form form) { return bytes_of_all(reform.tensor, form, group); };
      const std::uint64_t times = reform.is_parameter ? 1 : plan_.goal.microbatches;
      if (const auto opcode = collective_between(reform.from, reform.to)) {
        const Payload payload = reform.is_parameter ? Payload::Parameter : Payload::Activation;
        collectives_[group].push_back({*opcode, payload, times, bytes(reform.from), bytes(reform.to)});
      }
      const bool is_replica = reform.from.kind == Form::Kind::Replicate;
      if (is_replica || !divided_.graph.has_gradient(reform.tensor)) continue;
      // Of a whole tensor devices have addends of its gradient, and the other way round.
      const Form from = gradient_form(reform.to);
      const Form to = gradient_form(reform.from);
      const Payload payload = reform.is_parameter ? Payload::ParameterGradient : Payload::Gradient;
      if (const auto opcode = collective_between(from, to)) {
        collectives_[group].push_back({*opcode, payload, times, bytes(from), bytes(to)});
      }
    }
    if (plan_.sync.adds_replicas) list_sums_of_parameters();
  }

  /// Gradients of replicated parameters are addends of the whole. Those up to the end of a bucket are added up
  /// together.
  void list_sums_of_parameters()
  {
    double bytes = 0;
    for (const std::size_t index : in_backward_) {
      const std::size_t group = group_of_part(divided_.reforms[index].part);
      if (groups_[group].shares.size() == 1) continue;
      const spmd::Tensor& tensor = divided_.graph.tensors[divided_.reforms[index].tensor];
      const auto& ends = plan_.sync.bucket_ends;
      bytes += tensor.size.value;
      if (!ends.empty() && std::find(ends.begin(), ends.end(), tensor.producer) == ends.end()) continue;
      const std::vector<double> whole(groups_[group].shares.size(), std::exchange(bytes, 0));
      collectives_[group].push_back({Opcode::AllReduce, Payload::ParameterGradient, 1, whole, whole});
    }
  }

  /// The lane on which a rank meets exactly these ranks for more than gradient facts; none without one.
  std::optional<LaneId> lane_of(std::size_t rank, const std::vector<std::size_t>& ranks) const
  {
    const auto& lanes = program_.lanes(rank);
    for (std::size_t lane = 1; lane < lanes.size(); ++lane) {
      const auto id = static_cast<LaneId>(lane);
      const auto& ends = program_.channels()[lanes[lane].channel.value()].ends;
      const bool is_same = std::equal(ends.begin(), ends.end(), ranks.begin(), ranks.end(),
                                      [](const End& end, std::size_t other) { return end.rank == other; });
      const bool has_facts =
          program_.length(rank, id) > 0 && program_.at(rank, id, 0).payload == Payload::GradientFacts;
      if (is_same && !has_facts) return id;
    }
    return std::nullopt;
  }

  void compare_collectives()
  {
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      if (groups_[group].shares.size() == 1) continue;
      for (const auto& ranks : groups_[group].replicas) compare_collectives(group, ranks);
    }
  }

  /// Compares the number of collectives of a replica, and the bytes that its ranks have before and after them, by kind.
  void compare_collectives(std::size_t group, const std::vector<std::size_t>& ranks)
  {
    using Kind = std::pair<Opcode, Payload>;
    struct Total {
      std::uint64_t times = 0;
      double before = 0;
      double after = 0;
    };
    std::map<Kind, Total> needed;
    std::map<Kind, Total> found;
    for (const auto& each : collectives_[group]) {
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        Total& total = needed[{each.opcode, each.payload}];
        total.times += each.times;
        total.before += static_cast<double>(each.times) * each.before[i];
        total.after += static_cast<double>(each.times) * each.after[i];
      }
    }
    std::vector<End> ends;
    for (const std::size_t rank : ranks) {
      if (const auto lane = lane_of(rank, ranks)) ends.push_back({rank, *lane});
    }
    const std::uint64_t length = ends.empty() ? 0 : program_.length(ends.front().rank, ends.front().lane);
    for (std::uint64_t i = 0; i < length; ++i) {
      std::vector<Instruction> met;
      for (const End& end : ends) met.push_back(program_.at(end.rank, end.lane, i));
      const bool is_even =
          std::all_of(met.begin(), met.end(), [](const auto& each) { return each.result == Bytes(0); });
      for (const Instruction& instruction : met) {
        const double before = instruction.size.value;
        const double equal =
            instruction.opcode == Opcode::ReduceScatter ? before / static_cast<double>(ranks.size()) : before;
        Total& total = found[{instruction.opcode, instruction.payload}];
        ++total.times;
        total.before += before;
        total.after += is_even ? equal : instruction.result.value;
      }
    }
    const std::string where =
        collectives_.size() * replicas_ == 1 ? "" : fmt::format("the replica of {}: ", shown(devices_[ranks.front()]));
    for (const auto& [kind, total] : needed) {
      const auto& [opcode, payload] = kind;
      const Total other = found[kind];
      const bool divides = opcode == Opcode::ReduceScatter || opcode == Opcode::AllToAll;
      const bool is_same = total.times == other.times && same(total.before, other.before) &&
                           (!divides || same(total.after, other.after));
      if (is_same) continue;
      claims_.fault("{}its program has {} of {} {} times with {:.9g} B; its reforms need {} with {:.9g} B", where,
                    name_of(opcode), name_of(payload), other.times, other.before, total.times, total.before);
    }
    for (const auto& [kind, total] : found) {
      if (needed.contains(kind)) continue;
      claims_.fault("{}its program has {} of {}; no reform needs it", where, name_of(kind.first), name_of(kind.second));
    }
  }

  /// Where a rank has what concerns the gradients of a part's parameters: the instructions of a lane up to it.
  struct Counts {
    std::uint64_t made = 0;     // the last backward, in the compute lane
    std::uint64_t updated = 0;  // the Update, there
    std::uint64_t brought = 0;  // the last collective within the replica of such a gradient
  };

  std::vector<Counts> counts_of(std::size_t rank, std::optional<LaneId> collectives) const
  {
    std::vector<Counts> counts(plan_.stages.size());
    for (std::uint64_t i = 0; i < program_.length(rank, compute_lane); ++i) {
      const Instruction each = program_.at(rank, compute_lane, i);
      if (each.opcode == Opcode::Backward) counts.at(each.stage).made = i + 1;
      if (each.opcode == Opcode::Update) counts.at(each.stage).updated = i + 1;
    }
    for (std::uint64_t i = 0; collectives && i < program_.length(rank, *collectives); ++i) {
      const Instruction each = program_.at(rank, *collectives, i);
      if (each.payload != Payload::ParameterGradient) continue;
      counts.at(each.stage).brought = i + 1;
      for (const std::size_t part : parts_brought_by(each)) counts.at(part).brought = i + 1;
    }
    return counts;
  }

  /// The parts whose parameters' gradients a collective within a replica brings: of the reform that it names, or of all
  /// of the bucket that this one ends.
  std::vector<std::size_t> parts_brought_by(const Instruction& collective) const
  {
    const auto& ends = plan_.sync.bucket_ends;
    std::vector<std::size_t> parts = {divided_.reforms.at(collective.place).made_in};
    const auto last = std::find(in_backward_.begin(), in_backward_.end(), collective.place);
    if (last == in_backward_.end() || ends.empty()) return parts;
    for (auto each = std::make_reverse_iterator(last); each != in_backward_.rend(); ++each) {
      const spmd::PlacedReform& reform = divided_.reforms[*each];
      const std::size_t parameter = divided_.graph.tensors[reform.tensor].producer;
      if (std::find(ends.begin(), ends.end(), parameter) != ends.end()) break;
      parts.push_back(reform.made_in);
    }
    return parts;
  }

  /// Checks that replicas add up the gradients of each part once, after these exist and before its Update.
  void compare_sums()
  {
    if (replicas_ == 1) return;
    for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
      const Place& place = places_[rank];
      const Group& group = groups_[place.group];
      const auto lane = lane_of(rank, counterparts(place));
      const auto collectives =
          group.shares.size() > 1 ? lane_of(rank, group.replicas[place.replica]) : std::optional<LaneId>();
      const std::uint64_t length = lane ? program_.length(rank, *lane) : 0;
      const auto counts = counts_of(rank, collectives);
      std::map<std::size_t, std::vector<std::uint64_t>> found;  // positions of each part's
      for (std::uint64_t i = 0; i < length; ++i) found[program_.at(rank, *lane, i).stage].push_back(i);
      for (std::size_t part = 0; part < plan_.stages.size(); ++part) {
        const bool is_own = part >= group.first_part && part < group.end_part;
        const double bytes = is_own ? bytes_of_gradients(part, place) : 0;
        if (found[part].size() != (bytes > 0 ? 1U : 0U)) {
          claims_.fault("part {}: {} adds up its gradients with other replicas {} times; it has {:.9g} B of them", part,
                        shown(devices_[rank]), found[part].size(), bytes);
        } else if (bytes > 0) {
          check_sum({rank, *lane}, found[part].front(), bytes, counts[part], collectives.value_or(compute_lane));
        }
      }
    }
  }

  void check_sum(const End& at, std::uint64_t position, double bytes, const Counts& counts, LaneId collectives)
  {
    const Instruction sum = program_.at(at.rank, at.lane, position);
    const auto& name = devices_[at.rank];
    if (sum.opcode != Opcode::AllReduce || sum.payload != Payload::ParameterGradient || !same(sum.size.value, bytes)) {
      claims_.fault("part {}: replicas of {} have {} of {} with {:.9g} B; its gradients are {:.9g} B", sum.stage,
                    shown(name), name_of(sum.opcode), name_of(sum.payload), sum.size.value, bytes);
    }
    const auto waits_for = [](const Instruction& instruction, LaneId lane, std::uint64_t count) {
      return count == 0 || std::any_of(instruction.waits.begin(), instruction.waits.end(), [&](const Wait& wait) {
               return wait.lane == lane && wait.periods_back == 0 && wait.count >= count;
             });
    };
    if (!waits_for(sum, compute_lane, counts.made) || !waits_for(sum, collectives, counts.brought)) {
      claims_.fault("part {}: replicas of {} add up its gradients before all of them exist", sum.stage, shown(name));
    }
    if (counts.updated == 0) return;
    if (waits_for(program_.at(at.rank, compute_lane, counts.updated - 1), at.lane, position + 1)) return;
    claims_.fault("part {}: {} updates it before the replicas have added up its gradients", sum.stage, shown(name));
  }

  /// The gradients of a part's parameters, of which every replica has an addend, as a device of a group has them.
  double bytes_of_gradients(std::size_t part, const Place& place) const
  {
    double bytes = 0;
    for (std::size_t i = plan_.stages[part].first_layer; i <= plan_.stages[part].last_layer; ++i) {
      const auto& node = divided_.graph.operators[i];
      if (node.kind != spmd::OperatorKind::Parameter) continue;
      bytes += bytes_of(node.outputs.front(), divided_.division.signatures[i].outputs.front(), place);
    }
    return bytes;
  }

  /// The ranks at the position of a rank in all replicas.
  std::vector<std::size_t> counterparts(const Place& place) const
  {
    std::vector<std::size_t> ranks;
    for (const auto& replica : groups_[place.group].replicas) ranks.push_back(replica[place.position]);
    return ranks;
  }

  /// Messages of a payload from one rank to another.
  using Way = std::tuple<std::size_t, std::size_t, Payload>;

  /// The first unit of a dimension that a device of a group has, and the one after its last.
  std::pair<std::uint64_t, std::uint64_t> units_of(std::uint64_t units, const Place& place) const
  {
    const auto pieces = spmd::divided(units, groups_[place.group].shares);
    std::uint64_t begin = 0;
    for (std::size_t i = 0; i < place.position; ++i) begin += pieces[i];
    return {begin, begin + pieces[place.position]};
  }

  /// The bytes of a micro-batch that each device has to send to one of another group: of each tensor that one group
  /// makes and the other reads, the elements that both have. Gradients go back.
  std::map<Way, double> bytes_of_messages() const
  {
    std::map<Way, double> bytes;
    const auto readers = divided_.graph.readers();
    for (std::size_t tensor = 0; tensor < divided_.graph.tensors.size(); ++tensor) {
      const std::size_t maker = divided_.graph.tensors[tensor].producer;
      if (spmd::is_source(divided_.graph.operators[maker].kind)) continue;
      const std::size_t from = group_of_part(divided_.division.part_of(maker));
      std::set<std::size_t> groups;
      for (const std::size_t reader : readers[tensor]) groups.insert(group_of_part(divided_.division.part_of(reader)));
      groups.erase(from);
      const auto& outputs = divided_.graph.operators[maker].outputs;
      const auto output = static_cast<std::size_t>(std::find(outputs.begin(), outputs.end(), tensor) - outputs.begin());
      const Form form = divided_.division.signatures[maker].outputs[output];
      for (const std::size_t to : groups) {
        const std::uint64_t units = units_[tensor].at(form.dimension);
        for (std::size_t sender = 0; sender < devices_.size(); ++sender) {
          for (std::size_t reader = 0; reader < devices_.size(); ++reader) {
            const Place& a = places_[sender];
            const Place& b = places_[reader];
            if (a.group != from || b.group != to || a.replica != b.replica) continue;
            const auto [begin, end] = units_of(units, a);
            const auto [other_begin, other_end] = units_of(units, b);
            const std::uint64_t first = std::max(begin, other_begin);
            const std::uint64_t last = std::min(end, other_end);
            if (last <= first) continue;
            const double part = static_cast<double>(last - first) / static_cast<double>(units);
            const double size = part * divided_.graph.tensors[tensor].size.value;
            bytes[{sender, reader, Payload::Activation}] += size;
            if (divided_.graph.has_gradient(tensor)) bytes[{reader, sender, Payload::Gradient}] += size;
          }
        }
      }
    }
    return bytes;
  }

  void compare_messages()
  {
    struct Total {
      std::uint64_t times = 0;
      double bytes = 0;
    };
    std::map<Way, Total> found;
    for (const Channel& channel : program_.channels()) {
      const End& sender = channel.ends.front();
      for (std::uint64_t i = 0; i < program_.length(sender.rank, sender.lane); ++i) {
        const Instruction each = program_.at(sender.rank, sender.lane, i);
        if (each.opcode != Opcode::Send) break;
        Total& total = found[{sender.rank, channel.ends.back().rank, each.payload}];
        ++total.times;
        total.bytes += each.size.value;
      }
    }
    messages_ = bytes_of_messages();
    std::map<Way, Total> needed;
    for (const auto& [way, bytes] : messages_) needed[way] = {plan_.goal.microbatches, microbatches_ * bytes};
    for (const auto& [way, total] : needed) found.try_emplace(way);
    for (const auto& [way, total] : found) {
      const Total& right = needed[way];
      if (total.times == right.times && same(total.bytes, right.bytes)) continue;
      claims_.fault(
          "{} sends {} to {} {} times with {:.9g} B; what both have of the tensors between is {} times {:.9g} B",
          shown(devices_[std::get<0>(way)]), name_of(std::get<2>(way)), shown(devices_[std::get<1>(way)]), total.times,
          total.bytes, right.times, right.bytes / std::max(1.0, microbatches_));
    }
  }

  /// The longest message of each boundary and direction for one micro-batch, in all.
  double time_of_messages() const
  {
    if (plan_.goal.has_free_transfers()) return 0;
    std::map<std::pair<std::size_t, Payload>, double> longest;  // by the group that sends
    for (const auto& [way, bytes] : messages_) {
      const auto& [from, to, payload] = way;
      const Path path = cluster_.path(index_of_rank_[from], index_of_rank_[to]);
      double& most = longest[{places_[from].group, payload}];
      most = std::max(most, path.latency.value + bytes / path.bandwidth.value);
    }
    double seconds = 0;
    for (const auto& [way, most] : longest) seconds += most;
    return seconds;
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

  /// How long a collective of these ranks takes alone, in rounds of flows over the platform's paths.
  double time_of(Opcode opcode, const std::vector<double>& before, const std::vector<double>& after,
                 const std::vector<std::size_t>& ranks, Algorithm algorithm = Algorithm::Ring) const
  {
    if (plan_.goal.has_free_transfers()) return 0;
    std::vector<Bytes> sizes;
    std::vector<Bytes> results;
    std::vector<std::string> sites;
    bool is_even = true;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      sizes.emplace_back(before[i]);
      results.emplace_back(after[i]);
      sites.push_back(cluster_.devices[index_of_rank_[ranks[i]]].site);
      is_even = is_even && before[i] == before.front() && after[i] == after.front();
    }
    const bool divides = opcode == Opcode::ReduceScatter || opcode == Opcode::AllToAll;
    if (is_even || !divides) results.clear();
    const auto device = [&](std::size_t end) { return index_of_rank_[ranks[end]]; };
    EndNetwork network;
    network.transfer = [&](std::size_t from, std::size_t to, Bytes size) {
      const Path path = cluster_.path(device(from), device(to));
      return TransferTimes{path.latency, size / path.bandwidth};
    };
    network.shared_links = [&](std::size_t from, std::size_t to) {
      return cluster_.network->shared_links(device(from), device(to));
    };
    double seconds = 0;
    for (const Round& round : rounds_of(opcode, sizes, algorithm, sites, results)) {
      seconds += round_time(round, network).value;
    }
    return seconds;
  }

  /// How long the collectives of the ranks of a group take.
  struct Communication {
    double once = 0;     // the most of a rank for one micro-batch, with those of parameters
    double longest = 0;  // the most that a lane has in a step
  };

  Communication communication_of(std::size_t index) const
  {
    const Group& group = groups_[index];
    double once = 0;
    double most_sums = 0;
    double longest = 0;
    for (const auto& ranks : group.replicas) {
      double first = 0;
      double again = 0;  // of each micro-batch after the first
      for (const auto& each : collectives_[index]) {
        const double seconds = time_of(each.opcode, each.before, each.after, ranks);
        first += seconds;
        if (each.payload == Payload::Activation || each.payload == Payload::Gradient) again += seconds;
      }
      once = std::max(once, first);
      longest = std::max(longest, first + (microbatches_ - 1) * again);
    }
    for (std::size_t position = 0; position < group.shares.size() && replicas_ > 1; ++position) {
      const Place place{index, 0, position};
      double sums = 0;
      for (std::size_t part = group.first_part; part < group.end_part; ++part) {
        const std::vector<double> bytes(replicas_, bytes_of_gradients(part, place));
        if (bytes.front() == 0) continue;
        sums += time_of(Opcode::AllReduce, bytes, bytes, counterparts(place), plan_.sync.algorithm);
      }
      most_sums = std::max(most_sums, sums);
    }
    return {once + most_sums, std::max(longest, most_sums)};
  }

  void check_claims(const PlayedProgram& played)
  {
    const double step = played.periods.front().step_time.value;
    double facts = 0;
    if (devices_.size() > 1 && needs_gradient_sync(workload_)) {
      std::vector<std::size_t> all(devices_.size());
      std::iota(all.begin(), all.end(), std::size_t{0});
      const std::vector<double> bytes(devices_.size(), gradient_sync_size.value);
      facts = time_of(Opcode::AllReduce, bytes, bytes, all);
    }
    double longest = 0;
    double once = 0;
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      const Communication own = communication_of(group);
      once += own.once;
      longest = std::max(longest, own.longest);
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
    const double communication = longest + facts;
    const double sequential = passes + once + facts + time_of_messages();
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
  std::size_t replicas_;
  std::vector<std::size_t> in_backward_;  // reforms of replicated parameters, in the order of their gradients
  double microbatches_;
  std::vector<std::size_t> index_of_rank_;    // in the cluster
  std::vector<std::vector<PartWork>> works_;  // by rank and part
  std::vector<double> resident_;              // by rank
  std::vector<Group> groups_;
  std::vector<Place> places_;                         // by rank
  std::vector<std::vector<Collective>> collectives_;  // by group, of each of its replicas
  std::map<Way, double> messages_;                    // bytes for a micro-batch
};

}  // namespace

std::vector<std::string> faults_of_operators(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                             const Program& program)
{
  return OperatorChecker(plan, workload, cluster, program).faults();
}

}  // namespace isobar
