#include "core/steps/operator_steps.hpp"

#include "core/errors.hpp"
#include "core/program/collective.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

namespace isobar {

namespace {

// Lanes, in each of which the collectives of some ranks follow each other.
constexpr std::size_t reform_lane = 0;
constexpr std::size_t replica_lane = 1;
constexpr std::size_t facts_lane = 2;

// The order of collectives at a pass.
constexpr std::size_t before_forward = 0;
constexpr std::size_t of_tensors = 1;
constexpr std::size_t of_parameters = 2;
constexpr std::size_t sums_of_parameters = 3;

/// A message waits for the one of the third sender before it, since a device follows three senders at a time.
constexpr std::size_t most_arrivals = 3;

}  // namespace

OperatorSteps::OperatorSteps(const Plan& plan, const Workload& workload, const Cluster& cluster,
                             const std::vector<std::vector<StagePass>>& passes, double stretch)
    : plan_(plan),
      workload_(workload),
      cluster_(cluster),
      order_(passes),
      stretch_(stretch),
      needs_(plan, workload, cluster),
      graph_(paths_between(plan, cluster)),
      positions_(needs_.groups().size())
{
  for (const std::size_t endpoint : needs_.endpoints()) {
    const Device& device = cluster.devices[endpoint];
    Rank& rank = ranks_.emplace_back();
    if (device.interference > 1) rank.pace = graph_.add_pace(device.interference);
  }
  constexpr auto none = ~std::uint64_t{0};
  first_forward_.assign(plan.stages.size(), none);
  last_backward_.assign(plan.stages.size(), none);
}

double OperatorSteps::play()
{
  const std::size_t groups = needs_.groups().size();
  for (std::size_t group = 0; group < groups; ++group) add_passes(group);
  for (std::size_t group = 0; group < groups; ++group) add_collectives(group);
  for (std::size_t group = 0; group < groups; ++group) wait_for_collectives(group);
  for (std::size_t group = 0; group + 1 < groups; ++group) add_messages(group);
  for (std::size_t group = 0; group < groups; ++group) add_sums(group);
  add_facts();
  return graph_.play().front();
}

/// Adds the passes of a group's devices, and then an update for each of their parts, the last one first.
void OperatorSteps::add_passes(std::size_t number)
{
  const OperatorNeeds::Group& group = needs_.groups()[number];
  const auto& order = order_.at(group.replicas.front().front());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const StagePass& pass = order[i];
    positions_[number][{pass.opcode, {pass.stage, pass.microbatch}}] = i;
    const bool is_forward = pass.opcode == Opcode::Forward;
    if (!is_forward) last_backward_[pass.stage] = pass.microbatch;
    if (is_forward && first_forward_[pass.stage] == ~std::uint64_t{0}) first_forward_[pass.stage] = pass.microbatch;
  }
  for (const Ranks& replica : group.replicas) {
    for (const std::size_t index : replica) {
      ensure(order_.at(index) == order, "devices that divide operators together have the same order");
      Rank& rank = ranks_[index];
      const auto& times = needs_.times()[index];
      std::optional<Node> last;
      const auto add = [&](double seconds) {
        const Node node = graph_.add_computation(seconds * stretch_, rank.pace);
        if (last) graph_.add_wait(node, *last);
        last = node;
        return node;
      };
      for (const StagePass& pass : order) {
        const auto& part = times[pass.stage];
        rank.passes.push_back(add(pass.opcode == Opcode::Forward ? part.forward : part.backward));
      }
      for (std::size_t part = group.end_part; part-- > group.first_part;) rank.updates[part] = add(times[part].update);
    }
  }
}

std::uint64_t OperatorSteps::position_of(std::size_t group, Opcode opcode, std::size_t part,
                                         std::uint64_t microbatch) const
{
  return positions_[group].at({opcode, {part, microbatch}});
}

OperatorSteps::Node OperatorSteps::collective(const Ranks& ranks, std::size_t lane,
                                              const OperatorNeeds::Collective& what, Algorithm algorithm)
{
  const auto [group, is_new] = groups_.try_emplace({lane, ranks}, 0);
  if (is_new) {
    std::vector<std::size_t> ends;
    std::vector<std::size_t> slows;
    double start = 0;
    for (const std::size_t rank : ranks) {
      ends.push_back(needs_.endpoints()[rank]);
      start = std::max(start, cluster_.devices[ends.back()].collective_start.value);
      if (ranks_[rank].pace) slows.push_back(*ranks_[rank].pace);
    }
    group->second = graph_.add_group(std::move(ends), start, std::move(slows));
  }
  return graph_.add_collective(group->second, rounds_for(ranks, what, algorithm));
}

/// The rounds of a collective, which those of all micro-batches have in common.
std::size_t OperatorSteps::rounds_for(const Ranks& ranks, const OperatorNeeds::Collective& what, Algorithm algorithm)
{
  // Only sites tell ranks apart.
  const Ranks key = algorithm == Algorithm::Hierarchical ? ranks : Ranks();
  const auto [known, is_new] = rounds_.try_emplace({what.opcode, algorithm, what.before, what.after, key}, 0);
  if (!is_new) return known->second;
  std::vector<std::string> sites;
  for (const std::size_t rank : ranks) sites.push_back(cluster_.devices[needs_.endpoints()[rank]].site);
  std::vector<Bytes> sizes;
  std::vector<Bytes> results;
  for (const double bytes : what.before) sizes.emplace_back(bytes);
  for (const double bytes : what.after) results.emplace_back(bytes);
  const bool divides = what.opcode == Opcode::ReduceScatter || what.opcode == Opcode::AllToAll;
  const auto are_even = [](const std::vector<Bytes>& all) {
    return std::all_of(all.begin(), all.end(), [&](Bytes each) { return each == all.front(); });
  };
  if (!divides || (are_even(sizes) && are_even(results))) results.clear();
  known->second = graph_.add_rounds(rounds_of(what.opcode, sizes, algorithm, sites, results));
  return known->second;
}

// --- reforms ---------------------------------------------------------------------------------------------------------

/// The collectives of each replica of a group, in their order.
std::vector<OperatorSteps::Placed> OperatorSteps::placed_collectives(std::size_t group) const
{
  const OperatorNeeds::Group& devices = needs_.groups()[group];
  std::vector<Placed> placed;
  const auto& reforms = needs_.divided().reforms;
  for (std::size_t i = 0; i < reforms.size(); ++i) {
    if (reforms[i].part < devices.first_part || reforms[i].part >= devices.end_part) continue;
    const auto forward = needs_.forward_of(i);
    const auto backward = needs_.backward_of(i);
    for (const auto& [key, position] : positions_[group]) {
      const auto& [opcode, passage] = key;
      if (passage.first != reforms[i].part) continue;
      const bool is_forward = opcode == Opcode::Forward;
      const std::uint64_t once = (is_forward ? first_forward_ : last_backward_)[passage.first];
      if (reforms[i].is_parameter && passage.second != once) continue;
      if (is_forward && forward) placed.push_back({position, before_forward, i, i, {}, *forward});
      if (is_forward || !backward) continue;
      std::size_t kind = of_tensors;
      if (reforms[i].is_parameter) kind = backward->opcode == Opcode::AllReduce ? sums_of_parameters : of_parameters;
      placed.push_back({position, kind, i, i, {}, *backward});
    }
  }
  for (std::size_t i = 0; i < needs_.buckets().size(); ++i) {
    const std::size_t last = needs_.buckets()[i].back();
    const std::size_t part = reforms[last].part;
    const auto sum = needs_.bucket_sum(needs_.buckets()[i]);
    if (!sum || part < devices.first_part || part >= devices.end_part) continue;
    const std::uint64_t position = position_of(group, Opcode::Backward, part, last_backward_[part]);
    placed.push_back({position, sums_of_parameters, i, last, i, *sum});
  }
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::tie(a.position, a.kind, a.number) < std::tie(b.position, b.kind, b.number);
  });
  return placed;
}

void OperatorSteps::add_collectives(std::size_t group)
{
  const std::size_t replicas = needs_.groups()[group].replicas.size();
  Collectives none;
  none.before_sum.resize(plan_.stages.size());
  none.before_update.resize(plan_.stages.size());
  collectives_.emplace_back(replicas, none);
  const auto placed = placed_collectives(group);
  for (std::size_t replica = 0; replica < replicas; ++replica) {
    for (const Placed& each : placed) add_collective(group, replica, each);
  }
}

void OperatorSteps::add_collective(std::size_t group, std::size_t replica, const Placed& placed)
{
  const Ranks& ranks = needs_.groups()[group].replicas[replica];
  const auto& reforms = needs_.divided().reforms;
  const spmd::PlacedReform& reform = reforms[placed.reform];
  const Node node = collective(ranks, reform_lane, placed.collective, Algorithm::Ring);
  Collectives& own = collectives_[group][replica];
  own.last = node;
  const Passage passage{reform.part, order_[ranks.front()][placed.position].microbatch};
  if (placed.kind == before_forward) {
    own.reformed[passage] = node;
    return add_reform(node, group, replica, placed);
  }
  for (const std::size_t rank : ranks) graph_.add_wait(node, ranks_[rank].passes[placed.position]);
  if (placed.kind == of_tensors) {
    own.returned[passage] = node;
    return;
  }
  std::set<std::size_t> made_in = {reform.part, reform.made_in};
  std::size_t last = reform.part;
  if (placed.bucket) {
    const auto& bucket = needs_.buckets()[*placed.bucket];
    for (const std::size_t each : bucket) made_in.insert(reforms[each].made_in);
    last = reforms[bucket.front()].part;
  }
  for (const std::size_t part : made_in) own.before_sum[part].push_back(node);
  for (std::size_t part = reform.part; part <= last; ++part) own.before_update[part].push_back(node);
}

/// A reform of a tensor waits for the forward through the part before, or for what comes from the group before.
void OperatorSteps::add_reform(Node node, std::size_t group, std::size_t replica, const Placed& placed)
{
  const spmd::PlacedReform& reform = needs_.divided().reforms[placed.reform];
  const Ranks& ranks = needs_.groups()[group].replicas[replica];
  const std::uint64_t microbatch = order_[ranks.front()][placed.position].microbatch;
  if (reform.part == needs_.groups()[group].first_part) {
    if (is_received(placed.reform)) collectives_[group][replica].takers[microbatch].push_back(node);
    return;
  }
  if (reform.is_parameter) return;
  const std::uint64_t before = position_of(group, Opcode::Forward, reform.part - 1, microbatch);
  for (const std::size_t rank : ranks) graph_.add_wait(node, ranks_[rank].passes[before]);
}

/// Lets passes and updates wait for the collectives around them.
void OperatorSteps::wait_for_collectives(std::size_t group)
{
  const OperatorNeeds::Group& devices = needs_.groups()[group];
  for (std::size_t replica = 0; replica < devices.replicas.size(); ++replica) {
    const Collectives& own = collectives_[group][replica];
    for (const std::size_t rank : devices.replicas[replica]) {
      for (std::size_t i = 0; i < order_[rank].size(); ++i) {
        const StagePass& pass = order_[rank][i];
        const bool is_forward = pass.opcode == Opcode::Forward;
        const auto& all = is_forward ? own.reformed : own.returned;
        const auto found = all.find({is_forward ? pass.stage : pass.stage + 1, pass.microbatch});
        if (found != all.end()) graph_.add_wait(ranks_[rank].passes[i], found->second);
      }
      for (const auto& [part, update] : ranks_[rank].updates) {
        for (const Node node : own.before_update[part]) graph_.add_wait(update, node);
      }
    }
  }
}

// --- messages --------------------------------------------------------------------------------------------------------

/// Whether the tensor of a reform comes from the group before.
bool OperatorSteps::is_received(std::size_t index) const
{
  const auto& divided = needs_.divided();
  const spmd::PlacedReform& reform = divided.reforms[index];
  const std::size_t maker = divided.graph.tensors[reform.tensor].producer;
  if (spmd::is_source(divided.graph.operators[maker].kind)) return false;
  return needs_.group_of_part(divided.division.part_of(maker)) != needs_.group_of_part(reform.part);
}

/// Adds the messages between a group and the next one, activations and gradients.
void OperatorSteps::add_messages(std::size_t group)
{
  for (const bool is_forward : {true, false}) {
    const Payload payload = is_forward ? Payload::Activation : Payload::Gradient;
    for (const auto& [way, bytes] : needs_.messages()) {
      const auto& [from, to, carried] = way;
      const std::size_t sends = needs_.places()[from].group;
      const std::size_t receives = needs_.places()[to].group;
      if (carried != payload || std::min(sends, receives) != group) continue;
      ensure(std::max(sends, receives) == group + 1, "tensors pass between neighbouring groups");
      add_messages(from, to, bytes, is_forward);
    }
  }
}

/// Adds a message for each micro-batch, in the order of the passes of the sender.
void OperatorSteps::add_messages(std::size_t from, std::size_t to, double bytes, bool is_forward)
{
  const OperatorNeeds::Place& sender = needs_.places()[from];
  const OperatorNeeds::Place& receiver = needs_.places()[to];
  const Opcode opcode = is_forward ? Opcode::Forward : Opcode::Backward;
  const OperatorNeeds::Group& own = needs_.groups()[sender.group];
  const OperatorNeeds::Group& other = needs_.groups()[receiver.group];
  const std::size_t maker = is_forward ? own.end_part - 1 : own.first_part;
  const std::size_t taker = is_forward ? other.first_part : other.end_part - 1;
  auto& lanes = is_forward ? ranks_[to].arrivals : ranks_[to].gradient_arrivals;
  const std::size_t stream = graph_.add_stream(needs_.endpoints()[from], needs_.endpoints()[to]);
  std::vector<Node> messages;
  for (std::size_t i = 0; i < order_[from].size(); ++i) {
    const StagePass& pass = order_[from][i];
    if (pass.opcode != opcode || pass.stage != maker) continue;
    const Node message = graph_.add_message(stream, bytes);
    graph_.add_wait(message, ranks_[from].passes[i]);
    const auto& returned = collectives_[sender.group][sender.replica].returned;
    const auto found = returned.find({maker, pass.microbatch});
    if (!is_forward && found != returned.end()) graph_.add_wait(message, found->second);
    if (lanes.size() >= most_arrivals) {
      graph_.add_wait(message, lanes[lanes.size() - most_arrivals].at(messages.size()));
    }
    const std::uint64_t position = position_of(receiver.group, opcode, taker, pass.microbatch);
    graph_.add_wait(ranks_[to].passes[position], message);
    const auto& takers = collectives_[receiver.group][receiver.replica].takers;
    const auto reforms = takers.find(pass.microbatch);
    for (std::size_t k = 0; is_forward && reforms != takers.end() && k < reforms->second.size(); ++k) {
      graph_.add_wait(reforms->second[k], message);
    }
    messages.push_back(message);
  }
  lanes.push_back(std::move(messages));
}

// --- sums ------------------------------------------------------------------------------------------------------------

/// The replicas add up the gradients of each part, the last one first.
void OperatorSteps::add_sums(std::size_t group)
{
  const OperatorNeeds::Group& devices = needs_.groups()[group];
  if (devices.replicas.size() == 1) return;
  for (std::size_t position = 0; position < devices.shares.size(); ++position) {
    const OperatorNeeds::Place place{group, 0, position};
    const Ranks ranks = needs_.counterparts(place);
    for (std::size_t part = devices.end_part; part-- > devices.first_part;) {
      const std::vector<double> bytes(ranks.size(), needs_.bytes_of_gradients(part, place));
      if (bytes.front() <= 0) continue;
      const Node sum = collective(ranks, replica_lane, {Opcode::AllReduce, Payload::ParameterGradient, 1, bytes, bytes},
                                  plan_.sync.algorithm);
      const std::uint64_t last = position_of(group, Opcode::Backward, part, last_backward_[part]);
      for (std::size_t replica = 0; replica < ranks.size(); ++replica) {
        Rank& rank = ranks_[ranks[replica]];
        graph_.add_wait(sum, rank.passes[last]);
        for (const Node node : collectives_[group][replica].before_sum[part]) graph_.add_wait(sum, node);
        graph_.add_wait(rank.updates.at(part), sum);
        rank.last_sum = sum;
      }
    }
  }
}

/// All devices agree on what clipping and loss scaling need to know.
void OperatorSteps::add_facts()
{
  if (!needs_gradient_sync(workload_) || ranks_.size() == 1) return;
  Ranks all;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) all.push_back(rank);
  const std::vector<double> bytes(all.size(), gradient_sync_size.value);
  const Node facts =
      collective(all, facts_lane, {Opcode::AllReduce, Payload::GradientFacts, 1, bytes, bytes}, Algorithm::Ring);
  for (const std::size_t index : all) {
    const Rank& rank = ranks_[index];
    const OperatorNeeds::Place& place = needs_.places()[index];
    graph_.add_wait(facts, rank.passes.back());
    if (const auto& last = collectives_[place.group][place.replica].last) graph_.add_wait(facts, *last);
    if (rank.last_sum) graph_.add_wait(facts, *rank.last_sum);
    for (const auto& [part, update] : rank.updates) graph_.add_wait(update, facts);
  }
}

}  // namespace isobar
