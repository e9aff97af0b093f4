#include "core/program/channel_rounds.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <functional>

namespace isobar {

std::vector<std::size_t> ranks_of(const Channel& channel)
{
  if (channel.folded) return channel.folded->ranks;
  std::vector<std::size_t> ranks;
  for (const End& end : channel.ends) ranks.push_back(end.rank);
  return ranks;
}

std::vector<Round> rounds_of(const Channel& channel, Opcode opcode, const std::vector<Bytes>& size,
                             const std::vector<std::string>& sites, const std::vector<Bytes>& results)
{
  if (!channel.folded) return rounds_of(opcode, size, channel.algorithm, sites, results);
  const std::vector<std::size_t>& ranks = channel.folded->ranks;
  const std::vector<std::size_t>& places = channel.folded->places;
  ensure(results.empty() && std::adjacent_find(size.begin(), size.end(), std::not_equal_to<>()) == size.end(),
         "the ends of a folded collective have equal data");
  auto rounds = rounds_of(opcode, std::vector<Bytes>(ranks.size(), size.front()), channel.algorithm, channel.sites);
  const auto acts = [&](std::size_t place) { return std::binary_search(places.begin(), places.end(), place); };
  const auto has_acting_rank = [&](std::size_t place) {
    return std::any_of(channel.ends.begin(), channel.ends.end(),
                       [&](const End& end) { return end.rank == ranks[place]; });
  };
  for (auto& round : rounds) {
    std::erase_if(round,
                  [&](const Flow& flow) { return !acts(flow.from) && (!acts(flow.to) || has_acting_rank(flow.from)); });
  }
  return rounds;
}

}  // namespace isobar
