#include "allocators/operator_costs.hpp"

#include "core/program/collective.hpp"
#include "core/program/round_time.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace isobar::allocators {

namespace {

Seconds largest(const std::vector<Seconds>& times)
{
  return *std::max_element(times.begin(), times.end());
}

/// The time of a collective that has the network for itself.
Seconds time_alone(const Program& program, const PlayerRates& rates, const Channel& channel, std::uint64_t position)
{
  std::vector<std::size_t> ranks;
  std::vector<Bytes> sizes;
  std::vector<Bytes> results;
  std::vector<std::string> sites;
  Opcode opcode{};
  for (const End& end : channel.ends) {
    const Instruction instruction = program.at(end.rank, end.lane, position);
    opcode = instruction.opcode;
    ranks.push_back(end.rank);
    sizes.push_back(instruction.size);
    results.push_back(instruction.result);
    if (!rates.sites.empty()) sites.push_back(rates.sites.at(end.rank));
  }
  if (has_equal_parts(results)) results.clear();
  const EndNetwork whole = network_between_ranks(rates);
  const EndNetwork network = network_between(std::move(ranks), whole);
  return collective_time(rounds_of(opcode, sizes, channel.algorithm, sites, results), network);
}

}  // namespace

OperatorCosts::OperatorCosts(const Program& program, const PlayerRates& rates, std::uint64_t microbatches)
    : microbatches_(microbatches), updates_(program.ranks()), once_(program.ranks())
{
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    auto& forwards = forwards_.emplace_back();
    auto& backwards = backwards_.emplace_back();
    first_part_.push_back(program.at(rank, compute_lane, 0).stage);
    for (std::uint64_t i = 0; i < program.length(rank, compute_lane); ++i) {
      const Instruction instruction = program.at(rank, compute_lane, i);
      const Seconds time = instruction.time;
      if (instruction.opcode == Opcode::Update) {
        updates_[rank] += time;
      } else {
        auto& times = instruction.opcode == Opcode::Forward ? forwards : backwards;
        times.resize(std::max<std::size_t>(times.size(), instruction.stage + 1));
        times[instruction.stage] = time;
      }
    }
    passes_.push_back(std::accumulate(forwards.begin(), forwards.end(), Seconds(0)) +
                      std::accumulate(backwards.begin(), backwards.end(), Seconds(0)));
  }
  for (const auto& channel : program.channels()) {
    const auto& [first, lane] = channel.ends.front();
    const Instruction message = program.at(first, lane, 0);
    if (message.opcode == Opcode::Send && rates.transfer) {
      const TransferTimes times = rates.transfer(first, channel.ends.back().rank, message.size);
      Seconds& longest = messages_[{message.stage, message.payload}];
      longest = std::max(longest, times.latency + times.data);
    }
    if (is_collective(message.opcode)) add_collectives(program, rates, channel);
  }
}

void OperatorCosts::add_collectives(const Program& program, const PlayerRates& rates, const Channel& channel)
{
  const auto& [first, lane] = channel.ends.front();
  std::map<std::pair<std::uint32_t, Payload>, Seconds> time_of_reform;  // of a micro-batch
  Seconds once;
  Seconds all;
  for (std::uint64_t i = 0; i < program.length(first, lane); ++i) {
    const Instruction instruction = program.at(first, lane, i);
    if (instruction.payload == Payload::GradientFacts) {
      facts_ = time_alone(program, rates, channel, i);
      return;
    }
    const bool is_of_microbatch =
        instruction.payload == Payload::Activation || instruction.payload == Payload::Gradient;
    Seconds time;
    if (is_of_microbatch) {
      const auto [known, is_new] = time_of_reform.try_emplace({instruction.place, instruction.payload});
      if (is_new) known->second = time_alone(program, rates, channel, i);
      time = known->second;
    } else {
      time = time_alone(program, rates, channel, i);
    }
    all += time;
    if (!is_of_microbatch || instruction.microbatch == 0) once += time;
  }
  longest_lane_ = std::max(longest_lane_, all);
  for (const End& end : channel.ends) once_[end.rank] += once;
}

Predicted OperatorCosts::formulas() const
{
  Predicted predicted;
  predicted.bottleneck = largest(passes_);
  std::map<std::size_t, Seconds> once;  // by the first part of a group of ranks
  for (std::size_t rank = 0; rank < once_.size(); ++rank) {
    Seconds& most = once[first_part_[rank]];
    most = std::max(most, once_[rank]);
  }
  for (const auto& [part, most] : once) predicted.sequential += most;
  predicted.sequential += facts_;
  for (const auto& [way, longest] : messages_) predicted.sequential += longest;
  std::size_t parts = 0;
  for (const auto& of_rank : forwards_) parts = std::max(parts, of_rank.size());
  for (std::size_t part = 0; part < parts; ++part) {
    for (const auto* times : {&forwards_, &backwards_}) {
      Seconds slowest;
      for (const auto& of_rank : *times) {
        if (part < of_rank.size()) slowest = std::max(slowest, of_rank[part]);
      }
      predicted.sequential += slowest;
    }
  }
  predicted.pipeline = static_cast<double>(microbatches_ - 1) * predicted.bottleneck + predicted.sequential;
  return predicted;
}

Seconds OperatorCosts::least_step() const
{
  Seconds busiest;
  for (std::size_t rank = 0; rank < passes_.size(); ++rank) {
    busiest = std::max(busiest, static_cast<double>(microbatches_) * passes_[rank] + updates_[rank]);
  }
  return std::max(busiest, longest_lane_ + facts_);
}

}  // namespace isobar::allocators
