#include "core/program/contention.hpp"

#include "core/program/channel_rounds.hpp"
#include "core/program/link_loads.hpp"
#include "core/program/shared_flows.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace isobar {

namespace {

class ChannelLoads {
 public:
  ChannelLoads(const Program& program, const EndNetwork& network, const std::vector<std::string>& sites)
      : program_(program), network_(network), sites_(sites)
  {
  }

  LinkLoads of(const Channel& channel) const
  {
    const End& first = channel.ends.front();
    const std::uint64_t length = program_.length(first.rank, first.lane);
    if (length == 0) return {};
    const EndNetwork between = network_between(ranks_of(channel), network_);
    if (is_transfer(program_.at(first.rank, first.lane, 0).opcode)) return loads_of({{0, 1, Bytes(1)}}, between);
    LinkLoads loads;
    std::set<std::pair<Opcode, bool>> seen;
    for (std::uint64_t position = 0; position < length; ++position) {
      const Instruction instruction = program_.at(first.rank, first.lane, position);
      const bool is_uneven = instruction.result > Bytes(0);
      if (!seen.emplace(instruction.opcode, is_uneven).second) continue;
      for (Round round : rounds_at(channel, position)) {
        for (Flow& flow : round) flow.message = std::max(flow.message, Bytes(1));
        loads.add_after(loads_of(round, between));
      }
    }
    return loads;
  }

 private:
  std::vector<Round> rounds_at(const Channel& channel, std::uint64_t position) const
  {
    std::vector<Bytes> sizes;
    std::vector<Bytes> results;
    std::vector<std::string> sites;
    Opcode opcode = Opcode::AllReduce;
    for (const End& end : channel.ends) {
      const Instruction instruction = program_.at(end.rank, end.lane, position);
      opcode = instruction.opcode;
      sizes.push_back(instruction.size);
      results.push_back(instruction.result);
      if (!sites_.empty()) sites.push_back(sites_.at(end.rank));
    }
    if (has_equal_parts(results)) results.clear();
    return rounds_of(channel, opcode, sizes, sites, results);
  }

  const Program& program_;
  const EndNetwork& network_;
  const std::vector<std::string>& sites_;
};

/// The links that channels and copies load, if all are under way at once.
class AllLoads {
 public:
  void add(LinkLoads loads)
  {
    all_.add_beside(loads);
    for (const auto& [link, load] : loads.by_link()) ++users_of_link_[link];
    of_user_.push_back(std::move(loads));
  }

  /// Whether a user, by the order of the calls, may share the bandwidth of a link with others.
  bool is_contended(std::size_t user) const
  {
    const auto& links = of_user_[user].by_link();
    return std::any_of(links.begin(), links.end(), [&](const auto& link) {
      return users_of_link_.at(link.first) > 1 && all_.by_link().at(link.first).is_contended();
    });
  }

 private:
  std::vector<LinkLoads> of_user_;
  std::unordered_map<std::string_view, std::size_t> users_of_link_;
  LinkLoads all_;
};

/// What a lane of copies loads links with.
LinkLoads loads_of_copies(const CopyRate& rate, const std::vector<SharedLink>& links)
{
  LinkLoads loads;
  for (const SharedLink& link : links) loads.add(link, rate.bandwidth.value, weight_of_flow(rate.latency));
  return loads;
}

/// A lane of a rank's machine that is not empty.
struct MachineLane {
  std::size_t rank = 0;
  std::size_t lane = 0;
  Engine engine = {};

  bool is_of_disk() const { return engine == Engine::DiskRead || engine == Engine::DiskWrite; }
  bool is_of_copies() const { return engine == Engine::CopyIn || engine == Engine::CopyOut; }
};

std::vector<MachineLane> machine_lanes(const Program& program)
{
  std::vector<MachineLane> found;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    const auto& lanes = program.lanes(rank);
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      const Engine engine = lanes[lane].engine;
      if (engine == Engine::Device || engine == Engine::Network) continue;
      if (program.length(rank, static_cast<LaneId>(lane)) > 0) found.push_back({rank, lane, engine});
    }
  }
  return found;
}

}  // namespace

bool Contention::is_anywhere() const
{
  const auto has_any = [](const std::vector<bool>& of) { return std::find(of.begin(), of.end(), true) != of.end(); };
  return has_any(channels) || std::any_of(lanes.begin(), lanes.end(), has_any);
}

Contention contention_of(const Program& program, const PlayerRates& rates)
{
  Contention result;
  result.channels.assign(program.channels().size(), false);
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    result.lanes.emplace_back(program.lanes(rank).size(), false);
  }
  AllLoads loads;
  const bool has_links = rates.shared_links && rates.transfer;
  const EndNetwork network = network_between_ranks(rates);
  if (has_links) {
    const ChannelLoads of_channels(program, network, rates.sites);
    for (const Channel& channel : program.channels()) loads.add(of_channels.of(channel));
  }
  const auto on_machines = machine_lanes(program);
  std::map<std::size_t, std::size_t> disk_lanes;  // by machine
  std::map<std::size_t, std::size_t> updating;    // likewise: ranks
  for (const MachineLane& each : on_machines) {
    const MachineRates& machine = rates.machines.at(each.rank);
    const bool is_in = each.engine == Engine::CopyIn;
    if (each.is_of_copies()) {
      loads.add(loads_of_copies(is_in ? machine.in : machine.out, is_in ? machine.in_links : machine.out_links));
    } else {
      ++(each.is_of_disk() ? disk_lanes : updating)[machine.machine];
    }
  }
  std::size_t user = 0;
  if (has_links) {
    for (; user < result.channels.size(); ++user) result.channels[user] = loads.is_contended(user);
  }
  for (const MachineLane& each : on_machines) {
    const MachineRates& machine = rates.machines.at(each.rank);
    const bool contends = each.is_of_copies() ? loads.is_contended(user++)
                          : each.is_of_disk() ? disk_lanes[machine.machine] > 1
                                              : updating[machine.machine] > machine.cores;
    result.lanes[each.rank][each.lane] = contends;
  }
  return result;
}

}  // namespace isobar
