#include "core/program/round_time.hpp"

#include "core/program/link_loads.hpp"
#include "core/program/shared_flows.hpp"

#include <algorithm>
#include <utility>

namespace isobar {

namespace {

/// When each flow of a round has ended whose flows take bandwidth from each other.
std::vector<Seconds> ends_of_contending(const Round& round, const EndNetwork& network)
{
  SharedFlows flows;
  std::vector<Seconds> ends(round.size());
  for (std::size_t i = 0; i < round.size(); ++i) {
    const Flow& flow = round[i];
    const TransferTimes alone = network.transfer(flow.from, flow.to, flow.size());
    const double begin = static_cast<double>(flow.messages) * alone.latency.value;
    const bool has_data = alone.data > Seconds(0);
    const std::size_t way = flows.way_over(network.shared_links(flow.from, flow.to));
    flows.begin(i, way, begin, has_data ? flow.size().value : 0, has_data ? (flow.size() / alone.data).value : 0,
                weight_of_flow(alone.latency));
  }
  for (std::size_t left = round.size(); left > 0;) {
    for (const SharedFlows::End& end : flows.advance()) {
      ends[end.owner] = Seconds(end.time);
      --left;
    }
  }
  return ends;
}

}  // namespace

EndNetwork network_between(std::vector<std::size_t> ends, const EndNetwork& whole)
{
  EndNetwork network;
  if (whole.transfer) {
    network.transfer = [ends, &whole](std::size_t from, std::size_t to, Bytes size) {
      return whole.transfer(ends.at(from), ends.at(to), size);
    };
  }
  if (whole.shared_links) {
    network.shared_links = [ends, &whole](std::size_t from, std::size_t to) {
      return whole.shared_links(ends.at(from), ends.at(to));
    };
  }
  if (whole.start) {
    network.start = [ends = std::move(ends), &whole](std::size_t end) { return whole.start(ends.at(end)); };
  }
  return network;
}

std::vector<Round> rounds_beside(const std::vector<Round>& rounds, const std::vector<std::vector<std::size_t>>& groups)
{
  std::vector<Round> all(rounds.size());
  for (const auto& ends : groups) {
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      for (Flow flow : rounds[i]) {
        flow.from = ends.at(flow.from);
        flow.to = ends.at(flow.to);
        all[i].push_back(flow);
      }
    }
  }
  return all;
}

std::vector<Seconds> ends_of_flows(const Round& round, const EndNetwork& network)
{
  if (!network.transfer) return std::vector<Seconds>(round.size());
  if (network.shared_links && loads_of(round, network).are_contended()) return ends_of_contending(round, network);
  std::vector<Seconds> ends;
  ends.reserve(round.size());
  for (const Flow& flow : round) {
    const TransferTimes alone = network.transfer(flow.from, flow.to, flow.size());
    ends.push_back(static_cast<double>(flow.messages) * alone.latency + alone.data);
  }
  return ends;
}

Seconds round_time(const Round& round, const EndNetwork& network)
{
  Seconds last;
  for (const Seconds end : ends_of_flows(round, network)) last = std::max(last, end);
  return last;
}

Seconds collective_start(const std::vector<Round>& rounds, const EndNetwork& network)
{
  Seconds longest;
  if (!network.start) return longest;
  for (const Round& round : rounds) {
    for (const Flow& flow : round) longest = std::max({longest, network.start(flow.from), network.start(flow.to)});
  }
  return longest;
}

Seconds collective_time(const std::vector<Round>& rounds, const EndNetwork& network)
{
  Seconds time = collective_start(rounds, network);
  for (const Round& round : rounds) time += round_time(round, network);
  return time;
}

}  // namespace isobar
