#include "allocators/operator_costs.hpp"

#include "core/program/walk.hpp"

#include <algorithm>
#include <numeric>

namespace isobar::allocators {

namespace {

Seconds largest(const std::vector<Seconds>& times)
{
  return *std::max_element(times.begin(), times.end());
}

}  // namespace

OperatorCosts::OperatorCosts(const Program& program, const PlayerRates& rates, std::uint64_t microbatches)
    : microbatches_(microbatches), updates_(program.ranks()), lanes_(program.ranks()), once_(program.ranks())
{
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    auto& forwards = forwards_.emplace_back();
    auto& backwards = backwards_.emplace_back();
    first_part_.push_back(program.at(rank, compute_lane, 0).stage);
    for (std::uint64_t i = 0; i < program.length(rank, compute_lane); ++i) {
      const Instruction instruction = program.at(rank, compute_lane, i);
      const Seconds time = instruction.work / rates.speeds[rank];
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
    const auto& [from, lane] = channel.ends.front();
    const Instruction message = program.at(from, lane, 0);
    if (message.opcode != Opcode::Send || !rates.transfer) continue;
    const TransferTimes times = rates.transfer(from, channel.ends.back().rank, message.size);
    Seconds& longest = messages_[{message.stage, message.payload}];
    longest = std::max(longest, times.latency + times.data);
  }
}

PlayedSink OperatorCosts::sink()
{
  return [this](const Turn& turn, Seconds begin, Seconds end) {
    const Instruction& instruction = turn.instruction;
    if (!is_collective(instruction.opcode)) return;
    if (instruction.payload == Payload::GradientFacts) {
      facts_ = end - begin;
      return;
    }
    lanes_[turn.at.rank][turn.at.lane] += end - begin;
    const bool is_of_microbatch =
        instruction.payload == Payload::Activation || instruction.payload == Payload::Gradient;
    if (!is_of_microbatch || instruction.microbatch == 0) once_[turn.at.rank] += end - begin;
  };
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
  Seconds longest;
  for (const auto& lanes : lanes_) {
    for (const auto& [lane, time] : lanes) longest = std::max(longest, time);
  }
  return std::max(busiest, longest + facts_);
}

}  // namespace isobar::allocators
