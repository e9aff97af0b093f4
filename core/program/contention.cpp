#include "core/program/contention.hpp"

#include "core/program/channel_rounds.hpp"
#include "core/program/link_loads.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
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

}  // namespace

std::vector<bool> contending_channels(const Program& program, const EndNetwork& network,
                                      const std::vector<std::string>& sites)
{
  std::vector<bool> contends(program.channels().size(), false);
  if (!network.shared_links || !network.transfer) return contends;
  const ChannelLoads loads(program, network, sites);
  std::vector<LinkLoads> of_channel;
  std::unordered_map<std::string_view, std::size_t> channels_of_link;
  LinkLoads all;
  for (const Channel& channel : program.channels()) {
    of_channel.push_back(loads.of(channel));
    all.add_beside(of_channel.back());
    for (const auto& [link, load] : of_channel.back().by_link()) ++channels_of_link[link];
  }
  for (std::size_t i = 0; i < contends.size(); ++i) {
    const auto& links = of_channel[i].by_link();
    contends[i] = std::any_of(links.begin(), links.end(), [&](const auto& link) {
      return channels_of_link[link.first] > 1 && all.by_link().at(link.first).is_contended();
    });
  }
  return contends;
}

}  // namespace isobar
