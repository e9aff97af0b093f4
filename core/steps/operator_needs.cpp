#include "core/steps/operator_needs.hpp"

#include "core/cluster/device_types.hpp"
#include "core/spmd/pieces.hpp"

#include <algorithm>
#include <optional>
#include <set>

namespace isobar {

namespace {

using spmd::Form;

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

/// What one pass takes, in seconds.
double time_of_pass(TimedBy timed, double flops, double touched, const spmd::DeviceRates& rates)
{
  if (timed == TimedBy::Nothing) return 0;
  if (timed == TimedBy::Flops) return flops / rates.flops.value;
  const double efficiency = timed == TimedBy::ProductOrBytes ? efficiency_of(rates, flops) : 1;
  const double computed = rates.launch.value + flops / efficiency / rates.flops.value;
  return rates.memory_bandwidth ? std::max(computed, touched / rates.memory_bandwidth->value) : computed;
}

/// Which collective makes one form of another; none where each rank can do it alone.
std::optional<Opcode> collective_between(Form from, Form to)
{
  using Kind = Form::Kind;
  if (from.kind == Kind::Gather && to.kind == Kind::Gather) return Opcode::AllToAll;
  if (from.kind == Kind::Gather && to.kind == Kind::Full) return Opcode::AllGather;
  if (from.kind == Kind::Reduce && to.kind == Kind::Gather) return Opcode::ReduceScatter;
  if (from.kind == Kind::Reduce && to.kind == Kind::Full) return Opcode::AllReduce;
  return std::nullopt;
}

}  // namespace

OperatorNeeds::OperatorNeeds(const Plan& plan, const Workload& workload, const Cluster& cluster)
    : plan_(plan),
      workload_(workload),
      cluster_(cluster),
      divided_(operator_plan_of(plan, workload)),
      units_(spmd::units_of_dimensions(divided_.graph)),
      devices_(devices_of(plan)),
      in_backward_(replicas_in_backward(divided_.graph, divided_.reforms))
{
  list_groups();
  for (const auto& name : devices_) endpoints_.push_back(cluster.device_index(name).value());
  for (std::size_t rank = 0; rank < devices_.size(); ++rank) add_times(rank);
  list_collectives();
  list_messages();
}

void OperatorNeeds::list_groups()
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
double OperatorNeeds::part_of(std::size_t tensor, Form form, const Place& place) const
{
  if (form.kind != Form::Kind::Gather) return 1;
  const auto pieces = spmd::divided(units_[tensor].at(form.dimension), groups_[place.group].shares);
  return static_cast<double>(pieces[place.position]) / static_cast<double>(units_[tensor][form.dimension]);
}

/// The part of an operator that a device computes: that of any tensor which the signature divides.
double OperatorNeeds::part_of_work(std::size_t node, const Place& place) const
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

void OperatorNeeds::add_times(std::size_t rank)
{
  auto& times = times_.emplace_back(divided_.division.parts.size());
  const Device& device = cluster_.devices[endpoints_[rank]];
  const double speed = device.speed_at(workload_.dtype).value;
  const auto rates = std::ranges::find_if(
      workload_.operator_rates, [&](const auto& known) { return is_same_device_type(known.first, device.type); });
  const Place& place = places_[rank];
  const Group& group = groups_[place.group];
  const auto all = static_cast<double>(replicas());
  double resident = 0;
  for (std::size_t i = plan_.stages[group.first_part].first_layer; i <= plan_.stages[group.end_part - 1].last_layer;
       ++i) {
    const double part = part_of_work(i, place);
    const Layer& layer = workload_.layers[i];
    PartTimes& own = times[divided_.division.part_of(i)];
    const auto parameters = part * static_cast<double>(layer.parameters);
    const auto update = layer.update.value_or(
        Flops(static_cast<double>(layer.parameters) * update_flops_per_parameter(workload_.optimizer)));
    if (rates == workload_.operator_rates.end()) {
      own.forward += part * layer.forward.value / all / speed;  // of the replica's samples
      own.backward += part * layer.backward.value / all / speed;
      own.update += part * update.value / speed;
    } else {
      const double slower = rates->second.flops.value / speed;
      PartTimes passes;
      OperatorNeeds::add_passes(passes, i, part, place, rates->second);
      own.forward += slower * passes.forward;
      own.backward += slower * passes.backward;
      const ParameterBytes held = parameter_bytes(workload_);
      const double moved = parameters * (held.all() + held.parameter + held.optimizer);
      const double seconds = rates->second.memory_bandwidth ? moved / rates->second.memory_bandwidth->value : 0;
      own.update += std::max(part * update.value / speed, slower * seconds);
    }
    resident += parameters * bytes_per_parameter(workload_);
  }
  resident_.push_back(resident);
}

/// Adds what an operator's passes take on a device of these rates.
void OperatorNeeds::add_passes(PartTimes& times, std::size_t node, double part, const Place& place,
                               const spmd::DeviceRates& rates)
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
  times.forward += time_of_pass(timed, part * forward, touched, rates);
  times.backward += passes * time_of_pass(timed, part * backward / passes, touched, rates);
}

/// The bytes of a tensor that a device has in a form; of addends and whole tensors all.
double OperatorNeeds::bytes_of(std::size_t tensor, Form form, const Place& place) const
{
  return OperatorNeeds::part_of(tensor, form, place) * divided_.graph.tensors[tensor].size.value;
}

/// The same of each device of a replica.
std::vector<double> OperatorNeeds::bytes_of_all(std::size_t tensor, Form form, std::size_t group) const
{
  std::vector<double> bytes;
  for (std::size_t i = 0; i < groups_[group].shares.size(); ++i) {
    bytes.push_back(bytes_of(tensor, form, {group, 0, i}));
  }
  return bytes;
}

std::size_t OperatorNeeds::group_of_part(std::size_t part) const
{
  std::size_t group = 0;
  while (groups_[group].end_part <= part) ++group;
  return group;
}

std::optional<OperatorNeeds::Collective> OperatorNeeds::forward_of(std::size_t index) const
{
  const spmd::PlacedReform& reform = divided_.reforms[index];
  const std::size_t group = group_of_part(reform.part);
  const auto opcode = collective_between(reform.from, reform.to);
  if (!opcode || groups_[group].shares.size() == 1) return std::nullopt;
  return Collective{*opcode, reform.is_parameter ? Payload::Parameter : Payload::Activation,
                    reform.is_parameter ? 1 : plan_.goal.microbatches, bytes_of_all(reform.tensor, reform.from, group),
                    bytes_of_all(reform.tensor, reform.to, group)};
}

std::optional<OperatorNeeds::Collective> OperatorNeeds::backward_of(std::size_t index) const
{
  const spmd::PlacedReform& reform = divided_.reforms[index];
  const std::size_t group = group_of_part(reform.part);
  const bool is_replica = reform.from.kind == Form::Kind::Replicate;
  if (is_replica || !divided_.graph.has_gradient(reform.tensor)) return std::nullopt;
  // Of a whole tensor devices have addends of its gradient, and the other way round.
  const Form from = gradient_form(reform.to);
  const Form to = gradient_form(reform.from);
  const auto opcode = collective_between(from, to);
  if (!opcode || groups_[group].shares.size() == 1) return std::nullopt;
  return Collective{*opcode, reform.is_parameter ? Payload::ParameterGradient : Payload::Gradient,
                    reform.is_parameter ? 1 : plan_.goal.microbatches, bytes_of_all(reform.tensor, from, group),
                    bytes_of_all(reform.tensor, to, group)};
}

/// Gradients of replicated parameters are addends of the whole.
std::optional<OperatorNeeds::Collective> OperatorNeeds::bucket_sum(const std::vector<std::size_t>& bucket) const
{
  const Group& group = groups_[group_of_part(divided_.reforms[bucket.back()].part)];
  if (group.shares.size() == 1) return std::nullopt;
  double bytes = 0;
  for (const std::size_t index : bucket) bytes += divided_.graph.tensors[divided_.reforms[index].tensor].size.value;
  const std::vector<double> whole(group.shares.size(), bytes);
  return Collective{Opcode::AllReduce, Payload::ParameterGradient, 1, whole, whole};
}

void OperatorNeeds::list_collectives()
{
  collectives_.resize(groups_.size());
  const auto add = [&](std::size_t part, std::optional<Collective> collective) {
    if (collective) collectives_[group_of_part(part)].push_back(std::move(*collective));
  };
  for (std::size_t i = 0; i < divided_.reforms.size(); ++i) {
    add(divided_.reforms[i].part, forward_of(i));
    add(divided_.reforms[i].part, backward_of(i));
  }
  list_buckets();
  for (const auto& bucket : buckets_) add(divided_.reforms[bucket.back()].part, bucket_sum(bucket));
}

/// Those up to the end of a bucket are added up together; without buckets, each by itself.
void OperatorNeeds::list_buckets()
{
  if (!plan_.sync.adds_replicas) return;
  const auto& ends = plan_.sync.bucket_ends;
  bool continues = false;
  for (const std::size_t index : in_backward_) {
    const auto group = [&](std::size_t reform) { return group_of_part(divided_.reforms[reform].part); };
    if (!continues || group(buckets_.back().back()) != group(index)) buckets_.emplace_back();
    buckets_.back().push_back(index);
    const std::size_t parameter = divided_.graph.tensors[divided_.reforms[index].tensor].producer;
    continues = !ends.empty() && std::find(ends.begin(), ends.end(), parameter) == ends.end();
  }
}

/// The gradients of a part's parameters, of which every replica has an addend, as a device of a group has them.
double OperatorNeeds::bytes_of_gradients(std::size_t part, const Place& place) const
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
std::vector<std::size_t> OperatorNeeds::counterparts(const Place& place) const
{
  std::vector<std::size_t> ranks;
  for (const auto& replica : groups_[place.group].replicas) ranks.push_back(replica[place.position]);
  return ranks;
}

/// The first unit of a dimension that a device of a group has, and the one after its last.
std::pair<std::uint64_t, std::uint64_t> OperatorNeeds::units_of(std::uint64_t units, const Place& place) const
{
  const auto pieces = spmd::divided(units, groups_[place.group].shares);
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < place.position; ++i) begin += pieces[i];
  return {begin, begin + pieces[place.position]};
}

/// The bytes of a micro-batch that each device has to send to one of another group: of each tensor that one group
/// makes and the other reads, the elements that both have. Gradients go back.
void OperatorNeeds::list_messages()
{
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
          messages_[{sender, reader, Payload::Activation}] += size;
          if (divided_.graph.has_gradient(tensor)) messages_[{reader, sender, Payload::Gradient}] += size;
        }
      }
    }
  }
}

}  // namespace isobar
