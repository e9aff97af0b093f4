#include "sim/play/collectives.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace isobar::sim {

/// The collectives of the lane's channel.
Collective& Collectives::collective_of(LaneState& lane)
{
  if (lane.collective != nullptr) return *lane.collective;
  const auto index = lane.job->program->lanes(lane.rank).at(lane.id).channel;
  ensure(index.has_value(), "a collective over no channel");
  const Channel& channel = lane.job->program->channels().at(*index);
  Collective& collective = collectives_.emplace_back();
  collective.channel = &channel;
  for (const std::size_t rank : ranks_of(channel)) {
    const RankState& state = lane.job->ranks.at(rank);
    collective.host_at.push_back(state.host);
    collective.start = std::max(collective.start, state.collective_start);
  }
  collective.lane_at.resize(collective.host_at.size());
  for (std::size_t i = 0; i < channel.ends.size(); ++i) {
    const End& end = channel.ends[i];
    LaneState& lane_of_end = lane.job->ranks.at(end.rank).lanes.at(end.lane);
    lane_of_end.collective = &collective;
    collective.ends.push_back(&lane_of_end);
    collective.lane_at.at(channel.folded ? channel.folded->places.at(i) : i) = &lane_of_end;
    if (channel.algorithm == Algorithm::Hierarchical) collective.sites.push_back(site_of(rank_of(lane_of_end)));
  }
  return collective;
}

/// The site of the rank's device; empty for one that the cluster does not know.
std::string Collectives::site_of(const RankState& rank) const
{
  const Cluster& cluster = state_.platform.cluster();
  const auto device = cluster.device_index(rank.host->get_name());
  return device ? cluster.devices[*device].site : "";
}

void Collectives::join(LaneState& lane)
{
  Collective& collective = collective_of(lane);
  lane.state = TurnState::Joined;
  if (++collective.joined == collective.ends.size()) start(collective);
}

void Collectives::start(Collective& collective)
{
  collective.joined = 0;
  if (collective.ends.front()->turn.instruction.time > Seconds(0)) return begin(collective);
  const Opcode opcode = collective.ends.front()->turn.instruction.opcode;
  bool is_same = collective.opcode == opcode;
  collective.opcode = opcode;
  collective.sizes.resize(collective.ends.size());
  std::vector<Bytes> results;
  for (std::size_t i = 0; i < collective.ends.size(); ++i) {
    const Instruction& instruction = collective.ends[i]->turn.instruction;
    ensure(instruction.opcode == opcode, "ends of a collective that differ");
    is_same = is_same && collective.sizes[i] == instruction.size;
    collective.sizes[i] = instruction.size;
    results.push_back(instruction.result);
  }
  if (has_equal_parts(results)) results.clear();
  if (!is_same || collective.results != results) {
    collective.results = std::move(results);
    collective.rounds = rounds_of(*collective.channel, opcode, collective.sizes, collective.sites, collective.results);
    if (turns_) find_links(collective);
  }
  if (!turns_) return begin(collective);
  turns_->ask(*collective.ends.front()->job, collective.links, [this, &collective] { begin(collective); });
}

void Collectives::find_links(Collective& collective)
{
  std::set<LinkState*> links;
  for (const auto& round : collective.rounds) {
    for (const auto& flow : round) {
      const Hop& hop = streams_.hop(*collective.host_at[flow.from], *collective.host_at[flow.to]);
      links.insert(hop.links.begin(), hop.links.end());
    }
  }
  collective.links.assign(links.begin(), links.end());
}

void Collectives::begin(Collective& collective)
{
  for (auto* end : collective.ends) {
    lanes_.begin_running(*end);
    computations_.collective_begins(rank_of(*end));
  }
  const Seconds time = collective.ends.front()->turn.instruction.time;
  if (time > Seconds(0)) {
    collective.timer = call_at((now() + time).value, [this, &collective] {
      collective.timer = nullptr;
      state_.last_progress = now();
      state_.guard.run([&] {
        end(collective);
        on_end_();
      });
    });
    return;
  }
  collective.next_round = 0;
  play_rounds(collective);
}

void Collectives::end(Collective& collective)
{
  for (auto* end : collective.ends) {
    computations_.collective_ends(rank_of(*end));
    lanes_.complete(*end);
  }
}

/// Starts the next round that has flows between hosts. Without one, all ends have ended.
void Collectives::play_rounds(Collective& collective)
{
  while (collective.next_round < collective.rounds.size()) {
    const Seconds delay = collective.next_round == 0 ? collective.start : Seconds(0);
    start_flows(collective, collective.rounds[collective.next_round++], delay);
    if (collective.flows_left > 0) return;
  }
  end(collective);
  if (turns_) turns_->give_back(collective.links);
}

void Collectives::start_flows(Collective& collective, const Round& round, Seconds delay)
{
  for (const auto& flow : round) {
    if (collective.flows_left == collective.streams.size()) collective.streams.push_back(&streams_.create());
    Stream& stream = *collective.streams[collective.flows_left];
    LaneState* const sender = collective.lane_at[flow.from];
    streams_.connect(stream, sender != nullptr ? *sender : *collective.lane_at[flow.to], *collective.host_at[flow.from],
                     *collective.host_at[flow.to]);
    if (stream.hop->is_within_host) continue;
    streams_.send(stream, flow.messages, flow.size(), delay);
    ++collective.flows_left;
  }
}

void Collectives::complete(const Stream& flow)
{
  streams_.release(flow);
  state_.last_progress = now();
  Collective& collective = *flow.sender->collective;
  if (--collective.flows_left == 0) play_rounds(collective);
}

void Collectives::remove_timers()
{
  for (auto& collective : collectives_) {
    if (collective.timer != nullptr) std::exchange(collective.timer, nullptr)->remove();
  }
}

}  // namespace isobar::sim
