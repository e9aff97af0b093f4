#include "schedules/lowering/operator_program.hpp"

#include "core/errors.hpp"
#include "core/spmd/operator_time.hpp"
#include "core/spmd/pieces.hpp"
#include "core/spmd/reform_time.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace isobar::schedules {

namespace {

using spmd::Form;
using spmd::PlacedReform;
using spmd::ReformKind;

constexpr LaneId collective_lane = 1;  // of ranks that have it

/// The most lanes of messages that an instruction waits for, beside one of collectives.
constexpr std::size_t most_arrivals = 3;

/// Where a collective before or after a task lies among others of the lane. After a backward, those come first that the
/// next one waits for, and sums of whole gradients last.
std::uint64_t place_of(const Instruction& collective, std::uint64_t task, bool is_after)
{
  std::uint64_t order = 0;
  if (is_after) order = 1;
  if (collective.payload == Payload::ParameterGradient) order = collective.opcode == Opcode::AllReduce ? 3 : 2;
  return 4 * task + order;
}

}  // namespace

OperatorProgram::OperatorProgram(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                 const std::vector<Order>& orders)
    : plan_(operator_plan_of(plan, workload))
{
  const std::size_t ranks = plan_.ranks();
  ensure(orders.size() == ranks, "an order for each device");
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    ensure(orders[rank] == orders[plan_.groups[plan_.place_of(rank).group].first_rank],
           "devices that divide operators together have the same order");
  }
  bucket_of_.resize(plan_.reforms.size());
  for (std::size_t i = 0; i < plan_.buckets.size(); ++i) bucket_of_[plan_.buckets[i].back()] = i;
  lanes_.assign(ranks, {{"compute", Engine::Device}});
  lanes_of_.resize(ranks);
  constexpr auto none = ~std::uint64_t{0};
  for (auto* each : {&first_forward_, &first_backward_, &last_backward_}) {
    each->assign(plan_.division.parts.size(), none);
  }
  groups_.resize(plan_.groups.size());
  std::vector<spmd::Pieces> pieces;
  for (std::size_t i = 0; i < plan_.groups.size(); ++i) {
    const OperatorGroup& group = plan_.groups[i];
    const Order& order = orders[group.first_rank];
    orders_.push_back(order);
    pieces.emplace_back(plan_.graph, group.shares);
    if (group.rank_of(plan_.replicas, 0) - group.first_rank > 1) {
      auto& grid = grids_.emplace_back(group.rank_of(plan_.replicas, 0) - group.first_rank);
      std::iota(grid.begin(), grid.end(), group.first_rank);
    }
    add_tasks(i, order);
    if (group.shares.size() > 1) add_collectives(i, order);
    if (plan_.replicas > 1 && trains_) add_sums(i, order, plan, pieces.back());
  }
  if (ranks > 1 && trains_ && needs_gradient_sync(workload)) add_facts_sync();
  add_transfers(pieces);
  const auto device_of_rank = indices_of_devices(plan, cluster);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const OperatorPlace place = plan_.place_of(rank);
    const auto rates = operator_rates_of(workload, cluster.devices[device_of_rank[rank]]);
    tables_.push_back(table_of(workload, pieces[place.group], place, rates));
  }
}

Instruction OperatorProgram::instruction_of(std::size_t part, Opcode opcode, LaneId lane,
                                            std::uint64_t microbatch) const
{
  Instruction instruction;
  instruction.opcode = opcode;
  instruction.lane = lane;
  instruction.stage = static_cast<std::uint32_t>(part);
  instruction.microbatch = microbatch;
  instruction.first_layer = plan_.division.parts[part];
  instruction.last_layer = plan_.division.end_of(part) - 1;
  return instruction;
}

std::optional<Opcode> OperatorProgram::opcode_of(ReformKind kind, std::size_t group) const
{
  return plan_.groups[group].shares.size() == 1 ? std::nullopt : spmd::opcode_of(kind);
}

void OperatorProgram::add_tasks(std::size_t group, const Order& order)
{
  const std::size_t end = plan_.groups[group].end_part;
  constexpr auto none = ~std::uint64_t{0};
  auto& compute = groups_[group].compute;
  for (std::uint64_t i = 0; i < order.length(); ++i) {
    const Task task = order.at(i);
    const std::size_t part = first_part(group) + task.part;
    ensure(part < end && (task.opcode == Opcode::Forward || task.opcode == Opcode::Backward),
           "devices that divide operators compute whole passes of their parts");
    compute.push_back(instruction_of(part, task.opcode, compute_lane, task.microbatch));
    const bool is_forward = task.opcode == Opcode::Forward;
    auto& first = (is_forward ? first_forward_ : first_backward_)[part];
    if (first == none) first = task.microbatch;
    if (is_forward) continue;
    last_backward_[part] = task.microbatch;
    trains_ = true;
  }
  if (!trains_) return;
  for (std::size_t part = end; part-- > first_part(group);) {
    compute.push_back(instruction_of(part, Opcode::Update, compute_lane, 0));
  }
}

std::uint64_t OperatorProgram::update_position(const Order& order, std::size_t part) const
{
  return order.length() + (plan_.groups[plan_.group_of(part)].end_part - 1 - part);
}

std::optional<Instruction> OperatorProgram::collective_of(std::size_t index, std::size_t group, const Order& order,
                                                          std::uint64_t position) const
{
  const PlacedReform& reform = plan_.reforms[index];
  const Task task = order.at(position);
  const bool is_forward = task.opcode == Opcode::Forward;
  if (reform.part != first_part(group) + task.part) return std::nullopt;
  const std::uint64_t once = (is_forward ? first_forward_ : last_backward_)[reform.part];
  if (reform.is_parameter && task.microbatch != once) return std::nullopt;
  if (!is_forward && !plan_.graph.has_gradient(reform.tensor)) return std::nullopt;
  const bool is_replica = reform.from.kind == Form::Kind::Replicate;
  if (!is_forward && is_replica && !bucket_of_[index]) return std::nullopt;
  const auto opcode = opcode_of(is_forward ? reform.forward : reform.backward, group);
  if (!opcode) return std::nullopt;
  Instruction collective = instruction_of(reform.part, *opcode, collective_lane, task.microbatch);
  collective.place = static_cast<std::uint32_t>(index);
  if (!is_forward) {
    collective.payload = reform.is_parameter ? Payload::ParameterGradient : Payload::Gradient;
    collective.waits.add({compute_lane, 0, position + 1});
    if (is_replica) {  // with the others of its bucket, up to the part that backward computes first
      const std::size_t last = plan_.reforms[plan_.buckets[*bucket_of_[index]].front()].part;
      collective.last_layer = plan_.division.end_of(last) - 1;
    }
    return collective;
  }
  collective.payload = reform.is_parameter ? Payload::Parameter : Payload::Activation;
  if (!reform.is_parameter && task.part > 0) {
    const Task before{Opcode::Forward, task.part - 1, task.microbatch};
    collective.waits.add({compute_lane, 0, order.position_of(before) + 1});
  } else if (reform.is_parameter && trains_) {
    collective.waits.add({compute_lane, 1, update_position(order, reform.made_in) + 1});
  }
  return collective;
}

void OperatorProgram::add_collectives(std::size_t group, const Order& order)
{
  struct Placed {
    std::uint64_t place = 0;
    std::size_t number = 0;  // among those of the place
    Instruction instruction;
  };
  std::vector<Placed> placed;
  for (std::uint64_t i = 0; i < order.length(); ++i) {
    const bool is_after = order.at(i).opcode != Opcode::Forward;
    for (std::size_t k = 0; k < plan_.reforms.size(); ++k) {
      if (auto collective = collective_of(k, group, order, i))
        placed.push_back({place_of(*collective, i, is_after), is_after ? bucket_of_[k].value_or(k) : k, *collective});
    }
  }
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.place, a.number) < std::pair(b.place, b.number);
  });
  if (placed.empty()) return;
  const OperatorGroup& devices = plan_.groups[group];
  GroupLanes& lanes = groups_[group];
  for (std::size_t replica = 0; replica < plan_.replicas; ++replica) {
    std::vector<std::size_t> ranks(devices.shares.size());
    std::iota(ranks.begin(), ranks.end(), devices.rank_of(replica, 0));
    connect(spmd::reform_lane, &RankLanes::collectives, ranks);
  }

  // How many there are once those of a part and micro-batch have ended.
  using Passage = std::pair<std::size_t, std::uint64_t>;
  std::map<Passage, std::uint64_t> reformed;
  std::map<Passage, std::uint64_t> returned;
  std::vector<std::uint64_t> added(plan_.division.parts.size(), 0);  // gradients of parameters
  for (const auto& each : placed) {
    const Instruction& instruction = each.instruction;
    lanes.collectives.push_back(instruction);
    const std::uint64_t count = lanes.collectives.size();
    if (instruction.payload == Payload::ParameterGradient) {
      for (std::size_t part = instruction.stage; part <= plan_.division.part_of(instruction.last_layer); ++part) {
        added[part] = count;
      }
    } else {
      const bool is_forward = instruction.payload != Payload::Gradient;
      (is_forward ? reformed : returned)[{instruction.stage, instruction.microbatch}] = count;
    }
  }
  for (std::uint64_t i = 0; i < order.length(); ++i) {
    const Task task = order.at(i);
    const std::size_t part = first_part(group) + task.part;
    const bool is_forward = task.opcode == Opcode::Forward;
    const auto& counts = is_forward ? reformed : returned;
    const auto found = counts.find({is_forward ? part : part + 1, task.microbatch});
    if (found != counts.end()) lanes.compute[i].waits.add({collective_lane, 0, found->second});
  }
  for (std::size_t part = first_part(group); part < devices.end_part && trains_; ++part) {
    lanes.compute[update_position(order, part)].waits.add({collective_lane, 0, added[part]});
  }
}

void OperatorProgram::add_sums(std::size_t group, const Order& order, const Plan& plan, const spmd::Pieces& pieces)
{
  const OperatorGroup& devices = plan_.groups[group];
  GroupLanes& lanes = groups_[group];
  // How many collectives there are once those have ended that bring gradients of parameters made or read in a part.
  std::vector<std::uint64_t> brought(plan_.division.parts.size(), 0);
  for (std::size_t i = 0; i < lanes.collectives.size(); ++i) {
    const Instruction& instruction = lanes.collectives[i];
    if (instruction.payload != Payload::ParameterGradient) continue;
    const auto note = [&](std::size_t reform) { brought[plan_.reforms[reform].made_in] = i + 1; };
    brought[instruction.stage] = i + 1;
    note(instruction.place);
    if (const auto bucket = bucket_of_[instruction.place]) {
      for (const std::size_t reform : plan_.buckets[*bucket]) note(reform);
    }
  }
  lanes.sums.resize(devices.shares.size());
  lanes.summed.assign(devices.shares.size(), std::vector<std::uint64_t>(plan_.division.parts.size(), 0));
  for (std::size_t position = 0; position < devices.shares.size(); ++position) {
    auto& sums = lanes.sums[position];
    const auto lane = static_cast<LaneId>(lanes_[devices.rank_of(0, position)].size());
    for (std::size_t part = devices.end_part; part-- > devices.first_part;) {
      Instruction sum = instruction_of(part, Opcode::AllReduce, lane, 0);
      sum.payload = Payload::ParameterGradient;
      for (std::size_t i = sum.first_layer; i <= sum.last_layer; ++i) {
        const auto& node = plan_.graph.operators[i];
        if (node.kind != spmd::OperatorKind::Parameter) continue;
        sum.size += pieces.size(node.outputs[0], plan_.division.signatures[i].outputs[0], position);
      }
      if (sum.size == Bytes(0)) continue;
      const Task last{Opcode::Backward, static_cast<std::uint32_t>(part - devices.first_part), last_backward_[part]};
      sum.waits.add({compute_lane, 0, order.position_of(last) + 1});
      sum.waits.add({collective_lane, 0, brought[part]});
      sums.push_back(sum);
      lanes.summed[position][part] = sums.size();
    }
    if (sums.empty()) continue;
    std::vector<std::size_t> ranks;
    for (std::size_t replica = 0; replica < plan_.replicas; ++replica) {
      ranks.push_back(devices.rank_of(replica, position));
    }
    Channel& channel = connect(spmd::replica_lane, &RankLanes::sums, ranks);
    channel.algorithm = plan.sync.algorithm;
    for (const auto& replica : plan.stages[devices.first_part].replicas) {
      channel.sites.push_back(replica.shards[position].site.value_or(""));
    }
  }
}

void OperatorProgram::add_facts_sync()
{
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    GroupLanes& lanes = groups_[i];
    Instruction facts = instruction_of(first_part(i), Opcode::AllReduce, compute_lane, 0);
    facts.payload = Payload::GradientFacts;
    facts.size = gradient_sync_size;
    facts.last_layer = plan_.division.end_of(plan_.groups[i].end_part - 1) - 1;
    facts.waits.add({compute_lane, 0, orders_[i].length()});
    facts.waits.add({collective_lane, 0, lanes.collectives.size()});
    lanes.facts = {facts};
  }
  std::vector<std::size_t> ranks(lanes_.size());
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  connect("sync", &RankLanes::facts, ranks);
}

Channel& OperatorProgram::connect(const std::string& name, LaneId RankLanes::*lane,
                                  const std::vector<std::size_t>& ranks)
{
  Channel& channel = channels_.emplace_back();
  for (const std::size_t rank : ranks) {
    lanes_of_[rank].*lane = static_cast<LaneId>(lanes_[rank].size());
    channel.ends.push_back({rank, lanes_of_[rank].*lane});
    lanes_[rank].push_back({name, Engine::Network, channels_.size() - 1});
  }
  return channel;
}

OperatorProgram::Boundary OperatorProgram::boundary_after(std::size_t group) const
{
  const Order& order = orders_[group];
  const Order& next = orders_[group + 1];
  const std::size_t last_part = plan_.groups[group].end_part - 1;
  const auto last = static_cast<std::uint32_t>(last_part - first_part(group));
  const auto message = [&](Opcode opcode, Payload payload, std::size_t part, std::uint64_t microbatch) {
    Instruction instruction = instruction_of(part, opcode, compute_lane, microbatch);
    instruction.payload = payload;
    return instruction;
  };
  Boundary boundary;
  for (std::uint64_t i = 0; i < order.count(Opcode::Forward, last); ++i) {
    const Task made = order.nth(Opcode::Forward, last, i);
    ensure(next.nth(Opcode::Forward, 0, i).microbatch == made.microbatch,
           "groups take micro-batches in the same order");
    boundary.sent.push_back(message(Opcode::Send, Payload::Activation, last_part, made.microbatch));
    boundary.sent.back().waits.add({compute_lane, 0, order.position_of(made) + 1});
    boundary.received.push_back(message(Opcode::Recv, Payload::Activation, last_part + 1, made.microbatch));
  }
  std::map<std::uint64_t, std::uint64_t> returned;  // collectives until the last conjugate of the first part
  const auto& collectives = groups_[group + 1].collectives;
  for (std::size_t i = 0; i < collectives.size(); ++i) {
    const bool is_conjugate = collectives[i].payload == Payload::Gradient && collectives[i].stage == last_part + 1;
    if (is_conjugate) returned[collectives[i].microbatch] = i + 1;
  }
  for (std::uint64_t i = 0; i < next.count(Opcode::Backward, 0); ++i) {
    const Task made = next.nth(Opcode::Backward, 0, i);
    ensure(order.nth(Opcode::Backward, last, i).microbatch == made.microbatch,
           "groups take micro-batches back in the same order");
    boundary.gradients_sent.push_back(message(Opcode::Send, Payload::Gradient, last_part + 1, made.microbatch));
    boundary.gradients_sent.back().waits.add({compute_lane, 0, next.position_of(made) + 1});
    boundary.gradients_sent.back().waits.add({collective_lane, 0, returned[made.microbatch]});
    boundary.gradients_received.push_back(message(Opcode::Recv, Payload::Gradient, last_part, made.microbatch));
  }
  return boundary;
}

void OperatorProgram::add_transfers(const std::vector<spmd::Pieces>& pieces)
{
  transfers_.resize(lanes_.size());
  for (std::size_t rank = 0; rank < lanes_.size(); ++rank) {
    lanes_of_[rank].first_transfer = static_cast<LaneId>(lanes_[rank].size());
  }
  for (std::size_t i = 0; i + 1 < plan_.groups.size(); ++i) {
    const OperatorGroup& group = plan_.groups[i];
    const OperatorGroup& next = plan_.groups[i + 1];
    const Boundary& boundary = boundaries_.emplace_back(boundary_after(i));
    for (std::size_t a = 0; a < group.shares.size(); ++a) {
      for (std::size_t b = 0; b < next.shares.size(); ++b) {
        Bytes activations;
        Bytes gradients;
        for (const std::size_t tensor : group.passes) {
          const Bytes size = pieces[i].overlap(tensor, plan_.form_of(tensor), a, pieces[i + 1], b);
          activations += size;
          if (plan_.graph.has_gradient(tensor)) gradients += size;
        }
        for (std::size_t replica = 0; replica < plan_.replicas; ++replica) {
          const std::size_t from = group.rank_of(replica, a);
          const std::size_t to = next.rank_of(replica, b);
          if (activations > Bytes(0)) connect_transfer("activation", boundary, from, to, activations);
          if (gradients > Bytes(0) && trains_) connect_transfer("gradient", boundary, to, from, gradients);
        }
      }
    }
  }
}

void OperatorProgram::connect_transfer(const char* what, const Boundary& boundary, std::size_t from, std::size_t to,
                                       Bytes size)
{
  const bool is_activation = from < to;
  const auto add = [&](std::size_t rank, std::size_t other, const char* verb, const std::vector<Instruction>& list) {
    const auto lane = static_cast<LaneId>(lanes_[rank].size());
    const std::string name = fmt::format("{} {} {}", verb, what, plan_.place_of(other).position);
    lanes_[rank].push_back({name, Engine::Network, channels_.size()});
    transfers_[rank].push_back({&list, size, std::nullopt});
    return lane;
  };
  const LaneId sends = add(from, to, "send", is_activation ? boundary.sent : boundary.gradients_sent);
  const LaneId receives = add(to, from, "receive", is_activation ? boundary.received : boundary.gradients_received);
  channels_.push_back({{{from, sends}, {to, receives}}});
  auto& arrivals = is_activation ? lanes_of_[to].arrivals : lanes_of_[to].gradient_arrivals;
  if (arrivals.size() >= most_arrivals) transfers_[to].back().after = arrivals[arrivals.size() - most_arrivals];
  arrivals.push_back(receives);
}

void OperatorProgram::wait_for(Instruction& instruction, const std::vector<LaneId>& arrivals, std::uint64_t index)
{
  for (std::size_t i = arrivals.size() - std::min(arrivals.size(), most_arrivals); i < arrivals.size(); ++i) {
    instruction.waits.add({arrivals[i], 0, index + 1});
  }
}

bool OperatorProgram::is_received(const PlacedReform& reform) const
{
  const std::size_t group = plan_.group_of(reform.part);
  if (group == 0) return false;
  const auto& passes = plan_.groups[group - 1].passes;
  return std::binary_search(passes.begin(), passes.end(), reform.tensor);
}

OperatorProgram::RankTable OperatorProgram::table_of(const Workload& workload, const spmd::Pieces& pieces,
                                                     const OperatorPlace& place, const spmd::DeviceRates& rates) const
{
  const std::size_t position = place.position;
  const spmd::OperatorGraph& graph = plan_.graph;
  const spmd::Division& division = plan_.division;
  const auto& reforms = plan_.reforms;
  const OperatorGroup& group = plan_.groups[place.group];
  const std::size_t first = division.parts[group.first_part];
  const std::size_t end = division.end_of(group.end_part - 1);
  RankTable table;
  table.parts.resize(division.parts.size());
  table.reforms.resize(reforms.size());
  std::vector<bool> is_kept(graph.tensors.size(), false);
  const auto readers = graph.readers();
  for (std::size_t i = first; i < end; ++i) {
    for (const std::size_t tensor : graph.operators[i].keeps) is_kept[tensor] = true;
  }
  for (const auto& reform : reforms) {
    if (plan_.group_of(reform.part) == place.group) is_kept[reform.tensor] = true;
  }
  const auto is_here = [&](std::size_t node) { return node >= first && node < end; };
  // Data that earlier parts have are made again here, by the first part that reads them.
  for (std::size_t i = 0; i < first; ++i) {
    if (!spmd::is_source(graph.operators[i].kind) || graph.operators[i].kind == spmd::OperatorKind::Parameter) continue;
    for (const std::size_t tensor : graph.operators[i].outputs) {
      const auto& all = readers[tensor];
      const auto reader = std::find_if(all.begin(), all.end(), is_here);
      if (reader == all.end()) continue;
      const std::size_t part = division.part_of(*reader);
      const bool leaves = std::any_of(
          reader, all.end(), [&](std::size_t other) { return is_here(other) && division.part_of(other) != part; });
      if (leaves || is_kept[tensor]) table.parts[part].kept += pieces.size(tensor, plan_.form_of(tensor), position);
    }
  }
  if (place.group > 0) {
    for (const std::size_t tensor : plan_.groups[place.group - 1].passes) {
      table.parts[group.first_part].received += pieces.size(tensor, plan_.form_of(tensor), position);
    }
  }
  for (std::size_t i = first; i < end; ++i) {
    const auto& node = graph.operators[i];
    const auto& signature = division.signatures[i];
    const std::size_t part = division.part_of(i);
    PartWork& work = table.parts[part];
    const double fraction = pieces.part(node, signature, position);
    const Flops update = fraction * update_work(workload, workload.layers[i]);
    const auto parameters = static_cast<double>(workload.layers[i].parameters);
    const auto times = spmd::operator_times(node, spmd::piece_of(node, signature, pieces, position), rates);
    const Bytes touched(fraction * parameters * bytes_of_update(workload));
    work.forward += times.forward;
    work.backward += times.backward;
    work.update += spmd::update_time(update, touched, rates);
    if (node.kind == spmd::OperatorKind::Parameter) {
      table.resident += Bytes(fraction * parameters * bytes_per_parameter(workload));
      continue;
    }
    for (std::size_t k = 0; k < node.outputs.size(); ++k) {
      const std::size_t tensor = node.outputs[k];
      const bool is_data = spmd::is_source(node.kind);
      const bool leaves = std::any_of(readers[tensor].begin(), readers[tensor].end(), [&](std::size_t reader) {
        return division.part_of(reader) != part && (!is_data || is_here(reader));
      });
      if (leaves || is_kept[tensor]) {
        work.kept += pieces.size(tensor, signature.outputs[k], position);
      }
    }
    if (node.kind == spmd::OperatorKind::Dropout) {
      work.kept += Bytes(fraction * spmd::elements_of(graph.tensors[node.outputs.front()]));
    }
  }
  add_reforms(table, pieces, place);
  add_gradients(table, pieces, place);
  return table;
}

/// Finds what reforms carry, and what reformed tensors take.
void OperatorProgram::add_reforms(RankTable& table, const spmd::Pieces& pieces, const OperatorPlace& place) const
{
  for (std::size_t i = 0; i < plan_.reforms.size(); ++i) {
    const PlacedReform& reform = plan_.reforms[i];
    if (plan_.group_of(reform.part) != place.group) continue;
    const Bytes whole = plan_.graph.tensors[reform.tensor].size;
    ReformSizes& sizes = table.reforms[i];
    PartWork& work = table.parts[reform.part];
    const Bytes before = pieces.size(reform.tensor, reform.from, place.position);
    const Bytes after = pieces.size(reform.tensor, reform.to, place.position);
    const auto result_of = [&](ReformKind kind, Form from, Form to) {
      const auto opcode = opcode_of(kind, place.group);
      const auto results =
          opcode ? spmd::results_of_ends(*opcode, pieces, reform.tensor, from, to) : std::vector<Bytes>();
      return results.empty() ? Bytes(0) : results[place.position];
    };
    sizes.size = before;
    sizes.result = result_of(reform.forward, reform.from, reform.to);
    sizes.gradient_size = after;
    if (bucket_of_[i]) {
      sizes.gradient_size = {};
      for (const std::size_t each : plan_.buckets[*bucket_of_[i]]) {
        sizes.gradient_size += plan_.graph.tensors[plan_.reforms[each].tensor].size;
      }
    }
    sizes.gradient_result = result_of(reform.backward, gradient_form(reform.to), gradient_form(reform.from));
    if (opcode_of(reform.forward, place.group)) {
      sizes.acquired = after;
      (reform.is_parameter ? work.gathered : work.reformed) += after;
    } else if (reform.forward == ReformKind::Pad) {
      work.kept += whole;
    }
  }
}

/// Finds which gradients lie between parts: of a tensor that later parts read, from the first that is made of it to the
/// backward that needs it; of a reformed tensor, from the backward of its last reader to its conjugate.
void OperatorProgram::add_gradients(RankTable& table, const spmd::Pieces& pieces, const OperatorPlace& place) const
{
  const spmd::OperatorGraph& graph = plan_.graph;
  const spmd::Division& division = plan_.division;
  const auto& reforms = plan_.reforms;
  const auto readers = graph.readers();
  std::vector<std::optional<std::size_t>> reform_of(graph.tensors.size());
  for (std::size_t i = 0; i < reforms.size(); ++i) {
    if (plan_.group_of(reforms[i].part) == place.group) reform_of[reforms[i].tensor] = i;
  }
  const auto passes = [&](std::size_t group, std::size_t tensor) {
    const auto& all = plan_.groups[group].passes;
    return std::binary_search(all.begin(), all.end(), tensor);
  };
  for (std::size_t tensor = 0; tensor < graph.tensors.size(); ++tensor) {
    if (!graph.has_gradient(tensor)) continue;
    const std::size_t made_in = division.part_of(graph.tensors[tensor].producer);
    const bool is_made_here = plan_.group_of(made_in) == place.group;
    if (!is_made_here && (place.group == 0 || !passes(place.group - 1, tensor))) continue;
    const auto& reform = reform_of[tensor];
    std::optional<std::size_t> last_direct;    // part of the last reader of the tensor as it was made
    std::optional<std::size_t> last_reformed;  // likewise, of the reformed one
    for (const std::size_t reader : readers[tensor]) {
      const auto& node = graph.operators[reader];
      const std::size_t part = division.part_of(reader);
      if (plan_.group_of(part) != place.group) continue;
      for (std::size_t k = 0; k < node.inputs.size(); ++k) {
        if (node.inputs[k] != tensor) continue;
        const Form form = division.signatures[reader].inputs[k];
        const bool is_reformed = reform && form == reforms[*reform].to;
        (is_reformed ? last_reformed : last_direct) = part;
      }
    }
    if (last_reformed) {
      const PlacedReform& placed = reforms[*reform];
      const Bytes size = pieces.size(tensor, placed.to, place.position);
      const bool is_free = !opcode_of(placed.backward, place.group);
      if (!placed.is_parameter) {
        table.parts[*last_reformed].gradients_made += size;
        if (is_free) table.parts[placed.part].gradients_taken += size;
      } else if (placed.from.kind != Form::Kind::Replicate && !is_free) {
        // That of a replica is added to the parameter's own gradient.
        table.parts[placed.part].gathered_gradients += size;
      } else {
        continue;
      }
      if (!is_free) table.reforms[*reform].gradient_released = size;
    }
    if (graph.is_parameter(tensor)) continue;
    const Bytes size = pieces.size(tensor, plan_.form_of(tensor), place.position);
    const bool comes_back = last_reformed.has_value();
    const bool is_made_by_reader = last_direct && (!is_made_here || *last_direct > made_in) &&
                                   (!comes_back || *last_direct >= reforms[*reform].part);
    if (is_made_here && passes(place.group, tensor)) {
      // It arrives before any is made here.
    } else if (is_made_by_reader) {
      table.parts[*last_direct].gradients_made += size;
    } else if (comes_back && opcode_of(reforms[*reform].backward, place.group)) {
      table.reforms[*reform].gradient_acquired = size;
    } else if (comes_back) {
      table.parts[reforms[*reform].part].gradients_made += size;
    } else {
      continue;
    }
    // What another group has made leaves when it is sent back.
    if (is_made_here) table.parts[made_in].gradients_taken += size;
  }
}

Bytes OperatorProgram::resident(std::size_t rank, Tier tier) const
{
  return tier == Tier::Device ? tables_.at(rank).resident : Bytes(0);
}

std::uint64_t OperatorProgram::length(std::size_t rank, LaneId lane) const
{
  ensure(lane < lanes_.at(rank).size(), "a lane beyond the rank's");
  return instructions_of(rank, lane).size();
}

const std::vector<Instruction>& OperatorProgram::instructions_of(std::size_t rank, LaneId lane) const
{
  const OperatorPlace place = plan_.place_of(rank);
  const GroupLanes& lanes = groups_[place.group];
  if (lane == compute_lane) return lanes.compute;
  if (lane == lanes_of_[rank].collectives) return lanes.collectives;
  if (lane >= lanes_of_[rank].first_transfer)
    return *transfers_[rank][lane - lanes_of_[rank].first_transfer].instructions;
  return lane == lanes_of_[rank].sums ? lanes.sums[place.position] : lanes.facts;
}

Instruction OperatorProgram::at(std::size_t rank, LaneId lane, std::uint64_t position) const
{
  ensure(position < length(rank, lane), "an instruction beyond the lane's");
  const RankTable& table = tables_[rank];
  const RankLanes& lanes = lanes_of_[rank];
  Instruction instruction = instructions_of(rank, lane)[position];
  instruction.lane = lane;
  if (lane >= lanes.first_transfer) {
    const TransferLane& transfer = transfers_[rank][lane - lanes.first_transfer];
    instruction.size = transfer.size;
    if (transfer.after) instruction.waits.add({*transfer.after, 0, position + 1});
    if (instruction.opcode == Opcode::Recv && trains_) instruction.acquires.size = transfer.size;
    const bool returns = instruction.opcode == Opcode::Send && instruction.payload == Payload::Gradient;
    if (returns) instruction.releases.size = transfer.size;
    return instruction;
  }
  if (lane == lanes.facts && lane != compute_lane) {
    if (lanes.sums > 0) instruction.waits.add({lanes.sums, 0, length(rank, lanes.sums)});
    return instruction;
  }
  if (lane == compute_lane) {
    const PartWork& work = table.parts[instruction.stage];
    if (instruction.opcode == Opcode::Update) {
      instruction.time = work.update;
      if (lanes.sums > 0) {
        const OperatorPlace place = plan_.place_of(rank);
        const std::uint64_t count = groups_[place.group].summed[place.position][instruction.stage];
        instruction.waits.add({lanes.sums, 0, count});
      }
      if (lanes.facts > 0) instruction.waits.add({lanes.facts, 0, 1});
    } else if (instruction.opcode == Opcode::Forward) {
      instruction.time = work.forward;
      if (trains_) instruction.acquires.size = work.kept;
      if (is_outermost(instruction)) wait_for(instruction, lanes.arrivals, index_of(instruction));
    } else {
      const bool is_first = instruction.microbatch == first_backward_[instruction.stage];
      const bool is_last = instruction.microbatch == last_backward_[instruction.stage];
      instruction.time = work.backward;
      instruction.acquires.size = work.gradients_made + (is_first ? work.gathered_gradients : Bytes(0));
      instruction.releases.size =
          work.kept + work.reformed + work.received + work.gradients_taken + (is_last ? work.gathered : Bytes(0));
      if (is_outermost(instruction)) wait_for(instruction, lanes.gradient_arrivals, index_of(instruction));
    }
    return instruction;
  }
  if (lane == lanes.sums) return instruction;
  const ReformSizes& sizes = table.reforms[instruction.place];
  if (instruction.payload == Payload::Gradient || instruction.payload == Payload::ParameterGradient) {
    instruction.size = sizes.gradient_size;
    instruction.result = sizes.gradient_result;
    instruction.acquires.size = sizes.gradient_acquired;
    instruction.releases.size = sizes.gradient_released;
  } else {
    instruction.size = sizes.size;
    instruction.result = sizes.result;
    if (trains_) instruction.acquires.size = sizes.acquired;
    const bool needs_arrival = is_received(plan_.reforms[instruction.place]) && is_outermost(instruction);
    if (needs_arrival) wait_for(instruction, lanes.arrivals, index_of(instruction));
  }
  return instruction;
}

bool OperatorProgram::is_outermost(const Instruction& instruction) const
{
  const OperatorGroup& group = plan_.groups[plan_.group_of(instruction.stage)];
  const bool is_backward = instruction.opcode == Opcode::Backward;
  return instruction.stage == (is_backward ? group.end_part - 1 : group.first_part);
}

std::uint64_t OperatorProgram::index_of(const Instruction& instruction) const
{
  const std::size_t group = plan_.group_of(instruction.stage);
  const Opcode opcode = instruction.opcode == Opcode::Backward ? Opcode::Backward : Opcode::Forward;
  return orders_[group].index_of(
      {opcode, static_cast<std::uint32_t>(instruction.stage - first_part(group)), instruction.microbatch});
}

}  // namespace isobar::schedules
