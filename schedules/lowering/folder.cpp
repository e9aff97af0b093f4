#include "schedules/lowering/folder.hpp"

#include "core/costs/nominal_rates.hpp"
#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/program/channel_rounds.hpp"
#include "core/program/collective.hpp"
#include "core/program/round_time.hpp"
#include "schedules/lowering/merged_shards.hpp"
#include "schedules/lowering/pipeline_program.hpp"
#include "schedules/lowering/replicas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace isobar::schedules {

namespace {

/// The time of a ring of all endpoints on which each has `size` bytes to add up, alone.
Seconds ring_time(const Ranks& endpoints, Bytes size, const EndNetwork& network)
{
  const std::vector<Bytes> sizes(endpoints.size(), size);
  return collective_time(rounds_of(Opcode::AllReduce, sizes, Algorithm::Ring), network_between(endpoints, network));
}

/// The plan of the first replicas, which take as many micro-batches as before.
Plan plan_of_first(const Plan& plan, std::size_t replicas, const Places& places)
{
  Plan first;
  first.goal = plan.goal;
  first.sync = plan.sync;
  first.transfers = plan.transfers;
  first.context = plan.context;
  first.experts = plan.experts;
  first.system = plan.system;
  first.data_server = plan.data_server;
  for (const auto& stage : plan.stages) {
    Stage& own = first.stages.emplace_back();
    own.first_layer = stage.first_layer;
    own.last_layer = stage.last_layer;
    own.grid = stage.grid;
    own.starts_chunk = stage.starts_chunk;
    own.replicas.assign(stage.replicas.begin(), stage.replicas.begin() + static_cast<std::ptrdiff_t>(replicas));
  }
  const std::uint64_t each = plan.stages.front().replicas.front().microbatches;
  if (each > 0) first.goal.microbatches = each * replicas;
  const auto warm_up = first.goal.schedule.numbers.find("warm_up");
  if (warm_up != first.goal.schedule.numbers.end() && warm_up->second.size() == places.devices()) {
    std::vector<std::uint64_t> kept;
    for (std::size_t rank = 0; rank < places.devices(); ++rank) {
      if (places.replica_of(rank) < replicas) kept.push_back(warm_up->second[rank]);
    }
    warm_up->second = std::move(kept);
  }
  return first;
}

/// Folds a plan in one way.
class Folder {
 public:
  Folder(const Plan& plan, const Workload& workload, const Cluster& cluster, const Places& places, KnownPaths& paths,
         const Acting& acting)
      : workload_(workload),
        cluster_(cluster),
        places_(places),
        paths_(paths),
        acting_(acting),
        sharded_(plan.sync.sharded),
        algorithm_(plan.sync.algorithm)
  {
    const bool is_divided = acting.replicas < places.replicas();
    const Plan first = is_divided ? plan_of_first(plan, acting.replicas, places) : Plan{};
    std::optional<MergedShards> merged;
    if (acting.merges_shards)
      merged = merged_shards(is_divided ? first : plan, workload, cluster, places.replicas() > 1);
    const Plan& own = merged ? merged->plan : is_divided ? first : plan;
    inner_ = std::make_unique<PipelineProgram>(own, merged ? merged->workload : workload, cluster, orders_of_first(own),
                                               is_divided ? std::optional(places.replicas()) : std::nullopt);
    for (std::size_t rank = 0; rank < places.devices(); ++rank) {
      const bool is_merged = acting.merges_shards && places.shard_of(rank) > 0;
      if (places.replica_of(rank) < acting.replicas && !is_merged) ranks_.push_back(rank);
    }
    if (plan.data_server) ranks_.push_back(places.devices());
    ensure(ranks_.size() == inner_->ranks(), "the first replicas have the first ranks of their stages");
  }

  /// The program and the links, or why they are not those of the whole plan.
  std::variant<FoldedParts, std::string> fold() &&
  {
    group_channels();
    std::vector<FlowKind> kinds;
    std::vector<std::string> names;  // of kinds
    std::size_t number = 0;
    for (const auto& [pattern, flows] : flows_) {
      ++number;
      for (const auto& round : flows.rounds) {
        kinds.push_back(round);
        names.push_back(flows.name);
        kinds.back().lanes = flows.lanes;
        kinds.back().collective = number;
        if (!flows.is_after_passes) continue;
        // All groups of experts have their turn together.
        kinds.back().chain = places_.counterpart(std::get<Ranks>(pattern).front(), 0);
        kinds.back().turn = flows.is_of_experts ? 0 : number;
      }
    }
    if (acting_.merges_shards && !acting_.ignores_meetings && shards_meet_others())
      return "collectives of shards meet other flows on their links";
    FoldedLinks links =
        acting_.times_exchanges ? FoldedLinks{users_of_links(kinds, paths_), {}} : compare_flows(kinds, paths_);
    if (links.unlike) return fmt::format("flows of {} meet others on their links in unlike ways", names[*links.unlike]);
    auto program = std::make_unique<FoldedProgram>(std::move(inner_), ranks_, places_, acting_);
    for (auto& channel : channels_) {
      program->add_channel(*channel.inner, ranks_, std::move(channel.folded), std::move(channel.sites), channel.times);
    }
    if (facts_ > Bytes(0)) {
      const Seconds extra = time_of_facts();
      if (extra < Seconds(0)) return "the devices that act are further from each other than from others";
      program->add_to_updates(extra, places_);
    }
    return FoldedParts(std::move(program), std::move(links.links));
  }

 private:
  /// A channel of the folded program.
  struct FoldedChannel {
    const Channel* inner = nullptr;
    std::optional<FoldedEnds> folded;
    std::vector<std::string> sites;
    CollectiveTimes times = {};
  };
  /// The flows of channels among the same ranks, by round.
  struct Flows {
    std::string name;
    bool is_after_passes = false;
    bool is_of_experts = false;
    std::size_t lanes = 0;
    std::vector<FlowKind> rounds;
  };

  bool acts(std::size_t rank) const
  {
    return !places_.is_device(rank) ||
           (places_.replica_of(rank) < acting_.replicas && (!acting_.only_first_shard || places_.shard_of(rank) == 0));
  }

  Ranks outer_ranks(const Channel& channel) const
  {
    Ranks ranks;
    for (const End& end : channel.ends) ranks.push_back(ranks_[end.rank]);
    return ranks;
  }

  bool is_divided() const { return acting_.replicas < places_.replicas(); }

  /// Whether replicas that divide sequences or experts meet on a channel for their passes, each group for itself.
  bool is_of_exchange(const Channel& channel) const
  {
    const End& end = channel.ends.front();
    const auto& role = inner_->lanes(end.rank)[end.lane].role;
    return role && is_exchange(*role);
  }

  bool is_of_experts(const Channel& channel) const
  {
    const End& end = channel.ends.front();
    return inner_->is_of_experts(end.rank, end.lane);
  }

  /// Whether all replicas meet on a channel, or those with the same experts, of which the first ones are its ends.
  bool joins_replicas(const Channel& channel, const Ranks& ranks) const
  {
    if (is_of_exchange(channel)) return false;
    if (ranks.size() == 1) return true;
    return places_.replica_of(ranks[0]) && places_.replica_of(ranks[1]) &&
           *places_.replica_of(ranks[0]) != *places_.replica_of(ranks[1]);
  }

  /// All ends of a channel of the first replicas.
  Ranks all_ends(const Channel& channel) const
  {
    Ranks ranks = outer_ranks(channel);
    if (!is_divided() || !joins_replicas(channel, ranks)) return ranks;
    return joined(ranks.front(), *places_.replica_of(ranks.front()), is_of_experts(channel));
  }

  /// The ranks that do what `rank` does in all replicas, or in those that have the same experts as replica `first`.
  Ranks joined(std::size_t rank, std::size_t first, bool is_of_experts) const
  {
    const std::size_t stride = is_of_experts ? workload_.experts.degree : 1;
    Ranks all;
    for (std::size_t replica = first % stride; replica < places_.replicas(); replica += stride) {
      all.push_back(places_.counterpart(rank, replica));
    }
    return all;
  }

  /// All groups that exchange what the first one does on a channel.
  std::vector<Ranks> groups_of(const Channel& channel) const
  {
    const Ranks ranks = outer_ranks(channel);
    std::vector<Ranks> groups;
    if (places_.replica_of(ranks.front()) != 0) return groups;
    Ranks first;  // those of the first replica
    for (const std::size_t rank : ranks) {
      if (places_.replica_of(rank) == 0) first.push_back(rank);
    }
    const End& end = channel.ends.front();
    const GridAxis axis = inner_->axis_of(end.rank, end.lane).value();
    const std::size_t members = is_among_replicas(axis) ? replicas_along(axis, workload_) : 1;
    for (std::size_t begin = 0; begin < places_.replicas(); begin += members) {
      Ranks& group = groups.emplace_back();
      for (std::size_t replica = begin; replica < begin + members; ++replica) {
        for (const std::size_t rank : first) group.push_back(places_.counterpart(rank, replica));
      }
    }
    return groups;
  }

  std::vector<std::string> sites_of(const Ranks& ranks) const
  {
    std::vector<std::string> sites;
    for (const std::size_t rank : ranks) sites.push_back(places_.device(rank).site);
    return sites;
  }

  /// Whether flows of collectives among shards pass links that others use while shards compute. Sums of gradients that
  /// come after all passes of a rank do not.
  bool shards_meet_others()
  {
    std::set<std::size_t> links;  // of collectives among shards
    const auto add = [&](std::size_t from, std::size_t to, auto each) {
      for (const auto& [link, bytes] : paths_.between(from, to).links) each(link);
    };
    for (const Ranks& group : places_.groups_of_shards()) {
      for (std::size_t i = 0; i < group.size(); ++i) {
        add(places_.endpoint_of(group[i]), places_.endpoint_of(group[(i + 1) % group.size()]),
            [&](std::size_t link) { links.insert(link); });
      }
    }
    const bool sums_once =
        std::all_of(sums_of_.begin(), sums_of_.end(), [](const auto& sums) { return sums.second <= 1; });
    bool meet = false;
    for (const auto& [pattern, flows] : flows_) {
      if (flows.is_after_passes && sums_once) continue;
      for (const auto& round : flows.rounds) {
        for (const auto& group : round.whole) {
          for (const auto& [from, to] : group) add(from, to, [&](std::size_t link) { meet |= links.contains(link); });
        }
      }
    }
    return meet;
  }

  /// Finds which channels do the same, and lets those of ranks that act stand for all.
  void group_channels()
  {
    using Key = std::vector<std::pair<std::size_t, LaneId>>;
    std::map<Key, std::vector<const Channel*>> alike;
    std::vector<Key> keys;  // in the order of the channels
    for (const Channel& channel : inner_->channels()) {
      const End& end = channel.ends.front();
      const Instruction first = inner_->at(end.rank, end.lane, 0);
      if (first.payload == Payload::GradientFacts && is_collective(first.opcode)) {
        facts_ = first.size;
        channels_.push_back({&channel, std::nullopt, {}});
        continue;
      }
      // Replicas with other experts may add up their gradients over other links.
      const std::size_t kinds = is_of_experts(channel) ? std::min(acting_.replicas, workload_.experts.degree) : 1;
      Key key;
      for (const End& each : channel.ends) {
        const std::size_t rank = ranks_[each.rank];
        const std::size_t like = places_.replica_of(rank).value_or(0) % kinds;
        key.emplace_back(places_.counterpart(rank, like, acting_.only_first_shard), each.lane);
      }
      auto& channels = alike[key];
      if (channels.empty()) keys.push_back(std::move(key));
      channels.push_back(&channel);
    }
    for (const Key& key : keys) add_group(alike.at(key));
    // A rank that stands for all has nobody to tell.
    if (inner_->ranks() == 1 && needs_gradient_sync(workload_)) facts_ = gradient_sync_size;
  }

  void add_group(const std::vector<const Channel*>& channels)
  {
    std::vector<const Channel*> acting;
    for (const Channel* channel : channels) {
      const Ranks ranks = outer_ranks(*channel);
      if (std::any_of(ranks.begin(), ranks.end(), [&](std::size_t rank) { return acts(rank); })) {
        acting.push_back(channel);
      }
    }
    ensure(!acting.empty(), "each channel of equal ranks has its like among ranks that act");
    if (acting_.times_exchanges && is_of_exchange(*acting.front())) return add_timed(channels, acting);
    const End& end = acting.front()->ends.front();
    const Instruction first = inner_->at(end.rank, end.lane, 0);
    std::vector<Channel> folded;
    for (const Channel* channel : acting) {
      FoldedChannel& own = channels_.emplace_back(folded_channel(*channel, first.opcode));
      Channel& copy = folded.emplace_back();
      copy.algorithm = channel->algorithm;
      copy.sites = own.sites;
      copy.folded = own.folded;
      for (const End& each : channel->ends) {
        if (acts(ranks_[each.rank])) copy.ends.push_back({ranks_[each.rank], each.lane});
      }
    }
    // Under ring, all opcodes have the same flows.
    const Opcode opcode = first.opcode;
    const bool is_ring = is_collective(opcode) && folded.front().algorithm == Algorithm::Ring;
    const auto pattern = std::tuple(outer_ranks(*acting.front()), folded.front().algorithm,
                                    is_ring               ? Opcode::AllReduce
                                    : is_transfer(opcode) ? Opcode::Send
                                                          : opcode);
    const auto [found, is_new] = flows_.try_emplace(pattern);
    Flows& flows = found->second;
    // Syncs and gathers of updated parameters come one after another.
    const bool is_chained = first.payload == Payload::ParameterGradient || first.payload == Payload::TiedGradient ||
                            (first.payload == Payload::Parameter && sharded_ != Sharding::Parameters);
    if (first.payload == Payload::ParameterGradient) ++sums_of_[outer_ranks(*acting.front()).front()];
    if (is_new) flows.is_after_passes = is_chained;
    flows.is_after_passes = flows.is_after_passes && is_chained;
    if (is_new || !is_chained) ++flows.lanes;
    if (!is_new) return;
    flows.is_of_experts = is_of_experts(*acting.front());
    const Lane& lane = inner_->lanes(end.rank)[end.lane];
    flows.name = fmt::format("lane {} of {}", shown(lane.name), shown(places_.names()[some_device(*acting.front())]));
    const auto add = [&](const Channel& channel, std::vector<std::vector<FlowEnds>> FlowKind::*system) {
      const Ranks ranks = ranks_of(channel);
      std::vector<Round> rounds = {{{0, 1, first.size, 1}}};
      if (is_collective(opcode)) {
        rounds = rounds_of(channel, opcode, std::vector<Bytes>(channel.ends.size(), first.size), channel.sites);
      }
      if (flows.rounds.empty()) flows.rounds.resize(rounds.size());
      ensure(flows.rounds.size() == rounds.size(), "equal ranks have equal rounds");
      for (std::size_t i = 0; i < rounds.size(); ++i) {
        auto& group = (flows.rounds[i].*system).emplace_back();
        for (const Flow& flow : rounds[i]) {
          group.push_back({places_.endpoint_of(ranks[flow.from]), places_.endpoint_of(ranks[flow.to])});
        }
      }
    };
    for (const Channel& channel : folded) add(channel, &FlowKind::folded);
    for (const Channel* channel : channels) {
      for (const Ranks& ranks : with_merged_shards(whole_of(*channel))) {
        Channel whole;
        whole.algorithm = channel->algorithm;
        for (const std::size_t rank : ranks) whole.ends.push_back({rank, 0});
        if (is_collective(opcode)) whole.sites = sites_of(ranks);
        add(whole, &FlowKind::whole);
      }
    }
  }

  /// Adds channels whose collectives take what those of all groups take beside each other, with nothing else under way.
  void add_timed(const std::vector<const Channel*>& channels, const std::vector<const Channel*>& acting)
  {
    std::vector<Ranks> groups;
    for (const Channel* channel : channels) {
      for (Ranks& group : groups_of(*channel)) groups.push_back(std::move(group));
    }
    const End& end = acting.front()->ends.front();
    const GridAxis axis = inner_->axis_of(end.rank, end.lane).value();
    CollectiveTimes times;
    for (std::uint64_t position = 0; position < inner_->length(end.rank, end.lane); ++position) {
      const Instruction instruction = inner_->at(end.rank, end.lane, position);
      const auto [found, is_new] = times.try_emplace({instruction.opcode, instruction.size.value});
      if (is_new) found->second = time_of(groups, axis, instruction.opcode, instruction.size);
    }
    for (const Channel* channel : acting) channels_.push_back({channel, std::nullopt, {}, times});
  }

  Seconds time_of(const std::vector<Ranks>& groups, GridAxis axis, Opcode opcode, Bytes size)
  {
    const auto [known, is_new] = exchange_times_.try_emplace({groups.front(), opcode, size.value});
    if (!is_new) return known->second;
    const std::size_t members = groups.front().size();
    const auto sites = sites_of(groups.front());
    const Algorithm algorithm = algorithm_of_group(axis, workload_.context, algorithm_, sites);
    const auto rounds = rounds_of(opcode, std::vector<Bytes>(members, size), algorithm, sites);
    std::vector<Ranks> endpoints = groups;
    for (Ranks& group : endpoints) {
      for (std::size_t& rank : group) rank = places_.endpoint_of(rank);
    }
    return known->second = collective_time(rounds_beside(rounds, endpoints), network_of(cluster_));
  }

  std::size_t some_device(const Channel& channel) const
  {
    const Ranks ranks = outer_ranks(channel);
    return places_.is_device(ranks.front()) ? ranks.front() : ranks.back();
  }

  /// The ranks of all channels of the whole plan for which one of the first replicas stands, or of the first group of
  /// those that divide sequences.
  std::vector<Ranks> whole_of(const Channel& channel) const
  {
    const Ranks ranks = outer_ranks(channel);
    if (!is_divided()) return {ranks};
    if (is_of_exchange(channel)) return groups_of(channel);
    const std::size_t device = places_.is_device(ranks.front()) ? ranks.front() : ranks.back();
    const std::size_t replica = *places_.replica_of(device);
    std::vector<Ranks> all;
    if (joins_replicas(channel, ranks)) {
      const bool is_of_experts = this->is_of_experts(channel);
      const std::size_t kinds = is_of_experts ? workload_.experts.degree : 1;
      for (std::size_t first = replica % kinds; first < kinds; first += acting_.replicas) {
        all.push_back(joined(device, first, is_of_experts));
      }
      return all;
    }
    if (replica != 0) return all;
    for (std::size_t other = 0; other < places_.replicas(); ++other) {
      Ranks& own = all.emplace_back();
      for (const std::size_t rank : ranks) own.push_back(places_.counterpart(rank, other));
    }
    return all;
  }

  /// The same for each of the shards that were merged.
  std::vector<Ranks> with_merged_shards(std::vector<Ranks> channels) const
  {
    if (!acting_.merges_shards) return channels;
    std::vector<Ranks> all;
    for (const Ranks& ranks : channels) {
      for (std::size_t shard = 0; shard < places_.shards(); ++shard) {
        Ranks& own = all.emplace_back();
        for (const std::size_t rank : ranks) own.push_back(places_.other_shard(rank, shard));
      }
    }
    return all;
  }

  FoldedChannel folded_channel(const Channel& channel, Opcode opcode) const
  {
    FoldedChannel own;
    own.inner = &channel;
    if (!is_collective(opcode)) return own;
    const Ranks ranks = outer_ranks(channel);
    const Ranks all = all_ends(channel);
    own.sites = sites_of(all);
    FoldedEnds folded;
    folded.ranks = all;
    const bool stands_for_others = all.size() > ranks.size() && acting_.replicas > 1;
    for (std::size_t place = 0; place < all.size(); ++place) {
      if (stands_for_others) folded.ranks[place] = ranks[place % ranks.size()];
      if (place < ranks.size() && acts(all[place])) folded.places.push_back(place);
    }
    if (folded.places.size() < all.size()) own.folded = std::move(folded);
    return own;
  }

  /// What the sync of facts takes beyond that of the ranks that act, without data.
  Seconds time_of_facts() const
  {
    Ranks all;
    Ranks acting;
    for (std::size_t rank = 0; rank < places_.devices(); ++rank) {
      all.push_back(places_.endpoint_of(rank));
      if (acts(rank)) acting.push_back(places_.endpoint_of(rank));
    }
    const EndNetwork network = network_of(cluster_);
    return ring_time(all, facts_, network) - ring_time(acting, Bytes(0), network);
  }

  const Workload& workload_;
  const Cluster& cluster_;
  const Places& places_;
  KnownPaths& paths_;
  Acting acting_;
  Sharding sharded_;
  Algorithm algorithm_;  // of replicas
  std::unique_ptr<const PipelineProgram> inner_;
  Ranks ranks_;  // of the plan, by rank of the inner program
  std::vector<FoldedChannel> channels_;
  std::map<std::tuple<Ranks, Algorithm, Opcode>, Flows> flows_;
  std::map<std::tuple<Ranks, Opcode, double>, Seconds> exchange_times_;  // by the first group and what it does
  std::map<std::size_t, std::size_t> sums_of_;                           // sums of gradients, by the first rank of each
  Bytes facts_;
};

}  // namespace

std::variant<FoldedParts, std::string> fold_so(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                               const Places& places, KnownPaths& paths, const Acting& acting)
{
  return Folder(plan, workload, cluster, places, paths, acting).fold();
}

}  // namespace isobar::schedules
